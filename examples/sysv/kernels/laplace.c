/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "kernels.h"

const struct dwarf laplace = {
	.name = "laplace",
	.what = "Laplace's equation on a square, by Jacobi's method",
	.n_is = "points along an edge",
	.steps_are = "sweeps at most",
	.n = 500,
	.steps = 4000,
};

void laplace_start(long n, long first_row, long rows, double *at_first_row)
{
	double width = 1.0 / (double)(n + 1);
	for (long i = first_row; i < first_row + rows; i++)
		for (long j = 0; j < n + 2; j++) {
			bool inside = i > 0 && i < n + 1 && j > 0 && j < n + 1;
			at_first_row[(i - first_row) * (n + 2) + j] = inside ? 0 : width * (double)j * (1 + width * (double)i);
		}
}

double laplace_sweep(long n, long rows, const double *last, double *next)
{
	long across = n + 2;
	double largest = 0;
	for (long i = 0; i < rows; i++) {
		const double *here = last + i * across, *below = here - across, *above = here + across;
		double *there = next + i * across;
		for (long j = 1; j <= n; j++) {
			double mean = 0.25 * (below[j] + above[j] + here[j - 1] + here[j + 1]), change = mean - here[j];
			there[j] = mean;
			change = change < 0 ? -change : change;
			largest = change > largest ? change : largest;
		}
	}
	return largest;
}

double laplace_mean(long n, const double *grid)
{
	double sum = 0;
	for (long i = 0; i < (n + 2) * (n + 2); i++)
		sum += grid[i];
	return sum / (double)((n + 2) * (n + 2));
}
