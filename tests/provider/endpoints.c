/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Several endpoints, several threads, and the end of an endpoint.
 *
 * usage: endpoints LIBFABRIC [TEST...]
 */
#include "pair.h"

static struct wish safe = {.threading = FI_THREAD_SAFE};

struct worker {
	struct side *s;
	int number;
	char *memory; /* outlives the thread: its operations end after it */
};

static uint64_t received;
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;

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
		w[i] = (struct worker){s, i, NULL};
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

/* One of two endpoints of a domain is closed while the other process goes on reading through it. */
static void close_beside_another(struct side *s)
{
	enum { BYTES = 64 << 10, KEY = 7, MOST = 1000 };
	char name[64];
	size_t len = 64;
	if (rank_here == 0) {
		struct fid_ep *ep;
		EQUAL(fi_endpoint(s->domain, s->info, &ep, NULL), 0);
		EQUAL(fi_ep_bind(ep, &s->av->fid, 0), 0);
		EQUAL(fi_ep_bind(ep, &s->cq->fid, FI_TRANSMIT | FI_RECV), 0);
		EQUAL(fi_enable(ep), 0);
		EQUAL(fi_getname(&ep->fid, name, &len), 0);
		expose(s, KEY, BYTES, FI_REMOTE_READ);
		tell(name, 64);
		barrier();
		double start = now();
		EQUAL(fi_close(&ep->fid), 0);
		CHECK(now() - start < 2);
		unexpose();
		return;
	}
	fi_addr_t a;
	bool told = false, gone = false;
	double end = now() + SECONDS;
	barrier();
	hear(name, 64);
	EQUAL(fi_av_insert(s->av, name, 1, &a, 0, NULL), 1);
	for (int under_way = 0; !gone || under_way > 0;) {
		CHECK(now() < end);
		while (!gone && under_way < MOST) {
			ssize_t result = fi_read(s->ep, in, BYTES, NULL, a, 0, KEY, NULL);
			gone = result == -FI_ECONNRESET;
			if (result) {
				CHECK(gone || result == -FI_EAGAIN);
				break;
			}
			under_way++;
		}
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry error = {0};
		ssize_t got = fi_cq_read(s->cq, &e, 1);
		if (got == -FI_EAVAIL) {
			EQUAL(fi_cq_readerr(s->cq, &error, 0), 1);
			EQUAL(error.err, FI_ECONNRESET);
			gone = true;
		} else if (got == -FI_EAGAIN) {
			continue;
		} else {
			EQUAL(got, 1);
		}
		under_way--;
		if (!told)
			barrier();
		told = true;
	}
	barrier();
}

/* Several domains at once, each with a thread of its own that keeps to it, as MPICH's communication interfaces: nothing
   is shared without a lock. Objects are opened and closed beside the traffic. */
struct lane {
	struct side s;
	pthread_t thread;
	int number;
	pthread_barrier_t *begin;
};

enum { LANES = 4, ROUNDS = 400 };

static void *traffic(void *arg)
{
	struct lane *l = arg;
	struct side *s = &l->s;
	char *to = malloc(70000), *from = malloc(70000), *exposed_ = calloc(1, 70000);
	struct fid_mr *mr;
	static const size_t lens[] = {8, 40, 1000, 16384, 70000};
	EQUAL(fi_mr_reg(s->domain, exposed_, 70000, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL), 0);
	pthread_barrier_wait(l->begin);
	for (int i = 0; i < ROUNDS; i++) {
		size_t n = lens[i % 5];
		fill(from, n, i + l->number);
		POST(s, fi_trecv(s->ep, to, n, NULL, s->other, i, 0, to));
		POST(s, fi_tsend(s->ep, from, n, NULL, s->other, i, from));
		done(s);
		done(s);
		filled(to, n, i + l->number);
		POST(s, fi_write(s->ep, from, n, NULL, s->other, 0, 7, from));
		uint64_t one = 1, before;
		CHECK(done(s).op_context == from);
		POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, &before, NULL, s->self, 69992, 7, FI_UINT64, FI_SUM, &before));
		CHECK(done(s).op_context == &before);
	}
	POST(s, fi_trecv(s->ep, to, 1, NULL, s->other, ROUNDS, 0, to));
	POST(s, fi_tinject(s->ep, "x", 1, s->other, ROUNDS));
	done(s);
	/* The other's last request may still be under way. */
	for (int i = 0; i < 1000; i++)
		fi_cq_read(s->cq, NULL, 0);
	EQUAL(fi_close(&mr->fid), 0);
	free(to);
	free(from);
	free(exposed_);
	return NULL;
}

static void domains(struct side *s)
{
	static struct lane lanes[LANES];
	pthread_barrier_t begin;
	pthread_barrier_init(&begin, NULL, LANES + 1);
	for (int i = 0; i < LANES; i++) {
		open_side(&lanes[i].s, NULL);
		meet(&lanes[i].s);
		lanes[i].number = i;
		lanes[i].begin = &begin;
		pthread_create(&lanes[i].thread, NULL, traffic, &lanes[i]);
	}
	barrier();
	pthread_barrier_wait(&begin);
	for (int i = 0; i < 20; i++) {
		struct side t;
		open_side(&t, NULL);
		meet(&t);
		POST(&t, fi_tinject(t.ep, "y", 1, t.other, 1));
		POST(&t, fi_trecv(t.ep, in, 1, NULL, t.other, 1, 0, in));
		done(&t);
		moving = &t;
		barrier();
		moving = s;
		close_side(&t);
	}
	for (int i = 0; i < LANES; i++)
		pthread_join(lanes[i].thread, NULL);
	barrier();
	for (int i = 0; i < LANES; i++)
		close_side(&lanes[i].s);
	barrier();
}

/* Under FI_THREAD_SAFE everything at once: posts of all kinds, reads of the queue and the counter, cancels. */
static uint64_t operations_done;
static bool stop;

static void *reader(void *arg)
{
	struct side *s = arg;
	struct fi_cq_tagged_entry e[8];
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		ssize_t r = fi_cq_read(s->cq, e, 8);
		if (r == -FI_EAVAIL) {
			struct fi_cq_err_entry err = {0};
			/* Another thread may have taken it meanwhile. */
			if (fi_cq_readerr(s->cq, &err, 0) == 1) {
				EQUAL(err.err, FI_ECANCELED);
				r = 1;
			} else {
				r = 0;
			}
		}
		if (r > 0)
			__atomic_fetch_add(&operations_done, r, __ATOMIC_SEQ_CST);
		fi_cntr_read(s->cntr);
	}
	return NULL;
}

static void *poster(void *arg)
{
	struct worker *w = arg;
	struct side *s = w->s;
	char *memory = w->memory, *to = memory + 20000;
	uint64_t posted = 0;
#define TRY_ON(call)                                                                                     \
	do {                                                                                             \
		ssize_t r_;                                                                              \
		while ((r_ = (call)) == -FI_EAGAIN)                                                      \
			sched_yield();                                                                   \
		EQUAL(r_, 0);                                                                            \
	} while (0)
	for (int i = 0; i < 1000; i++) {
		uint64_t tag = 1000 + w->number;
		TRY_ON(fi_trecv(s->ep, to, 64, NULL, s->other, tag, 0, to));
		TRY_ON(fi_tsend(s->ep, memory, 8 + i % 50, NULL, s->other, tag, memory));
		TRY_ON(fi_write(s->ep, memory, i % 20000, NULL, s->other, 20000 * w->number, 7, memory));
		TRY_ON(fi_read(s->ep, memory + 10000, 8, NULL, s->other, 0, 7, memory));
		posted += 4;
		if (i % 10 == 0) {
			TRY_ON(fi_trecv(s->ep, to, 64, NULL, s->other, 0xdead0000 + w->number, 0, &w->number));
			EQUAL(fi_cancel(&s->ep->fid, &w->number), 0);
			posted++;
		}
	}
	return (void *)posted;
}

static void heavy(struct side *s)
{
	enum { POSTERS = 3, READERS = 2 };
	pthread_t t[POSTERS + READERS];
	struct worker w[POSTERS];
	struct fid_mr *mr;
	char *memory = calloc(1, 20000 * POSTERS);
	uint64_t posted = 0;
	operations_done = 0;
	stop = false;
	EQUAL(fi_mr_reg(s->domain, memory, 20000 * POSTERS, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL), 0);
	barrier();
	for (int i = 0; i < READERS; i++)
		pthread_create(&t[POSTERS + i], NULL, reader, s);
	for (int i = 0; i < POSTERS; i++) {
		w[i] = (struct worker){s, i, calloc(1, 20000 + 64)};
		pthread_create(&t[i], NULL, poster, &w[i]);
	}
	for (int i = 0; i < POSTERS; i++) {
		void *n;
		pthread_join(t[i], &n);
		posted += (uintptr_t)n;
	}
	double end = now() + SECONDS;
	while (__atomic_load_n(&operations_done, __ATOMIC_SEQ_CST) < posted) {
		if (now() > end)
			FAIL("%llu of %llu completed", (unsigned long long)operations_done, (unsigned long long)posted);
		sched_yield();
	}
	/* The readers go on until the other side has all of its own. */
	char c = 'x';
	tell(&c, 1);
	hear(&c, 1);
	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	for (int i = 0; i < READERS; i++)
		pthread_join(t[POSTERS + i], NULL);
	EQUAL(operations_done, posted);
	EQUAL(fi_cntr_read(s->cntr), 2 * 1000 * POSTERS);
	barrier();
	EQUAL(fi_close(&mr->fid), 0);
	for (int i = 0; i < POSTERS; i++)
		free(w[i].memory);
	free(memory);
}

static const struct test tests[] = {
	{"two_endpoints", two_endpoints, NULL},
	{"threads", threads, &safe},
	{"close_at_once", close_at_once, NULL},
	{"close_beside_another", close_beside_another, NULL},
	{"domains", domains, NULL},
	{"heavy", heavy, &safe},
};
RUN_PAIR(tests)
