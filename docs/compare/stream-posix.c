/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A stream of records from a producer to a consumer, by POSIX: a ring in shared memory, and two semaphores that count.
 *
 *	stream-posix produce COUNT	stream-posix consume
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 1024
#define END UINT64_MAX

struct record {
	uint64_t number, words[7];
};

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void wait_for(sem_t *semaphore)
{
	int error;

	while ((error = sem_wait(semaphore)) && errno == EINTR)
		;
	must(error == 0, "stream: wait");
}

int main(int argc, char **argv)
{
	struct record record, *ring;
	uint64_t sum = 0, records = 0;
	int memory;
	sem_t *filled, *room;

	must((memory = shm_open("/compare-stream", O_CREAT | O_RDWR, 0600)) >= 0, "stream: shm_open");
	must(ftruncate(memory, SLOTS * sizeof *ring) == 0, "stream: ftruncate");
	ring = mmap(NULL, SLOTS * sizeof *ring, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	must(ring != MAP_FAILED, "stream: mmap");
	must((filled = sem_open("/compare-filled", O_CREAT, 0600, 0)) != SEM_FAILED, "stream: sem_open");
	must((room = sem_open("/compare-room", O_CREAT, 0600, SLOTS)) != SEM_FAILED, "stream: sem_open");
	if (argc > 2 && !strcmp(argv[1], "produce")) {
		uint64_t count = strtoull(argv[2], NULL, 10);
		for (uint64_t n = 0; n <= count; n++) {
			record.number = n < count ? n : END;
			for (int i = 0; i < 7; i++)
				record.words[i] = record.number * (i + 3);
			wait_for(room);
			ring[n % SLOTS] = record;
			must(sem_post(filled) == 0, "stream: post");
		}
		printf("stream: %llu records sent\n", (unsigned long long)count);
	} else {
		for (;;) {
			wait_for(filled);
			if (records == 0) {
				/* Both have everything open now. */
				shm_unlink("/compare-stream");
				sem_unlink("/compare-filled");
				sem_unlink("/compare-room");
			}
			record = ring[records % SLOTS];
			must(sem_post(room) == 0, "stream: post");
			if (record.number == END)
				break;
			for (int i = 0; i < 7; i++)
				if (record.number != records || record.words[i] != record.number * (i + 3))
					return fprintf(stderr, "stream: record %llu is wrong\n", (unsigned long long)records), 1;
			sum += record.words[6];
			records++;
		}
		printf("stream: %llu records, sum %llu\n", (unsigned long long)records, (unsigned long long)sum);
	}
	return 0;
}
