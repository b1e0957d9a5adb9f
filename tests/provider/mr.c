/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory registration: keys, ranges of all kinds, access, binding, closing.
 *
 * usage: mr LIBFABRIC [TEST...]
 */
#include "pair.h"

static struct fid_mr *reg(struct side *s, void *at, size_t len, uint64_t access, uint64_t key)
{
	struct fid_mr *mr;
	EQUAL(fi_mr_reg(s->domain, at, len, access, 0, key, 0, &mr, &mr), 0);
	EQUAL(fi_mr_key(mr), key);
	return mr;
}

static void put(struct side *s, uint64_t key, uint64_t at, size_t n, int expected)
{
	POST(s, fi_write(s->ep, out, n, NULL, s->other, at, key, out));
	if (expected)
		failed(s, expected);
	else
		done(s);
}

static void get(struct side *s, uint64_t key, uint64_t at, size_t n, int expected)
{
	POST(s, fi_read(s->ep, in, n, NULL, s->other, at, key, in));
	if (expected)
		failed(s, expected);
	else
		done(s);
}

/* Rank 0 registers, rank 1 tries. */
#define TRY(what)                                                                                        \
	do {                                                                                             \
		barrier();                                                                               \
		if (rank_here)                                                                           \
			what;                                                                            \
		barrier();                                                                               \
	} while (0)

static const char constant[4096] = "not to be written";

static void ranges(struct side *s)
{
	struct fid_mr *mr[6];
	char stack[256] = {0};
	int fd = memfd_create("mr", 0);
	CHECK(fd >= 0 && ftruncate(fd, 8192) == 0);
	char *file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *heap = calloc(1, 10000);
	uint64_t both = FI_REMOTE_READ | FI_REMOTE_WRITE;
	if (rank_here == 0) {
		mr[0] = reg(s, stack, sizeof stack, both, 1);
		mr[1] = reg(s, file, 8192, both, 2);
		mr[2] = reg(s, (void *)constant, sizeof constant, FI_REMOTE_READ, 3);
		mr[3] = reg(s, heap, 10000, both, 4);
		mr[4] = reg(s, heap + 5000, 5000, FI_REMOTE_READ, 5); /* overlaps */
		mr[5] = reg(s, heap, 0, both, 0xffffffffffffffffULL);
	}
	fill(out, 10000, 1);
	TRY(put(s, 1, 10, 246, 0));
	TRY(put(s, 1, 10, 247, FI_EACCES));
	TRY(put(s, 2, 4000, 4192, 0));
	TRY(get(s, 3, 0, 4096, 0));
	if (rank_here)
		CHECK(!strcmp(in, constant));
	TRY(put(s, 3, 0, 1, FI_EACCES));
	TRY(put(s, 4, 0, 10000, 0));
	TRY(get(s, 5, 0, 5000, 0));
	if (rank_here)
		CHECK(!memcmp(in, out + 5000, 5000));
	TRY(put(s, 5, 0, 8, FI_EACCES));
	TRY(put(s, 0xffffffffffffffffULL, 0, 0, 0));
	TRY(put(s, 0xffffffffffffffffULL, 0, 1, FI_EACCES));
	if (rank_here == 0) {
		filled(stack + 10, 246, 1);
		char back[4192];
		EQUAL(pread(fd, back, 4192, 4000), 4192);
		filled(back, 4192, 1);
		filled(heap, 10000, 1);
		/* What is closed cannot be reached any more; what overlaps it can. */
		EQUAL(fi_close(&mr[3]->fid), 0);
	}
	TRY(get(s, 4, 0, 8, FI_ENOKEY));
	TRY(get(s, 5, 0, 8, 0));
	if (rank_here == 0) {
		/* A key that was closed can be taken again. */
		mr[3] = reg(s, heap, 100, FI_REMOTE_READ, 4);
		struct fid_mr *twice;
		EQUAL(fi_mr_reg(s->domain, heap, 100, both, 0, 4, 0, &twice, NULL), -FI_ENOKEY);
	}
	TRY(get(s, 4, 0, 100, 0));
	TRY(get(s, 4, 0, 101, FI_EACCES));
	if (rank_here == 0)
		for (int i = 0; i < 6; i++)
			EQUAL(fi_close(&mr[i]->fid), 0);
	TRY(get(s, 1, 0, 8, FI_ENOKEY));
	munmap(file, 8192);
	close(fd);
	free(heap);
}

static void calls(struct side *s)
{
	struct fid_mr *mr;
	char memory[64];
	struct iovec iov[2] = {part(memory, 32), part(memory + 32, 32)};
	CHECK(s->info->domain_attr->mr_iov_limit == 1);
	EQUAL(fi_mr_regv(s->domain, iov, 1, FI_REMOTE_READ, 0, 7, 0, &mr, NULL), 0);
	CHECK(!fi_mr_desc(mr));
	/* An endpoint that asks for it by FI_MR_ENDPOINT is bound, and the region enabled. */
	EQUAL(fi_mr_bind(mr, &s->ep->fid, 0), 0);
	EQUAL(fi_mr_enable(mr), 0);
	EQUAL(fi_mr_key(mr), 7);
	/* A domain does not go while there are regions. */
	EQUAL(fi_close(&s->domain->fid), -FI_EBUSY);
	EQUAL(fi_close(&mr->fid), 0);
	CHECK(fi_mr_regv(s->domain, iov, 2, FI_REMOTE_READ, 0, 7, 0, &mr, NULL) < 0);
	CHECK(fi_mr_regattr(s->domain, NULL, 0, &mr) < 0);
	CHECK(fi_mr_reg(s->domain, memory, 64, FI_REMOTE_READ, 0, 7, FI_RMA_EVENT, &mr, NULL) < 0);
	CHECK(fi_mr_reg(s->domain, (void *)-64, 128, FI_REMOTE_READ, 0, 7, 0, &mr, NULL) < 0);
	/* Local access needs none, but may be registered. */
	EQUAL(fi_mr_reg(s->domain, memory, 64, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 0, 0, &mr, NULL), 0);
	EQUAL(fi_close(&mr->fid), 0);
	barrier();
}

/* Many keys, as a program has that registers every buffer. */
static void many(struct side *s)
{
	enum { N = 5000 };
	static struct fid_mr *mr[N];
	static uint64_t words[N];
	for (uint64_t i = 0; i < N; i++)
		EQUAL(fi_mr_reg(s->domain, &words[i], 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, i << 32 | 5, 0, &mr[i], NULL), 0);
	barrier();
	for (uint64_t i = 0; i < N; i++) {
		uint64_t v = i + 1;
		POST(s, fi_inject_write(s->ep, &v, 8, s->other, 0, i << 32 | 5));
	}
	counted(s, N);
	barrier();
	for (uint64_t i = 0; i < N; i++) {
		EQUAL(words[i], i + 1);
		EQUAL(fi_close(&mr[i]->fid), 0);
	}
	barrier();
}

static const struct test tests[] = {
	{"ranges", ranges, NULL},
	{"calls", calls, NULL},
	{"many", many, NULL},
};
RUN_PAIR(tests)
