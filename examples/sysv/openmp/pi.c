/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* pi in OpenMP: see ../pi.c. */
#include "../kernels/kernels.h"
#include <omp.h>

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, OPENMP, &pi);
	double answer = 0, begin = now();

	for (long step = 0; step < o.steps; step++) {
		double sum = 0;
#pragma omp parallel num_threads(o.processes) reduction(+ : sum)
		sum += pi_sum(o.n, slice_of(o.n / 2, omp_get_thread_num(), omp_get_num_threads()));
		answer = pi_of(o.n, sum);
	}
	print_record(&o, o.processes, now() - begin, answer, pi_error(answer));
	return 0;
}
