/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A producer and a consumer with a channel between them, without a copy on either side: the producer computes where the consumer
 * reads. Prints the rate, and how long 64 bytes take to and fro.
 *
 *	cc -O2 stream.c $(pkg-config --cflags --libs isthmus) -o stream
 *	isthmus run --vms 2 -n 2 -- ./stream 100000000
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROUP 0x73747265616d
#define PATIENCE 60000000000ull
#define ROUNDS 2000

static void must(int64_t error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "stream: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What stands at a place of the stream. */
static unsigned char byte_at(uint64_t place)
{
	return (unsigned char)(place * 2654435761u >> 13);
}

static void produce(struct isthmus_channel *channel, uint64_t total)
{
	struct iovec pieces[2];

	for (uint64_t done = 0; done < total;) {
		int64_t room = isthmus_channel_reserve(channel, total - done < 65536 ? total - done : 65536, pieces);
		must(room, "reserve");
		for (int piece = 0; piece < 2; piece++)
			for (size_t i = 0; i < pieces[piece].iov_len; i++)
				((unsigned char *)pieces[piece].iov_base)[i] = byte_at(done++);
		if (room > 0)
			must(isthmus_channel_commit(channel, (size_t)room), "commit");
	}
	must(isthmus_channel_flush(channel, PATIENCE), "flush");
}

static void consume(struct isthmus_channel *channel, uint64_t total)
{
	struct iovec pieces[2];

	for (uint64_t done = 0; done < total;) {
		int64_t there = isthmus_channel_peek(channel, 65536, pieces);
		uint64_t wrong = 0;
		must(there, "peek");
		for (int piece = 0; piece < 2; piece++)
			for (size_t i = 0; i < pieces[piece].iov_len; i++)
				wrong += ((unsigned char *)pieces[piece].iov_base)[i] != byte_at(done++);
		must(isthmus_channel_release(channel, (size_t)there), "release");
		if (wrong) {
			fprintf(stderr, "stream: %llu bytes are wrong before %llu\n", (unsigned long long)wrong,
				(unsigned long long)done);
			exit(1);
		}
	}
}

/* That something has happened is all that is waited for. */
static void ignore(const struct isthmus_event *event, void *arg)
{
	(void)event, (void)arg;
}

int main(int argc, char **argv)
{
	uint64_t total = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000000;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_ivc *ivc;
	struct isthmus_channel *channel;
	struct isthmus_peer peer;
	char bytes[64] = {0};

	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "stream", ISTHMUS_CREATE, 0600, 64, &segment), "segment");
	uint64_t me = __atomic_fetch_add((uint64_t *)isthmus_segment_data(segment), 1, __ATOMIC_RELAXED);
	must(isthmus_ivc_register(here, GROUP, me, NULL, &ivc), "register");

	if (me == 0) {
		must(isthmus_ivc_accept(ivc, PATIENCE, &channel), "accept");
		must(isthmus_segment_unlink(here, "stream"), "unlink");
	} else {
		while (isthmus_ivc_peers(ivc, &peer, 1) < 1)
			must(isthmus_ivc_events(ivc, PATIENCE, ignore, NULL), "events");
		must(isthmus_ivc_connect(ivc, &peer, PATIENCE, &channel), "connect");
	}
	double begin = now();
	if (me == 0)
		produce(channel, total);
	else
		consume(channel, total);
	double streamed = now() - begin;

	begin = now();
	for (int round = 0; round < ROUNDS; round++) {
		if (me == 0)
			must(isthmus_channel_write_all(channel, bytes, sizeof bytes, PATIENCE), "write");
		must(isthmus_channel_read_all(channel, bytes, sizeof bytes, PATIENCE), "read");
		if (me != 0)
			must(isthmus_channel_write_all(channel, bytes, sizeof bytes, PATIENCE), "write");
	}
	double around = (now() - begin) / ROUNDS;
	if (me == 0)
		printf("%llu bytes in place: %.0f MB/s; 64 bytes to and fro: %.2f us\n", (unsigned long long)total,
		       1e-6 * (double)total / streamed, 1e6 * around);
	isthmus_channel_close(channel);
	isthmus_ivc_close(ivc);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
