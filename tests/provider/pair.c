/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two processes and everything they may do with each other through the provider.
 *
 * usage: pair LIBFABRIC [TEST...]
 */
#include "harness.h"

/* A wide choice of sizes: none, in line, around each protocol's border, and large. */
static const size_t sizes[] = {0,    1,    8,     39,    40,    41,    64,     1000,   4095,   4096,    4097,
			       8192, 16384, 16385, 32768, 65536, 65537, 100000, 262144, 1 << 20, 3000001};
#define SIZES (sizeof sizes / sizeof *sizes)
#define LARGEST 3000001

static char *out, *in;

static struct iovec part(void *at, size_t len)
{
	return (struct iovec){.iov_base = at, .iov_len = len};
}

/* Tagged messages of all sizes, both ways at once, receives posted before and after. */
static void tagged_sizes(struct side *s)
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

/* Whatever its size and call, messages of a pair match in the order of the sends. */
static void order(struct side *s)
{
	enum { N = 400 };
	static size_t lens[N];
	static char *bufs[N];
	for (int i = 0; i < N; i++)
		lens[i] = (size_t[]){8, 5000, 40, 70000, 0, 300, 20000, 4096}[i % 8];
	if (rank_here == 0) {
		for (int i = 0; i < N; i++) {
			bufs[i] = malloc(lens[i] + 1);
			fill(bufs[i], lens[i], i);
			if (lens[i] <= 4096 && i % 3 == 0)
				POST(s, fi_tinject(s->ep, bufs[i], lens[i], s->other, 7));
			else
				POST(s, fi_tsend(s->ep, bufs[i], lens[i], NULL, s->other, 7, NULL));
		}
		for (int i = 0; i < N; i++)
			if (!(lens[i] <= 4096 && i % 3 == 0))
				done(s);
		barrier();
		for (int i = 0; i < N; i++)
			free(bufs[i]);
	} else {
		for (int i = 0; i < N; i++) {
			bufs[i] = malloc(LARGEST / 30);
			POST(s, fi_trecv(s->ep, bufs[i], LARGEST / 30, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, &bufs[i]));
		}
		for (int i = 0; i < N; i++) {
			struct fi_cq_tagged_entry e = done(s);
			long k = (char **)e.op_context - bufs;
			CHECK(k >= 0 && k < N);
			EQUAL(e.len, lens[k]);
			filled(bufs[k], lens[k], k);
		}
		barrier();
		for (int i = 0; i < N; i++)
			free(bufs[i]);
	}
	barrier();
}

/* Ignored bits, directed receives, the first posted first. */
static void matching(struct side *s)
{
	uint64_t v[4] = {0};
	if (rank_here == 1) {
		POST(s, fi_trecv(s->ep, &v[0], 8, NULL, s->self, 0x10, 0, &v[0])); /* from oneself: not now */
		POST(s, fi_trecv(s->ep, &v[1], 8, NULL, s->other, 0x1000, 0xff, &v[1]));
		POST(s, fi_trecv(s->ep, &v[2], 8, NULL, FI_ADDR_UNSPEC, 0x10, 0, &v[2]));
		POST(s, fi_trecv(s->ep, &v[3], 8, NULL, FI_ADDR_UNSPEC, 0x10, 0, &v[3]));
		barrier();
		CHECK(done(s).op_context == &v[2]);
		CHECK(done(s).op_context == &v[1]);
		struct fi_cq_tagged_entry e = done(s);
		CHECK(e.op_context == &v[3]);
		EQUAL(v[2], 1);
		EQUAL(v[1], 2);
		EQUAL(v[3], 3);
		uint64_t four = 4;
		POST(s, fi_tinject(s->ep, &four, 8, s->self, 0x10));
		e = done(s);
		CHECK(e.op_context == &v[0]);
		EQUAL(v[0], 4);
	} else {
		barrier();
		uint64_t x = 1;
		POST(s, fi_tinject(s->ep, &x, 8, s->other, 0x10));
		x = 2;
		POST(s, fi_tinject(s->ep, &x, 8, s->other, 0x10ab));
		x = 3;
		POST(s, fi_tinject(s->ep, &x, 8, s->other, 0x10));
	}
	barrier();
}

/* Untagged messages never meet tagged receives; several parts on either side. */
static void untagged_and_parts(struct side *s)
{
	int never;
	size_t n = 50000;
	fill(out, n, rank_here);
	memset(in, 0, n);
	struct iovec from[3] = {part(out, 1), part(out + 1, 39999), part(out + 40000, 10000)};
	struct iovec to[4] = {part(in, 20000), part(in + 20000, 0), part(in + 20000, 1), part(in + 20001, 29999)};
	POST(s, fi_trecv(s->ep, in, n, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, &never));
	POST(s, fi_recvv(s->ep, to, NULL, 4, FI_ADDR_UNSPEC, &in));
	barrier();
	POST(s, fi_sendv(s->ep, from, NULL, 3, s->other, &out));
	for (int k = 0; k < 2; k++) {
		struct fi_cq_tagged_entry e = done(s);
		if (e.op_context == &in) {
			EQUAL(e.flags, FI_MSG | FI_RECV);
			EQUAL(e.len, n);
		} else {
			CHECK(e.op_context == &out);
			EQUAL(e.flags, FI_MSG | FI_SEND);
		}
	}
	filled(in, n, !rank_here);
	EQUAL(fi_cancel(&s->ep->fid, &never), 0);
	struct fi_cq_err_entry err = failed(s, FI_ECANCELED);
	CHECK(err.op_context == &never);
	barrier();
}

static void cq_data(struct side *s)
{
	uint64_t v = 0;
	POST(s, fi_trecv(s->ep, &v, 8, NULL, s->other, 1, 0, &v));
	barrier();
	uint64_t x = 55;
	POST(s, fi_tinjectdata(s->ep, &x, 8, 0x1122334455667788ULL + rank_here, s->other, 1));
	struct fi_cq_tagged_entry e = done(s);
	EQUAL(e.flags, FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA);
	EQUAL(e.data, 0x1122334455667788ULL + !rank_here);
	EQUAL(v, 55);
	POST(s, fi_trecv(s->ep, in, 100000, NULL, s->other, 2, 0, in));
	barrier();
	POST(s, fi_tsenddata(s->ep, out, 100000, NULL, 9, s->other, 2, out));
	for (int k = 0; k < 2; k++) {
		e = done(s);
		if (e.op_context == in) {
			EQUAL(e.flags, FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA);
			EQUAL(e.data, 9);
		}
	}
	barrier();
	/* The other calls with data, and none without. */
	POST(s, fi_recv(s->ep, in, 64, NULL, FI_ADDR_UNSPEC, in));
	POST(s, fi_recv(s->ep, in, 64, NULL, FI_ADDR_UNSPEC, in));
	barrier();
	POST(s, fi_injectdata(s->ep, out, 64, 3, s->other));
	POST(s, fi_inject(s->ep, out, 64, s->other));
	EQUAL(done(s).data, 3);
	EQUAL(done(s).flags, FI_MSG | FI_RECV);
	barrier();
}

static void truncation(struct side *s)
{
	size_t n[] = {8, 1000, 100000};
	for (int i = 0; i < 3; i++)
		for (int late = 0; late < 2; late++) {
			memset(in, 0xee, n[i]);
			if (rank_here == 0) {
				fill(out, n[i], i);
				barrier();
				POST(s, fi_tsenddata(s->ep, out, n[i], NULL, 77, s->other, 0xabc, out));
				CHECK(done(s).op_context == out);
			} else {
				if (!late)
					POST(s, fi_trecv(s->ep, in, 5, NULL, s->other, 0xa00, 0xff, in));
				barrier();
				if (late) {
					for (int k = 0; k < 1000; k++)
						fi_cq_read(s->cq, NULL, 0);
					POST(s, fi_trecv(s->ep, in, 5, NULL, s->other, 0xa00, 0xfff, in));
				}
				if (!late) {
					/* 0xabc does not match 0xa00 with 0xff ignored only if its middle differs. */
					EQUAL(fi_cancel(&s->ep->fid, in), 0);
					struct fi_cq_err_entry e;
					memset(&e, 0, sizeof e);
					double end = now() + SECONDS;
					while (fi_cq_readerr(s->cq, &e, 0) != 1) {
						fi_cq_read(s->cq, NULL, 0);
						CHECK(now() < end);
					}
					if (e.err == FI_ECANCELED) {
						/* Cancelled before the message came: receive it once more. */
						POST(s, fi_trecv(s->ep, in, 5, NULL, s->other, 0xabc, 0, in));
						e = failed(s, FI_ETRUNC);
					}
					EQUAL(e.err, FI_ETRUNC);
					EQUAL(e.olen, n[i] - 5);
				} else {
					struct fi_cq_err_entry e = failed(s, FI_ETRUNC);
					CHECK(e.op_context == in);
					EQUAL(e.len, 5);
					EQUAL(e.olen, n[i] - 5);
					EQUAL(e.tag, 0xabc);
					EQUAL(e.data, 77);
					CHECK(e.flags & FI_RECV);
				}
				filled(in, 5, i);
				CHECK((unsigned char)in[5] == 0xee);
			}
			barrier();
		}
	/* The endpoint goes on. */
	tagged_sizes(s);
}

static void cancel(struct side *s)
{
	uint64_t a = 0, b = 0, x = 5;
	EQUAL(fi_cancel(&s->ep->fid, &a), 0); /* nothing there: no answer either */
	silent(s);
	POST(s, fi_trecv(s->ep, &a, 8, NULL, s->other, 1, 0, &a));
	POST(s, fi_trecv(s->ep, &b, 8, NULL, s->other, 1, 0, &b));
	EQUAL(fi_cancel(&s->ep->fid, &a), 0);
	EQUAL(fi_cancel(&s->ep->fid, &a), 0);
	struct fi_cq_err_entry e = failed(s, FI_ECANCELED);
	CHECK(e.op_context == &a);
	CHECK(e.flags & FI_RECV && e.flags & FI_TAGGED);
	barrier();
	POST(s, fi_tinject(s->ep, &x, 8, s->other, 1));
	CHECK(done(s).op_context == &b);
	EQUAL(b, 5);
	silent(s);
	barrier();
}

static ssize_t look(struct side *s, uint64_t tag, fi_addr_t from, uint64_t flags, void *context, void *buf, size_t len)
{
	struct iovec iov = part(buf, len);
	struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = buf ? 1 : 0, .addr = from, .tag = tag, .context = context};
	return fi_trecvmsg(s->ep, &m, flags | FI_COMPLETION);
}

static void peek_and_claim(struct side *s)
{
	size_t n[] = {8, 3000, 100000};
	int c1, c2;
	EQUAL(look(s, 42, s->other, FI_PEEK, &c1, NULL, 0), 0);
	struct fi_cq_err_entry e = failed(s, FI_ENOMSG);
	CHECK(e.op_context == &c1);
	EQUAL(fi_cq_readerr(s->cq, &e, 0), -FI_EAGAIN);
	for (int i = 0; i < 3; i++) {
		fill(out, n[i], rank_here);
		barrier();
		/* Two with one tag. */
		POST(s, fi_tsenddata(s->ep, out, n[i], NULL, 4, s->other, 42, out));
		POST(s, fi_tsenddata(s->ep, out, n[i], NULL, 5, s->other, 42, out));
		double end = now() + SECONDS;
		int sent = 0;
		for (;;) {
			EQUAL(look(s, 42, FI_ADDR_UNSPEC, FI_PEEK, &c1, NULL, 0), 0);
			struct fi_cq_tagged_entry t;
			ssize_t r;
			bool found = false, none = false;
			while (!found && !none) {
				r = fi_cq_read(s->cq, &t, 1);
				if (r == 1 && t.op_context == out)
					sent++;
				else if (r == 1)
					found = true;
				else if (r == -FI_EAVAIL) {
					memset(&e, 0, sizeof e);
					EQUAL(fi_cq_readerr(s->cq, &e, 0), 1);
					EQUAL(e.err, FI_ENOMSG);
					none = true;
				}
			}
			if (found) {
				CHECK(t.op_context == &c1);
				EQUAL(t.len, n[i]);
				EQUAL(t.tag, 42);
				EQUAL(t.data, 4);
				break;
			}
			CHECK(now() < end);
		}
		/* Claim the first, receive the second, then the first: address and tag of the claim do not count. */
		EQUAL(look(s, 42, FI_ADDR_UNSPEC, FI_PEEK | FI_CLAIM, &c2, NULL, 0), 0);
		struct fi_cq_tagged_entry t;
		while ((t = done(s)).op_context == out)
			sent++;
		CHECK(t.op_context == &c2);
		EQUAL(t.data, 4);
		memset(in, 0, n[i]);
		POST(s, fi_trecv(s->ep, in, n[i], NULL, s->other, 42, 0, in));
		while ((t = done(s)).op_context == out)
			sent++;
		CHECK(t.op_context == in);
		EQUAL(t.data, 5);
		filled(in, n[i], !rank_here);
		memset(in, 0, n[i]);
		EQUAL(look(s, 0, 0, FI_CLAIM, &c2, in, n[i]), 0);
		while ((t = done(s)).op_context == out)
			sent++;
		CHECK(t.op_context == &c2);
		EQUAL(t.data, 4);
		EQUAL(t.len, n[i]);
		filled(in, n[i], !rank_here);
		while (sent < 2) {
			CHECK(done(s).op_context == out);
			sent++;
		}
		barrier();
	}
	/* Discard. */
	barrier();
	POST(s, fi_tinject(s->ep, out, 8, s->other, 43));
	POST(s, fi_tinject(s->ep, out, 8, s->other, 44));
	POST(s, fi_trecv(s->ep, in, 8, NULL, s->other, 44, 0, in));
	CHECK(done(s).op_context == in); /* so 43 is here too */
	EQUAL(look(s, 43, s->other, FI_PEEK | FI_CLAIM, &c1, NULL, 0), 0);
	CHECK(done(s).op_context == &c1);
	EQUAL(look(s, 43, s->other, FI_CLAIM | FI_DISCARD, &c1, NULL, 0), 0);
	CHECK(done(s).op_context == &c1);
	EQUAL(look(s, 43, s->other, FI_PEEK, &c1, NULL, 0), 0);
	failed(s, FI_ENOMSG);
	barrier();
}

static void multi_receive(struct side *s)
{
	enum { ROOM = 4096, LEAST = 256, N = 400 };
	static char pool[2][ROOM];
	size_t least = LEAST, len = sizeof least;
	EQUAL(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
	least = 0;
	EQUAL(fi_getopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len), 0);
	EQUAL(least, LEAST);
	if (rank_here == 0) {
		barrier();
		for (int i = 0; i < N; i++) {
			size_t n = (i * 37) % LEAST;
			fill(out, n, i);
			POST(s, fi_inject(s->ep, out, n, s->other));
		}
		barrier();
	} else {
		int posted = 0, got = 0, back[2] = {0, 0};
		size_t used[2] = {0, 0};
		struct fi_msg m[2];
		struct iovec iov[2];
		for (int k = 0; k < 2; k++) {
			iov[k] = part(pool[k], ROOM);
			m[k] = (struct fi_msg){.msg_iov = &iov[k], .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = pool[k]};
			POST(s, fi_recvmsg(s->ep, &m[k], FI_MULTI_RECV | FI_COMPLETION));
			posted++;
		}
		barrier();
		while (got < N) {
			struct fi_cq_tagged_entry e = done(s);
			int k = e.op_context == pool[1];
			CHECK(e.op_context == pool[k]);
			if (e.flags & FI_RECV) {
				size_t n = (got * 37) % LEAST;
				EQUAL(e.len, n);
				CHECK((char *)e.buf >= pool[k] && (char *)e.buf + n <= pool[k] + ROOM);
				filled(e.buf, n, got);
				used[k] += n;
				got++;
			}
			if (e.flags & FI_MULTI_RECV) {
				CHECK(used[k] > ROOM - LEAST);
				used[k] = 0;
				back[k]++;
				POST(s, fi_recvmsg(s->ep, &m[k], FI_MULTI_RECV | FI_COMPLETION));
			}
		}
		CHECK(back[0] + back[1] > 5);
		/* Whoever ends waits for as many errors as there are buffers. */
		for (int k = 0; k < 2; k++)
			EQUAL(fi_cancel(&s->ep->fid, pool[k]), 0);
		for (int k = 0; k < 2; k++) {
			struct fi_cq_err_entry e = failed(s, FI_ECANCELED);
			CHECK(e.flags & FI_MULTI_RECV);
			CHECK(e.op_context == pool[k]);
		}
		silent(s);
		barrier();
	}
	barrier();
}

/* More messages than any ring holds, before any receive; both sides at once. */
static void unexpected(struct side *s)
{
	enum { N = 20000 };
	uint64_t v;
	barrier();
	for (uint64_t i = 0; i < N; i++)
		POST(s, fi_tinject(s->ep, &i, 8, s->other, 1000 + i % 3));
	for (int tag = 2; tag >= 0; tag--)
		for (uint64_t i = tag; i < N; i += 3) {
			POST(s, fi_trecv(s->ep, &v, 8, NULL, s->other, 1000 + tag, 0, &v));
			CHECK(done(s).op_context == &v);
			EQUAL(v, i);
		}
	barrier();
}

/* A stream in one direction with receives posted, windowed, as bandwidth benchmarks do it. */
static void stream(struct side *s)
{
	enum { N = 64, ROUNDS = 20, LEN = 40000 };
	for (int r = 0; r < ROUNDS; r++) {
		for (int i = 0; i < N; i++)
			if (rank_here)
				POST(s, fi_trecv(s->ep, in + (size_t)i * LEN, LEN, NULL, s->other, i, 0, in));
			else
				POST(s, fi_tsend(s->ep, out + (size_t)i * LEN, LEN, NULL, s->other, i, out));
		for (int i = 0; i < N; i++)
			done(s);
	}
	barrier();
}

static void to_oneself(struct side *s)
{
	for (size_t i = 0; i < SIZES; i++) {
		fill(out, sizes[i], i);
		memset(in, 0, sizes[i]);
		if (i % 2)
			POST(s, fi_trecv(s->ep, in, LARGEST, NULL, s->self, i, 0, in));
		POST(s, fi_tsend(s->ep, out, sizes[i], NULL, s->self, i, out));
		if (i % 2 == 0)
			POST(s, fi_trecv(s->ep, in, LARGEST, NULL, s->self, i, 0, in));
		done(s);
		done(s);
		filled(in, sizes[i], i);
	}
	/* One-sided too. */
	struct fid_mr *mr;
	EQUAL(fi_mr_reg(s->domain, in, LARGEST, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 99, 0, &mr, NULL), 0);
	fill(out, 100000, 5);
	memset(in, 0, 100000);
	POST(s, fi_write(s->ep, out, 100000, NULL, s->self, 0, 99, out));
	done(s);
	filled(in, 100000, 5);
	uint64_t one = 1, before = 0;
	memset(in, 0, 8);
	POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, &before, NULL, s->self, 0, 99, FI_UINT64, FI_SUM, out));
	done(s);
	EQUAL(*(uint64_t *)in, 1);
	EQUAL(fi_close(&mr->fid), 0);
	barrier();
}

static void delivery(struct side *s)
{
	size_t n[] = {8, 4000, 100000};
	for (int i = 0; i < 3; i++) {
		struct iovec iov = part(out, n[i]);
		struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .tag = 5, .context = out};
		if (rank_here == 0) {
			POST(s, fi_tsendmsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			barrier();
			CHECK(done(s).op_context == out);
		} else {
			barrier();
			POST(s, fi_trecv(s->ep, in, n[i], NULL, s->other, 5, 0, in));
			CHECK(done(s).op_context == in);
		}
		barrier();
	}
}

static struct fid_mr *window;
static char *exposed;

static void expose(struct side *s, uint64_t key, size_t len, uint64_t access)
{
	exposed = calloc(1, len);
	EQUAL(fi_mr_reg(s->domain, exposed, len, access, 0, key, 0, &window, NULL), 0);
	EQUAL(fi_mr_key(window), key);
	struct fid_mr *twice;
	EQUAL(fi_mr_reg(s->domain, exposed, len, access, 0, key, 0, &twice, NULL), -FI_ENOKEY);
	barrier();
}

static void unexpose(void)
{
	barrier();
	EQUAL(fi_close(&window->fid), 0);
	free(exposed);
}

static void rma(struct side *s)
{
	uint64_t key = 0x80000000000001f0ULL, total = 0;
	expose(s, key, LARGEST, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (size_t i = 0; i < SIZES; i++) {
		size_t n = sizes[i];
		/* One at a time reads and writes the other's memory. */
		for (int turn = 0; turn < 2; turn++) {
			if (turn == rank_here) {
				fill(out, n, i);
				POST(s, fi_write(s->ep, out, n, NULL, s->other, LARGEST - n, key, out));
				struct fi_cq_tagged_entry e = done(s);
				EQUAL(e.flags, FI_RMA | FI_WRITE);
				counted(s, ++total);
				memset(in, 0, n);
				POST(s, fi_read(s->ep, in, n, NULL, s->other, LARGEST - n, key, in));
				EQUAL(done(s).flags, FI_RMA | FI_READ);
				counted(s, ++total);
				filled(in, n, i);
			}
			barrier();
			if (turn != rank_here)
				filled(exposed + LARGEST - n, n, i);
			barrier();
		}
	}
	/* The inject form has no entry, but is counted when it is visible. */
	fill(out, 4096, 3);
	POST(s, fi_inject_write(s->ep, out, 4096, s->other, 0, key));
	memset(out, 0, 4096);
	counted(s, ++total);
	silent(s);
	barrier();
	filled(exposed, 4096, 3);
	barrier();
	/* With data: a completion over there. */
	POST(s, fi_writedata(s->ep, out, 100, NULL, 0xfeed, s->other, 0, key, out));
	int mine = 0, theirs = 0;
	for (int k = 0; k < 2; k++) {
		struct fi_cq_tagged_entry e = done(s);
		if (e.flags & FI_REMOTE_WRITE) {
			EQUAL(e.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
			EQUAL(e.data, 0xfeed);
			theirs++;
		} else {
			mine++;
		}
	}
	CHECK(mine == 1 && theirs == 1);
	total++;
	/* Several parts. */
	struct iovec iov[2] = {part(out, 10), part(out + 5000, 60000)};
	struct fi_rma_iov remote = {.addr = 7, .len = 60010, .key = key};
	struct fi_msg_rma m = {.msg_iov = iov, .iov_count = 2, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1,
			       .context = out};
	fill(out, 65000, 8);
	POST(s, fi_writemsg(s->ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
	CHECK(done(s).op_context == out);
	total++;
	memset(in, 0, 60010);
	struct iovec back[2] = {part(in, 59999), part(in + 59999, 11)};
	m.msg_iov = back;
	POST(s, fi_readmsg(s->ep, &m, FI_COMPLETION));
	done(s);
	total++;
	CHECK(!memcmp(in, out, 10) && !memcmp(in + 10, out + 5000, 60000));
	barrier();
	/* Zero bytes complete, and are counted. */
	POST(s, fi_write(s->ep, NULL, 0, NULL, s->other, 0, key, out));
	done(s);
	POST(s, fi_read(s->ep, NULL, 0, NULL, s->other, 0, key, out));
	done(s);
	total += 2;
	counted(s, total);
	/* Many at once. */
	for (int i = 0; i < 5000; i++)
		POST(s, fi_inject_write(s->ep, &total, 8, s->other, 8 * (i % 1000), key));
	counted(s, total + 5000);
	unexpose();
}

static void rma_errors(struct side *s)
{
	uint64_t key = 5;
	size_t n[] = {8, 100000};
	expose(s, key, 200000, FI_REMOTE_READ);
	for (int i = 0; i < 2; i++) {
		POST(s, fi_write(s->ep, out, n[i], NULL, s->other, 0, key, out));
		CHECK(failed(s, FI_EACCES).op_context == out);
		POST(s, fi_read(s->ep, in, n[i], NULL, s->other, 200001 - n[i], key, in));
		CHECK(failed(s, FI_EACCES).op_context == in);
		POST(s, fi_read(s->ep, in, n[i], NULL, s->other, UINT64_MAX - 3, key, in));
		failed(s, FI_EACCES);
		POST(s, fi_read(s->ep, in, n[i], NULL, s->other, 0, key + 1, in));
		failed(s, FI_ENOKEY);
		POST(s, fi_write(s->ep, out, n[i], NULL, s->other, 0, key + 1, out));
		failed(s, FI_ENOKEY);
	}
	EQUAL(fi_cntr_read(s->cntr), 0);
	EQUAL(fi_cntr_readerr(s->cntr), 10);
	/* And it goes on. */
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 0, key, in));
	done(s);
	unexpose();
}

/* The whole address space as one region: what is not there is an error and no crash. */
static void dynamic_window(struct side *s)
{
	struct fid_mr *mr;
	char *mine = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *gap = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t at[2] = {(uintptr_t)mine, (uintptr_t)gap}, theirs[2];
	EQUAL(fi_mr_reg(s->domain, NULL, SIZE_MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 11, 0, &mr, NULL), 0);
	barrier();
	tell(at, sizeof at);
	hear(theirs, sizeof theirs);
	fill(out, 100000, 9);
	POST(s, fi_write(s->ep, out, 100000, NULL, s->other, theirs[0], 11, out));
	done(s);
	POST(s, fi_write(s->ep, out, 64, NULL, s->other, theirs[1] + 100, 11, out));
	failed(s, FI_EACCES);
	POST(s, fi_read(s->ep, in, 64, NULL, s->other, 64, 11, in));
	failed(s, FI_EACCES);
	barrier();
	filled(mine, 100000, 9);
	barrier();
	EQUAL(fi_close(&mr->fid), 0);
	munmap(mine, 1 << 20);
	munmap(gap, 1 << 20);
}

static void atomics(struct side *s)
{
	uint64_t key = 3, total = 0;
	size_t count;
	expose(s, key, 65536, FI_REMOTE_READ | FI_REMOTE_WRITE);
	/* All pairs may be asked for, the later ones too. */
	for (int t = 0; t < 20; t++)
		for (int o = 0; o < 24; o++) {
			int plain = fi_atomicvalid(s->ep, t, o, &count);
			int fetch = fi_fetch_atomicvalid(s->ep, t, o, &count);
			int compare = fi_compare_atomicvalid(s->ep, t, o, &count);
			bool integer = t <= FI_UINT64, real = t == FI_FLOAT || t == FI_DOUBLE;
			if (integer || (real && o != FI_BOR && o != FI_BAND && o != FI_BXOR && o != FI_MSWAP)) {
				EQUAL(plain == 0, o <= FI_BXOR || o == FI_ATOMIC_WRITE);
				EQUAL(fetch == 0, o <= FI_ATOMIC_WRITE);
				EQUAL(compare == 0, o >= FI_CSWAP && o <= FI_MSWAP);
			}
			if (t >= FI_DATATYPE_LAST || o >= FI_ATOMIC_OP_LAST)
				CHECK(plain < 0 && fetch < 0 && compare < 0);
		}
	struct fi_atomic_attr attr;
	EQUAL(fi_query_atomic(s->domain, FI_UINT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC), 0);
	EQUAL(attr.size, 8);
	CHECK(attr.count >= 1);
	CHECK(fi_query_atomic(s->domain, FI_UINT64, FI_CSWAP, &attr, 0) < 0);

	/* Both add to rank 0's word, which must not lose one. */
	fi_addr_t zero = rank_here == 0 ? s->self : s->other;
	uint64_t one = 1, before, last = 0;
	for (int i = 0; i < 1000; i++) {
		if (i % 3 == 0) {
			POST(s, fi_inject_atomic(s->ep, &one, 1, zero, 64, key, FI_UINT64, FI_SUM));
		} else if (i % 3 == 1) {
			POST(s, fi_atomic(s->ep, &one, 1, NULL, zero, 64, key, FI_UINT64, FI_SUM, out));
			EQUAL(done(s).flags, FI_ATOMIC | FI_WRITE);
		} else {
			POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, &before, NULL, zero, 64, key, FI_UINT64, FI_SUM, out));
			EQUAL(done(s).flags, FI_ATOMIC | FI_READ);
			CHECK(before >= last);
			last = before;
		}
		total++;
	}
	counted(s, total);
	barrier();
	if (rank_here == 0)
		EQUAL(*(uint64_t *)(exposed + 64), 2000);
	barrier();
	/* A lock by compare-and-swap around a word that is read and written. */
	for (int i = 0; i < 200; i++) {
		uint64_t want = rank_here + 1, free_ = 0, found = 99, v;
		double end = now() + SECONDS;
		do {
			POST(s, fi_compare_atomic(s->ep, &want, 1, NULL, &free_, NULL, &found, NULL, zero, 128, key, FI_UINT64,
						  FI_CSWAP, out));
			done(s);
			CHECK(now() < end);
		} while (found != 0);
		POST(s, fi_fetch_atomic(s->ep, NULL, 1, NULL, &v, NULL, zero, 136, key, FI_UINT64, FI_ATOMIC_READ, out));
		done(s);
		v++;
		POST(s, fi_atomic(s->ep, &v, 1, NULL, zero, 136, key, FI_UINT64, FI_ATOMIC_WRITE, out));
		done(s);
		POST(s, fi_atomic(s->ep, &free_, 1, NULL, zero, 128, key, FI_UINT64, FI_ATOMIC_WRITE, out));
		done(s);
	}
	barrier();
	if (rank_here == 0)
		EQUAL(*(uint64_t *)(exposed + 136), 400);
	/* As many elements as one call may have, in parts. */
	EQUAL(fi_atomicvalid(s->ep, FI_DOUBLE, FI_PROD, &count), 0);
	double *mine = (double *)(exposed + 4096), *with = (double *)out, *old = (double *)in;
	for (size_t i = 0; i < count; i++) {
		mine[i] = i;
		with[i] = 2;
	}
	barrier();
	struct fi_ioc parts[2] = {{.addr = with, .count = 3}, {.addr = with + 3, .count = count - 3}};
	struct fi_ioc results[2] = {{.addr = old, .count = count - 1}, {.addr = old + count - 1, .count = 1}};
	struct fi_rma_ioc remote = {.addr = 4096, .count = count, .key = key};
	struct fi_msg_atomic m = {.msg_iov = parts, .iov_count = 2, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1,
				  .datatype = FI_DOUBLE, .op = FI_PROD};
	POST(s, fi_fetch_atomicmsg(s->ep, &m, results, NULL, 2, FI_COMPLETION));
	done(s);
	barrier();
	for (size_t i = 0; i < count; i++) {
		CHECK(old[i] == i);
		CHECK(mine[i] == 2.0 * i);
	}
	barrier();
	/* What is not allowed is an error here. */
	POST(s, fi_atomic(s->ep, &one, 1, NULL, s->other, 65533, key, FI_UINT64, FI_SUM, out));
	failed(s, FI_EACCES);
	EQUAL(fi_atomic(s->ep, &one, 1, NULL, s->other, 0, key, FI_UINT64, FI_CSWAP, out), -FI_EOPNOTSUPP);
	CHECK(fi_atomic(s->ep, out, count + 1, NULL, s->other, 0, key, FI_DOUBLE, FI_SUM, out) < 0);
	unexpose();
}

static void close_at_once(struct side *s)
{
	/* What was injected before the close still arrives, without an exchange in between. */
	if (rank_here == 0) {
		for (uint64_t i = 0; i < 500; i++)
			POST(s, fi_tinject(s->ep, &i, 8, s->other, 1));
		EQUAL(fi_close(&s->ep->fid), 0);
		s->ep = NULL;
		moving = NULL;
	} else {
		usleep(20000);
		for (uint64_t i = 0; i < 500; i++) {
			uint64_t v = 99999;
			POST(s, fi_trecv(s->ep, &v, 8, NULL, s->other, 1, 0, &v));
			done(s);
			EQUAL(v, i);
		}
	}
}

static void vector(struct side *s)
{
	char name[64], far[64];
	size_t len = 64;
	fi_addr_t a[3];
	EQUAL(fi_av_insert(s->av, NULL, 0, NULL, 0, NULL), 0);
	EQUAL(fi_getname(&s->ep->fid, name, &len), 0);
	/* Twice the same: two numbers, one after the other. */
	EQUAL(fi_av_insert(s->av, name, 1, &a[0], 0, NULL), 1);
	EQUAL(fi_av_insert(s->av, name, 1, &a[1], 0, NULL), 1);
	EQUAL(a[0], 2);
	EQUAL(a[1], 3);
	len = 10;
	memset(far, 0, sizeof far);
	EQUAL(fi_av_lookup(s->av, a[1], far, &len), 0);
	EQUAL(len, 64);
	CHECK(!memcmp(far, name, 10) && far[10] == 0);
	char text[128];
	len = sizeof text;
	CHECK(fi_av_straddr(s->av, name, text, &len) == text);
	CHECK(!strncmp(text, "isthmus://", 10) && len == strlen(text) + 1);
	len = 5;
	fi_av_straddr(s->av, name, text, &len);
	CHECK(!strcmp(text, "isth") && len > 5);
	EQUAL(fi_av_remove(s->av, &a[0], 1, 0), 0);
	CHECK(fi_av_lookup(s->av, a[0], far, &len) < 0);
	CHECK(fi_av_remove(s->av, &a[0], 1, 0) < 0);
	EQUAL(fi_av_insert(s->av, name, 1, NULL, 0, NULL), 1);
	EQUAL(fi_av_insert(s->av, name, 1, &a[2], 0, NULL), 1);
	EQUAL(a[2], 5);
	/* What is no address, and what is another region's. */
	memset(far, 7, sizeof far);
	int errors[2] = {-1, -1};
	char both[128];
	memcpy(both, far, 64);
	memcpy(both + 64, name, 64);
	EQUAL(fi_av_insert(s->av, both, 2, a, FI_SYNC_ERR, errors), 1);
	CHECK(a[0] == FI_ADDR_NOTAVAIL && errors[0] == FI_EINVAL && errors[1] == 0);
	memcpy(far, name, 64);
	far[12] ^= 1;
	EQUAL(fi_av_insert(s->av, far, 1, a, 0, NULL), 0);
	CHECK(fi_tinject(s->ep, name, 8, 12345, 1) < 0);
	barrier();
}

/* Waits, signals, counters that are set. */
static void waits(struct side *s)
{
	struct fi_cq_tagged_entry e;
	double start = now();
	EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, 50), -FI_EAGAIN);
	CHECK(now() - start > 0.045);
	EQUAL(fi_cq_signal(s->cq), 0);
	EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, -1), -FI_EAGAIN);
	start = now();
	EQUAL(fi_cntr_wait(s->cntr, 1, 50), -FI_ETIMEDOUT);
	CHECK(now() - start > 0.045);
	EQUAL(fi_cntr_add(s->cntr, 5), 0);
	EQUAL(fi_cntr_read(s->cntr), 5);
	EQUAL(fi_cntr_wait(s->cntr, 5, -1), 0);
	EQUAL(fi_cntr_set(s->cntr, 2), 0);
	EQUAL(fi_cntr_read(s->cntr), 2);
	EQUAL(fi_cntr_adderr(s->cntr, 3), 0);
	EQUAL(fi_cntr_readerr(s->cntr), 3);
	EQUAL(fi_cntr_seterr(s->cntr, 0), 0);
	EQUAL(fi_cntr_readerr(s->cntr), 0);
	EQUAL(fi_cntr_set(s->cntr, 0), 0);
	CHECK(fi_cq_strerror(s->cq, FI_ETRUNC, NULL, NULL, 0));
	barrier();
	if (rank_here) {
		usleep(10000);
		POST(s, fi_tinject(s->ep, "x", 1, s->other, 1));
	} else {
		POST(s, fi_trecv(s->ep, in, 1, NULL, s->other, 1, 0, in));
		EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, 5000), 1);
	}
	barrier();
}

static struct wish tagged_only = {.caps = FI_TAGGED | FI_DIRECTED_RECV};
static struct wish safe = {.threading = FI_THREAD_SAFE};
static struct wish with_source = {.caps = FI_TAGGED | FI_MSG | FI_SOURCE | FI_DIRECTED_RECV};
static struct wish selective = {.bind_flags = FI_SELECTIVE_COMPLETION, .tx_op_flags = FI_DELIVERY_COMPLETE};

/* Entries only where they were asked for; errors always. */
static void selective_completion(struct side *s)
{
	struct iovec iov = part(out, 8);
	struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .tag = 1, .context = out};
	uint64_t v[6];
	/* The endpoint's flags have no FI_COMPLETION, so plain calls are silent. */
	POST(s, fi_trecv(s->ep, &v[0], 8, NULL, s->other, 1, 0, &v[0]));
	POST(s, fi_trecv(s->ep, &v[1], 8, NULL, s->other, 2, 0, &v[1]));
	POST(s, fi_trecv(s->ep, &v[2], 8, NULL, s->other, 3, 0, &v[2]));
	struct iovec to = part(&v[3], 8);
	struct fi_msg_tagged r = {.msg_iov = &to, .iov_count = 1, .addr = s->other, .tag = 4, .context = &v[3]};
	POST(s, fi_trecvmsg(s->ep, &r, FI_COMPLETION));
	barrier();
	fill(out, 8, 1);
	POST(s, fi_tsend(s->ep, out, 8, NULL, s->other, 1, out));
	POST(s, fi_tinject(s->ep, out, 8, s->other, 2));
	m.tag = 3;
	POST(s, fi_tsendmsg(s->ep, &m, FI_COMPLETION));
	CHECK(done(s).op_context == out);
	m.tag = 4;
	m.context = NULL;
	POST(s, fi_tsendmsg(s->ep, &m, 0));
	CHECK(done(s).op_context == &v[3]);
	silent(s);
	for (int i = 0; i < 4; i++)
		filled(&v[i], 8, 1);
	POST(s, fi_trecv(s->ep, &v[0], 8, NULL, s->other, 1, 0, &v[0]));
	EQUAL(fi_cancel(&s->ep->fid, &v[0]), 0);
	failed(s, FI_ECANCELED);
	/* An acknowledgement as Open MPI sends it: no context, no bytes, no flags. */
	struct iovec nothing = part(NULL, 0);
	m.msg_iov = &nothing;
	m.tag = 5;
	POST(s, fi_tsendmsg(s->ep, &m, 0));
	r.tag = 5;
	POST(s, fi_trecvmsg(s->ep, &r, FI_COMPLETION));
	EQUAL(done(s).len, 0);
	silent(s);
	barrier();
}

static void source(struct side *s)
{
	struct fi_cq_tagged_entry e;
	fi_addr_t from = 77;
	POST(s, fi_trecv(s->ep, in, 8, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, in));
	barrier();
	POST(s, fi_tinject(s->ep, out, 8, s->other, 1));
	double end = now() + SECONDS;
	ssize_t r;
	while ((r = fi_cq_readfrom(s->cq, &e, 1, &from)) == -FI_EAGAIN)
		CHECK(now() < end);
	EQUAL(r, 1);
	EQUAL(from, s->other);
	barrier();
}

/* A second endpoint on the same queue and vector, in the same process. */
static void two_endpoints(struct side *s)
{
	struct fid_ep *ep;
	char names[2][64];
	size_t len = 64;
	fi_addr_t a[2];
	EQUAL(fi_endpoint(s->domain, s->info, &ep, NULL), 0);
	EQUAL(fi_ep_bind(ep, &s->av->fid, 0), 0);
	EQUAL(fi_ep_bind(ep, &s->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_tsend(ep, out, 8, NULL, s->other, 1, out), -FI_EOPBADSTATE);
	EQUAL(fi_enable(ep), 0);
	EQUAL(fi_close(&s->cq->fid), -FI_EBUSY);
	EQUAL(fi_close(&s->domain->fid), -FI_EBUSY);
	EQUAL(fi_getname(&ep->fid, names[0], &len), 0);
	tell(names[0], 64);
	hear(names[1], 64);
	EQUAL(fi_av_insert(s->av, names, 2, a, 0, NULL), 2);
	for (int i = 0; i < 100; i++) {
		struct fid_ep *from = i % 2 ? ep : s->ep;
		POST(s, fi_trecv(from, in, 8, NULL, FI_ADDR_UNSPEC, i, 0, in));
		POST(s, fi_tinject(i % 3 ? ep : s->ep, out, 8, i % 2 ? a[1] : s->other, i));
		CHECK(done(s).op_context == in);
	}
	barrier();
	/* Between the two of this process. */
	POST(s, fi_trecv(ep, in, 100000, NULL, s->self, 5, 0, in));
	POST(s, fi_tsend(s->ep, out, 100000, NULL, a[0], 5, out));
	done(s);
	done(s);
	barrier();
	/* What one sent to the other does not keep it from closing, and arrives. */
	for (uint64_t i = 0; i < 20; i++)
		POST(s, fi_tinject(ep, &i, 8, s->self, 6));
	EQUAL(fi_close(&ep->fid), 0);
	for (uint64_t i = 0, v = 99; i < 20; i++) {
		POST(s, fi_trecv(s->ep, &v, 8, NULL, FI_ADDR_UNSPEC, 6, 0, &v));
		done(s);
		EQUAL(v, i);
	}
	tagged_sizes(s);
}

struct worker {
	struct side *s;
	int number;
};

static uint64_t received;
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *arg)
{
	struct worker *w = arg;
	struct side *s = w->s;
	for (uint64_t i = 0; i < 3000; i++) {
		ssize_t r;
		while ((r = fi_tinject(s->ep, &i, 8, s->other, 100 + w->number)) == -FI_EAGAIN)
			sched_yield();
		EQUAL(r, 0);
		uint64_t *v = malloc(8);
		while ((r = fi_trecv(s->ep, v, 8, NULL, s->other, 100 + w->number, 0, v)) == -FI_EAGAIN)
			sched_yield();
		EQUAL(r, 0);
		struct fi_cq_tagged_entry e[4];
		r = fi_cq_read(s->cq, e, 4);
		if (r > 0) {
			for (int k = 0; k < r; k++)
				free(e[k].op_context);
			pthread_mutex_lock(&count_lock);
			received += r;
			pthread_mutex_unlock(&count_lock);
		} else {
			EQUAL(r, -FI_EAGAIN);
		}
	}
	return NULL;
}

/* Several threads post and read at once. */
static void threads(struct side *s)
{
	enum { N = 4 };
	pthread_t t[N];
	struct worker w[N];
	received = 0;
	for (int i = 0; i < N; i++) {
		w[i] = (struct worker){s, i};
		pthread_create(&t[i], NULL, work, &w[i]);
	}
	for (int i = 0; i < N; i++)
		pthread_join(t[i], NULL);
	while (received < 3000 * N) {
		free(done(s).op_context);
		received++;
	}
	silent(s);
	barrier();
}

/* A child that was forked while endpoints are open neither harms nor is harmed. */
static void fork_in_between(struct side *s)
{
	barrier();
	pid_t child = fork();
	if (child == 0) {
		struct fi_info *info = NULL;
		fi_close(&s->ep->fid);
		fi_close(&s->cq->fid);
		fi_close(&s->av->fid);
		fi_close(&s->cntr->fid);
		fi_close(&s->domain->fid);
		fi_close(&s->fabric->fid);
		struct fi_info *hints = hints_for(NULL);
		if (lf.getinfo(API, NULL, NULL, 0, hints, &info) != 0)
			_exit(3);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	EQUAL(status, 0);
	barrier();
	tagged_sizes(s);
}

static void formats(struct side *s)
{
	(void)s;
	enum fi_cq_format all[] = {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED};
	size_t bytes[] = {8, 24, 40, 48};
	for (int i = 0; i < 4; i++) {
		struct wish w = {.format = all[i]};
		struct side t;
		open_side(&t, &w);
		meet(&t);
		unsigned char e[3 * 48];
		memset(e, 0xee, sizeof e);
		for (int k = 0; k < 2; k++)
			POST(&t, fi_trecv(t.ep, in, 8, NULL, t.other, 1, 0, in));
		moving = &t;
		barrier();
		for (int k = 0; k < 2; k++)
			POST(&t, fi_tinject(t.ep, out, 8, t.other, 1));
		double end = now() + SECONDS;
		ssize_t got = 0;
		while (got < 2) {
			ssize_t r = fi_cq_read(t.cq, e + got * bytes[i], 2);
			if (r > 0)
				got += r;
			else
				EQUAL(r, -FI_EAGAIN);
			CHECK(now() < end);
		}
		for (int k = 0; k < 2; k++)
			CHECK(*(void **)(e + k * bytes[i]) == in);
		for (size_t k = 2 * bytes[i]; k < sizeof e; k++)
			CHECK(e[k] == 0xee);
		barrier();
		moving = NULL;
		close_side(&t);
	}
	/* What one cannot wait on is said at once. */
	struct side t;
	open_side(&t, NULL);
	struct fid_cq *cq;
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_MUTEX_COND};
	EQUAL(fi_cq_open(t.domain, &attr, &cq, NULL), -FI_ENOSYS);
	attr.wait_obj = FI_WAIT_UNSPEC;
	EQUAL(fi_cq_open(t.domain, &attr, &cq, NULL), 0);
	EQUAL(fi_close(&cq->fid), 0);
	/* Event queues carry what the program writes. */
	struct fid_eq *eq;
	struct fi_eq_attr ea = {.size = 2, .flags = FI_WRITE};
	EQUAL(fi_eq_open(t.fabric, &ea, &eq, NULL), 0);
	struct fi_eq_entry ev = {.data = 9}, back;
	uint32_t kind = 0;
	EQUAL(fi_eq_read(eq, &kind, &back, sizeof back, 0), -FI_EAGAIN);
	EQUAL(fi_eq_write(eq, FI_NOTIFY, &ev, sizeof ev, 0), sizeof ev);
	EQUAL(fi_eq_read(eq, &kind, &back, sizeof back, FI_PEEK), sizeof ev);
	EQUAL(fi_eq_sread(eq, &kind, &back, sizeof back, 100, 0), sizeof ev);
	EQUAL(back.data, 9);
	EQUAL(fi_eq_readerr(eq, NULL, 0), -FI_EAGAIN);
	EQUAL(fi_close(&eq->fid), 0);
	close_side(&t);
}

static bool dies; /* rank 1 shall be killed by the last test */

/* The other process is killed: what was under way with it fails, soon, and nothing hangs. */
static void death(struct side *s)
{
	struct fi_cq_err_entry e;
	dies = true;
	if (rank_here) {
		moving = NULL; /* or it would answer the read while it waits */
		barrier();
		raise(SIGKILL);
	}
	POST(s, fi_tsend(s->ep, out, 1 << 20, NULL, s->other, 1, out)); /* waits for its receive */
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 0, 1, in));
	barrier();
	double start = now();
	bool sent = false, read = false;
	while (!sent || !read) {
		e = failed(s, FI_ECONNRESET);
		sent |= e.op_context == out;
		read |= e.op_context == in;
	}
	CHECK(now() - start < 5);
	while (fi_tinject(s->ep, out, 8, s->other, 1) != -FI_ECONNRESET)
		CHECK(now() - start < 5);
	/* Oneself can still be reached. */
	POST(s, fi_tinject(s->ep, out, 8, s->self, 2));
	POST(s, fi_trecv(s->ep, in, 8, NULL, s->self, 2, 0, in));
	done(s);
	close_side(s);
}

static const struct {
	const char *name;
	void (*run)(struct side *);
	struct wish *wish;
} tests[] = {
	{"tagged_sizes", tagged_sizes, NULL},
	{"tagged_only", tagged_sizes, &tagged_only},
	{"order", order, NULL},
	{"matching", matching, NULL},
	{"untagged_and_parts", untagged_and_parts, NULL},
	{"cq_data", cq_data, NULL},
	{"truncation", truncation, NULL},
	{"cancel", cancel, NULL},
	{"peek_and_claim", peek_and_claim, NULL},
	{"multi_receive", multi_receive, NULL},
	{"unexpected", unexpected, NULL},
	{"stream", stream, NULL},
	{"to_oneself", to_oneself, NULL},
	{"delivery", delivery, NULL},
	{"selective_completion", selective_completion, &selective},
	{"source", source, &with_source},
	{"rma", rma, NULL},
	{"rma_safe", rma, &safe},
	{"rma_errors", rma_errors, NULL},
	{"dynamic_window", dynamic_window, NULL},
	{"atomics", atomics, NULL},
	{"vector", vector, NULL},
	{"waits", waits, NULL},
	{"two_endpoints", two_endpoints, NULL},
	{"threads", threads, &safe},
	{"formats", formats, NULL},
	{"fork", fork_in_between, NULL},
	{"close_at_once", close_at_once, NULL},
	{"death", death, NULL}, /* the last one */
};

static bool chosen(int argc, char **argv, const char *name)
{
	for (int i = 2; i < argc; i++)
		if (!strcmp(argv[i], name))
			return true;
	return argc == 2;
}

static int one_side(int argc, char **argv)
{
	load(argv[1]);
	out = malloc(4000000);
	in = malloc(4000000);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
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

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	if (argc < 2)
		FAIL("usage: pair LIBFABRIC [TEST...]");
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	rank_here = child == 0;
	line = pair[rank_here];
	close(pair[!rank_here]);
	int result = one_side(argc, argv);
	if (child == 0)
		return result;
	CHECK(waitpid(child, &status, 0) == child);
	if (dies ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status)
		FAIL("the other process ended with status %#x", status);
	printf("pair: ok (libfabric %u.%u)\n", FI_MAJOR(lf.version()), FI_MINOR(lf.version()));
	return result;
}
