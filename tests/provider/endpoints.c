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

/* What was injected before a close still arrives, without an exchange before or after: MPICH waits for nothing at its end.
   All that can be injected, short and as long as it may be, to a receiver that sleeps first. Then everything is closed. */
enum { TINJECT, INJECT, TINJECTDATA, INJECTDATA, INJECT_WRITE, INJECT_WRITEDATA, INJECT_ATOMIC, MIXED, INJECTS };
enum { CLOSE_COUNT = 500, CLOSE_BYTES = 4096 };

static int inject_by(int kind, int i)
{
	return kind == MIXED ? i % MIXED : kind;
}

static void inject_and_close(int kind, size_t n)
{
	struct side t;
	uint64_t one = 1;
	open_side(&t, NULL);
	CHECK(t.info->tx_attr->inject_size >= n && n <= CLOSE_BYTES);
	meet(&t);
	barrier(); /* the other's memory is registered */
	for (int i = 0; i < CLOSE_COUNT; i++) {
		fill(out, n, i);
		switch (inject_by(kind, i)) {
		case TINJECT: POST(&t, fi_tinject(t.ep, out, n, t.other, i)); break;
		case INJECT: POST(&t, fi_inject(t.ep, out, n, t.other)); break;
		case TINJECTDATA: POST(&t, fi_tinjectdata(t.ep, out, n, i, t.other, i)); break;
		case INJECTDATA: POST(&t, fi_injectdata(t.ep, out, n, i, t.other)); break;
		case INJECT_WRITE: POST(&t, fi_inject_write(t.ep, out, n, t.other, (uint64_t)i * CLOSE_BYTES, 1)); break;
		case INJECT_WRITEDATA:
			POST(&t, fi_inject_writedata(t.ep, out, n, i, t.other, (uint64_t)i * CLOSE_BYTES, 1));
			break;
		case INJECT_ATOMIC:
			POST(&t, fi_inject_atomic(t.ep, &one, 1, t.other, CLOSE_COUNT * CLOSE_BYTES, 1, FI_UINT64, FI_SUM));
			break;
		}
	}
	close_side(&t);
}

static void sleep_and_receive(int kind, size_t n)
{
	struct side t;
	struct fid_mr *mr;
	char *memory = calloc(CLOSE_COUNT + 1, CLOSE_BYTES);
	int writes = 0, atomics = 0;
	open_side(&t, NULL);
	EQUAL(fi_mr_reg(t.domain, memory, (CLOSE_COUNT + 1) * CLOSE_BYTES, FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL), 0);
	meet(&t);
	barrier();
	usleep(20000);
	for (int i = 0; i < CLOSE_COUNT; i++) {
		int how = inject_by(kind, i);
		writes += how == INJECT_WRITEDATA;
		atomics += how == INJECT_ATOMIC;
		if (how >= INJECT_WRITE)
			continue;
		bool tagged = how == TINJECT || how == TINJECTDATA, data = how == TINJECTDATA || how == INJECTDATA;
		memset(in, 0xee, n);
		POST(&t, tagged ? fi_trecv(t.ep, in, n, NULL, t.other, i, 0, in) : fi_recv(t.ep, in, n, NULL, t.other, in));
		struct fi_cq_tagged_entry e;
		while ((e = done(&t)).op_context != in) {
			EQUAL(e.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
			writes--;
		}
		EQUAL(e.len, n);
		EQUAL(e.flags, (tagged ? FI_TAGGED : FI_MSG) | FI_RECV | (data ? FI_REMOTE_CQ_DATA : 0));
		EQUAL(e.data, data ? i : 0);
		filled(in, n, i);
	}
	for (; writes > 0; writes--)
		EQUAL(done(&t).flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
	/* Writes without data and atomics tell nobody. */
	double end = now() + SECONDS;
	char expected[CLOSE_BYTES];
	for (int i = 0; i < CLOSE_COUNT; i++) {
		int how = inject_by(kind, i);
		fill(expected, n, i);
		while ((how == INJECT_WRITE || how == INJECT_WRITEDATA) && memcmp(memory + (size_t)i * CLOSE_BYTES, expected, n)) {
			fi_cq_read(t.cq, NULL, 0);
			if (now() > end)
				FAIL("write %d has not arrived", i);
		}
	}
	volatile uint64_t *sum = (uint64_t *)(memory + CLOSE_COUNT * CLOSE_BYTES);
	while (*sum != (uint64_t)atomics) {
		fi_cq_read(t.cq, NULL, 0);
		if (now() > end)
			FAIL("%llu of %d atomics have arrived", (unsigned long long)*sum, atomics);
	}
	silent(&t);
	EQUAL(*sum, atomics);
	EQUAL(fi_close(&mr->fid), 0);
	close_side(&t);
	free(memory);
}

static void close_at_once(struct side *s)
{
	moving = NULL;
	for (int kind = 0; kind < INJECTS; kind++)
		for (int longest = 0; longest < 2; longest++) {
			if (rank_here == 0)
				inject_and_close(kind, longest ? CLOSE_BYTES : 8);
			else
				sleep_and_receive(kind, longest ? CLOSE_BYTES : 8);
			barrier();
		}
	moving = s;
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
	barrier(); /* the two of expose() */
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
	barrier(); /* the two of unexpose() */
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

/* Each threading level with two threads or more, in the way that it allows and with all kinds of traffic. A driver posts
   to its endpoint and waits for what it posted; who reads the queue tells it.

   FI_THREAD_SAFE        two drivers on one endpoint, both of which read its queue and counter
   FI_THREAD_FID         a driver that posts, and a thread that reads the queue and the counter meanwhile
   FI_THREAD_ENDPOINT    two drivers with an endpoint each, and a thread that reads the queue which both share
   FI_THREAD_COMPLETION  two drivers with an endpoint, queue and counter each; the domain and the vector are shared */
struct drive {
	struct side s; /* what it uses of a side: endpoint, queue, counter and the other's address */
	pthread_t thread;
	int number;
	bool reads; /* its queue is read by itself */
	uint64_t key;
	char *memory; /* registered; then what it sends, and where it receives */
};

enum { DRIVE_ROUNDS = 400, DRIVE_BYTES = 1 << 17, LAST = 0xffff };

/* Reads some completions, whosever they are: an operation's context is the flag that it is over. */
static void read_some(struct side *s)
{
	struct fi_cq_tagged_entry e[4];
	ssize_t r = fi_cq_read(s->cq, e, 4);
	if (r == -FI_EAGAIN)
		return;
	CHECK(r > 0);
	for (int i = 0; i < r; i++)
		CHECK(!__atomic_exchange_n((bool *)e[i].op_context, true, __ATOMIC_SEQ_CST));
}

static void drive_on(struct drive *d)
{
	if (d->reads)
		read_some(&d->s);
	else
		sched_yield();
}

/* Posts until it is taken. */
#define DRIVE(call)                                                                                      \
	do {                                                                                             \
		double end_ = now() + SECONDS;                                                           \
		ssize_t r_;                                                                              \
		while ((r_ = (call)) == -FI_EAGAIN) {                                                    \
			drive_on(d);                                                                     \
			CHECK(now() < end_);                                                             \
		}                                                                                        \
		EQUAL(r_, 0);                                                                            \
	} while (0)

static void over(struct drive *d, bool *flag)
{
	double end = now() + SECONDS;
	while (!__atomic_load_n(flag, __ATOMIC_SEQ_CST)) {
		drive_on(d);
		CHECK(now() < end);
	}
}

static void *driver(void *arg)
{
	static const size_t lens[] = {8, 40, 1000, 16384, 0, 30000};
	struct drive *d = arg;
	struct fid_ep *ep = d->s.ep;
	fi_addr_t other = d->s.other;
	char *from = d->memory + DRIVE_BYTES, *to = from + DRIVE_BYTES, *back = to + DRIVE_BYTES;
	uint64_t kind = (uint64_t)d->number << 32, one = 1, word = (uint64_t)(3 - d->number) * 8;
	bool sent, received_, put, got, added;
	for (uint64_t i = 0; i < DRIVE_ROUNDS; i++) {
		size_t n = lens[i % 6];
		uint64_t before = 99;
		sent = received_ = put = got = added = false;
		fill(from, n, i + d->number);
		DRIVE(fi_trecv(ep, to, n, NULL, other, kind | i, 0, &received_));
		DRIVE(fi_tsend(ep, from, n, NULL, other, kind | i, &sent));
		DRIVE(fi_write(ep, from, n, NULL, other, 1024, d->key, &put));
		DRIVE(fi_fetch_atomic(ep, &one, 1, NULL, &before, NULL, other, word, d->key, FI_UINT64, FI_SUM, &added));
		over(d, &put);
		DRIVE(fi_read(ep, back, n, NULL, other, 1024, d->key, &got));
		if (i % 7 == 0) {
			bool extra = false;
			char x;
			DRIVE(fi_trecv(ep, &x, 1, NULL, other, kind | LAST << 1, 0, &extra));
			EQUAL(fi_cancel(&ep->fid, &x), 0); /* nothing has this context */
			DRIVE(fi_tinject(ep, "x", 1, other, kind | LAST << 1));
			over(d, &extra);
		}
		/* The domain and the vector are everybody's, whatever the level. */
		for (int k = 1; k <= 5; k++) {
			struct fid_mr *mr;
			char name[64];
			size_t len = sizeof name;
			fi_addr_t again;
			EQUAL(fi_mr_reg(d->s.domain, from, 64, FI_REMOTE_READ, 0, d->key + k, 0, &mr, NULL), 0);
			EQUAL(fi_av_lookup(d->s.av, other, name, &len), 0);
			EQUAL(fi_av_insert(d->s.av, name, 1, &again, 0, NULL), 1);
			EQUAL(fi_av_remove(d->s.av, &again, 1, 0), 0);
			EQUAL(fi_close(&mr->fid), 0);
		}
		over(d, &sent);
		over(d, &received_);
		over(d, &got);
		over(d, &added);
		EQUAL(before, i);
		filled(to, n, i + d->number);
		filled(back, n, i + d->number);
		if (d->reads)
			fi_cntr_read(d->s.cntr);
	}
	/* The other's driver may need ours until it is as far. */
	received_ = false;
	DRIVE(fi_trecv(ep, to, 1, NULL, other, kind | LAST, 0, &received_));
	DRIVE(fi_tinject(ep, "y", 1, other, kind | LAST));
	over(d, &received_);
	return NULL;
}

static bool drivers_stop;

static void *drivers_reader(void *arg)
{
	struct side *s = arg;
	while (!__atomic_load_n(&drivers_stop, __ATOMIC_ACQUIRE)) {
		read_some(s);
		fi_cntr_read(s->cntr);
	}
	return NULL;
}

static void levels_of_threading(struct side *s)
{
	enum fi_threading level = s->info->domain_attr->threading;
	bool two_ends = level == FI_THREAD_ENDPOINT || level == FI_THREAD_COMPLETION, two_queues = level == FI_THREAD_COMPLETION;
	bool reader_ = level == FI_THREAD_FID || level == FI_THREAD_ENDPOINT;
	int drivers = level == FI_THREAD_FID ? 1 : 2;
	static struct drive d[2];
	struct fid_mr *mr[2];
	pthread_t t;
	CHECK(level == FI_THREAD_SAFE || level == FI_THREAD_FID || two_ends);
	for (int i = 0; i < drivers; i++) {
		d[i] = (struct drive){.s = *s, .number = i, .reads = !reader_, .key = (uint64_t)(1 + i) << 32, .memory = calloc(4, DRIVE_BYTES)};
		EQUAL(fi_mr_reg(s->domain, d[i].memory, DRIVE_BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, d[i].key, 0, &mr[i], NULL), 0);
	}
	if (two_ends) {
		struct side *o = &d[1].s;
		if (two_queues) {
			struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
			struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP};
			EQUAL(fi_cq_open(s->domain, &cq, &o->cq, NULL), 0);
			EQUAL(fi_cntr_open(s->domain, &cntr, &o->cntr, NULL), 0);
		}
		EQUAL(fi_endpoint(s->domain, s->info, &o->ep, NULL), 0);
		EQUAL(fi_ep_bind(o->ep, &s->av->fid, 0), 0);
		EQUAL(fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV), 0);
		EQUAL(fi_ep_bind(o->ep, &o->cntr->fid, FI_READ | FI_WRITE), 0);
		EQUAL(fi_enable(o->ep), 0);
		char mine[64], theirs[64];
		size_t len = 64;
		EQUAL(fi_getname(&o->ep->fid, mine, &len), 0);
		tell(mine, 64);
		hear(theirs, 64);
		EQUAL(fi_av_insert(s->av, theirs, 1, &o->other, 0, NULL), 1);
	}
	barrier();
	drivers_stop = false;
	if (reader_)
		CHECK(pthread_create(&t, NULL, drivers_reader, s) == 0);
	for (int i = 0; i < drivers; i++)
		CHECK(pthread_create(&d[i].thread, NULL, driver, &d[i]) == 0);
	for (int i = 0; i < drivers; i++)
		pthread_join(d[i].thread, NULL);
	/* A reader goes on until the other side has all of its own. */
	char c = 'x';
	tell(&c, 1);
	hear(&c, 1);
	__atomic_store_n(&drivers_stop, true, __ATOMIC_RELEASE);
	if (reader_)
		pthread_join(t, NULL);
	/* Counted once each: a write, a read and an atomic in each round. */
	uint64_t each = 3 * DRIVE_ROUNDS;
	for (int i = 0; i < drivers; i++)
		EQUAL(fi_cntr_read(d[i].s.cntr), two_queues ? each : drivers * each);
	for (int i = 0; i < drivers; i++) {
		silent(&d[i].s);
		EQUAL(*(uint64_t *)(d[i].memory + (3 - i) * 8), DRIVE_ROUNDS);
	}
	barrier();
	for (int i = 0; i < drivers; i++)
		EQUAL(fi_close(&mr[i]->fid), 0);
	if (two_ends)
		EQUAL(fi_close(&d[1].s.ep->fid), 0);
	if (two_queues) {
		EQUAL(fi_close(&d[1].s.cq->fid), 0);
		EQUAL(fi_close(&d[1].s.cntr->fid), 0);
	}
	for (int i = 0; i < drivers; i++)
		free(d[i].memory);
	barrier();
}

static struct wish by_fid = {.threading = FI_THREAD_FID};
static struct wish by_endpoint = {.threading = FI_THREAD_ENDPOINT};
static struct wish by_completion = {.threading = FI_THREAD_COMPLETION};

static const struct test tests[] = {
	{"two_endpoints", two_endpoints, NULL},
	{"threads", threads, &safe},
	{"close_at_once", close_at_once, NULL},
	{"close_beside_another", close_beside_another, NULL},
	{"domains", domains, NULL},
	{"heavy", heavy, &safe},
	{"level_safe", levels_of_threading, &safe},
	{"level_fid", levels_of_threading, &by_fid},
	{"level_endpoint", levels_of_threading, &by_endpoint},
	{"level_completion", levels_of_threading, &by_completion},
};
RUN_PAIR(tests)
