/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* pi in MPI: see ../pi.c. */
#include "../kernels/kernels.h"
#include <mpi.h>

int main(int argc, char **argv)
{
	int rank, size;
	double sum, all = 0, answer = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	struct options o = parse(argc, argv, MPI, &pi);
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = now();
	for (long step = 0; step < o.steps; step++) {
		long n = o.n;
		MPI_Bcast(&n, 1, MPI_LONG, 0, MPI_COMM_WORLD);
		sum = pi_sum(n, slice_of(n / 2, rank, size));
		MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		answer = pi_of(n, all);
	}
	if (rank == 0)
		print_record(&o, size, now() - begin, answer, pi_error(answer));
	MPI_Finalize();
	return 0;
}
