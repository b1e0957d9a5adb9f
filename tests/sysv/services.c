/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program whose service ends, and another one comes at its socket: the numbers that it knows are other objects there, which
 * are not its own. And one whose service is stopped, and one whose threads are idle. For tests/sysv/services.
 *
 *	usage: PROGRAM make    makes a set and a segment that begins with '2', and looks after them until a line comes: 1 if a byte has changed
 *	       PROGRAM elsewhere    as PROGRAM, but loses its environment and its directory; after the line the service has ended
 *	       PROGRAM        makes the same with '1', says `ready`, and goes on after a line
 *	       PROGRAM idle           makes sets that take most of the region's memory, has a thread use each and be idle, removes them, and makes them anew
 *	       PROGRAM stopped PID    stops the service, and sleeps meanwhile: until a time, a signal, and another process's call
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEY 0x5e1
#define MAY 0600

#define CHECK(what)                                                                              \
	do {                                                                                     \
		if (!(what)) {                                                                   \
			printf("%d: %s: errno %d (%s)\n", __LINE__, #what, errno, strerror(errno)); \
			return 1;                                                                \
		}                                                                                \
	} while (0)

/* Another group, which the service is told of by another connection only. */
static int change_group(void)
{
	return geteuid() != 0 || !setegid(getegid() + 1);
}

static int elsewhere(void)
{
	int set = semget(KEY, 1, IPC_CREAT | IPC_EXCL | MAY), status;
	int segment = shmget(IPC_PRIVATE, 4096, MAY);
	CHECK(set != -1 && segment != -1);
	volatile char *at = shmat(segment, NULL, 0);
	CHECK(at != (void *)-1);
	*at = '1';
	CHECK(!clearenv() && !chdir("/"));
	pid_t child = fork();
	CHECK(child != -1);
	if (!child) {
		CHECK(*at == '1');
		*at = '2';
		CHECK(!shmdt((void *)at));
		return 0;
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(*at == '2');
	/* By the connection that it has, and by another one. */
	CHECK(!seteuid(geteuid()));
	CHECK(semget(KEY, 1, IPC_CREAT | MAY) == set);
	CHECK(!shmctl(segment, IPC_RMID, NULL));
	CHECK(change_group());
	CHECK(!semctl(set, 0, IPC_RMID));
	puts("ready");
	fflush(stdout);
	getchar();
	int error = geteuid() == 0 ? ENOSYS : EIO;
	CHECK(change_group());
	CHECK(semget(IPC_PRIVATE, 1, MAY) == -1 && errno == error);
	return 0;
}

/* 5.7 MB each. */
#define SETS 5
#define SEMAPHORES 32000

static int sets[SETS];
static pthread_barrier_t have_used;

static void *use_and_idle(void *number)
{
	struct sembuf up = { 0, 1, SEM_UNDO };
	if (semop(sets[(size_t)number], &up, 1))
		perror("semop");
	pthread_barrier_wait(&have_used);
	while (pause() == -1)
		;
	return NULL;
}

static int remove_with_idle_threads(void)
{
	pthread_t thread;
	pthread_barrier_init(&have_used, NULL, SETS + 1);
	for (size_t i = 0; i < SETS; i++) {
		sets[i] = semget(IPC_PRIVATE, SEMAPHORES, MAY);
		CHECK(sets[i] != -1);
	}
	CHECK(semget(IPC_PRIVATE, SEMAPHORES, MAY) == -1 && errno == ENOSPC);
	for (size_t i = 0; i < SETS; i++)
		CHECK(!pthread_create(&thread, NULL, use_and_idle, (void *)i));
	pthread_barrier_wait(&have_used);
	for (size_t i = 0; i < SETS; i++)
		CHECK(!semctl(sets[i], 0, IPC_RMID));
	for (size_t i = 0; i < SETS; i++) {
		sets[i] = semget(IPC_PRIVATE, SEMAPHORES, MAY);
		CHECK(sets[i] != -1);
	}
	for (size_t i = 0; i < SETS; i++)
		CHECK(!semctl(sets[i], 0, IPC_RMID));
	return 0;
}

static void hear(int signal)
{
	(void)signal;
}

/* Far less than a process waits for an answer that it cannot do without, on a machine that has much else to do, too. */
#define SOON 4

static int sleep_while_stopped(pid_t service)
{
	struct sembuf down = { 0, -1, 0 }, up = { 0, 1, 0 };
	struct timespec limit = { 0, 100000000 };
	int set = semget(IPC_PRIVATE, 1, MAY), before[2], after[2], status;
	char byte;
	CHECK(set != -1 && !pipe(before) && !pipe(after));
	pid_t child = fork();
	CHECK(child != -1);
	if (!child) {
		/* It knows the set before the service stops. */
		int failed = semop(set, &up, 1) || semop(set, &down, 1) || write(before[1], "", 1) != 1;
		_exit(failed || read(after[0], &byte, 1) != 1 || usleep(500000) || semop(set, &up, 1));
	}
	CHECK(read(before[0], &byte, 1) == 1);
	CHECK(!semop(set, &up, 1) && !semop(set, &down, 1));
	CHECK(!kill(service, SIGSTOP));
	time_t begun = time(NULL);
	CHECK(semtimedop(set, &down, 1, &limit) == -1 && errno == EAGAIN);
	CHECK(time(NULL) - begun <= SOON);
	CHECK(!sigaction(SIGALRM, &(struct sigaction){ .sa_handler = hear }, NULL));
	begun = time(NULL);
	alarm(1);
	CHECK(semop(set, &down, 1) == -1 && errno == EINTR);
	CHECK(time(NULL) - begun <= SOON);
	begun = time(NULL);
	CHECK(write(after[1], "", 1) == 1);
	CHECK(!semop(set, &down, 1));
	CHECK(time(NULL) - begun <= SOON);
	CHECK(!kill(service, SIGCONT));
	/* It answers what it was asked. */
	CHECK(semtimedop(set, &down, 1, &limit) == -1 && errno == EAGAIN);
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(!semctl(set, 0, IPC_RMID));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "elsewhere"))
		return elsewhere();
	if (argc > 1 && !strcmp(argv[1], "idle"))
		return remove_with_idle_threads();
	if (argc > 2 && !strcmp(argv[1], "stopped"))
		return sleep_while_stopped(atoi(argv[2]));
	int is_second = argc > 1 && !strcmp(argv[1], "make"), status;
	int set = semget(KEY, 1, IPC_CREAT | IPC_EXCL | MAY);
	int segment = shmget(KEY, 4096, IPC_CREAT | IPC_EXCL | MAY);
	CHECK(set != -1 && segment != -1);
	volatile char *at = shmat(segment, NULL, 0);
	CHECK(at != (void *)-1);
	*at = is_second ? '2' : '1';
	puts("ready");
	fflush(stdout);
	getchar();
	if (is_second) {
		CHECK(*at == '2');
		CHECK(semget(KEY, 1, 0) == set);
		CHECK(shmget(KEY, 4096, 0) == segment);
		CHECK(semget(KEY + 1, 1, 0) == -1 && errno == ENOENT);
		CHECK(!semctl(set, 0, IPC_RMID) && !shmctl(segment, IPC_RMID, NULL));
		return 0;
	}
	CHECK(change_group());
	CHECK(semctl(set, 0, IPC_RMID) == -1 && errno == EIO);
	CHECK(shmctl(segment, IPC_RMID, NULL) == -1 && errno == EIO);
	CHECK(semget(KEY + 1, 1, IPC_CREAT | MAY) == -1 && errno == EIO);
	CHECK(*at == '1');
	/* A child has none of its parent's, and what it makes is the other service's. */
	pid_t child = fork();
	CHECK(child != -1);
	if (!child) {
		*at = '3';
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
	CHECK(!shmdt((void *)at));
	child = fork();
	CHECK(child != -1);
	if (!child) {
		int own = shmget(IPC_PRIVATE, 4096, MAY), others = shmget(KEY, 4096, 0);
		at = shmat(own, NULL, 0);
		CHECK(at != (void *)-1);
		*at = '4';
		CHECK(!shmctl(own, IPC_RMID, NULL));
		at = shmat(others, NULL, SHM_RDONLY);
		CHECK(at != (void *)-1 && *at == '2');
		return 0;
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	return 0;
}
