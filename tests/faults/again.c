/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A rank for tests/faults/again: a job that uses names of the shared section beside MPI.
 *
 * usage: again STEPS
 *
 * Says `ready` when all ranks have the names; works for STEPS steps, or for ever if that is 0; says `done`. What a job before
 * this one left of the names must be as docs/threat-model.md says: what went with its process is new and zero, what stays is
 * there, a lock tells of an owner who died in it, and a barrier that broke can be made anew.
 */
#include <mpi.h>
#include <isthmus.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BULK (1 << 20)
#define LIMIT 10000000000ULL

static int rank, ranks;

static void check(int holds, const char *what, int answer)
{
	if (holds)
		return;
	printf("rank %d: %s: %d, %s\n", rank, what, answer, isthmus_error());
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 9);
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 0, next, before, r, told = 0;
	struct isthmus *here;
	struct isthmus_segment *board, *kept;
	struct isthmus_mutex *mutex;
	struct isthmus_barrier *barrier;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	next = (rank + 1) % ranks;
	before = (rank + ranks - 1) % ranks;
	r = isthmus_attach(NULL, &here);
	check(r == 0, "cannot attach", r);

	/* Made by the one rank, then opened by the others. */
	for (int turn = 0; turn < 2; turn++) {
		if (turn == (rank != 0)) {
			unsigned make = ISTHMUS_CREATE | (rank ? 0 : ISTHMUS_EXCLUSIVE);
			r = isthmus_segment_open(here, "job/board", make | ISTHMUS_TRANSIENT, 0600, 4096, &board);
			check(r == 0, "cannot open job/board", r);
			r = isthmus_segment_open(here, "job/kept", ISTHMUS_CREATE, 0600, 4096, &kept);
			check(r == 0, "cannot open job/kept", r);
			r = isthmus_mutex_open(here, "job/mutex", 0600, &mutex);
			check(r == 0, "cannot open job/mutex", r);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	/* Who joins one whose participants are dead is told; both may make it new. */
	double end = MPI_Wtime() + 5;
	while ((r = isthmus_barrier_join(here, "job/barrier", ranks, ISTHMUS_HYBRID, 0600, &barrier)) == ISTHMUS_EBROKEN &&
	       MPI_Wtime() < end) {
		r = isthmus_barrier_reset(here, "job/barrier", ranks, ISTHMUS_HYBRID, 0600);
		check(r == 0 || r == ISTHMUS_EBUSY, "cannot reset job/barrier", r);
	}
	check(r == 0, "cannot join job/barrier", r);
	volatile unsigned *counts = isthmus_segment_data(board), *ever = isthmus_segment_data(kept);
	check(counts[0] == 0, "job/board is not new", counts[0]);
	MPI_Barrier(MPI_COMM_WORLD);

	char *out = malloc(BULK), *in = malloc(BULK), *window;
	MPI_Win win;
	MPI_Win_allocate(BULK, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	memset(out, 'a' + rank, BULK);
	if (rank == 0) {
		puts("ready");
		fflush(stdout);
	}
	for (int i = 0; steps == 0 || i < steps; i++) {
		int len = i % 3 ? BULK : 8;
		MPI_Sendrecv(out, len, MPI_BYTE, next, 1, in, len, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check(in[0] == 'a' + before && in[len - 1] == 'a' + before, "a message is wrong", i);
		MPI_Win_fence(0, win);
		MPI_Put(out, len, MPI_BYTE, next, 0, len, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		check(window[0] == 'a' + before && window[len - 1] == 'a' + before, "a put is wrong", i);
		r = isthmus_mutex_lock(mutex, LIMIT);
		if (r == ISTHMUS_OWNER_DIED) {
			told = 1;
			r = isthmus_mutex_mend(mutex);
		}
		check(r == 0, "cannot lock job/mutex", r);
		counts[0]++;
		ever[0]++;
		r = isthmus_mutex_unlock(mutex);
		check(r == 0, "cannot unlock job/mutex", r);
		r = isthmus_barrier_wait(barrier, LIMIT);
		check(r == 0 || r == 1, "the barrier does not let on", r);
		check(counts[0] == (unsigned)(ranks * (i + 1)), "a step was not counted", counts[0]);
		r = isthmus_barrier_wait(barrier, LIMIT);
		check(r == 0 || r == 1, "the barrier does not let on", r);
	}
	if (rank == 0)
		printf("done: %u steps in all jobs, %s of an owner who died\n", ever[0], told ? "told" : "not told");
	fflush(stdout);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		for (int i = 0; i < 4; i++) {
			static const char *const names[] = {"job/board", "job/kept"};
			r = i == 0   ? isthmus_segment_unlink(here, names[0])
			    : i == 1 ? isthmus_segment_unlink(here, names[1])
			    : i == 2 ? isthmus_mutex_unlink(here, "job/mutex")
				     : isthmus_barrier_unlink(here, "job/barrier");
			check(r == 0, "cannot take a name away", r);
		}
	isthmus_barrier_leave(barrier);
	isthmus_mutex_close(mutex);
	isthmus_segment_close(kept);
	isthmus_segment_close(board);
	isthmus_detach(here);
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
