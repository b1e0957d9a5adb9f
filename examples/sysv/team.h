/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that work together through System V IPC, and nothing else: a segment of shared memory, a set of semaphores, and a
 * message queue if asked for. They are forked by one program, or are started one by one and meet by a key.
 *
 * The program's own process only watches: it makes the objects or finds them, forks the rank or the ranks that it is for, and
 * waits. So whatever ends a rank, a mistake, a signal or Ctrl-C, somebody is there who removes the objects, which also wakes
 * the ranks of other programs. Those that have ended well leave nothing either: the segment is removed as soon as all have it
 * attached, and rank 0 removes the rest when the others have left.
 */
#ifndef TEAM_H
#define TEAM_H

#include "common.h"
#include <stddef.h>

struct team {
	int rank, size;
	void *data; /* shared by all, and zero at first */
	int queue;

	/* Not for the programs. */
	struct head *head;
	int segment, semaphores;
	double limit;
	unsigned reductions;
	const struct options *options;
};

/* Runs `work` in each rank, with `len` bytes of shared memory. Returns the program's exit status. */
int team_run(const struct options *o, size_t len, void (*work)(struct team *));

/* Returns once all ranks have called it. What they wrote before is seen by all after it. */
void team_barrier(struct team *t);

/*
 * The sum, in the order of ranks, or the largest of all ranks' values, for each of them. As good as a barrier, and not dearer:
 * whoever needs one behind a sweep anyway gets the reduction for nothing.
 */
double team_sum(struct team *t, double mine);
double team_max(struct team *t, double mine);

/* Messages, as in msgsnd(2) and msgrcv(2): one begins with its type, a long, which `len` does not count. */
void team_send(struct team *t, const void *message, size_t len);
void team_receive(struct team *t, void *message, size_t len, long type);

#endif
