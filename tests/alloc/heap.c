// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program without an MPI that uses malloc(3) and fork(2) as man pages have them, and says what is not so.
//
//   heap in|out         all cases; large blocks must lie in the region's file, or must not
//   heap hold FILE      says "ready", and once FILE is gone whether its memory is as it was
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("not so: %s, line %d, in process %d: %s\n", #what, __LINE__, getpid(), strerror(errno)); \
	fflush(stdout); _exit(1); } } while (0)
#define MIB ((size_t)1 << 20)

static int wanted;
// The compiler knows what malloc does, and would leave out what is not used.
static void *volatile sink;
static volatile size_t huge = SIZE_MAX / 2;

// Whether an address lies in a mapping of a file that is shared: of the region, or of nothing else here.
static int is_shared(const void *at)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (!found && fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char mode[5];
		CHECK(sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3);
		found = (uintptr_t)at >= from && (uintptr_t)at < to && mode[3] == 's';
	}
	fclose(maps);
	return found;
}

static unsigned char value(size_t i, unsigned seed)
{
	return (unsigned char)((i * 2654435761u >> 13) + seed);
}

static void fill(unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i += 61)
		at[i] = value(i, seed);
	at[bytes - 1] = (unsigned char)seed;
}

static int is_filled(const unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i += 61)
		if (i != bytes - 1 && at[i] != value(i, seed))
			return 0;
	return at[bytes - 1] == (unsigned char)seed;
}

static int is_zero(const unsigned char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (at[i])
			return 0;
	return 1;
}

static void calls(void)
{
	CHECK(!is_shared(sink = malloc(100)));
	free(sink);
	unsigned char *a = malloc(MIB);
	CHECK(a && (uintptr_t)a % 16 == 0 && is_shared(a) == wanted && malloc_usable_size(a) >= MIB);
	fill(a, MIB, 1);
	// What was used before is zero again.
	free(a);
	for (int i = 0; i < 3; i++) {
		a = calloc(1024, 1024);
		CHECK(a && is_shared(a) == wanted && is_zero(a, MIB));
		fill(a, MIB, 2);
		free(a);
	}
	errno = 77;
	CHECK(!calloc(huge, 3) && errno == ENOMEM);
	a = malloc(MIB);
	fill(a, MIB, 3);
	a = realloc(a, 3 * MIB);
	CHECK(a && is_shared(a) == wanted && is_filled(a, MIB, 3));
	fill(a, 3 * MIB, 4);
	a = realloc(a, 100);
	CHECK(a && a[61] == value(61, 4) && !is_shared(a));
	a = reallocarray(a, 5, MIB);
	CHECK(a && a[61] == value(61, 4));
	free(a);
	errno = 0;
	CHECK(!reallocarray(NULL, huge, 3) && errno == ENOMEM);
	for (size_t align = 16; align <= 64 * 1024; align *= 4) {
		void *at = NULL;
		CHECK(posix_memalign(&at, align, MIB) == 0 && (uintptr_t)at % align == 0 && is_shared(at) == (wanted && align <= 4096));
		fill(at, MIB, 5);
		free(at);
		at = sink = aligned_alloc(align, MIB);
		CHECK(at && (uintptr_t)at % align == 0);
		free(at);
		at = sink = memalign(align, MIB);
		CHECK(at && (uintptr_t)at % align == 0);
		free(at);
	}
	void *at = NULL;
	CHECK(posix_memalign(&at, 24, MIB) == EINVAL && posix_memalign(&at, 2, MIB) == EINVAL);
	free(NULL);
	CHECK(malloc_usable_size(NULL) == 0);
	// free(3) keeps errno.
	a = malloc(MIB);
	errno = 42;
	free(a);
	CHECK(errno == 42);
	// More than there is room for comes from elsewhere, and goes back there.
	unsigned char *all[64];
	int there = 0;
	for (int i = 0; i < 64; i++) {
		all[i] = malloc(MIB);
		CHECK(all[i]);
		fill(all[i], MIB, i);
		there += is_shared(all[i]);
	}
	CHECK(wanted ? there >= 8 && there <= 16 : there == 0);
	for (int i = 0; i < 64; i++) {
		CHECK(is_filled(all[i], MIB, i));
		free(all[i]);
	}
	a = malloc(MIB);
	CHECK(is_shared(a) == wanted);
	free(a);
	// What was refused for want of room is there again when blocks that are all smaller are given back.
	unsigned char *small[400];
	for (int i = 0; i < 400; i++)
		CHECK(small[i] = malloc(70 << 10));
	CHECK(!is_shared(small[399]) && !is_shared(sink = malloc(MIB)));
	free(sink);
	for (int i = 0; i < 2; i++) {
		free(small[i]);
		CHECK(is_shared(small[i] = malloc(70 << 10)) == wanted);
	}
	CHECK(!is_shared(sink = malloc(MIB)));
	free(sink);
	for (int i = 0; i < 400; i++)
		free(small[i]);
	a = malloc(MIB);
	CHECK(is_shared(a) == wanted);
	free(a);
}

static void *thread(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;
	unsigned char *at[16] = {0};
	size_t bytes[16] = {0};
	for (int i = 0; i < 4000; i++) {
		state = state * 1664525u + 1013904223u;
		int k = state >> 28;
		if (at[k]) {
			CHECK(is_filled(at[k], bytes[k], (unsigned)k));
			if (state & 0x1000000) {
				size_t now = bytes[k] / 2 + (state >> 8) % 200000 + 1;
				at[k] = realloc(at[k], now);
				// The last byte of what is less is another one.
				size_t both = (now < bytes[k] ? now : bytes[k]) - 1;
				CHECK(at[k]);
				for (size_t b = 0; b < both; b += 61)
					CHECK(at[k][b] == value(b, (unsigned)k));
				fill(at[k], bytes[k] = now, (unsigned)k);
				continue;
			}
			free(at[k]);
			at[k] = NULL;
			continue;
		}
		bytes[k] = (state >> 6) % 400000 + 1;
		at[k] = state & 0x2000000 ? malloc(bytes[k]) : calloc(bytes[k], 1);
		CHECK(at[k] && (state & 0x2000000 || is_zero(at[k], bytes[k])));
		fill(at[k], bytes[k], (unsigned)k);
	}
	for (int k = 0; k < 16; k++)
		free(at[k]);
	return NULL;
}

static int wait_for(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static void forks(void)
{
	unsigned char *a = malloc(MIB), *b = malloc(2 * MIB), *gone = malloc(MIB);
	fill(a, MIB, 10);
	fill(b, 2 * MIB, 11);
	free(gone);
	for (int round = 0; round < 20; round++) {
		int to[2], from[2];
		char c = 0;
		CHECK(pipe(to) == 0 && pipe(from) == 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			// As it was, and its own.
			CHECK(is_filled(a, MIB, 10 + round) && is_filled(b, 2 * MIB, 11) && !is_shared(a));
			CHECK(read(to[0], &c, 1) == 1);
			CHECK(is_filled(a, MIB, 10 + round));
			fill(a, MIB, 99);
			CHECK(write(from[1], "x", 1) == 1);
			// A child may have children, give back what it has, and take more.
			pid_t grandchild = fork();
			CHECK(grandchild >= 0);
			if (grandchild == 0) {
				CHECK(is_filled(a, MIB, 99) && is_filled(b, 2 * MIB, 11));
				free(a);
				_exit(0);
			}
			CHECK(wait_for(grandchild) == 0 && is_filled(a, MIB, 99));
			b = realloc(b, 4 * MIB);
			CHECK(b && is_filled(b, 2 * MIB, 11));
			free(a);
			free(b);
			for (int i = 0; i < 50; i++) {
				sink = malloc(MIB);
				CHECK(sink);
				memset(sink, i, MIB);
				free(sink);
			}
			_exit(0);
		}
		fill(a, MIB, 11 + round);
		CHECK(write(to[1], "x", 1) == 1 && read(from[0], &c, 1) == 1);
		CHECK(is_filled(a, MIB, 11 + round) && is_filled(b, 2 * MIB, 11));
		CHECK(wait_for(child) == 0 && is_filled(a, MIB, 11 + round));
		close(to[0]), close(to[1]), close(from[0]), close(from[1]);
	}
	CHECK(is_shared(a) == wanted);
	// Without a copy: they execute at once.
	extern char **environ;
	char *words[] = {"true", NULL};
	pid_t spawned;
	CHECK(posix_spawnp(&spawned, "true", NULL, NULL, words, environ) == 0 && wait_for(spawned) == 0);
	CHECK(system("exit 3") == 3 << 8);
	free(a);
	free(b);
}

// Threads allocate while others fork.
static void forks_among_threads(void)
{
	pthread_t threads[3];
	unsigned char *a = malloc(MIB);
	fill(a, MIB, 33);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, thread, (void *)(uintptr_t)(i + 7)) == 0);
	for (int i = 0; i < 30; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			// Whatever another thread of the parent was doing.
			alarm(20);
			for (int k = 0; k < 5; k++) {
				sink = malloc(MIB);
				CHECK(sink);
				memset(sink, k, MIB);
				free(sink);
			}
			CHECK(is_filled(a, MIB, 33));
			free(a);
			_exit(0);
		}
		CHECK(wait_for(child) == 0);
	}
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	free(a);
}

static char stack[64 << 10] __attribute__((aligned(16)));

static void *fork_here(void *unused)
{
	(void)unused;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	return child > 0 ? wait_for(child) == 0 ? (void *)1 : NULL : (void *)2;
}

// Guard pages, stacks in a block.
static void odd_pages(void)
{
	unsigned char *a = NULL, *on;
	void *result;
	pthread_attr_t attr;
	pthread_t thread;
	CHECK(posix_memalign((void **)&a, 4096, MIB) == 0);
	fill(a, MIB, 8);
	CHECK(mprotect(a, 4096, PROT_NONE) == 0 && mprotect(a + 8 * 4096, 4096, PROT_NONE) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		for (size_t i = 0; i < MIB - 1; i += 61)
			CHECK(i < 4096 || i / 4096 == 8 || a[i] == value(i, 8));
		_exit(0);
	}
	CHECK(wait_for(child) == 0);
	CHECK(mprotect(a, 4096, PROT_READ | PROT_WRITE) == 0 && mprotect(a + 8 * 4096, 4096, PROT_READ | PROT_WRITE) == 0);
	CHECK(is_filled(a, MIB, 8));
	free(a);
	on = malloc(MIB);
	// In a VM the kernel has no shared futex(2) in such memory, at which it wakes who waits for a thread's end.
	for (int in = 0; in < (getenv("ALLOC_TEST_NO_STACKS") ? 1 : 2); in++) {
		CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, in ? (void *)on : stack, in ? MIB : sizeof stack) == 0);
		CHECK(pthread_create(&thread, &attr, fork_here, NULL) == 0 && pthread_join(thread, &result) == 0);
		CHECK(result == (in && wanted ? (void *)2 : (void *)1));
		pthread_attr_destroy(&attr);
	}
	free(on);
}

static void limit(void)
{
	unsigned char *a = malloc(MIB);
	fill(a, MIB, 1);
	errno = 0;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	if (wanted)
		CHECK(child == -1 && errno == ENOMEM);
	else
		CHECK(wait_for(child) == 0);
	CHECK(system("exit 4") == 4 << 8);
	free(a);
	child = fork();
	if (child == 0)
		_exit(0);
	CHECK(child > 0 && wait_for(child) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	if (!strcmp(argv[1], "hold")) {
		unsigned char *a = malloc(4 * MIB);
		CHECK(a && is_shared(a));
		fill(a, 4 * MIB, 5);
		puts("ready");
		fflush(stdout);
		while (access(argv[2], F_OK) == 0)
			usleep(10000);
		CHECK(is_filled(a, 4 * MIB, 5));
		fill(a, 4 * MIB, 6);
		CHECK(is_filled(a, 4 * MIB, 6));
		free(a);
		puts("held");
		return 0;
	}
	wanted = !strcmp(argv[1], "in");
	if (argc > 2) {
		limit();
		puts("limited");
		return 0;
	}
	calls();
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, thread, (void *)(uintptr_t)(i + 1)) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	forks();
	forks_among_threads();
	odd_pages();
	puts("all as it should be");
	return 0;
}
