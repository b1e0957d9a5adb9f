/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomic operations: every pair of datatype and operation in every form, and what they promise to several.
 *
 * usage: atomic LIBFABRIC [TEST...]
 */
#include "pair.h"

/* Bytes of an element. */
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

/* The three kinds of calls. */
enum { SIMPLE, FETCHING, COMPARING, CALLS };

/* What fi_isthmus(7) says of datatypes and operations: which are in the table, each by its call. */
static bool documented(int t, int op, int call)
{
	static const int words[] = {FI_INT8, FI_UINT8, FI_INT16, FI_UINT16, FI_INT32, FI_UINT32, FI_INT64, FI_UINT64};
	static const int integer[] = {FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR, FI_BXOR};
	static const int real[] = {FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_LXOR};
	static const int complex_[] = {FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_LXOR};
	static const int swaps[] = {FI_CSWAP, FI_CSWAP_NE, FI_CSWAP_LE, FI_CSWAP_LT, FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP};
	const int *own = NULL;
	size_t count = 0, swapping = 0;
	for (size_t i = 0; i < 8; i++)
		if (words[i] == t)
			own = integer, count = 10, swapping = 7;
	if (t == FI_FLOAT || t == FI_DOUBLE)
		own = real, count = 7, swapping = 6;
	else if (t == FI_FLOAT_COMPLEX || t == FI_DOUBLE_COMPLEX)
		own = complex_, count = 5, swapping = 2;
	else if (t == FI_LONG_DOUBLE || t == FI_LONG_DOUBLE_COMPLEX)
		own = real; /* none of them */
	if (!own)
		return false;
	if (call == COMPARING) {
		for (size_t i = 0; i < swapping; i++)
			if (swaps[i] == op)
				return true;
		return false;
	}
	for (size_t i = 0; i < count; i++)
		if (own[i] == op)
			return true;
	return op == FI_ATOMIC_WRITE || (op == FI_ATOMIC_READ && call == FETCHING);
}

/* Every way to ask gives that table, to the last number, and how many elements a call may have. */
static void table(struct side *s)
{
	enum { OPERANDS = 2048 };
	int valid[CALLS] = {0};
	for (int t = -1; t < 300; t++)
		for (int op = -1; op < 300; op++)
			for (int call = 0; call < CALLS; call++) {
				static const uint64_t flags[] = {0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC};
				struct fi_atomic_attr attr = {.count = 4711, .size = 4711};
				size_t count = 4711;
				int asked = call == SIMPLE	     ? fi_atomicvalid(s->ep, t, op, &count)
					    : call == FETCHING ? fi_fetch_atomicvalid(s->ep, t, op, &count)
							       : fi_compare_atomicvalid(s->ep, t, op, &count);
				int queried = fi_query_atomic(s->domain, t, op, &attr, flags[call]);
				int expected = documented(t, op, call) ? 0 : -FI_EOPNOTSUPP;
				if (asked != expected || queried != expected)
					FAIL("type %d, operation %d, call %d: %d and %d, not %d", t, op, call, asked, queried, expected);
				if (expected == 0) {
					EQUAL(count, OPERANDS / type_bytes(t));
					EQUAL(attr.count, count);
					EQUAL(attr.size, type_bytes(t));
					valid[call]++;
				} else {
					EQUAL(count, 4711);
				}
			}
	/* 8 types of integers, 2 of real and 2 of complex numbers, 2 of what can only be moved. */
	EQUAL(valid[SIMPLE], 8 * 11 + 2 * 8 + 2 * 6 + 2 * 1);
	EQUAL(valid[FETCHING], 8 * 12 + 2 * 9 + 2 * 7 + 2 * 2);
	EQUAL(valid[COMPARING], 8 * 7 + 2 * 6 + 2 * 2);
	barrier();
}

/* One operation of each class of datatypes, with the numbers written out. */
static void effects(struct side *s)
{
	uint64_t key = 12;
	expose(s, key, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	barrier();
#define EFFECT(T, type, op, before, with, after)                                                         \
	do {                                                                                             \
		_Alignas(32) T was = before, w = with, old, is, now_;                                    \
		memset(&old, 0, sizeof old);                                                             \
		POST(s, fi_write(s->ep, &was, sizeof was, NULL, s->other, 64, key, &was));               \
		done(s);                                                                                 \
		POST(s, fi_fetch_atomic(s->ep, &w, 1, NULL, &old, NULL, s->other, 64, key, type, op, &w)); \
		EQUAL(done(s).flags, FI_ATOMIC | FI_READ);                                               \
		POST(s, fi_read(s->ep, &now_, sizeof now_, NULL, s->other, 64, key, &now_));             \
		done(s);                                                                                 \
		is = after;                                                                              \
		if (!(old == was) || !(now_ == is))                                                      \
			FAIL("%s by %s gives something else", #type, #op);                               \
	} while (0)
	EFFECT(int8_t, FI_INT8, FI_SUM, 120, 10, -126);
	EFFECT(uint8_t, FI_UINT8, FI_PROD, 200, 3, 88);
	EFFECT(int16_t, FI_INT16, FI_MIN, 5, -300, -300);
	EFFECT(uint16_t, FI_UINT16, FI_MAX, 65000, 7, 65000);
	EFFECT(int32_t, FI_INT32, FI_LXOR, 5, -7, 0);
	EFFECT(uint32_t, FI_UINT32, FI_BAND, 0xff00ff00u, 0x0ff00ff0u, 0x0f000f00u);
	EFFECT(int64_t, FI_INT64, FI_BOR, INT64_MIN, 1, INT64_MIN + 1);
	EFFECT(uint64_t, FI_UINT64, FI_BXOR, UINT64_MAX, 1, UINT64_MAX - 1);
	EFFECT(float, FI_FLOAT, FI_SUM, 0.5f, -2.25f, -1.75f);
	EFFECT(double, FI_DOUBLE, FI_PROD, 1e200, -1e100, 1e200 * -1e100);
	EFFECT(float _Complex, FI_FLOAT_COMPLEX, FI_PROD, 1 + 2.0if, 3 - 1.0if, 5 + 5.0if);
	EFFECT(double _Complex, FI_DOUBLE_COMPLEX, FI_SUM, 1 + 2.0i, 3 - 1.0i, 4 + 1.0i);
	EFFECT(long double, FI_LONG_DOUBLE, FI_ATOMIC_WRITE, 1.25L, -3e4000L, -3e4000L);
	EFFECT(long double, FI_LONG_DOUBLE, FI_ATOMIC_READ, 1.25L, 7, 1.25L);
	EFFECT(long double _Complex, FI_LONG_DOUBLE_COMPLEX, FI_ATOMIC_WRITE, 1 + 2.0iL, 3 - 3e4000iL, 3 - 3e4000iL);
	/* Swaps, one for each class. */
#define SWAP(T, type, op, before, compare, with, after)                                                  \
	do {                                                                                             \
		_Alignas(32) T was = before, c = compare, w = with, old, is, now_;                       \
		POST(s, fi_write(s->ep, &was, sizeof was, NULL, s->other, 64, key, &was));               \
		done(s);                                                                                 \
		POST(s, fi_compare_atomic(s->ep, &w, 1, NULL, &c, NULL, &old, NULL, s->other, 64, key, type, op, &w)); \
		done(s);                                                                                 \
		POST(s, fi_read(s->ep, &now_, sizeof now_, NULL, s->other, 64, key, &now_));             \
		done(s);                                                                                 \
		is = after;                                                                              \
		if (!(old == was) || !(now_ == is))                                                      \
			FAIL("%s by %s gives something else", #type, #op);                               \
	} while (0)
	SWAP(int8_t, FI_INT8, FI_CSWAP_LT, -3, -5, 9, 9);
	SWAP(uint8_t, FI_UINT8, FI_CSWAP_LT, 253, 251, 9, 9);
	SWAP(int32_t, FI_INT32, FI_CSWAP_GT, -3, 2, 9, 9);
	SWAP(uint32_t, FI_UINT32, FI_MSWAP, 0xffff0000u, 0x00ff00ffu, 0x12345678u, 0xff340078u);
	SWAP(uint64_t, FI_UINT64, FI_CSWAP, 5, 6, 9, 5);
	SWAP(float, FI_FLOAT, FI_CSWAP_GE, 1.5f, 1.5f, 9, 9);
	SWAP(double, FI_DOUBLE, FI_CSWAP_LE, 1.5, 1.75, 9, 1.5);
	SWAP(float _Complex, FI_FLOAT_COMPLEX, FI_CSWAP_NE, 1 + 2.0if, 1 + 2.0if, 9, 1 + 2.0if);
	SWAP(double _Complex, FI_DOUBLE_COMPLEX, FI_CSWAP, 1 + 2.0i, 1 + 2.0i, 9, 9);
	unexpose();
}

/* A registration lets atomics in that it lets write, and those that give values back where it also lets read: by messages
   and directly. */
static void rights_at(struct side *s, uint64_t key, uint64_t access)
{
	uint64_t one = 1, old = 77, unread = 78;
	bool writes = access & FI_REMOTE_WRITE, reads = access & FI_REMOTE_READ;
	struct fi_ioc ioc = {.addr = &one, .count = 1}, result = {.addr = &unread, .count = 1};
	struct fi_rma_ioc place = {.addr = 8, .count = 1, .key = key};
	struct fi_msg_atomic m = {.msg_iov = &ioc, .iov_count = 1, .addr = s->other, .rma_iov = &place, .rma_iov_count = 1,
				  .datatype = FI_UINT64, .op = FI_SUM, .context = &m};
#define RIGHTS(call, allowed, what)                                                                      \
	do {                                                                                             \
		POST(s, call);                                                                           \
		if (allowed) {                                                                           \
			EQUAL(done(s).flags, what);                                                      \
		} else {                                                                                 \
			struct fi_cq_err_entry e = failed(s, FI_EACCES);                                 \
			EQUAL(e.flags, what);                                                            \
		}                                                                                        \
	} while (0)
	RIGHTS(fi_atomic(s->ep, &one, 1, NULL, s->other, 8, key, FI_UINT64, FI_SUM, &one), writes, FI_ATOMIC | FI_WRITE);
	RIGHTS(fi_atomicmsg(s->ep, &m, FI_COMPLETION), writes, FI_ATOMIC | FI_WRITE);
	RIGHTS(fi_atomic(s->ep, &one, 1, NULL, s->other, 16, key, FI_UINT64, FI_ATOMIC_WRITE, &one), writes, FI_ATOMIC | FI_WRITE);
	RIGHTS(fi_fetch_atomic(s->ep, &one, 1, NULL, &old, NULL, s->other, 8, key, FI_UINT64, FI_SUM, &one), writes && reads, FI_ATOMIC | FI_READ);
	EQUAL(old, writes && reads ? 2 : 77);
	RIGHTS(fi_fetch_atomicmsg(s->ep, &m, &result, NULL, 1, FI_COMPLETION), writes && reads, FI_ATOMIC | FI_READ);
	EQUAL(unread, writes && reads ? 3 : 78);
	old = 77;
	RIGHTS(fi_fetch_atomic(s->ep, NULL, 1, NULL, &old, NULL, s->other, 16, key, FI_UINT64, FI_ATOMIC_READ, &one), writes && reads, FI_ATOMIC | FI_READ);
	EQUAL(old, writes && reads ? 1 : 77);
	old = 77;
	RIGHTS(fi_compare_atomic(s->ep, &one, 1, NULL, &one, NULL, &old, NULL, s->other, 16, key, FI_UINT64, FI_CSWAP, &one), writes && reads, FI_ATOMIC | FI_READ);
	EQUAL(old, writes && reads ? 1 : 77);
	/* Injected ones have no entry but an error's. */
	POST(s, fi_inject_atomic(s->ep, &one, 1, s->other, 24, key, FI_UINT64, FI_SUM));
	if (!writes)
		failed(s, FI_EACCES);
}

static void rights(struct side *s)
{
	static const uint64_t access[] = {FI_SEND, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_REMOTE_READ | FI_REMOTE_WRITE};
	for (int region = 0; region < 2; region++)
		for (int i = 0; i < 4; i++) {
			uint64_t sums = access[i] == (FI_REMOTE_READ | FI_REMOTE_WRITE) ? 4 : access[i] == FI_REMOTE_WRITE ? 2 : 0;
			if (region) {
				publish(s, 20 + i, access[i]);
				barrier();
			} else {
				expose(s, 20 + i, 4096, access[i]);
			}
			rights_at(s, 20 + i, access[i]);
			/* In order, so that what was injected is there, too: or has failed. */
			barrier();
			for (int k = 0; k < 100; k++)
				fi_cq_read(s->cq, NULL, 0);
			barrier();
			double end = now() + SECONDS;
			while (*(volatile uint64_t *)(exposed + 24) != (sums != 0)) {
				fi_cq_read(s->cq, NULL, 0);
				CHECK(now() < end);
			}
			EQUAL(*(uint64_t *)(exposed + 8), sums);
			EQUAL(*(uint64_t *)(exposed + 16), sums != 0);
			barrier();
			silent(s);
			barrier();
			if (region) {
				unpublish(s);
				barrier();
			} else {
				unexpose();
			}
		}
}

static void atomics(struct side *s)
{
	uint64_t key = 3, total = 0;
	size_t count;
	struct fi_atomic_attr attr;
	expose(s, key, 65536, FI_REMOTE_READ | FI_REMOTE_WRITE);
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

/* How many there must be: each of the table's, in each form of its call. */
static int pairs_of(size_t largest)
{
	static const int forms[CALLS] = {4, 3, 3};
	int pairs = 0;
	for (int t = 0; t < FI_DATATYPE_LAST; t++)
		for (int op = 0; op < FI_ATOMIC_OP_LAST; op++)
			for (int call = 0; call < CALLS; call++)
				if (type_bytes(t) <= largest && documented(t, op, call))
					pairs += forms[call];
	return pairs;
}

static void all_pairs(struct side *s)
{
	expose(s, 3, 65536, FI_REMOTE_READ | FI_REMOTE_WRITE);
	EQUAL(pairs_at(s, 3, 4096 + 8192 * rank_here, 32), pairs_of(32));
	unexpose();
}

/* The same on memory in the region, as far as the processor has it, while its owner sleeps. */
static void all_pairs_asleep(struct side *s)
{
	publish(s, 3, FI_REMOTE_READ | FI_REMOTE_WRITE);
	barrier();
	moving = NULL;
	if (rank_here == 0) {
		EQUAL(pairs_at(s, 3, 4096, 8), pairs_of(8));
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
	{"table", table, NULL},
	{"effects", effects, NULL},
	{"rights", rights, NULL},
	{"atomics", atomics, NULL},
	{"all_pairs", all_pairs, NULL},
	{"all_pairs_asleep", all_pairs_asleep, NULL},
	{"beyond", beyond, NULL},
	{"contended", contended, NULL},
	{"contended_safe", contended, &safe},
	{"in_order", in_order, NULL},
};
RUN_PAIR(tests)
