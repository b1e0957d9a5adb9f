/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Any MPI program will do; this one says where its ranks run, and how fast messages go round from rank to rank.
 *
 *	mpicc -O2 -o ring ring.c
 *	isthmus run --vms 2 -n 2 -- ./ring
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define LONG (1 << 20)

/* Seconds from a rank to the next one: a message of so many bytes goes round `rounds` times, after some that are not counted. */
static double step(char *buffer, int bytes, int rounds, int rank, int size)
{
	int next = (rank + 1) % size, last = (rank + size - 1) % size;
	double begin = 0;

	for (int i = -rounds / 10; i < rounds; i++) {
		if (i == 0)
			begin = MPI_Wtime();
		if (rank == 0)
			MPI_Send(buffer, bytes, MPI_CHAR, next, 0, MPI_COMM_WORLD);
		MPI_Recv(buffer, bytes, MPI_CHAR, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank != 0)
			MPI_Send(buffer, bytes, MPI_CHAR, next, 0, MPI_COMM_WORLD);
	}
	return (MPI_Wtime() - begin) / rounds / size;
}

int main(int argc, char **argv)
{
	char host[MPI_MAX_PROCESSOR_NAME] = "", *buffer = calloc(LONG, 1);
	int rank, size, length;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Get_processor_name(host, &length);
	if (!buffer || size < 2) {
		fprintf(stderr, "ring: %s\n", buffer ? "start two ranks or more" : "no memory");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	printf("rank %d of %d runs on %s\n", rank, size, host);
	fflush(stdout);
	double little = step(buffer, 8, 10000, rank, size);
	double much = step(buffer, LONG, 100, rank, size);
	if (rank == 0)
		printf("a message of 8 bytes takes %.2f us; of 1 MiB %.0f us, %.0f MB/s\n", little * 1e6, much * 1e6, LONG / much / 1e6);
	free(buffer);
	MPI_Finalize();
	return 0;
}
