/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * See team.h. The semaphores of the set:
 *
 *	PRESENT          how many ranks but 0 have not left yet; rank 0 waits until it is 0
 *	SEAT + rank      1 while nobody has come as that rank, if ranks are programs of their own
 *	signal(...)      for each rank and round of a barrier, how often it was signalled
 *
 * A process that comes must not take part before rank 0 has given the semaphores their values. It knows by the time of the last
 * semop, which is 0 in a new set: rank 0 has done one when it is done with the rest (see semget(2)).
 *
 * The barrier is by dissemination: in round k, each rank signals the one 2^k behind it, and waits for the signal from 2^k before
 * it. After log2(size) rounds, rounded up, everybody has heard of everybody, and nobody waits for a master. Semaphores count, so
 * a rank that is one barrier ahead does no harm. Between two processes that is one V and one P each.
 *
 * A reduction is a barrier with a value: each rank writes its own into a slot, and after the barrier reads all slots. Reading
 * them costs less than one more semop would, with as many processes as one host has, and makes one order of summation. There
 * are two sets of slots, used in turn: who writes into one has passed the barrier at which the last reader of it arrived.
 */
#define _GNU_SOURCE /* semtimedop */
#include "team.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PRESENT 0
#define SEAT 1
#define MODE 0600
#define NAP_NS 5000000

/* What the segment begins with. */
struct head {
	struct agreed {
		long n, steps, len;
		int dimensions, queue;
		double tolerance;
		char record[32];
	} agreed; /* rank 0's, and the others' must be the same */
	struct {
		_Alignas(64) double value;
	} slot[2][MOST_PROCESSES];
};

/* semctl(2) has its caller define it. */
union semun {
	int value;
	struct semid_ds *state;
	unsigned short *all;
};

static int rounds(int size)
{
	int count = 0;
	while (1 << count < size)
		count++;
	return count;
}

static int signal_of(const struct team *t, int rank, int round)
{
	return SEAT + t->size + rank * rounds(t->size) + round;
}

static int semaphore_count(const struct team *t)
{
	return signal_of(t, t->size, 0);
}

static struct timespec after(double seconds)
{
	return (struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
}

/* Ends a rank. The process that watches it removes the objects. */
_Noreturn static void lost(const struct team *t, const char *what, int from)
{
	if (errno == EIDRM || errno == EINVAL)
		die("rank %d: %s: another process has ended early, and removed the objects", t->rank, what);
	if (errno == EAGAIN && from >= 0)
		die("rank %d: %s: heard nothing of rank %d for %g s (-t)", t->rank, what, from, t->limit);
	die("rank %d: %s: %s", t->rank, what, errno == EAGAIN ? "the time limit is over (-t)" : strerror(errno));
}

/* One operation. `from` is the rank that we wait for, or -1. */
static void operate(const struct team *t, int semaphore, int by, int from)
{
	struct sembuf operation = {(unsigned short)semaphore, (short)by, 0};
	struct timespec limit = after(t->limit);
	while (semtimedop(t->semaphores, &operation, 1, &limit))
		if (errno != EINTR) /* also a process that was stopped and goes on gets it */
			lost(t, "semop", from);
}

void team_barrier(struct team *t)
{
	for (int round = 0, reach = 1; reach < t->size; round++, reach *= 2) {
		operate(t, signal_of(t, (t->rank + reach) % t->size, round), 1, -1);
		operate(t, signal_of(t, t->rank, round), -1, (t->rank - reach + t->size) % t->size);
	}
}

static unsigned exchange(struct team *t, double mine)
{
	unsigned turn = t->reductions++ % 2;
	t->head->slot[turn][t->rank].value = mine;
	team_barrier(t);
	return turn;
}

double team_sum(struct team *t, double mine)
{
	unsigned turn = exchange(t, mine);
	double sum = 0;
	for (int i = 0; i < t->size; i++)
		sum += t->head->slot[turn][i].value;
	return sum;
}

double team_max(struct team *t, double mine)
{
	unsigned turn = exchange(t, mine);
	for (int i = 0; i < t->size; i++)
		if (t->head->slot[turn][i].value > mine)
			mine = t->head->slot[turn][i].value;
	return mine;
}

/* ---- messages ---- */

static volatile sig_atomic_t late;

static void note_late(int signal)
{
	(void)signal;
	late = 1;
}

/* Neither call has a time limit, so an alarm interrupts it. */
static void set_alarm(const struct team *t)
{
	struct sigaction action = {.sa_handler = note_late};
	sigaction(SIGALRM, &action, NULL);
	late = 0;
	alarm(t->limit < 1 ? 1 : (unsigned)t->limit);
}

static void check_message(const struct team *t, const char *what)
{
	if (errno == EINTR && !late)
		return;
	if (errno == EINTR)
		errno = EAGAIN;
	lost(t, what, -1);
}

void team_send(struct team *t, const void *message, size_t len)
{
	set_alarm(t);
	while (msgsnd(t->queue, message, len, 0))
		check_message(t, "msgsnd");
	alarm(0);
}

void team_receive(struct team *t, void *message, size_t len, long type)
{
	ssize_t got;
	set_alarm(t);
	while ((got = msgrcv(t->queue, message, len, type, 0)) < 0)
		check_message(t, "msgrcv");
	alarm(0);
	if ((size_t)got != len)
		die("rank %d: msgrcv: a message of %zd bytes, not %zu", t->rank, got, len);
}

/* ---- meeting ---- */

/* Removes what is there of ours; somebody else may have before. */
static void discard(const struct team *t)
{
	if (t->semaphores >= 0)
		semctl(t->semaphores, 0, IPC_RMID);
	if (t->segment >= 0)
		shmctl(t->segment, IPC_RMID, NULL);
	if (t->queue >= 0)
		msgctl(t->queue, IPC_RMID, NULL);
}

/* Ends the program before any rank was forked. */
_Noreturn static void give_up(const struct team *t, const char *call, key_t key)
{
	int error = errno;
	discard(t);
	if (error == EEXIST)
		die("%s: key 0x%x is taken: by another run, or by one that was killed; see ipcs and ipcrm, or use another -k", call,
		    (unsigned)key);
	die("%s: %s", call, strerror(error));
}

static void watch_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGQUIT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGCHLD);
}

static void attach(struct team *t, key_t key)
{
	char *at = shmat(t->segment, NULL, 0);
	if (at == (void *)-1)
		give_up(t, "shmat", key);
	t->head = (struct head *)at;
	t->data = at + sizeof(struct head);
}

/* The semaphores come last: who finds them ready finds everything. */
static void create(struct team *t, key_t key, const struct agreed *agreed)
{
	int flags = IPC_CREAT | IPC_EXCL | MODE;
	unsigned short values[SEAT + MOST_PROCESSES + MOST_PROCESSES * 8] = {0};
	struct sembuf nothing = {SEAT, 0, 0};

	t->segment = shmget(key, (size_t)agreed->len, flags);
	if (t->segment < 0)
		give_up(t, "shmget", key);
	attach(t, key);
	t->head->agreed = *agreed;
	if (agreed->queue && (t->queue = msgget(key, flags)) < 0)
		give_up(t, "msgget", key);
	t->semaphores = semget(key, semaphore_count(t), flags);
	if (t->semaphores < 0)
		give_up(t, "semget", key);
	values[PRESENT] = (unsigned short)(t->size - 1);
	for (int rank = 1; rank < t->size; rank++)
		values[SEAT + rank] = 1;
	if (semctl(t->semaphores, 0, SETALL, (union semun){.all = values}))
		give_up(t, "semctl", key);
	if (semop(t->semaphores, &nothing, 1)) /* rank 0's seat is taken: does not wait, but sets the time */
		give_up(t, "semop", key);
}

/* Whether there is a set with a seat for us, which we have then; `why` says why not. */
static bool sit_down(struct team *t, key_t key, const char **why)
{
	struct semid_ds state;
	struct sembuf take = {(unsigned short)(SEAT + t->rank), -1, IPC_NOWAIT};
	int set = semget(key, 0, 0);

	if (set < 0 && errno != ENOENT)
		give_up(t, "semget", key);
	*why = "rank 0 has not come, or has another key";
	if (set < 0 || semctl(set, 0, IPC_STAT, (union semun){.state = &state}) || state.sem_otime == 0)
		return false;
	*why = "rank 0 has another -p";
	if (state.sem_nsems != (unsigned long)semaphore_count(t))
		return false;
	*why = "the rank is taken; perhaps by a run that was killed, see ipcs and ipcrm";
	if (semop(set, &take, 1))
		return false;
	t->semaphores = set;
	return true;
}

static void find(struct team *t, key_t key, const struct agreed *agreed)
{
	sigset_t watched;
	struct timespec nap = {0, NAP_NS};
	const char *why;
	double give_up_at = now() + t->limit;

	watch_signals(&watched);
	while (!sit_down(t, key, &why)) {
		int signal = sigtimedwait(&watched, NULL, &nap);
		if (signal > 0 && signal != SIGCHLD)
			exit(128 + signal);
		if (now() > give_up_at)
			die("rank %d: nobody to meet at key 0x%x within %g s (-t): %s", t->rank, (unsigned)key, t->limit, why);
	}
	if (agreed->queue && (t->queue = msgget(key, 0)) < 0)
		give_up(t, "msgget (does rank 0 have -q, too?)", key);
	t->segment = shmget(key, 0, 0);
	if (t->segment < 0)
		give_up(t, "shmget", key);
	attach(t, key);
	if (memcmp(&t->head->agreed, agreed, sizeof *agreed)) {
		discard(t);
		die("rank %d: rank 0 computes something else; all ranks need the same options", t->rank);
	}
}

static key_t key_of(const struct options *o)
{
	key_t key;
	if (o->key || o->rank < 0)
		return o->key ? o->key : IPC_PRIVATE;
	/* The program's own file is what all ranks know, if they are one program. */
	key = ftok("/proc/self/exe", 'd');
	if (key == -1)
		die("ftok: %s; give a key with -k", strerror(errno));
	return key;
}

/* ---- running ---- */

static void be_rank(struct team *t, void (*work)(struct team *))
{
	record_id = t->semaphores;
	team_barrier(t);
	/* All have it attached. Who may be killed from now on leaves no segment. */
	if (t->rank == 0)
		shmctl(t->segment, IPC_RMID, NULL);
	work(t);
	if (t->rank) {
		operate(t, PRESENT, -1, -1);
	} else {
		operate(t, PRESENT, 0, -1);
		discard(t);
	}
}

/* Waits for the ranks. After the first that ends badly, or a signal, those left are ended. */
static int watch(int *ranks, pid_t *children, int count)
{
	int status = 0, left = count;
	sigset_t watched;

	watch_signals(&watched);
	while (left) {
		int signal = sigwaitinfo(&watched, NULL), how;
		pid_t pid;
		bool end = false;
		if (signal < 0)
			continue;
		if (signal != SIGCHLD) {
			status = 128 + signal;
			end = true;
		}
		while ((pid = waitpid(-1, &how, WNOHANG)) > 0) {
			for (int i = 0; i < count; i++)
				if (children[i] == pid) {
					children[i] = 0;
					left--;
					if (WIFSIGNALED(how) && !status)
						complain("rank %d was ended by signal %d (%s)", ranks[i], WTERMSIG(how), strsignal(WTERMSIG(how)));
					if (how && !status)
						status = 1;
				}
			end = end || how;
		}
		for (int i = 0; end && i < count; i++)
			if (children[i])
				kill(children[i], SIGTERM);
	}
	return status;
}

int team_run(const struct options *o, size_t len, void (*work)(struct team *))
{
	struct team t = {.rank = o->rank < 0 ? 0 : o->rank, .size = o->processes, .queue = -1, .segment = -1, .semaphores = -1,
			 .limit = o->limit, .options = o};
	int ranks[MOST_PROCESSES], count = o->rank < 0 ? o->processes : 1, status, failed = 0;
	pid_t children[MOST_PROCESSES];
	struct agreed agreed;
	sigset_t watched, before;
	key_t key = key_of(o);

	memset(&agreed, 0, sizeof agreed); /* with its gaps, for memcmp */
	agreed.n = o->n, agreed.steps = o->steps, agreed.len = (long)(sizeof(struct head) + len);
	agreed.dimensions = o->dimensions, agreed.queue = o->queue, agreed.tolerance = o->tolerance;
	memcpy(agreed.record, o->record, sizeof agreed.record);

	/* From here on, signals end us where the objects can be removed. */
	watch_signals(&watched);
	sigprocmask(SIG_BLOCK, &watched, &before);
	signal(SIGCHLD, SIG_DFL);
	if (t.rank == 0)
		create(&t, key, &agreed);
	else
		find(&t, key, &agreed);

	for (int i = 0; i < count; i++) {
		ranks[i] = t.rank + i;
		children[i] = fork();
		if (children[i] == 0) {
			t.rank = ranks[i];
			sigprocmask(SIG_SETMASK, &before, NULL);
			be_rank(&t, work);
			_exit(0);
		}
		if (children[i] < 0) {
			complain("fork: %s", strerror(errno));
			discard(&t); /* which ends those that are there */
			count = i;
			failed = 1;
		}
	}
	shmdt(t.head);
	status = watch(ranks, children, count);
	status = status ? status : failed;
	if (status)
		discard(&t);
	return status;
}
