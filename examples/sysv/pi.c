/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * pi over System V IPC. Rank 0 puts the number of intervals into the segment, each rank sums up its own, and a reduction adds
 * the sums. With -q, rank 0 sends each other rank a message with its share, and they answer it: no semaphore is used then.
 */
#include "kernels/kernels.h"
#include "team.h"

#define RESULT 1 /* the type of answers; a message for rank r is of type 1 + r */

struct share {
	long type;
	struct {
		long n;
		struct slice pairs;
		int rank;
		double sum;
	} body;
};

static double by_segment(struct team *t, long n)
{
	volatile long *shared_n = t->data;
	if (t->rank == 0)
		*shared_n = n;
	team_barrier(t);
	n = *shared_n;
	return pi_of(n, team_sum(t, pi_sum(n, slice_of(n / 2, t->rank, t->size))));
}

static double by_queue(struct team *t, long n)
{
	struct share share;
	double sums[MOST_PROCESSES], sum = 0;

	if (t->rank) {
		team_receive(t, &share, sizeof share.body, 1 + t->rank);
		share.type = RESULT;
		share.body.sum = pi_sum(share.body.n, share.body.pairs);
		team_send(t, &share, sizeof share.body);
		return 0;
	}
	for (int rank = 1; rank < t->size; rank++) {
		share = (struct share){1 + rank, {n, slice_of(n / 2, rank, t->size), rank, 0}};
		team_send(t, &share, sizeof share.body);
	}
	sums[0] = pi_sum(n, slice_of(n / 2, 0, t->size));
	for (int i = 1; i < t->size; i++) {
		team_receive(t, &share, sizeof share.body, RESULT);
		sums[share.body.rank] = share.body.sum;
	}
	for (int rank = 0; rank < t->size; rank++) /* in this order, whoever was first */
		sum += sums[rank];
	return pi_of(n, sum);
}

static void work(struct team *t)
{
	const struct options *o = t->options;
	double answer = 0, begin = now();
	for (long step = 0; step < o->steps; step++)
		answer = o->queue ? by_queue(t, o->n) : by_segment(t, o->n);
	if (t->rank == 0)
		print_record(o, t->size, now() - begin, answer, pi_error(answer));
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, SYSV, &pi);
	return team_run(&o, sizeof(long), work);
}
