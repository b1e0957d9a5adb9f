/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that compute on one array in rounds, by a shared window of MPI and its barrier.
 *
 *	mpirun -n PARTIES rounds-mpi ROUNDS
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS 16

static void meet(MPI_Comm node, MPI_Win window)
{
	MPI_Win_sync(window);
	MPI_Barrier(node);
	MPI_Win_sync(window);
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, sum = 0, *cells;
	int rank, size, neighbours, unit;
	MPI_Comm node;
	MPI_Win window;
	MPI_Aint bytes;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
	MPI_Comm_size(node, &neighbours);
	if (neighbours != size) {
		fprintf(stderr, "rounds: only %d of %d ranks share memory\n", neighbours, size);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	unsigned all = size * CELLS, first = rank * CELLS;
	MPI_Win_allocate_shared(rank == 0 ? 2 * all * sizeof *cells : 0, 1, MPI_INFO_NULL, node, &cells, &window);
	MPI_Win_shared_query(window, 0, &bytes, &unit, &cells);
	MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
	for (unsigned i = first; i < first + CELLS; i++)
		cells[i] = i;
	meet(node, window);
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t *now = cells + round % 2 * all, *next = cells + (round + 1) % 2 * all;
		for (unsigned i = first; i < first + CELLS; i++)
			next[i] = now[(i + all - 1) % all] + now[i] + now[(i + 1) % all] + 1;
		meet(node, window);
	}
	for (unsigned i = 0; i < all; i++)
		sum += cells[rounds % 2 * all + i] * (i + 1);
	printf("rounds: process %d: %llu rounds, sum %llu\n", rank, (unsigned long long)rounds, (unsigned long long)sum);
	MPI_Win_unlock_all(window);
	MPI_Win_free(&window);
	MPI_Finalize();
	return 0;
}
