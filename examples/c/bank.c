/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Bank transfers by minitransactions: processes on the host and in VMs move money between accounts, all at the same time and
 * without a lock of their own, and the sum never changes, even if processes are killed.
 *
 *	cc -O2 bank.c $(pkg-config --cflags --libs isthmus) -o bank
 *	isthmus run --vms 2 -n 4 -- ./bank 4
 *
 * A transfer reads two balances, and then writes both if they are still what it has read: all or nothing.
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>

#define ACCOUNTS 16
#define EACH 1000

static void must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "bank: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

static uint64_t place(unsigned account)
{
	return account * sizeof(uint64_t);
}

/* Reads all balances at one moment, and adds them up. */
static uint64_t sum(struct isthmus_transaction *t, uint32_t accounts)
{
	uint64_t balance[ACCOUNTS], all = 0;

	isthmus_transaction_clear(t);
	must(isthmus_transaction_read(t, ISTHMUS_NODE_LOCAL, accounts, 0, balance, sizeof balance), "read");
	int outcome;
	do
		must(outcome = isthmus_transaction_commit(t), "sum");
	while (outcome != ISTHMUS_COMMITTED);
	for (int i = 0; i < ACCOUNTS; i++)
		all += balance[i];
	return all;
}

int main(int argc, char **argv)
{
	unsigned parties = argc > 1 ? (unsigned)atoi(argv[1]) : 2, transfers = argc > 2 ? (unsigned)atoi(argv[2]) : 5000;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_space *space;
	struct isthmus_transaction *t;
	struct isthmus_barrier *barrier;
	uint32_t accounts;
	unsigned failed = 0, busy = 0;

	must(isthmus_attach(NULL, &here), "attach");
	/* The accounts, and behind them the number of processes that have come. */
	must(isthmus_segment_open(here, "bank", ISTHMUS_CREATE, 0600, place(ACCOUNTS + 8), &segment), "segment");
	must(isthmus_space_open(here, "bank", 0600, NULL, &space), "space");
	must(isthmus_space_add(space, segment, &accounts), "add");
	must(isthmus_transaction_new(space, &t), "transaction");
	must(isthmus_barrier_join(here, "bank", parties, ISTHMUS_HYBRID, 0600, &barrier), "join");
	uint64_t *balance = isthmus_segment_data(segment);
	uint64_t me = __atomic_fetch_add(&balance[ACCOUNTS], 1, __ATOMIC_RELAXED);
	if (me == 0)
		for (int i = 0; i < ACCOUNTS; i++)
			balance[i] = EACH;
	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the start");

	unsigned seed = (unsigned)me + 1;
	for (unsigned done = 0; done < transfers;) {
		unsigned from = (unsigned)rand_r(&seed) % ACCOUNTS, to = (unsigned)rand_r(&seed) % ACCOUNTS;
		uint64_t amount = (unsigned)rand_r(&seed) % 10, is[2], shall[2];

		if (from == to)
			continue;
		isthmus_transaction_clear(t);
		must(isthmus_transaction_read(t, ISTHMUS_NODE_LOCAL, accounts, place(from), &is[0], 8), "read");
		must(isthmus_transaction_read(t, ISTHMUS_NODE_LOCAL, accounts, place(to), &is[1], 8), "read");
		int outcome = isthmus_transaction_commit(t);
		must(outcome, "read");
		if (outcome == ISTHMUS_LOCK_FAILED) {
			busy++;
			continue;
		}
		if (is[0] < amount) {
			done++;
			continue;
		}
		shall[0] = is[0] - amount;
		shall[1] = is[1] + amount;
		isthmus_transaction_clear(t);
		must(isthmus_transaction_compare(t, ISTHMUS_NODE_LOCAL, accounts, place(from), &is[0], 8), "compare");
		must(isthmus_transaction_compare(t, ISTHMUS_NODE_LOCAL, accounts, place(to), &is[1], 8), "compare");
		must(isthmus_transaction_write(t, ISTHMUS_NODE_LOCAL, accounts, place(from), &shall[0], 8), "write");
		must(isthmus_transaction_write(t, ISTHMUS_NODE_LOCAL, accounts, place(to), &shall[1], 8), "write");
		must(outcome = isthmus_transaction_commit(t), "transfer");
		done += outcome == ISTHMUS_COMMITTED;
		failed += outcome == ISTHMUS_COMPARE_FAILED;
		busy += outcome == ISTHMUS_LOCK_FAILED;
		/* Another process reads the books in the middle of it. */
		if (done % 1000 == 0 && sum(t, accounts) != ACCOUNTS * EACH) {
			fprintf(stderr, "bank: money is lost\n");
			return 1;
		}
	}
	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the end");
	printf("party %llu: %u transfers, %u tried again since a balance had changed, %u since others were in the way; the sum is %llu\n",
	       (unsigned long long)me, transfers, failed, busy, (unsigned long long)sum(t, accounts));
	int correct = sum(t, accounts) == ACCOUNTS * EACH;
	if (me == 0) {
		must(isthmus_segment_unlink(here, "bank"), "unlink");
		must(isthmus_space_unlink(here, "bank"), "unlink");
		must(isthmus_barrier_unlink(here, "bank"), "unlink");
	}
	isthmus_transaction_free(t);
	isthmus_barrier_leave(barrier);
	isthmus_space_close(space);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return !correct;
}
