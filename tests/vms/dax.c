/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two ranks with long messages, a window, and a forked child each; with an argument they wait first until the file `go` lies beside the
 * program, so that others can look at them. Prints "waiting" and "all right".
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (1 << 20)
#define ROUNDS 20
#define WORDS 65536
#define ADDS 100

static void want(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "dax: wrong: %s\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static void wait_for_go(const char *program)
{
	char path[4096];

	snprintf(path, sizeof(path), "%.4000s", program);
	strcpy(strrchr(path, '/'), "/go");
	while (access(path, F_OK))
		usleep(100000);
}

int main(int argc, char **argv)
{
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	want(size == 2, "two ranks");

	unsigned char *out = malloc(LENGTH), *in = malloc(LENGTH);

	for (int round = 0; round < ROUNDS; round++) {
		memset(out, rank + round, LENGTH);
		MPI_Sendrecv(out, LENGTH, MPI_BYTE, !rank, 0, in, LENGTH, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (size_t i = 0; i < LENGTH; i++)
			want(in[i] == (unsigned char)(!rank + round), "a message");
	}

	/* A child has what its parent had, and changes nothing of it. */
	pid_t child = fork();

	want(child >= 0, "a child");
	if (!child) {
		int same = in[0] == (unsigned char)(!rank + ROUNDS - 1) && in[LENGTH - 1] == in[0];

		memset(in, 0xee, LENGTH);
		_exit(!same);
	}
	int status;

	want(waitpid(child, &status, 0) == child && !status, "the child's memory");
	want(in[0] == (unsigned char)(!rank + ROUNDS - 1), "the parent's memory");

	long one = 1, *words = calloc(WORDS, sizeof(long));
	MPI_Win window;

	MPI_Win_create(words, WORDS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < ADDS; i++)
		MPI_Accumulate(&one, 1, MPI_LONG, 0, 5, 1, MPI_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	MPI_Put(&one, 1, MPI_LONG, !rank, 7, 1, MPI_LONG, window);
	MPI_Win_fence(0, window);
	want(words[5] == (rank ? 0 : 2 * ADDS) && words[7] == 1, "the window");

	MPI_Barrier(MPI_COMM_WORLD);
	if (argc > 1) {
		if (!rank) {
			puts("waiting");
			fflush(stdout);
		}
		wait_for_go(argv[0]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_free(&window);
	puts("all right");
	MPI_Finalize();
	return 0;
}
