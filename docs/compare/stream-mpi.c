/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A stream of records from a producer to a consumer, by a shared window of MPI: a ring, with two positions that only grow.
 *
 *	mpirun -n 2 stream-mpi COUNT
 */
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SLOTS 1024
#define END UINT64_MAX

struct record {
	uint64_t number, words[7];
};

struct shared {
	_Alignas(64) _Atomic uint64_t written;
	_Alignas(64) _Atomic uint64_t read;
	struct record ring[SLOTS];
};

int main(int argc, char **argv)
{
	uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, sum = 0, records = 0;
	int rank, size, neighbours, unit;
	struct shared *shared;
	MPI_Comm node;
	MPI_Win window;
	MPI_Aint bytes;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
	MPI_Comm_size(node, &neighbours);
	if (size != 2 || neighbours != size) {
		fprintf(stderr, "stream: %d of %d ranks share memory, and it takes 2\n", neighbours, size);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Win_allocate_shared(rank == 0 ? sizeof *shared : 0, 1, MPI_INFO_NULL, node, &shared, &window);
	MPI_Win_shared_query(window, 0, &bytes, &unit, &shared);
	MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
	if (rank == 0)
		shared->written = shared->read = 0;
	MPI_Win_sync(window);
	MPI_Barrier(node);
	MPI_Win_sync(window);
	if (rank == 0) {
		for (uint64_t n = 0; n <= count; n++) {
			struct record record = {n < count ? n : END, {0}};
			for (int i = 0; i < 7; i++)
				record.words[i] = record.number * (i + 3);
			while (n - atomic_load_explicit(&shared->read, memory_order_acquire) == SLOTS)
				sched_yield();
			shared->ring[n % SLOTS] = record;
			atomic_store_explicit(&shared->written, n + 1, memory_order_release);
		}
		printf("stream: %llu records sent\n", (unsigned long long)count);
	} else {
		for (;;) {
			while (atomic_load_explicit(&shared->written, memory_order_acquire) == records)
				sched_yield();
			struct record record = shared->ring[records % SLOTS];
			atomic_store_explicit(&shared->read, records + 1, memory_order_release);
			if (record.number == END)
				break;
			for (int i = 0; i < 7; i++)
				if (record.number != records || record.words[i] != record.number * (i + 3))
					return fprintf(stderr, "stream: record %llu is wrong\n", (unsigned long long)records), 1;
			sum += record.words[6];
			records++;
		}
		printf("stream: %llu records, sum %llu\n", (unsigned long long)records, (unsigned long long)sum);
	}
	MPI_Win_unlock_all(window);
	MPI_Win_free(&window);
	MPI_Finalize();
	return 0;
}
