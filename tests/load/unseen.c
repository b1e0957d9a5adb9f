/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What rests cost traffic that the provider cannot see: two ranks of one host play ping-pong over the MPI's own shared
 * memory, while lanes to ranks elsewhere are open and those ranks wait.
 *
 * usage: mpirun unseen SECONDS; prints the median, and what 1 of 100 exceeds, of half a round in microseconds
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

enum { MOST = 2000000 };

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 3;
	int size, place, places, more = 1;
	MPI_Comm host;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
	MPI_Comm_rank(host, &place);
	MPI_Comm_size(host, &places);
	/* Everybody speaks to everybody, so that all lanes are there. */
	for (int d = 1; d < size; d++) {
		int out = rank, in = -1;
		MPI_Sendrecv(&out, 1, MPI_INT, (rank + d) % size, 1, &in, 1, MPI_INT, (rank + size - d) % size, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(in == (rank + size - d) % size);
	}
	double *halves = malloc(sizeof(*halves) * MOST), begin = MPI_Wtime();
	int count = 0;
	CHECK(halves);
	/* The first two of the host of rank 0; the others wait in the barrier below. */
	int first = rank == 0;
	MPI_Bcast(&first, 1, MPI_INT, 0, host);
	while (first && places > 1 && place < 2 && more) {
		double before = MPI_Wtime();
		int there = place == 0 ? (more = before - begin < seconds && count < MOST) : 0;
		if (place == 0) {
			MPI_Send(&there, 1, MPI_INT, 1, 2, host);
			MPI_Recv(&there, 1, MPI_INT, 1, 2, host, MPI_STATUS_IGNORE);
			if (more)
				halves[count++] = (MPI_Wtime() - before) / 2;
		} else {
			MPI_Recv(&more, 1, MPI_INT, 0, 2, host, MPI_STATUS_IGNORE);
			MPI_Send(&more, 1, MPI_INT, 0, 2, host);
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		CHECK(places > 1 && count > 0);
		qsort(halves, count, sizeof(*halves), compare);
		printf("unseen: ok, %d of %d ranks at one place: %.2f us, 1 of 100 above %.2f us (%d rounds)\n", places, size,
		       1e6 * halves[count / 2], 1e6 * halves[count * 99L / 100], count);
	}
	MPI_Finalize();
	return 0;
}
