// SPDX-License-Identifier: Apache-2.0 OR MIT
// Messages of one rank to another, each of which says which it is and is compared whole: none may be lost, doubled, changed or out of order.
//
//     stream MESSAGES [short]
//
// A line "begun" comes with the first, and in the end how many there were, and the longest time that 64 of them took. `short` has all but
// one in 65,536 as short as they can be, and 64 under way at once, so that there may be a hundred million.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 64
#define WINDOWS 64
#define WORDS 64
#define LONG 4096

static uint64_t word_of(uint64_t message, uint64_t at)
{
	return (message * 0x9e3779b97f4a7c15u ^ at) * 0xbf58476d1ce4e5b9u;
}

static int is_short;

static int length_of(uint64_t message)
{
	if (is_short)
		return message % 65536 == 65535 ? LONG : 1;
	// One in 1,024 is long enough to go in pieces.
	return message % 1024 == 1023 ? LONG : 1 + (int)(word_of(message, 77) >> 40) % WORDS;
}

static void wrong(uint64_t message, int words, int length, int at)
{
	fprintf(stderr, "message %lu: %d words, not %d; word %d is wrong\n", message, words, length, at);
	MPI_Abort(MPI_COMM_WORLD, 3);
}

// A window of messages from `first` on, all under way at once; the last may be a long one.
static void window(int rank, uint64_t first, int count)
{
	static uint64_t words[WINDOW], tail[LONG];
	MPI_Request under_way[WINDOW];
	MPI_Status statuses[WINDOW];
	int i, at, got;

	for (i = 0; i < count; i++) {
		uint64_t message = first + i;
		int length = length_of(message);
		uint64_t *to = length == 1 ? &words[i] : tail;

		if (rank) {
			MPI_Irecv(to, length, MPI_UINT64_T, 0, (int)(message % 1000), MPI_COMM_WORLD, &under_way[i]);
			continue;
		}
		for (at = 0; at < length; at++)
			to[at] = word_of(message, at);
		MPI_Isend(to, length, MPI_UINT64_T, 1, (int)(message % 1000), MPI_COMM_WORLD, &under_way[i]);
	}
	MPI_Waitall(count, under_way, statuses);
	for (i = 0; rank && i < count; i++) {
		int length = length_of(first + i);
		uint64_t *to = length == 1 ? &words[i] : tail;

		MPI_Get_count(&statuses[i], MPI_UINT64_T, &got);
		for (at = 0; got == length && at < length && to[at] == word_of(first + i, at); at++)
			;
		if (got != length || at < length)
			wrong(first + i, got, length, at);
	}
}

int main(int argc, char **argv)
{
	uint64_t messages = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, i, at_once, ahead;
	double longest = 0, before, now;
	int rank, ranks, there = 0;

	is_short = argc > 2 && !strcmp(argv[2], "short");
	at_once = is_short ? WINDOW : 1;
	ahead = is_short ? WINDOW * WINDOWS : WINDOW;
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
	for (i = 0; i < messages; i += at_once) {
		window(rank, i, (int)(messages - i < at_once ? messages - i : at_once));
		// The receiver says that it has them all.
		if ((i + at_once) % ahead == 0) {
			if (!rank)
				MPI_Recv(&there, 1, MPI_INT, 1, 1001, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			else
				MPI_Send(&there, 1, MPI_INT, 0, 1001, MPI_COMM_WORLD);
		}
		if ((i + at_once) % WINDOW == 0) {
			now = MPI_Wtime();
			longest = now - before > longest ? now - before : longest;
			before = now;
		}
	}
	if (rank) {
		printf("%lu messages, longest pause %.0f ms\n", messages, longest * 1e3);
		fflush(stdout);
	}
	MPI_Finalize();
	return 0;
}
