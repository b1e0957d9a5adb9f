/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the programs that try the guest driver have in common. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../driver/isthmus.h"

#define MIB (1ul << 20)
#define PAGE 4096ul
#define NOBODY 65534

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what, 0))
#define OK(call) okay(__LINE__, #call, (long)(call))
#define FAILS(call, error)                                                          \
	do {                                                                        \
		errno = 0;                                                          \
		long got_ = (long)(call);                                           \
		if (got_ != -1 || errno != (error))                                 \
			fail(__LINE__, #call " fails with " #error, got_ == -1 ? errno : -1); \
	} while (0)

static const char *node;

static inline void fail(int line, const char *what, int error)
{
	printf("driver.c:%d: %s%s%s\n", line, what, error ? ", and not: " : "", error > 0 ? strerror(error) : error ? "it succeeds" : "");
	fflush(stdout);
	_exit(1);
}

static inline long okay(int line, const char *what, long got)
{
	if (got == -1)
		fail(line, what, errno);
	return got;
}

static inline int node_open(int access)
{
	return (int)OK(open(node, access | O_CLOEXEC));
}

static inline int allow_pages(int fd, const struct isthmus_range *ranges, uint32_t count, uint32_t flags, uint32_t owner, uint32_t pages)
{
	struct isthmus_allow a = {(uintptr_t)ranges, count, flags, owner, pages};

	return ioctl(fd, ISTHMUS_ALLOW, &a);
}

static inline int allow(int fd, const struct isthmus_range *ranges, uint32_t count, uint32_t flags)
{
	return allow_pages(fd, ranges, count, flags, 0, 0);
}

/* A descriptor with one range. */
static inline int allowed(uint64_t offset, uint64_t bytes, uint32_t flags)
{
	int fd = node_open(O_RDWR);
	struct isthmus_range range = {offset, bytes, flags, 0};

	OK(allow(fd, &range, 1, ISTHMUS_MAY_RING));
	return fd;
}

static inline void *map(int fd, uint64_t offset, size_t bytes, int protection)
{
	return mmap(NULL, bytes, protection, MAP_SHARED, fd, (off_t)offset);
}

static inline volatile unsigned char *mapped(int fd, uint64_t offset, size_t bytes, int protection)
{
	return (volatile unsigned char *)OK(map(fd, offset, bytes, protection));
}

static inline int set_member(int fd, uint32_t member, uint32_t id)
{
	struct isthmus_member m = {member, id};

	return ioctl(fd, ISTHMUS_MEMBER, &m);
}

static inline int ring(int fd, unsigned long member, unsigned long vector)
{
	return ioctl(fd, ISTHMUS_RING, ISTHMUS_RING_ARG(member, vector));
}

static inline int ready(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	OK(poll(&p, 1, 0));
	return p.revents;
}

/* Runs this in a child as an ordinary user. */
static inline void as_user(void (*what)(int), int fd)
{
	pid_t pid = (pid_t)OK(fork());
	int status;

	if (pid == 0) {
		OK(setgid(NOBODY));
		OK(setuid(NOBODY));
		what(fd);
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0);
}

static inline struct isthmus_info info(int fd)
{
	struct isthmus_info i;

	OK(ioctl(fd, ISTHMUS_INFO, &i));
	return i;
}

static uint64_t seed = 88172645463325252ull;

static inline uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static inline void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0) {
		printf("%s: %s\n", path, strerror(errno));
		_exit(1);
	}
	close(fd);
}

/* The driver takes a device that it has had before. */
static inline void bind_device(const char *device)
{
	put("/sys/bus/pci/drivers/isthmus/bind", device);
	for (int i = 0; i < 100 && access(node, F_OK); i++)
		usleep(10000);
}

static inline long free_pages(void)
{
	char line[128];
	long kib = 0;

	/* What is kept for each processor counts, too. */
	put("/proc/sys/vm/drop_caches", "3");
	put("/proc/sys/vm/stat_refresh", "1");
	FILE *file = fopen("/proc/meminfo", "r");
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "MemFree: %ld", &kib) == 1)
			break;
	fclose(file);
	return kib / 4;
}

static inline int ascending(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

/*
 * Runs cycles, after and before which the driver has no device, and looks whether memory is lost in them. The kernel keeps some megabytes
 * at times, and its caches grow by steps and shrink, so a window of cycles has as much free memory as was free after any of ten of them.
 * What leaks is lost in each window: the median of the windows is judged.
 */
static inline void count_cycles(const char *device, int count, void (*cycle)(const char *, bool))
{
	enum { WINDOWS = 10, LOOKS = 10 };
	const int window = count >= WINDOWS ? count / WINDOWS : 1;
	const int step = window >= LOOKS ? window / LOOKS : 1;
	long lost[WINDOWS + 1], before = 0, most = 0;
	int windows = -1;

	for (int i = 1; i <= count; i++) {
		cycle(device, i % 2);
		if (windows == WINDOWS)
			continue;
		if (i % step == 0 || i % window == 0) {
			long now_free = free_pages();

			most = now_free > most ? now_free : most;
		}
		if (i % window)
			continue;
		if (windows >= 0)
			lost[windows] = before - most;
		windows++;
		before = most;
		most = 0;
	}
	put("/sys/bus/pci/drivers/isthmus/bind", device);
	printf("%d cycles; pages lost in windows of %d:", count, window);
	for (int i = 0; i < windows; i++)
		printf(" %ld", lost[i]);
	printf("\n");
	if (windows < 5)
		return; /* too few to judge */
	qsort(lost, windows, sizeof(lost[0]), ascending);
	/* A kernel that checks its memory keeps what was freed for a while. */
	CHECK(lost[windows / 2] < window || getenv("FREED_LATE"));
}

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
