/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Laplace's equation in MPI: see ../laplace.c. Each rank has its own rows, and a copy of the row on either side, which it gets
 * before each sweep.
 */
#include "../kernels/kernels.h"
#include <mpi.h>

int main(int argc, char **argv)
{
	int rank, size;
	double *grid[2], *all = NULL, change = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	struct options o = parse(argc, argv, MPI, &laplace);
	long n = o.n, across = n + 2, at = 0;
	struct slice mine = slice_of(n, rank, size);
	long rows = mine.end - mine.begin;
	int up = rank + 1 < size ? rank + 1 : MPI_PROC_NULL, down = rank > 0 ? rank - 1 : MPI_PROC_NULL;

	if (n < size)
		mistake("-n is at least the number of processes");
	for (int i = 0; i < 2; i++) {
		grid[i] = zeros((size_t)(rows + 2) * (size_t)across * sizeof(double));
		laplace_start(n, mine.begin, rows + 2, grid[i]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = now();
	for (long step = 0; step < o.steps; step++, at = !at) {
		double *here = grid[at];
		if (step > 0) {
			MPI_Sendrecv(here + across, (int)across, MPI_DOUBLE, down, 0, here + (rows + 1) * across, (int)across, MPI_DOUBLE, up,
				     0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Sendrecv(here + rows * across, (int)across, MPI_DOUBLE, up, 1, here, (int)across, MPI_DOUBLE, down, 1,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
		double largest = laplace_sweep(n, rows, here + across, grid[!at] + across);
		MPI_Allreduce(&largest, &change, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
		if (change < o.tolerance) {
			at = !at;
			break;
		}
	}
	double seconds = now() - begin;

	int counts[MOST_PROCESSES], places[MOST_PROCESSES];
	for (int i = 0; i < size; i++) {
		struct slice theirs = slice_of(n, i, size);
		counts[i] = (int)((theirs.end - theirs.begin) * across);
		places[i] = (int)(theirs.begin * across);
	}
	if (rank == 0) {
		all = zeros((size_t)across * (size_t)across * sizeof(double));
		laplace_start(n, 0, across, all);
	}
	MPI_Gatherv(grid[at] + across, counts[rank], MPI_DOUBLE, rank ? NULL : all + across, counts, places, MPI_DOUBLE, 0,
		    MPI_COMM_WORLD);
	if (rank == 0)
		print_record(&o, size, seconds, laplace_mean(n, all), change);
	MPI_Finalize();
	return 0;
}
