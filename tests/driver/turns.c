/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Turns that go round three places, by semaphores of System V IPC, with pauses about as long as a process polls before it sleeps:
 * a wake-up that gets lost shows as a turn that takes as long as the longest sleep. One process in each place of a job:
 *
 *	turns ROUNDS		as rank ISTHMUS_RANK of ISTHMUS_SIZE
 *	turns asleep SECONDS	how often a process that waits so long for nothing is scheduled
 *
 * The first prints the median and the longest turn. Each place that has a device of the guest driver's prints its interrupts.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void change(int id, unsigned short which, short by)
{
	struct sembuf op = {which, by, 0};

	while (semop(id, &op, 1))
		if (errno != EINTR) {
			perror("turns: semop");
			exit(1);
		}
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Voluntary switches of a process. */
static long switches(pid_t pid)
{
	char line[128];
	long n = -1;

	snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
	FILE *status = fopen(line, "r");
	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "voluntary_ctxt_switches: %ld", &n);
	if (status)
		fclose(status);
	return n;
}

static int asleep(int seconds)
{
	int id = semget(IPC_PRIVATE, 1, 0600), status;
	pid_t pid = fork();

	if (id < 0 || pid < 0)
		return 1;
	if (pid == 0) {
		change(id, 0, -1);
		_exit(0);
	}
	/* It polls first. */
	sleep(1);
	long before = switches(pid);
	sleep((unsigned int)seconds);
	long after = switches(pid);
	change(id, 0, 1);
	if (waitpid(pid, &status, 0) != pid || status != 0 || before < 0)
		return 1;
	printf("asleep for %d s: %ld wake-ups\n", seconds, after - before);
	/* It looks for itself every 5 s. */
	return after - before > seconds / 5 + 1;
}

int main(int count, char **words)
{
	if (count == 3 && strcmp(words[1], "asleep") == 0)
		return asleep(atoi(words[2]));
	const char *rank_text = getenv("ISTHMUS_RANK"), *size_text = getenv("ISTHMUS_SIZE");
	if (count != 2 || !rank_text || !size_text) {
		fprintf(stderr, "turns ROUNDS, in a job\n");
		return 2;
	}
	int rounds = atoi(words[1]), rank = atoi(rank_text), size = atoi(size_text);
	unsigned int seed = 77u + (unsigned int)rank;
	double *turns = malloc((size_t)rounds * sizeof(*turns));
	int id = semget(0x7475, size, IPC_CREAT | 0600);

	if (id < 0 || !turns) {
		perror("turns: semget");
		return 1;
	}
	for (int i = 0; i < rounds; i++) {
		double begun = now();

		if (rank > 0)
			change(id, (unsigned short)rank, -1);
		/* From none to some longer than it takes to go to sleep. */
		for (double until = now() + (double)(rand_r(&seed) % 400) * 1e-6; now() < until;)
			;
		change(id, (unsigned short)((rank + 1) % size), 1);
		if (rank == 0)
			change(id, 0, -1);
		/* In the first turn the others may still be starting. */
		turns[i] = i ? now() - begun : 0;
	}
	if (rank == 0) {
		qsort(turns, (size_t)rounds, sizeof(*turns), order);
		printf("turns: median %.0f us, longest %.0f us\n", turns[rounds / 2] * 1e6, turns[rounds - 1] * 1e6);
	}
	char line[512];
	long all = 0;
	FILE *interrupts = fopen("/proc/interrupts", "r");
	while (interrupts && fgets(line, sizeof(line), interrupts)) {
		char *at = strstr(line, "isthmus") ? strchr(line, ':') : NULL;
		if (at)
			for (char *end = at + 1;; at = end) {
				long n = strtol(at + 1, &end, 10);
				if (end == at + 1)
					break;
				all += n;
			}
	}
	if (rank > 0)
		printf("interrupts: %ld\n", all);
	return 0;
}
