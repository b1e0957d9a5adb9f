/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the tests of System V IPC share: cases, checks, and the removal of what a case has left.
 *
 * A program of them is a plain program of System V: it knows nothing of what implements the calls. It must first pass against
 * the kernel's, so that the tests are known to be right, and then against others.
 *
 *	usage: PROGRAM [--list] [--peers ADDRESS:PORT [--places N]] [-x PATTERN]... [PATTERN]...
 *	       PROGRAM --serve ADDRESS:PORT
 *
 * Patterns are those of a shell; -x leaves cases out. Cases whose names begin with `users_` need root, and those that begin
 * with `limit_` low limits. What other implementations may refuse has names of its own: `exec_` (SHM_EXEC), `hugetlb_`, `lock_`
 * (SHM_LOCK), `copy_` (MSG_COPY), `protect_` (mprotect() of SHM_RDONLY) and `hardlink_` (keys of hard links). peer.h tells of --peers and --serve.
 *
 * Each case is a process of its own, leads its process group, and has a limit of time. The environment variable
 * SYSV_TEST_SCALE multiplies limits and pauses, for machines that are slow. The parent kills what is left of the group, and
 * removes the objects that were given to keep_shm() and its like.
 */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Of the C library, if its headers are too old. */
#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif
#ifndef SEM_STAT_ANY
#define SEM_STAT_ANY 20
#endif
#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif
#ifndef MSG_COPY
#define MSG_COPY 040000
#endif

#define PAGE 4096
#define SECONDS 10
#define MOST_KEPT 16384

union semun {
	int val;
	struct semid_ds *buf;
	unsigned short *array;
	struct seminfo *__buf;
};

struct test_case {
	const char *name, *sentence;
	void (*run)(void);
	const char *file;
	int line;
};

/* A case: its name, and the sentence that it is about, abridged, with its man page. */
#define CASE(name, sentence)                                                                                         \
	static void case_##name(void);                                                                               \
	static const struct test_case about_##name = {#name, sentence, case_##name, __FILE__, __LINE__};                 \
	static const struct test_case *entry_##name __attribute__((section("cases"), used)) = &about_##name;   \
	static void case_##name(void)

enum verdict { PASSED, FAILED, SKIPPED };

/* Of the case that runs: shared between its processes and the parent. */
struct shared {
	atomic_int verdict;
	atomic_int line;
	atomic_int seconds;
	char said[1000];
	atomic_int count;
	struct {
		char kind;
		int id;
	} kept[MOST_KEPT];
};

static struct shared *shared;
static int scale = 1;
static pid_t main_pid;

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline void pause_us(double us)
{
	struct timespec t = {(time_t)(us / 1e6), (long)(us - 1e6 * (double)(time_t)(us / 1e6)) * 1000};
	while (nanosleep(&t, &t) == -1 && errno == EINTR)
		;
}

/* For what must be seen not to happen: nothing becomes wrong by a pause that is too short, only less is tested. */
static inline void pause_ms(double ms)
{
	pause_us(ms * 1000 * scale);
}

/* Ends the process, and with it, sooner or later, the case. The first one who says something is heard. */
static inline void __attribute__((noreturn, format(printf, 4, 5)))
verdict_is(enum verdict verdict, const char *file, int line, const char *format, ...)
{
	int passed = PASSED;
	if (!shared || getpid() == main_pid) {
		fprintf(stderr, "%s:%d: ", file, line);
		va_list args;
		va_start(args, format);
		vfprintf(stderr, format, args);
		va_end(args);
		fputc('\n', stderr);
		_exit(1);
	}
	if (atomic_compare_exchange_strong(&shared->verdict, &passed, verdict)) {
		int at = verdict == FAILED ? snprintf(shared->said, sizeof shared->said, "%s:%d: ", file, line) : 0;
		va_list args;
		va_start(args, format);
		vsnprintf(shared->said + at, sizeof shared->said - at, format, args);
		va_end(args);
	}
	_exit(1);
}

#define FAIL(...) verdict_is(FAILED, __FILE__, __LINE__, __VA_ARGS__)
#define SKIP(...) verdict_is(SKIPPED, __FILE__, __LINE__, __VA_ARGS__)
#define AT_LINE (shared ? atomic_store(&shared->line, __LINE__) : (void)0)

/* For cases that need more seconds than SECONDS. */
#define LIMIT(n) atomic_store(&shared->seconds, (n) * scale)

#define CHECK(condition)                                                                                             \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		if (!(condition))                                                                                    \
			FAIL("expected %s, which is not so", #condition);                                            \
	} while (0)

#define EQUAL(found, expected)                                                                                       \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		long long f_ = (long long)(found), e_ = (long long)(expected);                                       \
		if (f_ != e_)                                                                                        \
			FAIL("%s: expected %lld, found %lld", #found, e_, f_);                                       \
	} while (0)

/* The value of a call, which must not fail. */
#define OK(call)                                                                                                     \
	({                                                                                                           \
		AT_LINE;                                                                                             \
		__typeof__(call) r_ = (call);                                                                        \
		if ((long)r_ == -1)                                                                                  \
			FAIL("%s: expected success, found %s", #call, strerrorname_np(errno));                       \
		r_;                                                                                                  \
	})

/* That a call fails with one of two errors. */
#define FAILS_EITHER(call, error, other)                                                                             \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		errno = 0;                                                                                           \
		long r_ = (long)(call);                                                                              \
		int e_ = errno;                                                                                      \
		if (r_ != -1)                                                                                        \
			FAIL("%s: expected %s, found success (%ld)", #call, strerrorname_np(error), r_);             \
		if (e_ != (error) && e_ != (other))                                                                  \
			FAIL("%s: expected %s, found %s", #call, strerrorname_np(error), strerrorname_np(e_));       \
	} while (0)
#define FAILS(call, error) FAILS_EITHER(call, error, error)

/* The id does not exist any more. The man pages name EIDRM; the kernel says EINVAL where it has forgotten the id. */
#define GONE(call) FAILS_EITHER(call, EINVAL, EIDRM)

/* That a time of the kernel's is now. Its clock is coarse, and another machine's may differ. */
static int clocks_differ;
#define IS_NOW(t)                                                                                                    \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		long long t_ = (t), n_ = time(NULL);                                                                 \
		if (t_ < n_ - 5 * scale - clocks_differ || t_ > n_ + 1 + clocks_differ)                              \
			FAIL("%s: expected about %lld, found %lld", #t, n_, t_);                                     \
	} while (0)

/* With SYSV_TEST_OURS ids of the kernel's are a failure: a library that was not loaded, or found no key its own, would test the kernel. */
static inline void must_be_ours(int id)
{
	if (id != -1 && !(id & 1 << 30) && getenv("SYSV_TEST_OURS"))
		FAIL("object %d is one of the kernel's", id);
}

/* Notes an object down for removal, and returns its id. */
static inline int keep(char kind, int id)
{
	int error = errno;
	must_be_ours(id);
	if (id != -1 && shared) {
		int at = atomic_fetch_add(&shared->count, 1);
		if (at >= MOST_KEPT)
			FAIL("more objects than can be noted down");
		shared->kept[at].kind = kind;
		shared->kept[at].id = id;
	}
	errno = error;
	return id;
}

static inline int keep_shm(int id) { return keep('m', id); }
static inline int keep_sem(int id) { return keep('s', id); }
static inline int keep_msg(int id) { return keep('q', id); }

#define new_shm(size) OK(keep_shm(shmget(IPC_PRIVATE, size, 0600)))
#define new_sem(nsems) OK(keep_sem(semget(IPC_PRIVATE, nsems, 0600)))
#define new_msg() OK(keep_msg(msgget(IPC_PRIVATE, 0600)))

/* A key that nothing else here uses. */
static inline key_t fresh_key(void)
{
	static int count;
	return 0x40000000 | (getpid() & 0x3fffff) << 8 | (count++ & 0xff);
}

static inline int semop1(int id, int num, int op, int flags)
{
	struct sembuf sop = {num, op, flags};
	return semop(id, &sop, 1);
}

static inline int getval(int id, int num) { return semctl(id, num, GETVAL); }
static inline int setval(int id, int num, int val) { return semctl(id, num, SETVAL, (union semun){.val = val}); }

/* The data structures of objects. */
#define STAT(type, call)                                                                                             \
	({                                                                                                           \
		struct type ds_;                                                                                     \
		memset(&ds_, 0x5a, sizeof ds_);                                                                      \
		OK(call);                                                                                            \
		ds_;                                                                                                 \
	})
#define shm_stat(id) STAT(shmid_ds, shmctl(id, IPC_STAT, &ds_))
#define sem_stat(id) STAT(semid_ds, semctl(id, 0, IPC_STAT, (union semun){.buf = &ds_}))
#define msg_stat(id) STAT(msqid_ds, msgctl(id, IPC_STAT, &ds_))
#define nattch(id) ((int)shm_stat(id).shm_nattch)

/* Addresses that are not there, and that cannot be written. */
static inline void *no_memory(void)
{
	static void *page;
	return page ?: (page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static inline void *constant_memory(void)
{
	static void *page;
	return page ?: (page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* Shared between the case and its children. */
static inline void *shared_memory(size_t len)
{
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		FAIL("no memory");
	return memory;
}

/* Whether the kernel can read or write there for us. */
static inline bool accessible(void *address, bool write_too)
{
	int fds[2];
	char byte = 0;
	if (pipe(fds) == -1)
		FAIL("no pipe");
	bool can = write(fds[1], address, 1) == 1;
	if (can && write_too)
		can = read(fds[0], address, 1) == 1;
	else if (can)
		can = read(fds[0], &byte, 1) == 1;
	close(fds[0]);
	close(fds[1]);
	return can;
}

static inline bool readable(void *address) { return accessible(address, false); }
static inline bool writable(void *address) { return accessible(address, true); }

/* A child that returns 0 from fork(). A check that fails in it fails the case. */
static inline pid_t child(void)
{
	pid_t pid = fork();
	if (pid == -1)
		FAIL("no fork: %s", strerrorname_np(errno));
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static inline int status_of(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) == -1)
		if (errno != EINTR)
			FAIL("no child %d", (int)pid);
	return status;
}

/* Waits for a child that must end well. */
#define JOIN(pid)                                                                                                    \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		int status_ = status_of(pid);                                                                        \
		if (status_ != 0)                                                                                    \
			FAIL("a child ended with status %#x", status_);                                              \
	} while (0)

static inline void kill_child(pid_t pid)
{
	kill(pid, SIGKILL);
	EQUAL(status_of(pid), SIGKILL);
}

/* The state of a process or thread here, as a letter of proc(5). */
static inline char state_of(pid_t pid, pid_t thread)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)thread);
	FILE *file = fopen(path, "r");
	if (!file)
		return 'X';
	char *got = fgets(line, sizeof line, file);
	fclose(file);
	char *name_end = got ? strrchr(line, ')') : NULL;
	return name_end ? name_end[2] : 'X';
}

/* Waits until a child or thread sleeps in a call, about which `entered` was set, or has returned from it, and says which. */
static inline bool sleeps(pid_t pid, pid_t thread, const atomic_int *entered, int value, const atomic_int *returned)
{
	while (atomic_load(entered) != value)
		sched_yield();
	for (int times = 0; times < 3;) {
		if (atomic_load(returned) == value)
			return false;
		char state = state_of(pid, thread);
		if (state == 'X' || state == 'Z')
			FAIL("a process that was to sleep is dead");
		times = state == 'S' ? times + 1 : 0;
		pause_us(300);
	}
	return true;
}

/* The signals that a thread blocks, as the kernel has them; all of them if that cannot be read. */
static inline unsigned long long blocked_by(pid_t pid, pid_t thread)
{
	char path[64], line[128];
	unsigned long long set = ~0ull;

	snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)thread);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "SigBlk: %llx", &set) == 1)
			break;
	if (file)
		fclose(file);
	return set;
}

/* Waits until a thread sleeps and has not blocked a signal, several looks in a row. */
static inline void sleeps_for(pid_t pid, pid_t thread, int number)
{
	for (int times = 0; times < 3;) {
		bool lets_in = state_of(pid, thread) == 'S' && !(blocked_by(pid, thread) & 1ull << (number - 1));

		times = lets_in ? times + 1 : 0;
		pause_us(300);
	}
}

/* Waits until a condition holds; the limit of the case ends it. */
#define UNTIL(condition)                                                                                             \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		while (!(condition))                                                                                 \
			pause_us(200);                                                                               \
	} while (0)

static atomic_int signals_caught;
static inline void count_signal(int number)
{
	(void)number;
	atomic_fetch_add(&signals_caught, 1);
}

static inline void catch_signal(int number, int flags)
{
	struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};
	sigaction(number, &action, NULL);
}

/* Whether an effective capability is there; the numbers are those of capabilities(7). */
#define CAP_IPC_OWNER 15
#define CAP_SYS_RESOURCE 24
static inline bool capable(int capability)
{
	unsigned long long set = 0;
	char line[256];
	FILE *file = fopen("/proc/self/status", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "CapEff: %llx", &set) == 1)
			break;
	if (file)
		fclose(file);
	return set >> capability & 1;
}

#define NEEDS_ROOT()                                                                                                 \
	do {                                                                                                         \
		if (geteuid() != 0)                                                                                  \
			SKIP("needs root, to become other users");                                                   \
	} while (0)

#include "peer.h"

static inline void remove_kept(void)
{
	int count = atomic_load(&shared->count);
	for (int i = 0; i < count && i < MOST_KEPT; i++) {
		int id = shared->kept[i].id;
		switch (shared->kept[i].kind) {
		case 'm':
			shmctl(id, IPC_RMID, NULL);
			break;
		case 's':
			semctl(id, 0, IPC_RMID, (union semun){.val = 0});
			break;
		case 'q':
			msgctl(id, IPC_RMID, NULL);
			break;
		}
	}
}

static inline enum verdict run_case(const struct test_case *c)
{
	atomic_store(&shared->verdict, PASSED);
	atomic_store(&shared->line, 0);
	atomic_store(&shared->count, 0);
	atomic_store(&shared->seconds, SECONDS * scale);
	shared->said[0] = 0;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		c->run();
		_exit(0);
	}
	setpgid(pid, pid);
	double start = now();
	siginfo_t info;
	bool in_time;
	for (;;) {
		info.si_pid = 0;
		waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT);
		in_time = info.si_pid != 0;
		if (in_time || now() - start > atomic_load(&shared->seconds))
			break;
		pause_us(now() - start < 0.05 ? 200 : 2000);
	}
	kill(-pid, SIGKILL);
	int status;
	waitpid(pid, &status, 0);
	reset_peers();
	remove_kept();
	enum verdict verdict = atomic_load(&shared->verdict);
	if (verdict == PASSED && !in_time) {
		verdict = FAILED;
		snprintf(shared->said, sizeof shared->said, "%s:%d: expected an end within %d s, found none", c->file,
			 atomic_load(&shared->line), atomic_load(&shared->seconds));
	} else if (verdict == PASSED && status != 0) {
		verdict = FAILED;
		snprintf(shared->said, sizeof shared->said, "%s:%d: expected a good end after this line, found %s %d", c->file,
			 atomic_load(&shared->line), WIFSIGNALED(status) ? "signal" : "status",
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
	if (verdict == PASSED)
		printf("ok %s (%.1f s)\n", c->name, now() - start);
	else if (verdict == SKIPPED)
		printf("skipped: %s: %s\n", c->name, shared->said);
	else
		printf("not ok %s: %s\n", c->name, shared->said);
	fflush(stdout);
	return verdict;
}

extern const struct test_case *__start_cases[], *__stop_cases[];

/* Linkers promise no order. */
static inline int by_line(const void *a, const void *b)
{
	return (*(const struct test_case *const *)a)->line - (*(const struct test_case *const *)b)->line;
}

/* random.c has a main of its own. */
#ifndef NO_CASES
int main(int argc, char **argv)
{
	const char *wanted[64], *left_out[64];
	int want = 0, leave = 0;
	bool list = false;
	start_of_peers(argc, argv);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--list"))
			list = true;
		else if ((!strcmp(argv[i], "--peers") || !strcmp(argv[i], "--places")) && i + 1 < argc)
			i++;
		else if (!strcmp(argv[i], "-x") && i + 1 < argc && leave < 64)
			left_out[leave++] = argv[++i];
		else if (argv[i][0] != '-' && want < 64)
			wanted[want++] = argv[i];
		else {
			fprintf(stderr, "usage: %s [--list] [--peers ADDRESS:PORT [--places N]] [-x PATTERN]... [PATTERN]...\n",
				argv[0]);
			return 2;
		}
	}
	int counts[3] = {0};
	if (!list) {
		main_pid = getpid();
		shared = shared_memory(sizeof *shared);
		start_server();
	}
	qsort(__start_cases, __stop_cases - __start_cases, sizeof *__start_cases, by_line);
	for (const struct test_case **c = __start_cases; c < __stop_cases; c++) {
		bool run = want == 0;
		for (int i = 0; i < want; i++)
			run |= fnmatch(wanted[i], (*c)->name, 0) == 0;
		for (int i = 0; i < leave; i++)
			run &= fnmatch(left_out[i], (*c)->name, 0) != 0;
		if (run && list)
			printf("%s: %s\n", (*c)->name, (*c)->sentence);
		else if (run)
			counts[run_case(*c)]++;
	}
	if (list)
		return 0;
	printf("%s: %d ok, %d failed, %d skipped\n", program_invocation_short_name, counts[PASSED], counts[FAILED],
	       counts[SKIPPED]);
	if (counts[PASSED] + counts[FAILED] + counts[SKIPPED] == 0) {
		fprintf(stderr, "%s: no case has such a name; see --list\n", program_invocation_short_name);
		return 2;
	}
	return counts[FAILED] != 0;
}
#endif
#endif
