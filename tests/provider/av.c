/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Address vectors.
 *
 * usage: av LIBFABRIC [TEST...]
 */
#include "pair.h"

static struct wish with_source = {.caps = FI_TAGGED | FI_MSG | FI_SOURCE | FI_DIRECTED_RECV};

static void vector(struct side *s)
{
	char name[64], far[64];
	size_t len = 64;
	fi_addr_t a[3];
	EQUAL(fi_av_insert(s->av, NULL, 0, NULL, 0, NULL), 0);
	EQUAL(fi_getname(&s->ep->fid, name, &len), 0);
	/* Twice the same: two numbers, one after the other. */
	EQUAL(fi_av_insert(s->av, name, 1, &a[0], 0, NULL), 1);
	EQUAL(fi_av_insert(s->av, name, 1, &a[1], 0, NULL), 1);
	EQUAL(a[0], 2);
	EQUAL(a[1], 3);
	len = 10;
	memset(far, 0, sizeof far);
	EQUAL(fi_av_lookup(s->av, a[1], far, &len), 0);
	EQUAL(len, 64);
	CHECK(!memcmp(far, name, 10) && far[10] == 0);
	char text[128];
	len = sizeof text;
	CHECK(fi_av_straddr(s->av, name, text, &len) == text);
	CHECK(!strncmp(text, "isthmus://", 10) && len == strlen(text) + 1);
	len = 5;
	fi_av_straddr(s->av, name, text, &len);
	CHECK(!strcmp(text, "isth") && len > 5);
	EQUAL(fi_av_remove(s->av, &a[0], 1, 0), 0);
	CHECK(fi_av_lookup(s->av, a[0], far, &len) < 0);
	CHECK(fi_av_remove(s->av, &a[0], 1, 0) < 0);
	EQUAL(fi_av_insert(s->av, name, 1, NULL, 0, NULL), 1);
	EQUAL(fi_av_insert(s->av, name, 1, &a[2], 0, NULL), 1);
	EQUAL(a[2], 5);
	/* What is no address, and what is another region's. */
	memset(far, 7, sizeof far);
	int errors[2] = {-1, -1};
	char both[128];
	memcpy(both, far, 64);
	memcpy(both + 64, name, 64);
	EQUAL(fi_av_insert(s->av, both, 2, a, FI_SYNC_ERR, errors), 1);
	CHECK(a[0] == FI_ADDR_NOTAVAIL && errors[0] == FI_EINVAL && errors[1] == 0);
	memcpy(far, name, 64);
	far[12] ^= 1;
	EQUAL(fi_av_insert(s->av, far, 1, a, 0, NULL), 0);
	CHECK(fi_tinject(s->ep, name, 8, 12345, 1) < 0);
	barrier();
}

/* Numbers as MPICH needs them: the addresses of all endpoints in one order into each vector, which numbers them in a
   row; a vector that has begun with its own endpoint is ahead by a constant. */
static void consecutive(struct side *s)
{
	enum { EPS = 4 };
	struct fid_ep *ep[EPS];
	struct fid_av *av[EPS];
	char names[2][EPS][64];
	size_t len = 64;
	fi_addr_t first;
	for (int i = 0; i < EPS; i++) {
		struct fi_av_attr attr = {.type = i % 2 ? FI_AV_TABLE : FI_AV_MAP, .count = 2};
		EQUAL(fi_av_open(s->domain, &attr, &av[i], NULL), 0);
		EQUAL(fi_endpoint(s->domain, s->info, &ep[i], NULL), 0);
		EQUAL(fi_ep_bind(ep[i], &av[i]->fid, 0), 0);
		EQUAL(fi_ep_bind(ep[i], &s->cq->fid, FI_TRANSMIT | FI_RECV), 0);
		EQUAL(fi_enable(ep[i]), 0);
		EQUAL(fi_getname(&ep[i]->fid, names[rank_here][i], &len), 0);
	}
	tell(names[rank_here], sizeof names[0]);
	hear(names[!rank_here], sizeof names[0]);
	EQUAL(fi_av_insert(av[0], names[rank_here][0], 1, &first, 0, NULL), 1);
	EQUAL(first, 0);
	for (int r = 0; r < 2; r++)
		for (int k = 0; k < EPS; k++)
			for (int i = 0; i < EPS; i++) {
				fi_addr_t a;
				EQUAL(fi_av_insert(av[i], names[r][k], 1, &a, 0, NULL), 1);
				EQUAL(a, r * EPS + k + (i == 0));
				char back[64];
				len = sizeof back;
				EQUAL(fi_av_lookup(av[i], a, back, &len), 0);
				CHECK(len == 64 && !memcmp(back, names[r][k], 64));
			}
	barrier();
	/* Each number leads where it should: every endpoint to every other. */
	for (int i = 0; i < EPS; i++)
		for (int k = 0; k < EPS; k++) {
			uint64_t v = 0, x = 100 * i + k;
			POST(s, fi_trecv(ep[k], &v, 8, NULL, !rank_here * EPS + i + (k == 0), x, 0, &v));
			POST(s, fi_tinject(ep[i], &x, 8, !rank_here * EPS + k + (i == 0), x));
			CHECK(done(s).op_context == &v);
			EQUAL(v, x);
		}
	barrier();
	for (int i = 0; i < EPS; i++) {
		CHECK(fi_close(&av[i]->fid) == -FI_EBUSY);
		EQUAL(fi_close(&ep[i]->fid), 0);
		/* As Open MPI does at its end: addresses go after the endpoint. */
		EQUAL(fi_av_remove(av[i], &(fi_addr_t){1}, 1, 0), 0);
		EQUAL(fi_close(&av[i]->fid), 0);
	}
	barrier();
}

static void attributes(struct side *s)
{
	struct fid_av *av;
	struct fi_av_attr attr = {.type = FI_AV_UNSPEC};
	EQUAL(fi_av_open(s->domain, &attr, &av, NULL), 0);
	EQUAL(fi_close(&av->fid), 0);
	EQUAL(fi_av_open(s->domain, NULL, &av, NULL), 0);
	EQUAL(fi_close(&av->fid), 0);
	/* Vectors that processes share are not offered; MPICH goes on without. */
	attr = (struct fi_av_attr){.type = FI_AV_TABLE, .name = "shared", .flags = FI_READ};
	EQUAL(fi_av_open(s->domain, &attr, &av, NULL), -FI_ENOSYS);
	attr = (struct fi_av_attr){.type = FI_AV_TABLE, .rx_ctx_bits = 4};
	CHECK(fi_av_open(s->domain, &attr, &av, NULL) < 0);
	attr = (struct fi_av_attr){.type = 77};
	CHECK(fi_av_open(s->domain, &attr, &av, NULL) < 0);
	CHECK(fi_av_insertsvc(s->av, "nowhere.invalid", "7471", NULL, 0, NULL) < 0);
	CHECK(fi_av_insertsvc(s->av, "localhost", NULL, NULL, 0, NULL) < 0);
	CHECK(fi_av_insertsym(s->av, "localhost", 1, "7471", 1, NULL, 0, NULL) < 0);
	/* Many at once, with and without a place for their numbers. */
	enum { N = 300 };
	static char names[N][64];
	static fi_addr_t a[N];
	size_t len = 64;
	EQUAL(fi_getname(&s->ep->fid, names[0], &len), 0);
	for (int i = 1; i < N; i++)
		memcpy(names[i], names[0], 64);
	EQUAL(fi_av_insert(s->av, names, N, a, 0, NULL), N);
	for (int i = 0; i < N; i++)
		EQUAL(a[i], 2 + i);
	EQUAL(fi_av_insert(s->av, names, N, NULL, 0, NULL), N);
	EQUAL(fi_av_remove(s->av, a, N, 0), 0);
	/* What was removed is not reached, and its number not given again. */
	CHECK(fi_tinject(s->ep, names, 8, a[5], 1) < 0);
	EQUAL(fi_av_insert(s->av, names, 1, a, 0, NULL), 1);
	EQUAL(a[0], 2 + 2 * N);
	POST(s, fi_tinject(s->ep, "x", 1, a[0], 1));
	POST(s, fi_trecv(s->ep, in, 1, NULL, FI_ADDR_UNSPEC, 1, 0, in));
	done(s);
	barrier();
}

/* A number is taken away after it was used, and its address inserted again: the new number works, the old one does not. */
static void removal(struct side *s)
{
	char name[64];
	size_t len = 64;
	fi_addr_t again;
	barrier();
	POST(s, fi_tinject(s->ep, "1", 1, s->other, 1));
	POST(s, fi_trecv(s->ep, in, 1, NULL, s->other, 1, 0, in));
	done(s);
	barrier();
	EQUAL(fi_av_lookup(s->av, s->other, name, &len), 0);
	EQUAL(fi_av_remove(s->av, &s->other, 1, 0), 0);
	CHECK(fi_tinject(s->ep, "2", 1, s->other, 2) < 0);
	EQUAL(fi_av_insert(s->av, name, 1, &again, 0, NULL), 1);
	CHECK(again != s->other);
	POST(s, fi_trecv(s->ep, in, 1, NULL, again, 2, 0, in));
	barrier();
	POST(s, fi_tinject(s->ep, "2", 1, again, 2));
	struct fi_cq_tagged_entry e;
	fi_addr_t from;
	double end = now() + SECONDS;
	ssize_t r;
	while ((r = fi_cq_readfrom(s->cq, &e, 1, &from)) == -FI_EAGAIN)
		CHECK(now() < end);
	EQUAL(r, 1);
	CHECK(from == again);
	barrier();
}

static const struct test tests[] = {
	{"vector", vector, NULL},
	{"consecutive", consecutive, NULL},
	{"attributes", attributes, NULL},
	{"removal", removal, &with_source},
};
RUN_PAIR(tests)
