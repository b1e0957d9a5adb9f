/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The numerics of each dwarf, as functions of a slice of the work. The programs for System V IPC, MPI and OpenMP call the same
 * ones, compiled once, so that they differ in nothing but how they share: what a slice yields is the same to the last bit.
 *
 * Nothing but + - * / and sqrt() is used, which are rounded alike on all processors; sin() and the like are not.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include "../common.h"
#include <stddef.h>

/* ---- pi: the integral of 4 / (1 + x^2) from 0 to 1 by Simpson's rule ---- */

extern const struct dwarf pi;

/* The weighted sum over a slice of the n/2 pairs of intervals, and pi from the sum of all. */
double pi_sum(long n, struct slice pairs);
double pi_of(long n, double sum);
double pi_error(double answer);

/* ---- laplace: Laplace's equation on a square by Jacobi's method ---- */

extern const struct dwarf laplace;

/*
 * The grid has n by n points inside of a boundary, so n + 2 rows of n + 2, numbered from 0. The boundary is that of
 * u = x (1 + y), which is the solution inside, too, and also of the discrete equation; its mean is 3/4.
 */
void laplace_start(long n, long first_row, long rows, double *at_first_row);

/* Rows of the next grid from those of the last one, and from the row on either side; returns the largest change of a point. */
double laplace_sweep(long n, long rows, const double *last, double *next);

double laplace_mean(long n, const double *grid);

/* ---- md: particles that attract and repel each other (Lennard-Jones), by velocity Verlet ---- */

extern const struct dwarf md;

/* All arrays have room for all particles. Positions are there twice: a step reads one and writes the other. */
struct particles {
	long n;
	int dimensions;
	double *position[2], *velocity, *force, *potential;
};

size_t md_bytes(const struct options *o);
struct particles md_place(const struct options *o, void *memory);

/* The beginning: positions and velocities of the slice, then (all positions must be there) forces. */
void md_start(const struct particles *p, struct slice mine);
void md_forces(const struct particles *p, struct slice mine, int at);

/* A step from positions `at` to those of `!at`. Between the two, all must have moved. */
void md_move(const struct particles *p, struct slice mine, int at);
void md_push(const struct particles *p, struct slice mine, int at);

/* That of all particles, summed in their order. */
double md_energy(const struct particles *p);

/* ---- blas: dot, nrm2, axpy, scal; gemv, ger; gemm ---- */

extern const struct dwarf blas;

/*
 * A routine has up to three operands, n rows long. The rows are distributed, unless all processes need all of them. Elements are
 * small whole numbers, so that results are exact and do not depend on the order of sums, as long as they are below 2^24 (s) or
 * 2^53 (d).
 */
struct operand {
	bool wide;  /* a row has n elements, not one */
	bool whole; /* not distributed */
};

struct blas_routine {
	const char *name;
	size_t element;
	long n, steps; /* defaults */
	int operands;
	struct operand operand[3];
	int result; /* which operand it is; -1 for a number, whose parts of all slices are to be added */
	/* Does a step on some rows of the distributed operands. */
	double (*compute)(long rows, long n, long step, void *const operand[3]);
};

const struct blas_routine *blas_routine(const struct options *o);
size_t blas_row_bytes(const struct blas_routine *r, int operand, long n);
void blas_start(const struct blas_routine *r, int operand, long n, struct slice rows, void *at_first_row);

/* The answer, one number: from the parts' sum, or all rows of the result; and how far it is, relatively, from the true one. */
double blas_answer(const struct blas_routine *r, long n, double sum, const void *result);
double blas_error(const struct blas_routine *r, long n, long steps, double answer);

#endif
