// SPDX-License-Identifier: Apache-2.0 OR MIT
// Processes that meet in shared memory of System V, as any program does: the first makes a segment with a key and writes, each of
// the others waits for it, reads, and adds its mark. The first prints all marks and removes the segment.
//
//   sysv KEY          with ISTHMUS_RANK and ISTHMUS_SIZE
//   sysv KEY look     prints what is there, and who has it attached, and leaves
//   sysv KEY try ID   prints how calls for a segment end
//   sysv KEY fork     forks with a segment attached and a large allocation that lies in a file
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 64
#define BYTES (3 << 20)

struct board {
	volatile int ready;
	volatile int marks[MOST];
	char name[MOST][32];
	char text[64];
};

static void fail(const char *what)
{
	fprintf(stderr, "sysv: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int number(const char *name)
{
	const char *text = getenv(name);
	if (!text) {
		fprintf(stderr, "sysv: %s is not set\n", name);
		exit(2);
	}
	return atoi(text);
}

// A segment that another process makes may take a while.
static int wait_for_segment(key_t key)
{
	for (int i = 0; i < 3000; i++) {
		int id = shmget(key, 0, 0);
		if (id >= 0)
			return id;
		if (errno != ENOENT)
			fail("shmget");
		usleep(10000);
	}
	fail("no segment comes");
	return -1;
}

static const char *end_of(long status)
{
	return status == -1 ? strerrorname_np(errno) : "done";
}

static int try_all(key_t key, int id)
{
	printf("%s", end_of(shmget(key, 0, 0)));
	printf(" %s", end_of(shmget(key, 1, IPC_CREAT | 0600)));
	printf(" %s", end_of(shmget(key, 1, IPC_CREAT | IPC_EXCL | 0600)));
	printf(" %s", end_of((long)shmat(id, NULL, 0)));
	struct shmid_ds stat;
	printf(" %s", end_of(shmctl(id, IPC_STAT, &stat)));
	printf(" %s\n", end_of(shmctl(id, SHM_UNLOCK, NULL)));
	return 0;
}

// Whether memory is that of a file, as the region's is, and not of this process alone.
static int is_in_a_file(const void *at)
{
	char line[512];
	unsigned long low, high, device;
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &low, &high, &device) == 3 && (unsigned long)at >= low && (unsigned long)at < high)
			found = device != 0;
	if (maps)
		fclose(maps);
	return found;
}

static int forks(void)
{
	enum { TIMES = 20, LARGE = 1 << 20 };
	int id = shmget(IPC_PRIVATE, 4096, 0600), status = 0;
	volatile char *at = shmat(id, NULL, 0);
	char *large = malloc(LARGE);
	if (at == (void *)-1 || !large)
		fail("shmat or malloc");
	memset(large, 7, LARGE);
	int before = is_in_a_file(large);
	for (int i = 0; i < TIMES && status == 0; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			at[0]++;
			_exit(large[LARGE - 1] == 7 && memchr(large, 0, LARGE) == NULL ? 0 : 3);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			fail("fork");
	}
	printf("%s, %d children, the last one's status %d\n", before ? "in a file" : "in its own memory", at[0], status);
	return shmctl(id, IPC_RMID, NULL) != 0;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	key_t key = (key_t)strtol(argv[1], NULL, 0);
	if (argc == 3 && strcmp(argv[2], "fork") == 0)
		return forks();
	if (argc > 3)
		return try_all(key, atoi(argv[3]));
	int is_looking = argc > 2;
	int rank = is_looking ? -1 : number("ISTHMUS_RANK"), size = is_looking ? 0 : number("ISTHMUS_SIZE");
	struct utsname here;
	uname(&here);

	int id = rank == 0 ? shmget(key, BYTES, IPC_CREAT | IPC_EXCL | 0600) : wait_for_segment(key);
	if (id < 0)
		fail("shmget of a new segment");
	struct board *board = shmat(id, NULL, 0);
	if (board == (void *)-1)
		fail("shmat");
	struct shmid_ds stat;
	if (shmctl(id, IPC_STAT, &stat) != 0)
		fail("IPC_STAT");
	if (stat.shm_segsz != BYTES) {
		fprintf(stderr, "sysv: %zu bytes, not %d\n", stat.shm_segsz, BYTES);
		return 1;
	}
	if (is_looking) {
		printf("%s sees \"%s\" in segment %d, attached %lu times\n", here.nodename, board->text, id, (unsigned long)stat.shm_nattch);
		return shmdt(board) != 0;
	}
	if (rank == 0) {
		snprintf(board->text, sizeof(board->text), "written by %.40s", here.nodename);
		__atomic_store_n(&board->ready, 1, __ATOMIC_RELEASE);
	}
	for (int i = 0; i < 3000 && !__atomic_load_n(&board->ready, __ATOMIC_ACQUIRE); i++)
		usleep(10000);
	if (strncmp(board->text, "written by ", 11) != 0) {
		fprintf(stderr, "sysv: what is read was not written: %.20s\n", board->text);
		return 1;
	}
	snprintf(board->name[rank], sizeof(board->name[rank]), "%.31s", here.nodename);
	__atomic_store_n(&board->marks[rank], rank + 1, __ATOMIC_RELEASE);
	if (rank == 0) {
		for (int other = 0; other < size; other++) {
			for (int i = 0; i < 3000 && __atomic_load_n(&board->marks[other], __ATOMIC_ACQUIRE) != other + 1; i++)
				usleep(10000);
			if (board->marks[other] != other + 1) {
				fprintf(stderr, "sysv: process %d left no mark\n", other);
				return 1;
			}
			printf("process %d was on %s\n", other, board->name[other]);
		}
		// With "wait" on standard input, until that ends: so that others can look.
		fflush(stdout);
		while (getchar() != EOF)
			;
		if (shmctl(id, IPC_RMID, NULL) != 0)
			fail("IPC_RMID");
	}
	return shmdt(board) != 0;
}
