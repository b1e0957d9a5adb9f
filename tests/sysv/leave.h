/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls that sleep, and that the handler of a signal leaves for good. */
#ifndef LEAVE_H
#define LEAVE_H

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf left_at;

static void leave(int number)
{
	(void)number;
	siglongjmp(left_at, 1);
}

/* Makes the call so often, and counts that in the first number; gives how often it was left, and not returned from. */
static int leave_calls(atomic_int *made, int count, int (*call)(int), int id)
{
	struct sigaction action = {.sa_handler = leave};
	volatile int left = 0;

	sigaction(SIGALRM, &action, NULL);
	for (volatile int i = 0; i < count; i++) {
		if (sigsetjmp(left_at, 1) != 0) {
			left = left + 1;
			continue;
		}
		atomic_fetch_add(made, 1);
		call(id);
	}
	return left;
}

/* Has a process leave each of so many calls once it sleeps there: while it is at work it must not. */
static void have_left(const atomic_int *made, pid_t pid, int count)
{
	for (int i = 1; i <= count; i++) {
		CHECK(sleeps(pid, pid, &made[0], i, &made[1]));
		kill(pid, SIGALRM);
	}
}

/* Descriptors of this process. */
static int open_files(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = 0;

	while (all && readdir(all))
		count++;
	if (all)
		closedir(all);
	return count;
}

#endif
