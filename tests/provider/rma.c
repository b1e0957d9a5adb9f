/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * One-sided reads and writes: forms, sizes, counters, errors, windows over the whole address space.
 *
 * usage: rma LIBFABRIC [TEST...]
 */
#include "pair.h"

static struct wish safe = {.threading = FI_THREAD_SAFE};
static struct wish counting = {.bind_flags = FI_SELECTIVE_COMPLETION, .tx_op_flags = FI_DELIVERY_COMPLETE};
static struct wish basic = {.mr_mode = FI_MR_BASIC};

/* Ordinary memory that both processes map: who reads or writes the other's through the provider can look there at once. */
enum { SEEN_BYTES = 1 << 20 };
static char *seen_by_both;

__attribute__((constructor)) static void before_the_fork(void)
{
	seen_by_both = mmap(NULL, 2 * SEEN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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

/* Every call that reads or writes, in all sizes, with offsets and with addresses as old callers give them. */
static void forms(struct side *s)
{
	enum { WRITE, WRITEV, WRITEMSG, WRITEMSG_INJECT, WRITEMSG_DATA, INJECT, WRITEDATA, INJECTDATA, READ, READV, READMSG, FORMS };
	static const size_t lens[] = {0, 1, 8, 41, 4096, 16385, 300000};
	uint64_t key = 77, counts = 0, base = 0, theirs = 0;
	exposed = calloc(1, LARGEST);
	struct fi_mr_attr attr = {.mr_iov = &(struct iovec){exposed, LARGEST}, .iov_count = 1, .requested_key = key,
				  .access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE};
	EQUAL(fi_mr_regattr(s->domain, &attr, 0, &window), 0);
	key = fi_mr_key(window);
	bool plain = s->info->domain_attr->mr_mode == FI_MR_BASIC;
	if (plain)
		base = (uintptr_t)exposed;
	else
		EQUAL(key, 77);
	uint64_t told[2] = {key, base}, heard[2];
	tell(told, sizeof told);
	hear(heard, sizeof heard);
	key = heard[0];
	theirs = heard[1];
	barrier();
	for (int how = 0; how < FORMS; how++)
		for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
			size_t n = lens[i], a = n / 3;
			bool inject = how == INJECT || how == INJECTDATA || how == WRITEMSG_INJECT;
			bool data = how == WRITEDATA || how == INJECTDATA || how == WRITEMSG_DATA;
			bool entry = how != INJECT && how != INJECTDATA, reads = how >= READ;
			if (inject && n > s->info->tx_attr->inject_size)
				continue;
			uint64_t at = theirs + 4096 * rank_here + 13 * i, d = 1000 + how;
			struct iovec from[2] = {part(out, a), part(out + a, n - a)}, into[2] = {part(in, a), part(in + a, n - a)};
			struct fi_rma_iov remote = {.addr = at, .len = n, .key = key};
			struct fi_msg_rma m = {.msg_iov = reads ? into : from, .iov_count = 2, .addr = s->other, .rma_iov = &remote,
					       .rma_iov_count = 1, .context = &m, .data = d};
			/* The two take turns, so that nobody writes what is being compared. */
			for (int turn = 0; turn < 2; turn++) {
				if (turn != rank_here && reads)
					fill(exposed + 4096 * !rank_here + 13 * i, n, 1 + how + i);
				barrier();
				if (turn == rank_here) {
					fill(out, n, how + i);
					memset(in, 0, n);
					switch (how) {
					case WRITE: POST(s, fi_write(s->ep, out, n, NULL, s->other, at, key, &m)); break;
					case WRITEV: POST(s, fi_writev(s->ep, from, NULL, 2, s->other, at, key, &m)); break;
					case WRITEMSG: POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE)); break;
					case WRITEMSG_INJECT: POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION | FI_INJECT)); break;
					case WRITEMSG_DATA: POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA)); break;
					case INJECT: POST(s, fi_inject_write(s->ep, out, n, s->other, at, key)); break;
					case WRITEDATA: POST(s, fi_writedata(s->ep, out, n, NULL, d, s->other, at, key, &m)); break;
					case INJECTDATA: POST(s, fi_inject_writedata(s->ep, out, n, d, s->other, at, key)); break;
					case READ: POST(s, fi_read(s->ep, in, n, NULL, s->other, at, key, &m)); break;
					case READV: POST(s, fi_readv(s->ep, into, NULL, 2, s->other, at, key, &m)); break;
					case READMSG: POST(s, fi_readmsg(s->ep, &m, FI_COMPLETION)); break;
					}
					if (inject)
						memset(out, 0, n);
					if (entry) {
						struct fi_cq_tagged_entry e = done(s);
						CHECK(e.op_context == &m);
						EQUAL(e.flags, FI_RMA | (reads ? FI_READ : FI_WRITE));
					}
					/* Counted once, when it is visible over there. */
					counted(s, ++counts);
					if (reads)
						filled(in, n, 1 + how + i);
				}
				if (turn != rank_here && data) {
					struct fi_cq_tagged_entry e = done(s);
					filled(exposed + 4096 * !rank_here + 13 * i, n, how + i);
					EQUAL(e.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
					EQUAL(e.data, d);
					EQUAL(e.len, n);
				}
				barrier();
				if (turn != rank_here && !reads)
					filled(exposed + 4096 * !rank_here + 13 * i, n, how + i);
				barrier();
			}
		}
	silent(s);
	EQUAL(fi_cntr_read(s->cntr), counts);
	/* The message's own sides must be as long as each other. */
	struct iovec one = part(out, 8);
	struct fi_rma_iov longer = {.addr = theirs, .len = 9, .key = key};
	struct fi_msg_rma m = {.msg_iov = &one, .iov_count = 1, .addr = s->other, .rma_iov = &longer, .rma_iov_count = 1};
	EQUAL(fi_writemsg(s->ep, &m, 0), -FI_EINVAL);
	CHECK(fi_inject_write(s->ep, out, s->info->tx_attr->inject_size + 1, s->other, theirs, key) == -FI_EMSGSIZE);
	unexpose();
}

/* The target looks at a counter alone, or at its queue alone, and still serves; both sides at once. */
static void counter_alone(struct side *s)
{
	enum { N = 2000, LEN = 1000 };
	uint64_t key = 5;
	expose(s, key, 2 * N, FI_REMOTE_READ | FI_REMOTE_WRITE);
	struct iovec iov = part(out, LEN);
	struct fi_rma_iov remote = {.addr = 0, .len = LEN, .key = key};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1};
	fill(out, LEN, 3);
	double end = now() + SECONDS;
	for (int i = 0; i < N; i++) {
		ssize_t r;
		while ((r = fi_writemsg(s->ep, &m, FI_DELIVERY_COMPLETE)) == -FI_EAGAIN)
			CHECK(now() < end); /* a post that fails has made progress */
		EQUAL(r, 0);
	}
	counted(s, N);
	char c = 'x';
	tell(&c, 1);
	/* Nothing but the counter is read until the other has finished. */
	while (recv(line, &c, 1, MSG_DONTWAIT) != 1) {
		EQUAL(fi_cntr_read(s->cntr), N);
		CHECK(now() < end);
	}
	filled(exposed, LEN, 3);
	unexpose();
}

/* A write or atomic is over, by its entry or by the counter, when it is in the target's memory: not before the target runs,
   since this memory is not the region's, and then at once. Data for the target's completion comes after the bytes. */
static void not_early(struct side *s)
{
	enum { WRITE, WRITEMSG, WRITEMSG_INJECT, INJECT, WRITEDATA, INJECTDATA, ATOMIC, INJECT_ATOMIC, KINDS };
	static const size_t lens[] = {8, 4096, 16384, 16385, 300000};
	const uint64_t key = 3, add = 0x0102030405060708;
	char *mine = seen_by_both + (size_t)rank_here * SEEN_BYTES, *theirs = seen_by_both + (size_t)!rank_here * SEEN_BYTES, c = 'c';
	uint64_t counts = 0;
	struct fid_mr *mr;
	CHECK(seen_by_both != MAP_FAILED);
	EQUAL(fi_mr_reg(s->domain, mine, SEEN_BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &mr, NULL), 0);
	barrier();
	for (int kind = 0; kind < KINDS; kind++)
		for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
			size_t n = kind >= ATOMIC ? 8 : lens[i];
			bool inject = kind == INJECT || kind == INJECTDATA || kind == WRITEMSG_INJECT || kind == INJECT_ATOMIC;
			bool entry = kind != INJECT && kind != INJECTDATA && kind != INJECT_ATOMIC;
			bool data = kind == WRITEDATA || kind == INJECTDATA;
			if ((inject || kind >= ATOMIC) && (n > s->info->tx_attr->inject_size || n != lens[i]))
				continue;
			if (rank_here) {
				memset(mine, 0, SEEN_BYTES);
				tell(&c, 1);
				hear(&c, 1); /* asleep until it was posted, and for long enough after that */
				if (data) {
					struct fi_cq_tagged_entry e = done(s);
					filled(mine + i, n, kind + i);
					EQUAL(e.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
					EQUAL(e.data, 70 + kind);
				}
				barrier();
				continue;
			}
			struct iovec iov = part(out, n);
			struct fi_rma_iov remote = {.addr = i, .len = n, .key = key};
			struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1, .context = out};
			hear(&c, 1);
			fill(out, n, kind + i);
			switch (kind) {
			case WRITE: POST(s, fi_write(s->ep, out, n, NULL, s->other, i, key, out)); break;
			case WRITEMSG: POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE)); break;
			case WRITEMSG_INJECT: POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_INJECT)); break;
			case INJECT: POST(s, fi_inject_write(s->ep, out, n, s->other, i, key)); break;
			case WRITEDATA: POST(s, fi_writedata(s->ep, out, n, NULL, 70 + kind, s->other, i, key, out)); break;
			case INJECTDATA: POST(s, fi_inject_writedata(s->ep, out, n, 70 + kind, s->other, i, key)); break;
			case ATOMIC: POST(s, fi_atomic(s->ep, &add, 1, NULL, s->other, 8, key, FI_UINT64, FI_SUM, out)); break;
			case INJECT_ATOMIC: POST(s, fi_inject_atomic(s->ep, &add, 1, s->other, 8, key, FI_UINT64, FI_SUM)); break;
			}
			silent(s);
			EQUAL(fi_cntr_read(s->cntr), counts);
			tell(&c, 1);
			/* Half of them by the counter first, and half by the entry. */
			if (entry && i % 2 == 0)
				CHECK(done(s).op_context == out);
			else
				counted(s, counts + 1);
			if (kind >= ATOMIC)
				EQUAL(*(volatile uint64_t *)(theirs + 8), add);
			else
				filled(theirs + i, n, kind + i);
			counted(s, ++counts);
			if (entry && i % 2)
				CHECK(done(s).op_context == out);
			barrier();
		}
	silent(s);
	barrier();
	EQUAL(fi_close(&mr->fid), 0);
	barrier();
}

/* MPICH passes descriptors that are null. Nobody looks at them, whatever they are. */
static void descriptors(struct side *s)
{
	expose(s, 1, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (int i = 0; i < 2; i++) {
		void *null[2] = {NULL}, *none[2] = {(void *)1, (void *)2}, **desc = i ? none : null;
		uint64_t add[2] = {1, 2}, want[2] = {1, 2}, old[2] = {99, 99};
		struct iovec from[2] = {part(out, 100), part(out + 100, 200)}, into[2] = {part(in, 299), part(in + 299, 1)};
		struct fi_rma_iov remote = {.addr = 64, .len = 300, .key = 1};
		struct fi_msg_rma m = {.msg_iov = from, .desc = desc, .iov_count = 2, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1, .context = out};
		fill(out, 300, i + rank_here);
		POST(s, fi_writemsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		CHECK(done(s).op_context == out);
		memset(in, 0, 300);
		m.msg_iov = into;
		POST(s, fi_readmsg(s->ep, &m, FI_COMPLETION));
		CHECK(done(s).op_context == out);
		filled(in, 300, i + rank_here);
		POST(s, fi_writev(s->ep, from, desc, 2, s->other, 64, 1, out));
		done(s);
		POST(s, fi_readv(s->ep, into, desc, 2, s->other, 64, 1, out));
		done(s);
		POST(s, fi_write(s->ep, out, 8, *desc, s->other, 64, 1, out));
		done(s);
		POST(s, fi_read(s->ep, in, 8, *desc, s->other, 64, 1, out));
		done(s);
		/* The three kinds of atomics: added to nothing, added to that, and swapped back. */
		struct fi_ioc operands[2] = {{add, 1}, {add + 1, 1}}, results[2] = {{old, 1}, {old + 1, 1}}, compared[2] = {{want, 1}, {want + 1, 1}};
		struct fi_rma_ioc words = {.addr = 0, .count = 2, .key = 1};
		struct fi_msg_atomic a = {.msg_iov = operands, .desc = desc, .iov_count = 2, .addr = s->other, .rma_iov = &words, .rma_iov_count = 1,
					  .datatype = FI_UINT64, .op = FI_SUM, .context = out};
		POST(s, fi_atomicmsg(s->ep, &a, FI_COMPLETION));
		CHECK(done(s).op_context == out);
		POST(s, fi_fetch_atomicmsg(s->ep, &a, results, desc, 2, FI_COMPLETION));
		CHECK(done(s).op_context == out);
		CHECK(old[0] == 1 && old[1] == 2);
		a.op = FI_CSWAP;
		want[0] = 2;
		want[1] = 4;
		add[0] = add[1] = 0;
		POST(s, fi_compare_atomicmsg(s->ep, &a, compared, desc, 2, results, desc, 2, FI_COMPLETION));
		CHECK(done(s).op_context == out);
		CHECK(old[0] == 2 && old[1] == 4);
		barrier();
		CHECK(*(uint64_t *)exposed == 0 && *(uint64_t *)(exposed + 8) == 0);
		barrier();
	}
	unexpose();
}

/* Offsets, addresses and lengths beyond 32 bits, in memory that is there only where it is touched. */
static void far_offsets(struct side *s)
{
	enum { GIB = 1 << 30 };
	const size_t len = 5ULL * GIB;
	static const uint64_t at[] = {0, 2ULL * GIB - 4, 2ULL * GIB, 4ULL * GIB - 8, 4ULL * GIB, 4ULL * GIB + 4096, 5ULL * GIB - 5000};
	char *sparse = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct fid_mr *mr;
	CHECK(sparse != MAP_FAILED);
	EQUAL(fi_mr_reg(s->domain, sparse, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL), 0);
	barrier();
	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		uint64_t one = 7 + i, old = 99;
		size_t n = i % 2 ? 8 : 5000;
		fill(out, n, i);
		POST(s, fi_write(s->ep, out, n, NULL, s->other, at[i], 1, out));
		done(s);
		memset(in, 0, n);
		POST(s, fi_read(s->ep, in, n, NULL, s->other, at[i], 1, in));
		done(s);
		filled(in, n, i);
		POST(s, fi_fetch_atomic(s->ep, &one, 1, NULL, &old, NULL, s->other, at[i] & ~7ULL, 1, FI_UINT64, FI_ATOMIC_WRITE, out));
		done(s);
		barrier();
		EQUAL(*(uint64_t *)(sparse + (at[i] & ~7ULL)), 7 + i);
		barrier();
	}
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 5ULL * GIB - 7, 1, in));
	failed(s, FI_EACCES);
	POST(s, fi_read(s->ep, in, 8, NULL, s->other, 5ULL * GIB + 8, 1, in));
	failed(s, FI_EACCES);
	barrier();
	EQUAL(fi_close(&mr->fid), 0);
	munmap(sparse, len);
	barrier();
}

static const struct test tests[] = {
	{"rma", rma, NULL},
	{"rma_safe", rma, &safe},
	{"rma_errors", rma_errors, NULL},
	{"dynamic_window", dynamic_window, NULL},
	{"forms", forms, NULL},
	{"forms_safe", forms, &safe},
	{"forms_basic", forms, &basic},
	{"counter_alone", counter_alone, &counting},
	{"not_early", not_early, NULL},
	{"not_early_safe", not_early, &safe},
	{"descriptors", descriptors, NULL},
	{"far_offsets", far_offsets, NULL},
};
RUN_PAIR(tests)
