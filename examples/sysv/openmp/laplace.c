/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Laplace's equation in OpenMP: see ../laplace.c. */
#include "../kernels/kernels.h"
#include <omp.h>

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, OPENMP, &laplace);
	long n = o.n, across = n + 2, at = 0;
	double *grid[2], change = 0;

	for (int i = 0; i < 2; i++) {
		grid[i] = zeros((size_t)across * (size_t)across * sizeof(double));
#pragma omp parallel num_threads(o.processes)
		{
			struct slice mine = slice_of(across, omp_get_thread_num(), omp_get_num_threads());
			laplace_start(n, mine.begin, mine.end - mine.begin, grid[i] + mine.begin * across);
		}
	}
	double begin = now();
	for (long step = 0; step < o.steps; step++, at = !at) {
		change = 0;
#pragma omp parallel num_threads(o.processes) reduction(max : change)
		{
			struct slice mine = slice_of(n, omp_get_thread_num(), omp_get_num_threads());
			long first = (1 + mine.begin) * across;
			change = laplace_sweep(n, mine.end - mine.begin, grid[at] + first, grid[!at] + first);
		}
		if (change < o.tolerance) {
			at = !at;
			break;
		}
	}
	print_record(&o, o.processes, now() - begin, laplace_mean(n, grid[at]), change);
	return 0;
}
