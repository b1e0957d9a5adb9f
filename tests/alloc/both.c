// SPDX-License-Identifier: Apache-2.0 OR MIT
// System V shared memory and large allocations, both of the region, over forks: the one is shared with a child, the other is its own.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("not so: %s, line %d\n", #what, __LINE__); fflush(stdout); _exit(1); } } while (0)

int main(void)
{
	int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
	CHECK(id >= 0);
	char *shared = shmat(id, NULL, 0);
	CHECK(shared != (char *)-1);
	for (int round = 0; round < 20; round++) {
		char *own = malloc(1 << 20);
		memset(own, 1, 1 << 20);
		shared[0] = 1;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(20);
			CHECK(own[(1 << 20) - 1] == 1 && shared[0] == 1);
			memset(own, 2, 1 << 20);
			shared[0] = 2;
			CHECK(shmdt(shared) == 0);
			int other = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
			CHECK(other >= 0 && shmctl(other, IPC_RMID, NULL) == 0);
			CHECK(own[5] == 2);
			free(own);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(own[(1 << 20) - 1] == 1 && shared[0] == 2);
		free(own);
	}
	CHECK(shmdt(shared) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
	puts("both");
	return 0;
}
