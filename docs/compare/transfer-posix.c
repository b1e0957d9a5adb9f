/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that move amounts between accounts, by POSIX: shared memory with a robust mutex, and a note of what the two
 * balances were, from which the next owner puts a half-made transfer right.
 *
 *	transfer-posix NUMBER PARTIES TRANSFERS
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

#define ACCOUNTS 16
#define EACH 1000

struct shared {
	atomic_uint ready, arrived;
	pthread_mutex_t mutex;
	/* The note: holds while `under_way`. Atomics, so that stores are not moved past each other. */
	atomic_uint under_way;
	_Atomic uint64_t from, to, was[2];
	_Atomic uint64_t balance[ACCOUNTS];
};

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

/* Takes the mutex; returns whether its owner had died and was in the middle of a transfer. */
static unsigned take(struct shared *shared)
{
	unsigned half = 0;

	errno = pthread_mutex_lock(&shared->mutex);
	if (errno == EOWNERDEAD) {
		half = shared->under_way;
		if (half) {
			shared->balance[shared->from] = shared->was[0];
			shared->balance[shared->to] = shared->was[1];
			shared->under_way = 0;
		}
		errno = pthread_mutex_consistent(&shared->mutex);
	}
	must(errno == 0, "transfer: lock");
	return half;
}

static void give(struct shared *shared)
{
	errno = pthread_mutex_unlock(&shared->mutex);
	must(errno == 0, "transfer: unlock");
}

int main(int argc, char **argv)
{
	unsigned number = argc > 3 ? atoi(argv[1]) : 0, parties = argc > 3 ? atoi(argv[2]) : 1;
	unsigned seed = number + 1, mended = 0;
	uint64_t transfers = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000, total = 0;
	pthread_mutexattr_t attributes;
	int memory;

	must((memory = shm_open("/compare-transfer", O_CREAT | O_RDWR, 0600)) >= 0, "transfer: shm_open");
	must(ftruncate(memory, sizeof(struct shared)) == 0, "transfer: ftruncate");
	struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	must(shared != MAP_FAILED, "transfer: mmap");
	if (number == 0) {
		pthread_mutexattr_init(&attributes);
		pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
		errno = pthread_mutex_init(&shared->mutex, &attributes);
		must(errno == 0, "transfer: mutex");
		for (int i = 0; i < ACCOUNTS; i++)
			shared->balance[i] = EACH;
		shared->ready = 1;
	}
	while (!shared->ready)
		sched_yield();
	shared->arrived++;
	while (shared->arrived < parties)
		sched_yield();
	if (number == 0)
		must(shm_unlink("/compare-transfer") == 0, "transfer: unlink");
	for (uint64_t done = 0; done < transfers;) {
		uint64_t from = rand_r(&seed) % ACCOUNTS, to = rand_r(&seed) % ACCOUNTS, amount = rand_r(&seed) % 10;

		if (from == to)
			continue;
		mended += take(shared);
		if (shared->balance[from] < amount)
			amount = shared->balance[from];
		shared->from = from;
		shared->to = to;
		shared->was[0] = shared->balance[from];
		shared->was[1] = shared->balance[to];
		shared->under_way = 1;
		shared->balance[from] -= amount;
		shared->balance[to] += amount;
		shared->under_way = 0;
		give(shared);
		done++;
	}
	mended += take(shared);
	for (int i = 0; i < ACCOUNTS; i++)
		total += shared->balance[i];
	give(shared);
	printf("transfer: process %u: %llu transfers, total %llu, %u put right\n", number, (unsigned long long)transfers,
	       (unsigned long long)total, mended);
	return 0;
}
