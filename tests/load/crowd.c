/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Many ranks: they start, meet, exchange a little in all directions, and end.
 *
 * usage: mpirun -n N crowd [NAME [SECONDS]]
 *
 * SECONDS makes it go on for at least that long, for jobs that shall run beside each other.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static int size;

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "crowd";
	double seconds = argc > 2 ? atof(argv[2]) : 0;
	int rounds = 0, more = 1;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	double begin = MPI_Wtime();
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
		rounds++;
		more = MPI_Wtime() - begin < seconds;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	if (rank == 0)
		printf("%s: ok, %d ranks, %d rounds, %.1f s\n", name, size, rounds, MPI_Wtime() - begin);
	MPI_Finalize();
	return 0;
}
