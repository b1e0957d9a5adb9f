// SPDX-License-Identifier: Apache-2.0 OR MIT
// Long messages from memory that malloc(3) gave, by all ranks at once, whose contents are compared: from the middle of a block, from blocks
// that are freed and had again at once, of a column of a matrix, to receives that come late or are too short, and beside forks.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("rank %d, line %d: not so: %s\n", rank, __LINE__, #what); fflush(stdout); \
	MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)
enum { MOST = 4, LEAST = 70000 };

static int rank, size;

static char of(int from, int round, int k, size_t at)
{
	return (char)(131 * from + 31 * round + 7 * k + at / 61 + at);
}

static int bytes_of(int round, int k)
{
	return LEAST + (round * 7919 + k * 104729) % (round % 8 ? 200000 : 2500000);
}

static void round_of(int round)
{
	char *out[MOST], *in[MOST];
	MPI_Request requests[2 * MOST];
	int to = (rank + 1 + round) % size, from = (rank - 1 - round % size + 2 * size) % size;
	for (int k = 0; k < MOST; k++) {
		int bytes = bytes_of(round, k);
		out[k] = malloc(bytes + 100);
		in[k] = calloc(bytes, 1);
		for (int i = 0; i < bytes; i++)
			out[k][100 + i] = of(rank, round, k, i);
	}
	int late = round % 3 == 0;
	for (int k = 0; k < MOST && !late; k++)
		MPI_Irecv(in[k], bytes_of(round, k), MPI_CHAR, from, k, MPI_COMM_WORLD, &requests[MOST + k]);
	for (int k = 0; k < MOST; k++)
		(k % 2 ? MPI_Issend : MPI_Isend)(out[k] + 100, bytes_of(round, k), MPI_CHAR, to, k, MPI_COMM_WORLD, &requests[k]);
	if (round % 10 == rank) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			memset(out[0], 0xee, LEAST);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	for (int k = MOST - 1; k >= 0 && late; k--)
		MPI_Irecv(in[k], bytes_of(round, k), MPI_CHAR, from, k, MPI_COMM_WORLD, &requests[MOST + k]);
	MPI_Waitall(2 * MOST, requests, MPI_STATUSES_IGNORE);
	for (int k = 0; k < MOST; k++) {
		for (int i = 0; i < bytes_of(round, k); i++)
			CHECK(in[k][i] == of(from, round, k, i));
		// What is sent next may lie here.
		memset(out[k], 0xdd, bytes_of(round, k));
		free(out[k]), free(in[k]);
	}
}

// A column is no one buffer.
static void column(void)
{
	enum { ROWS = 300, COLUMNS = 200 };
	double *matrix = malloc(ROWS * COLUMNS * sizeof *matrix), *back = calloc(ROWS * COLUMNS, sizeof *back);
	MPI_Datatype half;
	MPI_Type_vector(ROWS, COLUMNS / 2, COLUMNS, MPI_DOUBLE, &half);
	MPI_Type_commit(&half);
	for (int i = 0; i < ROWS * COLUMNS; i++)
		matrix[i] = 1000000 * rank + i;
	MPI_Sendrecv(matrix, 1, half, (rank + 1) % size, 9, back, 1, half, (rank - 1 + size) % size, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 0; i < ROWS * COLUMNS; i++)
		CHECK(back[i] == (i % COLUMNS < COLUMNS / 2 ? 1000000 * ((rank - 1 + size) % size) + i : 0));
	MPI_Type_free(&half);
	free(matrix), free(back);
}

// Each sends to the next, more at once than there are words for offers.
static void crowd(void)
{
	enum { COUNT = 200, BYTES = LEAST };
	char *out = malloc(BYTES + COUNT), *in = malloc((size_t)COUNT * BYTES);
	MPI_Request requests[2 * COUNT];
	for (int i = 0; i < BYTES + COUNT; i++)
		out[i] = of(rank, 0, 0, i);
	for (int k = 0; k < COUNT; k++)
		MPI_Isend(out + k, BYTES, MPI_CHAR, (rank + 1) % size, k, MPI_COMM_WORLD, &requests[k]);
	for (int k = 0; k < COUNT; k++)
		MPI_Irecv(in + (size_t)k * BYTES, BYTES, MPI_CHAR, (rank - 1 + size) % size, k, MPI_COMM_WORLD, &requests[COUNT + k]);
	MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
	for (int k = 0; k < COUNT; k++)
		for (int i = 0; i < BYTES; i++)
			CHECK(in[(size_t)k * BYTES + i] == of((rank - 1 + size) % size, 0, 0, k + i));
	free(out), free(in);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 40); round++)
		round_of(round);
	column();
	crowd();
	MPI_Finalize();
	return 0;
}
