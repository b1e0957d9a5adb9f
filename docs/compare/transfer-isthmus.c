/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that move amounts between accounts, by isthmus: minitransactions on a named segment.
 *
 *	transfer-isthmus NUMBER PARTIES TRANSFERS
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>

#define ACCOUNTS 16
#define EACH 1000

static int must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "transfer: %s: %s\n", what, isthmus_error());
		exit(1);
	}
	return error;
}

int main(int argc, char **argv)
{
	unsigned number = argc > 3 ? atoi(argv[1]) : 0, parties = argc > 3 ? atoi(argv[2]) : 1;
	unsigned seed = number + 1, all;
	uint64_t transfers = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000, balance[ACCOUNTS], total = 0;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_space *space;
	struct isthmus_transaction *t;
	struct isthmus_barrier *barrier;

	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "transfer", ISTHMUS_CREATE, 0600, sizeof balance, &segment), "segment");
	must(isthmus_space_open(here, "transfer", 0600, NULL, &space), "space");
	must(isthmus_space_add(space, segment, &all), "add");
	must(isthmus_transaction_new(space, &t), "transaction");
	must(isthmus_barrier_join(here, "transfer", parties, ISTHMUS_HYBRID, 0600, &barrier), "join");
	for (unsigned i = 0; number == 0 && i < ACCOUNTS; i++)
		((uint64_t *)isthmus_segment_data(segment))[i] = EACH;
	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the start");
	if (number == 0) {
		must(isthmus_segment_unlink(here, "transfer"), "unlink");
		must(isthmus_space_unlink(here, "transfer"), "unlink");
		must(isthmus_barrier_unlink(here, "transfer"), "unlink");
	}
	for (uint64_t done = 0; done < transfers;) {
		uint64_t from = rand_r(&seed) % ACCOUNTS, to = rand_r(&seed) % ACCOUNTS, amount = rand_r(&seed) % 10, was[2], is[2];

		if (from == to)
			continue;
		must(isthmus_transaction_clear(t), "clear");
		must(isthmus_transaction_read(t, ISTHMUS_NODE_LOCAL, all, from * 8, &was[0], 8), "read");
		must(isthmus_transaction_read(t, ISTHMUS_NODE_LOCAL, all, to * 8, &was[1], 8), "read");
		if (must(isthmus_transaction_commit(t), "commit") != ISTHMUS_COMMITTED)
			continue;
		if (was[0] < amount)
			amount = was[0];
		is[0] = was[0] - amount;
		is[1] = was[1] + amount;
		must(isthmus_transaction_clear(t), "clear");
		must(isthmus_transaction_compare(t, ISTHMUS_NODE_LOCAL, all, from * 8, &was[0], 8), "compare");
		must(isthmus_transaction_compare(t, ISTHMUS_NODE_LOCAL, all, to * 8, &was[1], 8), "compare");
		must(isthmus_transaction_write(t, ISTHMUS_NODE_LOCAL, all, from * 8, &is[0], 8), "write");
		must(isthmus_transaction_write(t, ISTHMUS_NODE_LOCAL, all, to * 8, &is[1], 8), "write");
		done += must(isthmus_transaction_commit(t), "commit") == ISTHMUS_COMMITTED;
	}
	must(isthmus_transaction_clear(t), "clear");
	must(isthmus_transaction_read(t, ISTHMUS_NODE_LOCAL, all, 0, balance, sizeof balance), "read");
	while (must(isthmus_transaction_commit(t), "commit") != ISTHMUS_COMMITTED)
		;
	for (int i = 0; i < ACCOUNTS; i++)
		total += balance[i];
	printf("transfer: process %u: %llu transfers, total %llu\n", number, (unsigned long long)transfers, (unsigned long long)total);
	isthmus_transaction_free(t);
	isthmus_barrier_leave(barrier);
	isthmus_space_close(space);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
