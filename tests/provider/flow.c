/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Back-pressure: floods of everything, in both directions at once and without receives, end neither in a deadlock nor
 * in a loss.
 *
 * usage: flow LIBFABRIC [TEST...]
 */
#include "pair.h"

/* Posts until it is taken, and does nothing else meanwhile: a post that is refused has made progress. */
#define INSIST(call)                                                                                     \
	do {                                                                                             \
		double end_ = now() + SECONDS;                                                           \
		ssize_t r_;                                                                              \
		while ((r_ = (call)) == -FI_EAGAIN)                                                      \
			if (now() > end_)                                                                \
				FAIL("no room: %s", #call);                                              \
		EQUAL(r_, 0);                                                                            \
	} while (0)

/* Both send before either receives; the second half of the sizes waits for receives at its sender. */
static void both_send(struct side *s)
{
	static const struct {
		size_t len;
		int count;
	} floods[] = {{0, 5000}, {8, 5000}, {41, 3000}, {4096, 1000}, {16384, 400}, {16385, 300}, {300000, 20}};
	for (size_t f = 0; f < sizeof floods / sizeof *floods; f++)
		for (int reading = 0; reading < 2; reading++) {
			size_t n = floods[f].len;
			fill(out, n, f);
			for (int i = 0; i < floods[f].count; i++) {
				if (reading)
					POST(s, fi_tsend(s->ep, out, n, NULL, s->other, i, NULL));
				else
					INSIST(fi_tsend(s->ep, out, n, NULL, s->other, i, NULL));
			}
			int sent = 0, got = 0;
			double end = now() + SECONDS;
			POST(s, fi_trecv(s->ep, in, n, NULL, s->other, got, 0, in));
			while (sent + got < 2 * floods[f].count) {
				struct fi_cq_tagged_entry e;
				ssize_t r = fi_cq_read(s->cq, &e, 1);
				CHECK(now() < end);
				if (r == -FI_EAGAIN)
					continue;
				EQUAL(r, 1);
				if (e.flags & FI_SEND) {
					sent++;
					continue;
				}
				EQUAL(e.tag, got);
				EQUAL(e.len, n);
				if (got % 97 == 0)
					filled(in, n, f);
				if (++got < floods[f].count)
					POST(s, fi_trecv(s->ep, in, n, NULL, s->other, got, 0, in));
			}
			silent(s);
			barrier();
		}
}

/* The same with the untagged kind and injected messages, which are the last that may be refused for ever. */
static void both_inject(struct side *s)
{
	enum { N = 8000 };
	for (uint64_t i = 0; i < N; i++)
		INSIST(fi_injectdata(s->ep, &i, 8, i, s->other));
	for (uint64_t i = 0; i < N; i++) {
		uint64_t v = 0;
		POST(s, fi_recv(s->ep, &v, 8, NULL, FI_ADDR_UNSPEC, &v));
		struct fi_cq_tagged_entry e = done(s);
		EQUAL(v, i);
		EQUAL(e.data, i);
	}
	barrier();
}

/* Writes, reads and atomics in both directions, more than anything holds, and messages among them. */
static void both_put(struct side *s)
{
	enum { N = 2000 };
	expose(s, 1, 1 << 20, FI_REMOTE_READ | FI_REMOTE_WRITE);
	fill(out, 1 << 16, 1);
	uint64_t one = 1, result[64];
	int entries = 0;
	for (int i = 0; i < N; i++) {
		INSIST(fi_inject_write(s->ep, out, 4096, s->other, 4096, 1));
		INSIST(fi_write(s->ep, out, 20000, NULL, s->other, 65536, 1, out));
		INSIST(fi_read(s->ep, in, 3000, NULL, s->other, 65536, 1, in));
		INSIST(fi_inject_atomic(s->ep, &one, 1, s->other, 8, 1, FI_UINT64, FI_SUM));
		INSIST(fi_fetch_atomic(s->ep, &one, 1, NULL, &result[i % 64], NULL, s->other, 16, 1, FI_UINT64, FI_SUM, result));
		INSIST(fi_tinject(s->ep, &i, 4, s->other, 1));
		entries += 3;
	}
	double end = now() + SECONDS;
	while (entries > 0) {
		struct fi_cq_tagged_entry e[16];
		ssize_t r = fi_cq_read(s->cq, e, 16);
		CHECK(now() < end);
		if (r > 0)
			entries -= r;
		else
			EQUAL(r, -FI_EAGAIN);
	}
	counted(s, 5 * N);
	barrier();
	EQUAL(*(uint64_t *)(exposed + 8), N);
	EQUAL(*(uint64_t *)(exposed + 16), N);
	filled(exposed + 4096, 4096, 1);
	filled(exposed + 65536, 20000, 1);
	for (int i = 0; i < N; i++) {
		int v = -1;
		POST(s, fi_trecv(s->ep, &v, 4, NULL, s->other, 1, 0, &v));
		done(s);
		EQUAL(v, i);
	}
	unexpose();
}

/* More operations under way than any size that was told. */
static void outstanding(struct side *s)
{
	enum { N = 3000, LEN = 20000 };
	CHECK(N > s->info->tx_attr->size);
	char *memory = malloc((size_t)N * 4);
	for (int i = 0; i < N; i++)
		POST(s, fi_tsend(s->ep, out, LEN, NULL, s->other, i, NULL));
	barrier();
	for (int i = N - 1; i >= 0; i--)
		POST(s, fi_trecv(s->ep, memory + 4 * i, 4, NULL, s->other, i, 0, &memory[4 * i]));
	int sent = 0, cut = 0;
	double end = now() + SECONDS;
	while (sent + cut < 2 * N) {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = {0};
		ssize_t r = fi_cq_read(s->cq, &e, 1);
		if (now() > end)
			FAIL("%d sends and %d receives of %d have ended", sent, cut, N);
		if (r == 1) {
			CHECK(e.flags & FI_SEND);
			sent++;
		} else if (r == -FI_EAVAIL) {
			EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
			EQUAL(err.err, FI_ETRUNC);
			CHECK(err.op_context == &memory[4 * err.tag]);
			cut++;
		}
	}
	EQUAL(cut, N);
	free(memory);
	barrier();
}

/* Memory of this process that is nobody else's and no file's. */
static size_t own_bytes(void)
{
	size_t total = 0, resident = 0, shared = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%zu %zu %zu", &total, &resident, &shared) == 3);
	fclose(f);
	return (resident - shared) * sysconf(_SC_PAGESIZE);
}

/* One floods the other, which sleeps at first, and then looks now and then and has no receive. No post is refused; what finds no
   room waits in the sender's memory, and then what is short in the receiver's and what is long in the sender's. In the end all is
   there, in order, and the sender's memory is given back. */
/* What a post that waits may take at its sender, its entry in a queue that grows by doubling and an operation that waits for the
   receiver included. */
enum { QUEUED = 1024 };

static void unposted(struct side *s, size_t n, int count, bool tagged, size_t most_each)
{
	static struct fi_cq_tagged_entry e[64];
	char c = 'c';
	if (rank_here == 0) {
		/* Message i begins at another place in what all are sent from, so that each is unlike the next. */
		int entries = 0;
		for (size_t i = 0; i < 4000000; i++)
			out[i] = (char)((i * 2654435761u) >> 24);
		hear(&c, 1); /* it is asleep */
		size_t before = own_bytes(), queued = 0;
		for (int i = 0; i < count; i++) {
			ssize_t r;
			char *from = out + (size_t)i % 3000 * 16;
			bool inject = n <= s->info->tx_attr->inject_size && i % 2;
			if (inject)
				r = tagged ? fi_tinject(s->ep, from, n, s->other, i) : fi_injectdata(s->ep, from, n, i, s->other);
			else
				r = tagged ? fi_tsend(s->ep, from, n, NULL, s->other, i, from)
					   : fi_senddata(s->ep, from, n, NULL, i, s->other, from);
			EQUAL(r, 0);
			entries -= !inject;
		}
		queued = own_bytes() - before;
		if (queued > QUEUED * (size_t)count)
			FAIL("%zu bytes for %d posts of %zu that wait", queued, count, n);
		tell(&c, 1); /* now it may look */
		barrier(); /* all posted: the receives come */
		for (; entries < 0; entries++)
			CHECK(done(s).flags & FI_SEND);
		silent(s);
		size_t kept = own_bytes() - before;
		if (queued > 4 << 20 && (ssize_t)kept > (ssize_t)queued / 2)
			FAIL("%zu of %zu bytes for %d posts are not given back", kept, queued, count);
		barrier();
		return;
	}
	char *expected = malloc(4000000);
	for (size_t i = 0; i < 4000000; i++)
		expected[i] = (char)((i * 2654435761u) >> 24);
	size_t before = own_bytes();
	tell(&c, 1);
	hear(&c, 1);
	/* Its barrier byte says that it has sent all. */
	c = 'b';
	tell(&c, 1);
	while (recv(line, &c, 1, MSG_DONTWAIT) != 1) {
		usleep(1000);
		for (int i = 0; i < 100; i++)
			EQUAL(fi_cq_read(s->cq, e, 64), -FI_EAGAIN);
	}
	for (int i = 0; i < 20000; i++)
		EQUAL(fi_cq_read(s->cq, e, 64), -FI_EAGAIN);
	size_t after = own_bytes();
	if (after > before + most_each * count)
		FAIL("%zu bytes for %d messages of %zu", after - before, count, n);
	for (int i = 0; i < count; i++) {
		memset(in, 0, n);
		POST(s, tagged ? fi_trecv(s->ep, in, n, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, in) : fi_recv(s->ep, in, n, NULL, FI_ADDR_UNSPEC, in));
		struct fi_cq_tagged_entry got = done(s);
		EQUAL(tagged ? got.tag : got.data, i);
		EQUAL(got.len, n);
		CHECK(!memcmp(in, expected + (size_t)i % 3000 * 16, n));
	}
	silent(s);
	free(expected);
	barrier();
}

static void unposted_short(struct side *s)
{
	unposted(s, 64, 100000, true, 1024);
	unposted(s, 64, 20000, false, 1024);
}

static void unposted_long(struct side *s)
{
	unposted(s, 65536, 2000, true, 4096);
	unposted(s, 65536, 500, false, 4096);
}

static struct wish safe = {.threading = FI_THREAD_SAFE};

static const struct test tests[] = {
	{"both_send", both_send, NULL},
	{"both_inject", both_inject, NULL},
	{"both_put", both_put, NULL},
	{"both_put_safe", both_put, &safe},
	{"outstanding", outstanding, NULL},
	{"unposted_short", unposted_short, NULL},
	{"unposted_long", unposted_long, NULL},
};
RUN_PAIR(tests)
