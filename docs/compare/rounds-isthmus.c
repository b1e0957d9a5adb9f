/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that compute on one array in rounds, by isthmus: a named segment and a barrier.
 *
 *	rounds-isthmus NUMBER PARTIES ROUNDS
 */
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS 16

static void must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "rounds: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

int main(int argc, char **argv)
{
	unsigned number = argc > 3 ? atoi(argv[1]) : 0, parties = argc > 3 ? atoi(argv[2]) : 1;
	uint64_t rounds = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000, sum = 0;
	unsigned all = parties * CELLS, first = number * CELLS;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_barrier *barrier;

	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "rounds", ISTHMUS_CREATE, 0600, 2 * all * sizeof(uint64_t), &segment), "segment");
	must(isthmus_barrier_join(here, "rounds", parties, ISTHMUS_HYBRID, 0600, &barrier), "join");
	uint64_t *cells = isthmus_segment_data(segment);
	for (unsigned i = first; i < first + CELLS; i++)
		cells[i] = i;
	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the start");
	if (number == 0) {
		must(isthmus_segment_unlink(here, "rounds"), "unlink");
		must(isthmus_barrier_unlink(here, "rounds"), "unlink");
	}
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t *now = cells + round % 2 * all, *next = cells + (round + 1) % 2 * all;
		for (unsigned i = first; i < first + CELLS; i++)
			next[i] = now[(i + all - 1) % all] + now[i] + now[(i + 1) % all] + 1;
		must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "a round");
	}
	for (unsigned i = 0; i < all; i++)
		sum += cells[rounds % 2 * all + i] * (i + 1);
	printf("rounds: process %u: %llu rounds, sum %llu\n", number, (unsigned long long)rounds, (unsigned long long)sum);
	isthmus_barrier_leave(barrier);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
