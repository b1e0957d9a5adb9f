/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Completion queues, counters and event queues: formats, selection, sources, waiting.
 *
 * usage: cq LIBFABRIC [TEST...]
 */
#include "pair.h"

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
			EQUAL(e.err_data_size, 0);
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

static const struct test tests[] = {
	{"selective_completion", selective_completion, &selective},
	{"source", source, &with_source},
	{"formats", formats, NULL},
	{"waits", waits, NULL},
	{"error_entries", error_entries, NULL},
	{"entry_sizes", entry_sizes, NULL},
	{"many_at_once", many_at_once, NULL},
	{"two_queues", two_queues, NULL},
};
RUN_PAIR(tests)
