/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * MPI_Isend to a rank that computes: each call returns at once, however much the receiver has not taken yet; all messages arrive
 * whole and in order, and the memory that they waited in is given back.
 *
 * usage: isend SECONDS, as two ranks. Prints a line for each kind of message:
 *     isend COUNT BYTES all=SECONDS longest=SECONDS kept=KB
 * the time of all COUNT calls, that of the longest one, and how much more memory the sender has afterwards than before.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static long resident_kb(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%*s %ld", &pages) != 1)
		MPI_Abort(MPI_COMM_WORLD, 3);
	fclose(f);
	return pages * 4;
}

/* The receiver's work: no call of MPI. */
static void compute(double seconds)
{
	volatile double sum = 0;
	for (double end = now() + seconds; now() < end;)
		for (int i = 0; i < 1000; i++)
			sum += i;
}

static void fill(unsigned char *at, size_t len, int number)
{
	memset(at, number * 37 % 251, len);
	memcpy(at, &number, len < sizeof number ? len : sizeof number);
}

static void exchange(int rank, int count, size_t len, double seconds, int report)
{
	unsigned char *bytes = malloc(count * len);
	MPI_Request *requests = malloc(count * sizeof *requests);
	double all = 0, longest = 0;
	for (int i = 0; i < count && rank == 0; i++)
		fill(bytes + i * len, len, i);
	long before = resident_kb();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		double begin = now();
		for (int i = 0; i < count; i++) {
			double call = now();
			MPI_Isend(bytes + i * len, (int)len, MPI_BYTE, 1, 7, MPI_COMM_WORLD, &requests[i]);
			if (now() - call > longest)
				longest = now() - call;
		}
		all = now() - begin;
		MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
	} else {
		compute(seconds);
		unsigned char *expected = malloc(len);
		for (int i = 0; i < count; i++) {
			MPI_Recv(bytes, (int)len, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			fill(expected, len, i);
			if (memcmp(bytes, expected, len)) {
				fprintf(stderr, "isend: message %d of %zu bytes is wrong\n", i, len);
				MPI_Abort(MPI_COMM_WORLD, 3);
			}
		}
		free(expected);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0 && report)
		printf("isend %d %zu all=%.6f longest=%.6f kept=%ld\n", count, len, all, longest, resident_kb() - before);
	free(requests);
	free(bytes);
}

int main(int argc, char **argv)
{
	static const struct { int count; size_t len; } kinds[] = {{10000, 8}, {10000, 400}, {10000, 4000}, {100, 1 << 20}};
	int rank;
	if (argc != 2)
		return 2;
	double seconds = atof(argv[1]);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	/* The first time is for what an MPI sets up once, and keeps. */
	for (int round = 0; round < 2; round++)
		for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
			exchange(rank, kinds[k].count, kinds[k].len, round ? seconds : 0.1, round);
	MPI_Finalize();
	return 0;
}
