/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Which receive gets which message: tags, sources, cancel, peek, claim, discard, multi-receive.
 *
 * usage: match LIBFABRIC [TEST...]
 */
#include "pair.h"

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

/* Without FI_DIRECTED_RECV a receive's address says nothing, whosever it is and whichever call has it. */
static void undirected(struct side *s)
{
	enum { TRECV, TRECVV, TRECVMSG, RECV, RECVV, RECVMSG, MULTI, CALLS };
	CHECK(!(s->info->caps & FI_DIRECTED_RECV) && !(s->info->rx_attr->caps & FI_DIRECTED_RECV));
	fi_addr_t wrong[] = {s->self, 12345, FI_ADDR_UNSPEC - 1, FI_ADDR_UNSPEC};
	for (int call = 0; call < CALLS; call++)
		for (size_t a = 0; a < sizeof wrong / sizeof *wrong; a++)
			for (int late = 0; late < 2; late++) {
				fi_addr_t from = wrong[a];
				struct iovec iov = part(in, 64);
				struct fi_msg_tagged t = {.msg_iov = &iov, .iov_count = 1, .addr = from, .tag = call, .context = in};
				struct fi_msg u = {.msg_iov = &iov, .iov_count = 1, .addr = from, .context = in};
				bool tagged = call <= TRECVMSG;
				fill(out, 64, call + rank_here);
				memset(in, 0, 64);
				if (late) {
					POST(s, tagged ? fi_tinject(s->ep, out, 64, s->other, call) : fi_inject(s->ep, out, 64, s->other));
					barrier();
					if (tagged) {
						/* A peek does not look at it, either. */
						struct fi_msg_tagged peek = {.addr = from, .tag = call, .context = &t};
						POST(s, fi_trecvmsg(s->ep, &peek, FI_PEEK | FI_COMPLETION));
						CHECK(done(s).op_context == &t);
					}
				}
				switch (call) {
				case TRECV: POST(s, fi_trecv(s->ep, in, 64, NULL, from, call, 0, in)); break;
				case TRECVV: POST(s, fi_trecvv(s->ep, &iov, NULL, 1, from, call, 0, in)); break;
				case TRECVMSG: POST(s, fi_trecvmsg(s->ep, &t, FI_COMPLETION)); break;
				case RECV: POST(s, fi_recv(s->ep, in, 64, NULL, from, in)); break;
				case RECVV: POST(s, fi_recvv(s->ep, &iov, NULL, 1, from, in)); break;
				case RECVMSG: POST(s, fi_recvmsg(s->ep, &u, FI_COMPLETION)); break;
				case MULTI: POST(s, fi_recvmsg(s->ep, &u, FI_COMPLETION | FI_MULTI_RECV)); break;
				}
				if (!late) {
					barrier();
					POST(s, tagged ? fi_tinject(s->ep, out, 64, s->other, call) : fi_inject(s->ep, out, 64, s->other));
				}
				struct fi_cq_tagged_entry e = done(s);
				CHECK(e.op_context == in);
				EQUAL(e.len, 64);
				EQUAL(!!(e.flags & FI_MULTI_RECV), call == MULTI);
				filled(in, 64, call + !rank_here);
				silent(s);
				barrier();
			}
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

/* A multi-receive takes messages of all lengths and protocols in the order of their sends, one behind the other: where a
   message lies tells when it was matched, whenever its entry comes. */
static void multi_receive_in_order(struct side *s)
{
	enum { ROOM = 1 << 20, LEAST = 100000, N = 600 };
	static const size_t some[] = {0, 8, 300, 257, 41, 4096, 5000, 16384, 40, 16385, 65536, 1, LEAST};
	size_t least = LEAST;
	EQUAL(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
	if (rank_here == 0) {
		int entries = 0;
		char *bufs[N];
		barrier();
		for (int i = 0; i < N; i++) {
			size_t n = some[i % 13];
			bufs[i] = malloc(n + 1);
			fill(bufs[i], n, i);
			if (i % 3 && n <= s->info->tx_attr->inject_size) {
				POST(s, fi_injectdata(s->ep, bufs[i], n, i, s->other));
			} else {
				POST(s, fi_senddata(s->ep, bufs[i], n, NULL, i, s->other, bufs[i]));
				entries++;
			}
		}
		while (entries-- > 0)
			CHECK(done(s).flags & FI_SEND);
		barrier();
		for (int i = 0; i < N; i++)
			free(bufs[i]);
		barrier();
		return;
	}
	char *pool[2];
	struct fi_msg m[2];
	struct iovec iov[2];
	int life[2] = {0, 1}, lives = 2, in_life[N], released = 0;
	size_t at[N];
	memset(in_life, -1, sizeof in_life);
	for (int k = 0; k < 2; k++) {
		pool[k] = malloc(ROOM);
		iov[k] = part(pool[k], ROOM);
		m[k] = (struct fi_msg){.msg_iov = &iov[k], .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = pool[k]};
		POST(s, fi_recvmsg(s->ep, &m[k], FI_MULTI_RECV | FI_COMPLETION));
	}
	barrier();
	for (int got = 0; got < N;) {
		struct fi_cq_tagged_entry e = done(s);
		int k = e.op_context == pool[1];
		CHECK(e.op_context == pool[k]);
		if (e.flags & FI_RECV) {
			CHECK(e.flags & FI_REMOTE_CQ_DATA && e.data < N && in_life[e.data] == -1);
			EQUAL(e.len, some[e.data % 13]);
			CHECK((char *)e.buf >= pool[k] && (char *)e.buf + e.len <= pool[k] + ROOM);
			filled(e.buf, e.len, e.data);
			in_life[e.data] = life[k];
			at[e.data] = (char *)e.buf - pool[k];
			got++;
		}
		if (e.flags & FI_MULTI_RECV) {
			memset(pool[k], 0xdd, ROOM);
			life[k] = lives++;
			released++;
			POST(s, fi_recvmsg(s->ep, &m[k], FI_MULTI_RECV | FI_COMPLETION));
		}
	}
	CHECK(released > 5);
	/* Buffers are filled in the order of their posts, each from its beginning and without a gap. */
	for (int i = 0; i < N; i++) {
		bool first = i == 0 || in_life[i] != in_life[i - 1];
		EQUAL(in_life[i], i == 0 ? 0 : in_life[i - 1] + first);
		EQUAL(at[i], first ? 0 : at[i - 1] + some[(i - 1) % 13]);
		if (first && i > 0)
			CHECK(at[i - 1] + some[(i - 1) % 13] > ROOM - LEAST);
	}
	for (int k = 0; k < 2; k++)
		EQUAL(fi_cancel(&s->ep->fid, pool[k]), 0);
	for (int k = 0; k < 2; k++)
		CHECK(failed(s, FI_ECANCELED).flags & FI_MULTI_RECV);
	silent(s);
	barrier();
	barrier();
	for (int k = 0; k < 2; k++)
		free(pool[k]);
}

/* An untagged peek, claim or discard. */
static ssize_t look_untagged(struct side *s, fi_addr_t from, uint64_t flags, void *context, void *buf, size_t len)
{
	struct iovec iov = part(buf, len);
	struct fi_msg m = {.msg_iov = &iov, .iov_count = buf ? 1 : 0, .addr = from, .context = context};
	return fi_recvmsg(s->ep, &m, flags | FI_COMPLETION);
}

/* Looks until there is something: what is found first. */
static struct fi_cq_tagged_entry look_until(struct side *s, bool tagged, uint64_t tag, uint64_t flags, void *context)
{
	double end = now() + SECONDS;
	for (;;) {
		EQUAL(tagged ? look(s, tag, FI_ADDR_UNSPEC, flags, context, NULL, 0)
			     : look_untagged(s, FI_ADDR_UNSPEC, flags, context, NULL, 0), 0);
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = {0};
		ssize_t r;
		while ((r = fi_cq_read(s->cq, &e, 1)) == -FI_EAGAIN)
			CHECK(now() < end);
		if (r == 1) {
			CHECK(e.op_context == context);
			return e;
		}
		EQUAL(r, -FI_EAVAIL);
		EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
		EQUAL(err.err, FI_ENOMSG);
		CHECK(err.op_context == context);
		CHECK(now() < end);
	}
}

/* Peek, claim and discard for each protocol, tagged and untagged. A sender that waits for delivery, or
   for a match, is told of a discard. */
static void claims(struct side *s)
{
	static const size_t lens[] = {0, 8, 3000, 200000};
	int c[3];
	for (int tagged = 0; tagged < 2; tagged++)
		for (int i = 0; i < 8; i++) {
			size_t n = lens[i % 4];
			bool matched = i >= 4;
			struct iovec iov = part(out, n);
			struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .tag = 9, .context = out};
			struct fi_msg u = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .context = out};
			fill(out, n, i);
			/* Four: the first is discarded by a peek, the second claimed and discarded, the third claimed and
			   received, the fourth received. One side at a time, so that no other completion is in the way. */
			for (int turn = 0; turn < 2; turn++) {
				if (turn == rank_here) {
					for (int k = 0; k < 4; k++) {
						uint64_t flags = FI_COMPLETION | (matched ? FI_MATCH_COMPLETE : FI_DELIVERY_COMPLETE);
						POST(s, tagged ? fi_tsendmsg(s->ep, &m, flags) : fi_sendmsg(s->ep, &u, flags));
					}
					for (int k = 0; k < 4; k++)
						CHECK(done(s).op_context == out);
				} else {
					struct fi_cq_tagged_entry e = look_until(s, tagged, 9, FI_PEEK, &c[0]);
					EQUAL(e.len, n);
					EQUAL(e.flags, (tagged ? FI_TAGGED : FI_MSG) | FI_RECV);
					look_until(s, tagged, 9, FI_PEEK | FI_DISCARD, &c[0]);
					e = look_until(s, tagged, 9, FI_PEEK | FI_CLAIM, &c[1]);
					EQUAL(e.len, n);
					look_until(s, tagged, 9, FI_PEEK | FI_CLAIM, &c[2]);
					memset(in, 0, n);
					POST(s, tagged ? fi_trecv(s->ep, in, n, NULL, s->other, 9, 0, in)
						       : fi_recv(s->ep, in, n, NULL, s->other, in));
					CHECK(done(s).op_context == in);
					filled(in, n, i);
					EQUAL(tagged ? look(s, 0, 0, FI_CLAIM | FI_DISCARD, &c[1], NULL, 0)
						     : look_untagged(s, 0, FI_CLAIM | FI_DISCARD, &c[1], NULL, 0), 0);
					CHECK(done(s).op_context == &c[1]);
					memset(in, 0, n);
					/* The claim's address is any: Open MPI gives 0, MPICH none. */
					EQUAL(tagged ? look(s, 1, FI_ADDR_UNSPEC, FI_CLAIM, &c[2], in, n)
						     : look_untagged(s, 0, FI_CLAIM, &c[2], in, n), 0);
					e = done(s);
					CHECK(e.op_context == &c[2]);
					EQUAL(e.len, n);
					filled(in, n, i);
					EQUAL(tagged ? look(s, 9, FI_ADDR_UNSPEC, FI_PEEK, &c[0], NULL, 0)
						     : look_untagged(s, FI_ADDR_UNSPEC, FI_PEEK, &c[0], NULL, 0), 0);
					failed(s, FI_ENOMSG);
					/* Nothing is claimed any more. */
					CHECK((tagged ? look(s, 9, 0, FI_CLAIM, &c[2], in, n)
						      : look_untagged(s, 0, FI_CLAIM, &c[2], in, n)) < 0);
				}
				barrier();
			}
		}
	/* A claim that is too short is a truncation like any other. */
	barrier();
	POST(s, fi_tinjectdata(s->ep, out, 100, 3, s->other, 11));
	look_until(s, true, 11, FI_PEEK | FI_CLAIM, &c[0]);
	EQUAL(look(s, 11, 0, FI_CLAIM, &c[0], in, 10), 0);
	struct fi_cq_err_entry e = failed(s, FI_ETRUNC);
	CHECK(e.op_context == &c[0] && e.len == 10 && e.olen == 90 && e.tag == 11 && e.data == 3);
	barrier();
}

/* A receive that has matched completes as if nobody had cancelled it. */
static void cancel_too_late(struct side *s)
{
	size_t n = 3000000;
	fill(out, n, rank_here);
	memset(in, 0, n);
	POST(s, fi_trecv(s->ep, in, n, NULL, s->other, 1, 0, in));
	barrier();
	POST(s, fi_tsend(s->ep, out, n, NULL, s->other, 1, out));
	/* Under way by now, or not: exactly one of the two endings. */
	struct fi_cq_tagged_entry e[2];
	int got = 0, canceled = 0;
	double end = now() + SECONDS;
	for (int i = 0; i < 3; i++)
		if (fi_cq_read(s->cq, &e[0], 1) == 1)
			got++;
	EQUAL(fi_cancel(&s->ep->fid, in), 0);
	EQUAL(fi_cancel(&s->ep->fid, out), 0); /* sends are not cancelled */
	while (got + canceled < 2) {
		ssize_t r = fi_cq_read(s->cq, &e[0], 1);
		CHECK(now() < end);
		if (r == 1)
			got++;
		if (r == -FI_EAVAIL) {
			struct fi_cq_err_entry err = {0};
			EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
			EQUAL(err.err, FI_ECANCELED);
			CHECK(err.op_context == in);
			canceled++;
			/* The message is still there, and its sender waits. */
			POST(s, fi_trecv(s->ep, in, n, NULL, s->other, 1, 0, in));
			got--;
		}
	}
	filled(in, n, !rank_here);
	silent(s);
	barrier();
}

/* Multi-receives as MPICH and Intel MPI use them, by all protocols and from several senders. */
static void active_messages(struct side *s)
{
	enum { BUFFERS = 8, ROOM = 1 << 20, LEAST = 16384, N = 3000 };
	size_t least = LEAST;
	char *pool = malloc((size_t)BUFFERS * ROOM);
	size_t used[BUFFERS] = {0};
	bool posted[BUFFERS] = {0};
	EQUAL(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
	struct iovec iov[BUFFERS];
	struct fi_msg m[BUFFERS];
	for (int k = 0; k < BUFFERS; k++) {
		iov[k] = part(pool + (size_t)k * ROOM, ROOM);
		m[k] = (struct fi_msg){.msg_iov = &iov[k], .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &iov[k]};
		POST(s, fi_recvmsg(s->ep, &m[k], FI_MULTI_RECV | FI_COMPLETION));
		posted[k] = true;
	}
	barrier();
	/* To the other and to oneself, from none to as many bytes as the buffers are kept for. */
	int sent = 0, got[2] = {0, 0}, released = 0;
	enum { LONG = 32 };
	static bool lent[LONG]; /* the buffers of long sends that have not completed */
	uint32_t next[2] = {0, 0};
	double end = now() + SECONDS;
	while (got[0] + got[1] < 2 * N) {
		if (sent < 2 * N) {
			size_t n = (size_t)(sent / 2 * 7919) % (LEAST + 1);
			memset(out, 0, n);
			if (n >= 8)
				memcpy(out, (uint32_t[]){rank_here, sent / 2}, 8);
			ssize_t r = n <= 4096 ? fi_inject(s->ep, out, n, sent % 2 ? s->self : s->other) : -FI_EAGAIN;
			if (n > 4096 && !lent[sent % LONG]) {
				/* Longer ones by a send whose buffer stays until it completes. */
				char *from = out + 65536 + (size_t)(sent % LONG) * 20000;
				memcpy(from, (uint32_t[]){rank_here, sent / 2}, 8);
				r = fi_send(s->ep, from, n, NULL, sent % 2 ? s->self : s->other, &lent[sent % LONG]);
				lent[sent % LONG] = r == 0;
			}
			if (r != -FI_EAGAIN) {
				EQUAL(r, 0);
				sent++;
			}
		}
		struct fi_cq_tagged_entry e;
		ssize_t r = fi_cq_read(s->cq, &e, 1);
		CHECK(now() < end);
		if (r == -FI_EAGAIN)
			continue;
		EQUAL(r, 1);
		if (e.flags & FI_SEND) {
			*(bool *)e.op_context = false;
			continue;
		}
		int k = (struct iovec *)e.op_context - iov;
		CHECK(k >= 0 && k < BUFFERS && posted[k]);
		if (e.flags & FI_RECV) {
			char *at = e.buf;
			CHECK(at == pool + (size_t)k * ROOM + used[k]);
			CHECK(used[k] + e.len <= ROOM);
			used[k] += e.len;
			if (e.len >= 8) {
				uint32_t head[2];
				memcpy(head, at, 8);
				CHECK(head[0] < 2 && head[1] < N);
				EQUAL(e.len, (size_t)((uint64_t)head[1] * 7919 % (LEAST + 1)));
				/* In the order of its sender, but for those that are too short to tell. */
				while ((uint64_t)next[head[0]] * 7919 % (LEAST + 1) < 8)
					next[head[0]]++;
				EQUAL(head[1], next[head[0]]++);
				got[head[0] == (uint32_t)rank_here]++;
			} else {
				got[0]++; /* too short to tell from whom */
			}
		}
		if (e.flags & FI_MULTI_RECV) {
			/* Never before less than the least is left; then nothing more comes into it. */
			CHECK(ROOM - used[k] < LEAST);
			memset(pool + (size_t)k * ROOM, 0xdd, ROOM);
			used[k] = 0;
			released++;
			POST(s, fi_recvmsg(s->ep, &m[k], FI_MULTI_RECV | FI_COMPLETION));
		}
	}
	CHECK(released > 20);
	/* The rest of the sends, if any: each has an entry. */
	barrier();
	struct fi_cq_tagged_entry e;
	while (fi_cq_read(s->cq, &e, 1) == 1) {
		CHECK(e.flags & FI_SEND);
		*(bool *)e.op_context = false;
	}
	for (int k = 0; k < LONG; k++)
		CHECK(!lent[k]);
	/* At its end Intel MPI waits for an error for each buffer. */
	for (int k = 0; k < BUFFERS; k++)
		EQUAL(fi_cancel(&s->ep->fid, &iov[k]), 0);
	for (int k = 0; k < BUFFERS; k++) {
		struct fi_cq_err_entry err = failed(s, FI_ECANCELED);
		CHECK(err.flags & FI_MULTI_RECV);
		int at = (struct iovec *)err.op_context - iov;
		CHECK(at >= 0 && at < BUFFERS && posted[at]);
		posted[at] = false;
	}
	free(pool);
	barrier();
}

/* A message that does not fit into what is left of a multi-receive, and one that fits exactly. */
static void multi_receive_edges(struct side *s)
{
	static char pool[1000];
	size_t least = 1;
	EQUAL(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
	struct iovec iov = part(pool, sizeof pool);
	struct fi_msg m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .context = pool};
	fill(out, 1000, rank_here);
	for (int exact = 0; exact < 2; exact++) {
		POST(s, fi_recvmsg(s->ep, &m, FI_MULTI_RECV | FI_COMPLETION));
		barrier();
		POST(s, fi_inject(s->ep, out, 0, s->other));
		POST(s, fi_inject(s->ep, out, 600, s->other));
		POST(s, fi_inject(s->ep, out, exact ? 400 : 500, s->other));
		struct fi_cq_tagged_entry e = done(s);
		EQUAL(e.len, 0);
		EQUAL(e.flags, FI_MSG | FI_RECV);
		e = done(s);
		EQUAL(e.len, 600);
		CHECK(e.buf == pool);
		filled(pool, 600, !rank_here);
		if (exact) {
			e = done(s);
			EQUAL(e.len, 400);
			CHECK(e.buf == pool + 600);
			CHECK(e.flags & FI_MULTI_RECV);
		} else {
			struct fi_cq_err_entry err = failed(s, FI_ETRUNC);
			EQUAL(err.len, 400);
			EQUAL(err.olen, 100);
			CHECK(err.op_context == pool);
			if (!(err.flags & FI_MULTI_RECV)) {
				e = done(s);
				EQUAL(e.flags, FI_MULTI_RECV);
				CHECK(e.op_context == pool);
			}
		}
		silent(s);
		barrier();
	}
	/* Messages that came before the buffer go into it in their order. */
	for (int i = 0; i < 5; i++)
		POST(s, fi_inject(s->ep, &i, 4, s->other));
	barrier();
	for (int i = 0; i < 100; i++)
		fi_cq_read(s->cq, NULL, 0);
	POST(s, fi_recvmsg(s->ep, &m, FI_MULTI_RECV | FI_COMPLETION));
	for (int i = 0; i < 5; i++) {
		struct fi_cq_tagged_entry e = done(s);
		EQUAL(e.len, 4);
		EQUAL(*(int *)e.buf, i);
	}
	EQUAL(fi_cancel(&s->ep->fid, pool), 0);
	CHECK(failed(s, FI_ECANCELED).flags & FI_MULTI_RECV);
	barrier();
}

/* The endpoint's flag is for fi_recv: a tagged receive takes one message, and its buffer is the program's again. */
static void tagged_beside_multi_receive(struct side *s)
{
	char got[2][64];
	size_t least = 8;
	EQUAL(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
	struct iovec iov[2] = {part(got[0], 32), part(got[0] + 32, 32)};
	struct fi_msg_tagged m = {.msg_iov = iov, .iov_count = 1, .addr = s->other, .tag = 7, .context = got};
	EQUAL(fi_trecvmsg(s->ep, &m, FI_MULTI_RECV), -FI_EBADFLAGS);
	for (int call = 0; call < 3; call++) {
		memset(got, 0, sizeof got);
		switch (call) {
		case 0: POST(s, fi_trecv(s->ep, got[0], 64, NULL, s->other, 7, 0, got[0])); break;
		case 1: POST(s, fi_trecvv(s->ep, iov, NULL, 2, s->other, 7, 0, got[0])); break;
		case 2: POST(s, fi_recv(s->ep, got[0], 64, NULL, s->other, got[0])); break;
		}
		barrier();
		for (int i = 0; i < 2; i++) {
			fill(out, 8, 5 + i + rank_here);
			POST(s, call < 2 ? fi_tinject(s->ep, out, 8, s->other, 7) : fi_inject(s->ep, out, 8, s->other));
		}
		struct fi_cq_tagged_entry e = done(s);
		CHECK(e.op_context == got[0]);
		EQUAL(e.len, 8);
		filled(got[0], 8, 5 + !rank_here);
		if (call < 2) {
			silent(s);
			for (int k = 8; k < 64; k++)
				EQUAL(got[0][k], 0);
			POST(s, fi_trecv(s->ep, got[1], 64, NULL, s->other, 7, 0, got[1]));
			CHECK(done(s).op_context == got[1]);
			filled(got[1], 8, 6 + !rank_here);
		} else {
			CHECK(done(s).buf == got[0] + 8);
			filled(got[0] + 8, 8, 6 + !rank_here);
			EQUAL(fi_cancel(&s->ep->fid, got[0]), 0);
			CHECK(failed(s, FI_ECANCELED).flags & FI_MULTI_RECV);
		}
		barrier();
	}
}

static struct wish multi_by_flags = {.rx_op_flags = FI_COMPLETION | FI_MULTI_RECV};
static struct wish no_directed = {.caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV};

static const struct test tests[] = {
	{"matching", matching, NULL},
	{"undirected", undirected, &no_directed},
	{"cancel", cancel, NULL},
	{"peek_and_claim", peek_and_claim, NULL},
	{"multi_receive", multi_receive, NULL},
	{"multi_receive_in_order", multi_receive_in_order, NULL},
	{"claims", claims, NULL},
	{"cancel_too_late", cancel_too_late, NULL},
	{"active_messages", active_messages, NULL},
	{"multi_receive_edges", multi_receive_edges, NULL},
	{"tagged_beside_multi_receive", tagged_beside_multi_receive, &multi_by_flags},
};
RUN_PAIR(tests)
