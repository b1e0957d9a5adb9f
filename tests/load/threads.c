/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * MPI_THREAD_MULTIPLE under load: each thread has a communicator and a window of its own, and shares one of each with the
 * others; everything at once.
 *
 * usage: mpirun -n N threads [THREADS [ROUNDS]]
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static int size, threads = 4, rounds = 200;
static MPI_Comm *own;
static MPI_Win *window, shared;
static long *sums, *shared_sums;

static void *work(void *arg)
{
	int me = (int)(long)arg, right = (rank + 1) % size, left = (rank + size - 1) % size;
	static const int lens[] = {1, 10, 1000, 5000, 40000};
	int *to = malloc(40000 * sizeof *to), *from = malloc(40000 * sizeof *from);
	for (int i = 0; i < rounds; i++) {
		int n = lens[(i + me) % 5];
		MPI_Request r[4];
		for (int k = 0; k < n; k++)
			from[k] = rank * 1000 + me * 100 + i + k;
		/* Around the ring on the own communicator, and on the shared one with the thread in the tag. */
		memset(to, 0, n * sizeof *to);
		MPI_Irecv(to, n, MPI_INT, left, i, own[me], &r[0]);
		MPI_Isend(from, n, MPI_INT, right, i, own[me], &r[1]);
		MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
		for (int k = 0; k < n; k++)
			CHECK(to[k] == left * 1000 + me * 100 + i + k);
		/* Other numbers than before, into a buffer that has none of them. */
		for (int k = 0; k < n; k++)
			from[k] += 1000000;
		memset(to, 0, n * sizeof *to);
		MPI_Status both[2];
		int got;
		MPI_Irecv(to, n, MPI_INT, MPI_ANY_SOURCE, 1000 + me, MPI_COMM_WORLD, &r[0]);
		MPI_Isend(from, n, MPI_INT, right, 1000 + me, MPI_COMM_WORLD, &r[1]);
		MPI_Waitall(2, r, both);
		MPI_Get_count(&both[0], MPI_INT, &got);
		CHECK(both[0].MPI_SOURCE == left && got == n);
		for (int k = 0; k < n; k++)
			CHECK(to[k] == 1000000 + left * 1000 + me * 100 + i + k);
		/* All together, each thread on its own. */
		int mine = rank + i, all;
		MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, own[me]);
		CHECK(all == size * (size - 1) / 2 + size * i);
		/* One-sided on both windows: nothing is lost. */
		long one = 1, before;
		MPI_Fetch_and_op(&one, &before, MPI_LONG, right, 0, MPI_SUM, window[me]);
		MPI_Win_flush(right, window[me]);
		MPI_Accumulate(&one, 1, MPI_LONG, 0, me, 1, MPI_LONG, MPI_SUM, shared);
		MPI_Win_flush(0, shared);
	}
	free(to);
	free(from);
	return NULL;
}

int main(int argc, char **argv)
{
	int provided;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(provided == MPI_THREAD_MULTIPLE);
	threads = argc > 1 ? atoi(argv[1]) : threads;
	rounds = argc > 2 ? atoi(argv[2]) : rounds;
	own = calloc(threads, sizeof *own);
	window = calloc(threads, sizeof *window);
	sums = calloc(threads, sizeof *sums);
	shared_sums = calloc(threads, sizeof *shared_sums);
	for (int i = 0; i < threads; i++) {
		MPI_Comm_dup(MPI_COMM_WORLD, &own[i]);
		MPI_Win_create(&sums[i], sizeof(long), sizeof(long), MPI_INFO_NULL, own[i], &window[i]);
		MPI_Win_lock_all(0, window[i]);
	}
	MPI_Win_create(shared_sums, threads * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &shared);
	MPI_Win_lock_all(0, shared);
	pthread_t *t = calloc(threads, sizeof *t);
	for (long i = 0; i < threads; i++)
		CHECK(pthread_create(&t[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < threads; i++) {
		MPI_Win_unlock_all(window[i]);
		MPI_Win_free(&window[i]);
		CHECK(sums[i] == rounds);
		MPI_Comm_free(&own[i]);
	}
	MPI_Win_unlock_all(shared);
	MPI_Win_free(&shared);
	for (int i = 0; i < threads && rank == 0; i++)
		CHECK(shared_sums[i] == (long)size * rounds);
	if (rank == 0)
		printf("threads: ok, %d ranks of %d threads\n", size, threads);
	MPI_Finalize();
	return 0;
}
