/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Many ranks: they start, meet, exchange a little in all directions, and end.
 *
 * usage: mpirun -n N crowd [NAME [SECONDS]]
 *
 * SECONDS makes it go on for at least that long, for jobs that shall run beside each other, or that shall show that
 * nobody stands still: no round may take longer than PATIENCE.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

/* Seconds. A round is some ten messages each; machines of tests stand still for moments. */
#define PATIENCE 5.0

static int size;

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "crowd";
	double seconds = argc > 2 ? atof(argv[2]) : 0;
	int rounds = 0, more = 1;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	double begin = MPI_Wtime(), before = begin, slowest = 0;
	while (more) {
		long mine = rank + rounds, sum = 0, from = -1;
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		CHECK(sum == (long)size * (size - 1) / 2 + (long)size * rounds);
		/* At all distances that are powers of two: not only neighbours. */
		for (int d = 1; d < size; d *= 2) {
			MPI_Sendrecv(&mine, 1, MPI_LONG, (rank + d) % size, d, &from, 1, MPI_LONG, (rank + size - d) % size, d,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK(from == (rank + size - d) % size + rounds);
		}
		double now = MPI_Wtime();
		if (seconds && now - before > slowest)
			slowest = now - before;
		CHECK(slowest < PATIENCE);
		before = now;
		rounds++;
		more = now - begin < seconds;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	if (rank == 0)
		printf("%s: ok, %d ranks, %d rounds, %.1f s, the slowest %.1f ms\n", name, size, rounds, MPI_Wtime() - begin,
		       1e3 * slowest);
	MPI_Finalize();
	return 0;
}
