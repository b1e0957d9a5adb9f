// SPDX-License-Identifier: Apache-2.0 OR MIT
// Windows of memory that malloc(3) gave: put, get and accumulate by all ranks at once, while their targets compute, beside forks; all
// contents are compared. Rank 0 says how long a put and a flush take.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("rank %d, line %d: not so: %s\n", rank, __LINE__, #what); fflush(stdout); \
	MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)
enum { ROUNDS = 20, PLACES = 64 };

static int rank, size;
// What is added; it must stay until it is.
static const long one = 1;

static void round_of(int round)
{
	// Of each rank's window every other rank has a part; the last words are added to by all.
	int part = 4096 << round % 4, bytes = part * size + 4096;
	char *memory = round % 2 ? malloc(bytes) : calloc(bytes, 1), *mine = malloc(part), *back = malloc(part);
	MPI_Win win;
	if (round % 2)
		memset(memory, 0, bytes);
	// Not from the block's begin on.
	MPI_Win_create(memory + 64, bytes - 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	memset(mine, 16 * rank + round % 16 + 1, part);
	MPI_Win_lock_all(0, win);
	for (int to = 0; to < size; to++) {
		if (to != rank)
			MPI_Put(mine, part - 64, MPI_CHAR, to, (MPI_Aint)part * rank, part - 64, MPI_CHAR, win);
		for (int i = 0; i < PLACES; i++) {
			MPI_Accumulate(&one, 1, MPI_LONG, to, (MPI_Aint)part * size - 64 + 64 + 8 * i, 1, MPI_LONG, MPI_SUM, win);
		}
	}
	if (round % 5 == rank) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			memset(memory, 0xee, bytes);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	MPI_Win_flush_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int to = 0; to < size; to++) {
		if (to == rank)
			continue;
		memset(back, 0, part);
		MPI_Get(back, part - 64, MPI_CHAR, to, (MPI_Aint)part * rank, part - 64, MPI_CHAR, win);
		MPI_Win_flush(to, win);
		CHECK(!memcmp(back, mine, part - 64));
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int from = 0; from < size; from++)
		for (int i = 0; i < part - 64; i++)
			CHECK(from == rank || memory[64 + part * from + i] == (char)(16 * from + round % 16 + 1));
	for (int i = 0; i < PLACES; i++) {
		long sum;
		memcpy(&sum, memory + 64 + part * size + 8 * i, 8);
		CHECK(sum == size);
	}
	MPI_Win_free(&win);
	free(memory), free(mine), free(back);
}

// Puts to a rank that does nothing: it must not be needed.
static void alone(void)
{
	const int count = 2000;
	char *memory = calloc(1, 1 << 20), word[8] = "isthmus";
	MPI_Win win;
	MPI_Win_create(memory, 1 << 20, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	MPI_Win_lock_all(0, win);
	if (rank == 0) {
		// Open MPI asks its target for the window's state before the first one.
		MPI_Put(word, 8, MPI_CHAR, size - 1, 0, 8, MPI_CHAR, win);
		MPI_Win_flush(size - 1, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		double begin = MPI_Wtime();
		for (int i = 0; i < count; i++) {
			MPI_Put(word, 8, MPI_CHAR, size - 1, 8 * i, 8, MPI_CHAR, win);
			MPI_Win_flush(size - 1, win);
		}
		double each = (MPI_Wtime() - begin) / count;
		printf("%d puts to a rank that sleeps: %.3f us each\n", count, each * 1e6);
	} else if (rank == size - 1) {
		sleep(2);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < count && rank == size - 1; i++)
		CHECK(!memcmp(memory + 8 * i, word, 8));
	MPI_Win_unlock_all(win);
	MPI_Win_free(&win);
	free(memory);
}

// A rank may have nothing to reach.
static void empty(void)
{
	char *memory = malloc(1 << 20), byte = 7;
	MPI_Win win;
	MPI_Win_create(memory, rank ? 1 << 20 : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	MPI_Win_lock_all(0, win);
	MPI_Put(&byte, 1, MPI_CHAR, size - 1, rank, 1, MPI_CHAR, win);
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < size && rank == size - 1; i++)
		CHECK(memory[i] == 7);
	MPI_Win_free(&win);
	free(memory);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int round = 0; round < ROUNDS; round++)
		round_of(round);
	empty();
	alone();
	MPI_Finalize();
	return 0;
}
