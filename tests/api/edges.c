/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every function of isthmus.h: what it does, and what it says to arguments that cannot be, to the dead, and to time. */
#define _GNU_SOURCE
#include <errno.h>
#include <isthmus.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

#define SOON 5000000000u
#define MOMENT 1000000u

static int failed;

static void expect(int found, int expected, const char *what, int line)
{
	if (found == expected)
		return;
	fprintf(stderr, "edges.c:%d: %s gave %d (%s), not %d\n", line, what, found, isthmus_error(), expected);
	failed = 1;
}
#define EXPECT(call, expected) expect((call), (expected), #call, __LINE__)

static int count_segments(const struct isthmus_segment_info *info, void *arg)
{
	int *seen = arg;
	if (!strcmp(info->name, "edges") && info->len == 100 && info->mode == 0640 && !info->unlinked)
		++*seen;
	return 0;
}

static int stop(const struct isthmus_segment_info *info, void *arg)
{
	(void)info, (void)arg;
	return 7;
}

static int make(int taken_over, void *arg)
{
	(void)taken_over;
	return ++*(int *)arg == 1 ? 5 : 0;
}

/* Runs `act` in a child that attaches for itself and is killed after it. */
static void in_a_dying_child(void (*act)(struct isthmus *))
{
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		struct isthmus *here;
		if (isthmus_attach(NULL, &here))
			_exit(1);
		act(here);
		kill(getpid(), SIGKILL);
	}
	int status;
	waitpid(child, &status, 0);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, 1);
}

/* A container's filter of system calls may refuse futex_waitv(2), with whichever error: waiters sleep all the same. */
static void sleep_without_waitv(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {.len = sizeof steps / sizeof *steps, .filter = steps};
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		struct isthmus *here;
		struct isthmus_semaphore *semaphore;
		struct timespec used;
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
			_exit(errno == EINVAL || errno == ENOSYS ? 77 : 1);
		EXPECT(isthmus_attach(NULL, &here), 0);
		EXPECT(isthmus_semaphore_open(here, "filtered", 0, 0600, &semaphore), 0);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
		double before = used.tv_sec + used.tv_nsec * 1e-9;
		EXPECT(isthmus_semaphore_wait(semaphore, 500000000), ISTHMUS_ETIMEDOUT);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
		double busy = used.tv_sec + used.tv_nsec * 1e-9 - before;
		if (busy > 0.25)
			fprintf(stderr, "edges.c: %.2f of 0.5 s of a processor for a thread that is to sleep\n", busy), failed = 1;
		EXPECT(isthmus_semaphore_unlink(here, "filtered"), 0);
		_exit(failed);
	}
	int status;
	waitpid(child, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		puts("skipped: api/edges without futex_waitv: the kernel has no seccomp");
	else
		EXPECT(status, 0);
}

static void lock_mutex(struct isthmus *here)
{
	struct isthmus_mutex *mutex;
	if (isthmus_mutex_open(here, "edges", 0600, &mutex) || isthmus_mutex_lock(mutex, ISTHMUS_FOREVER))
		_exit(1);
}

static void write_lock(struct isthmus *here)
{
	struct isthmus_rwlock *lock;
	if (isthmus_rwlock_open(here, "edges", 4, 0600, &lock) || isthmus_rwlock_write(lock, ISTHMUS_FOREVER))
		_exit(1);
}

static void join_barrier(struct isthmus *here)
{
	struct isthmus_barrier *barrier;
	if (isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &barrier))
		_exit(1);
}

static void make_transient(struct isthmus *here)
{
	struct isthmus_segment *segment;
	if (isthmus_segment_open(here, "transient", ISTHMUS_CREATE | ISTHMUS_TRANSIENT, 0600, 10, &segment))
		_exit(1);
}

struct meeting {
	struct isthmus_mutex *mutex;
	struct isthmus_condition *condition;
};

static void *notify(void *arg)
{
	struct meeting *meeting = arg;
	EXPECT(isthmus_mutex_lock(meeting->mutex, ISTHMUS_FOREVER), 0);
	EXPECT(isthmus_condition_notify(meeting->condition, 1), 0);
	EXPECT(isthmus_mutex_unlock(meeting->mutex), 0);
	return NULL;
}

static void segments(struct isthmus *here)
{
	struct isthmus_segment *segment, *again;
	char name[200] = "";
	int seen = 0;

	EXPECT(isthmus_segment_open(here, "edges", 0, 0, 0, &segment), ISTHMUS_ENOTFOUND);
	EXPECT(strstr(isthmus_error(), "edges") != NULL, 1);
	EXPECT(isthmus_segment_open(here, "edges", ISTHMUS_CREATE | ISTHMUS_EXCLUSIVE, 0640, 100, &segment), 0);
	EXPECT(isthmus_segment_open(here, "edges", ISTHMUS_CREATE | ISTHMUS_EXCLUSIVE, 0640, 100, &again), ISTHMUS_EEXIST);
	EXPECT(isthmus_segment_open(here, "edges", ISTHMUS_READ, 0, 0, &again), 0);
	EXPECT(isthmus_segment_len(again), 100);
	strcpy(isthmus_segment_data(segment), "hello");
	EXPECT(strcmp(isthmus_segment_data(again), "hello"), 0);
	EXPECT((uintptr_t)isthmus_segment_data(segment) % 4096, 0);
	EXPECT(isthmus_segment_list(here, count_segments, &seen), 0);
	EXPECT(seen, 1);
	EXPECT(isthmus_segment_list(here, stop, NULL), 7);
	EXPECT(isthmus_segment_list(here, NULL, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_shrink(segment, 101), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_shrink(again, 50), 0);
	isthmus_segment_close(again);
	EXPECT(isthmus_segment_open(here, "edges", ISTHMUS_CREATE, 0600, 7, &again), 0);
	EXPECT(isthmus_segment_len(again), 50);
	isthmus_segment_close(again);
	EXPECT(isthmus_segment_open(here, "edges", ISTHMUS_CREATE | ISTHMUS_READ, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(here, "edges", ISTHMUS_EXCLUSIVE, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(here, "edges", 1024, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(here, "", ISTHMUS_CREATE, 0600, 7, &again), ISTHMUS_EINVAL);
	memset(name, 'n', 128);
	EXPECT(isthmus_segment_open(here, name, ISTHMUS_CREATE, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_unlink(here, name), ISTHMUS_EINVAL);
	name[127] = 0;
	EXPECT(isthmus_segment_open(here, name, ISTHMUS_CREATE | ISTHMUS_TRANSIENT, 0600, 7, &again), 0);
	isthmus_segment_close(again);
	EXPECT(isthmus_segment_open(here, NULL, ISTHMUS_CREATE, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(here, "\xff", ISTHMUS_CREATE, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(here, "x", ISTHMUS_CREATE, 0600, 7, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(NULL, "x", ISTHMUS_CREATE, 0600, 7, &again), ISTHMUS_EINVAL);
	EXPECT(isthmus_segment_open(here, "huge", ISTHMUS_CREATE, 0600, (size_t)1 << 60, &again), ISTHMUS_EFULL);
	EXPECT(isthmus_segment_unlink(here, "x"), 0);
	EXPECT(isthmus_segment_unlink(here, "edges"), 0);
	EXPECT(isthmus_segment_unlink(here, "edges"), ISTHMUS_ENOTFOUND);
	EXPECT(strcmp(isthmus_segment_data(segment), "hello"), 0);
	isthmus_segment_close(segment);
	EXPECT(isthmus_segment_data(NULL) == NULL, 1);
	EXPECT(isthmus_segment_len(NULL), 0);

	in_a_dying_child(make_transient);
	int found = 0;
	for (int look = 0; look < 500; look++) {
		found = isthmus_segment_open(here, "transient", 0, 0, 0, &again);
		if (found == ISTHMUS_ENOTFOUND)
			break;
		isthmus_segment_close(again);
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	}
	EXPECT(found, ISTHMUS_ENOTFOUND);
}

static void *own_and_die(void *unused)
{
	in_a_dying_child(lock_mutex);
	return unused;
}

static void locks(struct isthmus *here)
{
	struct meeting meeting;
	pthread_t thread;

	EXPECT(isthmus_mutex_open(here, "edges", 0600, &meeting.mutex), 0);
	EXPECT(isthmus_mutex_lock(meeting.mutex, 0), 0);
	EXPECT(isthmus_mutex_lock(meeting.mutex, MOMENT), ISTHMUS_EDEADLOCK);
	EXPECT(isthmus_mutex_mend(meeting.mutex), 0);
	EXPECT(isthmus_mutex_unlock(meeting.mutex), 0);
	EXPECT(isthmus_mutex_unlock(meeting.mutex), ISTHMUS_ENOTOWNER);
	EXPECT(isthmus_mutex_mend(meeting.mutex), ISTHMUS_ENOTOWNER);
	in_a_dying_child(lock_mutex);
	EXPECT(isthmus_mutex_lock(meeting.mutex, SOON), ISTHMUS_OWNER_DIED);
	EXPECT(isthmus_mutex_mend(meeting.mutex), 0);
	EXPECT(isthmus_mutex_unlock(meeting.mutex), 0);
	EXPECT(isthmus_mutex_lock(meeting.mutex, SOON), 0);

	EXPECT(isthmus_condition_open(here, "edges", 0600, &meeting.condition), 0);
	EXPECT(isthmus_condition_wait(meeting.condition, meeting.mutex, MOMENT), ISTHMUS_ETIMEDOUT);
	pthread_create(&thread, NULL, notify, &meeting);
	EXPECT(isthmus_condition_wait(meeting.condition, meeting.mutex, SOON), 0);
	EXPECT(isthmus_mutex_unlock(meeting.mutex), 0);
	pthread_join(thread, NULL);
	EXPECT(isthmus_condition_wait(meeting.condition, meeting.mutex, MOMENT), ISTHMUS_ENOTOWNER);
	EXPECT(isthmus_condition_wait(meeting.condition, NULL, MOMENT), ISTHMUS_EINVAL);
	/* Its time is up, and what the dead owner has left is to be mended all the same. */
	EXPECT(isthmus_mutex_lock(meeting.mutex, SOON), 0);
	pthread_create(&thread, NULL, own_and_die, NULL);
	EXPECT(isthmus_condition_wait(meeting.condition, meeting.mutex, SOON / 3), ISTHMUS_OWNER_DIED);
	pthread_join(thread, NULL);
	EXPECT(isthmus_mutex_mend(meeting.mutex), 0);
	EXPECT(isthmus_mutex_unlock(meeting.mutex), 0);
	isthmus_condition_close(meeting.condition);
	EXPECT(isthmus_condition_unlink(here, "edges"), 0);

	in_a_dying_child(lock_mutex);
	EXPECT(isthmus_mutex_lock(meeting.mutex, SOON), ISTHMUS_OWNER_DIED);
	EXPECT(isthmus_mutex_unlock(meeting.mutex), 0);
	EXPECT(isthmus_mutex_lock(meeting.mutex, SOON), ISTHMUS_ELOST);
	isthmus_mutex_close(meeting.mutex);
	EXPECT(isthmus_mutex_unlink(here, "edges"), 0);

	struct isthmus_rwlock *lock, *other;
	EXPECT(isthmus_rwlock_open(here, "edges", 0, 0600, &lock), ISTHMUS_EINVAL);
	EXPECT(isthmus_rwlock_open(here, "edges", 4, 0600, &lock), 0);
	EXPECT(isthmus_rwlock_open(here, "edges", 5, 0600, &other), ISTHMUS_EEXIST);
	EXPECT(isthmus_rwlock_open(here, "edges", 4, 0600, &other), 0);
	EXPECT(isthmus_rwlock_read(lock, 0), 0);
	EXPECT(isthmus_rwlock_read(other, 0), 0);
	EXPECT(isthmus_rwlock_unlock(other), 0);
	EXPECT(isthmus_rwlock_write(other, 0), ISTHMUS_EBUSY);
	EXPECT(isthmus_rwlock_write(other, MOMENT), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_rwlock_unlock(lock), 0);
	EXPECT(isthmus_rwlock_write(lock, 0), 0);
	EXPECT(isthmus_rwlock_unlock(lock), 0);
	in_a_dying_child(write_lock);
	EXPECT(isthmus_rwlock_read(lock, SOON), ISTHMUS_EOWNERDIED);
	EXPECT(isthmus_rwlock_write(lock, SOON), ISTHMUS_OWNER_DIED);
	EXPECT(isthmus_rwlock_mend(lock), 0);
	EXPECT(isthmus_rwlock_unlock(lock), 0);
	EXPECT(isthmus_rwlock_unlock(lock), ISTHMUS_ENOTOWNER);
	EXPECT(isthmus_rwlock_read(lock, SOON), 0);
	EXPECT(isthmus_rwlock_unlock(lock), 0);
	isthmus_rwlock_close(other);
	isthmus_rwlock_close(lock);
	EXPECT(isthmus_rwlock_unlink(here, "edges"), 0);
}

/* Adds one, a thousand times. */
static void *count_up(void *arg)
{
	uint64_t old;
	EXPECT(isthmus_word_load(arg, &old), ISTHMUS_COMMITTED);
	for (int done = 0; done < 1000;) {
		int outcome = isthmus_word_exchange(arg, &old, old + 1);
		if (outcome < 0)
			return EXPECT(outcome, 0), NULL;
		if (outcome == ISTHMUS_COMMITTED)
			done++, old++;
	}
	return NULL;
}

/* In a space that is closed after it, and of its segment, which has 5 at 8. */
static void words(struct isthmus *here, struct isthmus_space *space, uint32_t id)
{
	struct isthmus_space_shape small = {.log_bytes = 64};
	struct isthmus_word *word = NULL, *other = NULL;
	struct isthmus_space *again;
	pthread_t threads[4];
	uint64_t value = 0, old = 4;

	EXPECT(isthmus_word_find(NULL, 0, id, 8, &word), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_find(space, 0, id, 8, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_find(space, 1, id, 8, &word), ISTHMUS_ENOTREACHABLE);
	EXPECT(isthmus_word_find(space, 0, id + 1, 8, &word), ISTHMUS_ENOTFOUND);
	EXPECT(isthmus_word_find(space, 0, id, 4, &word), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_find(space, 0, id, 4096, &word), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_find(space, 0, id, UINT64_MAX - 7, &word), ISTHMUS_EINVAL);
	EXPECT(word == NULL, 1);
	EXPECT(isthmus_word_find(space, 0, id, 8, &word), 0);
	EXPECT(isthmus_word_load(NULL, &value), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_load(word, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_load(word, &value), ISTHMUS_COMMITTED);
	EXPECT((int)value, 5);
	EXPECT(isthmus_word_exchange(NULL, &old, 6), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_exchange(word, NULL, 6), ISTHMUS_EINVAL);
	EXPECT(isthmus_word_exchange(word, &old, 6), ISTHMUS_COMPARE_FAILED);
	EXPECT((int)old, 5);
	EXPECT(isthmus_word_exchange(word, &old, 6), ISTHMUS_COMMITTED);
	EXPECT((int)old, 5);

	/* It goes on without the handle that it was found by. */
	EXPECT(isthmus_space_open(here, "mini", 0600, &small, &again), 0);
	EXPECT(isthmus_word_find(again, 0, id, 8, &other), 0);
	isthmus_space_close(again);
	EXPECT(isthmus_word_load(other, &value), ISTHMUS_COMMITTED);
	EXPECT((int)value, 6);

	/* Several threads, some of them with the same word. */
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, count_up, i < 3 ? word : other);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EXPECT(isthmus_word_load(word, &value), ISTHMUS_COMMITTED);
	EXPECT((int)value, 4006);
	isthmus_word_free(other);
	isthmus_word_free(word);
	isthmus_word_free(NULL);
}

static void transactions(struct isthmus *here)
{
	struct isthmus_space_shape wrong = {.locks = 3}, small = {.log_bytes = 64}, other = {.slots = 8, .log_bytes = 64};
	struct isthmus_segment *segment, *read_only;
	struct isthmus_space *space, *again;
	struct isthmus_transaction *t;
	uint64_t five = 5, six = 6, found = 0;
	uint32_t id, same;
	char many[256] = {0};

	EXPECT(isthmus_segment_open(here, "mini", ISTHMUS_CREATE, 0600, 4096, &segment), 0);
	EXPECT(isthmus_segment_open(here, "mini", ISTHMUS_READ, 0600, 0, &read_only), 0);
	EXPECT(isthmus_space_open(here, "mini", 0600, &wrong, &space), ISTHMUS_EINVAL);
	/* A sum that is no multiple of 64 is rounded up, by all. */
	struct isthmus_space_shape summed = {.slots = 8, .locks = 64, .log_bytes = 8 + 8 + 24 + 8};
	struct isthmus_space_shape rounded = {.slots = 8, .locks = 64, .log_bytes = 64};
	EXPECT(isthmus_space_open(here, "summed", 0600, &summed, &space), 0);
	EXPECT(isthmus_space_open(here, "summed", 0600, &rounded, &again), 0);
	isthmus_space_close(again);
	isthmus_space_close(space);
	EXPECT(isthmus_space_unlink(here, "summed"), 0);
	summed.log_bytes = (1u << 20) + 1;
	EXPECT(isthmus_space_open(here, "summed", 0600, &summed, &space), ISTHMUS_EINVAL);
	summed.log_bytes = UINT32_MAX;
	EXPECT(isthmus_space_open(here, "summed", 0600, &summed, &space), ISTHMUS_EINVAL);
	EXPECT(isthmus_space_open(here, "mini", 0600, &small, &space), 0);
	EXPECT(isthmus_space_open(here, "mini", 0600, &other, &again), ISTHMUS_EEXIST);
	EXPECT(isthmus_space_add(space, NULL, &id), ISTHMUS_EINVAL);
	EXPECT(isthmus_space_add(space, read_only, &id), ISTHMUS_EACCESS);
	EXPECT(isthmus_space_add(space, segment, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_space_add(space, segment, &id), 0);
	EXPECT(isthmus_space_add(space, segment, &same), 0);
	EXPECT(id == same, 1);
	EXPECT(isthmus_transaction_new(space, &t), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_COMMITTED);
	EXPECT(isthmus_transaction_read(t, 0, id, 8, &found, 8), 0);
	EXPECT(isthmus_transaction_compare(t, 0, id, 0, &found, 8), 0);
	EXPECT(isthmus_transaction_write(t, 0, id, 8, &five, 8), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_COMMITTED);
	EXPECT((int)found, 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_COMMITTED);
	EXPECT((int)found, 5);
	EXPECT(isthmus_transaction_clear(t), 0);
	EXPECT(isthmus_transaction_compare(t, 0, id, 8, &six, 8), 0);
	EXPECT(isthmus_transaction_write(t, 0, id, 8, &six, 8), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_COMPARE_FAILED);
	EXPECT((int)((uint64_t *)isthmus_segment_data(segment))[1], 5);
	EXPECT(isthmus_transaction_clear(t), 0);
	EXPECT(isthmus_transaction_write(t, 1, id, 8, &six, 8), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_ENOTREACHABLE);
	EXPECT(isthmus_transaction_clear(t), 0);
	EXPECT(isthmus_transaction_write(t, 0, id + 1, 8, &six, 8), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_ENOTFOUND);
	EXPECT(isthmus_transaction_clear(t), 0);
	EXPECT(isthmus_transaction_write(t, 0, id, 4096, &six, 8), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_EINVAL);
	EXPECT(isthmus_transaction_clear(t), 0);
	EXPECT(isthmus_transaction_write(t, 0, id, 0, many, sizeof many), 0);
	EXPECT(isthmus_transaction_commit(t), ISTHMUS_EINVAL);
	EXPECT(isthmus_transaction_write(t, 0, id, 0, NULL, 8), ISTHMUS_EINVAL);
	EXPECT(isthmus_transaction_read(t, 0, id, 0, NULL, 8), ISTHMUS_EINVAL);
	EXPECT(isthmus_transaction_commit(NULL), ISTHMUS_EINVAL);
	isthmus_transaction_free(t);
	isthmus_transaction_free(NULL);
	words(here, space, id);
	isthmus_space_close(space);
	isthmus_space_close(NULL);
	isthmus_segment_close(read_only);
	isthmus_segment_close(segment);
	EXPECT(isthmus_space_unlink(here, "mini"), 0);
	EXPECT(isthmus_segment_unlink(here, "mini"), 0);
}

static void note(const struct isthmus_event *event, void *arg)
{
	*(int *)arg |= 1 << event->kind;
	if (event->kind == ISTHMUS_SUSPENDED)
		EXPECT(event->unread_bytes == 5 && !memcmp(event->unread, "never", 5), 1);
}

static void *answer(void *arg)
{
	struct isthmus_channel *channel;
	EXPECT(isthmus_ivc_accept(arg, SOON, &channel), 0);
	return channel;
}

static void register_and_connect(struct isthmus *here)
{
	struct isthmus_ivc *ivc;
	struct isthmus_peer peers[2];
	struct isthmus_channel *channel;
	if (isthmus_ivc_register(here, 42, 3, NULL, &ivc) || isthmus_ivc_peers(ivc, peers, 2) != 2 ||
	    isthmus_ivc_connect(ivc, &peers[peers[0].client != 2], SOON, &channel) ||
	    isthmus_channel_write(channel, "last", 4) != 4)
		_exit(1);
}

static void channels(struct isthmus *here)
{
	struct isthmus_ivc_options options = {.ring_bytes = 1024}, wrong = {.ring_bytes = 1000};
	struct isthmus_ivc *one, *two, *stranger;
	struct isthmus_channel *there, *here_too;
	struct isthmus_peer peer, nobody;
	struct iovec pieces[2];
	pthread_t thread;
	char bytes[2048] = "hello", more[8];
	void *accepted;
	int seen = 0;

	memset(&nobody, 255, sizeof nobody);
	EXPECT(isthmus_ivc_register(here, 42, 1, &wrong, &one), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_register(here, 42, 1, &options, &one), 0);
	EXPECT(isthmus_ivc_register(here, 42, 2, NULL, &two), 0);
	EXPECT(isthmus_ivc_register(here, 43, 1, NULL, &stranger), 0);
	EXPECT(isthmus_ivc_peers(stranger, NULL, 0), 0);
	EXPECT(isthmus_ivc_peers(one, NULL, 0), 1);
	EXPECT(isthmus_ivc_peers(one, NULL, 1), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_peers(one, &peer, 1), 1);
	EXPECT((int)peer.client, 2);
	EXPECT(isthmus_ivc_events(one, SOON, note, &seen), 1);
	EXPECT(seen, 1 << ISTHMUS_JOINED);
	EXPECT(isthmus_ivc_accept(two, 0, &there), ISTHMUS_EBUSY);
	EXPECT(isthmus_ivc_accept(two, MOMENT, &there), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_ivc_connect(one, &nobody, SOON, &there), ISTHMUS_ENOTFOUND);
	EXPECT(isthmus_ivc_connect(one, NULL, SOON, &there), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_descriptor(two) >= 0, 1);
	EXPECT(isthmus_ivc_arm(two), 1);
	pthread_create(&thread, NULL, answer, two);
	EXPECT(isthmus_ivc_connect(one, &peer, SOON, &there), 0);
	pthread_join(thread, &accepted);
	here_too = accepted;
	EXPECT(isthmus_channel_peer(here_too, &peer), 0);
	EXPECT((int)peer.client, 1);
	EXPECT(isthmus_channel_id(there) != 0 || isthmus_channel_id(here_too) != UINT64_MAX, 1);
	EXPECT((int)isthmus_channel_read(here_too, bytes, sizeof bytes), 0);
	EXPECT((int)isthmus_channel_write(there, bytes, sizeof bytes), 1024);
	EXPECT((int)isthmus_channel_write(there, bytes, 1), 0);
	EXPECT(isthmus_channel_flush(there, MOMENT), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_channel_read_all(here_too, bytes, 1024, SOON), 0);
	EXPECT(strcmp(bytes, "hello"), 0);
	EXPECT(isthmus_channel_flush(there, SOON), 0);
	pieces[0] = (struct iovec){bytes, 3};
	pieces[1] = (struct iovec){bytes + 3, 2};
	EXPECT((int)isthmus_channel_writev(there, pieces, 2), 5);
	EXPECT((int)isthmus_channel_writev(there, NULL, 2), ISTHMUS_EINVAL);
	EXPECT((int)isthmus_channel_writev(there, pieces, -1), ISTHMUS_EINVAL);
	pieces[0] = (struct iovec){more, 2};
	pieces[1] = (struct iovec){more + 2, 6};
	EXPECT((int)isthmus_channel_readv(here_too, pieces, 2), 5);
	EXPECT(memcmp(more, "hello", 5), 0);
	EXPECT((int)isthmus_channel_read(here_too, NULL, 1), ISTHMUS_EINVAL);
	EXPECT((int)isthmus_channel_reserve(there, 4, pieces), 4);
	memcpy(pieces[0].iov_base, "in p", pieces[0].iov_len);
	EXPECT(isthmus_channel_commit(there, 5), ISTHMUS_EINVAL);
	EXPECT(isthmus_channel_commit(there, 4), 0);
	EXPECT((int)isthmus_channel_reserve(there, 4, NULL), ISTHMUS_EINVAL);
	EXPECT((int)isthmus_channel_peek(here_too, 3, pieces), 3);
	EXPECT(isthmus_channel_release(here_too, 4), ISTHMUS_EINVAL);
	EXPECT((int)isthmus_channel_peek(here_too, 9, pieces), 4);
	EXPECT(memcmp(pieces[0].iov_base, "in p", pieces[0].iov_len), 0);
	EXPECT(isthmus_channel_release(here_too, 5), ISTHMUS_EINVAL);
	EXPECT(isthmus_channel_release(here_too, 4), 0);
	EXPECT(isthmus_channel_watch(here_too, 1, 0), 0);
	EXPECT(isthmus_channel_write_all(there, "part", 4, SOON), 0);
	EXPECT(isthmus_channel_read_all(here_too, bytes, 8, MOMENT), ISTHMUS_ETIMEDOUT);
	EXPECT(strstr(isthmus_error(), "4 bytes were moved") != NULL, 1);
	EXPECT(isthmus_channel_write_all(there, "x", 1, SOON), 0);
	EXPECT(isthmus_ivc_arm(two), 0);
	EXPECT(isthmus_channel_shutdown(there), 0);
	EXPECT((int)isthmus_channel_write(there, "x", 1), ISTHMUS_ECLOSED);
	EXPECT((int)isthmus_channel_read(here_too, more, 1), 1);
	/* The end is something to do until a call has said so, whoever found it. */
	isthmus_ivc_events(two, 0, note, &seen);
	EXPECT(isthmus_ivc_arm(two), 0);
	EXPECT(isthmus_ivc_arm(two), 0);
	EXPECT(isthmus_channel_read_all(here_too, more, 2, SOON), ISTHMUS_EEND);
	EXPECT(isthmus_ivc_arm(two), 1);
	EXPECT(isthmus_channel_write_all(here_too, "back", 4, SOON), 0);
	isthmus_channel_close(here_too);
	EXPECT(isthmus_channel_read_all(there, more, 4, SOON), 0);
	EXPECT(isthmus_channel_read_all(there, more, 1, SOON), ISTHMUS_EEND);
	isthmus_channel_close(there);

	/* Loans: by the ticket, by all but oneself, as long as they are. */
	unsigned char ticket[ISTHMUS_TICKET_BYTES];
	struct isthmus_loan *loan = NULL;
	EXPECT(isthmus_ivc_lend(one, bytes, 0, ticket, &loan), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_lend(one, NULL, 8, ticket, &loan), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_lend(one, bytes, 8, NULL, &loan), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_lend(one, bytes, 8, ticket, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_lend(one, bytes, SIZE_MAX / 4, ticket, &loan), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_lend(one, bytes, sizeof bytes, ticket, &loan), 0);
	EXPECT((int)(isthmus_loan_in_place(loan) % 4096), 0);
	EXPECT(isthmus_ivc_fetch(two, ticket, 1, more, 4), 0);
	EXPECT(memcmp(more, bytes + 1, 4), 0);
	EXPECT(isthmus_ivc_fetch(two, ticket, sizeof bytes - 3, more, 4), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_fetch(two, NULL, 0, more, 4), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_fetch(two, ticket, 0, NULL, 4), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_fetch(one, ticket, 0, more, 4), ISTHMUS_ENOTFOUND);
	EXPECT(isthmus_ivc_fetch(stranger, ticket, 0, more, 4), ISTHMUS_ENOTFOUND);
	isthmus_loan_end(loan);
	EXPECT(isthmus_ivc_fetch(two, ticket, 0, more, 4), ISTHMUS_ENOTFOUND);
	EXPECT(strstr(isthmus_error(), "loan") != NULL, 1);
	EXPECT((int)isthmus_loan_in_place(NULL), 0);
	isthmus_loan_end(NULL);

	/* One that dies: what it said is heard, then that it is gone. */
	pthread_create(&thread, NULL, answer, two);
	in_a_dying_child(register_and_connect);
	pthread_join(thread, &accepted);
	int found = isthmus_channel_read_all(accepted, more, 4, SOON);
	EXPECT(found == 0 ? memcmp(more, "last", 4) : found != ISTHMUS_EPEERDIED, 0);
	EXPECT(isthmus_channel_read_all(accepted, more, 1, SOON), ISTHMUS_EPEERDIED);
	isthmus_channel_close(accepted);

	/* Suspended as before a migration: what was not read is handed over. */
	EXPECT(isthmus_ivc_peers(one, &peer, 1) >= 1, 1);
	pthread_create(&thread, NULL, answer, two);
	EXPECT(isthmus_ivc_connect(one, &peer, SOON, &there), 0);
	pthread_join(thread, &accepted);
	EXPECT((int)isthmus_channel_write(there, "never", 5), 5);
	EXPECT(isthmus_ivc_suspend(one, MOMENT) >= 0, 1);
	seen = 0;
	for (int look = 0; look < 500 && !(seen & 1 << ISTHMUS_SUSPENDED); look++)
		isthmus_ivc_events(two, 10 * MOMENT, note, &seen);
	EXPECT(seen >> ISTHMUS_SUSPENDED & 1, 1);
	EXPECT((int)isthmus_channel_read(accepted, more, 1), ISTHMUS_ESUSPENDED);
	EXPECT((int)isthmus_channel_write(accepted, more, 1), 0);
	EXPECT(isthmus_channel_write_all(accepted, more, 1, SOON), ISTHMUS_ESUSPENDED);
	EXPECT(isthmus_ivc_resume(one), 0);
	isthmus_channel_close(accepted);
	isthmus_channel_close(there);
	EXPECT(isthmus_ivc_events(one, 0, NULL, NULL), ISTHMUS_EINVAL);
	isthmus_ivc_close(stranger);
	isthmus_ivc_close(two);
	isthmus_ivc_close(one);
	isthmus_ivc_close(NULL);
	isthmus_channel_close(NULL);
	EXPECT((int)isthmus_channel_read(NULL, more, 1), ISTHMUS_EINVAL);
	EXPECT(isthmus_ivc_peers(NULL, NULL, 0), ISTHMUS_EINVAL);
}

/* With a request to cancel it, from its first call on. */
static void *cancelled(void *arg)
{
	struct isthmus *here;
	struct isthmus_ivc *one, *two;
	struct isthmus_channel *there, *here_too;
	struct isthmus_peer peer;
	struct isthmus_barrier *barrier;
	struct isthmus_segment *segment;
	pthread_t thread;
	void *accepted;
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(before, NULL);
	EXPECT(isthmus_attach(NULL, &here), 0);
	EXPECT(isthmus_segment_open(here, "cancelled", ISTHMUS_CREATE, 0600, 100, &segment), 0);
	isthmus_segment_close(segment);
	EXPECT(isthmus_segment_unlink(here, "cancelled"), 0);
	EXPECT(isthmus_barrier_join(here, "cancelled", 2, ISTHMUS_SPIN, 0600, &barrier), 0);
	EXPECT(isthmus_barrier_wait(barrier, 20 * MOMENT), ISTHMUS_ETIMEDOUT);
	isthmus_barrier_leave(barrier);
	EXPECT(isthmus_barrier_unlink(here, "cancelled"), 0);
	EXPECT(isthmus_ivc_register(here, 44, 1, NULL, &one), 0);
	EXPECT(isthmus_ivc_register(here, 44, 2, NULL, &two), 0);
	EXPECT(isthmus_ivc_peers(one, &peer, 1), 1);
	pthread_create(&thread, NULL, answer, two);
	EXPECT(isthmus_ivc_connect(one, &peer, SOON, &there), 0);
	/* pthread_join() is such a point. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_join(thread, &accepted);
	pthread_setcancelstate(before, NULL);
	here_too = accepted;
	EXPECT((int)isthmus_channel_write(there, "x", 1), 1);
	EXPECT(isthmus_channel_flush(there, 20 * MOMENT), ISTHMUS_ETIMEDOUT);
	char byte;
	EXPECT(isthmus_channel_read_all(here_too, &byte, 1, SOON), 0);
	EXPECT(isthmus_channel_read_all(here_too, &byte, 1, 20 * MOMENT), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_ivc_suspend(one, MOMENT) >= 0, 1);
	isthmus_channel_close(there);
	isthmus_channel_close(here_too);
	isthmus_ivc_close(one);
	isthmus_ivc_close(two);
	isthmus_detach(here);
	*(int *)arg = 1;
	pthread_testcancel();
	return NULL;
}

static void cancellation(void)
{
	pthread_t thread;
	void *result;
	int done = 0;
	pthread_create(&thread, NULL, cancelled, &done);
	pthread_join(thread, &result);
	EXPECT(done, 1);
	EXPECT(result == PTHREAD_CANCELED, 1);
}

int main(void)
{
	struct isthmus *here, *other;
	struct isthmus_barrier *one, *two;
	struct isthmus_semaphore *semaphore;
	char name[64];
	uint32_t value;
	int made = 0;

	EXPECT(isthmus_attach("/nowhere/at/all", &here), ISTHMUS_ENOSERVICE);
	EXPECT(strstr(isthmus_error(), "/nowhere/at/all") != NULL, 1);
	EXPECT(isthmus_attach(NULL, NULL), ISTHMUS_EINVAL);
	cancellation();
	EXPECT(isthmus_attach(NULL, &here), 0);
	EXPECT(isthmus_attach(NULL, &other), 0);
	isthmus_detach(other);
	EXPECT(isthmus_member(here) != UINT32_MAX, 1);
	EXPECT(isthmus_member_name(here, isthmus_member(here), name, sizeof name), 0);
	EXPECT(name[0] != 0, 1);
	EXPECT(isthmus_member_name(here, isthmus_member(here), name, 2), 0);
	EXPECT((int)strlen(name), 1);
	EXPECT(isthmus_member_name(here, 999, name, sizeof name), ISTHMUS_ENOTFOUND);
	EXPECT(isthmus_member_name(here, 0, NULL, 5), ISTHMUS_EINVAL);
	for (int error = -30; error <= 1; error++)
		EXPECT(isthmus_strerror(error)[0] != 0, 1);

	sleep_without_waitv();
	segments(here);
	locks(here);

	EXPECT(isthmus_barrier_join(here, "edges", 2, 9, 0600, &one), ISTHMUS_EINVAL);
	EXPECT(isthmus_barrier_join(here, "edges", 0, ISTHMUS_SPIN, 0600, &one), ISTHMUS_EINVAL);
	EXPECT(isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &one), 0);
	EXPECT(isthmus_barrier_join(here, "edges", 3, ISTHMUS_HYBRID, 0600, &two), ISTHMUS_EEXIST);
	EXPECT(isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &two), 0);
	struct isthmus_barrier *none;
	EXPECT(isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &none), ISTHMUS_EFULL);
	EXPECT(isthmus_barrier_wait(one, MOMENT), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_barrier_wait(two, SOON) + isthmus_barrier_wait(one, SOON), 1);
	isthmus_barrier_leave(two);
	in_a_dying_child(join_barrier);
	EXPECT(isthmus_barrier_wait(one, SOON), ISTHMUS_EBROKEN);
	EXPECT(isthmus_barrier_wait(one, SOON), ISTHMUS_EBROKEN);
	EXPECT(isthmus_barrier_reset(here, "edges", 2, ISTHMUS_HYBRID, 0600), ISTHMUS_EBUSY);
	isthmus_barrier_leave(one);
	EXPECT(isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &one), ISTHMUS_EBROKEN);
	EXPECT(isthmus_barrier_reset(here, "edges", 3, ISTHMUS_HYBRID, 0600), ISTHMUS_EEXIST);
	EXPECT(isthmus_barrier_reset(here, "edges", 2, ISTHMUS_HYBRID, 0600), 0);
	EXPECT(isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &one), 0);
	EXPECT(isthmus_barrier_join(here, "edges", 2, ISTHMUS_HYBRID, 0600, &two), 0);
	/* One that is not broken is left as it is: in the middle of a round, too. */
	EXPECT(isthmus_barrier_wait(two, 0), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_barrier_reset(here, "edges", 2, ISTHMUS_HYBRID, 0600), 0);
	int serial = isthmus_barrier_wait(one, SOON);
	EXPECT(serial + isthmus_barrier_wait(two, SOON), 1);
	isthmus_barrier_leave(two);
	isthmus_barrier_leave(one);
	EXPECT(isthmus_barrier_unlink(here, "edges"), 0);

	EXPECT(isthmus_semaphore_open(here, "edges", 1u << 31, 0600, &semaphore), ISTHMUS_EINVAL);
	EXPECT(isthmus_semaphore_unlink(here, "edges"), ISTHMUS_ENOTFOUND);
	EXPECT(isthmus_semaphore_open(here, "edges", (1u << 31) - 1, 0600, &semaphore), 0);
	EXPECT(isthmus_semaphore_post(semaphore), ISTHMUS_EOVERFLOW);
	isthmus_semaphore_close(semaphore);
	EXPECT(isthmus_semaphore_unlink(here, "edges"), 0);
	EXPECT(isthmus_semaphore_open(here, "edges", 1, 0600, &semaphore), 0);
	EXPECT(isthmus_semaphore_wait(semaphore, 0), 0);
	EXPECT(isthmus_semaphore_wait(semaphore, 0), ISTHMUS_EBUSY);
	EXPECT(isthmus_semaphore_wait(semaphore, MOMENT), ISTHMUS_ETIMEDOUT);
	EXPECT(isthmus_semaphore_post(semaphore), 0);
	EXPECT(isthmus_semaphore_value(semaphore, &value), 0);
	EXPECT((int)value, 1);
	EXPECT(isthmus_semaphore_value(semaphore, NULL), ISTHMUS_EINVAL);
	isthmus_semaphore_close(semaphore);
	EXPECT(isthmus_semaphore_unlink(here, "edges"), 0);

	EXPECT(isthmus_once(here, "edges", 0600, make, &made), 5);
	EXPECT(isthmus_once(here, "edges", 0600, make, &made), 0);
	EXPECT(isthmus_once(here, "edges", 0600, make, &made), 0);
	EXPECT(made, 2);
	EXPECT(isthmus_once(here, "edges", 0600, NULL, NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_once_unlink(here, "edges"), 0);

	transactions(here);
	channels(here);

	/* NULL is an error or nothing, and never more. */
	isthmus_detach(NULL);
	isthmus_segment_close(NULL);
	isthmus_barrier_leave(NULL);
	isthmus_mutex_close(NULL);
	isthmus_condition_close(NULL);
	isthmus_semaphore_close(NULL);
	isthmus_rwlock_close(NULL);
	EXPECT(isthmus_barrier_wait(NULL, 0), ISTHMUS_EINVAL);
	EXPECT(isthmus_mutex_lock(NULL, 0), ISTHMUS_EINVAL);
	EXPECT(isthmus_mutex_unlock(NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_condition_notify(NULL, 0), ISTHMUS_EINVAL);
	EXPECT(isthmus_semaphore_post(NULL), ISTHMUS_EINVAL);
	EXPECT(isthmus_rwlock_read(NULL, 0), ISTHMUS_EINVAL);
	isthmus_detach(here);
	puts(failed ? "edges: something is not as it should be" : "edges: all as it should be");
	return failed;
}
