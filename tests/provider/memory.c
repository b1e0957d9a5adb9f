/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory in the region: allocated there, registered, and reached by the other process without any help of this one.
 *
 * usage: memory LIBFABRIC [TEST...]
 */
#include "pair.h"
#include <sys/prctl.h>

/* The counters of this process, as the provider tells benchmarks. */
static void counters(uint64_t *out_, size_t count)
{
	void *lib = dlopen(NULL, RTLD_NOW);
	int (*read_)(uint64_t *, size_t) = NULL;
	char row[4096], path[4096] = "";
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(row, sizeof row, maps)) {
		char *at = strchr(row, '/');
		if (at && strstr(at, "libisthmus-fi.so"))
			sscanf(at, "%4095s", path);
	}
	fclose(maps);
	dlclose(lib);
	lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	CHECK(lib);
	*(void **)&read_ = dlsym(lib, "isthmus_counters");
	CHECK(read_);
	EQUAL(read_(out_, count), 0);
	dlclose(lib);
}
enum { RMA = 8, DIRECT = 18, DIRECT_BYTES = 19, COUNTERS = 20 };

static void alloc_and_free(struct side *s)
{
	struct isthmus_memory_ops *m = memory_of(s);
	enum { N = 200 };
	static char *at[N];
	static size_t len[N];
	void *p;
	EQUAL(m->alloc(s->domain, 0, 64, &p), -FI_EINVAL);
	EQUAL(m->alloc(s->domain, 64, 3, &p), -FI_EINVAL);
	EQUAL(m->alloc(s->domain, 64, 1 << 20, &p), -FI_EINVAL);
	EQUAL(m->alloc(s->domain, 64, 64, NULL), -FI_EINVAL);
	EQUAL(m->alloc(s->domain, SIZE_MAX, 64, &p), -FI_EINVAL);
	EQUAL(m->alloc(s->domain, 1ULL << 40, 64, &p), -FI_ENOSPC);
	EQUAL(m->free(s->domain, &p), -FI_EINVAL);
	EQUAL(m->free(s->domain, NULL), -FI_EINVAL);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < N; i++) {
			size_t align = 1u << (i % 13);
			len[i] = 1 + (i * 7919 + round) % 20000;
			EQUAL(m->alloc(s->domain, len[i], align, (void **)&at[i]), 0);
			CHECK((uintptr_t)at[i] % align == 0);
			fill(at[i], len[i], i);
		}
		/* None lies in another, and freed memory is used again: else the region would be full by now. */
		for (int i = 0; i < N; i++) {
			int k = (i * 77) % N;
			filled(at[k], len[k], k);
			EQUAL(m->free(s->domain, at[k]), 0);
		}
		EQUAL(m->free(s->domain, at[0]), -FI_EINVAL);
	}
	/* A domain goes after its memory, and memory after its registrations. */
	struct fid_domain *domain;
	struct fid_mr *mr;
	EQUAL(fi_domain(s->fabric, s->info, &domain, NULL), 0);
	EQUAL(m->alloc(domain, 1000, 0, &p), 0);
	EQUAL(m->free(s->domain, p), -FI_EINVAL); /* another domain's */
	EQUAL(fi_mr_reg(domain, (char *)p + 100, 900, FI_REMOTE_READ, 0, 1, 0, &mr, NULL), 0);
	EQUAL(m->free(domain, p), -FI_EBUSY);
	EQUAL(fi_close(&mr->fid), 0);
	EQUAL(fi_close(&domain->fid), -FI_EBUSY);
	EQUAL(m->free(domain, p), 0);
	EQUAL(fi_close(&domain->fid), 0);
	barrier();
}

/* Rank 1 sleeps, in which nothing of the provider runs, while rank 0 does all kinds of things to it. */
static void target_asleep(struct side *s)
{
	char c = 'x';
	const uint64_t key = 0x8000000000000001ULL;
	publish(s, key, FI_REMOTE_READ | FI_REMOTE_WRITE);
	uint64_t base = 0;
	if (s->info->domain_attr->mr_mode == FI_MR_BASIC) {
		/* The old kind: a key of the provider's, and plain addresses. */
		uint64_t mine[2] = {fi_mr_key(window), (uintptr_t)exposed}, theirs[2];
		tell(mine, sizeof mine);
		hear(theirs, sizeof theirs);
		CHECK(theirs[0] == mine[0]); /* both sides did the same */
		base = theirs[1];
	}
	uint64_t k = fi_mr_key(window);
	if (!base)
		EQUAL(k, key);
	barrier();
	moving = NULL;
	if (rank_here) {
		asleep();
		filled(exposed + 1000, 300000, 1);
		filled(exposed + 400000, 4096, 2);
		EQUAL(*(uint64_t *)exposed, 1000 + 500);
		EQUAL(*(uint32_t *)(exposed + 8), 77);
		CHECK(*(double *)(exposed + 16) == 0.5 * 8);
		tell(&c, 1);
		moving = s;
		barrier();
		unpublish(s);
		barrier();
		return;
	}
	uint64_t before[COUNTERS], after[COUNTERS], counts = 0;
	for (int i = 0; i < 2000; i++)
		fi_cq_read(s->cq, NULL, 0); /* what endpoints counted is added up now and then */
	counters(before, COUNTERS);
	fill(out, 300000, 1);
	struct iovec parts[2] = {part(out, 7), part(out + 7, 299993)};
	POST(s, fi_writev(s->ep, parts, NULL, 2, s->other, base + 1000, k, out));
	CHECK(done(s).op_context == out);
	counted(s, ++counts);
	fill(out, 4096, 2);
	POST(s, fi_inject_write(s->ep, out, 4096, s->other, base + 400000, k));
	counted(s, ++counts);
	memset(in, 0, 300000);
	POST(s, fi_read(s->ep, in, 300000, NULL, s->other, base + 1000, k, in));
	EQUAL(done(s).flags, FI_RMA | FI_READ);
	filled(in, 300000, 1);
	counted(s, ++counts);
	uint64_t one = 1, last = 0;
	for (int i = 0; i < 1000; i++) {
		uint64_t old = 99;
		if (i % 2) {
			POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, &old, NULL, s->other, base, k, FI_UINT64, FI_SUM, &old));
			EQUAL(done(s).flags, FI_ATOMIC | FI_READ);
			CHECK(old >= last);
			last = old;
			POST(s, fi_inject_atomic(s->ep, &one, 1, s->other, base, k, FI_UINT64, FI_SUM));
			counts += 2;
		} else {
			POST(s, fi_atomic(s->ep, &one, 1, NULL, s->other, base, k, FI_UINT64, FI_SUM, out));
			EQUAL(done(s).flags, FI_ATOMIC | FI_WRITE);
			counts++;
		}
	}
	uint32_t zero = 0, want = 77, found = 5;
	POST(s, fi_compare_atomic(s->ep, &want, 1, NULL, &zero, NULL, &found, NULL, s->other, base + 8, k, FI_UINT32, FI_CSWAP, out));
	done(s);
	EQUAL(found, 0);
	double half = 0.5, two = 2;
	POST(s, fi_atomic(s->ep, &half, 1, NULL, s->other, base + 16, k, FI_DOUBLE, FI_SUM, out));
	done(s);
	for (int i = 0; i < 3; i++) {
		POST(s, fi_atomic(s->ep, &two, 1, NULL, s->other, base + 16, k, FI_DOUBLE, FI_PROD, out));
		done(s);
	}
	counts += 5;
	counted(s, counts);
	/* What is not allowed is found out here, too. */
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, base + WINDOW_BYTES - 7, k, in));
	failed(s, FI_EACCES);
	POST(s, fi_write(s->ep, in, 8, NULL, s->other, UINT64_MAX - 3, k, in));
	failed(s, FI_EACCES);
	/* Nothing of no bytes is nothing at all. */
	POST(s, fi_write(s->ep, NULL, 0, NULL, s->other, base, k, out));
	done(s);
	for (int i = 0; i < 2000; i++)
		fi_cq_read(s->cq, NULL, 0);
	counters(after, COUNTERS);
	EQUAL(after[DIRECT] - before[DIRECT], counts + 1);
	CHECK(after[DIRECT_BYTES] - before[DIRECT_BYTES] >= 604096);
	EQUAL(after[RMA] - before[RMA], counts + 3);
	ring(s, base, k);
	hear(&c, 1);
	moving = s;
	barrier();
	unpublish(s);
	barrier();
}

/* Access is what the registration says; what is closed is gone, and its key may come back elsewhere. */
static void access_and_keys(struct side *s)
{
	struct isthmus_memory_ops *m = memory_of(s);
	char *at = NULL, *ordinary = calloc(1, 4096);
	struct fid_mr *mr[40];
	EQUAL(m->alloc(s->domain, 40 * 100, 64, (void **)&at), 0);
	memset(at, 3, 40 * 100);
	for (int i = 0; i < 40; i++) /* more than a chunk of the table */
		EQUAL(fi_mr_reg(s->domain, at + 100 * i, 100, i % 2 ? FI_REMOTE_READ : FI_REMOTE_WRITE, 0, i, 0, &mr[i], NULL), 0);
	barrier();
	for (int i = 0; i < 40; i++) {
		POST(s, fi_read(s->ep, in, 100, NULL, s->other, 0, i, in));
		i % 2 ? (void)done(s) : (void)failed(s, FI_EACCES);
		POST(s, fi_write(s->ep, in, 100, NULL, s->other, 0, i, in));
		i % 2 ? (void)failed(s, FI_EACCES) : (void)done(s);
		POST(s, fi_read(s->ep, in, 1, NULL, s->other, 100, i, in));
		failed(s, FI_EACCES);
	}
	barrier();
	EQUAL(fi_close(&mr[5]->fid), 0);
	EQUAL(fi_close(&mr[6]->fid), 0);
	EQUAL(fi_mr_reg(s->domain, at + 600, 50, FI_REMOTE_READ, 0, 6, 0, &mr[6], NULL), 0);
	/* A key that was in the region and now is not: by messages. */
	EQUAL(fi_mr_reg(s->domain, ordinary, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr[5], NULL), 0);
	barrier();
	POST(s, fi_read(s->ep, in, 50, NULL, s->other, 0, 6, in));
	done(s);
	POST(s, fi_read(s->ep, in, 51, NULL, s->other, 0, 6, in));
	failed(s, FI_EACCES);
	fill(out, 4096, 4);
	POST(s, fi_write(s->ep, out, 4096, NULL, s->other, 0, 5, out));
	done(s);
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 0, 41, in));
	failed(s, FI_ENOKEY);
	barrier();
	filled(ordinary, 4096, 4);
	for (int i = 0; i < 40; i++)
		EQUAL(fi_close(&mr[i]->fid), 0);
	barrier();
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 0, 7, in));
	failed(s, FI_ENOKEY);
	barrier();
	EQUAL(m->free(s->domain, at), 0);
	free(ordinary);
}

/* Calls of each form on memory that was used last, which may take the short way: what is refused is refused there, too. */
static void forms_of_calls(struct side *s)
{
	size_t most = s->info->tx_attr->inject_size;
	publish(s, 1, FI_REMOTE_READ | FI_REMOTE_WRITE);
	barrier();
	if (rank_here == 0) {
		uint64_t before = fi_cntr_read(s->cntr);
		struct iovec iov = {.iov_base = out, .iov_len = 8};
		struct fi_rma_iov place = {.addr = 64, .len = 8, .key = 1};
		struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .rma_iov = &place, .rma_iov_count = 1, .context = out};
		fill(out, most + 8, 7);
		POST(s, fi_write(s->ep, out, 8, NULL, s->other, 64, 1, out));
		done(s);
		POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION));
		CHECK(done(s).op_context == out);
		iov.iov_base = in;
		memset(in, 0, 8);
		POST(s, fi_readmsg(s->ep, &m, FI_COMPLETION));
		done(s);
		filled(in, 8, 7);
		/* Nothing, which is there. */
		iov = (struct iovec){0};
		place.len = 0;
		POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION));
		done(s);
		counted(s, before + 4);
		/* A place of another length, nothing of a length, no parts where there is one, and no place. */
		place.len = 8;
		EQUAL(fi_writemsg(s->ep, &m, 0), -FI_EINVAL);
		iov.iov_len = 8;
		EQUAL(fi_writemsg(s->ep, &m, 0), -FI_EINVAL);
		EQUAL(fi_readmsg(s->ep, &m, 0), -FI_EINVAL);
		m.msg_iov = NULL;
		EQUAL(fi_writemsg(s->ep, &m, 0), -FI_EINVAL);
		m.msg_iov = &iov;
		iov.iov_base = out;
		m.rma_iov_count = 0;
		EQUAL(fi_writemsg(s->ep, &m, 0), -FI_EINVAL);
		m.rma_iov_count = 1;
		EQUAL(fi_write(s->ep, NULL, 8, NULL, s->other, 64, 1, out), -FI_EINVAL);
		/* Injected: no entry, and not more than that takes. */
		POST(s, fi_inject_write(s->ep, out, 8, s->other, 128, 1));
		POST(s, fi_inject_write(s->ep, out, most, s->other, 256, 1));
		counted(s, before + 6);
		EQUAL(fi_inject_write(s->ep, out, most + 1, s->other, 256, 1), -FI_EMSGSIZE);
		iov.iov_len = place.len = most + 1;
		EQUAL(fi_writemsg(s->ep, &m, FI_INJECT), -FI_EMSGSIZE);
		silent(s);
		EQUAL(fi_cntr_readerr(s->cntr), 0);
	}
	barrier();
	if (rank_here == 1) {
		filled(exposed + 64, 8, 7);
		filled(exposed + 128, 8, 7);
		filled(exposed + 256, most, 7);
		EQUAL(exposed[256 + most], 0);
	}
	barrier();
	unpublish(s);
	barrier();
}

/* Words that are changed directly, by messages and by the program itself: nothing is lost. Both kinds of way lead to the
   same memory, registered as a part of the region and, with data for its completions, by messages. */
static void all_ways_at_once(struct side *s)
{
	enum { N = 3000 };
	publish(s, 1, FI_REMOTE_READ | FI_REMOTE_WRITE);
	barrier();
	fi_addr_t zero = rank_here == 0 ? s->self : s->other;
	uint64_t one = 1, counts = 0;
	uint16_t two = 2;
	long double moved = 1.5L;
	for (int i = 0; i < N; i++) {
		POST(s, fi_inject_atomic(s->ep, &one, 1, zero, 0, 1, FI_UINT64, FI_SUM));
		POST(s, fi_inject_atomic(s->ep, &two, 1, zero, 8, 1, FI_UINT16, FI_SUM));
		counts += 2;
		if (rank_here == 0)
			__atomic_fetch_add((uint64_t *)exposed, 1, __ATOMIC_SEQ_CST);
		if (i % 10 == 0) {
			/* No processor does this one: its target does. What follows keeps its order. */
			POST(s, fi_inject_atomic(s->ep, &moved, 1, zero, 32 + 16 * rank_here, 1, FI_LONG_DOUBLE, FI_ATOMIC_WRITE));
			POST(s, fi_inject_atomic(s->ep, &one, 1, zero, 0, 1, FI_UINT64, FI_SUM));
			counts += 2;
		}
	}
	counted(s, counts);
	barrier();
	if (rank_here == 0) {
		EQUAL(*(uint64_t *)exposed, 3 * N + 2 * (N / 10));
		EQUAL(*(uint16_t *)(exposed + 8), (uint16_t)(4 * N));
		CHECK(*(long double *)(exposed + 32) == 1.5L && *(long double *)(exposed + 48) == 1.5L);
	}
	/* Data for the target's completion comes by a message, to the same place. */
	fill(out, 500, 5);
	POST(s, fi_writedata(s->ep, out, 500, NULL, 99, s->other, 4096, 1, out));
	for (int k = 0; k < 2; k++) {
		struct fi_cq_tagged_entry e = done(s);
		if (e.flags & FI_REMOTE_WRITE) {
			EQUAL(e.data, 99);
			CHECK(e.buf == NULL || e.buf == exposed + 4096);
		}
	}
	barrier();
	filled(exposed + 4096, 500, 5);
	barrier();
	unpublish(s);
	barrier();
}

/* Writes straight into the other's memory, and then a message: who has the message sees the writes. */
static void order(struct side *s)
{
	publish(s, 1, FI_REMOTE_READ | FI_REMOTE_WRITE);
	barrier();
	for (uint64_t i = 1; i <= 3000; i++) {
		uint64_t v = 0;
		if (rank_here == 0) {
			POST(s, fi_inject_write(s->ep, &i, 8, s->other, 8 * (i % 100), 1));
			counted(s, i);
			POST(s, fi_tinject(s->ep, &i, 8, s->other, 1));
			POST(s, fi_trecv(s->ep, &v, 8, NULL, s->other, 1, 0, &v));
			done(s);
		} else {
			POST(s, fi_trecv(s->ep, &v, 8, NULL, s->other, 1, 0, &v));
			done(s);
			EQUAL(v, i);
			EQUAL(*(volatile uint64_t *)(exposed + 8 * (i % 100)), i);
			POST(s, fi_tinject(s->ep, &i, 8, s->other, 1));
		}
	}
	barrier();
	unpublish(s);
	barrier();
}

/* Writes that complete in their calls, one after the other, are no reason to leave messages where they are, be it the queue or a counter
   that is read. */
static void messages_come_meanwhile(struct side *s, bool by_counter)
{
	publish(s, 1, FI_REMOTE_WRITE);
	barrier();
	for (uint64_t round = 1; round <= 100; round++) {
		volatile uint64_t got = 0;
		if (rank_here == 0) {
			int wrote = 0;
			/* How soon is looked at in crates/transport/tests/direct.rs: here the message may still be on its way. */
			const int most = 100;
			bool came = false;
			POST(s, fi_trecv(s->ep, (void *)&got, 8, NULL, s->other, 1, 0, (void *)&got));
			/* Once it has been sent, it is the loop that has to find it. */
			moving = NULL;
			barrier();
			moving = s;
			while (by_counter && got != round) {
				EQUAL(fi_write(s->ep, &round, 8, NULL, s->other, 8 * (wrote % 100), 1, out), 0);
				fi_cntr_read(s->cntr);
				CHECK(++wrote <= most);
			}
			while (by_counter ? wrote > 0 || !came : !came) {
				struct fi_cq_tagged_entry e = {0};
				if (!by_counter)
					EQUAL(fi_write(s->ep, &round, 8, NULL, s->other, 8 * (wrote % 100), 1, out), 0);
				do {
					EQUAL(fi_cq_read(s->cq, &e, 1), 1);
					came |= e.op_context == &got;
					wrote += e.op_context != out ? 0 : by_counter ? -1 : 1;
				} while (!by_counter && e.op_context != out);
				CHECK(wrote <= most);
			}
			EQUAL(got, round);
		} else {
			POST(s, fi_tinject(s->ep, &round, 8, s->other, 1));
			barrier();
		}
		barrier();
	}
	unpublish(s);
	barrier();
}

static void messages_come_meanwhile_queue(struct side *s)
{
	messages_come_meanwhile(s, false);
}

static void messages_come_meanwhile_counter(struct side *s)
{
	messages_come_meanwhile(s, true);
}

/* Targets that die while they are written to, again and again, beside one that lives: the writer gets an error soon, and
   nobody else's memory changes. */
static void targets_that_die(struct side *s)
{
	enum { ROUNDS = 30 };
	moving = NULL;
	for (int round = 0; round < ROUNDS; round++) {
		/* Rank 1 forks a victim that opens objects of its own; rank 0 writes to it until it is gone. */
		int to[2] = {-1, -1};
		pid_t victim = 0;
		struct {
			char name[64];
			uint64_t pad;
		} hello;
		memset(&hello, 0, sizeof hello);
		if (rank_here) {
			CHECK(pipe(to) == 0);
			victim = fork();
			if (victim == 0) {
				struct side v;
				size_t len = 64;
				open_side(&v, NULL);
				publish(&v, 7, FI_REMOTE_READ | FI_REMOTE_WRITE);
				EQUAL(fi_getname(&v.ep->fid, hello.name, &len), 0);
				CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
				CHECK(write(to[1], &hello, sizeof hello) == sizeof hello);
				/* Where the writer cannot write its section, it does the operations itself. */
				for (;;) {
					struct fi_cq_tagged_entry e;
					fi_cq_read(v.cq, &e, 1);
				}
			}
			CHECK(read(to[0], &hello, sizeof hello) == sizeof hello);
			close(to[0]);
			close(to[1]);
			tell(&hello, sizeof hello);
			char c;
			hear(&c, 1); /* it is being written to */
			usleep(round * 300);
			kill(victim, SIGKILL);
			CHECK(waitpid(victim, NULL, 0) == victim);
			/* Somebody else gets its memory at once: it must stay as it was made. */
			struct side next;
			open_side(&next, NULL);
			publish(&next, 8, FI_REMOTE_READ | FI_REMOTE_WRITE);
			fill(exposed, WINDOW_BYTES, round);
			hear(&c, 1); /* the writer has had its error */
			filled(exposed, WINDOW_BYTES, round);
			unpublish(&next);
			close_side(&next);
			tell(&c, 1);
			continue;
		}
		hear(&hello, sizeof hello);
		fi_addr_t a;
		EQUAL(fi_av_insert(s->av, hello.name, 1, &a, 0, NULL), 1);
		memset(out, 0xff, WINDOW_BYTES);
		uint64_t ones = UINT64_MAX;
		double end = now() + 5;
		char c = 'x';
		bool gone = false;
		for (int i = 0; !gone; i++) {
			ssize_t r = i % 3 == 0 ? fi_write(s->ep, out, WINDOW_BYTES, NULL, a, 0, 7, out)
				    : i % 3 == 1 ? fi_atomic(s->ep, &ones, 1, NULL, a, 64, 7, FI_UINT64, FI_BOR, out)
						 : fi_read(s->ep, in, WINDOW_BYTES, NULL, a, 0, 7, in);
			if (i == 6)
				tell(&c, 1);
			CHECK(now() < end);
			if (r == -FI_EAGAIN)
				continue;
			gone = r == -FI_ECONNRESET;
			if (gone)
				break;
			EQUAL(r, 0);
			for (;;) {
				struct fi_cq_tagged_entry e;
				struct fi_cq_err_entry err = {0};
				r = fi_cq_read(s->cq, &e, 1);
				CHECK(now() < end);
				if (r == 1)
					break;
				if (r == -FI_EAVAIL) {
					EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
					EQUAL(err.err, FI_ECONNRESET);
					gone = true;
					break;
				}
			}
			if (i < 6)
				continue;
		}
		tell(&c, 1);
		hear(&c, 1);
	}
	moving = s;
	barrier();
}

static struct wish basic = {.mr_mode = FI_MR_BASIC};
static struct wish safe = {.threading = FI_THREAD_SAFE};

static const struct test tests[] = {
	{"alloc_and_free", alloc_and_free, NULL},
	{"target_asleep", target_asleep, NULL},
	{"target_asleep_safe", target_asleep, &safe},
	{"target_asleep_basic", target_asleep, &basic},
	{"access_and_keys", access_and_keys, NULL},
	{"forms_of_calls", forms_of_calls, NULL},
	{"forms_of_calls_safe", forms_of_calls, &safe},
	{"all_ways_at_once", all_ways_at_once, NULL},
	{"order", order, NULL},
	{"messages_come_meanwhile", messages_come_meanwhile_queue, NULL},
	{"messages_come_meanwhile_safe", messages_come_meanwhile_queue, &safe},
	{"counters_let_messages_come", messages_come_meanwhile_counter, NULL},
	{"targets_that_die", targets_that_die, NULL},
};
RUN_PAIR(tests)
