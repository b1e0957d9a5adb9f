/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls that sleep, and that the handler of a signal leaves for good. */
#ifndef LEAVE_H
#define LEAVE_H

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static sigjmp_buf left_at;

static void leave(int number)
{
	(void)number;
	siglongjmp(left_at, 1);
}

/* Makes the call so often, each time for 4 ms; gives how often it was left, and not returned from. */
static int leave_calls(int count, int (*call)(int), int id)
{
	struct sigaction action = {.sa_handler = leave};
	volatile int left = 0;

	sigaction(SIGALRM, &action, NULL);
	for (volatile int i = 0; i < count; i++) {
		if (sigsetjmp(left_at, 1) != 0) {
			left = left + 1;
			continue;
		}
		setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 4000}}, NULL);
		call(id);
		setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	}
	return left;
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
