/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomic operations: every pair of datatype and operation in every form, and what they promise to several.
 *
 * usage: atomic LIBFABRIC [TEST...]
 */
#include "pair.h"

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

/* Elements of every type as the model computes with them: integers as such, real and complex numbers in doubles. */
static size_t type_bytes(int t)
{
	switch (t) {
	case FI_INT8: case FI_UINT8: return 1;
	case FI_INT16: case FI_UINT16: return 2;
	case FI_INT32: case FI_UINT32: case FI_FLOAT: return 4;
	case FI_INT64: case FI_UINT64: case FI_DOUBLE: case FI_FLOAT_COMPLEX: return 8;
	case FI_DOUBLE_COMPLEX: case FI_LONG_DOUBLE: return 16;
	case FI_LONG_DOUBLE_COMPLEX: return 32;
	}
	return 0;
}

/* Small values, so that all results are exact; of both signs where there are any. */
static void make(int t, void *at, int v)
{
	if (v < 0 && (t == FI_UINT8 || t == FI_UINT16 || t == FI_UINT32 || t == FI_UINT64))
		v = 200 + v;
	memset(at, 0, type_bytes(t));
	switch (t) {
	case FI_INT8: *(int8_t *)at = v; break;
	case FI_UINT8: *(uint8_t *)at = v; break;
	case FI_INT16: *(int16_t *)at = v * 100; break;
	case FI_UINT16: *(uint16_t *)at = v * 100; break;
	case FI_INT32: *(int32_t *)at = v * 100000; break;
	case FI_UINT32: *(uint32_t *)at = v * 100000u; break;
	case FI_INT64: *(int64_t *)at = v * 10000000000LL; break;
	case FI_UINT64: *(uint64_t *)at = v * 10000000000ULL; break;
	case FI_FLOAT: *(float *)at = v / 2.0f; break;
	case FI_DOUBLE: *(double *)at = v / 2.0; break;
	case FI_FLOAT_COMPLEX: *(float _Complex *)at = v + 2.0fi * (v % 3); break;
	case FI_DOUBLE_COMPLEX: *(double _Complex *)at = v + 2.0i * (v % 3); break;
	case FI_LONG_DOUBLE: { long double x = v / 2.0L; memcpy(at, &x, 10); break; }
	case FI_LONG_DOUBLE_COMPLEX: { long double x = v / 2.0L; memcpy(at, &x, 10); memcpy((char *)at + 16, &x, 10); break; }
	}
}

/* The model: what an operation leaves behind. */
#define REAL_STEP(T)                                                                                     \
	do {                                                                                             \
		T x = *(T *)old, w = *(T *)with, c = *(T *)compare, r = x;                               \
		switch (op) {                                                                            \
		case FI_MIN: r = w < x ? w : x; break;                                                   \
		case FI_MAX: r = w > x ? w : x; break;                                                   \
		case FI_SUM: r = x + w; break;                                                           \
		case FI_PROD: r = x * w; break;                                                          \
		case FI_LOR: r = x || w; break;                                                          \
		case FI_LAND: r = x && w; break;                                                         \
		case FI_LXOR: r = !x != !w; break;                                                       \
		case FI_ATOMIC_WRITE: r = w; break;                                                      \
		case FI_CSWAP: if (c == x) r = w; break;                                                 \
		case FI_CSWAP_NE: if (c != x) r = w; break;                                              \
		case FI_CSWAP_LE: if (c <= x) r = w; break;                                              \
		case FI_CSWAP_LT: if (c < x) r = w; break;                                               \
		case FI_CSWAP_GE: if (c >= x) r = w; break;                                              \
		case FI_CSWAP_GT: if (c > x) r = w; break;                                               \
		}                                                                                        \
		*(T *)old = r;                                                                           \
	} while (0)
#define INT_STEP(T)                                                                                      \
	do {                                                                                             \
		T x = *(T *)old, w = *(T *)with, c = *(T *)compare;                                      \
		switch (op) {                                                                            \
		case FI_SUM: *(T *)old = (T)((uint64_t)x + (uint64_t)w); break;                          \
		case FI_PROD: *(T *)old = (T)((uint64_t)x * (uint64_t)w); break;                         \
		case FI_BOR: *(T *)old = x | w; break;                                                   \
		case FI_BAND: *(T *)old = x & w; break;                                                  \
		case FI_BXOR: *(T *)old = x ^ w; break;                                                  \
		case FI_MSWAP: *(T *)old = (w & c) | (x & ~c); break;                                    \
		default: REAL_STEP(T);                                                                   \
		}                                                                                        \
	} while (0)
#define COMPLEX_STEP(T)                                                                                  \
	do {                                                                                             \
		T x = *(T *)old, w = *(T *)with, c = *(T *)compare, r = x;                               \
		switch (op) {                                                                            \
		case FI_SUM: r = x + w; break;                                                           \
		case FI_PROD: r = x * w; break;                                                          \
		case FI_LOR: r = x != 0 || w != 0; break;                                                \
		case FI_LAND: r = x != 0 && w != 0; break;                                               \
		case FI_LXOR: r = (x != 0) != (w != 0); break;                                           \
		case FI_ATOMIC_WRITE: r = w; break;                                                      \
		case FI_CSWAP: if (c == x) r = w; break;                                                 \
		case FI_CSWAP_NE: if (c != x) r = w; break;                                              \
		}                                                                                        \
		*(T *)old = r;                                                                           \
	} while (0)

static void step(int t, int op, void *old, const void *with, const void *compare)
{
	switch (t) {
	case FI_INT8: INT_STEP(int8_t); break;
	case FI_UINT8: INT_STEP(uint8_t); break;
	case FI_INT16: INT_STEP(int16_t); break;
	case FI_UINT16: INT_STEP(uint16_t); break;
	case FI_INT32: INT_STEP(int32_t); break;
	case FI_UINT32: INT_STEP(uint32_t); break;
	case FI_INT64: INT_STEP(int64_t); break;
	case FI_UINT64: INT_STEP(uint64_t); break;
	case FI_FLOAT: REAL_STEP(float); break;
	case FI_DOUBLE: REAL_STEP(double); break;
	case FI_FLOAT_COMPLEX: COMPLEX_STEP(float _Complex); break;
	case FI_DOUBLE_COMPLEX: COMPLEX_STEP(double _Complex); break;
	default:
		if (op == FI_ATOMIC_WRITE)
			memcpy(old, with, type_bytes(t));
	}
}

/* Each pair that is offered for elements of up to `largest` bytes, in each call form, compared with the model. The other
   side's memory, at `base`, is read back. Gives how many there were. */
static int pairs_at(struct side *s, uint64_t key, uint64_t base, size_t largest)
{
	enum { PLAIN, PLAINV, PLAINMSG, INJECT, FETCH, FETCHV, FETCHMSG, COMPARE, COMPAREV, COMPAREMSG, FORMS };
	enum { N = 12 };
	_Alignas(32) char with[N * 32], compare[N * 32], result[N * 32], model[N * 32], before[N * 32], now_[N * 32];
	uint64_t counts = 0;
	int pairs = 0;
	for (int t = 0; t < FI_DATATYPE_LAST; t++)
		for (int op = 0; op < FI_ATOMIC_OP_LAST; op++)
			for (int how = 0; how < FORMS; how++) {
				size_t most = 0, n = N, b = type_bytes(t);
				int valid = how < FETCH ? fi_atomicvalid(s->ep, t, op, &most)
					    : how < COMPARE ? fi_fetch_atomicvalid(s->ep, t, op, &most)
							    : fi_compare_atomicvalid(s->ep, t, op, &most);
				if (b > largest)
					continue;
				if (valid != 0) {
					/* Not offered: refused when it is tried. */
					if (how == PLAIN)
						EQUAL(fi_atomic(s->ep, with, 1, NULL, s->other, base, key, t, op, with), -FI_EOPNOTSUPP);
					if (how == FETCH)
						EQUAL(fi_fetch_atomic(s->ep, with, 1, NULL, result, NULL, s->other, base, key, t, op, with), -FI_EOPNOTSUPP);
					if (how == COMPARE)
						EQUAL(fi_compare_atomic(s->ep, with, 1, NULL, compare, NULL, result, NULL, s->other, base, key, t, op, with), -FI_EOPNOTSUPP);
					continue;
				}
				CHECK(most >= n);
				pairs++;
				for (size_t i = 0; i < n; i++) {
					make(t, model + i * b, (int)i % 5 - 2);
					make(t, with + i * b, (int)i % 4 - 1);
					make(t, compare + i * b, (int)i % 3 - 1);
				}
				memcpy(before, model, n * b);
				memset(result, 0x77, sizeof result);
				for (size_t i = 0; i < n; i++)
					step(t, op, model + i * b, with + i * b, compare + i * b);
				POST(s, fi_write(s->ep, before, n * b, NULL, s->other, base, key, before));
				done(s);
				struct fi_ioc parts[2] = {{.addr = with, .count = 5}, {.addr = with + 5 * b, .count = n - 5}};
				struct fi_ioc compares[2] = {{.addr = compare, .count = 1}, {.addr = compare + b, .count = n - 1}};
				struct fi_ioc results[2] = {{.addr = result, .count = n - 2}, {.addr = result + (n - 2) * b, .count = 2}};
				struct fi_rma_ioc remote = {.addr = base, .count = n, .key = key};
				struct fi_msg_atomic m = {.msg_iov = parts, .iov_count = 2, .addr = s->other, .rma_iov = &remote,
							  .rma_iov_count = 1, .datatype = t, .op = op, .context = model};
				/* A read may come without operands. */
				void *w = op == FI_ATOMIC_READ ? NULL : with;
				struct fid_ep *ep = s->ep;
				fi_addr_t o = s->other;
				switch (how) {
				case PLAIN: POST(s, fi_atomic(ep, w, n, NULL, o, base, key, t, op, model)); break;
				case PLAINV: POST(s, fi_atomicv(ep, parts, NULL, 2, o, base, key, t, op, model)); break;
				case PLAINMSG: POST(s, fi_atomicmsg(ep, &m, FI_COMPLETION)); break;
				case INJECT: POST(s, fi_inject_atomic(ep, w, n, o, base, key, t, op)); break;
				case FETCH: POST(s, fi_fetch_atomic(ep, w, n, NULL, result, NULL, o, base, key, t, op, model)); break;
				case FETCHV: POST(s, fi_fetch_atomicv(ep, parts, NULL, 2, results, NULL, 2, o, base, key, t, op, model)); break;
				case FETCHMSG: POST(s, fi_fetch_atomicmsg(ep, &m, results, NULL, 2, FI_COMPLETION)); break;
				case COMPARE: POST(s, fi_compare_atomic(ep, w, n, NULL, compare, NULL, result, NULL, o, base, key, t, op, model)); break;
				case COMPAREV: POST(s, fi_compare_atomicv(ep, parts, NULL, 2, compares, NULL, 2, results, NULL, 2, o, base, key, t, op, model)); break;
				case COMPAREMSG: POST(s, fi_compare_atomicmsg(ep, &m, compares, NULL, 2, results, NULL, 2, FI_COMPLETION)); break;
				}
				counts += 2; /* the write, and this */
				if (how != INJECT) {
					struct fi_cq_tagged_entry e = done(s);
					CHECK(e.op_context == model);
					EQUAL(e.flags, FI_ATOMIC | (how < FETCH ? FI_WRITE : FI_READ));
				}
				counted(s, counts);
				POST(s, fi_read(s->ep, now_, n * b, NULL, s->other, base, key, now_));
				done(s);
				counts++;
				if (memcmp(now_, model, n * b))
					FAIL("type %d, operation %d, form %d: wrong value", t, op, how);
				if (how >= FETCH && memcmp(result, before, n * b))
					FAIL("type %d, operation %d, form %d: wrong value before", t, op, how);
				if (how < FETCH)
					CHECK(result[0] == 0x77);
			}
	silent(s);
	return pairs;
}

/* 8 integer types in all, real ones in all but the bitwise, complex ones in some: no fewer than these. */
enum { PAIRS = 8 * (11 * 7 + 2 * 3 + 7 * 3) };

static void all_pairs(struct side *s)
{
	expose(s, 3, 65536, FI_REMOTE_READ | FI_REMOTE_WRITE);
	CHECK(pairs_at(s, 3, 4096 + 8192 * rank_here, 32) > PAIRS);
	unexpose();
}

/* The same on memory in the region, as far as the processor has it, while its owner sleeps. */
static void all_pairs_asleep(struct side *s)
{
	publish(s, 3, FI_REMOTE_READ | FI_REMOTE_WRITE);
	barrier();
	moving = NULL;
	if (rank_here == 0) {
		CHECK(pairs_at(s, 3, 4096, 8) > PAIRS);
		ring(s, 0, 3);
	} else {
		asleep();
	}
	moving = s;
	barrier();
	unpublish(s);
	barrier();
}

/* Numbers that later versions have, and any others, are refused by every call and never looked up. */
static void beyond(struct side *s)
{
	static const int types[] = {FI_DATATYPE_LAST, 15, 16, 17, 63, 64, 255, 256, 0x7fffffff, -1};
	uint64_t v[64] = {0};
	size_t count;
	struct fi_atomic_attr attr;
	expose(s, 1, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		for (int both = 0; both < 2; both++) {
			int t = both ? FI_UINT64 : types[i], op = both ? (types[i] == FI_DATATYPE_LAST ? FI_ATOMIC_OP_LAST : types[i]) : FI_SUM;
			if (both && types[i] >= 0 && types[i] < FI_ATOMIC_OP_LAST && op != FI_ATOMIC_OP_LAST)
				continue;
			CHECK(fi_atomicvalid(s->ep, t, op, &count) < 0 && fi_fetch_atomicvalid(s->ep, t, op, &count) < 0);
			CHECK(fi_compare_atomicvalid(s->ep, t, op, &count) < 0);
			CHECK(fi_query_atomic(s->domain, t, op, &attr, 0) < 0);
			CHECK(fi_query_atomic(s->domain, t, op, &attr, FI_FETCH_ATOMIC) < 0);
			CHECK(fi_atomic(s->ep, v, 1, NULL, s->other, 0, 1, t, op, v) < 0);
			CHECK(fi_inject_atomic(s->ep, v, 1, s->other, 0, 1, t, op) < 0);
			CHECK(fi_fetch_atomic(s->ep, v, 1, NULL, v, NULL, s->other, 0, 1, t, op, v) < 0);
			CHECK(fi_compare_atomic(s->ep, v, 1, NULL, v, NULL, v, NULL, s->other, 0, 1, t, op, v) < 0);
			struct fi_ioc ioc = {.addr = v, .count = 1};
			struct fi_rma_ioc remote = {.addr = 0, .count = 1, .key = 1};
			struct fi_msg_atomic m = {.msg_iov = &ioc, .iov_count = 1, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1,
						  .datatype = t, .op = op};
			CHECK(fi_atomicmsg(s->ep, &m, 0) < 0);
			CHECK(fi_fetch_atomicmsg(s->ep, &m, &ioc, NULL, 1, 0) < 0);
			CHECK(fi_compare_atomicmsg(s->ep, &m, &ioc, NULL, 1, &ioc, NULL, 1, 0) < 0);
		}
	/* A count of none completes; parts that do not add up are refused. */
	POST(s, fi_atomic(s->ep, NULL, 0, NULL, s->other, 0, 1, FI_UINT64, FI_SUM, v));
	done(s);
	POST(s, fi_fetch_atomic(s->ep, NULL, 0, NULL, NULL, NULL, s->other, 0, 1, FI_UINT64, FI_SUM, v));
	done(s);
	struct fi_ioc two = {.addr = v, .count = 2}, three = {.addr = v, .count = 3};
	struct fi_rma_ioc remote = {.addr = 0, .count = 2, .key = 1};
	struct fi_msg_atomic m = {.msg_iov = &two, .iov_count = 1, .addr = s->other, .rma_iov = &remote, .rma_iov_count = 1,
				  .datatype = FI_UINT64, .op = FI_SUM};
	EQUAL(fi_fetch_atomicmsg(s->ep, &m, &three, NULL, 1, 0), -FI_EINVAL);
	EQUAL(fi_fetch_atomic(s->ep, v, 1, NULL, v, NULL, s->other, 1, 1, FI_UINT64, FI_SUM, v), 0); /* misaligned */
	done(s);
	unexpose();
}

/* Four writers on the same words: nothing is lost, whatever the width. */
static void contended(struct side *s)
{
	enum { N = 2000 };
	expose(s, 9, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	fi_addr_t zero = rank_here == 0 ? s->self : s->other;
	uint8_t b = 1;
	uint16_t h = 1;
	uint32_t w = 1;
	float f = 1;
	double d = 1;
	double _Complex c = 1 + 1.0i;
	for (int i = 0; i < N; i++) {
		POST(s, fi_inject_atomic(s->ep, &b, 1, zero, 1, 9, FI_UINT8, FI_SUM));
		POST(s, fi_inject_atomic(s->ep, &h, 1, zero, 2, 9, FI_UINT16, FI_SUM));
		POST(s, fi_inject_atomic(s->ep, &w, 1, zero, 4, 9, FI_UINT32, FI_SUM));
		POST(s, fi_inject_atomic(s->ep, &f, 1, zero, 8, 9, FI_FLOAT, FI_SUM));
		POST(s, fi_inject_atomic(s->ep, &d, 1, zero, 16, 9, FI_DOUBLE, FI_SUM));
		POST(s, fi_inject_atomic(s->ep, &c, 1, zero, 32, 9, FI_DOUBLE_COMPLEX, FI_SUM));
		/* The program's own instructions count, too. */
		if (rank_here == 0)
			__atomic_fetch_add((uint32_t *)(exposed + 4), 1, __ATOMIC_SEQ_CST);
	}
	counted(s, 6 * N);
	barrier();
	if (rank_here == 0) {
		EQUAL(*(uint8_t *)(exposed + 1), (uint8_t)(2 * N));
		EQUAL(*(uint16_t *)(exposed + 2), 2 * N);
		EQUAL(*(uint32_t *)(exposed + 4), 3 * N);
		CHECK(*(float *)(exposed + 8) == 2 * N);
		CHECK(*(double *)(exposed + 16) == 2 * N);
		CHECK(*(double _Complex *)(exposed + 32) == 2 * N + 2.0i * N);
	}
	unexpose();
}

/* Atomics of a pair are done in the order of the calls. */
static void in_order(struct side *s)
{
	expose(s, 2, 64, FI_REMOTE_READ | FI_REMOTE_WRITE);
	uint64_t at = 8 * rank_here;
	for (uint64_t i = 1; i <= 500; i++) {
		uint64_t v = i, old = 99;
		POST(s, fi_inject_atomic(s->ep, &v, 1, s->other, at, 2, FI_UINT64, FI_ATOMIC_WRITE));
		v = 2;
		POST(s, fi_inject_atomic(s->ep, &v, 1, s->other, at, 2, FI_UINT64, FI_PROD));
		POST(s, fi_fetch_atomic(s->ep, NULL, 1, NULL, &old, NULL, s->other, at, 2, FI_UINT64, FI_ATOMIC_READ, &old));
		CHECK(done(s).op_context == &old);
		EQUAL(old, 2 * i);
	}
	unexpose();
}

static struct wish safe = {.threading = FI_THREAD_SAFE};

static const struct test tests[] = {
	{"atomics", atomics, NULL},
	{"all_pairs", all_pairs, NULL},
	{"all_pairs_asleep", all_pairs_asleep, NULL},
	{"beyond", beyond, NULL},
	{"contended", contended, NULL},
	{"contended_safe", contended, &safe},
	{"in_order", in_order, NULL},
};
RUN_PAIR(tests)
