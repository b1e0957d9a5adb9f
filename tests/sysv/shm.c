/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Shared memory segments: what shmget(2), shmop(2) and shmctl(2) say of them. Rights are in key.c. */
#include "check.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>

static char *attach(int id)
{
	return OK((char *)shmat(id, NULL, 0));
}

/* Addresses at which nothing is: they were mapped once. */
static char *free_addresses(size_t len)
{
	char *at = mmap(NULL, len + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	munmap(at, len + 2 * PAGE);
	return at + PAGE;
}

/* shmget(2) */

CASE(get_private_is_new, "A new segment is created if key has the value IPC_PRIVATE; shmget(2)")
{
	int first = new_shm(100), second = new_shm(100);
	CHECK(first >= 0 && second >= 0 && first != second);
	char *a = attach(first), *b = attach(second);
	CHECK(a != b);
	*a = 'a';
	EQUAL(*b, 0);
}

CASE(get_private_ignores_flags, "With IPC_PRIVATE all but the least significant 9 bits of shmflg are ignored; shmget(2)")
{
	int plain = OK(keep_shm(shmget(IPC_PRIVATE, 1, 0600)));
	int create = OK(keep_shm(shmget(IPC_PRIVATE, 1, IPC_CREAT | 0600)));
	int both = OK(keep_shm(shmget(IPC_PRIVATE, 1, IPC_CREAT | IPC_EXCL | 0600)));
	int excl = OK(keep_shm(shmget(IPC_PRIVATE, 1, IPC_EXCL | 0600)));
	CHECK(plain != create && create != both && both != excl && plain != both && plain != excl && create != excl);
}

CASE(get_creates_and_finds,
     "Created if no segment corresponding to key exists and IPC_CREAT is specified; else found by key; shmget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_shm(shmget(key, 5000, IPC_CREAT | 0600)));
	CHECK(id >= 0);
	EQUAL(OK(shmget(key, 0, 0)), id);
	EQUAL(OK(shmget(key, 5000, IPC_CREAT | 0600)), id);
	EQUAL(OK(shmget(key, 4999, 0600)), id);
	EQUAL(OK(its_shmget(p, key, 0, 0)), id);
	EQUAL(OK(its_shmget(p, key, 1, IPC_CREAT | 0600)), id);
	EQUAL(shm_stat(id).shm_segsz, 5000);
}

CASE(get_by_many_keys, "The identifier is that of the segment associated with the key; shmget(2)")
{
	struct peer *p = peer();
	key_t key[20];
	int id[20];
	for (int i = 0; i < 20; i++) {
		key[i] = fresh_key();
		id[i] = OK(keep_shm(its_shmget(p, key[i], i + 1, IPC_CREAT | 0600)));
	}
	for (int i = 0; i < 20; i++) {
		EQUAL(OK(shmget(key[i], 0, 0)), id[i]);
		EQUAL(shm_stat(id[i]).shm_segsz, i + 1);
	}
	for (int i = 0; i < 20; i += 2)
		OK(shmctl(id[i], IPC_RMID, NULL));
	for (int i = 0; i < 20; i++)
		if (i % 2)
			EQUAL(OK(shmget(key[i], 0, 0)), id[i]);
		else
			FAILS(shmget(key[i], 0, 0), ENOENT);
}

CASE(get_exclusive, "IPC_CREAT and IPC_EXCL, and the segment exists: EEXIST; shmget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_shm(shmget(key, 100, IPC_CREAT | IPC_EXCL | 0600)));
	FAILS(shmget(key, 100, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
	FAILS(its_shmget(p, key, 100, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
	/* Without IPC_CREAT it means nothing. */
	EQUAL(OK(shmget(key, 100, IPC_EXCL | 0600)), id);
}

CASE(get_exclusive_race, "IPC_EXCL ensures that this call creates the segment; shmget(2)")
{
	struct peer *p[4];
	for (int i = 0; i < 4; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		key_t key = fresh_key();
		int made = 0, id = -1;
		for (int i = 0; i < 4; i++)
			its_shmget(later(p[i]), key, 100, IPC_CREAT | IPC_EXCL | 0600);
		for (int i = 0; i < 4; i++) {
			int got = result(p[i]);
			if (got == -1)
				EQUAL(errno, EEXIST);
			else
				made++, id = keep_shm(got);
		}
		EQUAL(made, 1);
		EQUAL(OK(shmget(key, 0, 0)), id);
		OK(shmctl(id, IPC_RMID, NULL));
	}
}

CASE(get_create_race, "All who create with IPC_CREAT alone get the same segment; shmget(2)")
{
	struct peer *p[4];
	for (int i = 0; i < 4; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		key_t key = fresh_key();
		int id[4];
		for (int i = 0; i < 4; i++)
			its_shmget(later(p[i]), key, 100, IPC_CREAT | 0600);
		for (int i = 0; i < 4; i++)
			id[i] = keep_shm(OK((int)result(p[i])));
		CHECK(id[0] == id[1] && id[1] == id[2] && id[2] == id[3]);
		OK(shmctl(id[0], IPC_RMID, NULL));
	}
}

CASE(get_absent, "No segment exists for the key and IPC_CREAT was not specified: ENOENT; shmget(2)")
{
	FAILS(shmget(fresh_key(), 100, 0600), ENOENT);
	FAILS(shmget(fresh_key(), 0, 0), ENOENT);
	FAILS(shmget(fresh_key(), 100, IPC_EXCL | 0600), ENOENT);
}

CASE(get_size_too_small, "A new segment and size is less than SHMMIN: EINVAL; shmget(2)")
{
	FAILS(shmget(IPC_PRIVATE, 0, 0600), EINVAL);
	key_t key = fresh_key();
	FAILS(shmget(key, 0, IPC_CREAT | 0600), EINVAL);
	FAILS(shmget(key, 0, 0), ENOENT);
	OK(keep_shm(shmget(key, 1, IPC_CREAT | 0600)));
}

CASE(get_size_too_large, "A new segment and size is greater than SHMMAX: EINVAL; shmget(2)")
{
	struct shminfo info;
	OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info));
	if (info.shmmax == ULONG_MAX)
		SKIP("SHMMAX is the largest number");
	FAILS(shmget(IPC_PRIVATE, info.shmmax + 1, 0600), EINVAL);
	FAILS(shmget(IPC_PRIVATE, SIZE_MAX, 0600), EINVAL);
	FAILS(shmget(fresh_key(), info.shmmax + 1, IPC_CREAT | 0600), EINVAL);
}

CASE(get_size_beyond_existing, "A segment for the key exists, but size is greater than its size: EINVAL; shmget(2)")
{
	key_t key = fresh_key();
	int id = OK(keep_shm(shmget(key, 5000, IPC_CREAT | 0600)));
	EQUAL(OK(shmget(key, 5000, 0)), id);
	FAILS(shmget(key, 5001, 0), EINVAL);
	/* The whole page is there, but this is not its size. */
	FAILS(shmget(key, 8192, IPC_CREAT), EINVAL);
	FAILS(shmget(key, SIZE_MAX, 0), EINVAL);
}

CASE(get_rounds_up_to_pages, "The size is rounded up to a multiple of PAGE_SIZE; shm_segsz is the value of size; shmget(2)")
{
	int id = new_shm(PAGE + 1);
	EQUAL(shm_stat(id).shm_segsz, PAGE + 1);
	char *at = attach(id);
	struct peer *p = peer();
	char *its = OK(its_shmat(p, id, NULL, 0)), byte = 7;
	its_write(p, its + 2 * PAGE - 1, &byte, 1);
	EQUAL(at[2 * PAGE - 1], 7);
}

CASE(get_starts_with_zeros, "The contents of a new segment are zero values; shmget(2)")
{
	const size_t len = 40 * PAGE;
	for (int round = 0; round < 5; round++) {
		int id = new_shm(len);
		char *at = attach(id);
		for (size_t i = 0; i < len; i++)
			EQUAL(at[i], 0);
		memset(at, 0xee, len);
		OK(shmdt(at));
		OK(shmctl(id, IPC_RMID, NULL));
	}
}

CASE(get_initial_data, "shmid_ds is initialized: ids, mode, shm_segsz, shm_ctime; all else is 0; shmget(2)")
{
	const int modes[] = {0600, 0777, 0640, 0404};
	for (int i = 0; i < 4; i++) {
		key_t key = fresh_key();
		int id = OK(keep_shm(shmget(key, 1234, IPC_CREAT | modes[i])));
		struct shmid_ds ds = shm_stat(id);
		EQUAL(ds.shm_perm.__key, key);
		EQUAL(ds.shm_perm.cuid, geteuid());
		EQUAL(ds.shm_perm.uid, geteuid());
		EQUAL(ds.shm_perm.cgid, getegid());
		EQUAL(ds.shm_perm.gid, getegid());
		EQUAL(ds.shm_perm.mode, modes[i]);
		EQUAL(ds.shm_segsz, 1234);
		EQUAL(ds.shm_lpid, 0);
		EQUAL(ds.shm_nattch, 0);
		EQUAL(ds.shm_atime, 0);
		EQUAL(ds.shm_dtime, 0);
		IS_NOW(ds.shm_ctime);
		EQUAL(ds.shm_cpid, getpid());
	}
	EQUAL(shm_stat(new_shm(1)).shm_perm.__key, IPC_PRIVATE);
}

CASE(get_ignores_umask, "The least significant 9 bits of the mode are those of shmflg; shmget(2)")
{
	umask(077);
	EQUAL(shm_stat(OK(keep_shm(shmget(IPC_PRIVATE, 1, 0666)))).shm_perm.mode, 0666);
}

CASE(get_marked_for_destruction, "If the segment exists, a check is made to see if it is marked for destruction; shmget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_shm(shmget(key, 100, IPC_CREAT | 0600)));
	char *at = attach(id);
	OK(shmctl(id, IPC_RMID, NULL));
	FAILS(shmget(key, 0, 0), ENOENT);
	FAILS(its_shmget(p, key, 0, 0), ENOENT);
	/* The key is free for another one. */
	int other = OK(keep_shm(its_shmget(p, key, 100, IPC_CREAT | IPC_EXCL | 0600)));
	CHECK(other != id);
	*at = 'x';
	EQUAL(*attach(other), 0);
	EQUAL(nattch(id), 1);
}

CASE(get_noreserve, "SHM_NORESERVE: do not reserve swap space; shmget(2)")
{
	int id = OK(keep_shm(shmget(IPC_PRIVATE, 10 * PAGE, SHM_NORESERVE | 0600)));
	char *at = attach(id);
	at[9 * PAGE] = 1;
	EQUAL(shm_stat(id).shm_perm.mode & 0777, 0600);
}

CASE(get_ids_are_not_reused_at_once, "An id that was removed names no new segment; shmget(2), shmctl(2)")
{
	int old = new_shm(PAGE);
	OK(shmctl(old, IPC_RMID, NULL));
	for (int i = 0; i < 100; i++) {
		int id = new_shm(PAGE);
		CHECK(id != old);
		GONE(shmctl(old, IPC_STAT, &(struct shmid_ds){0}));
		OK(shmctl(id, IPC_RMID, NULL));
	}
}

CASE(limit_segments, "All possible shared memory ids have been taken (SHMMNI): ENOSPC; shmget(2)")
{
	struct shminfo info;
	OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info));
	if (info.shmmni > 5000)
		SKIP("SHMMNI is %lu", info.shmmni);
	LIMIT(30);
	int id = -1, count = 0;
	for (unsigned long i = 0; i < info.shmmni + 1; i++) {
		int got = keep_shm(shmget(IPC_PRIVATE, 1, 0600));
		if (got == -1)
			break;
		id = got;
		count++;
	}
	CHECK(count >= 1 && count <= (int)info.shmmni);
	FAILS(shmget(IPC_PRIVATE, 1, 0600), ENOSPC);
	FAILS(shmget(fresh_key(), 1, IPC_CREAT | 0600), ENOSPC);
	OK(shmctl(id, IPC_RMID, NULL));
	OK(keep_shm(shmget(IPC_PRIVATE, 1, 0600)));
}

CASE(limit_pages, "A segment would exceed the limit on shared memory (SHMALL): ENOSPC; shmget(2)")
{
	struct shminfo info;
	OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info));
	if (info.shmall > 1 << 20)
		SKIP("SHMALL is %lu pages", info.shmall);
	if (info.shmall * PAGE >= info.shmmax)
		SKIP("SHMMAX is less than SHMALL");
	FAILS(shmget(IPC_PRIVATE, (info.shmall + 1) * PAGE, 0600), ENOSPC);
	int id = new_shm(info.shmall / 2 * PAGE);
	FAILS(shmget(IPC_PRIVATE, (info.shmall / 2 + 2) * PAGE, 0600), ENOSPC);
	OK(shmctl(id, IPC_RMID, NULL));
	new_shm((info.shmall / 2 + 2) * PAGE);
}

CASE(hugetlb_segment, "SHM_HUGETLB: allocate the segment using huge pages; shmget(2)")
{
	int id = keep_shm(shmget(IPC_PRIVATE, 2 << 20, SHM_HUGETLB | 0600));
	/* There may be no such pages, and no such file system. */
	if (id == -1)
		CHECK(errno == ENOMEM || errno == ENOSYS || errno == EPERM || errno == ENOENT);
	else
		*attach(id) = 1;
}

CASE(hugetlb_users_privilege, "SHM_HUGETLB was specified, but the caller was not privileged: EPERM; shmget(2)")
{
	NEEDS_ROOT();
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_MEMLOCK, &none);
	OK(setgroups(0, NULL));
	OK(setresgid(1000, 1000, 1000));
	OK(setresuid(1000, 1000, 1000));
	FAILS_EITHER(keep_shm(shmget(IPC_PRIVATE, 2 << 20, SHM_HUGETLB | 0600)), EPERM, ENOSYS);
}

/* shmat(2) */

CASE(at_null, "If shmaddr is NULL, the system chooses a page-aligned address; shmop(2)")
{
	int id = new_shm(3 * PAGE);
	char *at = attach(id);
	CHECK(at != NULL && (uintptr_t)at % PAGE == 0);
	for (int i = 0; i < 3 * PAGE; i++)
		at[i] = i * 7;
	for (int i = 0; i < 3 * PAGE; i++)
		EQUAL(at[i], (char)(i * 7));
}

CASE(at_shares_memory, "Processes that attach a segment share its memory; shmop(2), svipc(7)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_shm(3 * PAGE);
	char *at = attach(id), *ps = OK(its_shmat(p, id, NULL, 0)), *qs = OK(its_shmat(q, id, NULL, 0));
	char text[100], found[100];
	for (int i = 0; i < 100; i++)
		text[i] = 'a' + i % 26;
	its_write(p, ps + PAGE - 50, text, 100);
	EQUAL(memcmp(at + PAGE - 50, text, 100), 0);
	its_read(q, qs + PAGE - 50, found, 100);
	EQUAL(memcmp(found, text, 100), 0);
	at[3 * PAGE - 1] = 'z';
	its_read(q, qs + 3 * PAGE - 1, found, 1);
	EQUAL(found[0], 'z');
}

CASE(at_shares_atomics, "Processes that attach a segment share its memory, for atomic operations too; shmop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_shm(PAGE);
	char *at = attach(id), *ps = OK(its_shmat(p, id, NULL, 0)), *qs = OK(its_shmat(q, id, NULL, 0));
	its_add(later(p), ps + 64, 20000);
	its_add(later(q), qs + 64, 20000);
	for (int i = 0; i < 20000; i++)
		atomic_fetch_add((atomic_int *)(at + 64), 1);
	result(p);
	result(q);
	EQUAL(*(atomic_int *)(at + 64), 60000);
}

CASE(at_large, "All of a segment is shared, up to its last byte; shmop(2)")
{
	const size_t len = (16 << 20) + 5;
	struct peer *p = peer();
	int id = new_shm(len);
	char *at = attach(id), *its = OK(its_shmat(p, id, NULL, 0));
	for (size_t i = 0; i < len; i += PAGE)
		*(uint32_t *)(at + i / 8 * 8) = i / PAGE + 1;
	at[len - 1] = 'e';
	for (size_t i = 0; i < len; i += 97 * PAGE) {
		uint32_t found;
		its_read(p, its + i, &found, sizeof found);
		EQUAL(found, i / PAGE + 1);
	}
	char last;
	its_read(p, its + len - 1, &last, 1);
	EQUAL(last, 'e');
}

CASE(at_address, "Otherwise shmaddr must be a page-aligned address at which the attach occurs; shmop(2)")
{
	int id = new_shm(2 * PAGE);
	char *wanted = free_addresses(2 * PAGE);
	CHECK(OK((char *)shmat(id, wanted, 0)) == wanted);
	wanted[2 * PAGE - 1] = 1;
	CHECK(!readable(wanted + 2 * PAGE));
	/* Again, once it has been detached. */
	OK(shmdt(wanted));
	CHECK(OK((char *)shmat(id, wanted, SHM_RDONLY)) == wanted);
	EQUAL(wanted[2 * PAGE - 1], 1);
}

CASE(at_rounded, "With SHM_RND the attach occurs at shmaddr rounded down to the nearest multiple of SHMLBA; shmop(2)")
{
	int id = new_shm(PAGE);
	char *wanted = free_addresses(8 * SHMLBA);
	wanted += SHMLBA - (uintptr_t)wanted % SHMLBA;
	CHECK(OK((char *)shmat(id, wanted + 1, SHM_RND)) == wanted);
	CHECK(OK((char *)shmat(id, wanted + 3 * SHMLBA - 1, SHM_RND)) == wanted + 2 * SHMLBA);
	CHECK(OK((char *)shmat(id, wanted + 4 * SHMLBA, SHM_RND)) == wanted + 4 * SHMLBA);
	EQUAL(nattch(id), 3);
}

CASE(at_unaligned, "shmaddr is not page-aligned and SHM_RND was not specified: EINVAL; shmop(2)")
{
	int id = new_shm(PAGE);
	char *wanted = free_addresses(PAGE);
	FAILS(shmat(id, wanted + 1, 0), EINVAL);
	FAILS(shmat(id, wanted + PAGE / 2, SHM_RDONLY), EINVAL);
	FAILS(shmat(id, wanted + 8, SHM_REMAP), EINVAL);
	EQUAL(nattch(id), 0);
}

CASE(at_occupied, "An EINVAL error results if a mapping already exists in this address range; shmop(2)")
{
	int id = new_shm(3 * PAGE);
	char *wanted = mmap(NULL, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(wanted, 'w', 5 * PAGE);
	FAILS(shmat(id, wanted + PAGE, 0), EINVAL);
	/* Only the last page of the range is in use. */
	munmap(wanted, 4 * PAGE);
	FAILS(shmat(id, wanted + 2 * PAGE, 0), EINVAL);
	EQUAL(wanted[4 * PAGE], 'w');
	FAILS(shmat(id, wanted + 2 * PAGE + 1, SHM_RND), EINVAL);
	CHECK(OK((char *)shmat(id, wanted + PAGE, 0)) == wanted + PAGE);
	/* That of another segment. */
	FAILS(shmat(new_shm(PAGE), wanted + 2 * PAGE, 0), EINVAL);
	EQUAL(nattch(id), 1);
}

CASE(at_unusable_address, "Invalid shmaddr value: EINVAL; shmop(2)")
{
	int id = new_shm(PAGE);
	FAILS_EITHER(shmat(id, (void *)0xfffffffffffff000, 0), EINVAL, ENOMEM);
	EQUAL(nattch(id), 0);
}

CASE(at_remap, "SHM_REMAP: the mapping of the segment replaces any existing mapping in the range; shmop(2)")
{
	int id = new_shm(2 * PAGE);
	attach(id)[PAGE] = 's';
	char *wanted = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(wanted, 'w', 4 * PAGE);
	CHECK(OK((char *)shmat(id, wanted + PAGE, SHM_REMAP)) == wanted + PAGE);
	EQUAL(wanted[PAGE - 1], 'w');
	EQUAL(wanted[PAGE], 0);
	EQUAL(wanted[2 * PAGE], 's');
	EQUAL(wanted[3 * PAGE], 'w');
	EQUAL(nattch(id), 2);
	OK(shmdt(wanted + PAGE));
	CHECK(!readable(wanted + PAGE) && !readable(wanted + 2 * PAGE) && readable(wanted) && readable(wanted + 3 * PAGE));
	EQUAL(nattch(id), 1);
}

CASE(at_remap_segment, "SHM_REMAP replaces any existing mapping: that of another segment too; shmop(2)")
{
	int id = new_shm(2 * PAGE), other = new_shm(2 * PAGE);
	char *at = attach(id);
	at[0] = 'a';
	CHECK(OK((char *)shmat(other, at, SHM_REMAP)) == at);
	EQUAL(at[0], 0);
	EQUAL(nattch(id), 0);
	EQUAL(nattch(other), 1);
	OK(shmdt(at));
	FAILS(shmdt(at), EINVAL);
	EQUAL(nattch(other), 0);
	EQUAL(*attach(id), 'a');
}

static void *detach_cancelled(void *at)
{
	EQUAL(pthread_cancel(pthread_self()), 0);
	OK(shmdt(at));
	return at;
}

CASE(dt_cancelled, "shmdt is none of the functions that shall or may be cancellation points; pthreads(7)")
{
	int id = new_shm(3 * PAGE), other = new_shm(PAGE);
	char *at = attach(id);
	/* What is left of the segment has to be looked for. */
	CHECK(OK((char *)shmat(other, at + PAGE, SHM_REMAP)) == at + PAGE);
	pthread_t thread;
	void *result = NULL;
	EQUAL(pthread_create(&thread, NULL, detach_cancelled, at), 0);
	EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == at);
	CHECK(!readable(at) && readable(at + PAGE) && !readable(at + 2 * PAGE));
	EQUAL(nattch(id), 0);
	EQUAL(nattch(other), 1);
}

CASE(at_remap_null, "SHM_REMAP was specified and shmaddr was NULL: EINVAL; shmop(2)")
{
	int id = new_shm(PAGE);
	FAILS(shmat(id, NULL, SHM_REMAP), EINVAL);
	EQUAL(nattch(id), 0);
}

CASE(at_read_only, "SHM_RDONLY: attach the segment for read-only access; shmop(2)")
{
	int id = new_shm(2 * PAGE);
	char *at = attach(id), *constant = OK((char *)shmat(id, NULL, SHM_RDONLY));
	at[PAGE] = 'r';
	EQUAL(constant[PAGE], 'r');
	CHECK(readable(constant) && !writable(constant) && !writable(constant + PAGE) && writable(at));
	pid_t pid = child();
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)constant = 1;
		_exit(0);
	}
	int status = status_of(pid);
	CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
	EQUAL(at[0], 0);
}

CASE(protect_read_only, "EACCES: the memory cannot be given the access, as that of a file which is open for reading; shmop(2), mprotect(2)")
{
	int id = new_shm(2 * PAGE);
	char *at = attach(id), *constant = OK((char *)shmat(id, NULL, SHM_RDONLY));
	FAILS(mprotect(constant, PAGE, PROT_READ | PROT_WRITE), EACCES);
	pid_t pid = child();
	if (pid == 0) {
		FAILS(mprotect(constant, 2 * PAGE, PROT_READ | PROT_WRITE), EACCES);
		CHECK(readable(constant) && !writable(constant));
		OK(mprotect(at, PAGE, PROT_READ));
		OK(mprotect(at, PAGE, PROT_READ | PROT_WRITE));
		at[1] = 'w';
		EQUAL(constant[1], 'w');
		_exit(0);
	}
	JOIN(pid);
}

CASE(at_more_than_once, "The same segment may be attached as read and read-write, and more than once; shmop(2)")
{
	int id = new_shm(PAGE);
	char *a = attach(id), *b = attach(id), *c = OK((char *)shmat(id, NULL, SHM_RDONLY));
	CHECK(a != b && b != c && a != c);
	EQUAL(nattch(id), 3);
	a[10] = 'x';
	EQUAL(b[10], 'x');
	EQUAL(c[10], 'x');
	OK(shmdt(b));
	EQUAL(nattch(id), 2);
	EQUAL(c[10], 'x');
	OK(shmdt(a));
	EQUAL(c[10], 'x');
	OK(shmdt(c));
	EQUAL(nattch(id), 0);
}

CASE(at_many, "There is no limit on the number of segments of a process; shmop(2)")
{
	enum { MANY = 200 };
	int id[MANY];
	char *at[MANY];
	for (int i = 0; i < MANY; i++) {
		id[i] = new_shm(PAGE);
		at[i] = attach(id[i]);
		at[i][i] = i;
	}
	for (int i = 0; i < MANY; i++) {
		EQUAL(at[i][i], (char)i);
		EQUAL(nattch(id[i]), 1);
	}
	for (int i = MANY; i-- > 0;)
		OK(shmdt(at[i]));
	for (int i = 0; i < MANY; i++)
		EQUAL(nattch(id[i]), 0);
}

CASE(at_keeps_brk, "The brk value of the calling process is not altered by the attach; shmop(2)")
{
	int id = new_shm(PAGE);
	/* The first call may allocate. */
	OK(shmdt(attach(id)));
	void *before = sbrk(0);
	char *at = attach(id);
	CHECK(sbrk(0) == before);
	OK(shmdt(at));
	CHECK(sbrk(0) == before);
}

CASE(at_updates, "shmat sets shm_atime and shm_lpid and increments shm_nattch; shmop(2)")
{
	struct peer *p = peer_at(0);
	int id = new_shm(PAGE);
	attach(id);
	struct shmid_ds ds = shm_stat(id);
	IS_NOW(ds.shm_atime);
	EQUAL(ds.shm_dtime, 0);
	EQUAL(ds.shm_lpid, getpid());
	EQUAL(ds.shm_nattch, 1);
	OK(its_shmat(p, id, NULL, SHM_RDONLY));
	ds = shm_stat(id);
	EQUAL(ds.shm_nattch, 2);
	EQUAL(ds.shm_lpid, peers_are_here ? p->pid : 0);
	EQUAL(ds.shm_cpid, getpid());
	EQUAL(ds.shm_dtime, 0);
	OK(its_shmctl(p, id, IPC_STAT, &ds));
	EQUAL(ds.shm_lpid, p->pid);
	EQUAL(ds.shm_nattch, 2);
}

CASE(at_failed_updates_nothing, "A successful shmat call updates the members of shmid_ds; shmop(2)")
{
	int id = new_shm(PAGE);
	FAILS(shmat(id, (void *)1, 0), EINVAL);
	struct shmid_ds ds = shm_stat(id);
	EQUAL(ds.shm_atime, 0);
	EQUAL(ds.shm_lpid, 0);
	EQUAL(ds.shm_nattch, 0);
}

CASE(at_invalid_id, "Invalid shmid value: EINVAL; a removed identifier: EIDRM; shmop(2)")
{
	FAILS(shmat(-1, NULL, 0), EINVAL);
	FAILS(shmat(INT_MIN, NULL, 0), EINVAL);
	GONE(shmat(INT_MAX, NULL, 0));
	int id = new_shm(PAGE);
	OK(shmctl(id, IPC_RMID, NULL));
	GONE(shmat(id, NULL, 0));
}

CASE(at_no_room, "Could not allocate memory for the descriptor or for the page tables: ENOMEM; shmop(2)")
{
	int id = new_shm(24 << 20), small = new_shm(PAGE);
	OK(shmdt(attach(small)));
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%lu", &pages) == 1);
	fclose(file);
	struct rlimit limit = {pages * PAGE + (16 << 20), RLIM_INFINITY};
	OK(setrlimit(RLIMIT_AS, &limit));
	FAILS(shmat(id, NULL, 0), ENOMEM);
	EQUAL(nattch(id), 0);
	attach(small);
}

static void *attaches(void *argument)
{
	int id = *(int *)argument;
	for (int i = 0; i < 100; i++) {
		char *at = attach(id), *other = attach(id);
		atomic_fetch_add((atomic_int *)at, 1);
		OK(shmdt(at));
		atomic_fetch_add((atomic_int *)other, 1);
		if (i != 99)
			OK(shmdt(other));
	}
	return NULL;
}

CASE(at_by_threads, "shm_nattch is incremented by one, and decremented by one; shmop(2)")
{
	int id = new_shm(PAGE);
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, attaches, &id) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EQUAL(nattch(id), 4);
	EQUAL(*(atomic_int *)attach(id), 800);
}

CASE(exec_attach, "SHM_EXEC: allow the contents of the segment to be executed; shmop(2)")
{
#ifdef __x86_64__
	int id = OK(keep_shm(shmget(IPC_PRIVATE, PAGE, 0700)));
	/* mov $42, %eax; ret */
	memcpy(attach(id), "\xb8\x2a\0\0\0\xc3", 6);
	union {
		char *at;
		int (*call)(void);
	} code = {.at = OK((char *)shmat(id, NULL, SHM_EXEC | SHM_RDONLY))};
	EQUAL(code.call(), 42);
#else
	SKIP("no code for this processor");
#endif
}

/* Ends and copies of processes. */

static void nattch_after(void (*end)(struct peer *))
{
	struct peer *p = peer();
	int id = new_shm(PAGE), removed = new_shm(PAGE);
	attach(id);
	OK(its_shmat(p, id, NULL, 0));
	OK(its_shmat(p, id, NULL, SHM_RDONLY));
	OK(its_shmat(p, removed, NULL, 0));
	OK(shmctl(removed, IPC_RMID, NULL));
	EQUAL(nattch(id), 3);
	EQUAL(nattch(removed), 1);
	end(p);
	EQUAL(nattch(id), 1);
	GONE(shmctl(removed, IPC_STAT, &(struct shmid_ds){0}));
}

static void end_by_exit(struct peer *p) { its_exit(p, true); }
static void end_by__exit(struct peer *p) { its_exit(p, false); }
static void end_by_kill(struct peer *p) { its_kill(p); }
static void end_by_term(struct peer *p)
{
	its_signal(p, SIGTERM);
	EQUAL(its_status(p), SIGTERM);
}

CASE(end_by_exit, "The segment will automatically be detached at process exit; shmop(2)")
{
	nattch_after(end_by_exit);
}

CASE(end_by__exit, "Upon _exit all attached segments are detached from the process; shmop(2)")
{
	nattch_after(end_by__exit);
}

CASE(end_by_kill, "A process that is killed has all segments detached; shmop(2)")
{
	nattch_after(end_by_kill);
}

CASE(end_by_signal, "A process that is ended by a signal has all segments detached; shmop(2)")
{
	nattch_after(end_by_term);
}

CASE(end_by_exec, "After an execve all attached segments are detached from the process; shmop(2)")
{
	nattch_after(its_exec);
}

CASE(end_by_exec_then_again, "After an execve a process attaches afresh; shmop(2)")
{
	struct peer *p = peer();
	int id = new_shm(PAGE);
	char byte = 5;
	its_write(p, OK(its_shmat(p, id, NULL, 0)), &byte, 1);
	its_exec(p);
	EQUAL(nattch(id), 0);
	char *its = OK(its_shmat(p, id, NULL, 0));
	its_read(p, its, &byte, 1);
	EQUAL(byte, 5);
	EQUAL(nattch(id), 1);
	OK(its_shmdt(p, its));
	EQUAL(nattch(id), 0);
}

CASE(end_by_kill_1000_times, "shm_nattch is the number of current attaches, after each waitpid of a killed child; shmop(2)")
{
	LIMIT(60);
	int id = new_shm(PAGE);
	int *entered = shared_memory(PAGE);
	for (int i = 1; i <= 1000; i++) {
		pid_t pid = child();
		if (pid == 0) {
			attach(id);
			if (i % 2)
				attach(id);
			*(volatile int *)entered = i;
			for (;;)
				pause();
		}
		/* Half of them while they attach. */
		if (i % 4 < 2)
			UNTIL(*(volatile int *)entered == i);
		else
			pause_us(i % 100 * 4);
		kill_child(pid);
		EQUAL(nattch(id), 0);
	}
	OK(shmdt(attach(id)));
}

/* Processes with the segment attached are killed; then one of another place, or this one, counts. */
static void kill_peers(int times)
{
	int id = new_shm(PAGE);
	struct peer *observer = peer_at(net.places - 1);
	for (int i = 0; i < times; i++) {
		struct peer *p = peer_at(i % net.places);
		struct shmid_ds ds;
		char *at = OK(its_shmat(p, id, NULL, 0)), *again = OK(its_shmat(p, id, NULL, 0));
		if (i % 3 == 2)
			OK(its_shmdt(p, again));
		ds = shm_stat(id);
		EQUAL(ds.shm_nattch, i % 3 == 2 ? 1 : 2);
		CHECK(at != again);
		its_kill(p);
		if (i % 4 < 2)
			ds = shm_stat(id);
		else
			OK(its_shmctl(observer, id, IPC_STAT, &ds));
		EQUAL(ds.shm_nattch, 0);
		free(p);
	}
}

CASE(end_by_kill_of_peers, "shm_nattch is the number of current attaches, for all, after the waitpid of a killed process; shmop(2)")
{
	LIMIT(60);
	kill_peers(50);
}

CASE(end_by_kill_of_peers_1000_times,
     "shm_nattch is the number of current attaches, for all, after each waitpid of a killed process; shmop(2)")
{
	LIMIT(120);
	kill_peers(1000);
}

CASE(end_by_kill_while_detaching,
     "shm_nattch is the number of current attaches, of processes killed while they attach and detach; shmop(2)")
{
	LIMIT(60);
	int id = new_shm(PAGE);
	attach(id);
	for (int i = 0; i < 200; i++) {
		pid_t pid = child();
		if (pid == 0) {
			for (;;)
				OK(shmdt(attach(id)));
		}
		pause_us(i * 20);
		kill_child(pid);
		EQUAL(nattch(id), 1);
	}
}

CASE(fork_inherits, "After a fork the child inherits the attached segments; shmop(2)")
{
	int id = new_shm(PAGE), constant = new_shm(PAGE);
	char *at = attach(id), *again = attach(id), *c = OK((char *)shmat(constant, NULL, SHM_RDONLY));
	pid_t pid = child();
	if (pid == 0) {
		EQUAL(nattch(id), 4);
		EQUAL(nattch(constant), 2);
		at[1] = 'c';
		EQUAL(again[1], 'c');
		CHECK(readable(c) && !writable(c));
		OK(shmdt(at));
		EQUAL(nattch(id), 3);
		CHECK(!readable(at));
		again[2] = 'd';
		_exit(0);
	}
	JOIN(pid);
	EQUAL(at[1], 'c');
	EQUAL(at[2], 'd');
	EQUAL(nattch(id), 2);
	EQUAL(nattch(constant), 1);
}

static int handled;
static char *handled_at;

static void prepare_handler(void)
{
	if (handled_at)
		OK(shmdt(attach(handled)));
}

static void child_handler(void)
{
	if (handled_at)
		handled_at[1]++;
}

/* Before any call of this program, and after libraries that are loaded before it. */
__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(prepare_handler, NULL, child_handler);
}

CASE(fork_handlers, "Handlers that were there before the first call attach, and find in the child what it inherits; "
		    "pthread_atfork(3), shmop(2)")
{
	handled = new_shm(PAGE);
	char *at = attach(handled);
	handled_at = at;
	for (int i = 1; i < 4; i++) {
		pid_t pid = child();
		if (pid == 0) {
			EQUAL(at[1], i);
			_exit(0);
		}
		JOIN(pid);
		EQUAL(at[1], i);
	}
}

static void fork_at_exit(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0)
		_exit(0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
		_exit(9);
}

CASE(fork_at_exit, "A process that has forked before may fork where it exits; atexit(3), shmop(2)")
{
	int id = new_shm(PAGE);
	attach(id);
	fflush(NULL);
	pid_t pid = child();
	if (pid == 0) {
		pid_t grandchild = child();
		if (grandchild == 0)
			_exit(0);
		JOIN(grandchild);
		EQUAL(atexit(fork_at_exit), 0);
		exit(0);
	}
	JOIN(pid);
	EQUAL(nattch(id), 1);
}

/* A child has a segment of its parent's. */
static void inherits(char *at, int id)
{
	int before = nattch(id);
	*at = 'p';
	pid_t pid = child();
	if (pid == 0) {
		EQUAL(*at, 'p');
		*at = 'c';
		EQUAL(nattch(id), before + 1);
		_exit(0);
	}
	JOIN(pid);
	EQUAL(*at, 'c');
	EQUAL(nattch(id), before);
}

CASE(fork_without_environment, "After a fork the child inherits the attached segments, whatever the environment is; shmop(2), clearenv(3)")
{
	int id = new_shm(PAGE);
	char *at = attach(id);
	clearenv();
	inherits(at, id);
	OK(chdir("/"));
	OK(setenv("ISTHMUS_SOCKET", "/nowhere", 1));
	inherits(at, id);
}

static void inherits_for(char *at, int id, int generations)
{
	inherits(at, id);
	if (generations == 0)
		return;
	pid_t pid = child();
	if (pid == 0) {
		inherits_for(at, id, generations - 1);
		_exit(0);
	}
	JOIN(pid);
}

CASE(fork_without_descriptors, "After a fork the child inherits the attached segments, with no descriptor left; shmop(2), getrlimit(2)")
{
	LIMIT(30);
	int id = new_shm(PAGE), last = -1;
	for (int left = 0; left < 6; left++) {
		pid_t pid = child();
		if (pid == 0) {
			char *at = attach(id);
			OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}));
			for (int fd; (fd = open("/dev/null", O_RDONLY)) != -1;)
				last = fd;
			for (int i = 0; i < left; i++)
				close(last - i);
			inherits_for(at, id, 3);
			_exit(0);
		}
		JOIN(pid);
	}
	EQUAL(nattch(id), 0);
}

CASE(users_fork_in_another_root, "After a fork the child inherits the attached segments, in whatever root; shmop(2), chroot(2)")
{
	NEEDS_ROOT();
	int id = new_shm(PAGE);
	char *at = attach(id), root[] = "/tmp/sysv-root-XXXXXX";
	pid_t pid = child();
	if (pid == 0) {
		/* Nothing of it is there when this process is no more. */
		OK(unshare(CLONE_NEWNS));
		OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
		OK(mount("none", "/tmp", "tmpfs", 0, NULL));
		CHECK(mkdtemp(root));
		OK(chdir(root));
		OK(mkdir("proc", 0755));
		OK(mount("/proc", "proc", NULL, MS_BIND | MS_REC, NULL));
		OK(chroot("."));
		inherits(at, id);
		_exit(0);
	}
	JOIN(pid);
}

CASE(fork_into_a_gap, "After a fork the child inherits the attached segments, wherever they are mapped; shmop(2)")
{
	/* What the library maps first lies below memory that is unmapped before the segment comes there. */
	size_t len = 64 << 20;
	char *above = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(above != MAP_FAILED);
	int id = new_shm(PAGE);
	munmap(above, len);
	char *at = attach(id);
	strcpy(at, "parent's");
	pid_t pid = child();
	if (pid == 0) {
		CHECK(!strcmp(at, "parent's"));
		strcpy(at, "child's");
		_exit(0);
	}
	JOIN(pid);
	CHECK(!strcmp(at, "child's"));
}

CASE(stat_within_a_segment, "buf is a pointer to a shmid_ds structure, also within a segment; shmctl(2)")
{
	int id = new_shm(PAGE);
	struct shmid_ds *ds = (struct shmid_ds *)attach(id);
	OK(shmctl(id, IPC_STAT, ds));
	EQUAL(ds->shm_segsz, PAGE);
	ds->shm_perm.mode = 0640;
	OK(shmctl(id, IPC_SET, ds));
	EQUAL(shm_stat(id).shm_perm.mode & 0777, 0640);
}

CASE(fork_counts_at_once, "After a fork the child inherits the attached segments: it is counted before it has run; shmop(2)")
{
	int id = new_shm(PAGE);
	attach(id);
	for (int i = 0; i < 100; i++) {
		pid_t pid = child();
		if (pid == 0)
			for (;;)
				pause();
		EQUAL(nattch(id), 2);
		kill_child(pid);
		EQUAL(nattch(id), 1);
	}
}

CASE(fork_outlives_parent, "The child's attachments are its own: they last when the parent detaches or ends; shmop(2)")
{
	struct peer *p = peer();
	int id = new_shm(PAGE);
	char *its = OK(its_shmat(p, id, NULL, 0));
	for (int i = 0; i < 10; i++) {
		its_fork(p);
		EQUAL(nattch(id), 1);
		char byte = i;
		its_write(p, its, &byte, 1);
	}
	OK(shmctl(id, IPC_RMID, NULL));
	its_fork(p);
	EQUAL(nattch(id), 1);
	char byte;
	its_read(p, its, &byte, 1);
	EQUAL(byte, 9);
	its_kill(p);
	GONE(shmctl(id, IPC_STAT, &(struct shmid_ds){0}));
}

CASE(fork_of_fork, "A grandchild inherits the attached segments as well; shmop(2)")
{
	int id = new_shm(PAGE);
	char *at = attach(id);
	pid_t pid = child();
	if (pid == 0) {
		pid_t grandchild = child();
		if (grandchild == 0) {
			EQUAL(nattch(id), 3);
			at[0] = 'g';
			OK(shmdt(at));
			EQUAL(nattch(id), 2);
			_exit(0);
		}
		JOIN(grandchild);
		EQUAL(nattch(id), 2);
		EQUAL(at[0], 'g');
		_exit(0);
	}
	JOIN(pid);
	EQUAL(nattch(id), 1);
}

CASE(fork_then_attach, "What the child attaches is its own; shmop(2)")
{
	int id = new_shm(PAGE);
	struct {
		atomic_int entered, leave;
	} *turn = shared_memory(PAGE);
	pid_t pid = child();
	if (pid == 0) {
		*attach(id) = 'k';
		atomic_store(&turn->entered, 1);
		UNTIL(atomic_load(&turn->leave));
		_exit(0);
	}
	UNTIL(atomic_load(&turn->entered));
	EQUAL(nattch(id), 1);
	EQUAL(*attach(id), 'k');
	EQUAL(nattch(id), 2);
	atomic_store(&turn->leave, 1);
	JOIN(pid);
	EQUAL(nattch(id), 1);
}

static atomic_int stop;

static void *attaches_until_stopped(void *unused)
{
	int id = new_shm(PAGE);
	while (!atomic_load(&stop))
		OK(shmdt(attach(id)));
	return unused;
}

CASE(fork_by_threads, "After a fork the child inherits the attached segments, whatever other threads do; shmop(2)")
{
	int id = new_shm(PAGE);
	attach(id);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, attaches_until_stopped, NULL) == 0);
	for (int i = 0; i < 50; i++) {
		pid_t pid = child();
		if (pid == 0) {
			EQUAL(nattch(id), 2);
			char *at = attach(id);
			EQUAL(nattch(id), 3);
			OK(shmdt(at));
			_exit(0);
		}
		JOIN(pid);
		EQUAL(nattch(id), 1);
	}
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
}

CASE(vfork_child_changes_nothing,
     "A vfork'ed child has the memory of its parent: attaches are not counted twice; vfork(2), shmop(2)")
{
	int id = new_shm(PAGE);
	char *at = attach(id);
	pid_t pid = vfork();
	if (pid == 0) {
		at[0] = 'v';
		_exit(7);
	}
	EQUAL(status_of(pid), 7 << 8);
	EQUAL(nattch(id), 1);
	EQUAL(at[0], 'v');
	pid = vfork();
	if (pid == 0) {
		execl("/proc/self/exe", "exe", "--nothing", NULL);
		_exit(1);
	}
	EQUAL(status_of(pid), 0);
	EQUAL(nattch(id), 1);
	at[0] = 'w';
	EQUAL(system("exit 0"), 0);
	EQUAL(nattch(id), 1);
	OK(shmdt(at));
	EQUAL(nattch(id), 0);
}

/* shmdt(2) */

CASE(dt_detaches, "shmdt detaches the segment from the address space of the calling process; shmop(2)")
{
	int id = new_shm(3 * PAGE);
	char *at = attach(id);
	at[0] = 'd';
	OK(shmdt(at));
	CHECK(!readable(at) && !readable(at + PAGE) && !readable(at + 2 * PAGE));
	EQUAL(*attach(id), 'd');
}

CASE(dt_updates, "shmdt sets shm_dtime and shm_lpid and decrements shm_nattch; shmop(2)")
{
	struct peer *p = peer_at(0);
	int id = new_shm(PAGE);
	char *at = attach(id), *its = OK(its_shmat(p, id, NULL, 0));
	EQUAL(shm_stat(id).shm_dtime, 0);
	OK(shmdt(at));
	struct shmid_ds ds = shm_stat(id);
	IS_NOW(ds.shm_dtime);
	EQUAL(ds.shm_lpid, getpid());
	EQUAL(ds.shm_nattch, 1);
	OK(its_shmdt(p, its));
	OK(its_shmctl(p, id, IPC_STAT, &ds));
	EQUAL(ds.shm_lpid, p->pid);
	EQUAL(ds.shm_nattch, 0);
}

CASE(dt_invalid, "There is no segment attached at shmaddr, or it is not aligned on a page boundary: EINVAL; shmop(2)")
{
	int id = new_shm(3 * PAGE);
	char *at = attach(id), *memory = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FAILS(shmdt(at + PAGE), EINVAL);
	FAILS(shmdt(at + 1), EINVAL);
	FAILS(shmdt(at - PAGE), EINVAL);
	FAILS(shmdt(memory), EINVAL);
	FAILS(shmdt(free_addresses(PAGE)), EINVAL);
	FAILS(shmdt((void *)(uintptr_t)PAGE), EINVAL);
	CHECK(readable(memory));
	EQUAL(nattch(id), 1);
	OK(shmdt(at));
	FAILS(shmdt(at), EINVAL);
	EQUAL(nattch(id), 0);
}

CASE(dt_last_of_removed, "If shm_nattch becomes 0 and the segment is marked for deletion, it is deleted; shmop(2)")
{
	struct peer *p = peer();
	int id = new_shm(PAGE);
	char *at = attach(id), *its = OK(its_shmat(p, id, NULL, 0)), byte = 'q';
	OK(shmctl(id, IPC_RMID, NULL));
	EQUAL(nattch(id), 2);
	OK(shmdt(at));
	EQUAL(nattch(id), 1);
	its_write(p, its, &byte, 1);
	EQUAL(*attach(id), 'q');
	OK(its_shmdt(p, its));
	EQUAL(nattch(id), 1);
	OK(shmdt(at));
	GONE(shmctl(id, IPC_STAT, &(struct shmid_ds){0}));
	GONE(shmat(id, NULL, 0));
}

/* shmctl(2) */

CASE(ctl_stat_of_others, "IPC_STAT copies the information into buf: the same for every process; shmctl(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_shm(its_shmget(p, key, 777, IPC_CREAT | 0640)));
	struct shmid_ds mine = shm_stat(id), its;
	OK(its_shmctl(p, id, IPC_STAT, &its));
	EQUAL(its.shm_cpid, p->pid);
	EQUAL(mine.shm_cpid, peers_are_here ? p->pid : 0);
	EQUAL(mine.shm_perm.__key, key);
	EQUAL(mine.shm_perm.mode, 0640);
	EQUAL(mine.shm_segsz, 777);
	EQUAL(mine.shm_ctime, its.shm_ctime);
	EQUAL(mine.shm_perm.cuid, its.shm_perm.cuid);
	EQUAL(its.shm_nattch, 0);
}

CASE(ctl_set, "IPC_SET writes shm_perm.uid, shm_perm.gid and the 9 bits of shm_perm.mode, updating shm_ctime; shmctl(2)")
{
	int id = new_shm(4321);
	struct shmid_ds before = shm_stat(id), set = before;
	pause_us(1100000);
	set.shm_perm.mode = 07000 | 0644;
	set.shm_perm.uid = geteuid() == 0 ? 1234 : geteuid();
	set.shm_perm.gid = geteuid() == 0 ? 2345 : getegid();
	/* None of these is settable. */
	set.shm_perm.cuid = 55;
	set.shm_perm.cgid = 66;
	set.shm_perm.__key = 77;
	set.shm_segsz = 1;
	set.shm_nattch = 9;
	set.shm_atime = set.shm_dtime = set.shm_ctime = 123456;
	set.shm_cpid = set.shm_lpid = 1;
	OK(shmctl(id, IPC_SET, &set));
	struct shmid_ds after = shm_stat(id);
	EQUAL(after.shm_perm.mode, 0644);
	EQUAL(after.shm_perm.uid, set.shm_perm.uid);
	EQUAL(after.shm_perm.gid, set.shm_perm.gid);
	EQUAL(after.shm_perm.cuid, before.shm_perm.cuid);
	EQUAL(after.shm_perm.cgid, before.shm_perm.cgid);
	EQUAL(after.shm_perm.__key, before.shm_perm.__key);
	EQUAL(after.shm_segsz, 4321);
	EQUAL(after.shm_nattch, 0);
	EQUAL(after.shm_atime, 0);
	EQUAL(after.shm_dtime, 0);
	EQUAL(after.shm_cpid, getpid());
	EQUAL(after.shm_lpid, 0);
	IS_NOW(after.shm_ctime);
	CHECK(after.shm_ctime > before.shm_ctime);
}

CASE(ctl_at_keeps_ctime, "shm_ctime is the time of creation or of the last IPC_SET; shmctl(2)")
{
	int id = new_shm(PAGE);
	long before = shm_stat(id).shm_ctime;
	pause_us(1100000);
	OK(shmdt(attach(id)));
	struct shmid_ds ds = shm_stat(id);
	EQUAL(ds.shm_ctime, before);
	CHECK(ds.shm_atime > before && ds.shm_dtime > before);
}

CASE(ctl_remove_unattached, "IPC_RMID: the segment is destroyed after the last process detaches it; shmctl(2)")
{
	int id = new_shm(PAGE);
	OK(shmctl(id, IPC_RMID, NULL));
	GONE(shmctl(id, IPC_STAT, &(struct shmid_ds){0}));
	GONE(shmctl(id, IPC_RMID, NULL));
	GONE(shmctl(id, IPC_SET, &(struct shmid_ds){0}));
	id = new_shm(PAGE);
	OK(shmdt(attach(id)));
	OK(shmctl(id, IPC_RMID, NULL));
	GONE(shmctl(id, IPC_STAT, &(struct shmid_ds){0}));
}

CASE(ctl_remove_ignores_buf, "IPC_RMID: the buf argument is ignored; shmctl(2)")
{
	OK(shmctl(new_shm(PAGE), IPC_RMID, no_memory()));
	OK(shmctl(new_shm(PAGE), IPC_RMID, (void *)1));
}

CASE(ctl_remove_attached, "A segment that is marked for destruction has SHM_DEST set, and can be attached; shmctl(2), shmop(2)")
{
	struct peer *p = peer();
	int id = new_shm(PAGE);
	char *at = attach(id);
	at[0] = 'm';
	EQUAL(shm_stat(id).shm_perm.mode, 0600);
	OK(shmctl(id, IPC_RMID, NULL));
	EQUAL(shm_stat(id).shm_perm.mode, 0600 | SHM_DEST);
	char *its = OK(its_shmat(p, id, NULL, 0)), byte;
	its_read(p, its, &byte, 1);
	EQUAL(byte, 'm');
	EQUAL(nattch(id), 2);
	OK(shmdt(at));
	EQUAL(nattch(id), 1);
	its_kill(p);
	GONE(shmctl(id, IPC_STAT, &(struct shmid_ds){0}));
}

CASE(ctl_remove_race, "Removed once: of several who remove a segment that nobody has attached, one succeeds; shmctl(2)")
{
	struct peer *p[3];
	for (int i = 0; i < 3; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		int id = new_shm(PAGE), removed = 0;
		for (int i = 0; i < 3; i++)
			its_shmctl(later(p[i]), id, IPC_RMID, NULL);
		for (int i = 0; i < 3; i++)
			if (result(p[i]) == 0)
				removed++;
			else
				CHECK(errno == EINVAL || errno == EIDRM);
		EQUAL(removed, 1);
	}
}

CASE(ctl_bad_address, "The address pointed to by buf is not accessible: EFAULT; shmctl(2)")
{
	int id = new_shm(PAGE);
	FAILS(shmctl(id, IPC_STAT, no_memory()), EFAULT);
	FAILS(shmctl(id, IPC_STAT, constant_memory()), EFAULT);
	FAILS(shmctl(id, IPC_STAT, (void *)8), EFAULT);
	FAILS(shmctl(id, IPC_STAT, NULL), EFAULT);
	FAILS(shmctl(id, IPC_SET, no_memory()), EFAULT);
	FAILS(shmctl(id, IPC_SET, (void *)8), EFAULT);
	FAILS(shmctl(id, IPC_SET, NULL), EFAULT);
	FAILS(shmctl(0, IPC_INFO, no_memory()), EFAULT);
	FAILS(shmctl(0, SHM_INFO, no_memory()), EFAULT);
	EQUAL(shm_stat(id).shm_perm.mode, 0600);
}

CASE(ctl_invalid_id, "shmid is not a valid identifier: EINVAL; shmctl(2)")
{
	struct shmid_ds ds = {0};
	FAILS(shmctl(-1, IPC_STAT, &ds), EINVAL);
	FAILS(shmctl(-1, IPC_SET, &ds), EINVAL);
	FAILS(shmctl(-1, IPC_RMID, NULL), EINVAL);
	GONE(shmctl(INT_MAX, IPC_STAT, &ds));
	GONE(shmctl(INT_MAX, IPC_SET, &ds));
	GONE(shmctl(INT_MAX, IPC_RMID, NULL));
}

CASE(ctl_invalid_command, "cmd is not a valid command: EINVAL; shmctl(2)")
{
	struct shmid_ds ds = {0};
	int id = new_shm(PAGE);
	FAILS(shmctl(id, 9999, &ds), EINVAL);
	FAILS(shmctl(id, -1, &ds), EINVAL);
	/* A command of semctl(2). */
	FAILS(shmctl(id, SETVAL, &ds), EINVAL);
}

CASE(ctl_info, "IPC_INFO returns limits in a structure of type shminfo; shmctl(2)")
{
	struct shminfo info;
	memset(&info, 0, sizeof info);
	new_shm(PAGE);
	CHECK(OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info)) >= 0);
	EQUAL(info.shmmin, 1);
	CHECK(info.shmmax >= PAGE && info.shmmni >= 1 && info.shmall >= 1);
	/* The id is not looked at. */
	OK(shmctl(12345, IPC_INFO, (struct shmid_ds *)&info));
}

/* What SHM_INFO says of what was done between two calls of it, in which nobody else has done anything: one of many times. */
CASE(ctl_shm_info, "SHM_INFO returns the number of segments, pages and resident pages; shmctl(2)")
{
	for (int i = 0; i < 50; i++) {
		struct shm_info before, after;
		OK(shmctl(0, SHM_INFO, (struct shmid_ds *)&before));
		int id = new_shm(10 * PAGE - 1);
		int other = new_shm(1);
		char *at = attach(id);
		for (int page = 0; page < 4; page++)
			at[page * PAGE] = 1;
		CHECK(OK(shmctl(0, SHM_INFO, (struct shmid_ds *)&after)) >= 0);
		OK(shmctl(id, IPC_RMID, NULL));
		OK(shmctl(other, IPC_RMID, NULL));
		OK(shmdt(at));
		CHECK(after.used_ids >= 2 && after.shm_tot >= 11);
		if (after.used_ids == before.used_ids + 2 && after.shm_tot == before.shm_tot + 11 &&
		    after.shm_rss + after.shm_swp >= before.shm_rss + before.shm_swp + 4)
			return;
		pause_us(10000);
	}
	FAIL("expected two segments more, of 11 pages, of which 4 are in use; found it never");
}

static int index_of(int id, int command, struct shmid_ds *ds)
{
	struct shminfo info;
	int highest = OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info));
	struct shm_info used;
	CHECK(OK(shmctl(0, SHM_INFO, (struct shmid_ds *)&used)) >= 0);
	for (int i = 0; i <= highest; i++)
		if (shmctl(i, command, ds) == id)
			return i;
	FAIL("expected segment %d at an index up to %d", id, highest);
}

static void stat_by_index(int command)
{
	key_t key = fresh_key();
	int id[3];
	for (int i = 0; i < 3; i++)
		id[i] = OK(keep_shm(shmget(i ? IPC_PRIVATE : key, 100 + i, IPC_CREAT | 0600)));
	attach(id[1]);
	for (int i = 0; i < 3; i++) {
		struct shmid_ds ds;
		memset(&ds, 0, sizeof ds);
		index_of(id[i], command, &ds);
		EQUAL(ds.shm_segsz, 100 + i);
		EQUAL(ds.shm_perm.__key, i ? IPC_PRIVATE : key);
		EQUAL(ds.shm_nattch, i == 1);
		EQUAL(ds.shm_cpid, getpid());
		EQUAL(ds.shm_perm.mode, 0600);
	}
	/* That of a segment that is gone. */
	struct shmid_ds ds;
	int at = index_of(id[2], command, &ds);
	OK(shmctl(id[2], IPC_RMID, NULL));
	int found = shmctl(at, command, &ds);
	CHECK(found == -1 ? errno == EINVAL : found != id[2]);
}

CASE(ctl_stat_index, "SHM_STAT: the argument is an index; returns the identifier; shmctl(2)")
{
	stat_by_index(SHM_STAT);
}

CASE(ctl_stat_any_index, "SHM_STAT_ANY returns a shmid_ds structure as for SHM_STAT; shmctl(2)")
{
	stat_by_index(SHM_STAT_ANY);
}

CASE(ctl_stat_unused_index, "The index value referred to an array slot that is currently unused: EINVAL; shmctl(2)")
{
	struct shmid_ds ds;
	FAILS(shmctl(-1, SHM_STAT, &ds), EINVAL);
	FAILS(shmctl(-1, SHM_STAT_ANY, &ds), EINVAL);
	struct shminfo info;
	int highest = OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info));
	FAILS(shmctl(highest + 1000, SHM_STAT, &ds), EINVAL);
	FAILS(shmctl(highest + 1000, SHM_STAT_ANY, &ds), EINVAL);
}

CASE(ctl_stat_index_bad_address, "SHM_STAT writes into the structure pointed to by buf: EFAULT; shmctl(2)")
{
	struct shmid_ds ds;
	int at = index_of(new_shm(PAGE), SHM_STAT, &ds);
	FAILS(shmctl(at, SHM_STAT, no_memory()), EFAULT);
	FAILS(shmctl(at, SHM_STAT_ANY, no_memory()), EFAULT);
}

CASE(lock_and_unlock, "If a segment has been locked, SHM_LOCKED of shm_perm.mode will be set; shmctl(2)")
{
	int id = new_shm(PAGE);
	OK(shmctl(id, SHM_LOCK, NULL));
	EQUAL(shm_stat(id).shm_perm.mode, 0600 | SHM_LOCKED);
	OK(shmctl(id, SHM_LOCK, NULL));
	OK(shmctl(id, SHM_UNLOCK, NULL));
	EQUAL(shm_stat(id).shm_perm.mode, 0600);
	OK(shmctl(id, SHM_UNLOCK, NULL));
	FAILS(shmctl(-1, SHM_LOCK, NULL), EINVAL);
	GONE(shmctl(INT_MAX, SHM_UNLOCK, NULL));
}

CASE(lock_users_limits,
     "SHM_LOCK by the owner within RLIMIT_MEMLOCK: success, beyond it ENOMEM, with 0 or by others EPERM; shmctl(2)")
{
	NEEDS_ROOT();
	int other = new_shm(PAGE);
	struct rlimit limit = {8 * PAGE, 8 * PAGE};
	OK(setrlimit(RLIMIT_MEMLOCK, &limit));
	OK(setresgid(1000, 1000, 1000));
	OK(setresuid(1000, 1000, 1000));
	int id = new_shm(4 * PAGE), large = new_shm(16 * PAGE);
	OK(shmctl(id, SHM_LOCK, NULL));
	FAILS(shmctl(large, SHM_LOCK, NULL), ENOMEM);
	FAILS(shmctl(other, SHM_LOCK, NULL), EPERM);
	OK(shmctl(id, SHM_UNLOCK, NULL));
	limit.rlim_cur = 0;
	OK(setrlimit(RLIMIT_MEMLOCK, &limit));
	FAILS(shmctl(id, SHM_LOCK, NULL), EPERM);
}

CASE(remap_in_part, "SHM_REMAP replaces a mapping in the range; shmdt detaches what is left of a segment; shmop(2)")
{
	int under = OK(keep_shm(shmget(IPC_PRIVATE, 4 * PAGE, 0600)));
	int over = OK(keep_shm(shmget(IPC_PRIVATE, 2 * PAGE, 0600)));
	char *at = shmat(under, NULL, 0);
	CHECK(at != (void *)-1);
	at[3 * PAGE] = 1;
	CHECK(shmat(over, at + PAGE, SHM_REMAP) == at + PAGE);
	at[PAGE] = 2;
	EQUAL(at[3 * PAGE], 1);
	pid_t pid = child();
	if (pid == 0) {
		EQUAL(at[PAGE], 2);
		EQUAL(at[3 * PAGE], 1);
		at[2 * PAGE] = 4;
		_exit(0);
	}
	JOIN(pid);
	EQUAL(at[2 * PAGE], 4);
	OK(shmdt(at));
	/* The other one stays. */
	EQUAL(at[PAGE], 2);
	at[2 * PAGE] = 3;
	OK(shmdt(at + PAGE));
	FAILS(shmdt(at + PAGE), EINVAL);
}

/* Where in its file a mapping begins that has an address, and how far into it that is. */
static off_t place_of(const char *address)
{
	unsigned long low, high, offset;
	off_t place = -1;
	char *line = NULL;
	size_t bytes = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL);
	while (getline(&line, &bytes, maps) > 0)
		if (sscanf(line, "%lx-%lx %*s %lx", &low, &high, &offset) == 3 && low <= (unsigned long)address && (unsigned long)address < high)
			place = offset + ((unsigned long)address - low);
	free(line);
	fclose(maps);
	CHECK(place >= 0);
	return place;
}

CASE(remap_beside_a_file, "shmdt detaches the segment, and not what the program has mapped over it since, from whatever file; shmop(2)")
{
	int under = OK(keep_shm(shmget(IPC_PRIVATE, 4 * PAGE, 0600)));
	int over = OK(keep_shm(shmget(IPC_PRIVATE, PAGE, 0600)));
	char *at = shmat(under, NULL, 0);
	CHECK(at != (void *)-1);
	CHECK(shmat(over, at + PAGE, SHM_REMAP) == at + PAGE);
	/* A name that is no UTF-8, and the place in the file that the segment has there in its own. */
	int file = OK(memfd_create("\xff\xfe", MFD_CLOEXEC));
	off_t place = place_of(at + 3 * PAGE);
	OK(ftruncate(file, place + PAGE));
	CHECK(mmap(at + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, place) == at + 3 * PAGE);
	at[3 * PAGE] = 5;
	OK(shmdt(at));
	struct shmid_ds stat;
	OK(shmctl(under, IPC_STAT, &stat));
	EQUAL(stat.shm_nattch, 0);
	unsigned char there;
	FAILS(mincore(at, PAGE, &there), ENOMEM);
	FAILS(mincore(at + 2 * PAGE, PAGE, &there), ENOMEM);
	EQUAL(at[3 * PAGE], 5);
	at[PAGE] = 2;
	OK(shmdt(at + PAGE));
}
