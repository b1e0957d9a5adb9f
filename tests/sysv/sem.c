/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Semaphore sets: what semget(2), semop(2) and semctl(2) say of them. Rights are in key.c. */
#include "check.h"
#include "leave.h"

#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static int semopm(void)
{
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	return info.semopm;
}

static int ncnt(int id, int num) { return OK(semctl(id, num, GETNCNT)); }
static int zcnt(int id, int num) { return OK(semctl(id, num, GETZCNT)); }

/* Sets the values of a set, and compares with them. */
#define SET(id, ...)                                                                                                 \
	do {                                                                                                         \
		unsigned short values_[] = {__VA_ARGS__};                                                            \
		OK(semctl(id, 0, SETALL, (union semun){.array = values_}));                                          \
	} while (0)

#define VALUES(id, ...)                                                                                              \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		unsigned short expected_[] = {__VA_ARGS__}, found_[sizeof expected_ / sizeof *expected_];            \
		OK(semctl(id, 0, GETALL, (union semun){.array = found_}));                                           \
		for (unsigned i_ = 0; i_ < sizeof expected_ / sizeof *expected_; i_++)                               \
			if (found_[i_] != expected_[i_])                                                             \
				FAIL("semaphore %u of %s: expected %d, found %d", i_, #id, expected_[i_], found_[i_]);  \
	} while (0)

#define OPS(...) (struct sembuf[]){__VA_ARGS__}, sizeof((struct sembuf[]){__VA_ARGS__}) / sizeof(struct sembuf)

/* semget(2) */

CASE(get_in_a_child, "The return value is the semaphore set identifier, also for a child whose parent has used sets; semget(2)")
{
	int id = new_sem(1);
	OK(semop1(id, 0, 1, 0));
	pid_t pid = child();
	if (pid == 0) {
		int own = new_sem(1);
		OK(semop1(own, 0, 1, 0));
		OK(semop1(id, 0, 1, 0));
		_exit(0);
	}
	JOIN(pid);
	EQUAL(OK(semctl(id, 0, GETVAL)), 2);
}

CASE(get_private_is_new, "A new set is created if key has the value IPC_PRIVATE; semget(2)")
{
	int first = new_sem(1), second = new_sem(1);
	CHECK(first >= 0 && second >= 0 && first != second);
	OK(setval(first, 0, 5));
	EQUAL(getval(second, 0), 0);
}

CASE(get_private_ignores_flags, "With IPC_PRIVATE all but the least significant 9 bits of semflg are ignored; semget(2)")
{
	int create = OK(keep_sem(semget(IPC_PRIVATE, 1, IPC_CREAT | 0600)));
	int both = OK(keep_sem(semget(IPC_PRIVATE, 1, IPC_CREAT | IPC_EXCL | 0600)));
	int excl = OK(keep_sem(semget(IPC_PRIVATE, 1, IPC_EXCL | 0600)));
	CHECK(create != both && both != excl && create != excl);
}

CASE(get_creates_and_finds, "Created if no set is associated with key and IPC_CREAT is specified; else found by key; semget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_sem(semget(key, 4, IPC_CREAT | 0600)));
	CHECK(id >= 0);
	EQUAL(OK(semget(key, 0, 0)), id);
	EQUAL(OK(semget(key, 4, IPC_CREAT | 0600)), id);
	EQUAL(OK(semget(key, 3, 0600)), id);
	EQUAL(OK(its_semget(p, key, 0, 0)), id);
	EQUAL(OK(its_semget(p, key, 1, IPC_CREAT | 0600)), id);
	EQUAL(sem_stat(id).sem_nsems, 4);
}

CASE(get_exclusive, "IPC_CREAT and IPC_EXCL, and the set exists: EEXIST; semget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_sem(semget(key, 1, IPC_CREAT | IPC_EXCL | 0600)));
	FAILS(semget(key, 1, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
	FAILS(its_semget(p, key, 1, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
	EQUAL(OK(semget(key, 1, IPC_EXCL | 0600)), id);
}

CASE(get_exclusive_race, "Of several who create with IPC_EXCL one succeeds; semget(2)")
{
	struct peer *p[4];
	for (int i = 0; i < 4; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		key_t key = fresh_key();
		int made = 0, id = -1;
		for (int i = 0; i < 4; i++)
			its_semget(later(p[i]), key, 3, IPC_CREAT | IPC_EXCL | 0600);
		for (int i = 0; i < 4; i++) {
			int got = result(p[i]);
			if (got == -1)
				EQUAL(errno, EEXIST);
			else
				made++, id = keep_sem(got);
		}
		EQUAL(made, 1);
		EQUAL(OK(semget(key, 0, 0)), id);
		OK(semctl(id, 0, IPC_RMID));
	}
}

CASE(get_absent, "No set exists for key and semflg did not specify IPC_CREAT: ENOENT; semget(2)")
{
	FAILS(semget(fresh_key(), 1, 0600), ENOENT);
	FAILS(semget(fresh_key(), 0, 0), ENOENT);
	key_t key = fresh_key();
	OK(semctl(OK(keep_sem(semget(key, 1, IPC_CREAT | 0600))), 0, IPC_RMID));
	FAILS(semget(key, 0, 0), ENOENT);
}

CASE(get_invalid_count, "nsems is less than 0 or greater than SEMMSL, or 0 for a new set: EINVAL; semget(2)")
{
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	FAILS(semget(IPC_PRIVATE, -1, 0600), EINVAL);
	FAILS(semget(IPC_PRIVATE, 0, 0600), EINVAL);
	FAILS(semget(fresh_key(), 0, IPC_CREAT | 0600), EINVAL);
	FAILS(semget(IPC_PRIVATE, info.semmsl + 1, 0600), EINVAL);
	FAILS(semget(IPC_PRIVATE, INT_MAX, 0600), EINVAL);
	key_t key = fresh_key();
	OK(keep_sem(semget(key, 1, IPC_CREAT | 0600)));
	FAILS(semget(key, -1, 0), EINVAL);
}

CASE(get_count_beyond_existing, "A set for key exists, but nsems is larger than its number of semaphores: EINVAL; semget(2)")
{
	key_t key = fresh_key();
	int id = OK(keep_sem(semget(key, 3, IPC_CREAT | 0600)));
	EQUAL(OK(semget(key, 3, 0)), id);
	FAILS(semget(key, 4, 0), EINVAL);
	FAILS(semget(key, 4, IPC_CREAT | 0600), EINVAL);
}

CASE(get_initial_data, "semid_ds is initialized: ids, mode, sem_nsems, sem_ctime; sem_otime is 0; semget(2)")
{
	const int modes[] = {0600, 0777, 0640, 0404};
	umask(077);
	for (int i = 0; i < 4; i++) {
		key_t key = fresh_key();
		int id = OK(keep_sem(semget(key, 3 + i, IPC_CREAT | modes[i])));
		struct semid_ds ds = sem_stat(id);
		EQUAL(ds.sem_perm.__key, key);
		EQUAL(ds.sem_perm.cuid, geteuid());
		EQUAL(ds.sem_perm.uid, geteuid());
		EQUAL(ds.sem_perm.cgid, getegid());
		EQUAL(ds.sem_perm.gid, getegid());
		EQUAL(ds.sem_perm.mode, modes[i]);
		EQUAL(ds.sem_nsems, 3 + i);
		EQUAL(ds.sem_otime, 0);
		IS_NOW(ds.sem_ctime);
	}
}

CASE(get_initial_values, "Linux initializes the semaphore values to 0; semget(2)")
{
	for (int round = 0; round < 5; round++) {
		int id = new_sem(4);
		VALUES(id, 0, 0, 0, 0);
		for (int i = 0; i < 4; i++) {
			EQUAL(OK(semctl(id, i, GETPID)), 0);
			EQUAL(ncnt(id, i), 0);
			EQUAL(zcnt(id, i), 0);
		}
		SET(id, 1, 2, 3, 4);
		OK(semctl(id, 0, IPC_RMID));
	}
}

CASE(get_large_set, "sem_nsems is set to the value of nsems; semget(2)")
{
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	int count = info.semmsl < 250 ? info.semmsl : 250;
	int id = new_sem(count);
	for (int i = 0; i < count; i++)
		OK(semop1(id, i, i + 1, 0));
	for (int i = 0; i < count; i++)
		EQUAL(getval(id, i), i + 1);
}

CASE(limit_sets, "The limit for the number of semaphore sets (SEMMNI) would be exceeded: ENOSPC; semget(2)")
{
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	if (info.semmni > 5000)
		SKIP("SEMMNI is %d", info.semmni);
	LIMIT(30);
	int id = -1, count = 0;
	for (int i = 0; i <= info.semmni; i++) {
		int got = keep_sem(semget(IPC_PRIVATE, 1, 0600));
		if (got == -1)
			break;
		id = got;
		count++;
	}
	CHECK(count >= 1 && count <= info.semmni);
	FAILS(semget(IPC_PRIVATE, 1, 0600), ENOSPC);
	FAILS(semget(fresh_key(), 1, IPC_CREAT | 0600), ENOSPC);
	OK(semctl(id, 0, IPC_RMID));
	new_sem(1);
}

CASE(limit_semaphores, "The limit for the number of semaphores (SEMMNS) would be exceeded: ENOSPC; semget(2)")
{
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	int sets = info.semmns / info.semmsl + 1;
	if (sets > info.semmni - 2 || info.semmns > 100000)
		SKIP("SEMMNS is %d, SEMMSL %d, SEMMNI %d", info.semmns, info.semmsl, info.semmni);
	int id = -1;
	for (int i = 0; i < sets; i++) {
		int got = keep_sem(semget(IPC_PRIVATE, info.semmsl, 0600));
		if (got == -1)
			break;
		id = got;
	}
	FAILS(semget(IPC_PRIVATE, info.semmsl, 0600), ENOSPC);
	OK(semctl(id, 0, IPC_RMID));
	new_sem(info.semmsl);
}

/* semop(2): calls that need not wait */

CASE(op_adds, "If sem_op is positive, the operation adds this value to semval; semop(2)")
{
	int id = new_sem(3);
	OK(semop1(id, 1, 1, 0));
	VALUES(id, 0, 1, 0);
	OK(semop1(id, 1, 41, 0));
	OK(semop1(id, 2, 32767, 0));
	VALUES(id, 0, 42, 32767);
}

CASE(op_subtracts, "semval is at least the absolute value of sem_op: this is subtracted from semval; semop(2)")
{
	int id = new_sem(2);
	SET(id, 10, 32767);
	OK(semop1(id, 0, -3, 0));
	OK(semop1(id, 0, -7, 0));
	OK(semop1(id, 1, -32767, 0));
	VALUES(id, 0, 0);
}

CASE(op_zero, "If semval is zero, a wait-for-zero operation can immediately proceed; semop(2)")
{
	int id = new_sem(2);
	SET(id, 0, 1);
	OK(semop1(id, 0, 0, 0));
	OK(semop1(id, 0, 0, IPC_NOWAIT));
	VALUES(id, 0, 1);
}

CASE(op_nowait, "semop fails with EAGAIN where it would wait and IPC_NOWAIT is specified; semop(2)")
{
	int id = new_sem(1);
	FAILS(semop1(id, 0, -1, IPC_NOWAIT), EAGAIN);
	SET(id, 2);
	FAILS(semop1(id, 0, 0, IPC_NOWAIT), EAGAIN);
	FAILS(semop1(id, 0, -3, IPC_NOWAIT), EAGAIN);
	FAILS(semop1(id, 0, -32768, IPC_NOWAIT), EAGAIN);
	VALUES(id, 2);
	EQUAL(ncnt(id, 0), 0);
	EQUAL(zcnt(id, 0), 0);
	OK(semop1(id, 0, -2, IPC_NOWAIT));
}

CASE(op_is_atomic, "The operations are performed either as a complete unit, or not at all; semop(2)")
{
	int id = new_sem(4);
	SET(id, 5, 0, 5, 1);
	FAILS(semop(id, OPS({0, -2, IPC_NOWAIT}, {2, 3, IPC_NOWAIT}, {1, -1, IPC_NOWAIT})), EAGAIN);
	VALUES(id, 5, 0, 5, 1);
	FAILS(semop(id, OPS({0, -5, 0}, {0, 0, 0}, {2, 1, 0}, {3, 0, IPC_NOWAIT})), EAGAIN);
	VALUES(id, 5, 0, 5, 1);
	OK(semop(id, OPS({0, -2, 0}, {2, 3, 0}, {1, 0, 0}, {3, -1, 0})));
	VALUES(id, 3, 0, 8, 0);
}

CASE(op_in_array_order, "The set of operations is performed in array order; semop(2)")
{
	int id = new_sem(1);
	FAILS(semop(id, OPS({0, -1, IPC_NOWAIT}, {0, 1, IPC_NOWAIT})), EAGAIN);
	OK(semop(id, OPS({0, 1, IPC_NOWAIT}, {0, -1, IPC_NOWAIT})));
	VALUES(id, 0);
	/* Wait for zero, and then increment: the example of the page. */
	OK(semop(id, OPS({0, 0, IPC_NOWAIT}, {0, 1, IPC_NOWAIT})));
	VALUES(id, 1);
	FAILS(semop(id, OPS({0, 0, IPC_NOWAIT}, {0, 1, IPC_NOWAIT})), EAGAIN);
	OK(semop(id, OPS({0, -1, IPC_NOWAIT}, {0, 0, IPC_NOWAIT}, {0, 3, IPC_NOWAIT}, {0, -1, IPC_NOWAIT})));
	VALUES(id, 2);
}

CASE(op_flags_are_of_each, "The behaviour depends on IPC_NOWAIT in the individual sem_flg fields; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(2);
	SET(id, 1, 0);
	/* It is the second one that would wait. */
	FAILS(semop(id, OPS({0, -1, 0}, {1, -1, IPC_NOWAIT})), EAGAIN);
	its_semop(later(p), id, OPS({0, -1, IPC_NOWAIT}, {1, -1, 0}));
	CHECK(blocks(p));
	VALUES(id, 1, 0);
	OK(semop1(id, 1, 1, 0));
	OK(result(p));
	VALUES(id, 0, 0);
}

CASE(op_range, "sem_op+semval is greater than SEMVMX: ERANGE; semop(2)")
{
	int id = new_sem(2);
	SET(id, 32767, 0);
	FAILS(semop1(id, 0, 1, 0), ERANGE);
	FAILS(semop1(id, 0, 32767, IPC_NOWAIT), ERANGE);
	FAILS(semop(id, OPS({1, 1, 0}, {0, 1, 0})), ERANGE);
	FAILS(semop(id, OPS({0, 1, 0}, {0, -1, 0})), ERANGE);
	VALUES(id, 32767, 0);
	OK(semop(id, OPS({0, -1, 0}, {0, 1, 0})));
	VALUES(id, 32767, 0);
}

CASE(op_too_many, "nsops is greater than SEMOPM: E2BIG; semop(2)")
{
	int most = semopm(), id = new_sem(2);
	CHECK(most >= 1);
	struct sembuf *sops = calloc(most + 1, sizeof *sops);
	for (int i = 0; i <= most; i++)
		sops[i] = (struct sembuf){i % 2, 1, 0};
	FAILS(semop(id, sops, most + 1), E2BIG);
	FAILS(semop(id, sops, SIZE_MAX), E2BIG);
	VALUES(id, 0, 0);
	OK(semop(id, sops, most));
	VALUES(id, (most + 1) / 2, most / 2);
}

CASE(op_many_in_one, "All of the operations of one call are performed, with SEM_UNDO as well; semop(2)")
{
	struct peer *p = peer();
	struct seminfo info;
	struct sembuf sops[60];
	int count = semopm() < 60 ? semopm() : 60;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	count = count < info.semmsl ? count : info.semmsl;
	int id = new_sem(count);
	for (int i = 0; i < count; i++)
		sops[i] = (struct sembuf){count - 1 - i, i + 1, SEM_UNDO};
	OK(its_semop(p, id, sops, count));
	for (int i = 0; i < count; i++)
		EQUAL(getval(id, i), count - i);
	its_kill(p);
	for (int i = 0; i < count; i++)
		EQUAL(getval(id, i), 0);
}

CASE(op_none, "nsops has a nonpositive value: EINVAL; semop(2)")
{
	int id = new_sem(1);
	struct sembuf sop = {0, 1, 0};
	FAILS(semop(id, &sop, 0), EINVAL);
	VALUES(id, 0);
}

CASE(op_invalid_id, "The set does not exist, or semid is less than zero: EINVAL; semop(2)")
{
	FAILS(semop1(-1, 0, 1, 0), EINVAL);
	FAILS(semop1(INT_MIN, 0, 1, 0), EINVAL);
	GONE(semop1(INT_MAX, 0, 1, 0));
	int id = new_sem(1);
	OK(semctl(id, 0, IPC_RMID));
	GONE(semop1(id, 0, 1, 0));
	GONE(semop1(id, 0, -1, 0));
}

CASE(op_no_such_semaphore, "sem_num is greater than or equal to the number of semaphores in the set: EFBIG; semop(2)")
{
	int id = new_sem(2);
	FAILS(semop1(id, 2, 1, 0), EFBIG);
	FAILS(semop1(id, 65535, -1, IPC_NOWAIT), EFBIG);
	FAILS(semop(id, OPS({0, 1, 0}, {2, 0, 0})), EFBIG);
	VALUES(id, 0, 0);
}

CASE(op_bad_address, "An address in the sops or the timeout argument is not accessible: EFAULT; semop(2)")
{
	int id = new_sem(1);
	FAILS(semop(id, no_memory(), 1), EFAULT);
	FAILS(semop(id, (void *)8, 1), EFAULT);
	/* The second one of two. */
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(pages + PAGE, PAGE, PROT_NONE);
	struct sembuf *last = (struct sembuf *)(pages + PAGE) - 1;
	*last = (struct sembuf){0, 1, 0};
	FAILS(semop(id, last, 2), EFAULT);
	VALUES(id, 0);
	OK(semop(id, last, 1));
	FAILS(semtimedop(id, OPS({0, -2, 0}), no_memory()), EFAULT);
	VALUES(id, 1);
}

CASE(op_sets_pid, "sempid of each semaphore specified is set to the caller's process ID; semop(2)")
{
	struct peer *p = peer_at(0);
	int id = new_sem(4), its = peers_are_here ? p->pid : 0;
	OK(semop(id, OPS({0, 1, 0}, {2, 0, 0})));
	EQUAL(OK(semctl(id, 0, GETPID)), getpid());
	EQUAL(OK(semctl(id, 1, GETPID)), 0);
	EQUAL(OK(semctl(id, 2, GETPID)), getpid());
	OK(its_semop(p, id, OPS({0, -1, SEM_UNDO}, {1, 1, 0})));
	EQUAL(OK(semctl(id, 0, GETPID)), its);
	EQUAL(OK(semctl(id, 1, GETPID)), its);
	EQUAL(OK(semctl(id, 2, GETPID)), getpid());
	EQUAL(OK(semctl(id, 3, GETPID)), 0);
	EQUAL(OK(its_semctl(p, id, 0, GETPID, (union semun){0})), p->pid);
	/* One that fails changes nothing. */
	FAILS(its_semop(p, id, OPS({2, 1, IPC_NOWAIT}, {3, -1, IPC_NOWAIT})), EAGAIN);
	EQUAL(OK(semctl(id, 2, GETPID)), getpid());
	EQUAL(OK(semctl(id, 3, GETPID)), 0);
}

CASE(op_sets_otime, "On successful completion, sem_otime is set to the current time; semop(2)")
{
	int id = new_sem(2);
	FAILS(semop1(id, 0, -1, IPC_NOWAIT), EAGAIN);
	EQUAL(sem_stat(id).sem_otime, 0);
	OK(semop1(id, 1, 0, 0));
	IS_NOW(sem_stat(id).sem_otime);
	long before = sem_stat(id).sem_otime, ctime = sem_stat(id).sem_ctime;
	pause_us(1100000);
	FAILS(semop1(id, 0, -1, IPC_NOWAIT), EAGAIN);
	EQUAL(sem_stat(id).sem_otime, before);
	OK(semop1(id, 0, 1, 0));
	CHECK(sem_stat(id).sem_otime > before);
	IS_NOW(sem_stat(id).sem_otime);
	EQUAL(sem_stat(id).sem_ctime, ctime);
}

/* semop(2): calls that wait */

CASE(wait_for_increase, "The thread sleeps until semval becomes at least the absolute value of sem_op; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	its_semop1(later(p), id, 0, -3, 0);
	CHECK(blocks(p));
	EQUAL(ncnt(id, 0), 1);
	EQUAL(zcnt(id, 0), 0);
	for (int i = 1; i < 3; i++) {
		OK(semop1(id, 0, 1, 0));
		CHECK(blocks(p));
		EQUAL(getval(id, 0), i);
		EQUAL(ncnt(id, 0), 1);
	}
	OK(semop1(id, 0, 1, 0));
	OK(result(p));
	VALUES(id, 0);
	EQUAL(ncnt(id, 0), 0);
	EQUAL(OK(its_semctl(p, id, 0, GETPID, (union semun){0})), p->pid);
}

CASE(wait_for_zero, "The thread sleeps until semval becomes 0; semzcnt is incremented, and then decremented; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	SET(id, 2);
	its_semop1(later(p), id, 0, 0, 0);
	CHECK(blocks(p));
	EQUAL(zcnt(id, 0), 1);
	EQUAL(ncnt(id, 0), 0);
	OK(semop1(id, 0, -1, 0));
	CHECK(blocks(p));
	OK(semop1(id, 0, -1, 0));
	OK(result(p));
	VALUES(id, 0);
	EQUAL(zcnt(id, 0), 0);
}

CASE(wait_for_several, "The operations are performed as a unit: nothing is taken while the call waits; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(3);
	SET(id, 1, 0, 1);
	its_semop(later(p), id, OPS({0, -1, 0}, {1, -1, 0}, {2, 0, 0}));
	CHECK(blocks(p));
	VALUES(id, 1, 0, 1);
	EQUAL(ncnt(id, 0) + ncnt(id, 1) + zcnt(id, 2), 1);
	OK(semop1(id, 1, 1, 0));
	CHECK(blocks(p));
	VALUES(id, 1, 1, 1);
	/* What it has not taken others can take. */
	OK(semop1(id, 0, -1, IPC_NOWAIT));
	OK(semop1(id, 2, -1, 0));
	CHECK(blocks(p));
	VALUES(id, 0, 1, 0);
	OK(semop1(id, 0, 1, 0));
	OK(result(p));
	VALUES(id, 0, 0, 0);
	EQUAL(ncnt(id, 0) + ncnt(id, 1) + zcnt(id, 2), 0);
}

CASE(wait_counts, "semncnt and semzcnt count the threads that wait for each semaphore; semop(2)")
{
	enum { WAITERS = 6 };
	struct peer *p[WAITERS];
	int id = new_sem(2);
	SET(id, 0, 1);
	for (int i = 0; i < WAITERS; i++) {
		p[i] = peer();
		its_semop1(later(p[i]), id, i % 2, i % 2 ? 0 : -1, 0);
		CHECK(blocks(p[i]));
		EQUAL(ncnt(id, 0), i / 2 + 1);
		EQUAL(zcnt(id, 1), (i + 1) / 2);
		EQUAL(ncnt(id, 1), 0);
		EQUAL(zcnt(id, 0), 0);
	}
	/* All who wait for zero go on at once. */
	OK(semop1(id, 1, -1, 0));
	for (int i = 1; i < WAITERS; i += 2)
		OK(result(p[i]));
	EQUAL(zcnt(id, 1), 0);
	EQUAL(ncnt(id, 0), WAITERS / 2);
	OK(semop1(id, 0, WAITERS / 2, 0));
	for (int i = 0; i < WAITERS; i += 2)
		OK(result(p[i]));
	EQUAL(ncnt(id, 0), 0);
	VALUES(id, 0, 0);
}

CASE(wait_one_of_several, "Of several who wait for an increase by 1, one goes on; semop(2)")
{
	enum { WAITERS = 4 };
	struct peer *p[WAITERS];
	bool waits[WAITERS];
	int id = new_sem(1);
	for (int i = 0; i < WAITERS; i++) {
		p[i] = peer();
		its_semop1(later(p[i]), id, 0, -1, 0);
		CHECK(blocks(p[i]));
		waits[i] = true;
	}
	for (int left = WAITERS; left > 0; left--) {
		EQUAL(ncnt(id, 0), left);
		OK(semop1(id, 0, 1, 0));
		UNTIL(getval(id, 0) == 0 && ncnt(id, 0) == left - 1);
		int woken = 0;
		pause_ms(2);
		while (!woken)
			for (int i = 0; i < WAITERS; i++)
				if (waits[i] && has_result(p[i])) {
					OK(result(p[i]));
					waits[i] = false;
					woken++;
				}
		EQUAL(woken, 1);
	}
	VALUES(id, 0);
}

CASE(wait_different_amounts, "Who can proceed proceeds, whatever else others wait for; semop(2)")
{
	struct peer *p = peer(), *q = peer(), *r = peer();
	int id = new_sem(1);
	its_semop1(later(p), id, 0, -5, 0);
	CHECK(blocks(p));
	its_semop1(later(q), id, 0, -2, 0);
	CHECK(blocks(q));
	OK(semop1(id, 0, 2, 0));
	OK(result(q));
	CHECK(blocks(p));
	VALUES(id, 0);
	its_semop(later(r), id, OPS({0, 0, 0}, {0, 1, 0}));
	OK(result(r));
	VALUES(id, 1);
	OK(semop1(id, 0, 4, 0));
	OK(result(p));
	VALUES(id, 0);
}

CASE(wait_chain, "A call that goes on lets others go on that wait for what it does; semop(2)")
{
	enum { LINKS = 6 };
	struct peer *p[LINKS];
	int id = new_sem(LINKS + 1);
	for (int i = 0; i < LINKS; i++) {
		p[i] = peer();
		its_semop(later(p[i]), id, OPS({i, -1, 0}, {i + 1, 1, 0}));
		CHECK(blocks(p[i]));
	}
	OK(semop1(id, 0, 1, 0));
	for (int i = 0; i < LINKS; i++)
		OK(result(p[i]));
	EQUAL(getval(id, LINKS), 1);
	EQUAL(getval(id, LINKS - 1), 0);
}

CASE(wait_until_removed, "The set is removed: semop fails with EIDRM; semop(2), semctl(2)")
{
	struct peer *p[4];
	int id = new_sem(2);
	SET(id, 0, 1);
	for (int i = 0; i < 4; i++)
		p[i] = peer();
	its_semop1(later(p[0]), id, 0, -1, 0);
	its_semop1(later(p[1]), id, 1, 0, SEM_UNDO);
	its_semop(later(p[2]), id, OPS({1, -1, SEM_UNDO}, {0, -1, SEM_UNDO}));
	its_semtimedop(later(p[3]), id, OPS({0, -2, 0}), 100.0);
	for (int i = 0; i < 4; i++)
		CHECK(blocks(p[i]));
	OK(semctl(id, 0, IPC_RMID));
	for (int i = 0; i < 4; i++)
		FAILS(result(p[i]), EIDRM);
	/* They are as good as before. */
	id = new_sem(1);
	for (int i = 0; i < 4; i++)
		OK(its_semop1(p[i], id, 0, 1, SEM_UNDO));
	VALUES(id, 4);
}

CASE(wait_until_set, "If SETVAL or SETALL would permit blocked semop calls to proceed, those processes are woken up; semctl(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_sem(2);
	SET(id, 0, 3);
	its_semop1(later(p), id, 0, -2, 0);
	CHECK(blocks(p));
	OK(setval(id, 0, 1));
	CHECK(blocks(p));
	OK(setval(id, 0, 5));
	OK(result(p));
	VALUES(id, 3, 3);
	its_semop1(later(q), id, 1, 0, 0);
	CHECK(blocks(q));
	OK(setval(id, 1, 0));
	OK(result(q));
	SET(id, 0, 1);
	its_semop1(later(p), id, 0, -2, 0);
	its_semop1(later(q), id, 1, 0, 0);
	CHECK(blocks(p));
	CHECK(blocks(q));
	SET(id, 2, 0);
	OK(result(p));
	OK(result(q));
	VALUES(id, 0, 0);
}

CASE(wait_until_killed, "semncnt counts the processes that wait: not those that were killed; semctl(2)")
{
	struct peer *p = peer(), *q = peer(), *r = peer();
	int id = new_sem(2);
	SET(id, 0, 1);
	its_semop1(later(p), id, 0, -1, 0);
	its_semop1(later(q), id, 1, 0, SEM_UNDO);
	its_semop1(later(r), id, 0, -1, SEM_UNDO);
	CHECK(blocks(p));
	CHECK(blocks(q));
	CHECK(blocks(r));
	EQUAL(ncnt(id, 0), 2);
	EQUAL(zcnt(id, 1), 1);
	its_kill(p);
	its_kill(q);
	EQUAL(ncnt(id, 0), 1);
	EQUAL(zcnt(id, 1), 0);
	/* The dead take nothing. */
	OK(semop1(id, 0, 2, 0));
	OK(result(r));
	VALUES(id, 1, 1);
	OK(semop1(id, 0, -1, IPC_NOWAIT));
}

CASE(wait_killed_with_undo, "A process that is killed while it is woken up undoes what it did with SEM_UNDO; semop(2)")
{
	LIMIT(60);
	int id = new_sem(1);
	for (int i = 0; i < 300; i++) {
		pid_t pid = child();
		if (pid == 0) {
			OK(semop1(id, 0, -1, SEM_UNDO));
			for (;;)
				pause();
		}
		UNTIL(ncnt(id, 0) == 1);
		pause_us(i % 10 * 20);
		OK(semop1(id, 0, 1, 0));
		for (double until = now() + i % 100 * 1e-6; now() < until;)
			;
		kill_child(pid);
		EQUAL(getval(id, 0), 1);
		EQUAL(ncnt(id, 0), 0);
		OK(semop1(id, 0, -1, IPC_NOWAIT));
	}
}

CASE(wait_after_exec, "A process that waits after an execve waits as any other; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	its_exec(p);
	its_semop1(later(p), id, 0, -1, 0);
	CHECK(blocks(p));
	EQUAL(ncnt(id, 0), 1);
	OK(semop1(id, 0, 1, 0));
	OK(result(p));
}

/* semtimedop(2) */

CASE(timed_out, "The time limit has been reached: EAGAIN, and none of the operations is performed; semop(2)")
{
	int id = new_sem(2);
	SET(id, 5, 1);
	struct timespec limit = {0, 60 * 1000 * 1000};
	double start = now();
	FAILS(semtimedop(id, OPS({0, -1, 0}, {1, 0, 0}), &limit), EAGAIN);
	CHECK(now() - start >= 0.06);
	VALUES(id, 5, 1);
	EQUAL(zcnt(id, 1), 0);
	start = now();
	FAILS(semtimedop(id, OPS({0, -6, SEM_UNDO}), &limit), EAGAIN);
	CHECK(now() - start >= 0.06);
	EQUAL(ncnt(id, 0), 0);
	limit.tv_sec = 1;
	start = now();
	FAILS(semtimedop(id, OPS({0, -6, 0}), &limit), EAGAIN);
	CHECK(now() - start >= 1.06);
	EQUAL(sem_stat(id).sem_otime, 0);
}

CASE(timed_short, "The duration of the sleep is limited by the elapsed time that the timeout tells; semop(2)")
{
	int id = new_sem(1);
	for (int us = 0; us <= 1000; us += 50) {
		struct timespec limit = {0, us * 1000};
		double start = now();
		FAILS(semtimedop(id, OPS({0, -1, 0}), &limit), EAGAIN);
		CHECK(now() - start >= us * 1e-6);
	}
	EQUAL(ncnt(id, 0), 0);
}

CASE(timed_zero, "A time limit of 0 is reached at once: EAGAIN; semop(2)")
{
	int id = new_sem(1);
	struct timespec limit = {0, 0};
	FAILS(semtimedop(id, OPS({0, -1, 0}), &limit), EAGAIN);
	OK(semtimedop(id, OPS({0, 1, 0}), &limit));
	FAILS(semtimedop(id, OPS({0, 0, 0}), &limit), EAGAIN);
	OK(semtimedop(id, OPS({0, -1, 0}), &limit));
}

CASE(timed_in_time, "semtimedop behaves identically to semop except for the limit; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(2);
	its_semtimedop(later(p), id, OPS({0, -1, 0}, {1, 1, SEM_UNDO}), 100);
	CHECK(blocks(p));
	EQUAL(ncnt(id, 0), 1);
	OK(semop1(id, 0, 2, 0));
	OK(result(p));
	VALUES(id, 1, 1);
	struct timespec limit = {0, 1000};
	FAILS(semtimedop(id, OPS({0, -2, IPC_NOWAIT}), &limit), EAGAIN);
	OK(semtimedop(id, OPS({0, -1, 0}), &limit));
	FAILS(semtimedop(id, OPS({2, 1, 0}), &limit), EFBIG);
	struct sembuf sop = {0, 1, 0};
	FAILS(semtimedop(id, &sop, 0, &limit), EINVAL);
	FAILS(semtimedop(id, &sop, semopm() + 1, &limit), E2BIG);
	FAILS(semtimedop(-1, &sop, 1, &limit), EINVAL);
}

CASE(timed_null, "If the timeout argument is NULL, semtimedop behaves exactly like semop; semop(2)")
{
	int id = new_sem(1);
	OK(semtimedop(id, OPS({0, 3, 0}), NULL));
	FAILS(semtimedop(id, OPS({0, 0, IPC_NOWAIT}), NULL), EAGAIN);
	struct {
		atomic_int entered, returned;
	} *turn = shared_memory(PAGE);
	pid_t pid = child();
	if (pid == 0) {
		atomic_store(&turn->entered, 1);
		OK(semtimedop(id, OPS({0, 0, 0}), NULL));
		_exit(0);
	}
	CHECK(sleeps(pid, pid, &turn->entered, 1, &turn->returned));
	EQUAL(zcnt(id, 0), 1);
	OK(semop1(id, 0, -3, 0));
	JOIN(pid);
}

CASE(timed_invalid, "The timespec structure must be a valid time: EINVAL; semop(2)")
{
	int id = new_sem(1);
	FAILS(semtimedop(id, OPS({0, -1, 0}), (&(struct timespec){-1, 0})), EINVAL);
	FAILS(semtimedop(id, OPS({0, -1, 0}), (&(struct timespec){0, -1})), EINVAL);
	FAILS(semtimedop(id, OPS({0, -1, 0}), (&(struct timespec){0, 1000000000})), EINVAL);
}

CASE(timed_long, "The time limit is a timespec: a long one is long; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	its_semtimedop(later(p), id, OPS({0, -1, 0}), 5e9);
	CHECK(blocks(p));
	pause_ms(20);
	CHECK(blocks(p));
	OK(semop1(id, 0, 1, 0));
	OK(result(p));
	struct {
		atomic_int entered, returned;
	} *turn = shared_memory(PAGE);
	pid_t pid = child();
	if (pid == 0) {
		struct timespec longest = {LONG_MAX, 999999999};
		atomic_store(&turn->entered, 1);
		OK(semtimedop(id, OPS({0, -1, 0}), &longest));
		_exit(0);
	}
	CHECK(sleeps(pid, pid, &turn->entered, 1, &turn->returned));
	OK(semop1(id, 0, 1, 0));
	JOIN(pid);
}

CASE(timed_interrupted, "If semtimedop is interrupted by a signal, the contents of timeout are left unchanged; semop(2)")
{
	struct {
		atomic_int entered, returned;
	} *turn = shared_memory(PAGE);
	int id = new_sem(1);
	pid_t pid = child();
	if (pid == 0) {
		catch_signal(SIGUSR1, SA_RESTART);
		struct timespec limit = {3600, 123456789};
		atomic_store(&turn->entered, 1);
		FAILS(semtimedop(id, OPS({0, -1, 0}), &limit), EINTR);
		atomic_store(&turn->returned, 1);
		EQUAL(limit.tv_sec, 3600);
		EQUAL(limit.tv_nsec, 123456789);
		_exit(0);
	}
	CHECK(sleeps(pid, pid, &turn->entered, 1, &turn->returned));
	EQUAL(ncnt(id, 0), 1);
	kill(pid, SIGUSR1);
	JOIN(pid);
	EQUAL(ncnt(id, 0), 0);
}

/* Signals */

/* What the child of the cases below does in each turn. */
enum way { DECREASE, ZERO, SEVERAL, TIMED };
static int wait_in_a_way(int id, enum way way)
{
	struct timespec limit = {1000, 0};
	switch (way) {
	case DECREASE:
		return semop1(id, 0, -1, 0);
	case ZERO:
		return semop1(id, 1, 0, 0);
	case SEVERAL:
		return semop(id, OPS({1, -1, SEM_UNDO}, {0, -1, SEM_UNDO}));
	case TIMED:
		return semtimedop(id, OPS({0, -1, 0}), &limit);
	}
	return 0;
}

struct turn {
	atomic_int go, entered, returned, value, error;
};

static void busy_us(double us)
{
	for (double until = now() + us * 1e-6; now() < until;)
		;
}

/* The child makes the call in turn after turn, until it is killed. */
static pid_t waiting_child(struct turn *turn, int id, enum way way, int flags)
{
	pid_t pid = child();
	if (pid == 0) {
		catch_signal(SIGUSR1, flags);
		/* What the first call of a process has to ask others is no wait for the set. */
		FAILS(semop1(id, 0, -1, IPC_NOWAIT), EAGAIN);
		for (int i = 1;; i++) {
			while (atomic_load(&turn->go) != i)
				sched_yield();
			atomic_store(&turn->entered, i);
			int value = wait_in_a_way(id, way);
			int error = errno;
			atomic_store(&turn->value, value);
			atomic_store(&turn->error, error);
			atomic_store(&turn->returned, i);
		}
	}
	return pid;
}

/*
 * A signal at any moment around the call's beginning. It may come before the call, and then the next one ends it: it is
 * repeated until the child has returned.
 */
static void interrupted(enum way way, int flags)
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(2);
	SET(id, 0, 1);
	pid_t pid = waiting_child(turn, id, way, flags);
	for (int i = 1; i <= 300; i++) {
		atomic_store(&turn->go, i);
		while (atomic_load(&turn->entered) != i)
			sched_yield();
		busy_us(i * 7 % 300);
		kill(pid, SIGUSR1);
		for (int wait = 0; atomic_load(&turn->returned) != i; wait++) {
			if (wait % 64 == 63)
				kill(pid, SIGUSR1);
			pause_us(50);
		}
		EQUAL(atomic_load(&turn->value), -1);
		EQUAL(atomic_load(&turn->error), EINTR);
		EQUAL(ncnt(id, 0) + ncnt(id, 1), 0);
		EQUAL(zcnt(id, 1), 0);
	}
	VALUES(id, 0, 1);
	kill_child(pid);
}

/* A single signal to a call that is counted as one that waits: it must end it. */
static void interrupted_once(enum way way, int flags)
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(2);
	SET(id, 0, 1);
	pid_t pid = waiting_child(turn, id, way, flags);
	for (int i = 1; i <= 300; i++) {
		atomic_store(&turn->go, i);
		while (ncnt(id, 0) + ncnt(id, 1) + zcnt(id, 1) != 1)
			sched_yield();
		busy_us(i * 7 % 300);
		kill(pid, SIGUSR1);
		while (atomic_load(&turn->returned) != i)
			sched_yield();
		EQUAL(atomic_load(&turn->value), -1);
		EQUAL(atomic_load(&turn->error), EINTR);
		EQUAL(ncnt(id, 0) + ncnt(id, 1) + zcnt(id, 1), 0);
	}
	VALUES(id, 0, 1);
	kill_child(pid);
}

#define INTERRUPTED(name, way)                                                                                       \
	CASE(signal_##name, "The calling thread catches a signal: EINTR; semop(2)")                                  \
	{                                                                                                            \
		interrupted(way, 0);                                                                                 \
	}                                                                                                            \
	CASE(signal_restart_##name, "semop is never automatically restarted, regardless of SA_RESTART; semop(2)")    \
	{                                                                                                            \
		interrupted(way, SA_RESTART);                                                                        \
	}                                                                                                            \
	CASE(signal_once_##name, "The thread catches a signal: the count of those that wait is decremented; semop(2)") \
	{                                                                                                            \
		interrupted_once(way, SA_RESTART);                                                                   \
	}
INTERRUPTED(decrease, DECREASE)
INTERRUPTED(zero, ZERO)
INTERRUPTED(several, SEVERAL)
INTERRUPTED(timed, TIMED)

CASE(signal_or_success, "A call either fails with EINTR or is performed, never both; semop(2)")
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(2), successes = 0;
	SET(id, 0, 1);
	pid_t pid = waiting_child(turn, id, DECREASE, SA_RESTART);
	for (int i = 1; i <= 300; i++) {
		atomic_store(&turn->go, i);
		UNTIL(ncnt(id, 0) == 1);
		/* The signal comes before, after, or not at all. */
		if (i % 3 == 0)
			kill(pid, SIGUSR1);
		busy_us(i % 20);
		OK(semop1(id, 0, 1, 0));
		if (i % 3 == 1)
			kill(pid, SIGUSR1);
		while (atomic_load(&turn->returned) != i)
			sched_yield();
		EQUAL(ncnt(id, 0), 0);
		if (atomic_load(&turn->value) == 0) {
			successes++;
			EQUAL(getval(id, 0), 0);
		} else {
			EQUAL(atomic_load(&turn->error), EINTR);
			EQUAL(getval(id, 0), 1);
			OK(semop1(id, 0, -1, IPC_NOWAIT));
		}
	}
	CHECK(successes >= 100);
	kill_child(pid);
}

CASE(signal_ignored, "Only a signal that is caught ends the call; semop(2), signal(7)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	its_semop1(later(p), id, 0, -1, 0);
	CHECK(blocks(p));
	/* Ignored by default. */
	its_signal(p, SIGCHLD);
	its_signal(p, SIGURG);
	pause_ms(20);
	CHECK(blocks(p));
	/* Stopped and continued: signal(7) says that semtimedop and its like fail with EINTR then. */
	its_signal(p, SIGSTOP);
	pause_ms(10);
	its_signal(p, SIGCONT);
	OK(semop1(id, 0, 1, 0));
	long value = result(p);
	CHECK(value == 0 || errno == EINTR);
	EQUAL(getval(id, 0), value == 0 ? 0 : 1);
}

CASE(signal_blocked, "Only a signal that is caught ends the call: not one that is blocked; semop(2)")
{
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(1);
	pid_t pid = child();
	if (pid == 0) {
		catch_signal(SIGUSR1, 0);
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		sigprocmask(SIG_BLOCK, &set, NULL);
		atomic_store(&turn->entered, 1);
		OK(semop1(id, 0, -1, 0));
		EQUAL(atomic_load(&signals_caught), 0);
		/* The mask is the caller's again. */
		sigset_t mask;
		sigprocmask(SIG_BLOCK, NULL, &mask);
		CHECK(sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGTERM));
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		EQUAL(atomic_load(&signals_caught), 1);
		_exit(0);
	}
	CHECK(sleeps(pid, pid, &turn->entered, 1, &turn->returned));
	kill(pid, SIGUSR1);
	pause_ms(20);
	CHECK(sleeps(pid, pid, &turn->entered, 1, &turn->returned));
	EQUAL(ncnt(id, 0), 1);
	OK(semop1(id, 0, 1, 0));
	JOIN(pid);
}

static void *pause_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

CASE(signal_first_thread, "A signal to the process interrupts semop of its first thread, though another one could take it; semop(2)")
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(1);
	pid_t pid = child();
	if (pid == 0) {
		pthread_t other;
		catch_signal(SIGUSR1, SA_RESTART);
		EQUAL(pthread_create(&other, NULL, pause_for_ever, NULL), 0);
		FAILS(semop1(id, 0, -1, IPC_NOWAIT), EAGAIN);
		for (int i = 1; i <= 40; i++) {
			atomic_store(&turn->entered, i);
			FAILS(semop1(id, 0, -1, 0), EINTR);
			CHECK(atomic_load(&signals_caught) >= i);
			atomic_store(&turn->value, i);
		}
		_exit(0);
	}
	int others = 0;
	for (int i = 1; i <= 40; i++) {
		CHECK(sleeps(pid, pid, &turn->entered, i, &turn->returned));
		/* One that is blocked at that moment is the other thread's by right. So is one that comes in a moment in which the sleep has ended by
		   itself, as it does a few times in a second: that is seldom, and such a signal is sent again. */
		do {
			sleeps_for(pid, pid, SIGUSR1);
			kill(pid, SIGUSR1);
			double until = now() + 2;
			while (atomic_load(&turn->value) != i && now() < until)
				pause_us(200);
		} while (atomic_load(&turn->value) != i && ++others <= 2);
		CHECK(others <= 2);
	}
	JOIN(pid);
}

static int call_semop(int id)
{
	return semop1(id, 0, -1, 0);
}

CASE(signal_handler_leaves, "A handler may leave a call that sleeps for good, and nothing is left of that call; semop(2), siglongjmp(3)")
{
	LIMIT(60);
	atomic_int *made = shared_memory(2 * sizeof *made); /* calls; none returns */
	int id = new_sem(1);
	pid_t pid = child();
	if (pid == 0) {
		EQUAL(leave_calls(made, 100, call_semop, id), 100);
		EQUAL(ncnt(id, 0), 0);
		int before = open_files();
		EQUAL(leave_calls(made, 300, call_semop, id), 300);
		EQUAL(open_files(), before);
		EQUAL(ncnt(id, 0), 0);
		/* The mask is the caller's again, and calls do what they do. */
		sigset_t mask;
		sigprocmask(SIG_BLOCK, NULL, &mask);
		CHECK(!sigismember(&mask, SIGALRM) && !sigismember(&mask, SIGTERM));
		OK(semop1(id, 0, 1, 0));
		OK(semop1(id, 0, -1, 0));
		OK(semop1(id, 0, 2, 0));
		_exit(0);
	}
	have_left(made, pid, 400);
	JOIN(pid);
	EQUAL(getval(id, 0), 2);
}

static int give_semop(int id)
{
	return semop1(id, 0, 1, 0);
}

CASE(signal_handler_forks, "A signal is caught: EINTR, in a child that its handler has forked as in the parent; semop(2), fork(2)")
{
	int id = new_sem(1);
	for (int has_thread = 0; has_thread < 2; has_thread++) {
		fork_in_a_call(call_semop, give_semop, id, has_thread);
		EQUAL(ncnt(id, 0), 0);
		EQUAL(getval(id, 0), 0);
	}
}

static int handler_id;
static void operate(int number)
{
	(void)number;
	int error = errno;
	if (semop1(handler_id, 1, 1, 0) == 0 && semctl(handler_id, 1, GETVAL) >= 1)
		count_signal(0);
	errno = error;
}

CASE(signal_handler_operates, "semop is async-signal-safe in practice: a handler that interrupts it may call it; semop(2)")
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(2);
	handler_id = id;
	pid_t pid = child();
	if (pid == 0) {
		struct sigaction action = {.sa_handler = operate};
		sigaction(SIGUSR1, &action, NULL);
		for (int i = 1; i <= 50; i++) {
			atomic_store(&turn->entered, i);
			FAILS(semop1(id, 0, -1, 0), EINTR);
			atomic_store(&turn->returned, i);
			while (atomic_load(&turn->go) != i)
				sched_yield();
		}
		_exit(0);
	}
	for (int i = 1; i <= 50; i++) {
		UNTIL(ncnt(id, 0) == 1);
		EQUAL(getval(id, 1), i - 1);
		kill(pid, SIGUSR1);
		UNTIL(atomic_load(&turn->returned) == i);
		EQUAL(getval(id, 1), i);
		atomic_store(&turn->go, i);
	}
	JOIN(pid);
}

static int handler_queue, handler_failures;
#define HANDLED 1000
static void call_many(int number)
{
	(void)number;
	int error = errno;
	struct { long type; char text[8]; } message = {1, "handler"};
	bool good = semop1(handler_id, 0, 1, 0) == 0 && semctl(handler_id, 1, GETVAL) >= 0;
	struct semid_ds ds;
	good = good && semctl(handler_id, 0, IPC_STAT, (union semun){.buf = &ds}) == 0;
	good = good && (msgsnd(handler_queue, &message, sizeof message.text, IPC_NOWAIT) == 0 || errno == EAGAIN);
	int segment = good ? shmget(IPC_PRIVATE, PAGE, 0600) : -1;
	void *at = segment == -1 ? (void *)-1 : shmat(segment, NULL, 0);
	good = good && segment != -1 && at != (void *)-1 && shmdt(at) == 0 && shmctl(segment, IPC_RMID, NULL) == 0;
	if (good && atomic_load(&signals_caught) % 8 == 0) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		good = pid > 0 && waitpid(pid, NULL, 0) == pid;
	}
	handler_failures += !good;
	count_signal(0);
	/* A handler that takes longer than the timer lets nothing else run. */
	if (atomic_load(&signals_caught) >= HANDLED)
		setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	errno = error;
}

CASE(signal_handler_calls, "Each of the calls is a system call: a handler that interrupts another one may make it; svipc(7)")
{
	LIMIT(60);
	int id = new_sem(2), other = new_sem(1);
	int segment = OK(keep_shm(shmget(IPC_PRIVATE, PAGE, 0600)));
	handler_id = id;
	handler_queue = OK(keep_msg(msgget(IPC_PRIVATE, 0600)));
	pid_t pid = child();
	if (pid == 0) {
		/* Somebody sleeps whom the handler wakes. */
		for (;;)
			semop1(id, 0, -1, 0);
	}
	pid_t calls = child();
	if (calls == 0) {
		struct { long type; char text[8]; } message = {1, "first"};
		struct sigaction action = {.sa_handler = call_many, .sa_flags = SA_RESTART};
		struct itimerval every = {.it_interval = {.tv_usec = 700}, .it_value = {.tv_usec = 700}};
		OK(semop1(id, 0, 1, 0));
		OK(msgsnd(handler_queue, &message, sizeof message.text, 0));
		sigaction(SIGALRM, &action, NULL);
		setitimer(ITIMER_REAL, &every, NULL);
		while (atomic_load(&signals_caught) < HANDLED) {
			struct semid_ds ds;
			OK(semctl(id, 0, IPC_STAT, (union semun){.buf = &ds}));
			OK(semctl(other, 0, SETVAL, (union semun){.val = 1}));
			OK(semop1(id, 0, 1, 0));
			void *at = shmat(segment, NULL, 0);
			CHECK(at != (void *)-1);
			OK(shmdt(at));
			int more = OK(semget(IPC_PRIVATE, 1, 0600));
			OK(semop1(more, 0, 1, 0));
			OK(semctl(more, 0, IPC_RMID));
		}
		EQUAL(handler_failures, 0);
		_exit(0);
	}
	JOIN(calls);
	kill(pid, SIGKILL);
}

/* SEM_UNDO */

static void undone_after(void (*end)(struct peer *))
{
	struct peer *p = peer_at(0);
	int id = new_sem(4), other = new_sem(1), plain = peers_are_here ? p->pid : 0;
	SET(id, 10, 10, 10, 10);
	OK(its_semop1(p, id, 0, -4, SEM_UNDO));
	OK(its_semop(p, id, OPS({1, 5, SEM_UNDO}, {2, -1, 0}, {0, -1, SEM_UNDO})));
	OK(its_semop1(p, id, 1, -2, SEM_UNDO));
	OK(its_semop1(p, id, 1, -1, 0));
	OK(its_semop1(p, other, 0, 3, SEM_UNDO));
	VALUES(id, 5, 12, 9, 10);
	VALUES(other, 3);
	OK(semop1(id, 3, 1, 0));
	end(p);
	/* Only what was done with SEM_UNDO. */
	VALUES(id, 10, 9, 9, 11);
	VALUES(other, 0);
	/* Linux updates sempid for semaphore adjustments: semctl(2). */
	EQUAL(OK(semctl(id, 0, GETPID)), plain);
	EQUAL(OK(semctl(id, 3, GETPID)), getpid());
}

static void end_by_exit(struct peer *p) { its_exit(p, true); }
static void end_by__exit(struct peer *p) { its_exit(p, false); }
static void end_by_kill(struct peer *p) { its_kill(p); }
static void end_by_term(struct peer *p)
{
	its_signal(p, SIGTERM);
	EQUAL(its_status(p), SIGTERM);
}

CASE(undo_at_exit, "An operation with SEM_UNDO will be automatically undone when the process terminates: by exit; semop(2)")
{
	undone_after(end_by_exit);
}

CASE(undo_at__exit, "An operation with SEM_UNDO is undone when the process terminates: by _exit; semop(2)")
{
	undone_after(end_by__exit);
}

CASE(undo_at_kill, "An operation with SEM_UNDO is undone when the process terminates: by SIGKILL; semop(2)")
{
	undone_after(end_by_kill);
}

CASE(undo_at_signal, "An operation with SEM_UNDO is undone when the process terminates: by another signal; semop(2)")
{
	undone_after(end_by_term);
}

static void end_after_exec(struct peer *p)
{
	its_exec(p);
	its_kill(p);
}

CASE(undo_at_kill_after_exec, "The sem_undo structures of a process are inherited across an execve; semop(2)")
{
	undone_after(end_after_exec);
}

CASE(undo_kept_over_exec, "The sem_undo structures are inherited across an execve: nothing is undone by it; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(2);
	SET(id, 5, 5);
	OK(its_semop1(p, id, 0, -2, SEM_UNDO));
	its_exec(p);
	VALUES(id, 3, 5);
	OK(its_semop1(p, id, 0, -1, SEM_UNDO));
	OK(its_semop1(p, id, 1, -1, SEM_UNDO));
	its_exec(p);
	VALUES(id, 2, 4);
	its_exit(p, true);
	VALUES(id, 5, 5);
}

CASE(undo_kept_over_many_execs, "The sem_undo structures are inherited across an execve, however often a process does so; semop(2)")
{
	LIMIT(60);
	struct peer *p = peer();
	int id = new_sem(1);
	SET(id, 1000);
	/* More often than there are processes that a region has room for. */
	for (int i = 0; i < 260; i++) {
		OK(its_semop1(p, id, 0, -1, SEM_UNDO));
		its_exec(p);
	}
	VALUES(id, 1000 - 260);
	its_kill(p);
	VALUES(id, 1000);
}

CASE(undo_not_inherited_by_fork, "The sem_undo structures are not inherited by the child produced by fork; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	SET(id, 10);
	pid_t pid = child();
	if (pid == 0) {
		OK(semop1(id, 0, -3, SEM_UNDO));
		pid_t grandchild = child();
		if (grandchild == 0) {
			EQUAL(getval(id, 0), 7);
			OK(semop1(id, 0, -2, SEM_UNDO));
			_exit(0);
		}
		JOIN(grandchild);
		/* Its own operation alone is undone. */
		EQUAL(getval(id, 0), 7);
		_exit(0);
	}
	JOIN(pid);
	VALUES(id, 10);
	/* The parent's end undoes what the parent did, while the child lives on. */
	OK(its_semop1(p, id, 0, -4, SEM_UNDO));
	VALUES(id, 6);
	its_fork(p);
	VALUES(id, 10);
	OK(its_semop1(p, id, 0, 1, SEM_UNDO));
	its_kill(p);
	VALUES(id, 10);
}

CASE(exit_after_removal, "A child exits although a set on which its parent operated was removed; exit(3), semop(2)")
{
	int id = OK(semget(IPC_PRIVATE, 1, 0600));
	OK(semop1(id, 0, 1, SEM_UNDO));
	pid_t pid = child();
	if (pid == 0) {
		OK(semctl(id, 0, IPC_RMID));
		_exit(0);
	}
	JOIN(pid);
	fflush(NULL);
	pid = child();
	if (pid == 0)
		exit(0);
	JOIN(pid);
}

static void with_descendants(int id, int left)
{
	/* With a sleep, for which there may be descriptors, too. */
	struct timespec limit = {0, 5 * 1000 * 1000};
	OK(semop1(id, 0, -1, SEM_UNDO));
	FAILS(semtimedop(id, OPS({1, -1, 0}), &limit), EAGAIN);
	if (left == 0)
		return;
	pid_t pid = child();
	if (pid == 0) {
		with_descendants(id, left - 1);
		_exit(0);
	}
	JOIN(pid);
}

CASE(fork_generations, "fork creates a new process: each of 60 generations operates, with few descriptors; fork(2), semop(2)")
{
	int id = new_sem(2);
	SET(id, 100, 0);
	struct rlimit limit = {40, 40};
	pid_t pid = child();
	if (pid == 0) {
		OK(setrlimit(RLIMIT_NOFILE, &limit));
		with_descendants(id, 60);
		_exit(0);
	}
	JOIN(pid);
	VALUES(id, 100, 0);
}

CASE(undo_is_of_each_process, "Each process has a list of semadj values; semop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_sem(1);
	SET(id, 10);
	OK(its_semop1(p, id, 0, -1, SEM_UNDO));
	OK(its_semop1(q, id, 0, -2, SEM_UNDO));
	OK(semop1(id, 0, -3, SEM_UNDO));
	VALUES(id, 4);
	its_kill(q);
	VALUES(id, 6);
	its_kill(p);
	VALUES(id, 7);
}

CASE(undo_is_a_sum, "semadj is the negated sum of all operations performed with SEM_UNDO; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	SET(id, 100);
	for (int i = 1; i <= 10; i++) {
		OK(its_semop1(p, id, 0, -i, SEM_UNDO));
		OK(its_semop1(p, id, 0, 2, i % 2 ? SEM_UNDO : 0));
	}
	EQUAL(getval(id, 0), 100 - 55 + 20);
	its_kill(p);
	EQUAL(getval(id, 0), 100 + 10);
	p = peer();
	/* A lock that is free again. */
	OK(its_semop1(p, id, 0, -1, SEM_UNDO));
	OK(its_semop1(p, id, 0, 1, SEM_UNDO));
	its_kill(p);
	EQUAL(getval(id, 0), 110);
}

CASE(undo_cleared_by_setval, "SETVAL: undo entries are cleared for altered semaphores in all processes; semctl(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_sem(2);
	SET(id, 10, 10);
	OK(its_semop(p, id, OPS({0, -1, SEM_UNDO}, {1, -1, SEM_UNDO})));
	OK(its_semop(q, id, OPS({0, -2, SEM_UNDO}, {1, -2, SEM_UNDO})));
	OK(setval(id, 0, 20));
	OK(its_semop1(q, id, 0, -5, SEM_UNDO));
	VALUES(id, 15, 7);
	its_kill(p);
	VALUES(id, 15, 8);
	its_kill(q);
	VALUES(id, 20, 10);
}

CASE(undo_cleared_by_setall, "SETALL: undo entries are cleared for altered semaphores in all processes; semctl(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_sem(2);
	SET(id, 10, 10);
	OK(its_semop(p, id, OPS({0, -1, SEM_UNDO}, {1, -1, SEM_UNDO})));
	OK(its_semop(q, id, OPS({0, -2, SEM_UNDO}, {1, -2, SEM_UNDO})));
	SET(id, 3, 4);
	OK(its_semop1(q, id, 1, -1, SEM_UNDO));
	its_kill(p);
	VALUES(id, 3, 3);
	its_kill(q);
	VALUES(id, 3, 4);
}

CASE(undo_as_far_as_possible, "An adjustment decreases the value as far as possible, to zero; semop(2), BUGS")
{
	struct peer *p = peer();
	int id = new_sem(2);
	OK(its_semop(p, id, OPS({0, 5, SEM_UNDO}, {1, 3, SEM_UNDO})));
	OK(semop1(id, 0, -3, 0));
	its_kill(p);
	VALUES(id, 0, 0);
}

CASE(undo_no_further_than_most, "An adjustment leaves a value of at most SEMVMX; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	SET(id, 32767);
	OK(its_semop1(p, id, 0, -5, SEM_UNDO));
	OK(semop1(id, 0, 5, 0));
	its_kill(p);
	VALUES(id, 32767);
}

CASE(undo_range, "A semaphore adjustment beyond SEMAEM: ERANGE; semctl(2), semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(1);
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	EQUAL(info.semaem, 32767);
	SET(id, 32767);
	OK(its_semop1(p, id, 0, -32767, SEM_UNDO));
	OK(semop1(id, 0, 10, 0));
	FAILS(its_semop1(p, id, 0, -1, SEM_UNDO), ERANGE);
	VALUES(id, 10);
	OK(its_semop1(p, id, 0, -1, 0));
	OK(its_semop1(p, id, 0, 1, SEM_UNDO));
	OK(its_semop1(p, id, 0, -1, SEM_UNDO));
	its_kill(p);
	VALUES(id, 32767);
}

CASE(undo_not_of_failures, "Operations that are not performed are not undone; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(2);
	SET(id, 5, 0);
	FAILS(its_semop(p, id, OPS({0, -1, SEM_UNDO}, {1, -1, IPC_NOWAIT | SEM_UNDO})), EAGAIN);
	FAILS(its_semtimedop(p, id, OPS({0, 1, SEM_UNDO}, {1, -1, SEM_UNDO}), 0.001), EAGAIN);
	its_catch(p, SIGUSR1, 0);
	its_semop(later(p), id, OPS({0, 2, SEM_UNDO}, {1, -1, SEM_UNDO}));
	CHECK(blocks(p));
	its_signal(p, SIGUSR1);
	FAILS(result(p), EINTR);
	its_semop(later(p), id, OPS({0, 2, SEM_UNDO}, {1, -1, SEM_UNDO}));
	CHECK(blocks(p));
	its_kill(p);
	VALUES(id, 5, 0);
}

CASE(undo_of_a_call_that_waited, "An operation that specifies SEM_UNDO is undone also if it had to wait; semop(2)")
{
	struct peer *p = peer();
	int id = new_sem(2);
	its_semop(later(p), id, OPS({0, -2, SEM_UNDO}, {1, 1, SEM_UNDO}));
	CHECK(blocks(p));
	OK(semop1(id, 0, 3, 0));
	OK(result(p));
	VALUES(id, 1, 1);
	its_kill(p);
	VALUES(id, 3, 0);
}

CASE(undo_wakes, "Adjustments that permit blocked calls to proceed wake them up; semop(2)")
{
	struct peer *p = peer(), *q = peer(), *r = peer();
	int id = new_sem(2);
	SET(id, 1, 0);
	OK(its_semop(p, id, OPS({0, -1, SEM_UNDO}, {1, 1, SEM_UNDO})));
	its_semop1(later(q), id, 0, -1, SEM_UNDO);
	its_semop1(later(r), id, 1, 0, 0);
	CHECK(blocks(q));
	CHECK(blocks(r));
	its_kill(p);
	OK(result(q));
	OK(result(r));
	VALUES(id, 0, 0);
	its_exit(q, true);
	VALUES(id, 1, 0);
}

CASE(undo_after_removal, "A set that was removed has nothing to undo; semop(2), semctl(2)")
{
	struct peer *p = peer();
	int id = new_sem(1), other = new_sem(1), last;
	OK(its_semop1(p, id, 0, 1, SEM_UNDO));
	OK(its_semop1(p, other, 0, 1, SEM_UNDO));
	OK(semctl(id, 0, IPC_RMID));
	/* One that may have taken the place of the first. */
	last = new_sem(1);
	SET(last, 5);
	its_kill(p);
	VALUES(other, 0);
	VALUES(last, 5);
}

CASE(undo_many_sets, "Each process has one semadj value for each semaphore on which it has operated using SEM_UNDO; semop(2)")
{
	enum { SETS = 30 };
	struct peer *p = peer();
	int id[SETS];
	for (int i = 0; i < SETS; i++) {
		id[i] = new_sem(2 + i % 3);
		OK(its_semop1(p, id[i], i % 2, i + 1, SEM_UNDO));
	}
	its_kill(p);
	for (int i = 0; i < SETS; i++)
		EQUAL(getval(id[i], i % 2), 0);
}

struct threads_task {
	int id, op;
};

static void *operates_with_undo(void *argument)
{
	struct threads_task *task = argument;
	OK(semop1(task->id, 0, task->op, SEM_UNDO));
	return NULL;
}

CASE(undo_is_of_the_process, "Operations are undone when the process terminates, not the thread; semop(2)")
{
	int id = new_sem(1);
	SET(id, 10);
	pid_t pid = child();
	if (pid == 0) {
		pthread_t threads[3];
		struct threads_task task = {id, -1};
		for (int i = 0; i < 3; i++)
			CHECK(pthread_create(&threads[i], NULL, operates_with_undo, &task) == 0);
		for (int i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
		EQUAL(getval(id, 0), 7);
		_exit(0);
	}
	JOIN(pid);
	VALUES(id, 10);
}

CASE(undo_killed_1000_times, "An operation with SEM_UNDO is undone when the process terminates, each time; semop(2)")
{
	LIMIT(60);
	int id = new_sem(3);
	SET(id, 1, 0, 7);
	for (int i = 0; i < 1000; i++) {
		pid_t pid = child();
		if (pid == 0)
			for (;;) {
				OK(semop(id, OPS({0, -1, SEM_UNDO}, {1, 1, SEM_UNDO}, {2, -3, SEM_UNDO})));
				OK(semop(id, OPS({0, 1, SEM_UNDO}, {1, -1, SEM_UNDO}, {2, 3, SEM_UNDO})));
				OK(semop1(id, 2, -7, SEM_UNDO));
				OK(semop1(id, 2, 7, SEM_UNDO));
			}
		pause_us(i % 50 * 10);
		kill_child(pid);
		VALUES(id, 1, 0, 7);
	}
}

CASE(vfork_child_operates, "A vfork'ed child is a process of its own: sempid, and what it does with SEM_UNDO; semop(2)")
{
	int id = new_sem(2);
	SET(id, 10, 10);
	OK(semop1(id, 0, -1, SEM_UNDO));
	pid_t pid = vfork();
	if (pid == 0) {
		int done = semop1(id, 0, -2, SEM_UNDO) == 0 && semop1(id, 1, 1, 0) == 0;
		_exit(done && semctl(id, 1, GETPID) == getpid() && semctl(id, 0, GETVAL) == 7 ? 0 : 1);
	}
	JOIN(pid);
	VALUES(id, 9, 11);
	EQUAL(OK(semctl(id, 1, GETPID)), pid);
	OK(semop1(id, 1, -1, 0));
	EQUAL(OK(semctl(id, 1, GETPID)), getpid());
	pid = vfork();
	if (pid == 0) {
		execl("/proc/self/exe", "exe", "--nothing", NULL);
		_exit(1);
	}
	JOIN(pid);
	VALUES(id, 9, 10);
}

CASE(vfork_parent_keeps_undo, "The undo list of a vfork'ed child's parent is undone at the parent's end; semop(2)")
{
	int id = new_sem(1);
	SET(id, 10);
	pid_t pid = child();
	if (pid == 0) {
		OK(semop1(id, 0, -3, SEM_UNDO));
		pid_t vforked = vfork();
		if (vforked == 0)
			_exit(semop1(id, 0, -1, SEM_UNDO) == 0 ? 0 : 1);
		JOIN(vforked);
		EQUAL(getval(id, 0), 7);
		OK(semop1(id, 0, -1, SEM_UNDO));
		EQUAL(getval(id, 0), 6);
		_exit(0);
	}
	JOIN(pid);
	VALUES(id, 10);
}

/* Threads */

struct thread {
	pthread_t thread;
	int id, num, op;
	atomic_int entered, returned, tid, value, error;
};

static void *waits(void *argument)
{
	struct thread *t = argument;
	atomic_store(&t->tid, gettid());
	atomic_store(&t->entered, 1);
	int value = semop1(t->id, t->num, t->op, 0);
	atomic_store(&t->error, errno);
	atomic_store(&t->value, value);
	atomic_store(&t->returned, 1);
	return NULL;
}

static void start_waiting(struct thread *t, int id, int num, int op)
{
	memset(t, 0, sizeof *t);
	t->id = id;
	t->num = num;
	t->op = op;
	CHECK(pthread_create(&t->thread, NULL, waits, t) == 0);
	UNTIL(atomic_load(&t->entered));
	CHECK(sleeps(getpid(), atomic_load(&t->tid), &t->entered, 1, &t->returned));
}

struct cancelled {
	struct thread t;
	int set, segment;
	_Atomic int is_asked;
};

/* Its calls come after a request, from the first one of the process on: what a library does for them may close or read a file. */
static void *calls_cancelled(void *arg)
{
	struct cancelled *c = arg;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	atomic_store(&c->t.tid, gettid());
	UNTIL(atomic_load(&c->is_asked));
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	c->segment = shmget(IPC_PRIVATE, PAGE, 0600);
	void *at = shmat(c->segment, NULL, 0);
	shmdt(at);
	c->set = semget(IPC_PRIVATE, 2, 0600);
	semop1(c->set, 1, 1, 0);
	atomic_store(&c->t.entered, 1);
	int done = semop1(c->set, 0, -1, 0);
	struct timespec moment = {0, 1000000};
	int timed = semtimedop(c->set, OPS({0, -1, 0}), &moment);
	atomic_store(&c->t.value, done == 0 && timed == -1 && errno == EAGAIN);
	atomic_store(&c->t.returned, 1);
	pthread_testcancel();
	return NULL;
}

CASE(thread_cancelled, "semop is no point of cancellation, nor are those that make and attach objects; pthreads(7)")
{
	pid_t pid = child();
	if (pid == 0) {
		static struct cancelled c;
		void *answer;
		CHECK(pthread_create(&c.t.thread, NULL, calls_cancelled, &c) == 0);
		UNTIL(atomic_load(&c.t.tid));
		CHECK(pthread_cancel(c.t.thread) == 0);
		atomic_store(&c.is_asked, 1);
		UNTIL(atomic_load(&c.t.entered));
		keep_shm(c.segment);
		keep_sem(c.set);
		CHECK(sleeps(getpid(), atomic_load(&c.t.tid), &c.t.entered, 1, &c.t.returned));
		OK(semop1(c.set, 0, 1, 0));
		pthread_join(c.t.thread, &answer);
		CHECK(answer == PTHREAD_CANCELED);
		EQUAL(atomic_load(&c.t.value), 1);
		EQUAL(getval(c.set, 1), 1);
		_exit(0);
	}
	JOIN(pid);
}

/* The number of the call that a handler repeats. */
static void repeat(int number)
{
	(void)number;
	semop1(-1, 0, 1, 0);
}

/*
 * A process makes its first call, and after so many instructions there is a signal whose handler makes it, too: -1 if the process does not end.
 * With -1 there is none; gives how many instructions there are.
 */
static long interrupt_first_call(long after)
{
	int status;
	/* Past handlers of pthread_atfork(3), for which that would not be the first call. */
	pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0) {
		signal(SIGUSR1, repeat);
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == -1)
			_exit(77);
		kill(getpid(), SIGSTOP);
		semop1(-1, 0, 1, 0);
		_exit(0);
	}
	long steps = 0;
	for (waitpid(pid, &status, 0); WIFSTOPPED(status) && steps != after; steps++) {
		ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
		waitpid(pid, &status, 0);
	}
	if (!WIFSTOPPED(status))
		return WIFEXITED(status) && WEXITSTATUS(status) == 77 ? -2 : steps;
	ptrace(PTRACE_CONT, pid, NULL, (void *)SIGUSR1);
	for (double start = now(); now() - start < 5;) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return steps;
		pause_us(100);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

/* Before any call of the process, of which fork() may be one. */
__attribute__((constructor)) static void interrupt_first_calls(int argc, char **argv)
{
	if (argc != 2 || strcmp(argv[1], "--first-call"))
		return;
	long all = interrupt_first_call(-1);
	if (all < 0)
		_exit(77);
	for (long after = 0; after < all; after += 5)
		if (interrupt_first_call(after) == -1)
			_exit(1);
	_exit(0);
}

CASE(thread_interrupted_first, "A handler that interrupts a process's first call may make one; svipc(7)")
{
	LIMIT(60);
	pid_t pid = child();
	if (pid == 0) {
		execl("/proc/self/exe", "sem", "--first-call", NULL);
		_exit(2);
	}
	int status = status_of(pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP("no process may be traced here");
	EQUAL(status, 0);
}

/* What a thread allocates or frees in its calls with signals open: the handler of one that comes then must not make calls. */
static _Thread_local volatile bool is_watched;
static atomic_int allocations_open;
extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t count, size_t bytes);
extern void __libc_free(void *at);

static void note_allocation(void)
{
	sigset_t now;
	if (is_watched && !pthread_sigmask(SIG_BLOCK, NULL, &now) && !sigismember(&now, SIGUSR1))
		atomic_fetch_add(&allocations_open, 1);
}

void *malloc(size_t bytes)
{
	note_allocation();
	return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	note_allocation();
	return __libc_calloc(count, bytes);
}

void free(void *at)
{
	if (at)
		note_allocation();
	__libc_free(at);
}

static void *first_calls(void *arg)
{
	const int *ids = arg;
	struct { long type; char text[64]; } message = {1, "text"};
	is_watched = true;
	int done = semop1(ids[0], 0, 1, 0) || semop1(ids[0], 0, -1, 0);
	int sent = msgsnd(ids[1], &message, sizeof message.text, 0);
	ssize_t received = msgrcv(ids[1], &message, sizeof message.text, 0, 0);
	is_watched = false;
	return done || sent || received != sizeof message.text ? arg : NULL;
}

CASE(thread_allocates, "A thread's first calls allocate nothing while a signal's handler, which may make calls, may come; signal-safety(7)")
{
	int ids[] = {new_sem(1), new_msg()};
	pthread_t thread;
	void *failed;
	/* One that uses what the process has used, and one that finds it. */
	for (int round = 0; round < 2; round++) {
		CHECK(pthread_create(&thread, NULL, first_calls, ids) == 0);
		pthread_join(thread, &failed);
		CHECK(failed == NULL);
		EQUAL(atomic_load(&allocations_open), 0);
	}
}

CASE(thread_waits, "The thread sleeps, and others of its process do not; semncnt counts threads; semop(2)")
{
	int id = new_sem(2);
	struct thread t[4];
	SET(id, 0, 1);
	for (int i = 0; i < 4; i++)
		start_waiting(&t[i], id, i / 3, i / 3 ? 0 : -1);
	EQUAL(ncnt(id, 0), 3);
	EQUAL(zcnt(id, 1), 1);
	OK(semop1(id, 1, -1, 0));
	pthread_join(t[3].thread, NULL);
	EQUAL(atomic_load(&t[3].value), 0);
	OK(semop1(id, 0, 3, 0));
	for (int i = 0; i < 3; i++) {
		pthread_join(t[i].thread, NULL);
		EQUAL(atomic_load(&t[i].value), 0);
	}
	VALUES(id, 0, 0);
}

CASE(thread_signal, "The calling thread catches a signal: it fails with EINTR, and no other thread does; semop(2)")
{
	int id = new_sem(1);
	struct thread t[3];
	catch_signal(SIGUSR1, SA_RESTART);
	for (int i = 0; i < 3; i++)
		start_waiting(&t[i], id, 0, -1);
	pthread_kill(t[1].thread, SIGUSR1);
	pthread_join(t[1].thread, NULL);
	EQUAL(atomic_load(&t[1].value), -1);
	EQUAL(atomic_load(&t[1].error), EINTR);
	EQUAL(ncnt(id, 0), 2);
	CHECK(!atomic_load(&t[0].returned) && !atomic_load(&t[2].returned));
	OK(semop1(id, 0, 2, 0));
	pthread_join(t[0].thread, NULL);
	pthread_join(t[2].thread, NULL);
	EQUAL(atomic_load(&t[0].value) + atomic_load(&t[2].value), 0);
}

CASE(thread_removal, "The set is removed: all threads that wait fail with EIDRM; semop(2)")
{
	int id = new_sem(1);
	struct thread t[3];
	for (int i = 0; i < 3; i++)
		start_waiting(&t[i], id, 0, -1 - i);
	OK(semctl(id, 0, IPC_RMID));
	for (int i = 0; i < 3; i++) {
		pthread_join(t[i].thread, NULL);
		EQUAL(atomic_load(&t[i].value), -1);
		EQUAL(atomic_load(&t[i].error), EIDRM);
	}
}

CASE(thread_waits_at_exit, "A process that ends while threads of it wait leaves no waiters; semop(2)")
{
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_sem(1);
	pid_t pid = child();
	if (pid == 0) {
		static struct thread t[3];
		for (int i = 0; i < 3; i++)
			start_waiting(&t[i], id, 0, -1);
		atomic_store(&turn->entered, 1);
		UNTIL(atomic_load(&turn->go));
		_exit(0);
	}
	UNTIL(atomic_load(&turn->entered));
	EQUAL(ncnt(id, 0), 3);
	atomic_store(&turn->go, 1);
	JOIN(pid);
	EQUAL(ncnt(id, 0), 0);
	OK(semop1(id, 0, 3, 0));
	VALUES(id, 3);
}

CASE(thread_waits_at_fork, "A child has none of its parent's other threads, and waits on its own; semop(2), fork(2)")
{
	int id = new_sem(1);
	struct thread t;
	start_waiting(&t, id, 0, -1);
	pid_t pid = child();
	if (pid == 0) {
		EQUAL(ncnt(id, 0), 1);
		OK(semop1(id, 0, 1, 0));
		OK(semop1(id, 0, -1, SEM_UNDO));
		_exit(0);
	}
	/* One of them has taken what there was. If it was the child, its end gives it back, and the thread goes on. */
	int status;
	bool over = false;
	while (!over && !atomic_load(&t.returned))
		over = waitpid(pid, &status, WNOHANG) == pid;
	if (!over) {
		/* It was the thread, and the child waits. */
		OK(semop1(id, 0, 1, 0));
		JOIN(pid);
		VALUES(id, 1);
	} else {
		EQUAL(status, 0);
	}
	pthread_join(t.thread, NULL);
	EQUAL(atomic_load(&t.value), 0);
}

/* Many at once */

struct both {
	atomic_int inside;
	int counter, left, right;
};

static void adds_under_lock(int id, struct both *both, int times, int flags)
{
	for (int i = 0; i < times; i++) {
		OK(semop1(id, 0, -1, flags));
		EQUAL(atomic_fetch_add(&both->inside, 1), 0);
		both->counter++;
		EQUAL(atomic_fetch_add(&both->inside, -1), 1);
		OK(semop1(id, 0, 1, flags));
	}
}

static void many_lock(int flags)
{
	LIMIT(60);
	struct both *both = shared_memory(sizeof *both);
	int id = new_sem(1);
	pid_t pid[4];
	SET(id, 1);
	for (int i = 0; i < 4; i++)
		if ((pid[i] = child()) == 0) {
			adds_under_lock(id, both, 2000, flags);
			_exit(0);
		}
	for (int i = 0; i < 4; i++)
		JOIN(pid[i]);
	EQUAL(both->counter, 8000);
	VALUES(id, 1);
	EQUAL(ncnt(id, 0), 0);
}

CASE(many_lock, "Semaphores allow processes to synchronize their actions; svipc(7)")
{
	many_lock(0);
}

CASE(many_lock_with_undo, "Semaphores allow processes to synchronize their actions, with SEM_UNDO; svipc(7)")
{
	many_lock(SEM_UNDO);
}

static void *locks(void *argument)
{
	struct {
		int id;
		struct both *both;
	} *task = argument;
	adds_under_lock(task->id, task->both, 1000, SEM_UNDO);
	return NULL;
}

CASE(many_threads_lock, "Threads synchronize by semop as processes do; semop(2)")
{
	LIMIT(60);
	struct both both = {0};
	pthread_t threads[4];
	struct {
		int id;
		struct both *both;
	} task = {new_sem(1), &both};
	int id = task.id;
	SET(id, 1);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, locks, &task) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EQUAL(both.counter, 4000);
	VALUES(id, 1);
}

CASE(many_killed_with_lock, "A lock that is taken with SEM_UNDO is free when its holder is killed; semop(2)")
{
	LIMIT(60);
	struct both *both = shared_memory(sizeof *both);
	int id = new_sem(1);
	pid_t pid[3];
	SET(id, 1);
	for (int i = 0; i < 3; i++)
		if ((pid[i] = child()) == 0)
			for (;;) {
				OK(semop1(id, 0, -1, SEM_UNDO));
				both->counter++;
				OK(semop1(id, 0, 1, SEM_UNDO));
			}
	for (int round = 0; round < 150; round++) {
		int victim = round % 3;
		pause_us(round % 30 * 37);
		kill_child(pid[victim]);
		if ((pid[victim] = child()) == 0)
			for (;;) {
				OK(semop1(id, 0, -1, SEM_UNDO));
				both->counter++;
				OK(semop1(id, 0, 1, SEM_UNDO));
			}
		/* It is still handed on. */
		OK(semop1(id, 0, -1, 0));
		OK(semop1(id, 0, 1, 0));
	}
	for (int i = 0; i < 3; i++)
		kill_child(pid[i]);
	VALUES(id, 1);
	EQUAL(ncnt(id, 0), 0);
}

CASE(many_transfers, "Operations on several semaphores are atomic: their sum is what it was at any time; semop(2)")
{
	enum { ACCOUNTS = 5, EACH = 100 };
	LIMIT(60);
	int id = new_sem(ACCOUNTS);
	pid_t pid[3];
	SET(id, EACH, EACH, EACH, EACH, EACH);
	for (int i = 0; i < 3; i++)
		if ((pid[i] = child()) == 0) {
			srand(i + 1);
			for (int n = 0; n < 2000; n++) {
				int from = rand() % ACCOUNTS, to = rand() % ACCOUNTS, amount = 1 + rand() % 150;
				if (semop(id, OPS({from, -amount, IPC_NOWAIT}, {to, amount, 0})) == -1)
					CHECK(errno == EAGAIN);
			}
			_exit(0);
		}
	int left = 3, looks = 0;
	while (left > 0) {
		unsigned short values[ACCOUNTS];
		OK(semctl(id, 0, GETALL, (union semun){.array = values}));
		int sum = 0;
		for (int i = 0; i < ACCOUNTS; i++)
			sum += values[i];
		EQUAL(sum, ACCOUNTS * EACH);
		looks++;
		for (int i = 0; i < 3; i++) {
			int status;
			if (pid[i] && waitpid(pid[i], &status, WNOHANG) == pid[i]) {
				EQUAL(status, 0);
				pid[i] = 0;
				left--;
			}
		}
	}
	CHECK(looks > 0);
}

CASE(many_in_turns, "Each of two processes waits for the other, again and again; semop(2)")
{
	LIMIT(60);
	int id = new_sem(2);
	pid_t pid = child();
	if (pid == 0) {
		for (int i = 0; i < 5000; i++) {
			OK(semop1(id, 0, -1, 0));
			OK(semop1(id, 1, 1, 0));
		}
		_exit(0);
	}
	for (int i = 0; i < 5000; i++) {
		OK(semop1(id, 0, 1, 0));
		OK(semop1(id, 1, -1, 0));
	}
	JOIN(pid);
	VALUES(id, 0, 0);
}

CASE(many_producers_and_consumers, "Nothing is lost and nothing taken twice: as many decreases as increases; semop(2)")
{
	LIMIT(60);
	int id = new_sem(2);
	pid_t pid[4];
	SET(id, 0, 10);
	for (int i = 0; i < 4; i++)
		if ((pid[i] = child()) == 0) {
			for (int n = 0; n < 1000; n++)
				if (i % 2)
					OK(semop(id, OPS({0, -1, 0}, {1, 1, 0})));
				else
					OK(semop(id, OPS({1, -1, 0}, {0, 1, 0})));
			_exit(0);
		}
	for (int i = 0; i < 4; i++)
		JOIN(pid[i]);
	VALUES(id, 0, 10);
}

/* semctl(2) */

CASE(ctl_values, "SETVAL and SETALL set, GETVAL and GETALL return the semaphore values; semctl(2)")
{
	struct peer *p = peer();
	int id = new_sem(3);
	EQUAL(OK(setval(id, 1, 7)), 0);
	VALUES(id, 0, 7, 0);
	EQUAL(OK(its_getval(p, id, 1)), 7);
	SET(id, 1, 32767, 3);
	unsigned short values[3] = {0};
	EQUAL(OK(its_getall(p, id, values, 3)), 0);
	CHECK(values[0] == 1 && values[1] == 32767 && values[2] == 3);
	values[2] = 0;
	OK(its_setall(p, id, values, 3));
	VALUES(id, 1, 32767, 0);
	EQUAL(OK(getval(id, 1)), 32767);
}

CASE(ctl_values_range, "The value is less than 0 or greater than SEMVMX: ERANGE; semctl(2)")
{
	int id = new_sem(2);
	SET(id, 1, 2);
	FAILS(setval(id, 0, -1), ERANGE);
	FAILS(setval(id, 0, 32768), ERANGE);
	FAILS(setval(id, 0, INT_MAX), ERANGE);
	unsigned short values[2] = {5, 32768};
	FAILS(semctl(id, 0, SETALL, (union semun){.array = values}), ERANGE);
	values[1] = 65535;
	FAILS(semctl(id, 0, SETALL, (union semun){.array = values}), ERANGE);
	VALUES(id, 1, 2);
}

CASE(ctl_no_such_semaphore, "semctl operates on the semnum-th semaphore, which must exist: EINVAL; semctl(2)")
{
	const int commands[] = {GETVAL, GETPID, GETNCNT, GETZCNT};
	int id = new_sem(2);
	for (int i = 0; i < 4; i++) {
		FAILS(semctl(id, 2, commands[i]), EINVAL);
		FAILS(semctl(id, -1, commands[i]), EINVAL);
	}
	FAILS(setval(id, 2, 1), EINVAL);
	FAILS(setval(id, -1, 1), EINVAL);
}

CASE(ctl_ignores_number, "The argument semnum is ignored: IPC_STAT, IPC_SET, IPC_RMID, GETALL, SETALL; semctl(2)")
{
	int id = new_sem(2);
	struct semid_ds ds;
	unsigned short values[2] = {3, 4};
	OK(semctl(id, 99, SETALL, (union semun){.array = values}));
	values[0] = values[1] = 0;
	OK(semctl(id, -5, GETALL, (union semun){.array = values}));
	CHECK(values[0] == 3 && values[1] == 4);
	OK(semctl(id, 99, IPC_STAT, (union semun){.buf = &ds}));
	OK(semctl(id, 99, IPC_SET, (union semun){.buf = &ds}));
	OK(semctl(id, 99, IPC_RMID));
}

CASE(ctl_sets_pid, "Linux also updates sempid for SETVAL and SETALL operations; semctl(2)")
{
	struct peer *p = peer_at(0);
	int id = new_sem(3), its = peers_are_here ? p->pid : 0;
	OK(setval(id, 1, 0));
	EQUAL(OK(semctl(id, 1, GETPID)), getpid());
	EQUAL(OK(semctl(id, 0, GETPID)), 0);
	unsigned short values[3] = {0};
	OK(its_setall(p, id, values, 3));
	for (int i = 0; i < 3; i++)
		EQUAL(OK(semctl(id, i, GETPID)), its);
	FAILS(setval(id, 0, -1), ERANGE);
	EQUAL(OK(semctl(id, 0, GETPID)), its);
}

CASE(ctl_sets_ctime, "sem_ctime is the time of creation or of the last IPC_SET, SETVAL or SETALL; semctl(2)")
{
	int by_setval = new_sem(1), by_setall = new_sem(1), by_set = new_sem(1);
	struct semid_ds ds = sem_stat(by_set);
	long before = ds.sem_ctime;
	pause_us(1100000);
	OK(setval(by_setval, 0, 1));
	SET(by_setall, 1);
	OK(semctl(by_set, 0, IPC_SET, (union semun){.buf = &ds}));
	CHECK(sem_stat(by_setval).sem_ctime > before);
	CHECK(sem_stat(by_setall).sem_ctime > before);
	CHECK(sem_stat(by_set).sem_ctime > before);
	IS_NOW(sem_stat(by_setval).sem_ctime);
	EQUAL(sem_stat(by_setval).sem_otime, 0);
	EQUAL(sem_stat(by_setall).sem_otime, 0);
}

CASE(ctl_stat, "IPC_STAT copies the information into arg.buf: the same for every process; semctl(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_sem(its_semget(p, key, 7, IPC_CREAT | 0640)));
	struct semid_ds mine = sem_stat(id), its;
	OK(its_semctl(p, id, 0, IPC_STAT, (union semun){.buf = &its}));
	EQUAL(mine.sem_perm.__key, key);
	EQUAL(mine.sem_perm.mode, 0640);
	EQUAL(mine.sem_nsems, 7);
	EQUAL(its.sem_nsems, 7);
	EQUAL(mine.sem_ctime, its.sem_ctime);
	EQUAL(mine.sem_perm.cuid, its.sem_perm.cuid);
}

CASE(ctl_set, "IPC_SET writes sem_perm.uid, sem_perm.gid and the 9 bits of sem_perm.mode; semctl(2)")
{
	int id = new_sem(3);
	struct semid_ds before = sem_stat(id), set = before;
	set.sem_perm.mode = 07000 | 0644;
	set.sem_perm.uid = geteuid() == 0 ? 1234 : geteuid();
	set.sem_perm.gid = geteuid() == 0 ? 2345 : getegid();
	set.sem_perm.cuid = 55;
	set.sem_perm.cgid = 66;
	set.sem_perm.__key = 77;
	set.sem_nsems = 1;
	set.sem_otime = set.sem_ctime = 123456;
	OK(semctl(id, 0, IPC_SET, (union semun){.buf = &set}));
	struct semid_ds after = sem_stat(id);
	EQUAL(after.sem_perm.mode, 0644);
	EQUAL(after.sem_perm.uid, set.sem_perm.uid);
	EQUAL(after.sem_perm.gid, set.sem_perm.gid);
	EQUAL(after.sem_perm.cuid, before.sem_perm.cuid);
	EQUAL(after.sem_perm.cgid, before.sem_perm.cgid);
	EQUAL(after.sem_perm.__key, before.sem_perm.__key);
	EQUAL(after.sem_nsems, 3);
	EQUAL(after.sem_otime, 0);
	IS_NOW(after.sem_ctime);
}

CASE(ctl_remove, "IPC_RMID: immediately remove the semaphore set; semctl(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_sem(semget(key, 1, IPC_CREAT | 0600)));
	OK(its_semctl(p, id, 0, IPC_RMID, (union semun){0}));
	struct semid_ds ds;
	unsigned short value = 0;
	GONE(semctl(id, 0, IPC_STAT, (union semun){.buf = &ds}));
	GONE(semctl(id, 0, IPC_SET, (union semun){.buf = &ds}));
	GONE(semctl(id, 0, IPC_RMID));
	GONE(semctl(id, 0, GETVAL));
	GONE(setval(id, 0, 1));
	GONE(semctl(id, 0, GETALL, (union semun){.array = &value}));
	GONE(semctl(id, 0, SETALL, (union semun){.array = &value}));
	GONE(semctl(id, 0, GETPID));
	GONE(semctl(id, 0, GETNCNT));
	GONE(semctl(id, 0, GETZCNT));
	FAILS(semget(key, 0, 0), ENOENT);
	CHECK(OK(keep_sem(semget(key, 1, IPC_CREAT | IPC_EXCL | 0600))) != id);
}

CASE(ctl_remove_race, "Removed once: of several who remove a set, one succeeds; semctl(2)")
{
	struct peer *p[3];
	for (int i = 0; i < 3; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		int id = new_sem(1), removed = 0;
		for (int i = 0; i < 3; i++)
			OK(its_semop1(p[i], id, 0, 1, SEM_UNDO));
		for (int i = 0; i < 3; i++)
			its_semctl(later(p[i]), id, 0, IPC_RMID, (union semun){0});
		for (int i = 0; i < 3; i++)
			if (result(p[i]) == 0)
				removed++;
			else
				CHECK(errno == EINVAL || errno == EIDRM);
		EQUAL(removed, 1);
	}
}

CASE(ctl_invalid_id, "Invalid value for semid: EINVAL; semctl(2)")
{
	struct semid_ds ds = {0};
	FAILS(semctl(-1, 0, IPC_STAT, (union semun){.buf = &ds}), EINVAL);
	FAILS(semctl(-1, 0, IPC_RMID), EINVAL);
	FAILS(semctl(-1, 0, GETVAL), EINVAL);
	FAILS(setval(-1, 0, 1), EINVAL);
	GONE(semctl(INT_MAX, 0, IPC_STAT, (union semun){.buf = &ds}));
	GONE(semctl(INT_MAX, 0, IPC_RMID));
	GONE(semctl(INT_MAX, 0, GETVAL));
}

CASE(ctl_invalid_command, "Invalid value for cmd: EINVAL; semctl(2)")
{
	int id = new_sem(1);
	FAILS(semctl(id, 0, 9999, (union semun){.val = 0}), EINVAL);
	FAILS(semctl(id, 0, -1, (union semun){.val = 0}), EINVAL);
	FAILS(semctl(id, 0, 4, (union semun){.val = 0}), EINVAL);
}

CASE(ctl_bad_address, "The address pointed to by arg.buf or arg.array is not accessible: EFAULT; semctl(2)")
{
	int id = new_sem(2);
	SET(id, 1, 2);
	FAILS(semctl(id, 0, IPC_STAT, (union semun){.buf = no_memory()}), EFAULT);
	FAILS(semctl(id, 0, IPC_STAT, (union semun){.buf = constant_memory()}), EFAULT);
	FAILS(semctl(id, 0, IPC_STAT, (union semun){.buf = NULL}), EFAULT);
	FAILS(semctl(id, 0, IPC_SET, (union semun){.buf = no_memory()}), EFAULT);
	FAILS(semctl(id, 0, IPC_SET, (union semun){.buf = NULL}), EFAULT);
	FAILS(semctl(id, 0, GETALL, (union semun){.array = no_memory()}), EFAULT);
	FAILS(semctl(id, 0, GETALL, (union semun){.array = constant_memory()}), EFAULT);
	FAILS(semctl(id, 0, SETALL, (union semun){.array = no_memory()}), EFAULT);
	FAILS(semctl(id, 0, SETALL, (union semun){.array = NULL}), EFAULT);
	FAILS(semctl(0, 0, IPC_INFO, (union semun){.__buf = no_memory()}), EFAULT);
	FAILS(semctl(0, 0, SEM_INFO, (union semun){.__buf = no_memory()}), EFAULT);
	VALUES(id, 1, 2);
}

CASE(ctl_info, "IPC_INFO returns limits in a structure of type seminfo; semctl(2)")
{
	struct seminfo info;
	memset(&info, 0, sizeof info);
	new_sem(1);
	CHECK(OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info})) >= 0);
	CHECK(info.semmni >= 1 && info.semmns >= 1 && info.semmsl >= 1 && info.semopm >= 1);
	EQUAL(info.semvmx, 32767);
}

CASE(ctl_sem_info, "SEM_INFO: semusz is the number of sets, semaem the number of semaphores; semctl(2)")
{
	for (int i = 0; i < 50; i++) {
		struct seminfo before, after;
		OK(semctl(0, 0, SEM_INFO, (union semun){.__buf = &before}));
		int one = new_sem(3), two = new_sem(4);
		CHECK(OK(semctl(0, 0, SEM_INFO, (union semun){.__buf = &after})) >= 0);
		OK(semctl(one, 0, IPC_RMID));
		OK(semctl(two, 0, IPC_RMID));
		CHECK(after.semusz >= 2 && after.semaem >= 7);
		EQUAL(after.semvmx, 32767);
		if (after.semusz == before.semusz + 2 && after.semaem == before.semaem + 7)
			return;
		pause_us(10000);
	}
	FAIL("expected two sets more, of 7 semaphores; found it never");
}

static int index_of(int id, int command, struct semid_ds *ds)
{
	struct seminfo info;
	int highest = OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	for (int i = 0; i <= highest; i++)
		if (semctl(i, 0, command, (union semun){.buf = ds}) == id)
			return i;
	FAIL("expected set %d at an index up to %d", id, highest);
}

static void stat_by_index(int command)
{
	key_t key = fresh_key();
	int id[3];
	struct semid_ds ds;
	for (int i = 0; i < 3; i++)
		id[i] = OK(keep_sem(semget(i ? IPC_PRIVATE : key, 5 + i, IPC_CREAT | 0600)));
	OK(semop1(id[1], 0, 1, 0));
	for (int i = 0; i < 3; i++) {
		memset(&ds, 0, sizeof ds);
		index_of(id[i], command, &ds);
		EQUAL(ds.sem_nsems, 5 + i);
		EQUAL(ds.sem_perm.__key, i ? IPC_PRIVATE : key);
		EQUAL(ds.sem_otime != 0, i == 1);
		EQUAL(ds.sem_perm.mode, 0600);
		IS_NOW(ds.sem_ctime);
	}
	int at = index_of(id[2], command, &ds);
	OK(semctl(id[2], 0, IPC_RMID));
	int found = semctl(at, 0, command, (union semun){.buf = &ds});
	CHECK(found == -1 ? errno == EINVAL : found != id[2]);
}

CASE(ctl_stat_index, "SEM_STAT: the argument is an index; returns the identifier; semctl(2)")
{
	stat_by_index(SEM_STAT);
}

CASE(ctl_stat_any_index, "SEM_STAT_ANY returns a semid_ds structure as for SEM_STAT; semctl(2)")
{
	stat_by_index(SEM_STAT_ANY);
}

CASE(ctl_stat_unused_index, "The index value referred to an array slot that is currently unused: EINVAL; semctl(2)")
{
	struct semid_ds ds;
	struct seminfo info;
	int highest = OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &info}));
	FAILS(semctl(-1, 0, SEM_STAT, (union semun){.buf = &ds}), EINVAL);
	FAILS(semctl(highest + 1000, 0, SEM_STAT, (union semun){.buf = &ds}), EINVAL);
	FAILS(semctl(highest + 1000, 0, SEM_STAT_ANY, (union semun){.buf = &ds}), EINVAL);
}
