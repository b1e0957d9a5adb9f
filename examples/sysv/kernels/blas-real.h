/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The routines for one type of number: blas.c includes this once for each, with REAL and NAME() defined. Vectors have no strides,
 * matrices are square and stored row by row, and alpha and beta are 1, but for the alphas of axpy, scal and gemv.
 */

/* x . y; four sums, since one would wait for the last addition each time. */
static double NAME(dot)(long rows, long n, long step, void *const operand[3])
{
	const REAL *x = operand[0], *y = operand[1];
	REAL sum[4] = {0, 0, 0, 0};
	long i = 0;
	(void)n, (void)step;
	for (; i + 4 <= rows; i += 4)
		for (int k = 0; k < 4; k++)
			sum[k] += x[i + k] * y[i + k];
	for (; i < rows; i++)
		sum[0] += x[i] * y[i];
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The part of |x|^2; the root is taken of the whole. There is no scaling against overflow. */
static double NAME(nrm2)(long rows, long n, long step, void *const operand[3])
{
	return NAME(dot)(rows, n, step, (void *const[3]){operand[0], operand[0], NULL});
}

/* y += 2 x */
static double NAME(axpy)(long rows, long n, long step, void *const operand[3])
{
	const REAL *x = operand[0];
	REAL *y = operand[1];
	(void)n, (void)step;
	for (long i = 0; i < rows; i++)
		y[i] += 2 * x[i];
	return 0;
}

/* x *= 2, and back again in the next step */
static double NAME(scal)(long rows, long n, long step, void *const operand[3])
{
	REAL *x = operand[0], alpha = step % 2 ? (REAL)0.5 : 2;
	(void)n;
	for (long i = 0; i < rows; i++)
		x[i] *= alpha;
	return 0;
}

/* y += A x, but y -= A x in each third step, so that y stays small enough for a float */
static double NAME(gemv)(long rows, long n, long step, void *const operand[3])
{
	REAL *a = operand[0], *x = operand[1], *y = operand[2], alpha = step % 3 == 2 ? -1 : 1;
	for (long i = 0; i < rows; i++)
		y[i] += alpha * (REAL)NAME(dot)(n, n, step, (void *const[3]){a + i * n, x, NULL});
	return 0;
}

/* A += x y^T */
static double NAME(ger)(long rows, long n, long step, void *const operand[3])
{
	REAL *a = operand[0];
	const REAL *x = operand[1], *y = operand[2];
	(void)step;
	for (long i = 0; i < rows; i++)
		for (long j = 0; j < n; j++)
			a[i * n + j] += x[i] * y[j];
	return 0;
}

/* C += A B, two rows of B at a time, so that C's is read and written half as often */
static double NAME(gemm)(long rows, long n, long step, void *const operand[3])
{
	const REAL *a = operand[0], *b = operand[1];
	(void)step;
	for (long i = 0; i < rows; i++) {
		REAL *c = (REAL *)operand[2] + i * n;
		long k = 0;
		for (; k + 2 <= n; k += 2) {
			REAL first = a[i * n + k], second = a[i * n + k + 1];
			const REAL *row = b + k * n, *after = row + n;
			for (long j = 0; j < n; j++)
				c[j] += first * row[j] + second * after[j];
		}
		for (; k < n; k++)
			for (long j = 0; j < n; j++)
				c[j] += a[i * n + k] * b[k * n + j];
	}
	return 0;
}

static void NAME(start)(int operand, struct slice rows, long width, void *at_first_row)
{
	REAL *to = at_first_row;
	for (long i = rows.begin; i < rows.end; i++)
		for (long j = 0; j < width; j++)
			*to++ = (REAL)element(operand, i, j);
}

static double NAME(weigh)(long n, long width, const void *matrix)
{
	const REAL *at = matrix;
	double sum = 0;
	for (long i = 0; i < n; i++)
		for (long j = 0; j < width; j++)
			sum += weight(i) * weight(j) * (double)*at++;
	return sum;
}
