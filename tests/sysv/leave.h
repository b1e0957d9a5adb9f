/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls that sleep, and that the handler of a signal leaves for good, or by which it forks. */
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

static volatile pid_t forked;

static void forks(int number)
{
	(void)number;
	forked = fork();
}

static void *idles(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/* A call sleeps, and a handler forks: it fails in both processes. Then each makes it once more, and two of `give` let them go on. */
static void fork_in_a_call(int (*call)(int), int (*give)(int), int id, bool has_thread)
{
	atomic_int *made = shared_memory(3 * sizeof *made); /* calls; none returns; how many have failed */
	pid_t pid = child();

	if (pid == 0) {
		pthread_t thread;
		sigset_t all, before, after;
		struct sigaction action = {.sa_handler = forks};

		sigfillset(&all);
		pthread_sigmask(SIG_BLOCK, &all, &before);
		if (has_thread)
			CHECK(pthread_create(&thread, NULL, idles, NULL) == 0);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		sigaction(SIGALRM, &action, NULL);
		atomic_fetch_add(&made[0], 1);
		FAILS(call(id), EINTR);
		atomic_fetch_add(&made[2], 1);
		pthread_sigmask(SIG_SETMASK, NULL, &after);
		EQUAL(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
		OK(call(id));
		if (forked == 0)
			_exit(0);
		JOIN(forked);
		_exit(0);
	}
	if (has_thread)
		sleeps_for(pid, pid, SIGALRM);
	else
		CHECK(sleeps(pid, pid, &made[0], 1, &made[1]));
	kill(pid, SIGALRM);
	UNTIL(atomic_load(&made[2]) == 2);
	OK(give(id));
	OK(give(id));
	JOIN(pid);
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
