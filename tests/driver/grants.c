/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Pages that processes grant by the guest driver: isthmus(4). As root, in a VM with a device that no agent uses:
 *
 *	grants NODE CASE		one of the cases below
 *	grants NODE gone		says "ready", and goes on once the device is unplugged
 *	grants NODE cycles PCI N	N times: processes grant pages, one of them is killed, and the device is taken away
 *
 * The region behind it has at least 64 MiB. Ends with 0 if all holds, else says what does not.
 */
#include "driver.h"

#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>

#define POOL (32 * MIB)
#define POOL_BYTES (16 * MIB)
#define POOL_PAGES (POOL_BYTES / PAGE)
#define TABLE (POOL - POOL_PAGES * 8)
#define OWNER 7

/* The pool and the grant table, as other virtual machines see them. */
static volatile unsigned char *pool;
static const volatile uint64_t *table;

static int set_pool(int fd, uint64_t offset, uint64_t bytes, uint64_t at)
{
	struct isthmus_pool place = {offset, bytes, at};

	return ioctl(fd, ISTHMUS_POOL, &place);
}

/* A descriptor by which so many pages can be granted. */
static int granter(uint32_t owner, uint32_t pages)
{
	int fd = node_open(O_RDWR), all = allowed(0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);

	OK(set_pool(fd, POOL, POOL_BYTES, TABLE));
	OK(allow_pages(fd, NULL, 0, 0, owner, pages));
	/* A mapping keeps its descriptor open, so it is of another one. */
	pool = mapped(all, POOL, POOL_BYTES, PROT_READ | PROT_WRITE);
	table = (const volatile uint64_t *)mapped(all, TABLE, POOL - TABLE, PROT_READ);
	close(all);
	return fd;
}

static long grant_as(int fd, const volatile void *at, uint32_t count, struct isthmus_page *results, uint32_t flags)
{
	struct isthmus_pages pages = {(uintptr_t)at, count, flags, (uintptr_t)results};

	return ioctl(fd, ISTHMUS_GRANT, &pages);
}

static long grant(int fd, const volatile void *at, uint32_t count, struct isthmus_page *results)
{
	return grant_as(fd, at, count, results, ISTHMUS_SPLIT);
}

static long take_back(int fd, const volatile void *at, uint32_t count)
{
	struct isthmus_pages pages = {(uintptr_t)at, count, 0, 0};

	return ioctl(fd, ISTHMUS_REVOKE, &pages);
}

/* Says that nobody writes to pages any more that were kept. */
static long release_kept(int fd, const struct isthmus_page *pages, uint32_t count)
{
	struct isthmus_pages named = {0, count, 0, (uintptr_t)pages};

	return ioctl(fd, ISTHMUS_RELEASE, &named);
}

static bool stands(const struct isthmus_page *page)
{
	return table[page->page] == page->word;
}

static volatile unsigned char *page_of(const struct isthmus_page *page)
{
	CHECK(page->why == ISTHMUS_GRANTED && page->page < POOL_PAGES);
	return pool + (size_t)page->page * PAGE;
}

static volatile unsigned char *memory(size_t pages)
{
	return (volatile unsigned char *)OK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* Pages that were written, without huge ones. */
static volatile unsigned char *written(size_t pages)
{
	volatile unsigned char *at = memory(pages);

	madvise((void *)at, pages * PAGE, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < pages; i++)
		at[i * PAGE] = (unsigned char)(i + 1);
	return at;
}

/* The system is busy with a page now and then. */
static void grant_all_as(int fd, const volatile unsigned char *at, uint32_t count, struct isthmus_page *results, uint32_t flags)
{
	for (int i = 0; i < 1000; i++) {
		long got = OK(grant_as(fd, at, count, results, flags));
		if (got == (long)count)
			return;
		usleep(1000);
	}
	printf("of %u pages some are not granted, such as the first: %u\n", count, results[0].why);
	_exit(1);
}

static void grant_all(int fd, const volatile unsigned char *at, uint32_t count, struct isthmus_page *results)
{
	grant_all_as(fd, at, count, results, ISTHMUS_SPLIT);
}

static void keep_all(int fd, const volatile unsigned char *at, uint32_t count, struct isthmus_page *results)
{
	grant_all_as(fd, at, count, results, ISTHMUS_SPLIT | ISTHMUS_KEEP);
}

static uint64_t granted_pages(int fd)
{
	return info(fd).granted;
}

/* Pages that were freed are cleared before they are granted again, and others' caches of the system hold some. */
static void wait_for_granted(int fd, uint64_t count)
{
	for (int i = 0; i < 5000 && granted_pages(fd) != count; i++)
		usleep(1000);
	if (granted_pages(fd) != count)
		printf("%llu pages are granted, and not %llu\n", (unsigned long long)granted_pages(fd), (unsigned long long)count);
	CHECK(granted_pages(fd) == count);
}

/* ---- Cases ---- */

static void user_pool(int fd)
{
	struct isthmus_page results[2];

	FAILS(set_pool(fd, POOL, POOL_BYTES, TABLE), EPERM);
	FAILS(grant(fd, written(1), 1, results), EACCES);
	FAILS(take_back(fd, written(1), 1), EACCES);
}

static void place(void)
{
	int fd = node_open(O_RDWR), none = node_open(O_RDWR);
	uint64_t bytes = info(fd).bytes;
	struct isthmus_range all = {0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE, 0};
	struct isthmus_page results[2];
	const uint64_t bad[][3] = {
		{POOL + PAGE, POOL_BYTES, TABLE}, {POOL, POOL_BYTES + PAGE, TABLE}, {POOL, POOL_BYTES, TABLE + 8}, {POOL, POOL_BYTES, TABLE + PAGE},
		{POOL, POOL_BYTES, -PAGE}, {bytes, POOL_BYTES, TABLE}, {-2 * MIB, 4 * MIB, TABLE}, {POOL, -2 * MIB, TABLE}, {0, POOL_BYTES, 0},
		{POOL, 0, TABLE}, {POOL, 0, 0},
	};

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		FAILS(set_pool(fd, bad[i][0], bad[i][1], bad[i][2]), EINVAL);
	FAILS(ioctl(fd, ISTHMUS_POOL, 8), EFAULT);
	FAILS(allow_pages(fd, &all, 1, 0, 0, 1), EINVAL);
	FAILS(allow_pages(fd, &all, 1, 0, ISTHMUS_OWNERS + 1, 1), EINVAL);
	as_user(user_pool, none);
	/* What is mapped stays mapped, and what was in the memory is there. */
	OK(allow_pages(fd, &all, 1, 0, OWNER, 16));
	volatile unsigned char *at = mapped(fd, POOL - MIB, 4 * MIB, PROT_READ | PROT_WRITE);
	at[0] = 5;
	at[MIB] = 6;
	at[4 * MIB - 1] = 7;
	OK(set_pool(fd, 0, 0, 0));
	CHECK(info(fd).pool == 0);
	FAILS(grant(fd, written(1), 1, results), EOPNOTSUPP);
	OK(set_pool(fd, POOL, POOL_BYTES, TABLE));
	CHECK(info(fd).pool == POOL_PAGES && info(fd).granted == 0 && info(fd).flags == ISTHMUS_PAGES);
	/* What is in the pool now is cleared. */
	CHECK(at[0] == 5 && at[MIB] == 0 && at[4 * MIB - 1] == 0);
	OK(set_pool(fd, POOL, POOL_BYTES, TABLE));
	volatile unsigned char *mine = written(2);
	grant_all(fd, mine, 2, results);
	OK(set_pool(fd, POOL, POOL_BYTES, TABLE));
	FAILS(set_pool(fd, POOL, POOL_BYTES / 2, TABLE), EBUSY);
	FAILS(set_pool(fd, 0, 0, 0), EBUSY);
	munmap((void *)mine, 2 * PAGE);
	wait_for_granted(fd, 0);
	OK(set_pool(fd, 0, 0, 0));
	OK(set_pool(fd, POOL + 2 * MIB, POOL_BYTES, TABLE));
	/* Memory that is mapped of the pool has no pages that could be pinned. */
	volatile unsigned char *pooled = mapped(fd, POOL + 4 * MIB, PAGE, PROT_READ | PROT_WRITE);
	pooled[0] = 1;
	struct iovec there = {(void *)pooled, 1};
	int ends[2];
	OK(pipe(ends));
	/* Linux says EEXIST or EFAULT of it, as the call has it. */
	CHECK(vmsplice(ends[1], &there, 1, 0) == -1);
	/* While a pipe has a page, the memory keeps its place. */
	there.iov_base = (void *)at;
	CHECK(vmsplice(ends[1], &there, 1, 0) == 1);
	FAILS(set_pool(fd, POOL, POOL_BYTES, TABLE), EBUSY);
	CHECK(at[0] == 5);
	char byte;
	CHECK(read(ends[0], &byte, 1) == 1);
	OK(set_pool(fd, POOL, POOL_BYTES, TABLE));
}

static void calls(void)
{
	int fd = granter(OWNER, 64);
	static struct isthmus_page results[ISTHMUS_MOST_PAGES];
	volatile unsigned char *at = written(100);
	struct isthmus_pages pages = {(uintptr_t)at, 1, 0, 8};

	FAILS(grant(fd, at + 1, 1, results), EINVAL);
	FAILS(grant(fd, at, 0, results), EINVAL);
	FAILS(grant(fd, at, ISTHMUS_MOST_PAGES + 1, results), EINVAL);
	FAILS(grant_as(fd, at, 1, results, 4), EINVAL);
	FAILS(grant(fd, (void *)-PAGE, 2, results), EINVAL);
	FAILS(grant(fd, (void *)(1ul << 62), 1, results), EINVAL);
	FAILS(ioctl(fd, ISTHMUS_GRANT, &pages), EFAULT);
	FAILS(ioctl(fd, ISTHMUS_GRANT, 8), EFAULT);
	FAILS(ioctl(fd, ISTHMUS_REVOKE, 8), EFAULT);
	/* Through another process, a forked one, it is not granted. */
	grant_all(fd, at, 4, results);
	pid_t pid = (pid_t)OK(fork());
	int status;
	if (pid == 0) {
		FAILS(grant(fd, at, 4, results), EPERM);
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0);
	/* As many as it may. */
	CHECK(OK(take_back(fd, at, 100)) == 4);
	volatile unsigned char *other = written(100);
	CHECK(OK(grant(fd, other, 100, results)) <= 64);
	CHECK(results[99].why == ISTHMUS_LIMIT);
	munmap((void *)other, 100 * PAGE);
	wait_for_granted(fd, 0);
	/* As many as there are. */
	int large = granter(OWNER, UINT32_MAX);
	volatile unsigned char *all = written(POOL_PAGES + 512);
	long sum = 0;
	for (size_t i = 0; i < POOL_PAGES + 512; i += 512)
		sum += OK(grant(large, all + i * PAGE, 512, results));
	CHECK(sum == POOL_PAGES && results[511].why == ISTHMUS_FULL);
	for (size_t i = 0; i < POOL_PAGES + 512; i++)
		CHECK(all[i * PAGE] == (unsigned char)(i + 1));
	CHECK(granted_pages(large) == POOL_PAGES);
	/* The end of the descriptor moves them back. */
	close(large);
	wait_for_granted(fd, 0);
	for (size_t i = 0; i < POOL_PAGES + 512; i++)
		CHECK(all[i * PAGE] == (unsigned char)(i + 1));
}

static void contents(void)
{
	int fd = granter(OWNER, 64);
	struct isthmus_page results[40], again[40];
	volatile unsigned char *at = written(40);

	grant_all(fd, at, 40, results);
	for (int i = 0; i < 40; i++) {
		volatile unsigned char *there = page_of(&results[i]);
		CHECK(there[0] == i + 1 && stands(&results[i]) && ISTHMUS_OWNER(results[i].word) == OWNER);
		at[i * PAGE + 99] = (unsigned char)(i + 50);
		CHECK(there[99] == i + 50);
		there[4095] = (unsigned char)i;
		CHECK(at[i * PAGE + 4095] == i);
	}
	/* The same again. */
	grant_all(fd, at, 40, again);
	CHECK(memcmp(results, again, sizeof(results)) == 0 && granted_pages(fd) == 40);
	/* Some of them back. */
	CHECK(OK(take_back(fd, at + 3 * PAGE, 30)) == 30);
	wait_for_granted(fd, 10);
	for (int i = 0; i < 40; i++) {
		CHECK(stands(&results[i]) == (i < 3 || i >= 33));
		CHECK(at[i * PAGE] == i + 1 && at[i * PAGE + 99] == i + 50 && at[i * PAGE + 4095] == i);
	}
	CHECK(OK(take_back(fd, at + 3 * PAGE, 30)) == 0);
	/* Pages that nobody wrote yet, and the zero page. */
	volatile unsigned char *fresh = memory(8);
	madvise((void *)fresh, 8 * PAGE, MADV_NOHUGEPAGE);
	CHECK(fresh[0] == 0);
	grant_all(fd, fresh, 8, results);
	for (int i = 0; i < 8; i++) {
		CHECK(page_of(&results[i])[7] == 0);
		fresh[i * PAGE + 7] = 3;
		CHECK(page_of(&results[i])[7] == 3);
	}
	/* On the stack, and of the heap. */
	_Alignas(4096) volatile unsigned char stack[4 * PAGE];
	memset((void *)stack, 9, sizeof(stack));
	grant_all(fd, stack, 4, results);
	CHECK(page_of(&results[2])[5] == 9);
	unsigned char *heap = aligned_alloc(PAGE, 8 * PAGE);
	memset(heap, 8, 8 * PAGE);
	grant_all(fd, heap, 8, results);
	CHECK(page_of(&results[7])[5] == 8);
	free(heap);
	/* Areas next to one another, and a gap. */
	at = written(12);
	OK(mprotect((void *)(at + 4 * PAGE), PAGE, PROT_READ));
	OK(munmap((void *)(at + 6 * PAGE), PAGE));
	CHECK(OK(grant(fd, at, 12, results)) <= 10);
	CHECK(results[4].why == ISTHMUS_READ_ONLY && results[6].why == ISTHMUS_UNMAPPED);
	OK(munmap((void *)at, 6 * PAGE));
	OK(munmap((void *)(at + 7 * PAGE), 5 * PAGE));
}

/* What was granted is no longer that when its pages are freed, or its addresses get other pages. */
static void changes(void)
{
	int fd = granter(OWNER, 256);
	struct isthmus_page results[16], again[16];
	volatile unsigned char *at, *there;

	/* A freed page: its word changes, then it is cleared, and others have it. */
	at = written(16);
	grant_all(fd, at, 16, results);
	there = page_of(&results[5]);
	OK(munmap((void *)at, 16 * PAGE));
	for (int i = 0; i < 16; i++)
		CHECK(!stands(&results[i]));
	wait_for_granted(fd, 0);
	for (int i = 0; i < 5000 && there[0]; i++)
		usleep(1000);
	CHECK(there[0] == 0);
	/* Given back in part. */
	at = written(16);
	grant_all(fd, at, 16, results);
	OK(madvise((void *)(at + 4 * PAGE), 4 * PAGE, MADV_DONTNEED));
	for (int i = 0; i < 16; i++)
		CHECK(stands(&results[i]) == (i < 4 || i >= 8));
	CHECK(at[4 * PAGE] == 0);
	/* Moved to another address, as realloc does. */
	grant_all(fd, at, 16, results);
	volatile unsigned char *moved = (volatile unsigned char *)OK(mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	OK(mremap((void *)at, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved));
	for (int i = 0; i < 16; i++)
		CHECK(!stands(&results[i]));
	CHECK(moved[0] == 1 && moved[15 * PAGE] == 16);
	grant_all(fd, moved, 16, again);
	CHECK(again[3].page == results[3].page && page_of(&again[3])[0] == 4 && granted_pages(fd) == 16);
	/* Protection, locks and hints change nothing. */
	OK(mprotect((void *)moved, 16 * PAGE, PROT_READ));
	OK(mprotect((void *)moved, 16 * PAGE, PROT_READ | PROT_WRITE));
	OK(mlock((void *)moved, 16 * PAGE));
	OK(munlock((void *)moved, 16 * PAGE));
	madvise((void *)moved, 16 * PAGE, MADV_COLD);
	madvise((void *)moved, 16 * PAGE, MADV_PAGEOUT);
	for (int i = 0; i < 16; i++)
		CHECK(stands(&again[i]));
	moved[3 * PAGE] = 44;
	CHECK(page_of(&again[3])[0] == 44);
	/* Locked before it is granted; what comes to the same pages then is as any other. */
	for (int i = 0; i < 3; i++) {
		at = written(16);
		OK(mlock((void *)at, 16 * PAGE));
		grant_all(fd, at, 16, results);
		OK(munmap((void *)at, 16 * PAGE));
		at = written(16);
		for (int k = 0; k < 100; k++)
			for (int page = 0; page < 16; page++)
				CHECK(at[page * PAGE] == page + 1);
		grant_all(fd, at, 16, results);
		for (int k = 0; k < 100 && OK(take_back(fd, at, 16)) == 0; k++)
			usleep(1000);
		OK(munmap((void *)at, 16 * PAGE));
	}
	/* System calls that read and write the pages. */
	int file = (int)OK(open("/proc/self/exe", O_RDONLY | O_DIRECT));
	CHECK(pread(file, (void *)moved, PAGE, 0) == PAGE && memcmp((void *)(moved + 1), "ELF", 3) == 0);
	CHECK(stands(&again[0]) && memcmp((void *)(page_of(&again[0]) + 1), "ELF", 3) == 0);
	close(file);
	/* A pipe that has a page keeps it from moving back, and nothing is lost. */
	int ends[2];
	unsigned char byte;
	struct iovec iov = {(void *)(moved + 3 * PAGE), 1};
	OK(pipe(ends));
	CHECK(vmsplice(ends[1], &iov, 1, 0) == 1);
	CHECK(OK(take_back(fd, moved, 16)) == 15 && granted_pages(fd) == 1);
	for (int i = 0; i < 16; i++)
		CHECK(!stands(&again[i]));
	CHECK(read(ends[0], &byte, 1) == 1 && byte == 44);
	for (int i = 0; i < 1000 && OK(take_back(fd, moved + 3 * PAGE, 1)) != 1; i++)
		usleep(1000);
	CHECK(moved[3 * PAGE] == 44);
	/* And from being granted. */
	CHECK(vmsplice(ends[1], &iov, 1, 0) == 1);
	CHECK(OK(grant(fd, moved, 16, results)) <= 15 && results[3].why == ISTHMUS_BUSY && moved[3 * PAGE] == 44);
	CHECK(read(ends[0], &byte, 1) == 1);
	/* Another program in its place. */
	pid_t pid = (pid_t)OK(fork());
	int status;
	if (pid == 0) {
		int own = granter(OWNER + 1, 64);
		grant_all(own, written(16), 16, results);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0);
	OK(munmap((void *)moved, 16 * PAGE));
	wait_for_granted(fd, 0);
}

/* Forked processes have pages of their own, and what either writes ends the grant before others could see it. */
static void forks(void)
{
	int fd = granter(OWNER, 64), status;
	struct isthmus_page results[8], again[8];
	volatile unsigned char *at = written(8);
	int down[2], up[2];
	char byte;

	OK(pipe(down));
	OK(pipe(up));
	grant_all(fd, at, 8, results);
	pid_t pid = (pid_t)OK(fork());
	if (pid == 0) {
		CHECK(read(down[0], &byte, 1) == 1);
		/* As they were at the fork. */
		for (int i = 0; i < 8; i++)
			CHECK(at[i * PAGE] == i + 1);
		at[0] = 200;
		CHECK(write(up[1], "", 1) == 1);
		CHECK(read(down[0], &byte, 1) == 1);
		CHECK(at[0] == 200);
		_exit(0);
	}
	/* The grant is over before fork returns. */
	for (int i = 0; i < 8; i++)
		CHECK(!stands(&results[i]));
	/* A page that both have is not granted: the other's contents would be shared, too. */
	CHECK(OK(grant(fd, at, 8, again)) >= 0);
	at[PAGE] = 77;
	CHECK(write(down[1], "", 1) == 1);
	CHECK(read(up[0], &byte, 1) == 1);
	CHECK(at[0] == 1 && at[PAGE] == 77);
	at[0] = 55;
	CHECK(OK(grant(fd, at, 2, again)) == 2);
	CHECK(page_of(&again[0])[0] == 55 && page_of(&again[1])[0] == 77);
	CHECK(write(down[1], "", 1) == 1);
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0 && at[0] == 55 && at[PAGE] == 77 && at[2 * PAGE] == 3);
	/* Once it has written, all of it can be granted again. */
	for (int i = 0; i < 8; i++)
		at[i * PAGE] = (unsigned char)(i + 100);
	grant_all(fd, at, 8, results);
	for (int i = 0; i < 8; i++)
		CHECK(page_of(&results[i])[0] == i + 100 && stands(&results[i]));
	/* A page that a child shares before it was ever granted. */
	volatile unsigned char *other = written(4);
	pid = (pid_t)OK(fork());
	if (pid == 0) {
		CHECK(read(down[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(OK(grant(fd, other, 4, again)) == 0 && again[0].why == ISTHMUS_READ_ONLY);
	CHECK(write(down[1], "", 1) == 1);
	OK(waitpid(pid, &status, 0));
}

static void user_keeps(int fd)
{
	FAILS(ioctl(fd, ISTHMUS_SETTLE, OWNER), EPERM);
	FAILS(ioctl(fd, ISTHMUS_SETTLE, 0), EPERM);
}

/* Pages that others write to: they are this process's memory, and nobody else's, until nobody writes there any more. */
static void kept(void)
{
	int fd = granter(OWNER, 64), other = granter(OWNER + 1, 64), status;
	struct isthmus_page results[16], again[16];
	volatile unsigned char *at = written(16);

	as_user(user_keeps, fd);
	FAILS(ioctl(fd, ISTHMUS_SETTLE, ISTHMUS_OWNERS + 1), EINVAL);
	FAILS(release_kept(fd, NULL, 1), EFAULT);
	FAILS(release_kept(fd, results, 0), EINVAL);
	FAILS(release_kept(fd, results, ISTHMUS_MOST_PAGES + 1), EINVAL);
	keep_all(fd, at, 16, results);
	CHECK(info(fd).kept == 16 && granted_pages(fd) == 16);
	for (int i = 0; i < 16; i++) {
		page_of(&results[i])[1] = (unsigned char)(100 + i);
		CHECK(at[i * PAGE] == i + 1 && at[i * PAGE + 1] == 100 + i);
		again[i] = results[i];
	}
	/* Others cannot let them go. */
	FAILS(release_kept(other, results, 16), EPERM);
	struct isthmus_page theirs;
	volatile unsigned char *beside = written(1);
	keep_all(other, beside, 1, &theirs);
	CHECK(OK(release_kept(other, results, 16)) == 0 && info(fd).kept == 17);
	CHECK(OK(release_kept(other, &theirs, 1)) == 1 && OK(take_back(other, beside, 1)) == 1);
	wait_for_granted(fd, 16);
	/* They are not taken back, and a grant finds them where they were, as they were. */
	CHECK(OK(take_back(fd, at, 16)) == 0 && stands(&results[0]) && OK(take_back(other, at, 16)) == 0);
	keep_all(fd, at, 16, again);
	for (int i = 0; i < 16; i++)
		CHECK(again[i].page == results[i].page && page_of(&again[i])[1] == 100 + i && stands(&again[i]));
	grant_all(fd, at, 16, results);
	CHECK(info(fd).kept == 16);
	/* What is not kept beside them is taken back. */
	CHECK(OK(release_kept(fd, results + 4, 4)) == 4 && OK(release_kept(fd, results + 4, 4)) == 0);
	CHECK(OK(take_back(fd, at, 16)) == 4);
	wait_for_granted(fd, 12);
	CHECK(stands(&results[3]) && !stands(&results[4]) && !stands(&results[7]) && stands(&results[8]) && at[5 * PAGE + 1] == 105);
	keep_all(fd, at, 16, results);
	/* A forked child has copies at once, so the grant goes on. */
	for (int round = 0; round < 3; round++) {
		int down[2];
		char byte;

		OK(pipe(down));
		pid_t pid = (pid_t)OK(fork());
		if (pid == 0) {
			CHECK(read(down[0], &byte, 1) == 1);
			for (int i = 0; i < 16; i++) {
				CHECK(at[i * PAGE + 2] == round);
				at[i * PAGE + 2] = 77;
			}
			_exit(0);
		}
		for (int i = 0; i < 16; i++) {
			CHECK(stands(&results[i]));
			page_of(&results[i])[2] = (unsigned char)(round + 1);
			at[i * PAGE + 3] = (unsigned char)(round + 1);
			CHECK(at[i * PAGE + 2] == round + 1 && page_of(&results[i])[3] == round + 1);
		}
		CHECK(write(down[1], "", 1) == 1);
		OK(waitpid(pid, &status, 0));
		CHECK(status == 0 && at[2] == round + 1);
		close(down[0]);
		close(down[1]);
	}
	/* What was protected by a fork is written to first, since others may. */
	volatile unsigned char *protected = written(2);
	as_user(user_keeps, fd);
	CHECK(OK(grant(fd, protected, 2, again)) == 0 && again[0].why == ISTHMUS_READ_ONLY);
	keep_all(fd, protected, 2, again);
	CHECK(page_of(&again[1])[0] == 2 && OK(release_kept(fd, again, 2)) == 2);
	OK(munmap((void *)protected, 2 * PAGE));
	wait_for_granted(fd, 16);
	/* With its address gone a page is nobody's: it is not cleared, nor given to others, though the grant is over. */
	OK(munmap((void *)at, 4 * PAGE));
	OK(madvise((void *)(at + 4 * PAGE), 4 * PAGE, MADV_DONTNEED));
	CHECK(granted_pages(fd) == 16 && at[4 * PAGE + 1] == 0);
	for (int i = 0; i < 16; i++)
		CHECK(stands(&results[i]) == (i >= 8) && page_of(&results[i])[1] == 100 + i);
	/* They count for its limit. */
	volatile unsigned char *more = written(64);
	struct isthmus_page many[64];
	CHECK(OK(grant(fd, more, 64, many)) == 48 && many[63].why == ISTHMUS_LIMIT);
	OK(munmap((void *)more, 64 * PAGE));
	wait_for_granted(fd, 16);
	usleep(100000);
	CHECK(page_of(&results[0])[1] == 100);
	FAILS(set_pool(fd, 0, 0, 0), EBUSY);
	CHECK(OK(release_kept(fd, results, 8)) == 8);
	wait_for_granted(fd, 8);
	/* They are cleared in the background. */
	for (int i = 0; i < 4; i++) {
		for (int tries = 0; tries < 5000 && page_of(&results[i])[1]; tries++)
			usleep(1000);
		CHECK(page_of(&results[i])[1] == 0);
	}
	/* And while they are there they are the process's. */
	page_of(&results[9])[5] = 9;
	CHECK(at[9 * PAGE + 5] == 9);
	/* With the descriptor closed, and with the process gone, too, they stay as they are until the agent says that nobody writes there. */
	pid_t pid = (pid_t)OK(fork());
	if (pid == 0) {
		int own = granter(OWNER + 2, 64);
		volatile unsigned char *mine = written(4);
		keep_all(own, mine, 4, many);
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0 && info(fd).kept == 12);
	close(fd);
	OK(munmap((void *)(at + 8 * PAGE), 8 * PAGE));
	usleep(100000);
	CHECK(info(other).kept == 12 && granted_pages(other) == 12 && !stands(&results[9]) && page_of(&results[9])[5] == 9);
	OK(ioctl(other, ISTHMUS_SETTLE, OWNER + 1));
	CHECK(info(other).kept == 12);
	OK(ioctl(other, ISTHMUS_SETTLE, OWNER));
	wait_for_granted(other, 4);
	OK(ioctl(other, ISTHMUS_SETTLE, 0));
	wait_for_granted(other, 0);
	CHECK(info(other).kept == 0);
	OK(set_pool(other, 0, 0, 0));
}

/* What a process has from a parent that is gone counts for nobody once the agent has seen that. */
static void orphans(void)
{
	int fd = granter(OWNER, 64), status, ready[2], hold[2];
	static struct isthmus_page results[8];
	char byte;

	OK(pipe(ready));
	OK(pipe(hold));
	pid_t pid = (pid_t)OK(fork());
	if (pid == 0) {
		grant_all(granter(OWNER + 1, 8), written(8), 8, results);
		if (OK(fork()) == 0) {
			close(hold[1]);
			CHECK(write(ready[1], "", 1) == 1);
			CHECK(read(hold[0], &byte, 1) == 0);
		}
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0 && read(ready[0], &byte, 1) == 1 && granted_pages(fd) == 8);
	int former = granter(OWNER + 1, 8);
	volatile unsigned char *more = written(8);
	CHECK(OK(grant(former, more, 8, results)) == 0 && results[0].why == ISTHMUS_LIMIT);
	OK(ioctl(fd, ISTHMUS_SETTLE, OWNER + 1));
	/* What was allowed before takes no pages in the name of whoever is called so next. */
	CHECK(OK(grant(former, more, 8, results)) == 0 && results[0].why == ISTHMUS_LIMIT);
	close(former);
	int next = granter(OWNER + 1, 8);
	grant_all(next, more, 8, results);
	CHECK(granted_pages(fd) == 16 && stands(&results[7]));
	close(hold[1]);
	wait_for_granted(fd, 8);
	CHECK(stands(&results[0]));
	/* One that lives on, and keeps its descriptor, has its pages back, as they were. */
	OK(ioctl(fd, ISTHMUS_SETTLE, OWNER + 1));
	wait_for_granted(fd, 0);
	CHECK(!stands(&results[0]) && !stands(&results[7]));
	for (int i = 0; i < 8; i++)
		CHECK(more[i * PAGE] == i + 1);
	close(next);
	next = granter(OWNER + 1, 8);
	grant_all(next, more, 8, results);
	/* The same of all owners, when an agent is started anew. */
	OK(ioctl(fd, ISTHMUS_SETTLE, 0));
	wait_for_granted(fd, 0);
	CHECK(OK(grant(next, written(8), 8, results)) == 0 && results[0].why == ISTHMUS_LIMIT);
}

/* Memory that is not granted, by kind. */
static void kinds(void)
{
	int fd = granter(OWNER, 2048);
	static struct isthmus_page results[1024];
	volatile unsigned char *at;
	const int both = PROT_READ | PROT_WRITE;

#define DECLINED(at, reason)                                                       \
	do {                                                                      \
		CHECK(OK(grant(fd, (at), 1, results)) == 0);                       \
		if (results[0].why != (reason))                                    \
			fail(__LINE__, "declined as " #reason, -2);                \
	} while (0)
	at = mmap(NULL, PAGE, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	at[0] = 1;
	DECLINED(at, ISTHMUS_KIND);
	int file = (int)OK(memfd_create("memory", 0));
	OK(ftruncate(file, PAGE));
	at = mmap(NULL, PAGE, both, MAP_SHARED, file, 0);
	at[0] = 1;
	DECLINED(at, ISTHMUS_KIND);
	at = mmap(NULL, PAGE, both, MAP_PRIVATE, file, 0);
	DECLINED(at, ISTHMUS_KIND);
	at[0] = 2;
	DECLINED(at, ISTHMUS_KIND);
	DECLINED(pool, ISTHMUS_KIND);
	DECLINED((volatile unsigned char *)table, ISTHMUS_KIND);
	put("/proc/sys/vm/nr_hugepages", "2");
	at = mmap(NULL, 2 * MIB, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if ((void *)at != MAP_FAILED) {
		at[0] = 1;
		DECLINED(at, ISTHMUS_KIND);
		OK(munmap((void *)at, 2 * MIB));
	} else {
		printf("skipped: the kernel has no huge page\n");
	}
	put("/proc/sys/vm/nr_hugepages", "0");
	at = written(1);
	OK(mprotect((void *)at, PAGE, PROT_READ));
	DECLINED(at, ISTHMUS_READ_ONLY);
	OK(mprotect((void *)at, PAGE, PROT_NONE));
	DECLINED(at, ISTHMUS_READ_ONLY);
	OK(munmap((void *)at, PAGE));
	DECLINED(at, ISTHMUS_UNMAPPED);
	at = written(1);
	if (madvise((void *)at, PAGE, MADV_MERGEABLE) == 0) {
		DECLINED(at, ISTHMUS_WATCHED);
		OK(madvise((void *)at, PAGE, MADV_UNMERGEABLE));
	}
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults >= 0) {
		struct uffdio_api api = {.api = UFFD_API};
		struct uffdio_register range = {{(uintptr_t)at, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
		OK(ioctl(faults, UFFDIO_API, &api));
		OK(ioctl(faults, UFFDIO_REGISTER, &range));
		DECLINED(at, ISTHMUS_WATCHED);
		close(faults);
	}
	/* Huge pages. */
	at = memory(4 * 512);
	at += -(uintptr_t)at % (2 * MIB);
	int mode = open("/sys/kernel/mm/transparent_hugepage/enabled", O_WRONLY);
	CHECK(mode >= 0 && write(mode, "always", 6) == 6);
	close(mode);
	OK(madvise((void *)at, 4 * MIB, MADV_HUGEPAGE));
	memset((void *)at, 5, 4 * MIB);
	uint64_t splits = info(fd).splits;
	CHECK(OK(grant_as(fd, at, 16, results, 0)) == 0);
	CHECK(results[0].why == ISTHMUS_HUGE && info(fd).splits == splits);
	for (int i = 0; i < 100 && OK(grant(fd, at + 16 * PAGE, 16, results)) < 16; i++)
		usleep(1000);
	CHECK(page_of(&results[0])[1] == 5 && info(fd).splits == splits + 1 && at[0] == 5 && at[4 * MIB - 1] == 5);
	printf("a huge page is %s\n", results[0].why ? "not granted" : "split where that is allowed");
}

/* A pin without an end moves the page back first, so that it never holds up the device. */
static void pins(void)
{
	int fd = granter(OWNER, 64);
	struct isthmus_page results[4];
	struct io_uring_params params = {0};
	volatile unsigned char *at = written(4);
	int ring = (int)syscall(SYS_io_uring_setup, 4, &params);

	if (ring < 0) {
		printf("skipped: the kernel has no io_uring\n");
		return;
	}
	grant_all(fd, at, 4, results);
	struct iovec iov = {(void *)(at + PAGE), 2 * PAGE};
	OK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &iov, 1));
	CHECK(stands(&results[0]) && !stands(&results[1]) && !stands(&results[2]) && stands(&results[3]));
	CHECK(at[PAGE] == 2 && at[2 * PAGE] == 3);
	wait_for_granted(fd, 2);
	long again = OK(grant(fd, at, 4, results));
	CHECK(again == 2 && results[1].why == ISTHMUS_BUSY && results[2].why == ISTHMUS_BUSY);
	close(ring);
}

/* A process with two descriptors, and pages that outlive their process. */
static void descriptors(void)
{
	int one = granter(OWNER, 64), two = granter(OWNER + 1, 64), same = granter(OWNER, 64), status;
	struct isthmus_page first[4], second[4];
	volatile unsigned char *at = written(4);

	grant_all(one, at, 4, first);
	/* What one has granted the other, which stands for another process, cannot. */
	CHECK(OK(grant(two, at, 4, second)) == 0 && second[0].why == ISTHMUS_BUSY);
	grant_all(same, at, 4, second);
	CHECK(second[2].page == first[2].page && granted_pages(one) == 4);
	/* Any of them takes it back, and each grant ends. */
	CHECK(OK(take_back(two, at, 4)) == 4);
	for (int i = 0; i < 4; i++)
		CHECK(!stands(&first[i]) && !stands(&second[i]));
	wait_for_granted(one, 0);
	/* Once nothing is left of it the pool may be another, and smaller; what was there before changes nothing. */
	grant_all(one, at, 4, first);
	CHECK(OK(take_back(two, at, 4)) == 4);
	wait_for_granted(one, 0);
	OK(set_pool(one, POOL, 2 * MIB, TABLE));
	OK(munmap((void *)at, 4 * PAGE));
	OK(set_pool(one, 0, 0, 0));
	OK(set_pool(one, POOL, POOL_BYTES, TABLE));
	/* With one of two gone the other's stay. */
	at = written(8);
	volatile unsigned char *other = written(8);
	struct isthmus_page theirs[8];
	grant_all(one, at, 4, first);
	grant_all(two, other, 8, theirs);
	close(one);
	wait_for_granted(two, 8);
	for (int i = 0; i < 8; i++)
		CHECK(stands(&theirs[i]) && other[i * PAGE] == i + 1);
	CHECK(at[3 * PAGE] == 4);
	OK(take_back(two, other, 8));
	/* A pipe has a page of a process that is gone: it is nobody's any more, and stays until the pipe gives it back. */
	int ends[2];
	unsigned char byte;
	OK(pipe(ends));
	pid_t pid = (pid_t)OK(fork());
	if (pid == 0) {
		int own = granter(OWNER + 2, 64);
		at = written(4);
		grant_all(own, at, 4, first);
		struct iovec iov = {(void *)(at + PAGE), 1};
		CHECK(vmsplice(ends[1], &iov, 1, 0) == 1);
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0);
	wait_for_granted(two, 1);
	FAILS(set_pool(two, 0, 0, 0), EBUSY);
	usleep(200000);
	CHECK(read(ends[0], &byte, 1) == 1 && byte == 2);
	wait_for_granted(two, 0);
	OK(set_pool(two, 0, 0, 0));
}

/* ---- Threads ---- */

static volatile unsigned char *shared;
static volatile bool is_over;

/* Counts in each page without a pause. Gives how far it came. */
static void *counter(void *argument)
{
	size_t which = (size_t)argument;
	uint64_t i = 0;

	while (!is_over) {
		i++;
		for (size_t page = 0; page < 8; page++) {
			volatile uint64_t *word = (volatile uint64_t *)(shared + page * PAGE + which * 8);
			CHECK(*word == i - 1);
			*word = i;
		}
	}
	return (void *)i;
}

/* Threads write into pages while those move there and back, and none of what they write is lost. */
static void threads(void)
{
	int fd = granter(OWNER, 64);
	struct isthmus_page results[8];
	pthread_t all[3];
	long rounds = 0, moved = 0;
	uint64_t sum = 0;

	shared = written(8);
	memset((void *)shared, 0, 8 * PAGE);
	for (size_t i = 0; i < 3; i++)
		CHECK(pthread_create(&all[i], NULL, counter, (void *)i) == 0);
	for (double end = now() + 5; now() < end; rounds++) {
		moved += OK(grant(fd, shared, 8, results));
		OK(take_back(fd, shared, 8));
	}
	is_over = true;
	for (size_t i = 0; i < 3; i++) {
		void *steps;

		CHECK(pthread_join(all[i], &steps) == 0);
		for (size_t page = 0; page < 8; page++)
			CHECK(*(volatile uint64_t *)(shared + page * PAGE + i * 8) == (uint64_t)steps);
		sum += (uint64_t)steps;
	}
	printf("%ld rounds, %ld pages were moved, %llu steps\n", rounds, moved, (unsigned long long)sum);
	CHECK(moved > 100 && sum > 1000);
}

/* The kernel holds pages while it writes to them: for read(2) from a share that is not cached, and for /proc/PID/mem. */
static void *by_kernel(void *argument)
{
	int file = open("/proc/self/exe", O_RDONLY), memory = open("/proc/self/mem", O_RDWR);
	uint64_t *rounds = argument;
	ssize_t bytes;

	CHECK(file >= 0 && memory >= 0);
	unsigned char *right = malloc(16 * PAGE);
	bytes = pread(file, right, 16 * PAGE, 0);
	CHECK(bytes > (ssize_t)PAGE);
	while (!is_over) {
		memset((void *)shared, 0xff, 16 * PAGE);
		CHECK(pread(file, (void *)shared, 16 * PAGE, 0) == bytes);
		CHECK(memcmp((void *)shared, right, bytes) == 0);
		for (size_t page = 0; page < 16; page++) {
			uint64_t value = ++*rounds;

			CHECK(pwrite(memory, &value, sizeof value, (off_t)(uintptr_t)(shared + page * PAGE + 64)) == sizeof value);
			CHECK(*(volatile uint64_t *)(shared + page * PAGE + 64) == value);
		}
	}
	free(right), close(file), close(memory);
	return NULL;
}

static void kernel_writes(void)
{
	int fd = granter(OWNER, 64);
	struct isthmus_page results[16];
	pthread_t thread;
	long moved = 0;
	uint64_t rounds = 0;

	shared = written(16);
	is_over = false;
	CHECK(pthread_create(&thread, NULL, by_kernel, &rounds) == 0);
	for (double end = now() + 6; now() < end;) {
		moved += OK(grant(fd, shared, 16, results));
		OK(take_back(fd, shared, 16));
	}
	is_over = true;
	CHECK(pthread_join(thread, NULL) == 0);
	printf("%ld pages were moved, %llu writes\n", moved, (unsigned long long)rounds);
	CHECK(moved > 100 && rounds > 100);
}

/* What a reader in another system does: it copies, and then looks whether that is still what was granted. */
static uint64_t read_page(const struct isthmus_page *page, bool *is_believed)
{
	const volatile uint64_t *words = (const volatile uint64_t *)page_of(page);
	uint64_t first = words[0], rest = first;

	for (size_t i = 1; i < PAGE / 8; i++)
		rest = words[i] == first ? rest : 0;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	*is_believed = stands(page);
	return rest == first ? first : 0;
}

struct offer {
	_Atomic uint64_t sequence;
	uint64_t value;
	struct isthmus_page page;
};

static struct offer offers[3];

static void *reader(void *argument)
{
	long *reads = argument;

	while (!is_over) {
		for (int i = 0; i < 3; i++) {
			struct offer *offer = &offers[i], copy;
			uint64_t before = offer->sequence;
			bool is_believed;

			if (before == 0 || before % 2)
				continue;
			copy.value = offer->value;
			copy.page = offer->page;
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			if (offer->sequence != before)
				continue;
			uint64_t value = read_page(&copy.page, &is_believed);
			reads[is_believed]++;
			CHECK(!is_believed || value == copy.value);
		}
	}
	return NULL;
}

static void fill(volatile uint64_t *words, uint64_t value)
{
	for (size_t i = 0; i < PAGE / 8; i++)
		words[i] = value;
}

static void *renewer(void *argument)
{
	size_t which = (size_t)argument;
	struct offer *offer = &offers[which];
	int fd = granter((uint32_t)which + 10, 16);
	void *wish = (void *)(uintptr_t)(0x200000000000 + which * 0x100000);

	for (uint64_t i = 1; !is_over; i++) {
		uint64_t value = which << 56 | i;
		volatile uint64_t *at = mmap(wish, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		struct isthmus_page page;

		CHECK((void *)at == wish);
		fill(at, value);
		if (OK(grant(fd, at, 1, &page)) == 1) {
			offer->sequence++;
			__atomic_thread_fence(__ATOMIC_RELEASE);
			offer->value = value;
			offer->page = page;
			offer->sequence++;
			if (i % 4 == 0)
				usleep(500);
		}
		/* Freed, given back, replaced, or moved back: each with other contents from then on. */
		switch (i % 4) {
		case 0:
			OK(munmap((void *)at, PAGE));
			break;
		case 1:
			OK(madvise((void *)at, PAGE, MADV_DONTNEED));
			fill(at, value | 1ull << 48);
			break;
		case 2:
			OK(take_back(fd, at, 1));
			fill(at, value | 1ull << 49);
			break;
		}
	}
	return NULL;
}

/* The same address with other contents, again and again, from several threads: no reader believes what is stale. */
static void stale(void)
{
	pthread_t all[3], reads;
	long counts[2] = {0};

	granter(OWNER, 1);
	for (size_t i = 0; i < 3; i++)
		CHECK(pthread_create(&all[i], NULL, renewer, (void *)i) == 0);
	CHECK(pthread_create(&reads, NULL, reader, counts) == 0);
	sleep(10);
	is_over = true;
	for (size_t i = 0; i < 3; i++)
		CHECK(pthread_join(all[i], NULL) == 0);
	CHECK(pthread_join(reads, NULL) == 0);
	printf("%ld pages were read and believed, %ld thrown away, of %llu\n", counts[1], counts[0],
	       (unsigned long long)(offers[0].sequence + offers[1].sequence + offers[2].sequence) / 2);
	CHECK(counts[1] > 0 && counts[0] > 0);
}

/* ---- Groups ---- */

static long group_memory(void)
{
	char text[32] = {0};
	int fd = (int)OK(open("/tmp/group/test/memory.current", O_RDONLY));

	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return atol(text);
}

/* Granted pages count in the process's control group as they did before, and as they do after. */
static void group(void)
{
	static struct isthmus_page results[512];
	char text[32];

	mkdir("/tmp/group", 0700);
	OK(syscall(SYS_mount, "none", "/tmp/group", "cgroup2", 0, ""));
	int control = (int)OK(open("/tmp/group/cgroup.subtree_control", O_WRONLY));
	if (write(control, "+memory", 7) != 7) {
		printf("skipped: the kernel counts no memory of groups\n");
		return;
	}
	mkdir("/tmp/group/test", 0700);
	int procs = (int)OK(open("/tmp/group/test/cgroup.procs", O_WRONLY));
	snprintf(text, sizeof(text), "%d", getpid());
	CHECK(write(procs, text, strlen(text)) > 0);
	int fd = granter(OWNER, 512);
	volatile unsigned char *warm = written(512), *at = written(512);
	grant_all(fd, warm, 512, results);
	OK(munmap((void *)warm, 512 * PAGE));
	wait_for_granted(fd, 0);
	usleep(300000);
	long before = group_memory();
	grant_all(fd, at, 512, results);
	usleep(300000);
	long granted = group_memory();
	for (int i = 0; i < 100 && granted_pages(fd); i++)
		OK(take_back(fd, at, 512));
	usleep(300000);
	long after = group_memory();
	OK(munmap((void *)at, 512 * PAGE));
	long freed = group_memory();
	for (int i = 0; i < 100 && freed >= before - (1 << 20); i++) {
		usleep(100000);
		freed = group_memory();
	}
	printf("%ld KiB before, %ld granted, %ld after, %ld freed\n", before / 1024, granted / 1024, after / 1024, freed / 1024);
	/* It is counted in batches of 256 KiB. */
	CHECK(before >= 2 << 20 && labs(before - granted) <= 512 * 1024 && labs(before - after) <= 512 * 1024 && freed < before - (1 << 20));
	procs = (int)OK(open("/tmp/group/cgroup.procs", O_WRONLY));
	CHECK(write(procs, text, strlen(text)) > 0);
}

/* ---- Hostile ---- */

static void hostile(int fd)
{
	static struct isthmus_page results[ISTHMUS_MOST_PAGES];
	long done = 0, refused = 0;
	unsigned char *base = (void *)written(2048);

	for (long i = 0; i < 20000; i++) {
		static const unsigned int known[] = {ISTHMUS_GRANT,  ISTHMUS_GRANT, ISTHMUS_REVOKE, ISTHMUS_POOL,
						     ISTHMUS_RELEASE, ISTHMUS_SETTLE};
		struct isthmus_pages pages = {
			next() % 8 ? (uintptr_t)base + next() % 2048 * PAGE : next(),
			(uint32_t)(next() % 16 ? next() % 40 : next()),
			(uint32_t)(next() % 16 ? next() % 4 : next()),
			next() % 16 ? (uintptr_t)results : next(),
		};
		unsigned int command = known[next() % 6];
		size_t at = next() % 2000, count = next() % 48 + 1;
		long got = ioctl(fd, command, next() % 16 ? (unsigned long)&pages : next());

		CHECK(got == -1 || (command != ISTHMUS_POOL && command != ISTHMUS_SETTLE && got <= 40));
		if (command == ISTHMUS_RELEASE)
			for (int k = 0; k < 40; k++)
				results[k].page = (uint32_t)(next() % 16 ? next() % POOL_PAGES : next());
		got == -1 ? refused++ : done++;
		switch (next() % 16) {
		case 0:
			munmap(base + at * PAGE, count * PAGE);
			break;
		case 1:
			OK(mmap(base + at * PAGE, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
			break;
		case 2:
			mprotect(base + at * PAGE, count * PAGE, (int)(next() % 4));
			break;
		case 3:
			madvise(base + at * PAGE, count * PAGE, (int)(next() % 26));
			break;
		case 4:
			mremap(base + at * PAGE, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + next() % 2000 * PAGE);
			break;
		case 5:
			if (next() % 16 == 0) {
				pid_t pid = fork();
				if (pid == 0) {
					for (size_t k = 0; k < 2048; k += 7)
						madvise(base + k * PAGE, PAGE, MADV_DONTNEED);
					_exit(0);
				}
				waitpid(pid, NULL, 0);
			}
			break;
		case 6: {
			unsigned char byte = 1;
			struct iovec here = {&byte, 1}, there = {base + at * PAGE, 1};
			process_vm_writev(getpid(), &here, 1, &there, 1, 0);
			break;
		}
		}
	}
	printf("%ld calls were refused, %ld carried out\n", refused, done);
	fflush(stdout);
}

static void fuzz(void)
{
	int fd = granter(OWNER, 600);
	unsigned char *before = malloc(16 * MIB);

	memcpy(before, (void *)mapped(allowed(0, 16 * MIB, ISTHMUS_READ), 0, 16 * MIB, PROT_READ), 16 * MIB);
	as_user(hostile, fd);
	/* Nothing else of the region changed. */
	CHECK(memcmp(before, (void *)mapped(allowed(0, 16 * MIB, ISTHMUS_READ), 0, 16 * MIB, PROT_READ), 16 * MIB) == 0);
	wait_for_granted(fd, info(fd).kept);
	printf("%llu pages were still kept\n", (unsigned long long)info(fd).kept);
	OK(ioctl(fd, ISTHMUS_SETTLE, OWNER));
	wait_for_granted(fd, 0);
}

/* ---- The end of the device ---- */

static void gone(void)
{
	int fd = granter(OWNER, 512), status;
	static struct isthmus_page results[256];
	volatile unsigned char *at = written(256);

	grant_all(fd, at, 256, results);
	int bell = (int)OK(ioctl(fd, ISTHMUS_BELL, 1));
	pid_t pid = (pid_t)OK(fork());
	if (pid == 0) {
		/* Has pages of the pool, too. */
		pause();
		_exit(0);
	}
	for (size_t i = 0; i < 128; i++)
		at[i * PAGE + 1] = 6;
	volatile unsigned char *own = written(64);
	keep_all(fd, own, 32, results);
	grant_all(fd, own + 32 * PAGE, 32, results);
	printf("ready\n");
	fflush(stdout);
	struct pollfd p = {.fd = bell, .events = POLLIN};
	CHECK(poll(&p, 1, 60000) == 1 && (p.revents & POLLHUP));
	/* The memory is the process's, with all that is in it. */
	for (size_t i = 0; i < 256; i++)
		CHECK(at[i * PAGE] == (unsigned char)(i + 1) && at[i * PAGE + 1] == (i < 128 ? 6 : 0));
	for (size_t i = 0; i < 64; i++)
		CHECK(own[i * PAGE] == i + 1);
	FAILS(grant(fd, at, 16, results), ENODEV);
	FAILS(take_back(fd, at, 16), ENODEV);
	FAILS(set_pool(fd, POOL, POOL_BYTES, TABLE), ENODEV);
	OK(kill(pid, SIGKILL));
	OK(waitpid(pid, &status, 0));
	for (size_t i = 0; i < 256; i++)
		at[i * PAGE] = 1;
}

static void granting_child(int ready, unsigned int number)
{
	int fd = granter(number + 1, 1024);
	static struct isthmus_page results[512];
	int bell = (int)OK(ioctl(fd, ISTHMUS_BELL, 1));
	volatile unsigned char *at = written(512);

	CHECK(OK(grant(fd, at, 512, results)) > 256);
	/* Of these some stay in the pool when they are given back below. */
	OK(grant_as(fd, at + 190 * PAGE, 20, results, ISTHMUS_KEEP));
	OK(take_back(fd, at, 100));
	OK(munmap((void *)(at + 200 * PAGE), 100 * PAGE));
	pid_t pid = number == 1 ? (pid_t)OK(fork()) : 1;
	if (pid == 0) {
		/* Ends with its parent, or with the cycle. */
		struct pollfd p = {.fd = bell, .events = POLLIN};
		poll(&p, 1, 20000);
		for (size_t i = 0; i < 200; i++)
			CHECK(at[i * PAGE] == (unsigned char)(i + 1));
		_exit(0);
	}
	struct pollfd p = {.fd = bell, .events = POLLIN};
	CHECK(write(ready, "", 1) == 1);
	CHECK(poll(&p, 1, 20000) == 1);
	for (size_t i = 0; i < 512; i++)
		CHECK((i >= 200 && i < 300) || at[i * PAGE] == (unsigned char)(i + 1));
	if (number == 1) {
		int status;
		OK(waitpid(pid, &status, 0));
		CHECK(status == 0);
	}
	_exit(0);
}

static void cycle(const char *device, bool with_death)
{
	pid_t pids[3];
	int ends[2], status;
	char byte;

	bind_device(device);
	OK(pipe(ends));
	for (unsigned int i = 0; i < 3; i++) {
		pids[i] = (pid_t)OK(fork());
		if (pids[i] == 0)
			granting_child(ends[1], i);
		CHECK(read(ends[0], &byte, 1) == 1);
	}
	if (with_death)
		OK(kill(pids[0], SIGKILL));
	put("/sys/bus/pci/drivers/isthmus/unbind", device);
	for (int i = 0; i < 3; i++) {
		OK(waitpid(pids[i], &status, 0));
		CHECK(status == 0 || (with_death && i == 0 && WTERMSIG(status) == SIGKILL));
	}
	close(ends[0]);
	close(ends[1]);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {{"place", place}, {"calls", calls}, {"contents", contents}, {"changes", changes}, {"forks", forks}, {"kept", kept}, {"orphans", orphans}, {"kinds", kinds},
		   {"pins", pins}, {"descriptors", descriptors}, {"threads", threads}, {"kernel_writes", kernel_writes}, {"stale", stale}, {"group", group}, {"fuzz", fuzz}, {"gone", gone}};

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count < 3)
		return 2;
	node = words[1];
	if (count == 5 && strcmp(words[2], "cycles") == 0) {
		put("/sys/bus/pci/drivers/isthmus/unbind", words[3]);
		count_cycles(words[3], atoi(words[4]), cycle);
		return 0;
	}
	for (unsigned int i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (strcmp(all[i].name, words[2]) == 0) {
			all[i].run();
			return 0;
		}
	printf("no case %s\n", words[2]);
	return 2;
}
