/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "kernels.h"
#include <math.h>
#include <string.h>

static void settle(struct options *o)
{
	if (o->n % 2)
		mistake("-n is even, for Simpson's rule takes intervals by twos");
	if (o->queue)
		strcpy(o->record, "pi-queue");
}

const struct dwarf pi = {
	.name = "pi",
	.what = "pi as the integral of 4 / (1 + x^2), by Simpson's rule",
	.n_is = "intervals",
	.steps_are = "how often it is computed",
	.n = 200000,
	.steps = 4000,
	.settle = settle,
};

static double height(double x)
{
	return 4 / (1 + x * x);
}

/* The rule's weights are 1 4 2 4 2 ... 4 1. Here each pair has 2 4; pi_of() mends both ends. */
double pi_sum(long n, struct slice pairs)
{
	double width = 1.0 / (double)n, even = 0, odd = 0;
	for (long k = pairs.begin; k < pairs.end; k++) {
		even += height(width * (double)(2 * k));
		odd += height(width * (double)(2 * k + 1));
	}
	return 2 * even + 4 * odd;
}

double pi_of(long n, double sum)
{
	return (sum - height(0) + height(1)) / (3 * (double)n);
}

double pi_error(double answer)
{
	return fabs(answer - 3.14159265358979323846);
}
