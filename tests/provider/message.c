/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Tagged and untagged messages: sizes, order, parts, data, truncation, floods, completion levels.
 *
 * usage: message LIBFABRIC [TEST...]
 */
#include "pair.h"

static struct wish selective = {.bind_flags = FI_SELECTIVE_COMPLETION, .tx_op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE, .rx_op_flags = FI_COMPLETION};
static struct wish tagged_only = {.caps = FI_TAGGED | FI_DIRECTED_RECV};

/* A message by one of all calls that send, with its number as data where the call has any. Gives whether an entry comes. */
static bool send_by_any(struct side *s, bool tagged, int number, char *buf, size_t n, uint64_t tag)
{
	struct iovec parts[2] = {part(buf, n / 2), part(buf + n / 2, n - n / 2)};
	struct fi_msg_tagged t = {.msg_iov = parts, .iov_count = 2, .addr = s->other, .tag = tag, .data = number, .context = buf};
	struct fi_msg u = {.msg_iov = parts, .iov_count = 2, .addr = s->other, .data = number, .context = buf};
	uint64_t flags = FI_COMPLETION | FI_REMOTE_CQ_DATA;
	int how = number % 7;
	if (how < 2 && n > s->info->tx_attr->inject_size)
		how += 2;
	switch (how) {
	case 0: POST(s, tagged ? fi_tinject(s->ep, buf, n, s->other, tag) : fi_inject(s->ep, buf, n, s->other)); return false;
	case 1:
		POST(s, tagged ? fi_tinjectdata(s->ep, buf, n, number, s->other, tag) : fi_injectdata(s->ep, buf, n, number, s->other));
		return false;
	case 2: POST(s, tagged ? fi_tsend(s->ep, buf, n, NULL, s->other, tag, buf) : fi_send(s->ep, buf, n, NULL, s->other, buf)); break;
	case 3:
		POST(s, tagged ? fi_tsenddata(s->ep, buf, n, NULL, number, s->other, tag, buf)
			       : fi_senddata(s->ep, buf, n, NULL, number, s->other, buf));
		break;
	case 4: POST(s, tagged ? fi_tsendmsg(s->ep, &t, flags) : fi_sendmsg(s->ep, &u, flags)); break;
	case 5:
		flags |= number % 2 ? FI_DELIVERY_COMPLETE : FI_MATCH_COMPLETE;
		POST(s, tagged ? fi_tsendmsg(s->ep, &t, flags) : fi_sendmsg(s->ep, &u, flags));
		break;
	case 6:
		POST(s, tagged ? fi_tsendv(s->ep, parts, NULL, 2, s->other, tag, buf) : fi_sendv(s->ep, parts, NULL, 2, s->other, buf));
		break;
	}
	return true;
}

enum { ANY_LEN = 100000 };

static void receive_any(struct side *s, bool tagged, char *buf)
{
	memset(buf, 0xee, ANY_LEN + 1);
	POST(s, tagged ? fi_trecv(s->ep, buf, ANY_LEN, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, buf)
		       : fi_recv(s->ep, buf, ANY_LEN, NULL, FI_ADDR_UNSPEC, buf));
}

/* Whatever its size and call, messages of a pair match in the order of the sends: those of one kind with the receives of
   that kind, which take anything. The receives are there before the messages, or come one by one after them. */
static void order_of(struct side *s, bool tagged, bool untagged, bool late)
{
	enum { N = 420 };
	static const size_t some[] = {8, 5000, 40, 70000, 0, 300, 20000, 4096, 41, 16384, ANY_LEN, 16385, 1};
	char *bufs[N];
	bool kind[N];
	int queue[2][N], count[2] = {0, 0}, next[2] = {0, 0};
	for (int i = 0; i < N; i++) {
		bufs[i] = malloc(ANY_LEN + 1);
		kind[i] = tagged && (!untagged || i % 3 != 0);
		queue[kind[i]][count[kind[i]]++] = i;
	}
	if (rank_here == 0) {
		int entries = 0;
		barrier();
		for (int i = 0; i < N; i++) {
			fill(bufs[i], some[i % 13], i);
			entries += send_by_any(s, kind[i], i, bufs[i], some[i % 13], 7);
		}
		while (entries-- > 0)
			done(s);
	} else {
		for (int k = 0; k < 2 && !late; k++)
			for (int i = 0; i < count[k]; i++)
				receive_any(s, k, bufs[queue[k][i]]);
		barrier();
		for (int i = 0; late && i < 3000; i++)
			fi_cq_read(s->cq, NULL, 0);
		for (int i = 0, k = 0; i < N; i++) {
			if (late) {
				/* Of the two kinds in turns, until one has all. */
				k = next[!k] < count[!k] ? !k : k;
				receive_any(s, k, bufs[queue[k][next[k]++]]);
			}
			struct fi_cq_tagged_entry e = done(s);
			int m = 0;
			while (m < N && bufs[m] != e.op_context)
				m++;
			CHECK(m < N);
			EQUAL(!!(e.flags & FI_TAGGED), kind[m]);
			if (e.flags & FI_REMOTE_CQ_DATA)
				EQUAL(e.data, m);
			EQUAL(e.len, some[m % 13]);
			filled(bufs[m], e.len, m);
			CHECK((unsigned char)bufs[m][e.len] == 0xee);
		}
	}
	silent(s);
	barrier();
	for (int i = 0; i < N; i++)
		free(bufs[i]);
}

static void order(struct side *s)
{
	order_of(s, true, false, false);
	order_of(s, true, false, true);
}

static void order_untagged(struct side *s)
{
	order_of(s, false, true, false);
	order_of(s, false, true, true);
}

static void order_of_both(struct side *s)
{
	order_of(s, true, true, false);
	order_of(s, true, true, true);
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
		struct iovec iov = part(out, sizes[i]);
		struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = s->self, .tag = i, .context = out};
		if (i % 3)
			POST(s, fi_tsend(s->ep, out, sizes[i], NULL, s->self, i, out));
		else
			POST(s, fi_tsendmsg(s->ep, &m, FI_COMPLETION | (i % 4 < 2 ? FI_MATCH_COMPLETE : FI_DELIVERY_COMPLETE)));
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

/* Looks until the message has come, and leaves it there. */
static void seen(struct side *s, bool tagged, uint64_t tag)
{
	struct fi_msg_tagged t = {.addr = s->other, .tag = tag, .context = in};
	struct fi_msg u = {.addr = s->other, .context = in};
	double end = now() + SECONDS;
	for (ssize_t r = 0; r != 1;) {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = {0};
		EQUAL(tagged ? fi_trecvmsg(s->ep, &t, FI_PEEK | FI_COMPLETION) : fi_recvmsg(s->ep, &u, FI_PEEK | FI_COMPLETION), 0);
		while ((r = fi_cq_read(s->cq, &e, 1)) == -FI_EAGAIN)
			CHECK(now() < end);
		if (r == -FI_EAVAIL) {
			EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
			EQUAL(err.err, FI_ENOMSG);
		}
		CHECK(now() < end);
	}
}

/* A completion is never early. What was delivered was taken by the receiver's provider, so nothing completes while that
   one does not run; what was matched has a receive, so nothing completes while there is none. */
static void not_early(struct side *s, uint64_t level)
{
	static const size_t lens[] = {0, 8, 40, 41, 4096, 16384, 16385, 100000};
	struct fi_cq_tagged_entry e;
	char c = 'c';
	for (int tagged = 0; tagged < 2; tagged++)
		for (int inject = 0; inject < 2; inject++)
			for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
				size_t n = lens[i];
				uint64_t flags = FI_COMPLETION | level | (inject ? FI_INJECT : 0);
				struct iovec iov = part(out, n);
				struct fi_msg_tagged t = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .tag = 5, .context = out};
				struct fi_msg u = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .context = out};
				if (inject && n > s->info->tx_attr->inject_size)
					continue;
				if (inject && level == FI_MATCH_COMPLETE) {
					/* What is not the caller's any more has nowhere to wait for its receive. */
					EQUAL(tagged ? fi_tsendmsg(s->ep, &t, flags) : fi_sendmsg(s->ep, &u, flags), -FI_EINVAL);
					continue;
				}
				if (rank_here == 0) {
					hear(&c, 1); /* the other does nothing but wait for our word from now on */
					fill(out, n, i);
					POST(s, tagged ? fi_tsendmsg(s->ep, &t, flags) : fi_sendmsg(s->ep, &u, flags));
					if (inject)
						memset(out, 0, n);
					silent(s);
					tell(&c, 1);
					hear(&c, 1); /* it has seen the message, and has no receive */
					ssize_t r = -FI_EAGAIN;
					if (level == FI_MATCH_COMPLETE)
						silent(s);
					else
						r = fi_cq_read(s->cq, &e, 1);
					if (r == 1)
						memset(out, 0, n); /* kept over there, whole */
					tell(&c, 1);
					if (r == -FI_EAGAIN)
						e = done(s);
					CHECK(e.op_context == out);
					EQUAL(e.flags, (tagged ? FI_TAGGED : FI_MSG) | FI_SEND);
					memset(out, 0, n);
					barrier();
				} else {
					memset(in, 0xee, n);
					tell(&c, 1);
					hear(&c, 1);
					seen(s, tagged, 5);
					tell(&c, 1);
					hear(&c, 1);
					POST(s, tagged ? fi_trecv(s->ep, in, n, NULL, s->other, 5, 0, in) : fi_recv(s->ep, in, n, NULL, s->other, in));
					/* The sender has its completion: the bytes are here, whether or not ours was read. */
					barrier();
					filled(in, n, i);
					e = done(s);
					CHECK(e.op_context == in);
					EQUAL(e.len, n);
				}
				barrier();
			}
}

static void delivery(struct side *s)
{
	not_early(s, FI_DELIVERY_COMPLETE);
}

static void match_level(struct side *s)
{
	not_early(s, FI_MATCH_COMPLETE);
}

/* Every call that sends, with every call that receives. */
static void forms(struct side *s)
{
	enum { SEND, SENDV, SENDMSG, SENDMSG_DATA, SENDMSG_INJECT, INJECT, SENDDATA, INJECTDATA, SENDS };
	enum { RECV, RECVV, RECVMSG, RECVS };
	static const size_t lens[] = {0, 1, 40, 41, 4096, 4097, 20000, 300000};
	struct fid_ep *ep = s->ep;
	for (int tagged = 0; tagged < 2; tagged++)
		for (int how = 0; how < SENDS; how++)
			for (int to = 0; to < RECVS; to++)
				for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
					size_t n = lens[i];
					bool inject = how == INJECT || how == INJECTDATA || how == SENDMSG_INJECT;
					bool data = how == SENDMSG_DATA || how == SENDDATA || how == INJECTDATA;
					uint64_t tag = tagged ? 0xfedcba9876543210ULL - how : 0, d = 0xd0d0000000000000ULL + how;
					if (inject && n > s->info->tx_attr->inject_size)
						continue;
					/* A third of the payload each, the middle one in two halves. */
					size_t a = n / 3, b = 2 * (n / 3);
					struct iovec from[3] = {part(out, a), part(out + a, b - a), part(out + b, n - b)};
					struct iovec into[2] = {part(in, a), part(in + a, n - a)};
					/* MPICH passes descriptors that are null. Nobody looks at them, whatever they are. */
					void *null[3] = {NULL}, *none[3] = {(void *)1, (void *)2, (void *)3};
					void **desc = i % 2 ? null : none;
					struct fi_msg_tagged st = {.msg_iov = from, .desc = desc, .iov_count = 3, .addr = s->other, .tag = tag, .data = d, .context = out};
					struct fi_msg_tagged rt = {.msg_iov = into, .desc = desc, .iov_count = 2, .addr = s->other, .tag = tag, .context = in};
					struct fi_msg su = {.msg_iov = from, .desc = desc, .iov_count = 3, .addr = s->other, .data = d, .context = out};
					struct fi_msg ru = {.msg_iov = into, .desc = desc, .iov_count = 2, .addr = s->other, .context = in};
					uint64_t f = FI_COMPLETION | (data ? FI_REMOTE_CQ_DATA : 0) | (inject ? FI_INJECT : 0);
					fill(out, n, how + to + rank_here);
					memset(in, 0xee, n + 1);
#define EITHER(t, u) (tagged ? (t) : (u))
					switch (to) {
					case RECV:
						POST(s, EITHER(fi_trecv(ep, in, n, *desc, s->other, tag, 0, in), fi_recv(ep, in, n, *desc, s->other, in)));
						break;
					case RECVV:
						POST(s, EITHER(fi_trecvv(ep, into, desc, 2, s->other, tag, 0, in), fi_recvv(ep, into, desc, 2, s->other, in)));
						break;
					case RECVMSG:
						POST(s, EITHER(fi_trecvmsg(ep, &rt, FI_COMPLETION), fi_recvmsg(ep, &ru, FI_COMPLETION)));
						break;
					}
					barrier();
					switch (how) {
					case SEND:
						POST(s, EITHER(fi_tsend(ep, out, n, *desc, s->other, tag, out), fi_send(ep, out, n, *desc, s->other, out)));
						break;
					case SENDV:
						POST(s, EITHER(fi_tsendv(ep, from, desc, 3, s->other, tag, out), fi_sendv(ep, from, desc, 3, s->other, out)));
						break;
					case SENDMSG:
					case SENDMSG_DATA:
					case SENDMSG_INJECT:
						POST(s, EITHER(fi_tsendmsg(ep, &st, f), fi_sendmsg(ep, &su, f)));
						break;
					case INJECT:
						POST(s, EITHER(fi_tinject(ep, out, n, s->other, tag), fi_inject(ep, out, n, s->other)));
						break;
					case SENDDATA:
						POST(s, EITHER(fi_tsenddata(ep, out, n, *desc, d, s->other, tag, out), fi_senddata(ep, out, n, *desc, d, s->other, out)));
						break;
					case INJECTDATA:
						POST(s, EITHER(fi_tinjectdata(ep, out, n, d, s->other, tag), fi_injectdata(ep, out, n, d, s->other)));
						break;
					}
					if (inject)
						memset(out, 0, n); /* it was ours again on return */
					bool entry = how != INJECT && how != INJECTDATA;
					for (int k = 0; k < 1 + entry; k++) {
						struct fi_cq_tagged_entry e = done(s);
						if (e.op_context == out) {
							EQUAL(e.flags, (tagged ? FI_TAGGED : FI_MSG) | FI_SEND);
							continue;
						}
						CHECK(e.op_context == in);
						EQUAL(e.flags, (tagged ? FI_TAGGED : FI_MSG) | FI_RECV | (data ? FI_REMOTE_CQ_DATA : 0));
						EQUAL(e.len, n);
						EQUAL(e.tag, tag);
						EQUAL(e.data, data ? d : 0);
					}
					filled(in, n, how + to + !rank_here);
					CHECK((unsigned char)in[n] == 0xee);
				}
	silent(s);
	/* One byte more than may be injected, one part more than may be given, null with a length. */
	struct iovec many[64];
	for (int i = 0; i < 64; i++)
		many[i] = part(out, 1);
	size_t limit = s->info->tx_attr->iov_limit;
	CHECK(limit >= 4 && limit < 64);
	CHECK(fi_tinject(ep, out, s->info->tx_attr->inject_size + 1, s->other, 1) == -FI_EMSGSIZE);
	CHECK(fi_tsendv(ep, many, NULL, limit + 1, s->other, 1, out) == -FI_EINVAL);
	CHECK(fi_tsend(ep, NULL, 8, NULL, s->other, 1, out) == -FI_EINVAL);
	CHECK(fi_trecv(ep, NULL, 8, NULL, s->other, 1, 0, out) == -FI_EINVAL);
	barrier();
	POST(s, fi_trecv(ep, in, 64, NULL, s->other, 2, 0, in));
	POST(s, fi_tsendv(ep, many, NULL, limit, s->other, 2, out));
	for (int k = 0; k < 2; k++) {
		struct fi_cq_tagged_entry e = done(s);
		if (e.op_context == in)
			EQUAL(e.len, limit);
	}
	barrier();
}

/* What each level of completion promises, for every protocol: injected, taken, matched. */
static void levels(struct side *s)
{
	static const uint64_t level[] = {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE};
	static const size_t lens[] = {0, 8, 4000, 100000};
	for (int l = 0; l < 4; l++)
		for (int i = 0; i < 4; i++) {
			struct iovec iov = part(out, lens[i]);
			struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .tag = 5, .context = out};
			fill(out, lens[i], l + rank_here);
			POST(s, fi_tsendmsg(s->ep, &m, FI_COMPLETION | level[l]));
			POST(s, fi_trecv(s->ep, in, lens[i], NULL, s->other, 5, 0, in));
			for (int k = 0; k < 2; k++)
				if (done(s).op_context == out)
					memset(out, 0, lens[i]); /* reusable, whatever the level */
			filled(in, lens[i], l + !rank_here);
			barrier();
		}
}

static const struct test tests[] = {
	{"tagged_sizes", tagged_sizes, NULL},
	{"tagged_only", tagged_sizes, &tagged_only},
	{"order", order, NULL},
	{"order_untagged", order_untagged, NULL},
	{"order_of_both", order_of_both, NULL},
	{"untagged_and_parts", untagged_and_parts, NULL},
	{"cq_data", cq_data, NULL},
	{"truncation", truncation, NULL},
	{"unexpected", unexpected, NULL},
	{"stream", stream, NULL},
	{"to_oneself", to_oneself, NULL},
	{"delivery", delivery, NULL},
	{"match_level", match_level, NULL},
	{"forms", forms, NULL},
	{"levels", levels, NULL},
	{"levels_selective", levels, &selective},
};
RUN_PAIR(tests)
