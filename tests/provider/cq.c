/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Completion queues, counters and event queues: formats, selection, sources, waiting.
 *
 * usage: cq LIBFABRIC [TEST...]
 */
#include "pair.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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
	/* The other side may be ahead: two entries, the send's and that of the one receive, in either order. */
	void *first = done(s).op_context;
	CHECK(first == out || first == &v[3]);
	m.tag = 4;
	m.context = NULL;
	POST(s, fi_tsendmsg(s->ep, &m, 0));
	CHECK(done(s).op_context == (first == out ? (void *)&v[3] : out));
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

/* Who sent it: by the calls that tell, those that wait too, of what is received and of what is only looked at. */
static void source(struct side *s)
{
	static const size_t lens[] = {0, 8, 3000, 200000};
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
	/* Two entries at once, of two senders. */
	struct fi_cq_tagged_entry two[3];
	fi_addr_t sources[3] = {77, 77, 77};
	for (int k = 0; k < 2; k++)
		POST(s, fi_trecv(s->ep, in + 8 * k, 8, NULL, FI_ADDR_UNSPEC, 20 + k, 0, in + 8 * k));
	barrier();
	POST(s, fi_tinject(s->ep, out, 8, s->self, 20));
	POST(s, fi_tinject(s->ep, out, 8, s->other, 21));
	for (int got = 0; got < 2; got += r) {
		r = fi_cq_sreadfrom(s->cq, two + got, 3 - got, sources + got, NULL, 10000);
		CHECK(r > 0 && got + r <= 2);
	}
	for (int k = 0; k < 2; k++) {
		CHECK(two[k].tag == 20 || two[k].tag == 21);
		EQUAL(sources[k], two[k].tag == 20 ? s->self : s->other);
	}
	EQUAL(two[0].tag + two[1].tag, 41);
	EQUAL(sources[2], 77);
	/* Nobody sends: the time passes, and neither array is touched. */
	double start = now();
	EQUAL(fi_cq_sreadfrom(s->cq, two, 3, &sources[2], NULL, 50), -FI_EAGAIN);
	CHECK(now() - start > 0.045);
	EQUAL(sources[2], 77);
	barrier();
	/* It sleeps until the message comes. */
	if (rank_here) {
		usleep(100000);
		POST(s, fi_tinject(s->ep, out, 8, s->other, 30));
	} else {
		POST(s, fi_trecv(s->ep, in, 8, NULL, FI_ADDR_UNSPEC, 30, 0, in));
		from = 77;
		EQUAL(fi_cq_sreadfrom(s->cq, &e, 1, &from, NULL, 10000), 1);
		EQUAL(from, s->other);
		CHECK(e.op_context == in);
	}
	barrier();
	/* Looked at, by every protocol. */
	for (int tagged = 0; tagged < 2; tagged++)
		for (int i = 0; i < 4; i++) {
			struct fi_msg_tagged t = {.addr = FI_ADDR_UNSPEC, .tag = 40, .context = &e};
			struct fi_msg u = {.addr = FI_ADDR_UNSPEC, .context = &e};
			barrier();
			POST(s, tagged ? fi_tsend(s->ep, out, lens[i], NULL, s->other, 40, out) : fi_send(s->ep, out, lens[i], NULL, s->other, out));
			/* The send's own entry comes now, or with the receive. */
			bool sent = false, found = false;
			for (end = now() + SECONDS; !found;) {
				struct fi_cq_err_entry none;
				EQUAL(tagged ? fi_trecvmsg(s->ep, &t, FI_PEEK) : fi_recvmsg(s->ep, &u, FI_PEEK), 0);
				bool over = false;
				while (!over) {
					from = 77;
					r = fi_cq_readfrom(s->cq, &e, 1, &from);
					if (r == -FI_EAVAIL) {
						EQUAL(fi_cq_readerr(s->cq, &none, 0), 1);
						EQUAL(none.err, FI_ENOMSG);
						over = true;
					} else if (r == 1 && e.op_context == out) {
						sent = true;
					} else if (r == 1) {
						CHECK(e.op_context == &e);
						found = over = true;
					}
					CHECK(now() < end);
				}
			}
			EQUAL(from, s->other);
			EQUAL(e.len, lens[i]);
			EQUAL(e.flags, (tagged ? FI_TAGGED : FI_MSG) | FI_RECV);
			POST(s, tagged ? fi_trecv(s->ep, in, lens[i], NULL, s->other, 40, 0, in) : fi_recv(s->ep, in, lens[i], NULL, s->other, in));
			for (int left = sent ? 1 : 2; left > 0; left--) {
				void *context = done(s).op_context;
				CHECK(context == in || (context == out && !sent));
				sent |= context == out;
			}
			barrier();
		}
}

/* Each format is the beginning of the next: what it has is right, and nothing is written behind it. */
static void formats(struct side *s)
{
	(void)s;
	enum fi_cq_format all[] = {FI_CQ_FORMAT_UNSPEC, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED};
	size_t bytes[] = {8, 8, 24, 40, 48};
	enum { KINDS = 4 }; /* tagged and not, in line and long */
	static const size_t lens[KINDS] = {5, 7, 100000, 200000};
	const uint64_t data = 0xfeedfacecafebeefULL, tag = 0x8123456789abcdefULL;
	for (int i = 0; i < 5; i++) {
		struct wish w = {.format = all[i]};
		struct side t;
		open_side(&t, &w);
		if (all[i] == FI_CQ_FORMAT_UNSPEC) {
			/* The harness takes 0 for its own choice: ours is the shortest. */
			EQUAL(fi_close(&t.ep->fid), 0);
			EQUAL(fi_close(&t.cq->fid), 0);
			struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_UNSPEC};
			EQUAL(fi_cq_open(t.domain, &attr, &t.cq, NULL), 0);
			EQUAL(fi_endpoint(t.domain, t.info, &t.ep, NULL), 0);
			EQUAL(fi_ep_bind(t.ep, &t.av->fid, 0), 0);
			EQUAL(fi_ep_bind(t.ep, &t.cq->fid, FI_TRANSMIT | FI_RECV), 0);
			EQUAL(fi_enable(t.ep), 0);
		}
		meet(&t);
		for (int how = 0; how < KINDS; how++) {
			bool tagged = how % 2 == 0;
			size_t len = lens[how];
			unsigned char e[3 * 48];
			memset(e, 0xee, sizeof e);
			memset(in, 0, len);
			fill(out, len, i + how + rank_here);
			POST(&t, tagged ? fi_trecv(t.ep, in, len + 1, NULL, t.other, tag, 0, &in) : fi_recv(t.ep, in, len + 1, NULL, t.other, &in));
			moving = NULL;
			barrier();
			POST(&t, tagged ? fi_tsenddata(t.ep, out, len, NULL, data, t.other, tag, &out) : fi_senddata(t.ep, out, len, NULL, data, t.other, &out));
			double end = now() + SECONDS;
			ssize_t got = 0;
			while (got < 2) {
				ssize_t r = fi_cq_read(t.cq, e + got * bytes[i], 2 - got);
				if (r > 0)
					got += r;
				else
					EQUAL(r, -FI_EAGAIN);
				CHECK(now() < end);
			}
			unsigned seen = 0;
			for (int k = 0; k < 2; k++) {
				struct fi_cq_tagged_entry x;
				memset(&x, 0xee, sizeof x);
				memcpy(&x, e + k * bytes[i], bytes[i]);
				bool receive = x.op_context == &in;
				CHECK(receive || x.op_context == &out);
				seen |= 1 << receive;
				if (bytes[i] >= 24) {
					EQUAL(x.flags, (tagged ? FI_TAGGED : FI_MSG) | (receive ? FI_RECV | FI_REMOTE_CQ_DATA : FI_SEND));
					if (receive)
						EQUAL(x.len, len);
				}
				if (bytes[i] >= 40 && receive) {
					CHECK(x.buf == in);
					EQUAL(x.data, data);
				}
				if (bytes[i] >= 48 && receive)
					EQUAL(x.tag, tagged ? tag : 0);
			}
			EQUAL(seen, 3);
			for (size_t k = 2 * bytes[i]; k < sizeof e; k++)
				CHECK(e[k] == 0xee);
			filled(in, len, i + how + !rank_here);
			moving = &t;
			barrier();
		}
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

/* What an error entry says, member by member. */
static void expect_error(struct side *s, int error, void *context, uint64_t flags, size_t len, size_t olen, uint64_t tag, uint64_t data)
{
	struct fi_cq_err_entry e = failed(s, error);
	EQUAL(e.err, error);
	EQUAL(e.prov_errno, error);
	CHECK(e.op_context == context);
	EQUAL(e.flags, flags);
	EQUAL(e.len, len);
	EQUAL(e.olen, olen);
	EQUAL(e.tag, tag);
	EQUAL(e.data, data);
	EQUAL(e.err_data_size, 0);
	const char *text = fi_cq_strerror(s->cq, e.prov_errno, e.err_data, NULL, 0);
	CHECK(text && *text);
	char cut[8];
	text = fi_cq_strerror(s->cq, e.prov_errno, e.err_data, cut, sizeof cut);
	CHECK(text && strlen(cut) == sizeof cut - 1);
}

static void error_entries(struct side *s)
{
	static const size_t lens[] = {8, 3000, 200000};
	char got[5];
	for (int tagged = 0; tagged < 2; tagged++)
		for (int i = 0; i < 3; i++) {
			uint64_t kind = (tagged ? FI_TAGGED : FI_MSG) | FI_RECV, tag = tagged ? 0xdeadbeefcafef00dULL : 0;
			POST(s, tagged ? fi_trecv(s->ep, got, 5, NULL, s->other, tag ^ 0xff, 0xff, got)
				       : fi_recv(s->ep, got, 5, NULL, s->other, got));
			barrier();
			fill(out, lens[i], rank_here);
			for (int turn = 0; turn < 2; turn++) {
				if (turn == rank_here) {
					/* The sender knows of no truncation. */
					POST(s, tagged ? fi_tsenddata(s->ep, out, lens[i], NULL, 77 + i, s->other, tag, out)
						       : fi_senddata(s->ep, out, lens[i], NULL, 77 + i, s->other, out));
					CHECK(done(s).op_context == out);
				} else {
					expect_error(s, FI_ETRUNC, got, kind | FI_REMOTE_CQ_DATA, 5, lens[i] - 5, tag, 77 + i);
				}
				barrier();
			}
			filled(got, 5, !rank_here);
			POST(s, tagged ? fi_trecv(s->ep, got, 5, NULL, s->other, tag, 0, got)
				       : fi_recv(s->ep, got, 5, NULL, s->other, got));
			EQUAL(fi_cancel(&s->ep->fid, got), 0);
			expect_error(s, FI_ECANCELED, got, kind, 0, 0, tag, 0);
			struct fi_msg_tagged t = {.addr = s->other, .tag = tag, .context = got};
			struct fi_msg u = {.addr = s->other, .context = got};
			EQUAL(tagged ? fi_trecvmsg(s->ep, &t, FI_PEEK) : fi_recvmsg(s->ep, &u, FI_PEEK), 0);
			expect_error(s, FI_ENOMSG, got, kind, 0, 0, tag, 0);
			barrier();
		}
	/* One-sided. */
	uint64_t one = 1;
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 0, 4711, in));
	expect_error(s, FI_ENOKEY, in, FI_RMA | FI_READ, 8, 0, 0, 0);
	POST(s, fi_write(s->ep, in, 8, NULL, s->other, 0, 4711, in));
	expect_error(s, FI_ENOKEY, in, FI_RMA | FI_WRITE, 8, 0, 0, 0);
	POST(s, fi_atomic(s->ep, &one, 1, NULL, s->other, 0, 4711, FI_UINT64, FI_SUM, in));
	expect_error(s, FI_ENOKEY, in, FI_ATOMIC | FI_WRITE, 8, 0, 0, 0);
	POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, in, NULL, s->other, 0, 4711, FI_UINT64, FI_SUM, in));
	expect_error(s, FI_ENOKEY, in, FI_ATOMIC | FI_READ, 8, 0, 0, 0);
	/* Errors count as such only. */
	EQUAL(fi_cntr_read(s->cntr), 0);
	EQUAL(fi_cntr_readerr(s->cntr), 4);
	/* A key that is there, but not for this: no access, or not so far. Long ones end as short ones do. */
	for (int far = 0; far < 2; far++) {
		uint64_t at = far ? 4096 : 0;
		expose(s, 4711, 4096, far ? FI_REMOTE_READ | FI_REMOTE_WRITE : FI_SEND);
		for (int i = 0; i < 3; i++) {
			size_t n = lens[i];
			POST(s, fi_read(s->ep, in, n, NULL, s->other, at, 4711, in));
			expect_error(s, FI_EACCES, in, FI_RMA | FI_READ, n, 0, 0, 0);
			POST(s, fi_write(s->ep, out, n, NULL, s->other, at, 4711, in));
			expect_error(s, FI_EACCES, in, FI_RMA | FI_WRITE, n, 0, 0, 0);
		}
		POST(s, fi_writedata(s->ep, out, 8, NULL, 5, s->other, at, 4711, in));
		expect_error(s, FI_EACCES, in, FI_RMA | FI_WRITE, 8, 0, 0, 0);
		POST(s, fi_atomic(s->ep, &one, 1, NULL, s->other, at, 4711, FI_UINT64, FI_SUM, in));
		expect_error(s, FI_EACCES, in, FI_ATOMIC | FI_WRITE, 8, 0, 0, 0);
		POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, in, NULL, s->other, at, 4711, FI_UINT64, FI_SUM, in));
		expect_error(s, FI_EACCES, in, FI_ATOMIC | FI_READ, 8, 0, 0, 0);
		POST(s, fi_compare_atomic(s->ep, &one, 1, NULL, &one, NULL, in, NULL, s->other, at, 4711, FI_UINT64, FI_CSWAP, in));
		expect_error(s, FI_EACCES, in, FI_ATOMIC | FI_READ, 8, 0, 0, 0);
		silent(s); /* no data came with a write that was refused */
		unexpose();
	}
	EQUAL(fi_cntr_read(s->cntr), 0);
	EQUAL(fi_cntr_readerr(s->cntr), 4 + 2 * 10);
	/* What no datatype has is refused when it is tried; a target that lacks an operation would be one of another version. */
	EQUAL(fi_atomic(s->ep, &one, 1, NULL, s->other, 0, 4711, FI_DOUBLE, FI_BXOR, in), -FI_EOPNOTSUPP);
	static const int errors[] = {FI_ETRUNC, FI_ECANCELED, FI_ENOMSG, FI_ECONNRESET, FI_ENOKEY, FI_EACCES, FI_EOPNOTSUPP, FI_EIO};
	const char *unknown = fi_cq_strerror(s->cq, 4711, NULL, NULL, 0);
	CHECK(unknown && *unknown);
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		CHECK(strcmp(fi_cq_strerror(s->cq, errors[i], NULL, NULL, 0), unknown) != 0);
	/* An injected one that fails has no context, but its error is told. */
	POST(s, fi_inject_write(s->ep, out, 8, s->other, 0, 4711));
	expect_error(s, FI_ENOKEY, NULL, FI_RMA | FI_WRITE, 8, 0, 0, 0);
	/* A success behind an error waits until the error was taken. */
	POST(s, fi_trecv(s->ep, got, 5, NULL, s->self, 1, 0, got));
	POST(s, fi_trecv(s->ep, in, 5, NULL, s->self, 2, 0, in));
	POST(s, fi_tinject(s->ep, out, 6, s->self, 1));
	POST(s, fi_tinject(s->ep, out, 5, s->self, 2));
	failed(s, FI_ETRUNC);
	CHECK(done(s).op_context == in);
	struct fi_cq_err_entry none;
	EQUAL(fi_cq_readerr(s->cq, &none, 0), -FI_EAGAIN);
	barrier();
}

/* An error entry as long as its caller's version has it, with a buffer for further data or without. */
static void entry_sizes(struct side *s)
{
	(void)s;
	uint32_t apis[] = {FI_VERSION(1, 3), FI_VERSION(1, 5), FI_VERSION(1, 17), FI_VERSION(1, 20), FI_VERSION(2, 5)};
	for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
		if (apis[i] > lf.version())
			break;
		struct wish w = {.api = apis[i], .caps = FI_TAGGED | FI_MSG | FI_RMA | FI_SOURCE | FI_DIRECTED_RECV};
		struct side t;
		open_side(&t, &w);
		meet(&t);
		moving = &t;
		barrier();
		for (int own = 0; own < 2; own++) {
			unsigned char at[160];
			char data[32];
			struct fi_cq_err_entry e; /* of 1.17: 80 bytes */
			fi_addr_t source;
			POST(&t, fi_trecv(t.ep, in, 1, NULL, t.other, 1, 0, in));
			POST(&t, fi_tinject(t.ep, out, 2, t.other, 1));
			while (fi_cq_read(t.cq, at, 1) != -FI_EAVAIL)
				;
			memset(at, 0xee, sizeof at);
			memset(&e, 0xee, 80);
			e.err_data = data;
			e.err_data_size = own ? sizeof data : 0;
			memcpy(at, &e, 80);
			EQUAL(fi_cq_readerr(t.cq, (struct fi_cq_err_entry *)at, 0), 1);
			memcpy(&e, at, 80);
			EQUAL(e.err, FI_ETRUNC);
			/* Before 1.5 the entry ends in front of it. */
			EQUAL(e.err_data_size, own && apis[i] < FI_VERSION(1, 5) ? sizeof data : 0);
			/* The buffer stays the caller's where there was one, from 1.5 on. */
			CHECK(e.err_data == (own && apis[i] >= FI_VERSION(1, 5) ? data : NULL));
			memcpy(&source, at + 80, 8);
			if (apis[i] < FI_VERSION(1, 20))
				CHECK(source == 0xeeeeeeeeeeeeeeeeULL);
			else
				CHECK(source == t.other);
			for (size_t k = 88; k < sizeof at; k++)
				CHECK(at[k] == 0xee);
			barrier();
		}
		moving = NULL;
		close_side(&t);
	}
}

/* Any number of entries at once, never 0; more outstanding than any size; with sources. */
static void many_at_once(struct side *s)
{
	enum { N = 5000 };
	static char room[N];
	static struct fi_cq_tagged_entry e[N];
	static fi_addr_t from[N];
	for (int i = 0; i < N; i++)
		POST(s, fi_trecv(s->ep, &room[i], 1, NULL, s->other, i, 0, &room[i]));
	EQUAL(fi_cq_read(s->cq, e, 0), -FI_EAGAIN);
	barrier();
	for (int i = 0; i < N; i++)
		POST(s, fi_tsend(s->ep, out, 1, NULL, s->other, i, NULL));
	int sizes_[] = {1, 8, 100, N}, sent = 0, got = 0;
	double end = now() + SECONDS;
	for (int k = 0; sent + got < 2 * N; k++) {
		ssize_t r = fi_cq_readfrom(s->cq, e, sizes_[k % 4], from);
		CHECK(now() < end);
		if (r == -FI_EAGAIN)
			continue;
		CHECK(r > 0 && r <= sizes_[k % 4]);
		for (int i = 0; i < r; i++) {
			if (e[i].flags & FI_SEND) {
				CHECK(e[i].op_context == NULL);
				sent++;
				continue;
			}
			/* In the order of the sends, since each waits for its own tag. */
			CHECK(e[i].op_context == &room[got]);
			EQUAL(e[i].tag, got);
			CHECK(from[i] == s->other);
			got++;
		}
	}
	EQUAL(sent, N);
	silent(s);
	barrier();
}

/* One queue for each direction: reading either moves everything. */
static void two_queues(struct side *s)
{
	struct fid_ep *ep;
	struct fid_cq *tx, *rx;
	struct fid_cntr *sends, *receives;
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 100};
	struct fi_cntr_attr ca = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
	char names[2][64];
	size_t len = 64;
	fi_addr_t a;
	EQUAL(fi_endpoint(s->domain, s->info, &ep, NULL), 0);
	EQUAL(fi_cq_open(s->domain, &attr, &tx, NULL), 0);
	EQUAL(fi_cq_open(s->domain, &attr, &rx, NULL), 0);
	EQUAL(fi_cntr_open(s->domain, &ca, &sends, NULL), 0);
	EQUAL(fi_cntr_open(s->domain, &ca, &receives, NULL), 0);
	EQUAL(fi_enable(ep), -FI_ENOAV);
	EQUAL(fi_ep_bind(ep, &s->av->fid, 0), 0);
	EQUAL(fi_enable(ep), -FI_ENOCQ);
	EQUAL(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT), 0);
	EQUAL(fi_ep_bind(ep, &rx->fid, FI_RECV), 0);
	EQUAL(fi_ep_bind(ep, &sends->fid, FI_SEND), 0);
	EQUAL(fi_ep_bind(ep, &receives->fid, FI_RECV), 0);
	CHECK(fi_ep_bind(ep, &receives->fid, FI_REMOTE_WRITE) < 0);
	EQUAL(fi_enable(ep), 0);
	EQUAL(fi_getname(&ep->fid, names[0], &len), 0);
	tell(names[0], 64);
	hear(names[1], 64);
	EQUAL(fi_av_insert(s->av, names[1], 1, &a, 0, NULL), 1);
	/* Rank 0 looks at what it sent only, and rank 1's answer still comes in. */
	struct fi_cq_tagged_entry e;
	double end = now() + SECONDS;
	size_t n = 500000;
	fill(out, n, rank_here);
	POST(s, fi_trecv(ep, in, n, NULL, a, 1, 0, in));
	POST(s, fi_tsend(ep, out, n, NULL, a, 1, out));
	POST(s, fi_tinject(ep, out, 8, a, 2));
	if (rank_here == 0) {
		while (fi_cntr_read(sends) < 2)
			CHECK(now() < end);
		while (fi_cntr_read(receives) < 1)
			CHECK(now() < end);
		EQUAL(fi_cq_read(tx, &e, 1), 1);
		EQUAL(fi_cq_read(rx, &e, 1), 1);
	} else {
		while (fi_cq_read(tx, &e, 1) != 1)
			CHECK(now() < end);
		CHECK(e.op_context == out);
		while (fi_cq_read(rx, &e, 1) != 1)
			CHECK(now() < end);
	}
	CHECK(e.op_context == in);
	filled(in, n, !rank_here);
	/* Inject is counted, and has no entry. */
	while (fi_cntr_read(sends) < 2)
		CHECK(now() < end);
	EQUAL(fi_cntr_read(sends), 2);
	EQUAL(fi_cq_read(tx, &e, 1), -FI_EAGAIN);
	EQUAL(fi_cntr_read(receives), 1);
	barrier();
	EQUAL(fi_close(&ep->fid), 0);
	EQUAL(fi_close(&tx->fid), 0);
	EQUAL(fi_close(&rx->fid), 0);
	EQUAL(fi_close(&sends->fid), 0);
	EQUAL(fi_close(&receives->fid), 0);
	barrier();
}

/* A side without a queue or a counter takes no posts: nobody could be told what became of them. */
static void unbound(struct side *s)
{
	enum { RECEIVES, SENDS, COUNTS, WRITES };
	uint64_t v = 7, w = 0;
	struct iovec iov = part(&v, 8), to = part(&w, 8);
	struct fi_rma_iov place = {.len = 8, .key = 1};
	struct fi_ioc ioc = {.addr = &v, .count = 1}, result = {.addr = &w, .count = 1};
	struct fi_rma_ioc element = {.count = 1, .key = 1};
	for (int how = 0; how <= WRITES; how++) {
		struct fid_ep *ep;
		struct fid_cntr *cntr;
		struct fi_cntr_attr ca = {.events = FI_CNTR_EVENTS_COMP};
		char mine[64], theirs[64];
		size_t len = 64;
		fi_addr_t a;
		EQUAL(fi_cntr_open(s->domain, &ca, &cntr, NULL), 0);
		EQUAL(fi_endpoint(s->domain, s->info, &ep, NULL), 0);
		EQUAL(fi_ep_bind(ep, &s->av->fid, 0), 0);
		EQUAL(fi_ep_bind(ep, &s->cq->fid, how == SENDS ? FI_TRANSMIT : FI_RECV), 0);
		if (how == COUNTS)
			EQUAL(fi_ep_bind(ep, &cntr->fid, FI_SEND), 0);
		if (how == WRITES)
			EQUAL(fi_ep_bind(ep, &cntr->fid, FI_WRITE), 0);
		EQUAL(fi_enable(ep), 0);
		EQUAL(fi_getname(&ep->fid, mine, &len), 0);
		tell(mine, 64);
		hear(theirs, 64);
		EQUAL(fi_av_insert(s->av, theirs, 1, &a, 0, NULL), 1);
		struct fi_msg_tagged t = {.msg_iov = how == SENDS ? &to : &iov, .iov_count = 1, .addr = a, .tag = 1, .context = &w};
		struct fi_msg u = {.msg_iov = t.msg_iov, .iov_count = 1, .addr = a, .context = &w};
		struct fi_msg_rma r = {.msg_iov = &iov, .iov_count = 1, .addr = a, .rma_iov = &place, .rma_iov_count = 1};
		struct fi_msg_atomic m = {.msg_iov = &ioc, .iov_count = 1, .addr = a, .rma_iov = &element, .rma_iov_count = 1,
					  .datatype = FI_UINT64, .op = FI_SUM};
		if (how == SENDS) {
			EQUAL(fi_trecv(ep, &w, 8, NULL, a, 1, 0, &w), -FI_ENOCQ);
			EQUAL(fi_trecvv(ep, &to, NULL, 1, a, 1, 0, &w), -FI_ENOCQ);
			EQUAL(fi_trecvmsg(ep, &t, 0), -FI_ENOCQ);
			EQUAL(fi_trecvmsg(ep, &t, FI_PEEK), -FI_ENOCQ);
			EQUAL(fi_recv(ep, &w, 8, NULL, a, &w), -FI_ENOCQ);
			EQUAL(fi_recvv(ep, &to, NULL, 1, a, &w), -FI_ENOCQ);
			EQUAL(fi_recvmsg(ep, &u, FI_MULTI_RECV), -FI_ENOCQ);
		} else if (how == RECEIVES) {
			EQUAL(fi_tsend(ep, &v, 8, NULL, a, 1, &v), -FI_ENOCQ);
			EQUAL(fi_tsendv(ep, &iov, NULL, 1, a, 1, &v), -FI_ENOCQ);
			EQUAL(fi_tsendmsg(ep, &t, 0), -FI_ENOCQ);
			EQUAL(fi_tinject(ep, &v, 8, a, 1), -FI_ENOCQ);
			EQUAL(fi_send(ep, &v, 8, NULL, a, &v), -FI_ENOCQ);
			EQUAL(fi_inject(ep, &v, 8, a), -FI_ENOCQ);
			EQUAL(fi_write(ep, &v, 8, NULL, a, 0, 1, &v), -FI_ENOCQ);
			EQUAL(fi_writemsg(ep, &r, 0), -FI_ENOCQ);
			EQUAL(fi_inject_write(ep, &v, 8, a, 0, 1), -FI_ENOCQ);
			EQUAL(fi_read(ep, &w, 8, NULL, a, 0, 1, &v), -FI_ENOCQ);
			EQUAL(fi_readmsg(ep, &r, 0), -FI_ENOCQ);
			EQUAL(fi_atomic(ep, &v, 1, NULL, a, 0, 1, FI_UINT64, FI_SUM, &v), -FI_ENOCQ);
			EQUAL(fi_atomicmsg(ep, &m, 0), -FI_ENOCQ);
			EQUAL(fi_fetch_atomicmsg(ep, &m, &result, NULL, 1, 0), -FI_ENOCQ);
		} else {
			/* A counter for one kind of operation tells nothing of the others. */
			EQUAL(fi_read(ep, &w, 8, NULL, a, 0, 1, &v), -FI_ENOCQ);
			EQUAL(fi_fetch_atomicmsg(ep, &m, &result, NULL, 1, 0), -FI_ENOCQ);
			if (how == COUNTS) {
				EQUAL(fi_write(ep, &v, 8, NULL, a, 0, 1, &v), -FI_ENOCQ);
				EQUAL(fi_inject_write(ep, &v, 8, a, 0, 1), -FI_ENOCQ);
				EQUAL(fi_atomicmsg(ep, &m, 0), -FI_ENOCQ);
			} else {
				EQUAL(fi_tsend(ep, &v, 8, NULL, a, 1, &v), -FI_ENOCQ);
				EQUAL(fi_inject(ep, &v, 8, a), -FI_ENOCQ);
			}
		}
		/* The side that is bound works, with the other process's usual endpoint. */
		moving = s;
		barrier();
		if (how == SENDS) {
			POST(s, fi_trecv(s->ep, &w, 8, NULL, FI_ADDR_UNSPEC, 5, 0, &w));
			POST(s, fi_tsend(ep, &v, 8, NULL, s->other, 5, &v));
			for (int k = 0; k < 2; k++)
				done(s);
		} else {
			POST(s, fi_trecv(ep, &w, 8, NULL, FI_ADDR_UNSPEC, 5, 0, &w));
			if (how == COUNTS)
				POST(s, fi_tsend(ep, &v, 8, NULL, a, 5, &v));
			else
				POST(s, fi_tinject(s->ep, &v, 8, a, 5));
			CHECK(done(s).op_context == &w);
			silent(s);
			if (how == COUNTS)
				EQUAL(fi_cntr_read(cntr), 1);
		}
		EQUAL(w, 7);
		w = 0;
		barrier();
		EQUAL(fi_close(&ep->fid), 0);
		EQUAL(fi_close(&cntr->fid), 0);
		barrier();
	}
}

static struct wish safe = {.threading = FI_THREAD_SAFE};
static struct wish selective_but_asking = {.bind_flags = FI_SELECTIVE_COMPLETION, .tx_op_flags = FI_COMPLETION, .rx_op_flags = FI_COMPLETION};

/* Calls that take a structure go by their own flags: the endpoint's FI_COMPLETION is for the others. */
static void own_flags(struct side *s)
{
	enum { N = 8 };
	uint64_t v[N] = {0}, x = 9, old = 0;
	struct iovec from = part(&x, 8), to[N];
	struct fi_rma_iov place = {.addr = 64, .len = 8, .key = 6};
	struct fi_ioc ioc = {.addr = &x, .count = 1}, result = {.addr = &old, .count = 1};
	struct fi_rma_ioc element = {.addr = 128, .count = 1, .key = 6};
	struct fi_msg_rma r = {.msg_iov = &from, .iov_count = 1, .addr = s->other, .rma_iov = &place, .rma_iov_count = 1};
	struct fi_msg_atomic m = {.msg_iov = &ioc, .iov_count = 1, .addr = s->other, .rma_iov = &element, .rma_iov_count = 1,
				  .datatype = FI_UINT64, .op = FI_SUM};
	for (int k = 0; k < N; k++)
		to[k] = part(&v[k], 8);
	expose(s, 6, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	/* Receives 0 and 1 are silent, 2 and 3 are not; of the sends the even ones are. */
	for (int k = 0; k < 4; k++) {
		struct fi_msg_tagged t = {.msg_iov = &to[k], .iov_count = 1, .addr = s->other, .tag = k, .context = &v[k]};
		struct fi_msg u = {.msg_iov = &to[4 + k], .iov_count = 1, .addr = s->other, .context = &v[4 + k]};
		POST(s, k < 3 ? fi_trecvmsg(s->ep, &t, k < 2 ? 0 : FI_COMPLETION) : fi_trecv(s->ep, &v[k], 8, NULL, s->other, k, 0, &v[k]));
		POST(s, k < 3 ? fi_recvmsg(s->ep, &u, k < 2 ? 0 : FI_COMPLETION) : fi_recv(s->ep, &v[4 + k], 8, NULL, s->other, &v[4 + k]));
	}
	barrier();
	for (int k = 0; k < 4; k++) {
		struct fi_msg_tagged t = {.msg_iov = &from, .iov_count = 1, .addr = s->other, .tag = k, .context = &from};
		struct fi_msg u = {.msg_iov = &from, .iov_count = 1, .addr = s->other, .context = &from};
		POST(s, k < 3 ? fi_tsendmsg(s->ep, &t, k % 2 ? FI_COMPLETION : 0) : fi_tsend(s->ep, &x, 8, NULL, s->other, k, &from));
		POST(s, k < 3 ? fi_sendmsg(s->ep, &u, k % 2 ? FI_COMPLETION : 0) : fi_send(s->ep, &x, 8, NULL, s->other, &from));
	}
	int sent = 0, received = 0;
	while (sent + received < 8) {
		void *context = done(s).op_context;
		if (context == &from)
			sent++;
		else if (context == &v[2] || context == &v[3] || context == &v[6] || context == &v[7])
			received++;
		else
			FAIL("an entry that nobody asked for");
	}
	EQUAL(sent, 4);
	silent(s);
	for (int k = 0; k < N; k++)
		EQUAL(v[k], 9);
	/* One-sided ones as MPICH posts them: no flags, no context, counted. */
	uint64_t count = 0;
	POST(s, fi_writemsg(s->ep, &r, 0));
	counted(s, count += 1);
	POST(s, fi_atomicmsg(s->ep, &m, 0));
	counted(s, count += 1);
	POST(s, fi_fetch_atomicmsg(s->ep, &m, &result, NULL, 1, 0));
	counted(s, count += 1);
	EQUAL(old, 9);
	m.op = FI_CSWAP;
	uint64_t is = 18;
	struct fi_ioc compare = {.addr = &is, .count = 1};
	POST(s, fi_compare_atomicmsg(s->ep, &m, &compare, NULL, 1, &result, NULL, 1, 0));
	counted(s, count += 1);
	EQUAL(old, 18);
	from = part(&v[0], 8);
	v[0] = 0;
	POST(s, fi_readmsg(s->ep, &r, 0));
	counted(s, count += 1);
	EQUAL(v[0], 9);
	silent(s);
	/* With flags, or by a call without a structure, they have entries. */
	m.op = FI_SUM;
	m.context = &m;
	POST(s, fi_atomicmsg(s->ep, &m, FI_COMPLETION));
	CHECK(done(s).op_context == &m);
	POST(s, fi_atomic(s->ep, &x, 1, NULL, s->other, 128, 6, FI_UINT64, FI_SUM, &x));
	CHECK(done(s).op_context == &x);
	POST(s, fi_write(s->ep, &x, 8, NULL, s->other, 64, 6, &x));
	CHECK(done(s).op_context == &x);
	r.context = &r;
	POST(s, fi_readmsg(s->ep, &r, FI_COMPLETION));
	CHECK(done(s).op_context == &r);
	silent(s);
	barrier();
	EQUAL(*(uint64_t *)(exposed + 64), 9);
	EQUAL(*(uint64_t *)(exposed + 128), 27);
	unexpose();
}

static struct side *reading;
static volatile bool has_read;

/* The system ends this thread at once if it calls it for anything but to end. */
static void *read_without_system(void *arg)
{
	struct fi_cq_tagged_entry e;
	(void)arg;
	bool empty = true;
	/* What a thread makes when it needs it first. */
	void *volatile made = malloc(1);
	free(made);
	for (int i = 0; i < 20; i++)
		EQUAL(fi_cq_read(reading->cq, &e, 1), -FI_EAGAIN);
	fi_cntr_read(reading->cntr);
	/* Not the strict mode, which takes away the processor's clock as well. */
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
	};
	struct sock_fprog filter = {.len = sizeof steps / sizeof *steps, .filter = steps};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0) {
		for (int i = 0; i < 150; i++) {
			empty = empty && fi_cq_read(reading->cq, &e, 1) == -FI_EAGAIN;
			if (i < 20)
				empty = empty && fi_cntr_read(reading->cntr) == 0;
		}
		has_read = empty;
		syscall(SYS_exit, 0);
	}
	return (void *)(intptr_t)errno;
}

/* Reads that find nothing make no system call, as long as there are not so many that others are let in. */
static void empty_reads(struct side *s)
{
	reading = s;
	for (int i = 0; i < 8; i++) {
		pthread_t t;
		void *cannot = NULL;
		POST(s, fi_trecv(s->ep, in, 8, NULL, s->other, i, 0, in));
		moving = NULL;
		barrier();
		/* Something comes, so that empty reads are counted anew. */
		POST(s, fi_tinject(s->ep, out, 8, s->other, i));
		done(s);
		has_read = false;
		CHECK(pthread_create(&t, NULL, read_without_system, NULL) == 0);
		CHECK(pthread_join(t, &cannot) == 0);
		if (cannot) {
			/* So says a kernel that was built without it; nothing else is a reason. */
			int error = (int)(intptr_t)cannot;
			if (error != EINVAL && error != ENOSYS)
				FAIL("seccomp: %s", strerror(error));
			if (rank_here == 0)
				printf("skipped: provider/cq empty_reads: the kernel has no seccomp\n");
			moving = s;
			barrier();
			return;
		}
		if (!has_read)
			FAIL("an empty read called the system");
		moving = s;
		barrier();
	}
}

/* An error entry of a caller of 1.20, which these headers do not have. */
struct long_entry {
	struct fi_cq_err_entry entry;
	fi_addr_t source;
};

/* The other process is killed: what is under way with it ends with entries that name it. */
static void dead_peer(struct side *s)
{
	enum { TSEND, SEND, READ, WRITE, ATOMIC, FETCH, COMPARE, TRECV, RECV, MULTI, KINDS };
	static const uint64_t flags[KINDS] = {FI_TAGGED | FI_SEND, FI_MSG | FI_SEND, FI_RMA | FI_READ, FI_RMA | FI_WRITE, FI_ATOMIC | FI_WRITE,
					      FI_ATOMIC | FI_READ, FI_ATOMIC | FI_READ, FI_TAGGED | FI_RECV, FI_MSG | FI_RECV,
					      FI_MSG | FI_RECV | FI_MULTI_RECV};
	enum { LEN = 1 << 20 };
	static const size_t lens[KINDS] = {LEN, LEN, 0, LEN, 8}; /* nothing was read or fetched */
	static const uint32_t apis[] = {FI_VERSION(1, 17), FI_VERSION(1, 20)};
	static char at[KINDS];
	static uint64_t old[2];
	static char room[KINDS][8];
	uint64_t one = 1;
	struct side t[2];
	int sides = lf.version() >= apis[1] ? 2 : 1;
	dies = true;
	for (int k = 0; k < sides; k++) {
		struct wish w = {.api = apis[k]};
		open_side(&t[k], &w);
		meet(&t[k]);
	}
	moving = NULL; /* or it would answer while it waits */
	barrier();
	if (rank_here) {
		barrier();
		raise(SIGKILL);
	}
	for (int k = 0; k < sides; k++) {
		struct side *u = &t[k];
		struct iovec iov = part(room[MULTI], 8);
		struct fi_msg multi = {.msg_iov = &iov, .iov_count = 1, .addr = u->other, .context = &at[MULTI]};
		POST(u, fi_tsend(u->ep, out, LEN, NULL, u->other, 1, &at[TSEND]));
		POST(u, fi_send(u->ep, out, LEN, NULL, u->other, &at[SEND]));
		POST(u, fi_read(u->ep, room[READ], 8, NULL, u->other, 0, 1, &at[READ]));
		POST(u, fi_write(u->ep, out, LEN, NULL, u->other, 0, 1, &at[WRITE]));
		POST(u, fi_atomic(u->ep, &one, 1, NULL, u->other, 0, 1, FI_UINT64, FI_SUM, &at[ATOMIC]));
		POST(u, fi_fetch_atomic(u->ep, &one, 1, NULL, &old[0], NULL, u->other, 0, 1, FI_UINT64, FI_SUM, &at[FETCH]));
		POST(u, fi_compare_atomic(u->ep, &one, 1, NULL, &one, NULL, &old[1], NULL, u->other, 0, 1, FI_UINT64, FI_CSWAP, &at[COMPARE]));
		POST(u, fi_trecv(u->ep, room[TRECV], 8, NULL, u->other, 7, 0, &at[TRECV]));
		POST(u, fi_recv(u->ep, room[RECV], 8, NULL, u->other, &at[RECV]));
		POST(u, fi_recvmsg(u->ep, &multi, FI_MULTI_RECV));
	}
	barrier();
	for (int k = 0; k < sides; k++) {
		double end = now() + SECONDS;
		unsigned seen = 0;
		while (seen != (1u << KINDS) - 1) {
			struct long_entry e;
			struct fi_cq_tagged_entry none;
			memset(&e, 0xee, sizeof e);
			e.entry.err_data_size = 0;
			ssize_t r = fi_cq_readerr(t[k].cq, &e.entry, 0);
			if (r == -FI_EAGAIN) {
				r = fi_cq_read(t[k].cq, &none, 1);
				CHECK(r == -FI_EAGAIN || r == -FI_EAVAIL);
				if (now() > end)
					FAIL("only %x of %x came", seen, (1u << KINDS) - 1);
				continue;
			}
			EQUAL(r, 1);
			long kind = (char *)e.entry.op_context - at;
			CHECK(kind >= 0 && kind < KINDS && !(seen >> kind & 1));
			seen |= 1u << kind;
			if (e.entry.err != FI_ECONNRESET || e.entry.prov_errno != FI_ECONNRESET || e.entry.flags != flags[kind] ||
			    e.entry.len != lens[kind] || e.entry.olen || e.entry.data || e.entry.err_data || e.entry.err_data_size ||
			    e.entry.tag != (kind == TRECV ? 7 : 0))
				FAIL("kind %ld: error %d (%d), flags %llx, %zu bytes, %zu cut off, tag %llx", kind, e.entry.err, e.entry.prov_errno,
				     (unsigned long long)e.entry.flags, e.entry.len, e.entry.olen, (unsigned long long)e.entry.tag);
			if (e.source != (k == 0 ? 0xeeeeeeeeeeeeeeeeULL : t[k].other))
				FAIL("kind %ld: the peer is %llx", kind, (unsigned long long)e.source);
		}
		silent(&t[k]);
		/* What is posted now fails at once, or soon. */
		EQUAL(fi_tinject(t[k].ep, out, 8, t[k].other, 1), -FI_ECONNRESET);
		EQUAL(fi_read(t[k].ep, in, 8, NULL, t[k].other, 0, 1, in), -FI_ECONNRESET);
		EQUAL(fi_cntr_readerr(t[k].cntr), 5);
		EQUAL(fi_cntr_read(t[k].cntr), 0);
		close_side(&t[k]);
	}
	close_side(s);
}

static const struct test tests[] = {
	{"selective_completion", selective_completion, &selective},
	{"source", source, &with_source},
	{"formats", formats, NULL},
	{"waits", waits, NULL},
	{"error_entries", error_entries, NULL},
	{"entry_sizes", entry_sizes, NULL},
	{"many_at_once", many_at_once, NULL},
	{"two_queues", two_queues, NULL},
	{"unbound", unbound, NULL},
	{"own_flags", own_flags, &selective_but_asking},
	{"empty_reads", empty_reads, NULL},
	{"empty_reads_safe", empty_reads, &safe},
	{"dead_peer", dead_peer, NULL}, /* the last one */
};
RUN_PAIR(tests)
