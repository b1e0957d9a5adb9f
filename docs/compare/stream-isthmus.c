/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A stream of records from a producer to a consumer, by isthmus: a channel.
 *
 *	stream-isthmus produce COUNT	stream-isthmus consume
 */
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP 0x7265636f726473

struct record {
	uint64_t number, words[7];
};

static void must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "stream: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

static void ignore(const struct isthmus_event *event, void *arg)
{
	(void)event, (void)arg;
}

int main(int argc, char **argv)
{
	struct isthmus *here;
	struct isthmus_ivc *ivc;
	struct isthmus_channel *channel;
	struct isthmus_peer peer;
	struct record record;
	uint64_t sum = 0, records = 0;
	int error;

	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_ivc_register(here, GROUP, 0, NULL, &ivc), "register");
	if (argc > 2 && !strcmp(argv[1], "produce")) {
		must(isthmus_ivc_accept(ivc, ISTHMUS_FOREVER, &channel), "accept");
		for (record.number = 0; record.number < strtoull(argv[2], NULL, 10); record.number++) {
			for (int i = 0; i < 7; i++)
				record.words[i] = record.number * (i + 3);
			must(isthmus_channel_write_all(channel, &record, sizeof record, ISTHMUS_FOREVER), "write");
		}
		printf("stream: %llu records sent\n", (unsigned long long)record.number);
	} else {
		while (isthmus_ivc_peers(ivc, &peer, 1) < 1)
			must(isthmus_ivc_events(ivc, ISTHMUS_FOREVER, ignore, NULL), "events");
		must(isthmus_ivc_connect(ivc, &peer, ISTHMUS_FOREVER, &channel), "connect");
		while ((error = isthmus_channel_read_all(channel, &record, sizeof record, ISTHMUS_FOREVER)) == 0) {
			for (int i = 0; i < 7; i++)
				if (record.number != records || record.words[i] != record.number * (i + 3))
					return fprintf(stderr, "stream: record %llu is wrong\n", (unsigned long long)records), 1;
			sum += record.words[6];
			records++;
		}
		if (error != ISTHMUS_EEND)
			must(error, "read");
		printf("stream: %llu records, sum %llu\n", (unsigned long long)records, (unsigned long long)sum);
	}
	isthmus_channel_close(channel);
	isthmus_ivc_close(ivc);
	isthmus_detach(here);
	return 0;
}
