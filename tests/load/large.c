/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A message of 2.2 GB, as one count of a type and one-sided: no count, offset or length is cut to 32 bits. Two ranks.
 *
 * usage: mpirun -n 2 large
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { BLOCK = 1 << 20, BLOCKS = 2200 };

/* Each 4 KiB begins with its own number. */
static void mark(char *at, uint64_t seed)
{
	for (uint64_t i = 0; i < (uint64_t)BLOCKS * BLOCK; i += 4096)
		*(uint64_t *)(at + i) = i + seed;
}

static void marked(const char *at, uint64_t seed)
{
	for (uint64_t i = 0; i < (uint64_t)BLOCKS * BLOCK; i += 4096)
		CHECK(*(const uint64_t *)(at + i) == i + seed);
}

int main(int argc, char **argv)
{
	MPI_Datatype block;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Type_contiguous(BLOCK, MPI_CHAR, &block);
	MPI_Type_commit(&block);
	char *memory = malloc((size_t)BLOCKS * BLOCK);
	CHECK(memory);
	if (rank == 0) {
		mark(memory, 5);
		MPI_Send(memory, BLOCKS, block, 1, 1, MPI_COMM_WORLD);
	} else if (rank == 1) {
		MPI_Status status;
		MPI_Count bytes;
		memset(memory, 0, (size_t)BLOCKS * BLOCK);
		MPI_Recv(memory, BLOCKS, block, 0, 1, MPI_COMM_WORLD, &status);
		MPI_Get_elements_x(&status, MPI_CHAR, &bytes);
		CHECK(bytes == (MPI_Count)BLOCKS * BLOCK);
		marked(memory, 5);
	}
	/* And back, in one piece. */
	MPI_Win window;
	MPI_Win_create(memory, (MPI_Aint)BLOCKS * BLOCK, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	if (rank == 1)
		mark(memory, 9);
	MPI_Win_fence(0, window);
	if (rank == 0) {
		char *last = calloc(1, 8);
		memset(memory, 0, (size_t)BLOCKS * BLOCK);
		MPI_Get(memory, BLOCKS, block, 1, 0, BLOCKS, block, window);
		MPI_Get(last, 8, MPI_CHAR, 1, (MPI_Aint)BLOCKS * BLOCK - 4096, 8, MPI_CHAR, window);
		MPI_Win_fence(0, window);
		marked(memory, 9);
		CHECK(*(uint64_t *)last == (uint64_t)BLOCKS * BLOCK - 4096 + 9);
	} else {
		MPI_Win_fence(0, window);
	}
	MPI_Win_free(&window);
	MPI_Type_free(&block);
	if (rank == 0)
		printf("large: ok, %llu bytes\n", (unsigned long long)BLOCKS * BLOCK);
	MPI_Finalize();
	return 0;
}
