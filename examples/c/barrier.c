/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * All processes of a job meet at a barrier again and again, and check that none was ahead: each counts its rounds in a segment,
 * and after each barrier all counts are the same.
 *
 *	cc -O2 barrier.c $(pkg-config --cflags --libs isthmus) -o barrier
 *	isthmus run --vms 2 -n 4 -- ./barrier 4 hybrid
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 64

struct count {
	_Alignas(64) _Atomic uint64_t rounds;
};

static void must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "barrier: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

int main(int argc, char **argv)
{
	unsigned parties = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
	const char *how = argc > 2 ? argv[2] : "hybrid";
	uint64_t rounds = argc > 3 ? strtoull(argv[3], NULL, 10) : 20000;
	unsigned waiting = !strcmp(how, "spin") ? ISTHMUS_SPIN : !strcmp(how, "block") ? ISTHMUS_BLOCK : ISTHMUS_HYBRID;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_barrier *barrier;
	struct timespec begin, end;

	if (parties < 1 || parties > MOST) {
		fprintf(stderr, "barrier: 1 to %d parties\n", MOST);
		return 2;
	}
	if (waiting == ISTHMUS_HYBRID && strcmp(how, "hybrid")) {
		fprintf(stderr, "barrier: spin, block or hybrid, not %s\n", how);
		return 2;
	}
	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "barrier", ISTHMUS_CREATE, 0600, sizeof(struct count) * (MOST + 1), &segment), "segment");
	must(isthmus_barrier_join(here, "barrier", parties, waiting, 0600, &barrier), "join");
	struct count *counts = isthmus_segment_data(segment);
	/* The last one hands out numbers. */
	uint64_t me = atomic_fetch_add(&counts[MOST].rounds, 1);

	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the first round");
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (uint64_t round = 1; round <= rounds; round++) {
		atomic_store_explicit(&counts[me].rounds, round, memory_order_relaxed);
		must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "wait");
		for (unsigned other = 0; other < parties; other++) {
			uint64_t seen = atomic_load_explicit(&counts[other].rounds, memory_order_relaxed);
			if (seen != round && seen != round + 1) {
				fprintf(stderr, "barrier: %u is in round %llu, and I am in %llu\n", other,
					(unsigned long long)seen, (unsigned long long)round);
				return 1;
			}
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
	if (must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the last round"), me == 0) {
		printf("%u parties, %s: %llu rounds, %.2f us each\n", parties, how, (unsigned long long)rounds,
		       1e6 * seconds / (double)rounds);
		must(isthmus_barrier_unlink(here, "barrier"), "unlink");
		must(isthmus_segment_unlink(here, "barrier"), "unlink");
	}
	isthmus_barrier_leave(barrier);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
