/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Units are those of the potential, 4 (r^-12 - r^-6), and of a particle, whose mass is 1. Each particle meets all others, in
 * their order, so that its force does not depend on who computes it.
 */
#include "kernels.h"
#include <stdint.h>
#include <stdio.h>

#define TICK 0.001
#define SPACING 1.2 /* at the beginning: little more than where the force is 0 */

static void settle(struct options *o)
{
	snprintf(o->record, sizeof o->record, "md-%dd", o->dimensions);
}

const struct dwarf md = {
	.name = "md",
	.what = "molecular dynamics of all pairs of particles, by velocity Verlet",
	.n_is = "particles",
	.steps_are = "steps in time",
	.n = 1000,
	.steps = 500,
	.settle = settle,
};

size_t md_bytes(const struct options *o)
{
	return (size_t)o->n * (4 * (size_t)o->dimensions + 1) * sizeof(double);
}

struct particles md_place(const struct options *o, void *memory)
{
	size_t vectors = (size_t)o->n * (size_t)o->dimensions;
	double *at = memory;
	return (struct particles){
		.n = o->n,
		.dimensions = o->dimensions,
		.position = {at, at + vectors},
		.velocity = at + 2 * vectors,
		.force = at + 3 * vectors,
		.potential = at + 4 * vectors,
	};
}

/* From -1 to 1, the same for the same number: its bits, stirred. */
static double scatter(uint64_t number)
{
	uint64_t bits = (number + 1) * 0x9e3779b97f4a7c15;
	for (int i = 0; i < 3; i++) {
		bits ^= bits >> 29;
		bits *= 0xd6e8feb86659fd93;
	}
	return (double)(bits >> 11) / (double)(UINT64_C(1) << 52) - 1;
}

/* A square or cube of particles, each a little off its place and on the move. */
void md_start(const struct particles *p, struct slice mine)
{
	long side = 1;
	while ((p->dimensions == 2 ? side * side : side * side * side) < p->n)
		side++;
	for (long i = mine.begin; i < mine.end; i++) {
		long place = i;
		for (int d = 0; d < p->dimensions; d++, place /= side) {
			long k = i * p->dimensions + d;
			p->position[0][k] = SPACING * (double)(place % side) + 0.05 * scatter((uint64_t)(2 * k));
			p->velocity[k] = 0.5 * scatter((uint64_t)(2 * k + 1));
		}
	}
}

/* What `other` does to `here`. */
static inline __attribute__((always_inline)) void meet(int dimensions, const double *here, const double *other, double *force,
						       double *potential)
{
	double apart[3], square = 0;
	for (int d = 0; d < dimensions; d++) {
		apart[d] = here[d] - other[d];
		square += apart[d] * apart[d];
	}
	double inverse = 1 / square, sixth = inverse * inverse * inverse;
	double strength = 24 * inverse * sixth * (2 * sixth - 1);
	for (int d = 0; d < dimensions; d++)
		force[d] += strength * apart[d];
	*potential += 2 * sixth * (sixth - 1); /* half of it: the other half is the other's */
}

static inline __attribute__((always_inline)) void all_forces(int dimensions, const struct particles *p, struct slice mine, int at)
{
	const double *position = p->position[at];
	for (long i = mine.begin; i < mine.end; i++) {
		double force[3] = {0, 0, 0}, potential = 0;
		for (long j = 0; j < i; j++)
			meet(dimensions, position + i * dimensions, position + j * dimensions, force, &potential);
		for (long j = i + 1; j < p->n; j++)
			meet(dimensions, position + i * dimensions, position + j * dimensions, force, &potential);
		for (int d = 0; d < dimensions; d++)
			p->force[i * dimensions + d] = force[d];
		p->potential[i] = potential;
	}
}

void md_forces(const struct particles *p, struct slice mine, int at)
{
	if (p->dimensions == 2)
		all_forces(2, p, mine, at);
	else
		all_forces(3, p, mine, at);
}

void md_move(const struct particles *p, struct slice mine, int at)
{
	for (long k = mine.begin * p->dimensions; k < mine.end * p->dimensions; k++) {
		p->velocity[k] += 0.5 * TICK * p->force[k];
		p->position[!at][k] = p->position[at][k] + TICK * p->velocity[k];
	}
}

void md_push(const struct particles *p, struct slice mine, int at)
{
	md_forces(p, mine, !at);
	for (long k = mine.begin * p->dimensions; k < mine.end * p->dimensions; k++)
		p->velocity[k] += 0.5 * TICK * p->force[k];
}

double md_energy(const struct particles *p)
{
	double energy = 0;
	for (long i = 0; i < p->n; i++) {
		energy += p->potential[i];
		for (int d = 0; d < p->dimensions; d++)
			energy += 0.5 * p->velocity[i * p->dimensions + d] * p->velocity[i * p->dimensions + d];
	}
	return energy;
}
