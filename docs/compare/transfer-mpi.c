/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that move amounts between accounts, by a shared window of MPI and its lock.
 *
 *	mpirun -n PARTIES transfer-mpi TRANSFERS
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ACCOUNTS 16
#define EACH 1000

int main(int argc, char **argv)
{
	uint64_t transfers = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, total = 0, *balance;
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
		fprintf(stderr, "transfer: only %d of %d ranks share memory\n", neighbours, size);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Win_allocate_shared(rank == 0 ? ACCOUNTS * sizeof *balance : 0, 1, MPI_INFO_NULL, node, &balance, &window);
	MPI_Win_shared_query(window, 0, &bytes, &unit, &balance);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
	for (int i = 0; rank == 0 && i < ACCOUNTS; i++)
		balance[i] = EACH;
	MPI_Win_unlock(0, window);
	MPI_Barrier(node);
	unsigned seed = rank + 1;
	for (uint64_t done = 0; done < transfers;) {
		unsigned from = rand_r(&seed) % ACCOUNTS, to = rand_r(&seed) % ACCOUNTS;
		uint64_t amount = rand_r(&seed) % 10;

		if (from == to)
			continue;
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
		if (balance[from] < amount)
			amount = balance[from];
		balance[from] -= amount;
		balance[to] += amount;
		MPI_Win_unlock(0, window);
		done++;
	}
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
	for (int i = 0; i < ACCOUNTS; i++)
		total += balance[i];
	MPI_Win_unlock(0, window);
	printf("transfer: process %d: %llu transfers, total %llu\n", rank, (unsigned long long)transfers, (unsigned long long)total);
	MPI_Win_free(&window);
	MPI_Finalize();
	return 0;
}
