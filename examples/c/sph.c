/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A dam breaks: a fluid of particles in a box, computed by as many processes as there are, on the host or in VMs.
 *
 *	cc -O2 sph.c $(pkg-config --cflags --libs isthmus) -lm -o sph
 *	isthmus run --vms 2 -n 2 -- ./sph --particles 8192 --steps 3000 --frames pictures 20
 *
 * A browser plays pictures/animation.png. Nothing else needs arguments: under mpirun and the like, each process knows how many
 * there are. `./sph --help` names them all.
 *
 * The method is smoothed-particle hydrodynamics as M. Müller, D. Charypar and M. Gross have it in "Particle-Based Fluid
 * Simulation for Interactive Applications" (2003): each particle carries a piece of the fluid, and what the fluid is like at
 * a place is a weighted sum over the particles within a radius `h` of it. The box is divided into cells as wide as `h`, and
 * a table says which particles are in each, so that only nine cells are searched. The fluid is flat, a sheet of one metre's
 * depth: per square metre of the picture and per cubic metre is the same number. All units are those of the SI.
 *
 * Particles and table lie in a named segment. Two rules make locks unnecessary:
 * - The owner computes. Each process owns some particles and some cells, the same ones all the time, and writes no others.
 * - A step has four phases with a barrier behind each, and in no phase does a process write what another reads in it:
 *
 *	phase          reads of others                   writes of its own
 *	neighbours     cells of particles                the table's part for its cells
 *	densities      table, positions                  density and pressure
 *	forces         table, all but forces             force
 *	movement       nothing                           velocity, position, cell
 *
 * The result is the same to the last bit, for any number of processes: the table lists a cell's particles by number, so all sums have
 * one order, and they use nothing but + - * / and sqrt(), which are rounded alike on all processors. pow() is not.
 */
#define _POSIX_C_SOURCE 200809L
#include "film.h"
#include <isthmus.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAYOUT 0x6873702e31ull /* changes with what lies in the segment */
#define MOST_PROCESSES 64
#define MOST_PARTICLES (1u << 24)

#define PI 3.14159265358979323846
#define BOX_WIDTH 1.5     /* m */
#define BOX_HEIGHT 1.0    /* m; the box is open above, so this is only what the table and the pictures show */
#define COLUMN_WIDTH 0.5  /* m; the water, before the dam breaks */
#define COLUMN_HEIGHT 0.8 /* m */
#define GRAVITY 9.81      /* m/s^2 */
#define REST_DENSITY 1000.0 /* kg/m^3 */
/* How fast sound is in this water, in m/s. The real 1500 m/s would need tiny steps; this is about 2.5 times the fastest wave, so
   the water at the bottom is 8 % denser than at the top, which is not visible. */
#define SOUND 10.0

/* A particle; one cache line, so that two owners never write in the same one. */
struct particle {
	_Alignas(64) double position[2]; /* m, from the lower left corner */
	double velocity[2];              /* m/s */
	double force[2];                 /* N/m^3 */
	double density;                  /* kg/m^3 */
	double pressure;                 /* Pa above that of the air */
};
_Static_assert(sizeof(struct particle) == 64, "a particle has no gaps, and a cache line of its own");

/* A process's place in the run. Its index is the process's number. */
struct seat {
	_Alignas(64) _Atomic uint64_t taken;
	uint32_t member;
	double waited; /* the part of its time that it spent in barriers */
};

/* What the segment begins with; behind it come the particles and the table. A new segment is all zeros. */
struct head {
	/* What all processes of a run must agree on: the first one writes it. */
	_Atomic uint64_t layout, particles, processes, steps, every, run;
	struct seat seats[MOST_PROCESSES];
};

struct options {
	uint64_t particles, steps, processes, every;
	const char *job, *frames;
	unsigned waiting;
	int check;
};

/* From `begin` up to `end`, which is no longer of it. */
struct range {
	uint32_t begin, end;
};

/* What one process knows of the run. */
struct world {
	struct options options;
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_barrier *barrier;
	char segment_name[128];
	char barrier_name[128]; /* "" when it is not there to be unlinked */

	/* In the segment. */
	struct head *head;
	struct particle *particles;
	uint32_t *cell_of; /* for each particle, where it is */
	uint32_t *first;   /* for each cell, where its particles begin in `sorted`; and where the last one's end */
	uint32_t *sorted;  /* the numbers of the particles, cell by cell */

	/* Its own. */
	uint32_t count, across, cells; /* particles, cells of a row, cells of the box */
	uint32_t me;
	struct range my_particles, my_cells;
	uint32_t *place; /* for each of my cells, where its next particle goes */
	double spacing;  /* m between two particles at rest */
	double h;        /* m, the radius of the kernels */
	double mass;     /* kg of a particle */
	double tick;     /* s of a step */
	double viscosity; /* Pa s */
	double poly6, spiky, laplacian; /* the constant factor of each kernel */
	double waited, drawn;           /* s, in barriers and for pictures */
	struct film *film;              /* of number 0, if pictures are asked for */
};

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
	(void)signal;
	interrupted = 1;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ends this process. The others' barrier breaks, and the segment's name goes with the process that made it. */
_Noreturn static void die(struct world *w, const char *format, ...)
{
	va_list values;
	fprintf(stderr, "sph: ");
	va_start(values, format);
	vfprintf(stderr, format, values);
	va_end(values);
	fprintf(stderr, "\n");
	if (w->barrier_name[0])
		isthmus_barrier_unlink(w->here, w->barrier_name);
	exit(1);
}

static void must(struct world *w, int error, const char *what)
{
	if (error < 0)
		die(w, "%s: %s", what, isthmus_error());
}

/* ---- meeting ---- */

/* Waits for all processes. It looks up ten times a second, so that it can be interrupted, and says after two what it waits for. */
static void meet(struct world *w, const char *where, uint64_t step)
{
	double begin = now();
	for (int looks = 1; !interrupted; looks++) {
		int error = isthmus_barrier_wait(w->barrier, 100000000);
		if (error >= 0) {
			w->waited += now() - begin;
			return;
		}
		if (error != ISTHMUS_ETIMEDOUT)
			die(w, "number %u in step %llu, %s: %s", w->me, (unsigned long long)step, where, isthmus_error());
		if (looks == 20 && step == 0)
			fprintf(stderr, "sph: number %u waits until all %llu are there; they need the same --job (%s)\n", w->me,
				(unsigned long long)w->options.processes, w->options.job);
	}
	die(w, "number %u in step %llu, %s: interrupted", w->me, (unsigned long long)step, where);
}

/* Says that the others belong to another run. */
_Noreturn static void strangers(struct world *w, const char *what)
{
	die(w, "segment %s is of another run, %s; give this one a --job of its own", w->segment_name, what);
}

/* Writes `value`, which is not 0, where no process has yet; a run in which another value was written is not ours. */
static void agree(struct world *w, _Atomic uint64_t *word, uint64_t value, const char *what)
{
	uint64_t found = 0;
	if (!atomic_compare_exchange_strong(word, &found, value) && found != value)
		strangers(w, what);
}

/* Takes the first number that is free. */
static void sit_down(struct world *w)
{
	for (w->me = 0; w->me < w->options.processes; w->me++) {
		struct seat *seat = &w->head->seats[w->me];
		uint64_t empty = 0;
		if (atomic_compare_exchange_strong(&seat->taken, &empty, 1)) {
			seat->member = isthmus_member(w->here);
			return;
		}
	}
	strangers(w, "which has all its processes");
}

/* The part of `count` things that this process owns. */
static struct range share(const struct world *w, uint64_t count)
{
	uint64_t of = w->options.processes;
	return (struct range){(uint32_t)(w->me * count / of), (uint32_t)((w->me + 1) * count / of)};
}

/* Opens the segment, and finds out whether it is this run's. It is transient: with the process that makes it, its name goes. */
static void open_segment(struct world *w)
{
	size_t table = 2 * (size_t)w->count + w->cells + 1;
	size_t len = sizeof(struct head) + w->count * sizeof(struct particle) + table * sizeof(uint32_t);
	must(w, isthmus_segment_open(w->here, w->segment_name, ISTHMUS_CREATE | ISTHMUS_TRANSIENT, 0600, len, &w->segment), "segment");
	if (isthmus_segment_len(w->segment) != len)
		strangers(w, "with other --particles");
	w->head = isthmus_segment_data(w->segment);
	w->particles = (struct particle *)(w->head + 1);
	w->cell_of = (uint32_t *)(w->particles + w->count);
	w->sorted = w->cell_of + w->count;
	w->first = w->sorted + w->count;
	agree(w, &w->head->layout, LAYOUT, "of another program");
	agree(w, &w->head->particles, w->count, "with other --particles");
	agree(w, &w->head->processes, w->options.processes, "with other --processes");
	agree(w, &w->head->steps, w->options.steps, "with other --steps");
	agree(w, &w->head->every, w->options.every + 1, "with other --frames");
}

/*
 * Takes part in the barrier. Its name has the time in it at which the first process came, so it is never one that an earlier
 * run has left; it is unlinked as soon as all are there.
 */
static void join_barrier(struct world *w)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	uint64_t mine = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec, run = 0;
	if (atomic_compare_exchange_strong(&w->head->run, &run, mine))
		run = mine;
	char name[sizeof w->barrier_name];
	snprintf(name, sizeof name, "%.100s.%llx", w->segment_name, (unsigned long long)run);
	int error = isthmus_barrier_join(w->here, name, (uint32_t)w->options.processes, w->options.waiting, 0600, &w->barrier);
	if (error == ISTHMUS_EFULL)
		strangers(w, isthmus_error());
	must(w, error, "barrier");
	memcpy(w->barrier_name, name, sizeof name);
}

/* Finds the other processes, and this one's part of the work. */
static void enter(struct world *w)
{
	if (snprintf(w->segment_name, sizeof w->segment_name, "sph.%s", w->options.job) > 100)
		die(w, "--job: at most 96 bytes");
	must(w, isthmus_attach(NULL, &w->here), "attach");
	open_segment(w);
	join_barrier(w);
	sit_down(w);
	w->my_particles = share(w, w->count);
	w->my_cells = share(w, w->cells);
	w->place = calloc(w->my_cells.end - w->my_cells.begin + 1, sizeof *w->place);
	if (!w->place)
		die(w, "no memory");
}

/* ---- the fluid ---- */

/* All that follows from the number of particles. */
static void plan(struct world *w)
{
	w->count = (uint32_t)w->options.particles;
	w->spacing = sqrt(COLUMN_WIDTH * COLUMN_HEIGHT / w->count);
	w->h = 2 * w->spacing;
	w->mass = REST_DENSITY * w->spacing * w->spacing;
	/* In a step, sound comes no farther than a fraction of the radius, or the sums would run away. */
	w->tick = 0.3 * w->h / SOUND;
	/* Real water's would be a thousandth; this is as little as keeps so coarse a fluid calm. */
	w->viscosity = 0.04 * REST_DENSITY * SOUND * w->h;
	w->across = (uint32_t)(BOX_WIDTH / w->h) + 1;
	w->cells = w->across * ((uint32_t)(BOX_HEIGHT / w->h) + 1);

	/* The three kernels of the paper, with factors that make their integral over a plane 1 instead of that over space. */
	double h2 = w->h * w->h, h5 = h2 * h2 * w->h;
	w->poly6 = 4 / (PI * h2 * h2 * h2 * h2); /* W = poly6 (h^2 - r^2)^3: smooth, for densities */
	w->spiky = 30 / (PI * h5);               /* |grad W| = spiky (h - r)^2: does not vanish where two come close */
	w->laplacian = 40 / (PI * h5);           /* laplace W = laplacian (h - r): never negative, so it only brakes */
}

/* Which of `count` cells a coordinate is in; also what is outside, or no number, is in one. */
static uint32_t cell_along(double x, double h, uint32_t count)
{
	return !(x > 0) ? 0 : x / h >= count ? count - 1 : (uint32_t)(x / h);
}

static void note_cell(struct world *w, uint32_t i)
{
	const double *at = w->particles[i].position;
	w->cell_of[i] = cell_along(at[1], w->h, w->cells / w->across) * w->across + cell_along(at[0], w->h, w->across);
}

/* Puts my particles into the column, row by row from below. */
static void fill_column(struct world *w)
{
	uint32_t columns = (uint32_t)(COLUMN_WIDTH / w->spacing);
	if (columns == 0)
		columns = 1;
	for (uint32_t i = w->my_particles.begin; i < w->my_particles.end; i++) {
		w->particles[i].position[0] = (i % columns + 0.5) * w->spacing;
		w->particles[i].position[1] = (i / columns + 0.5) * w->spacing;
		note_cell(w, i);
	}
	if (w->me == 0)
		w->first[w->cells] = w->count;
}

/*
 * Phase 1: the table's part for my cells. All processes look at where all particles are, which is quick, and each sorts those
 * in its own cells, behind as many as lie in the cells of others below. So no process waits for a master to sort all.
 */
static void build_table(struct world *w)
{
	struct range mine = w->my_cells;
	uint32_t below = 0;
	memset(w->place, 0, (mine.end - mine.begin) * sizeof *w->place);
	for (uint32_t i = 0; i < w->count; i++) {
		uint32_t cell = w->cell_of[i];
		if (cell < mine.begin)
			below++;
		else if (cell < mine.end)
			w->place[cell - mine.begin]++;
	}
	for (uint32_t cell = mine.begin; cell < mine.end; cell++) {
		uint32_t inside = w->place[cell - mine.begin];
		w->first[cell] = w->place[cell - mine.begin] = below;
		below += inside;
	}
	for (uint32_t i = 0; i < w->count; i++) {
		uint32_t cell = w->cell_of[i];
		if (cell >= mine.begin && cell < mine.end)
			w->sorted[w->place[cell - mine.begin]++] = i;
	}
}

/* Where in the table the neighbours of particle `i` are: three cells below it, beside it and above it. Says how many rows there are. */
static unsigned rows_around(const struct world *w, uint32_t i, struct range rows[3])
{
	uint32_t x = w->cell_of[i] % w->across, y = w->cell_of[i] / w->across;
	uint32_t left = x > 0 ? x - 1 : 0, right = x + 1 < w->across ? x + 1 : x;
	uint32_t top = y + 1 < w->cells / w->across ? y + 1 : y;
	unsigned count = 0;
	for (uint32_t row = y > 0 ? y - 1 : 0; row <= top; row++)
		rows[count++] = (struct range){w->first[row * w->across + left], w->first[row * w->across + right + 1]};
	return count;
}

/* Phase 2. The pressure grows with the density; it never pulls, or drops would shrink to points. */
static void find_density(struct world *w, uint32_t i)
{
	struct particle *p = &w->particles[i];
	struct range rows[3];
	double h2 = w->h * w->h, sum = 0;
	unsigned count = rows_around(w, i, rows);
	for (unsigned row = 0; row < count; row++) {
		for (uint32_t k = rows[row].begin; k < rows[row].end; k++) {
			const struct particle *other = &w->particles[w->sorted[k]];
			double dx = p->position[0] - other->position[0], dy = p->position[1] - other->position[1];
			double left = h2 - dx * dx - dy * dy;
			if (left > 0)
				sum += left * left * left;
		}
	}
	p->density = w->mass * w->poly6 * sum;
	p->pressure = SOUND * SOUND * (p->density - REST_DENSITY);
	if (p->pressure < 0)
		p->pressure = 0;
}

/* How a wall pushes what is `distance` away from it, in m/s^2: a short spring, about as stiff as the fluid. */
static double wall(const struct world *w, double distance)
{
	double reach = w->h / 4;
	return distance < reach ? SOUND * SOUND / w->h * (1 - distance / reach) : 0;
}

/* Phase 3: from high pressure to low, along with the neighbours, and away from the walls. */
static void find_force(struct world *w, uint32_t i)
{
	struct particle *p = &w->particles[i];
	struct range rows[3];
	double fx = 0, fy = 0;
	unsigned count = rows_around(w, i, rows);
	for (unsigned row = 0; row < count; row++) {
		for (uint32_t k = rows[row].begin; k < rows[row].end; k++) {
			const struct particle *other = &w->particles[w->sorted[k]];
			double dx = p->position[0] - other->position[0], dy = p->position[1] - other->position[1];
			double r2 = dx * dx + dy * dy;
			/* Of two in the same place there is no direction away from each other; itself is one of them. */
			if (r2 >= w->h * w->h || r2 == 0)
				continue;
			double r = sqrt(r2), left = w->h - r, volume = w->mass / other->density;
			double push = volume * (p->pressure + other->pressure) / 2 * w->spiky * left * left / r;
			double drag = volume * w->viscosity * w->laplacian * left;
			fx += push * dx + drag * (other->velocity[0] - p->velocity[0]);
			fy += push * dy + drag * (other->velocity[1] - p->velocity[1]);
		}
	}
	double from_walls = wall(w, p->position[0]) - wall(w, BOX_WIDTH - p->position[0]);
	p->force[0] = fx + p->density * from_walls;
	p->force[1] = fy + p->density * (wall(w, p->position[1]) - GRAVITY);
}

/* Phase 4. What a wall's spring does not hold stops at the wall. */
static void move(struct world *w, uint32_t i)
{
	static const double most[2] = {BOX_WIDTH, INFINITY}; /* it is open above */
	struct particle *p = &w->particles[i];
	for (int axis = 0; axis < 2; axis++) {
		p->velocity[axis] += w->tick * p->force[axis] / p->density;
		p->position[axis] += w->tick * p->velocity[axis];
		if (p->position[axis] < 0)
			p->position[axis] = p->velocity[axis] = 0;
		if (p->position[axis] > most[axis])
			p->position[axis] = most[axis], p->velocity[axis] = 0;
	}
	note_cell(w, i);
}

static void for_mine(struct world *w, void (*act)(struct world *, uint32_t))
{
	for (uint32_t i = w->my_particles.begin; i < w->my_particles.end; i++)
		act(w, i);
}

/* One step: four phases, four barriers. */
static void advance(struct world *w, uint64_t step)
{
	build_table(w);
	meet(w, "neighbours", step);
	for_mine(w, find_density);
	meet(w, "densities", step);
	for_mine(w, find_force);
	meet(w, "forces", step);
	for_mine(w, move);
	meet(w, "movement", step);
}

/* All bits of all particles (FNV-1a). */
static uint64_t checksum(const struct world *w)
{
	const unsigned char *bytes = (const unsigned char *)w->particles;
	uint64_t sum = 0xcbf29ce484222325;
	for (size_t at = 0; at < w->count * sizeof *w->particles; at++)
		sum = (sum ^ bytes[at]) * 0x100000001b3;
	return sum;
}

/* ---- pictures ---- */

/* Each particle is a disc, the whiter the faster. */
static void paint(const struct world *w, unsigned char *pixels)
{
	double scale = FILM_WIDTH / BOX_WIDTH, radius = 0.7 * w->spacing * scale, fastest = 3.5;
	memset(pixels, 0, FILM_PIXELS);
	for (uint32_t i = 0; i < w->count; i++) {
		const struct particle *p = &w->particles[i];
		double x = p->position[0] * scale, y = FILM_HEIGHT - p->position[1] * scale;
		double speed = sqrt(p->velocity[0] * p->velocity[0] + p->velocity[1] * p->velocity[1]);
		int colour = speed < fastest ? (int)(1 + 254 * speed / fastest) : 255;
		int left = fmax(x - radius, 0), right = fmin(x + radius, FILM_WIDTH - 1);
		int top = fmax(y - radius, 0), bottom = fmin(fmax(y + radius, -1), FILM_HEIGHT - 1);
		for (int row = top; row <= bottom; row++)
			for (int column = left; column <= right; column++) {
				double dx = column + 0.5 - x, dy = row + 0.5 - y;
				if (dx * dx + dy * dy <= radius * radius)
					pixels[row * FILM_ROW + 1 + column] = (unsigned char)colour;
			}
	}
}

/* Draws the state after a step; the first time, it begins the film. */
static void shoot(struct world *w, uint64_t step)
{
	double begin = now();
	if (!w->film)
		w->film = film_begin(w->options.frames, (uint32_t)(1 + w->options.steps / w->options.every));
	if (w->film)
		paint(w, w->film->pixels);
	if (!w->film || film_shoot(w->film, step))
		die(w, "pictures in %s: %s", w->options.frames, strerror(errno));
	w->drawn += now() - begin;
}

/* ---- the program ---- */

static const char usage[] =
	"usage: sph [OPTIONS]\n"
	"  --particles N    how many particles (65536)\n"
	"  --steps N        how many steps (1000)\n"
	"  --processes N    how many processes compute together (as many as mpirun has started, else 1)\n"
	"  --wait HOW       how they wait for each other: spin, block or hybrid (hybrid)\n"
	"  --job NAME       what tells this run from others (mpirun's name of the job, else sph)\n"
	"  --frames DIR N   write every Nth step to DIR as a PNG picture, and all of them as animation.png\n"
	"  --check          print a checksum of the result, the same for any number of processes\n";

_Noreturn static void misused(const char *what, const char *value)
{
	fprintf(stderr, "sph: %s: %s\n%s", what, value ? value : "needs a value", usage);
	exit(2);
}

static const char *text(const char *option, const char *value)
{
	if (!value || !*value)
		misused(option, NULL);
	return value;
}

/* A number from 1 to `most`. */
static uint64_t number(const char *option, const char *digits, uint64_t most)
{
	char *end = NULL;
	unsigned long long value = digits ? strtoull(digits, &end, 10) : 0;
	if (!digits || *digits < '0' || *digits > '9' || *end || value < 1 || value > most)
		misused(option, digits);
	return value;
}

static unsigned waiting(const char *how)
{
	static const char *const ways[] = {[ISTHMUS_SPIN] = "spin", [ISTHMUS_BLOCK] = "block", [ISTHMUS_HYBRID] = "hybrid"};
	for (unsigned way = ISTHMUS_SPIN; how && way <= ISTHMUS_HYBRID; way++)
		if (!strcmp(how, ways[way]))
			return way;
	misused("--wait", how);
}

/* What the launcher has told its processes, by the names that Open MPI, MPICH and Intel MPI give it. */
static const char *launched(const char *name, const char *other, const char *otherwise)
{
	const char *value = getenv(name);
	if (!value && other)
		value = getenv(other);
	return value && *value ? value : otherwise;
}

static struct options read_options(char **argv)
{
	struct options o = {.particles = 65536, .steps = 1000, .waiting = ISTHMUS_HYBRID};
	const char *processes = launched("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "1");
	o.job = launched("PMIX_NAMESPACE", NULL, "sph");
	for (char **arg = argv + 1; *arg; arg++) {
		const char *option = *arg, *value = arg[1];
		if (!strcmp(option, "--help")) {
			fputs(usage, stdout);
			exit(0);
		} else if (!strcmp(option, "--check")) {
			o.check = 1;
			continue;
		} else if (!strcmp(option, "--particles"))
			o.particles = number(option, value, MOST_PARTICLES);
		else if (!strcmp(option, "--steps"))
			o.steps = number(option, value, 1000000000);
		else if (!strcmp(option, "--processes"))
			processes = value;
		else if (!strcmp(option, "--wait"))
			o.waiting = waiting(value);
		else if (!strcmp(option, "--job"))
			o.job = text(option, value);
		else if (!strcmp(option, "--frames")) {
			o.frames = text(option, value);
			o.every = number(option, arg[2], 1000000000);
			arg++;
		} else
			misused(option, "no such option");
		arg++;
	}
	o.processes = number("--processes", processes, MOST_PROCESSES);
	return o;
}

/* What came of it; by number 0, when the others have written down how long they have waited. */
static void report(struct world *w, double seconds)
{
	const struct options *o = &w->options;
	printf("%u particles, %llu process%s: %llu steps, %.1f steps per second\n", w->count, (unsigned long long)o->processes,
	       o->processes == 1 ? "" : "es", (unsigned long long)o->steps, (double)o->steps / (seconds - w->drawn));
	for (uint32_t number = 0; number < o->processes; number++) {
		char name[256] = "?";
		isthmus_member_name(w->here, w->head->seats[number].member, name, sizeof name);
		printf("number %u on %s: %.1f %% of the time in barriers%s\n", number, name,
		       100 * w->head->seats[number].waited / seconds, o->every ? ", also while number 0 drew" : "");
	}
	if (o->check)
		printf("checksum %016llx\n", (unsigned long long)checksum(w));
}

int main(int argc, char **argv)
{
	static struct world w;
	struct sigaction action = {.sa_handler = interrupt};

	(void)argc;
	w.options = read_options(argv);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	plan(&w);
	enter(&w);
	fill_column(&w);
	meet(&w, "the beginning", 0);
	/* All are there: no process needs to find the barrier any more. */
	if (w.me == 0)
		must(&w, isthmus_barrier_unlink(w.here, w.barrier_name), "unlink");
	w.barrier_name[0] = 0;

	/* Number 0 draws while the others begin the next step: no particle moves before it takes part in that. */
	w.waited = 0;
	double begin = now();
	for (uint64_t step = 0; step <= w.options.steps; step++) {
		if (step > 0)
			advance(&w, step);
		if (w.me == 0 && w.options.every && step % w.options.every == 0)
			shoot(&w, step);
	}
	double seconds = now() - begin;
	if (w.film && film_end(w.film))
		die(&w, "pictures in %s: %s", w.options.frames, strerror(errno));

	/* The name goes while its maker lives, so that what is unlinked is not another run's. */
	w.head->seats[w.me].waited = w.waited;
	if (w.me == 0)
		must(&w, isthmus_segment_unlink(w.here, w.segment_name), "unlink");
	meet(&w, "the end", w.options.steps);
	if (w.me == 0)
		report(&w, seconds);
	isthmus_barrier_leave(w.barrier);
	isthmus_segment_close(w.segment);
	isthmus_detach(w.here);
	free(w.place);
	return 0;
}
