/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What further endpoints cost: latency and rate of messages of 8 bytes between two processes, while 0, 7 and 31 more
 * endpoints are open in each of them and idle, as MPICH has them for its further communication interfaces: each with a
 * domain, a vector and a queue of its own, and a peer that it has talked to. Prints figures; nothing depends on them.
 *
 * usage: vci [--quick] LIBFABRIC
 *
 * The two are forked, not started by an MPI, whose own endpoints would be open beside them.
 */
#include "../provider/harness.h"

enum { ROUNDS = 7, CONFIGS = 3, MOST = 31, WINDOW = 64 };
static const int idle[CONFIGS] = {0, 7, MOST};
static int turns = 20000, stream = 200000;

/* What this process has sent and received through the region, as the provider counts it. */
static void counted_messages(struct side *s, uint64_t *sent, uint64_t *received)
{
	static int (*read_)(uint64_t *, size_t);
	char row[4096], path[4096] = "";
	uint64_t counts[10];
	if (!read_) {
		FILE *maps = fopen("/proc/self/maps", "r");
		while (maps && fgets(row, sizeof row, maps)) {
			char *at = strchr(row, '/');
			if (at && strstr(at, "libisthmus-fi.so"))
				sscanf(at, "%4095s", path);
		}
		fclose(maps);
		void *provider = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
		CHECK(provider);
		*(void **)&read_ = dlsym(provider, "isthmus_counters");
		CHECK(read_);
	}
	/* It adds up what its endpoints counted only now and then. */
	for (int i = 0; i < 2000; i++)
		fi_cq_read(s->cq, NULL, 0);
	EQUAL(read_(counts, 10), 0);
	*sent = counts[0];
	*received = counts[2];
}

/* Both ways once, so that there are lanes. */
static void talk(struct side *s)
{
	uint64_t to, from = rank_here;
	POST(s, fi_trecv(s->ep, &to, 8, NULL, s->other, 0, 0, &to));
	POST(s, fi_tinject(s->ep, &from, 8, s->other, 0));
	CHECK(done(s).op_context == &to);
	EQUAL(to, !rank_here);
}

static void wait_for_one(struct side *s)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;
	while ((r = fi_cq_read(s->cq, &e, 1)) == -FI_EAGAIN)
		;
	EQUAL(r, 1);
}

/* Half a round trip, in microseconds. */
static double latency(struct side *s)
{
	uint64_t to, from = 1;
	double start = 0;
	barrier();
	POST(s, fi_trecv(s->ep, &to, 8, NULL, s->other, 1, 0, &to));
	for (int i = -turns / 10; i < turns; i++) {
		if (i == 0)
			start = now();
		if (rank_here == 0)
			POST(s, fi_tinject(s->ep, &from, 8, s->other, 1));
		wait_for_one(s);
		POST(s, fi_trecv(s->ep, &to, 8, NULL, s->other, 1, 0, &to));
		if (rank_here)
			POST(s, fi_tinject(s->ep, &from, 8, s->other, 1));
	}
	double each = (now() - start) / turns / 2 * 1e6;
	/* The receive that is left. */
	POST(s, fi_tinject(s->ep, &from, 8, s->other, 1));
	wait_for_one(s);
	return each;
}

/* Millions of messages a second, from rank 0 to rank 1, which keeps some receives ahead. */
static double rate(struct side *s)
{
	uint64_t to[WINDOW], from = 1;
	for (int i = 0; i < WINDOW && rank_here; i++)
		POST(s, fi_trecv(s->ep, &to[i], 8, NULL, s->other, 2, 0, &to[i]));
	barrier();
	double start = now();
	if (rank_here == 0) {
		for (int i = 0; i < stream; i++)
			POST(s, fi_tinject(s->ep, &from, 8, s->other, 2));
		POST(s, fi_trecv(s->ep, to, 8, NULL, s->other, 3, 0, to));
		wait_for_one(s);
		return stream / (now() - start) / 1e6;
	}
	for (int got = 0; got < stream;) {
		struct fi_cq_tagged_entry e[16];
		ssize_t r = fi_cq_read(s->cq, e, 16);
		CHECK(r > 0 || r == -FI_EAGAIN);
		for (int i = 0; i < r; i++, got++)
			if (got < stream - WINDOW)
				POST(s, fi_trecv(s->ep, e[i].op_context, 8, NULL, s->other, 2, 0, e[i].op_context));
	}
	POST(s, fi_tinject(s->ep, &from, 8, s->other, 3));
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(const double *values)
{
	double sorted[ROUNDS];
	memcpy(sorted, values, sizeof sorted);
	qsort(sorted, ROUNDS, sizeof *sorted, compare);
	return sorted[ROUNDS / 2];
}

/* Each process keeps to one of the first two processors that there are for it, if there are two. A launcher may have given
   both to one: all that may be had is asked for first. */
static void keep_to_one(void)
{
	cpu_set_t may, one;
	CPU_ZERO(&one);
	memset(&may, 0xff, sizeof may);
	sched_setaffinity(0, sizeof may, &may);
	if (sched_getaffinity(0, sizeof may, &may) || CPU_COUNT(&may) < 2)
		return;
	for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &may) && seen++ == rank_here)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
}

static void one_process(const char *libfabric)
{
	static struct side others[MOST];
	static double us[CONFIGS][ROUNDS], per_s[CONFIGS][ROUNDS];
	struct side s;
	uint64_t sent[2], received[2];
	load(libfabric);
	keep_to_one();
	open_side(&s, NULL);
	CHECK(strstr(s.info->fabric_attr->prov_name, "isthmus"));
	meet(&s);
	talk(&s);
	counted_messages(&s, &sent[0], &received[0]);
	for (int round = 0; round < ROUNDS; round++)
		for (int k = 0; k < CONFIGS; k++) {
			int config = (round + k) % CONFIGS;
			for (int i = 0; i < idle[config]; i++) {
				open_side(&others[i], NULL);
				meet(&others[i]);
				talk(&others[i]);
			}
			us[config][round] = latency(&s);
			per_s[config][round] = rate(&s);
			for (int i = 0; i < idle[config]; i++)
				close_side(&others[i]);
		}
	barrier();
	counted_messages(&s, &sent[1], &received[1]);
	/* All of it went through the region. */
	uint64_t pings = (uint64_t)ROUNDS * CONFIGS * turns, streamed = (uint64_t)ROUNDS * CONFIGS * stream;
	CHECK(sent[1] - sent[0] >= pings + (rank_here == 0 ? streamed : 0));
	CHECK(received[1] - received[0] >= pings + (rank_here == 0 ? 0 : streamed));
	close_side(&s);
	char c = 'c';
	if (rank_here) {
		tell(&c, 1);
		return;
	}
	hear(&c, 1);
	printf("vci: ok, 8 B: %.3f us, %.2f M msg/s", median(us[0]), median(per_s[0]));
	for (int config = 1; config < CONFIGS; config++) {
		double slower[ROUNDS], faster[ROUNDS];
		/* Against the same round's figure: the host moves processors about between rounds. */
		for (int round = 0; round < ROUNDS; round++) {
			slower[round] = us[config][round] / us[0][round];
			faster[round] = per_s[config][round] / per_s[0][round];
		}
		printf("; with %d idle endpoints x%.2f and x%.2f", idle[config], median(slower), median(faster));
	}
	printf(" (medians of %d rounds; %llu messages sent through the region)\n", ROUNDS, (unsigned long long)(sent[1] - sent[0]));
}

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	if (argc == 3 && !strcmp(argv[1], "--quick")) {
		turns = 500;
		stream = 5000;
	} else if (argc != 2) {
		FAIL("usage: vci [--quick] LIBFABRIC");
	}
	test_name = "vci";
	alarm(8 * SECONDS);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	rank_here = child == 0;
	line = pair[rank_here];
	close(pair[!rank_here]);
	one_process(argv[argc - 1]);
	if (child) {
		CHECK(waitpid(child, &status, 0) == child);
		EQUAL(status, 0);
	}
	return 0;
}
