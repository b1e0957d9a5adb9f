/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What all programs here share, however their processes or threads share their data: options, slices of the work, the time, and
 * the record that each prints.
 */
#ifndef COMMON_H
#define COMMON_H

#include <stdbool.h>
#include <sys/types.h>

#define MOST_PROCESSES 64

enum subject { SYSV = 1, MPI = 2, OPENMP = 4 };

struct options {
	enum subject subject;
	char record[32];  /* the name in the record: the dwarf's, with its variant */
	long n, steps;    /* after parse(): with the defaults filled in, and `scale` applied to the steps */
	double scale;
	int dimensions;      /* md */
	char routine[16];    /* blas */
	double tolerance;    /* laplace */
	bool queue;          /* pi, System V */
	int processes;       /* System V, OpenMP */
	int rank;            /* System V: this process's, or -1 if the program forks them all */
	key_t key;           /* System V: 0 for none */
	double limit;        /* System V: seconds */
};

/* A dwarf's defaults. What belongs to it alone, it checks and fills in itself (`settle`). */
struct dwarf {
	const char *name, *what, *n_is, *steps_are;
	long n, steps; /* 0: `settle` knows */
	void (*settle)(struct options *);
};

/* Reads the command line and the environment; ends the program after --help, or after a mistake with status 2. */
struct options parse(int argc, char **argv, enum subject subject, const struct dwarf *dwarf);

/* Says `PROGRAM: ...` on standard error; the last two end the program, with status 1 and 2. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void mistake(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From `begin` up to `end`, which is no longer of it. */
struct slice {
	long begin, end;
};

/* The part of `count` things that is `rank`'s; those of all ranks follow each other, and differ by one at most. */
struct slice slice_of(long count, int rank, int size);

/* `bytes` of zeros that stay until the end of the program. */
void *zeros(size_t bytes);

double now(void);

/* Prints the program's one line. That of System V has `record_id`, the id of the set of semaphores. */
extern int record_id;
void print_record(const struct options *o, int processes, double seconds, double answer, double error);

#endif
