/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Laplace's equation over System V IPC. Both grids lie in the segment, and each rank sweeps over its own rows. The reduction that
 * finds the largest change of a sweep is the barrier before the next one, too: there is one synchronisation in a sweep.
 */
#include "kernels/kernels.h"
#include "team.h"

static void work(struct team *t)
{
	const struct options *o = t->options;
	long n = o->n, across = n + 2, at = 0;
	struct slice mine = slice_of(n, t->rank, t->size), all = slice_of(across, t->rank, t->size);
	double *grid[2] = {t->data, (double *)t->data + across * across}, change = 0;

	for (int i = 0; i < 2; i++)
		laplace_start(n, all.begin, all.end - all.begin, grid[i] + all.begin * across);
	team_barrier(t);
	double begin = now();
	for (long step = 0; step < o->steps; step++, at = !at) {
		long first = (1 + mine.begin) * across;
		change = team_max(t, laplace_sweep(n, mine.end - mine.begin, grid[at] + first, grid[!at] + first));
		if (change < o->tolerance) {
			at = !at;
			break;
		}
	}
	if (t->rank == 0)
		print_record(o, t->size, now() - begin, laplace_mean(n, grid[at]), change);
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, SYSV, &laplace);
	return team_run(&o, 2 * (size_t)(o.n + 2) * (size_t)(o.n + 2) * sizeof(double), work);
}
