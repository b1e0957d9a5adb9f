/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two processes throw a number to and fro through a named segment, wherever they run: on the host, or in two VMs.
 *
 *	cc -O2 pingpong.c $(pkg-config --cflags --libs isthmus) -o pingpong
 *	isthmus run --vms 2 -n 2 -- ./pingpong
 *
 * Each writes one line of its own and reads the other's, so that one line moves each way. The first to come begins.
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 100000

struct board {
	_Alignas(64) _Atomic uint64_t players;
	struct {
		_Alignas(64) _Atomic uint64_t ball;
	} side[2];
};

static void must(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "pingpong: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* Waits for the ball, giving way to others now and then: there may be fewer processors than players. */
static void await_ball(_Atomic uint64_t *ball, uint64_t round)
{
	struct timespec moment = {0, 1};
	for (unsigned looks = 1; atomic_load_explicit(ball, memory_order_acquire) < round; looks++)
		if (looks % 4096 == 0)
			nanosleep(&moment, NULL);
}

int main(void)
{
	struct isthmus *here;
	struct isthmus_segment *segment;
	char name[64];

	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "pingpong", ISTHMUS_CREATE, 0600, sizeof(struct board), &segment), "open");
	must(isthmus_member_name(here, isthmus_member(here), name, sizeof name), "name");

	struct board *board = isthmus_segment_data(segment);
	uint64_t me = atomic_fetch_add(&board->players, 1);
	if (me > 1) {
		fprintf(stderr, "pingpong: two play already\n");
		return 1;
	}
	_Atomic uint64_t *mine = &board->side[me].ball, *other = &board->side[1 - me].ball;
	double begin = 0;
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		if (me == 1)
			await_ball(other, round);
		atomic_store_explicit(mine, round, memory_order_release);
		if (me == 0)
			await_ball(other, round);
		if (round == ROUNDS / 10)
			begin = now_us();
	}
	printf("player %llu on %s: %d rounds, %.3f us for half a round\n", (unsigned long long)me, name, ROUNDS,
	       (now_us() - begin) / (ROUNDS - ROUNDS / 10) / 2);

	/* The first to finish removes the name; the memory is freed when the second closes it, too. */
	if (me == 0)
		must(isthmus_segment_unlink(here, "pingpong"), "unlink");
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
