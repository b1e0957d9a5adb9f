/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* See common.h. One table names all options, from which the parser and --help are made. */
#include "common.h"
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *program = "dwarf";
int record_id;

struct choice {
	int letter; /* a capital has a long name only */
	const char *name, *value;
	unsigned subjects;
	const char *dwarf; /* NULL: all */
	const char *help;  /* NULL: the dwarf has it */
};

static const struct choice choices[] = {
	{'n', "size", "N", SYSV | MPI | OPENMP, NULL, NULL},
	{'s', "steps", "S", SYSV | MPI | OPENMP, NULL, NULL},
	{'X', "scale", "F", SYSV | MPI | OPENMP, NULL, "do F times as many steps, one at least (1)"},
	{'d', "dimensions", "D", SYSV | MPI | OPENMP, "md", "2 or 3 (3)"},
	{'R', "routine", "NAME", SYSV | MPI | OPENMP, "blas", "s or d, and dot, nrm2, axpy, scal, gemv, ger or gemm (dgemv)"},
	{'T', "tolerance", "E", SYSV | MPI | OPENMP, "laplace", "end before where no point changes by more than E (0)"},
	{'q', "queue", NULL, SYSV, "pi", "hand out the intervals and collect the sums through a message queue"},
	{'p', "processes", "P", SYSV, NULL, "how many processes (1)"},
	{'p', "threads", "P", OPENMP, NULL, "how many threads (1)"},
	{'r', "rank", "R", SYSV, NULL, "be rank R of the P, each of which is started by itself, and meet by the key"},
	{'k', "key", "KEY", SYSV, NULL, "the key of the segment, the semaphores and the queue (ftok of the program, or none)"},
	{'t', "time-limit", "S", SYSV, NULL, "give up when another process makes us wait for S seconds (60)"},
	{'h', "help", NULL, SYSV | MPI | OPENMP, NULL, "print this"},
};
#define CHOICES (sizeof choices / sizeof choices[0])

/* Where a launcher says which of how many processes this is. */
static const char *const launchers[][2] = {
	{"ISTHMUS_RANK", "ISTHMUS_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"},
};

static void say(const char *format, va_list values)
{
	fprintf(stderr, "%s: ", program);
	vfprintf(stderr, format, values);
	fprintf(stderr, "\n");
}

void complain(const char *format, ...)
{
	va_list values;
	va_start(values, format);
	say(format, values);
	va_end(values);
}

void die(const char *format, ...)
{
	va_list values;
	va_start(values, format);
	say(format, values);
	exit(1);
}

void mistake(const char *format, ...)
{
	va_list values;
	va_start(values, format);
	say(format, values);
	exit(2);
}

static long whole(const char *name, const char *text, long least, long most)
{
	char *end;
	long value = strtol(text, &end, 10);
	if (end == text || *end || value < least || value > most)
		mistake("%s is a number from %ld to %ld, not %s", name, least, most, text);
	return value;
}

static double real(const char *name, const char *text)
{
	char *end;
	double value = strtod(text, &end);
	if (end == text || *end || !(value >= 0) || value > 1e9)
		mistake("%s is a number from 0 to 1e9, not %s", name, text);
	return value;
}

static bool applies(const struct choice *c, enum subject subject, const struct dwarf *dwarf)
{
	return (c->subjects & subject) && (!c->dwarf || !strcmp(c->dwarf, dwarf->name));
}

static void help(enum subject subject, const struct dwarf *dwarf)
{
	printf("%s: %s\n\nusage: %s [OPTION]...\n", program, dwarf->what, program);
	for (size_t i = 0; i < CHOICES; i++) {
		const struct choice *c = &choices[i];
		char option[40], letter[8] = "    ";
		if (!applies(c, subject, dwarf))
			continue;
		if (c->letter >= 'a')
			snprintf(letter, sizeof letter, "-%c, ", c->letter);
		snprintf(option, sizeof option, "%s--%s %s", letter, c->name, c->value ? c->value : "");
		printf("  %-24s", option);
		if (c->help)
			printf(" %s\n", c->help);
		else {
			long value = c->letter == 'n' ? dwarf->n : dwarf->steps;
			printf(" %s", c->letter == 'n' ? dwarf->n_is : dwarf->steps_are);
			value ? printf(" (%ld)\n", value) : printf("\n");
		}
	}
	if (subject == SYSV)
		printf("\nWithout -r, P processes are forked; -r may also come from a launcher, as ISTHMUS_RANK and ISTHMUS_SIZE.\n");
	if (subject == MPI)
		printf("\nThe number of processes is the launcher's: mpirun -n 2 %s\n", program);
	printf("One line is printed: a record in JSON.\n");
}

/* Which process this is, if a launcher has said so and the command line has not. */
static void ask_launcher(struct options *o)
{
	for (size_t i = 0; o->rank < 0 && i < sizeof launchers / sizeof launchers[0]; i++) {
		const char *rank = getenv(launchers[i][0]), *size = getenv(launchers[i][1]);
		if (!rank || !size)
			continue;
		int processes = (int)whole(launchers[i][1], size, 1, MOST_PROCESSES);
		if (o->processes && o->processes != processes)
			mistake("-p is %d, but %s is %d", o->processes, launchers[i][1], processes);
		o->processes = processes;
		o->rank = (int)whole(launchers[i][0], rank, 0, processes - 1);
	}
}

static key_t key_of(const char *text)
{
	char *end;
	unsigned long key = strtoul(text, &end, 0);
	if (end == text || *end || text[0] == '-' || key == 0 || key > 0xffffffff)
		mistake("-k is a number from 1 to 0xffffffff, not %s", text);
	return (key_t)key;
}

struct options parse(int argc, char **argv, enum subject subject, const struct dwarf *dwarf)
{
	struct options o = {.subject = subject, .n = dwarf->n, .steps = dwarf->steps, .scale = 1, .dimensions = 3, .rank = -1,
			    .limit = 60};
	struct option names[CHOICES + 1] = {{0}};
	char letters[3 * CHOICES] = "", *letter = letters;
	int count = 0, c;

	program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
	strcpy(o.routine, "dgemv");
	for (size_t i = 0; i < CHOICES; i++)
		if (applies(&choices[i], subject, dwarf)) {
			bool value = choices[i].value != NULL;
			names[count++] = (struct option){choices[i].name, value ? required_argument : no_argument, NULL, choices[i].letter};
			if (choices[i].letter >= 'a')
				letter += sprintf(letter, value ? "%c:" : "%c", choices[i].letter);
		}
	while ((c = getopt_long(argc, argv, letters, names, NULL)) != -1)
		switch (c) {
		case 'n': o.n = whole("-n", optarg, 1, 500000000); break;
		case 's': o.steps = whole("-s", optarg, 1, 500000000); break;
		case 'X': o.scale = real("--scale", optarg); break;
		case 'd': o.dimensions = (int)whole("-d", optarg, 2, 3); break;
		case 'R': snprintf(o.routine, sizeof o.routine, "%s", optarg); break;
		case 'T': o.tolerance = real("--tolerance", optarg); break;
		case 'q': o.queue = true; break;
		case 'p': o.processes = (int)whole("-p", optarg, 1, MOST_PROCESSES); break;
		case 'r': o.rank = (int)whole("-r", optarg, 0, MOST_PROCESSES - 1); break;
		case 'k': o.key = key_of(optarg); break;
		case 't': o.limit = real("-t", optarg); break;
		case 'h': help(subject, dwarf); exit(0);
		default: fprintf(stderr, "%s: --help names the options\n", program); exit(2);
		}
	if (optind < argc)
		mistake("%s is no option; see --help", argv[optind]);
	if (subject == SYSV) {
		ask_launcher(&o);
		if (o.rank >= 0 && !o.processes)
			mistake("-r needs -p, the number of processes");
		if (o.rank >= 0 && o.rank >= o.processes)
			mistake("-r is at most %d with -p %d", o.processes - 1, o.processes);
	}
	if (!o.processes)
		o.processes = 1;
	snprintf(o.record, sizeof o.record, "%s", dwarf->name);
	if (dwarf->settle)
		dwarf->settle(&o);
	o.steps = lround((double)o.steps * o.scale);
	if (o.steps < 1)
		o.steps = 1;
	return o;
}

struct slice slice_of(long count, int rank, int size)
{
	return (struct slice){count * rank / size, count * (rank + 1) / size};
}

void *zeros(size_t bytes)
{
	void *memory = calloc(1, bytes ? bytes : 1);
	if (!memory)
		die("no memory for %zu bytes", bytes);
	return memory;
}

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void print_record(const struct options *o, int processes, double seconds, double answer, double error)
{
	const char *subject = o->subject == SYSV ? "sysv" : o->subject == MPI ? "mpi" : "openmp";
	if (!isfinite(answer) || !isfinite(error))
		die("the answer is no number");
	printf("{\"dwarf\": \"%s\", \"subject\": \"%s\", \"processes\": %d, \"seconds\": %.6f, \"answer\": %.17g, "
	       "\"residual_or_error\": %.17g", o->record, subject, processes, seconds, answer, error);
	if (o->subject == SYSV)
		printf(", \"id\": %d", record_id);
	puts("}");
	if (fflush(stdout))
		die("the record could not be written");
}
