/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Routines of BLAS in OpenMP: see ../blas.c. */
#include "../kernels/kernels.h"
#include <omp.h>

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, OPENMP, &blas);
	const struct blas_routine *r = blas_routine(&o);
	void *whole[3] = {0};
	double sum = 0;

	for (int i = 0; i < r->operands; i++) {
		size_t row = blas_row_bytes(r, i, o.n);
		whole[i] = zeros(row * (size_t)o.n);
#pragma omp parallel num_threads(o.processes)
		{
			struct slice rows = slice_of(o.n, omp_get_thread_num(), omp_get_num_threads());
			blas_start(r, i, o.n, rows, (char *)whole[i] + row * (size_t)rows.begin);
		}
	}
	double begin = now();
	for (long step = 0; step < o.steps; step++) {
		sum = 0;
#pragma omp parallel num_threads(o.processes) reduction(+ : sum)
		{
			struct slice rows = slice_of(o.n, omp_get_thread_num(), omp_get_num_threads());
			void *operand[3] = {0};
			for (int i = 0; i < r->operands; i++) {
				size_t before = r->operand[i].whole ? 0 : blas_row_bytes(r, i, o.n) * (size_t)rows.begin;
				operand[i] = (char *)whole[i] + before;
			}
			sum += r->compute(rows.end - rows.begin, o.n, step, operand);
		}
	}
	double seconds = now() - begin, answer = blas_answer(r, o.n, sum, r->result < 0 ? NULL : whole[r->result]);
	print_record(&o, o.processes, seconds, answer, blas_error(r, o.n, o.steps, answer));
	return 0;
}
