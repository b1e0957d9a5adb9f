/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that compute on one array in rounds, by POSIX: shared memory, and a barrier of threads in it.
 *
 *	rounds-posix NUMBER PARTIES ROUNDS
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CELLS 16

struct shared {
	atomic_int ready;
	pthread_barrier_t barrier;
	uint64_t cells[];
};

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void meet(struct shared *shared)
{
	errno = pthread_barrier_wait(&shared->barrier);
	must(errno == 0 || errno == PTHREAD_BARRIER_SERIAL_THREAD, "rounds: barrier");
}

int main(int argc, char **argv)
{
	unsigned number = argc > 3 ? atoi(argv[1]) : 0, parties = argc > 3 ? atoi(argv[2]) : 1;
	uint64_t rounds = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000, sum = 0;
	unsigned all = parties * CELLS, first = number * CELLS;
	size_t bytes = sizeof(struct shared) + 2 * all * sizeof(uint64_t);
	pthread_barrierattr_t attributes;
	int memory;

	must((memory = shm_open("/compare-rounds", O_CREAT | O_RDWR, 0600)) >= 0, "rounds: shm_open");
	must(ftruncate(memory, bytes) == 0, "rounds: ftruncate");
	struct shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	must(shared != MAP_FAILED, "rounds: mmap");
	if (number == 0) {
		pthread_barrierattr_init(&attributes);
		pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
		errno = pthread_barrier_init(&shared->barrier, &attributes, parties);
		must(errno == 0, "rounds: barrier");
		atomic_store(&shared->ready, 1);
	}
	while (!atomic_load(&shared->ready))
		sched_yield();
	uint64_t *cells = shared->cells;
	for (unsigned i = first; i < first + CELLS; i++)
		cells[i] = i;
	meet(shared);
	if (number == 0)
		must(shm_unlink("/compare-rounds") == 0, "rounds: unlink");
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t *now = cells + round % 2 * all, *next = cells + (round + 1) % 2 * all;
		for (unsigned i = first; i < first + CELLS; i++)
			next[i] = now[(i + all - 1) % all] + now[i] + now[(i + 1) % all] + 1;
		meet(shared);
	}
	for (unsigned i = 0; i < all; i++)
		sum += cells[rounds % 2 * all + i] * (i + 1);
	printf("rounds: process %u: %llu rounds, sum %llu\n", number, (unsigned long long)rounds, (unsigned long long)sum);
	return 0;
}
