/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Loading and unloading: Debian's Open MPI unmaps libfabric and the provider in MPI_Finalize, and may map them again.
 * Nothing of ours may be left then: no thread, key, descriptor, mapping of the region, handler; and threads that used the
 * provider may end after it is gone.
 *
 * usage: unload LIBFABRIC...
 */
#include "harness.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int maps(const char *with)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char row[1024];
	int n = 0;
	CHECK(f);
	while (fgets(row, sizeof row, f))
		n += strstr(row, with) != NULL;
	fclose(f);
	return n;
}

/* One that has been joined is still listed for a moment. */
static void gone(pid_t thread)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/task/%d", (int)thread);
	for (int i = 0; access(path, F_OK) == 0; i++) {
		CHECK(i < 2000);
		usleep(1000);
	}
}

/* Keys that a program can still have. */
static int keys(void)
{
	pthread_key_t all[2048];
	int n = 0;
	while (n < 2048 && pthread_key_create(&all[n], NULL) == 0)
		n++;
	for (int i = 0; i < n; i++)
		pthread_key_delete(all[i]);
	return n;
}

static void use(void)
{
	struct side s;
	char name[64];
	size_t len = 64;
	uint64_t v = 0, x = 5;
	open_side(&s, NULL);
	EQUAL(fi_getname(&s.ep->fid, name, &len), 0);
	EQUAL(fi_av_insert(s.av, name, 1, &s.self, 0, NULL), 1);
	POST(&s, fi_trecv(s.ep, &v, 8, NULL, s.self, 1, 0, &v));
	POST(&s, fi_tinject(s.ep, &x, 8, s.self, 1));
	done(&s);
	EQUAL(v, 5);
	CHECK(maps("memfd:") > 0);
	close_side(&s);
}

static pthread_barrier_t used, unloaded;
static pid_t user_thread;

static void *user(void *arg)
{
	(void)arg;
	user_thread = gettid();
	use();
	pthread_barrier_wait(&used);
	pthread_barrier_wait(&unloaded);
	return NULL; /* thread-local destructors run now */
}

int main(int argc, char **argv)
{
	if (argc < 2)
		FAIL("usage: unload LIBFABRIC...");
	struct sigaction before[65], after;
	for (int i = 1; i < 65; i++)
		sigaction(i, NULL, &before[i]);
	pthread_barrier_init(&used, NULL, 2);
	pthread_barrier_init(&unloaded, NULL, 2);
	const int tasks = entries("/proc/self/task"); /* this thread alone */
	/* One arena for all threads: a second one is mapped where two threads allocate at the same time. */
	mallopt(M_ARENA_MAX, 1);
	for (int a = 1; a < argc; a++) {
		int files = 0, all = 0, free_keys = 0;
		test_name = argv[a];
		for (int round = 0; round < 24; round++) {
			pthread_t t;
			void *lib = load(argv[a]);
			use();
			/* Queries that come to nothing leave nothing either. */
			struct fi_info *info;
			struct fi_info *hints = hints_for(NULL);
			hints->caps = FI_COLLECTIVE;
			CHECK(lf.getinfo(API, NULL, NULL, 0, hints, &info) != 0);
			lf.freeinfo(hints);
			pthread_create(&t, NULL, user, NULL);
			pthread_barrier_wait(&used);
			EQUAL(dlclose(lib), 0);
			pthread_barrier_wait(&unloaded);
			pthread_join(t, NULL);
			gone(user_thread);
			EQUAL(entries("/proc/self/task"), tasks);
			EQUAL(maps("memfd:"), 0); /* the region */
			if (round == 3) {
				files = entries("/proc/self/fd");
				all = maps("");
				free_keys = keys();
			}
		}
		EQUAL(entries("/proc/self/fd"), files);
		EQUAL(keys(), free_keys);
		/* The allocator may have one or two more. */
		CHECK(maps("") <= all + 4);
		CHECK(maps("libisthmus-fi.so") > 0 && maps("libisthmus-fi.so") < 10); /* it stays, once */
		for (int i = 1; i < 65; i++)
			if (sigaction(i, NULL, &after) == 0)
				CHECK(after.sa_handler == before[i].sa_handler);
		printf("unload: ok (%s)\n", argv[a]);
	}
	return 0;
}
