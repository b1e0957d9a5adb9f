/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Molecular dynamics over System V IPC. All arrays lie in the segment, each rank has its own particles. Since positions are there
 * twice, one barrier in a step is enough: a rank that is ahead writes those that nobody reads any more.
 */
#include "kernels/kernels.h"
#include "team.h"
#include <math.h>

static void work(struct team *t)
{
	const struct options *o = t->options;
	struct particles p = md_place(o, t->data);
	struct slice mine = slice_of(o->n, t->rank, t->size);
	double before = 0;

	md_start(&p, mine);
	team_barrier(t);
	md_forces(&p, mine, 0);
	team_barrier(t);
	if (t->rank == 0)
		before = md_energy(&p);
	team_barrier(t);
	double begin = now();
	for (long step = 0; step < o->steps; step++) {
		md_move(&p, mine, step % 2);
		team_barrier(t);
		md_push(&p, mine, step % 2);
	}
	team_barrier(t);
	if (t->rank == 0) {
		double seconds = now() - begin, energy = md_energy(&p);
		print_record(o, t->size, seconds, energy, fabs((energy - before) / before));
	}
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, SYSV, &md);
	return team_run(&o, md_bytes(&o), work);
}
