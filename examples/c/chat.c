/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Group chat of processes on the host and in any number of VMs: everybody says something to everybody, over channels that are
 * made as members of the group appear.
 *
 *	cc -O2 chat.c $(pkg-config --cflags --libs isthmus) -o chat
 *	isthmus run --vms 3 -n 3 -- ./chat 3
 *
 * The member with the lower number connects, so that each pair has one channel.
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define GROUP 0x63686174 /* known to all participants: the magic id */
#define PATIENCE 60000000000ull

static void must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "chat: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

/* A number for this process: how many have come before. */
static uint64_t take_number(struct isthmus *here)
{
	struct isthmus_segment *segment;

	must(isthmus_segment_open(here, "chat", ISTHMUS_CREATE, 0600, 64, &segment), "segment");
	uint64_t number = __atomic_fetch_add((uint64_t *)isthmus_segment_data(segment), 1, __ATOMIC_RELAXED);
	isthmus_segment_close(segment);
	return number;
}

/* That something has happened is all that is waited for. */
static void ignore(const struct isthmus_event *event, void *arg)
{
	(void)event, (void)arg;
}

int main(int argc, char **argv)
{
	int parties = argc > 1 ? atoi(argv[1]) : 2;
	struct isthmus *here;
	struct isthmus_ivc *ivc;
	struct isthmus_channel *channels[MOST];
	struct isthmus_peer peers[MOST], self;
	int open = 0, known;

	if (parties < 2 || parties > MOST) {
		fprintf(stderr, "chat: 2 to %d parties\n", MOST);
		return 2;
	}
	must(isthmus_attach(NULL, &here), "attach");
	uint64_t me = take_number(here);
	must(isthmus_ivc_register(here, GROUP, me, NULL, &ivc), "register");
	must(isthmus_member_name(here, isthmus_member(here), self.host, sizeof self.host), "name");

	/* Everybody waits until all are there, and then has one channel to each. */
	while ((known = isthmus_ivc_peers(ivc, peers, MOST)) < parties - 1)
		must(known, "peers"), must(isthmus_ivc_events(ivc, PATIENCE, ignore, NULL), "events");
	for (int i = 0; i < known; i++)
		if (me < peers[i].client)
			must(isthmus_ivc_connect(ivc, &peers[i], PATIENCE, &channels[open++]), "connect");
	while (open < parties - 1)
		must(isthmus_ivc_accept(ivc, PATIENCE, &channels[open++]), "accept");

	/* A line to each, written in place: its length, then its words. */
	for (int i = 0; i < open; i++) {
		struct iovec pieces[2];
		char line[128];
		int len = snprintf(line, sizeof line, "greetings from %llu on %s", (unsigned long long)me, self.host);
		unsigned char size = (unsigned char)len;

		if (isthmus_channel_reserve(channels[i], (size_t)len + 1, pieces) != len + 1 || pieces[1].iov_len != 0)
			must(-1, "a fresh channel has room for a line");
		memcpy(pieces[0].iov_base, &size, 1);
		memcpy((char *)pieces[0].iov_base + 1, line, (size_t)len);
		must(isthmus_channel_commit(channels[i], (size_t)len + 1), "commit");
		must(isthmus_channel_shutdown(channels[i]), "shutdown");
	}
	for (int i = 0; i < open; i++) {
		struct isthmus_peer peer;
		unsigned char size;
		char line[256], end;

		must(isthmus_channel_peer(channels[i], &peer), "peer");
		must(isthmus_channel_read_all(channels[i], &size, 1, PATIENCE), "read");
		must(isthmus_channel_read_all(channels[i], line, size, PATIENCE), "read");
		printf("%llu hears %llu on %s: %.*s\n", (unsigned long long)me, (unsigned long long)peer.client, peer.host, size, line);
		if (isthmus_channel_read_all(channels[i], &end, 1, PATIENCE) != ISTHMUS_EEND)
			must(-1, "it said more than it should");
	}
	for (int i = 0; i < open; i++)
		isthmus_channel_close(channels[i]);
	isthmus_ivc_close(ivc);
	if (me == 0)
		must(isthmus_segment_unlink(here, "chat"), "unlink");
	isthmus_detach(here);
	return 0;
}
