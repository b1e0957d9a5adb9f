/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Molecular dynamics in OpenMP: see ../md.c. */
#include "../kernels/kernels.h"
#include <math.h>
#include <omp.h>

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, OPENMP, &md);
	struct particles p = md_place(&o, zeros(md_bytes(&o)));

#pragma omp parallel num_threads(o.processes)
	{
		struct slice mine = slice_of(o.n, omp_get_thread_num(), omp_get_num_threads());
		md_start(&p, mine);
#pragma omp barrier
		md_forces(&p, mine, 0);
	}
	double before = md_energy(&p), begin = now();
	for (long step = 0; step < o.steps; step++) {
#pragma omp parallel num_threads(o.processes)
		{
			struct slice mine = slice_of(o.n, omp_get_thread_num(), omp_get_num_threads());
			md_move(&p, mine, step % 2);
#pragma omp barrier
			md_push(&p, mine, step % 2);
		}
	}
	double seconds = now() - begin, energy = md_energy(&p);
	print_record(&o, o.processes, seconds, energy, fabs((energy - before) / before));
	return 0;
}
