/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "kernels.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* An operand's element, from 0 to 4, 6 or 8. */
static int element(int operand, long i, long j)
{
	return (int)((i * (7 + 4 * operand) + 3 * j + operand) % (5 + 2 * operand));
}

/* The answer is a sum of the result's elements with these weights, so that it tells when two have changed places. */
static int weight(long i)
{
	return 1 + (int)(i % 3);
}

#define REAL float
#define NAME(routine) s##routine
#include "blas-real.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(routine) d##routine
#include "blas-real.h"

#define VECTOR {false, false}
#define WHOLE_VECTOR {false, true}
#define MATRIX {true, false}
#define WHOLE_MATRIX {true, true}
#define BOTH(routine, n, steps, operands, result, ...) \
	{"s" #routine, sizeof(float), n, steps, operands, __VA_ARGS__, result, s##routine}, \
	{"d" #routine, sizeof(double), n, steps, operands, __VA_ARGS__, result, d##routine}

static const struct blas_routine routines[] = {
	BOTH(dot, 100000, 80000, 2, -1, {VECTOR, VECTOR}),
	BOTH(nrm2, 100000, 80000, 1, -1, {VECTOR}),
	BOTH(axpy, 100000, 40000, 2, 1, {VECTOR, VECTOR}),
	BOTH(scal, 100000, 20000, 1, 0, {VECTOR}),
	BOTH(gemv, 1000, 6000, 3, 2, {MATRIX, WHOLE_VECTOR, VECTOR}),
	BOTH(ger, 1000, 2000, 3, 0, {MATRIX, VECTOR, WHOLE_VECTOR}),
	BOTH(gemm, 300, 150, 3, 2, {MATRIX, WHOLE_MATRIX, MATRIX}),
};

const struct blas_routine *blas_routine(const struct options *o)
{
	for (size_t i = 0; i < sizeof routines / sizeof routines[0]; i++)
		if (!strcmp(routines[i].name, o->routine))
			return &routines[i];
	mistake("there is no routine %s; see --help", o->routine);
}

static void settle(struct options *o)
{
	const struct blas_routine *r = blas_routine(o);
	snprintf(o->record, sizeof o->record, "blas-%s", r->name);
	o->n = o->n ? o->n : r->n;
	o->steps = o->steps ? o->steps : r->steps;
}

const struct dwarf blas = {
	.name = "blas",
	.what = "routines of the Basic Linear Algebra Subprograms, levels 1, 2 and 3",
	.n_is = "elements of a vector, and rows and columns of a matrix",
	.steps_are = "how often the routine is called",
	.settle = settle,
};

static long width_of(const struct blas_routine *r, int operand, long n)
{
	return r->operand[operand].wide ? n : 1;
}

size_t blas_row_bytes(const struct blas_routine *r, int operand, long n)
{
	return (size_t)width_of(r, operand, n) * r->element;
}

void blas_start(const struct blas_routine *r, int operand, long n, struct slice rows, void *at_first_row)
{
	(r->element == sizeof(float) ? sstart : dstart)(operand, rows, width_of(r, operand, n), at_first_row);
}

double blas_answer(const struct blas_routine *r, long n, double sum, const void *result)
{
	if (r->result >= 0)
		return (r->element == sizeof(float) ? sweigh : dweigh)(n, width_of(r, r->result, n), result);
	return strcmp(r->name + 1, "nrm2") ? sum : sqrt(sum);
}

/* What the answer must be, in whole numbers and by another way: no matrix is multiplied with another one. */
static double truth(const struct blas_routine *r, long n, long steps)
{
	const char *name = r->name + 1;
	int64_t sum = 0;
	if (!strcmp(name, "gemm"))
		for (long k = 0; k < n; k++) {
			int64_t column = 0, row = 0;
			for (long i = 0; i < n; i++) {
				column += weight(i) * element(0, i, k);
				row += weight(i) * element(1, k, i);
				sum += weight(k) * weight(i) * element(2, k, i);
			}
			sum += steps * column * row;
		}
	else if (!strcmp(name, "gemv") || !strcmp(name, "ger"))
		for (long i = 0; i < n; i++) {
			bool ger = name[2] == 'r';
			long net = steps - 2 * (steps / 3); /* each third call takes away what another has added */
			int64_t row = ger ? 0 : element(2, i, 0);
			for (long j = 0; j < n; j++)
				row += ger ? weight(j) * (element(0, i, j) + steps * element(1, i, 0) * element(2, j, 0))
					   : net * element(0, i, j) * element(1, j, 0);
			sum += weight(i) * row;
		}
	else
		for (long i = 0; i < n; i++) {
			int64_t x = element(0, i, 0), y = element(1, i, 0);
			sum += !strcmp(name, "dot") ? x * y
			       : !strcmp(name, "nrm2") ? x * x
			       : !strcmp(name, "axpy") ? weight(i) * (y + steps * 2 * x)
						       : weight(i) * x * (steps % 2 ? 2 : 1);
		}
	return strcmp(name, "nrm2") ? (double)sum : sqrt((double)sum);
}

double blas_error(const struct blas_routine *r, long n, long steps, double answer)
{
	double right = truth(r, n, steps);
	return fabs(answer - right) / (right == 0 ? 1 : right);
}
