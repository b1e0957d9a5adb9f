/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What tests of two processes share: the processes themselves, buffers, and a list of tests that both go through. Each
 * test gets fresh objects, whose addresses the two have exchanged.
 *
 * Compiled with mpicc and -DOVER_MPI a program runs as two ranks instead of forking, so that they may be in two VMs.
 */
#ifndef PAIR_H
#define PAIR_H

#include "harness.h"

#include <isthmus_fi.h>

/* A wide choice of sizes: none, in line, around each protocol's border, and large. */
static const size_t sizes[] = {0,    1,    8,     39,    40,    41,    64,     1000,   4095,   4096,    4097,
			       8192, 16384, 16385, 32768, 65536, 65537, 100000, 262144, 1 << 20, 3000001};
#define SIZES (sizeof sizes / sizeof *sizes)
#define LARGEST 3000001

static char *out, *in;

static inline struct iovec part(void *at, size_t len)
{
	return (struct iovec){.iov_base = at, .iov_len = len};
}

/* Tagged messages of all sizes, both ways at once, receives posted before and after. */
static inline void tagged_sizes(struct side *s)
{
	for (size_t i = 0; i < SIZES; i++)
		for (int late = 0; late < 2; late++) {
			size_t n = sizes[i];
			fill(out, n, rank_here);
			memset(in, 0xee, n + 1);
			if (!late)
				POST(s, fi_trecv(s->ep, in, n, NULL, s->other, i, 0, &in));
			barrier();
			POST(s, fi_tsend(s->ep, out, n, NULL, s->other, i, &out));
			if (late) {
				for (int k = 0; k < 100; k++)
					fi_cq_read(s->cq, NULL, 0);
				POST(s, fi_trecv(s->ep, in, n + 1, NULL, s->other, i, 0, &in));
			}
			for (int k = 0; k < 2; k++) {
				struct fi_cq_tagged_entry e = done(s);
				if (e.op_context == &in) {
					EQUAL(e.flags, FI_TAGGED | FI_RECV);
					EQUAL(e.len, n);
					EQUAL(e.tag, i);
				} else {
					CHECK(e.op_context == &out);
					EQUAL(e.flags, FI_TAGGED | FI_SEND);
				}
			}
			filled(in, n, !rank_here);
			CHECK((unsigned char)in[n] == 0xee);
			barrier();
		}
}

/* Memory that the other process may reach. Both call both functions; the key is there between them alone: what either
   process does before and after finds it neither early nor late. */
static struct fid_mr *window;
static char *exposed;

static inline void expose(struct side *s, uint64_t key, size_t len, uint64_t access)
{
	barrier();
	exposed = calloc(1, len);
	EQUAL(fi_mr_reg(s->domain, exposed, len, access, 0, key, 0, &window, NULL), 0);
	EQUAL(fi_mr_key(window), key);
	struct fid_mr *twice;
	EQUAL(fi_mr_reg(s->domain, exposed, len, access, 0, key, 0, &twice, NULL), -FI_ENOKEY);
	barrier();
}

static inline void unexpose(void)
{
	barrier();
	EQUAL(fi_close(&window->fid), 0);
	free(exposed);
	barrier();
}

/* Memory in the region, which the other process reaches by itself. Its last word is a bell. */
enum { WINDOW_BYTES = 1 << 20, BELL = WINDOW_BYTES - 8 };

static inline struct isthmus_memory_ops *memory_of(struct side *s)
{
	struct isthmus_memory_ops *ops = NULL;
	EQUAL(fi_open_ops(&s->domain->fid, ISTHMUS_MEMORY, 0, (void **)&ops, NULL), 0);
	CHECK(ops && ops->size >= sizeof *ops);
	return ops;
}

static inline void publish(struct side *s, uint64_t key, uint64_t access)
{
	EQUAL(memory_of(s)->alloc(s->domain, WINDOW_BYTES, 4096, (void **)&exposed), 0);
	memset(exposed, 0, WINDOW_BYTES);
	EQUAL(fi_mr_reg(s->domain, exposed, WINDOW_BYTES, access, 0, key, 0, &window, NULL), 0);
}

static inline void unpublish(struct side *s)
{
	EQUAL(fi_close(&window->fid), 0);
	EQUAL(memory_of(s)->free(s->domain, exposed), 0);
}

/* Sleeps until the other process has written the bell. Nothing of the provider, or of an MPI, runs meanwhile. */
static inline void asleep(void)
{
	double end = now() + 2 * SECONDS;
	while (!*(volatile uint64_t *)(exposed + BELL)) {
		usleep(1000);
		CHECK(now() < end);
	}
}

/* Writes the bell of the other process's window, which begins at `base`. */
static inline void ring(struct side *s, uint64_t base, uint64_t key)
{
	static const uint64_t one = 1;
	POST(s, fi_inject_write(s->ep, &one, 8, s->other, base + BELL, key));
}

struct test {
	const char *name;
	void (*run)(struct side *);
	struct wish *wish;
};

static bool dies; /* rank 1 shall be killed by the last test */

static inline bool chosen(int argc, char **argv, const char *name)
{
	for (int i = 2; i < argc; i++)
		if (!strcmp(argv[i], name))
			return true;
	return argc == 2;
}

static inline int one_side(int argc, char **argv, const struct test *tests, size_t count)
{
	load(argv[1]);
	out = malloc(4000000);
	in = malloc(4000000);
	for (size_t i = 0; i < count; i++) {
		if (!chosen(argc, argv, tests[i].name))
			continue;
		struct side s;
		test_name = tests[i].name;
		alarm(3 * SECONDS);
		double start = now();
		open_side(&s, tests[i].wish);
		meet(&s);
		moving = &s;
		tests[i].run(&s);
		moving = NULL;
		if (!dies) {
			close_side(&s);
			barrier();
		}
		if (rank_here == 0)
			printf("%-24s ok  %6.2f s\n", test_name, now() - start);
	}
	return 0;
}

#ifdef OVER_MPI
static inline int run_pair(int argc, char **argv, const struct test *tests, size_t count)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank_here);
	if (argc < 2)
		FAIL("usage: %s LIBFABRIC [TEST...]", argv[0]);
	int result = one_side(argc, argv, tests, count);
	CHECK(!dies); /* such a test is for processes without a launcher */
	MPI_Finalize();
	return result;
}
#else
/* Both processes go through the tests; the first tells how it went. */
static inline int run_pair(int argc, char **argv, const struct test *tests, size_t count)
{
	int pair[2], status = 0;
	if (argc < 2)
		FAIL("usage: %s LIBFABRIC [TEST...]", argv[0]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	rank_here = child == 0;
	line = pair[rank_here];
	close(pair[!rank_here]);
	int result = one_side(argc, argv, tests, count);
	if (child == 0)
		return result;
	CHECK(waitpid(child, &status, 0) == child);
	if (dies ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status)
		FAIL("the other process ended with status %#x", status);
	return result;
}
#endif

#define RUN_PAIR(tests)                                                                                  \
	int main(int argc, char **argv)                                                                  \
	{                                                                                                \
		return run_pair(argc, argv, tests, sizeof tests / sizeof *tests);                        \
	}

#endif
