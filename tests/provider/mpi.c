/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What MPI programs do that stresses a provider in ways of its own: probes, cancels, truncation, one-sided
 * communication in all its synchronisations, threads, spawned processes. Any number of ranks from 2.
 *
 * usage: mpirun -n N mpi [TEST...]
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size, left, right;
static const char *test_name = "start";

#define CHECK(condition)                                                                                 \
	do {                                                                                             \
		if (!(condition)) {                                                                      \
			fprintf(stderr, "%s:%d: rank %d, %s: not so: %s\n", __FILE__, __LINE__, rank,    \
				test_name, #condition);                                                  \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                    \
		}                                                                                        \
	} while (0)

static void point_to_point(void)
{
	int lens[] = {0, 1, 10, 500, 1024, 5000, 20000, 300000, 1000000};
	for (int i = 0; i < 9; i++) {
		int n = lens[i];
		int *a = malloc(n * 4 + 4), *b = malloc(n * 4 + 4);
		for (int k = 0; k < n; k++)
			a[k] = rank * 1000003 + k;
		MPI_Status st;
		MPI_Sendrecv(a, n, MPI_INT, right, i, b, n, MPI_INT, left, i, MPI_COMM_WORLD, &st);
		int count;
		MPI_Get_count(&st, MPI_INT, &count);
		CHECK(count == n && st.MPI_SOURCE == left);
		for (int k = 0; k < n; k++)
			CHECK(b[k] == left * 1000003 + k);
		/* Synchronous sends, and strided data. */
		MPI_Request r[2];
		MPI_Issend(a, n, MPI_INT, right, 99, MPI_COMM_WORLD, &r[0]);
		MPI_Irecv(b, n, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &r[1]);
		MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
		MPI_Datatype strided;
		MPI_Type_vector(n / 2, 1, 2, MPI_INT, &strided);
		MPI_Type_commit(&strided);
		memset(b, 0, n * 4);
		MPI_Sendrecv(a, 1, strided, right, 5, b, n / 2, MPI_INT, left, 5, MPI_COMM_WORLD, &st);
		for (int k = 0; k < n / 2; k++)
			CHECK(b[k] == left * 1000003 + 2 * k);
		MPI_Type_free(&strided);
		free(a);
		free(b);
	}
}

static void flood(void)
{
	enum { N = 3000 };
	static int a[N];
	static MPI_Request r[N];
	for (int i = 0; i < N; i++) {
		a[i] = i;
		MPI_Isend(&a[i], 1, MPI_INT, right, i % 7, MPI_COMM_WORLD, &r[i]);
	}
	for (int t = 6; t >= 0; t--)
		for (int i = t; i < N; i += 7) {
			int v;
			MPI_Recv(&v, 1, MPI_INT, left, t, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK(v == i);
		}
	MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
}

static void probes(void)
{
	int flag;
	MPI_Status st;
	MPI_Message m;
	MPI_Iprobe(MPI_ANY_SOURCE, 12345, MPI_COMM_WORLD, &flag, &st);
	CHECK(!flag);
	MPI_Improbe(MPI_ANY_SOURCE, 12345, MPI_COMM_WORLD, &flag, &m, &st);
	CHECK(!flag);
	for (int n = 1; n < 300000; n *= 10) {
		int *a = malloc(n * 4), *b = malloc(n * 4), *c = malloc(n * 4), count;
		MPI_Request r[2];
		for (int k = 0; k < n; k++)
			a[k] = k;
		MPI_Isend(a, n, MPI_INT, right, 3, MPI_COMM_WORLD, &r[0]);
		MPI_Isend(a, n, MPI_INT, right, 3, MPI_COMM_WORLD, &r[1]);
		MPI_Probe(left, 3, MPI_COMM_WORLD, &st);
		MPI_Get_count(&st, MPI_INT, &count);
		CHECK(count == n);
		MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &m, &st);
		CHECK(st.MPI_SOURCE == left && st.MPI_TAG == 3);
		MPI_Recv(c, n, MPI_INT, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Mrecv(b, n, MPI_INT, &m, &st);
		CHECK(!memcmp(a, b, n * 4) && !memcmp(a, c, n * 4));
		MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
		free(a);
		free(b);
		free(c);
	}
}

static void cancels(void)
{
	int v, w = 7, flag;
	MPI_Request r;
	MPI_Status st;
	for (int i = 0; i < 100; i++) {
		MPI_Irecv(&v, 1, MPI_INT, left, 45, MPI_COMM_WORLD, &r);
		MPI_Cancel(&r);
		MPI_Wait(&r, &st);
		MPI_Test_cancelled(&st, &flag);
		CHECK(flag);
	}
	MPI_Sendrecv(&w, 1, MPI_INT, right, 44, &v, 1, MPI_INT, left, 44, MPI_COMM_WORLD, &st);
	CHECK(v == 7);
}

static void truncation(void)
{
	MPI_Comm c;
	MPI_Comm_dup(MPI_COMM_WORLD, &c);
	MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
	int lens[] = {100, 100000};
	for (int i = 0; i < 2; i++) {
		int *a = calloc(lens[i], 4), b[2], class = 0;
		MPI_Request r, s;
		MPI_Irecv(b, 2, MPI_INT, left, 1, c, &r);
		MPI_Isend(a, lens[i], MPI_INT, right, 1, c, &s);
		int e = MPI_Wait(&r, MPI_STATUS_IGNORE);
		MPI_Error_class(e, &class);
		CHECK(class == MPI_ERR_TRUNCATE);
		MPI_Wait(&s, MPI_STATUS_IGNORE);
		free(a);
	}
	MPI_Comm_free(&c);
}

static void collectives(void)
{
	for (int n = 1; n <= 100000; n *= 100) {
		double *a = malloc(n * 8), *b = malloc((size_t)n * 8 * size);
		for (int k = 0; k < n; k++)
			a[k] = rank + k;
		MPI_Allgather(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, MPI_COMM_WORLD);
		for (int p = 0; p < size; p++)
			CHECK(b[(size_t)p * n + n - 1] == p + n - 1);
		MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		CHECK(a[0] == size * (size - 1) / 2.0);
		free(a);
		free(b);
	}
}

static void one_sided(void)
{
	enum { N = 100000 };
	long *mem;
	MPI_Win win;
	MPI_Win_allocate(N * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &mem, &win);
	for (int i = 0; i < N; i++)
		mem[i] = -1;
	long *a = malloc(N * sizeof(long));
	/* Fence. */
	for (int n = 1; n <= N; n *= 10) {
		for (int i = 0; i < n; i++)
			a[i] = rank * 10 + i;
		MPI_Win_fence(0, win);
		MPI_Put(a, n, MPI_LONG, right, 0, n, MPI_LONG, win);
		MPI_Win_fence(0, win);
		for (int i = 0; i < n; i++)
			CHECK(mem[i] == left * 10 + i);
		memset(a, 0, n * sizeof(long));
		MPI_Win_fence(0, win);
		MPI_Get(a, n, MPI_LONG, right, 0, n, MPI_LONG, win);
		MPI_Win_fence(0, win);
		for (int i = 0; i < n; i++)
			CHECK(a[i] == rank * 10 + i);
	}
	/* Post, start, complete, wait. */
	MPI_Group all, to, from;
	MPI_Comm_group(MPI_COMM_WORLD, &all);
	MPI_Group_incl(all, 1, &right, &to);
	MPI_Group_incl(all, 1, &left, &from);
	for (int i = 0; i < 20; i++) {
		long v = rank + i;
		MPI_Win_post(from, 0, win);
		MPI_Win_start(to, 0, win);
		MPI_Put(&v, 1, MPI_LONG, right, i, 1, MPI_LONG, win);
		MPI_Win_complete(win);
		MPI_Win_wait(win);
		CHECK(mem[i] == left + i);
	}
	MPI_Group_free(&all);
	MPI_Group_free(&to);
	MPI_Group_free(&from);
	/* Passive target: everybody adds to rank 0, in all ways. */
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		mem[0] = mem[1] = mem[2] = mem[3] = 0;
		MPI_Win_unlock(0, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < 50; i++) {
		long one = 1, got, zero = 0;
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		MPI_Get(&got, 1, MPI_LONG, 0, 0, 1, MPI_LONG, win);
		MPI_Win_flush(0, win);
		got++;
		MPI_Put(&got, 1, MPI_LONG, 0, 0, 1, MPI_LONG, win);
		MPI_Win_unlock(0, win);
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		MPI_Accumulate(&one, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_SUM, win);
		MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, 2, MPI_SUM, win);
		MPI_Win_unlock(0, win);
		do {
			MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
			MPI_Get_accumulate(NULL, 0, MPI_LONG, &zero, 1, MPI_LONG, 0, 3, 1, MPI_LONG, MPI_NO_OP, win);
			MPI_Win_flush(0, win);
			long next = zero + 1;
			MPI_Compare_and_swap(&next, &zero, &got, MPI_LONG, 0, 3, win);
			MPI_Win_unlock(0, win);
		} while (got != zero);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		for (int i = 0; i < 4; i++)
			CHECK(mem[i] == 50 * size);
		MPI_Win_unlock(0, win);
	}
	/* Accumulate of many elements, strided. */
	MPI_Datatype strided;
	MPI_Type_vector(1000, 1, 3, MPI_LONG, &strided);
	MPI_Type_commit(&strided);
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		mem[i] = 0;
	for (int i = 0; i < 3000; i++)
		a[i] = 1;
	MPI_Win_fence(0, win);
	MPI_Accumulate(a, 1000, MPI_LONG, 0, 0, 1, strided, MPI_SUM, win);
	MPI_Win_fence(0, win);
	if (rank == 0)
		for (int i = 0; i < 3000; i++)
			CHECK(mem[i] == (i % 3 == 0 ? size : 0));
	MPI_Type_free(&strided);
	MPI_Win_free(&win);
	free(a);
}

static void dynamic_window(void)
{
	MPI_Win win;
	long *mem = calloc(1000, sizeof(long));
	MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	MPI_Win_attach(win, mem, 1000 * sizeof(long));
	MPI_Aint mine, *all = malloc(size * sizeof(MPI_Aint));
	MPI_Get_address(mem, &mine);
	MPI_Allgather(&mine, 1, MPI_AINT, all, 1, MPI_AINT, MPI_COMM_WORLD);
	long v = rank + 1, got = 0;
	MPI_Win_lock_all(0, win);
	MPI_Put(&v, 1, MPI_LONG, right, MPI_Aint_add(all[right], 80), 1, MPI_LONG, win);
	MPI_Win_flush(right, win);
	MPI_Get(&got, 1, MPI_LONG, right, MPI_Aint_add(all[right], 80), 1, MPI_LONG, win);
	MPI_Win_flush(right, win);
	CHECK(got == rank + 1);
	MPI_Accumulate(&v, 1, MPI_LONG, 0, all[0], 1, MPI_LONG, MPI_SUM, win);
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		CHECK(mem[0] == size * (size + 1) / 2);
	MPI_Win_detach(win, mem);
	MPI_Win_free(&win);
	free(mem);
	free(all);
}

static int provided;

static void *thread(void *arg)
{
	int me = (int)(long)arg;
	for (int i = 0; i < 500; i++) {
		int n = (int[]){1, 100, 3000, 30000}[i % 4];
		int *a = malloc(n * 4), *b = malloc(n * 4);
		for (int k = 0; k < n; k++)
			a[k] = me + i + k;
		MPI_Sendrecv(a, n, MPI_INT, right, me, b, n, MPI_INT, left, me, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(!memcmp(a, b, n * 4));
		free(a);
		free(b);
	}
	return NULL;
}

static void threads(void)
{
	if (provided != MPI_THREAD_MULTIPLE)
		return;
	pthread_t t[4];
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, thread, (void *)(1000 + i));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

static char *self;

static void spawn(void)
{
	MPI_Comm children;
	int v = 41, got = 0;
	char *args[] = {"child", NULL};
	MPI_Comm_spawn(self, args, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
	if (rank == 0) {
		MPI_Send(&v, 1, MPI_INT, 1, 0, children);
		MPI_Recv(&got, 1, MPI_INT, 1, 0, children, MPI_STATUS_IGNORE);
		CHECK(got == 42);
	}
	MPI_Comm all;
	MPI_Intercomm_merge(children, 0, &all);
	int sum = 0, one = 1;
	MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all);
	CHECK(sum == size + 2);
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&children);
}

static int child(void)
{
	MPI_Comm parent, all;
	int v, sum = 0, one = 1;
	test_name = "child";
	MPI_Comm_get_parent(&parent);
	CHECK(parent != MPI_COMM_NULL);
	if (rank == 1) {
		MPI_Recv(&v, 1, MPI_INT, 0, 0, parent, MPI_STATUS_IGNORE);
		v++;
		MPI_Send(&v, 1, MPI_INT, 0, 0, parent);
	}
	MPI_Intercomm_merge(parent, 1, &all);
	MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all);
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&parent);
	MPI_Finalize();
	return 0;
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{"point_to_point", point_to_point}, {"flood", flood},
	{"probes", probes},		    {"cancels", cancels},
	{"truncation", truncation},	    {"collectives", collectives},
	{"one_sided", one_sided},	    {"dynamic_window", dynamic_window},
	{"threads", threads},		    {"spawn", spawn},
};

int main(int argc, char **argv)
{
	self = argv[0];
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc > 1 && !strcmp(argv[1], "child"))
		return child();
	right = (rank + 1) % size;
	left = (rank + size - 1) % size;
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		int run = argc == 1;
		for (int k = 1; k < argc; k++)
			run |= !strcmp(argv[k], tests[i].name);
		if (!run)
			continue;
		test_name = tests[i].name;
		double start = MPI_Wtime();
		tests[i].run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0)
			printf("%-16s ok %6.2f s\n", test_name, MPI_Wtime() - start);
		fflush(stdout);
	}
	MPI_Finalize();
	return 0;
}
