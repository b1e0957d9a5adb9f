// SPDX-License-Identifier: Apache-2.0 OR MIT
// Messages of one rank to another, each of which says which it is and is compared whole: none may be lost, doubled, changed or out of order.
//
//     stream MESSAGES
//
// A line "begun" comes with the first, and in the end how many there were, and the longest time that 64 of them took.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW 64
#define WORDS 64
#define LONG 4096

static uint64_t word_of(uint64_t message, uint64_t at)
{
	return (message * 0x9e3779b97f4a7c15u ^ at) * 0xbf58476d1ce4e5b9u;
}

static int length_of(uint64_t message)
{
	// One in 1,024 is long enough to go in pieces.
	return message % 1024 == 1023 ? LONG : 1 + (int)(word_of(message, 77) >> 40) % WORDS;
}

int main(int argc, char **argv)
{
	static uint64_t words[LONG];
	uint64_t messages = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, i;
	double longest = 0, before;
	int rank, got, at, length, ranks;
	MPI_Status status;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank) {
		printf("begun\n");
		fflush(stdout);
	}
	before = MPI_Wtime();
	for (i = 0; i < messages; i++) {
		length = length_of(i);
		if (!rank) {
			for (at = 0; at < length; at++)
				words[at] = word_of(i, at);
			MPI_Send(words, length, MPI_UINT64_T, 1, (int)(i % 1000), MPI_COMM_WORLD);
		} else {
			MPI_Recv(words, LONG, MPI_UINT64_T, 0, (int)(i % 1000), MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_UINT64_T, &got);
			for (at = 0; got == length && at < length && words[at] == word_of(i, at); at++)
				;
			if (got != length || at < length) {
				fprintf(stderr, "message %lu: %d words, not %d; word %d is wrong\n", i, got, length, at);
				MPI_Abort(MPI_COMM_WORLD, 3);
			}
		}
		if (i % WINDOW == WINDOW - 1) {
			double now, took;

			// The receiver says that it has them all.
			if (!rank)
				MPI_Recv(&got, 1, MPI_INT, 1, 1001, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			else
				MPI_Send(&rank, 1, MPI_INT, 0, 1001, MPI_COMM_WORLD);
			now = MPI_Wtime();
			took = now - before;
			before = now;
			longest = took > longest ? took : longest;
		}
	}
	if (rank) {
		printf("%lu messages, longest pause %.0f ms\n", messages, longest * 1e3);
		fflush(stdout);
	}
	MPI_Finalize();
	return 0;
}
