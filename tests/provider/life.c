/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What processes do to each other: fork, and death.
 *
 * usage: life LIBFABRIC [TEST...]
 */
#include "pair.h"

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

/* A child that is forked in the middle of traffic, as system() and Python do: it lives on for a while, touches nothing of
   ours and closes nothing, and its end closes nothing of the parent's. Another one opens objects of its own. */
static void fork_in_traffic(struct side *s)
{
	pid_t children[6];
	size_t n = 500000;
	fill(out, n, rank_here);
	for (int i = 0; i < 6; i++) {
		memset(in, 0, n);
		POST(s, fi_trecv(s->ep, in, n, NULL, s->other, i, 0, in));
		POST(s, fi_tsend(s->ep, out, n, NULL, s->other, i, out));
		fi_cq_read(s->cq, NULL, 0);
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0 && i % 3 == 0) {
			usleep(50000);
			exit(0); /* with all that runs at exit */
		}
		if (children[i] == 0 && i % 3 == 1)
			execl("/bin/sleep", "sleep", "0.05", (char *)NULL);
		if (children[i] == 0) {
			struct side own;
			open_side(&own, NULL);
			char name[64];
			size_t len = 64;
			EQUAL(fi_getname(&own.ep->fid, name, &len), 0);
			EQUAL(fi_av_insert(own.av, name, 1, &own.self, 0, NULL), 1);
			uint64_t v = 0, x = 5;
			POST(&own, fi_trecv(own.ep, &v, 8, NULL, own.self, 1, 0, &v));
			POST(&own, fi_tinject(own.ep, &x, 8, own.self, 1));
			done(&own);
			EQUAL(v, 5);
			close_side(&own);
			_exit(0);
		}
		done(s);
		done(s);
		filled(in, n, !rank_here);
	}
	for (int i = 0; i < 6; i++) {
		int status = -1;
		CHECK(waitpid(children[i], &status, 0) == children[i]);
		EQUAL(status, 0);
	}
	barrier();
	tagged_sizes(s);
}

/* In a child the parent's objects refuse what they cannot do, and harm nobody. */
static void calls_in_a_child(struct side *s)
{
	barrier();
	pid_t child = fork();
	if (child == 0) {
		struct fid_ep *ep;
		CHECK(fi_endpoint(s->domain, s->info, &ep, NULL) < 0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	EQUAL(status, 0);
	barrier();
	tagged_sizes(s);
}

/* The other side closes its endpoint in good order: what it sent arrives, what is sent to it then fails. */
static void leave(struct side *s)
{
	uint64_t v;
	if (rank_here) {
		for (uint64_t i = 0; i < 100; i++)
			POST(s, fi_tinject(s->ep, &i, 8, s->other, 1));
		moving = NULL;
		EQUAL(fi_close(&s->ep->fid), 0);
		s->ep = NULL;
		char c = 'c';
		tell(&c, 1);
		hear(&c, 1);
		return;
	}
	for (uint64_t i = 0; i < 100; i++) {
		POST(s, fi_trecv(s->ep, &v, 8, NULL, s->other, 1, 0, &v));
		done(s);
		EQUAL(v, i);
	}
	char c;
	moving = NULL;
	hear(&c, 1);
	double end = now() + 5;
	while (fi_tinject(s->ep, &v, 8, s->other, 1) != -FI_ECONNRESET)
		CHECK(now() < end);
	POST(s, fi_tinject(s->ep, &v, 8, s->self, 2));
	POST(s, fi_trecv(s->ep, &v, 8, NULL, s->self, 2, 0, &v));
	done(s);
	tell(&c, 1);
}

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

static const struct test tests[] = {
	{"fork", fork_in_between, NULL},
	{"fork_in_traffic", fork_in_traffic, NULL},
	{"calls_in_a_child", calls_in_a_child, NULL},
	{"leave", leave, NULL},
	{"death", death, NULL}, /* the last one */
};
RUN_PAIR(tests)
