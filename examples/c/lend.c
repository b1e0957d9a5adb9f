/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Large blocks from one process to another: lent, so that their receiver copies them from where they are, and beside that through the
 * channel, which copies them twice. The receiver looks at all that it gets. In VMs with the guest driver and --grant a block is lent in
 * place once it is lent again; elsewhere the loan has a copy of it.
 *
 *	cc -O2 lend.c $(pkg-config --cflags --libs isthmus) -o lend
 *	isthmus run --vms 2 --driver require --grant -n 2 -- ./lend 1048576 200
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROUP 0x6c656e64
#define PATIENCE 60000000000ull
#define BLOCKS 4
#define RING (1 << 20)

static void must(int64_t error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "lend: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t word_at(uint64_t block, uint64_t round, uint64_t i)
{
	return (i + 1) * 0x9e3779b97f4a7c15 ^ (block << 32) ^ round;
}

static void fill(uint64_t *block, size_t words, uint64_t number, uint64_t round)
{
	for (size_t i = 0; i < words; i++)
		block[i] = word_at(number, round, i);
}

static void check(const uint64_t *block, size_t words, uint64_t number, uint64_t round)
{
	for (size_t i = 0; i < words; i++)
		if (block[i] != word_at(number, round, i)) {
			fprintf(stderr, "lend: word %zu of block %llu is wrong in round %llu\n", i, (unsigned long long)number,
				(unsigned long long)round);
			exit(1);
		}
}

/* That something has happened is all that is waited for. */
static void ignore(const struct isthmus_event *event, void *arg)
{
	(void)event, (void)arg;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) / 8 * 8 : 1 << 20;
	uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 200, in_place = 0;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_ivc *ivc;
	struct isthmus_channel *channel;
	struct isthmus_peer peer;
	struct isthmus_ivc_options options = {.ring_bytes = RING};
	unsigned char ticket[ISTHMUS_TICKET_BYTES];
	uint64_t *blocks[BLOCKS];
	char done = 0;

	must(bytes ? 0 : -1, "no bytes");
	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "lend", ISTHMUS_CREATE, 0600, 64, &segment), "segment");
	uint64_t me = __atomic_fetch_add((uint64_t *)isthmus_segment_data(segment), 1, __ATOMIC_RELAXED);
	must(isthmus_ivc_register(here, GROUP, me, &options, &ivc), "register");
	if (me == 0) {
		must(isthmus_ivc_accept(ivc, PATIENCE, &channel), "accept");
		must(isthmus_segment_unlink(here, "lend"), "unlink");
	} else {
		while (isthmus_ivc_peers(ivc, &peer, 1) < 1)
			must(isthmus_ivc_events(ivc, PATIENCE, ignore, NULL), "events");
		must(isthmus_ivc_connect(ivc, &peer, PATIENCE, &channel), "connect");
	}
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = malloc(bytes);
		must(blocks[i] ? 0 : -1, "malloc");
		/* So that the system has given all of it. */
		memset(blocks[i], 1, bytes);
	}

	for (int lent = 0; lent < 2; lent++) {
		struct isthmus_loan *loans[BLOCKS] = {NULL};
		double begin = now();
		for (uint64_t round = 0; round < rounds; round++) {
			uint64_t number = round % BLOCKS, *block = blocks[number];
			if (me == 0) {
				/* A loan may end, and its block change, once its receiver has it. */
				if (loans[number])
					must(isthmus_channel_read_all(channel, &done, 1, PATIENCE), "read");
				isthmus_loan_end(loans[number]);
				fill(block, bytes / 8, number, round);
				if (!lent) {
					must(isthmus_channel_write_all(channel, block, bytes, PATIENCE), "write");
					continue;
				}
				must(isthmus_ivc_lend(ivc, block, bytes, ticket, &loans[number]), "lend");
				must(isthmus_channel_write_all(channel, ticket, sizeof ticket, PATIENCE), "write");
				in_place += isthmus_loan_in_place(loans[number]);
			} else {
				if (!lent) {
					must(isthmus_channel_read_all(channel, block, bytes, PATIENCE), "read");
				} else {
					must(isthmus_channel_read_all(channel, ticket, sizeof ticket, PATIENCE), "read");
					must(isthmus_ivc_fetch(ivc, ticket, 0, block, bytes), "fetch");
					must(isthmus_channel_write_all(channel, &done, 1, PATIENCE), "write");
				}
				check(block, bytes / 8, number, round);
			}
		}
		for (int i = 0; i < BLOCKS; i++) {
			if (loans[i])
				must(isthmus_channel_read_all(channel, &done, 1, PATIENCE), "read");
			isthmus_loan_end(loans[i]);
		}
		/* Both have done all. */
		must(isthmus_channel_write_all(channel, &done, 1, PATIENCE), "write");
		must(isthmus_channel_read_all(channel, &done, 1, PATIENCE), "read");
		double rate = 1e-6 * (double)rounds * (double)bytes / (now() - begin);
		if (me == 0 && !lent)
			printf("%llu blocks of %zu bytes through the channel: %.0f MB/s\n", (unsigned long long)rounds, bytes, rate);
		else if (me == 0)
			printf("%llu blocks of %zu bytes lent: %.0f MB/s, %.1f %% in place\n", (unsigned long long)rounds, bytes, rate,
			       100.0 * (double)in_place / ((double)rounds * (double)bytes));
	}
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	isthmus_channel_close(channel);
	isthmus_ivc_close(ivc);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
