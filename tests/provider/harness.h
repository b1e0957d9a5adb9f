/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the provider's tests share: a libfabric that is loaded by path, two processes, objects, waiting.
 *
 * The libfabric is opened with dlopen and RTLD_LOCAL, as Python and Intel MPI do, so one test program runs against the
 * system's copy and against those that come with MPIs. Its four functions are the newest version of each; the structures
 * are those of the headers that this was compiled with, whose members newer versions keep in place.
 */
#ifndef HARNESS_H
#define HARNESS_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef OVER_MPI
#include <mpi.h>
#endif
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define API FI_VERSION(1, 15)
#define SECONDS 30

static struct {
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	void (*freeinfo)(struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	uint32_t (*version)(void);
} lf;

static const char *test_name = "start";
static int rank_here = -1;

#define FAIL(...)                                                                                        \
	do {                                                                                             \
		fprintf(stderr, "%s:%d: rank %d, %s: ", __FILE__, __LINE__, rank_here, test_name);       \
		fprintf(stderr, __VA_ARGS__);                                                            \
		fputc('\n', stderr);                                                                     \
		_exit(1);                                                                                \
	} while (0)

#define CHECK(condition)                                                                                 \
	do {                                                                                             \
		if (!(condition))                                                                        \
			FAIL("not so: %s", #condition);                                                  \
	} while (0)

#define EQUAL(found, expected)                                                                           \
	do {                                                                                             \
		long long f_ = (long long)(found), e_ = (long long)(expected);                           \
		if (f_ != e_)                                                                            \
			FAIL("%s is %lld, not %lld", #found, f_, e_);                                    \
	} while (0)

static inline void *load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		FAIL("%s", dlerror());
	*(void **)&lf.getinfo = dlsym(lib, "fi_getinfo");
	*(void **)&lf.dupinfo = dlsym(lib, "fi_dupinfo");
	*(void **)&lf.freeinfo = dlsym(lib, "fi_freeinfo");
	*(void **)&lf.fabric = dlsym(lib, "fi_fabric");
	*(void **)&lf.version = dlsym(lib, "fi_version");
	CHECK(lf.getinfo && lf.dupinfo && lf.freeinfo && lf.fabric && lf.version);
	return lib;
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* One process's objects. */
struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_ep *ep;
	fi_addr_t self, other;
};

/* How they shall be. */
struct wish {
	uint64_t caps, tx_op_flags, rx_op_flags, bind_flags;
	uint32_t api;
	int mr_mode;
	enum fi_threading threading;
	enum fi_cq_format format;
	enum fi_wait_obj wait;
};

#ifndef OVER_MPI
static int line = -1; /* to the other process */
#endif
static struct side *moving; /* whose queue is read while this process waits for the other */

#ifdef OVER_MPI
/* The other process may be in another VM: what the two say to each other goes through their MPI. */
static inline void tell(const void *bytes, size_t len)
{
	MPI_Send(bytes, len, MPI_BYTE, !rank_here, 1, MPI_COMM_WORLD);
}

static inline void hear(void *bytes, size_t len)
{
	MPI_Recv(bytes, len, MPI_BYTE, !rank_here, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static inline void barrier(void)
{
	char mine = 'b', theirs;
	MPI_Request r[2];
	MPI_Irecv(&theirs, 1, MPI_CHAR, !rank_here, 2, MPI_COMM_WORLD, &r[0]);
	MPI_Isend(&mine, 1, MPI_CHAR, !rank_here, 2, MPI_COMM_WORLD, &r[1]);
	for (int done = 0; !done;) {
		struct fi_cq_tagged_entry none;
		if (moving)
			(void)fi_cq_read(moving->cq, &none, 0);
		MPI_Testall(2, r, &done, MPI_STATUSES_IGNORE);
	}
}
#else
static inline void tell(const void *bytes, size_t len)
{
	CHECK(write(line, bytes, len) == (ssize_t)len);
}

static inline void hear(void *bytes, size_t len)
{
	size_t got = 0;
	while (got < len) {
		ssize_t n = read(line, (char *)bytes + got, len - got);
		if (n <= 0)
			FAIL("the other process is gone");
		got += n;
	}
}

static inline void barrier(void)
{
	char c = 'b';
	tell(&c, 1);
	if (moving) {
		/* Manual progress: the other side may need ours to get here. */
		double end = now() + SECONDS;
		while (recv(line, &c, 1, MSG_DONTWAIT) != 1) {
			struct fi_cq_tagged_entry none;
			ssize_t r = fi_cq_read(moving->cq, &none, 0);
			CHECK(r == -FI_EAGAIN || r == -FI_EAVAIL || r == 0);
			if (now() > end)
				FAIL("the other process does not come");
			sched_yield();
		}
		return;
	}
	hear(&c, 1);
}
#endif

static inline struct fi_info *hints_for(const struct wish *w)
{
	struct fi_info *hints = lf.dupinfo(NULL);
	CHECK(hints);
	hints->caps = w && w->caps ? w->caps
				   : FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = w && w->threading ? w->threading : FI_THREAD_DOMAIN;
	hints->tx_attr->op_flags = w ? w->tx_op_flags : 0;
	hints->rx_attr->op_flags = w ? w->rx_op_flags : 0;
	hints->domain_attr->mr_mode = w ? w->mr_mode : 0;
	hints->fabric_attr->prov_name = strdup("isthmus");
	return hints;
}

static inline void open_side(struct side *s, const struct wish *w)
{
	memset(s, 0, sizeof *s);
	struct fi_info *hints = hints_for(w);
	EQUAL(lf.getinfo(w && w->api ? w->api : API, NULL, NULL, 0, hints, &s->info), 0);
	lf.freeinfo(hints);
	EQUAL(lf.fabric(s->info->fabric_attr, &s->fabric, NULL), 0);
	EQUAL(fi_domain(s->fabric, s->info, &s->domain, NULL), 0);
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	EQUAL(fi_av_open(s->domain, &av, &s->av, NULL), 0);
	struct fi_cq_attr cq = {.format = w && w->format ? w->format : FI_CQ_FORMAT_TAGGED,
				 .wait_obj = w ? w->wait : FI_WAIT_NONE};
	EQUAL(fi_cq_open(s->domain, &cq, &s->cq, NULL), 0);
	struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP};
	EQUAL(fi_cntr_open(s->domain, &cntr, &s->cntr, NULL), 0);
	EQUAL(fi_endpoint(s->domain, s->info, &s->ep, NULL), 0);
	EQUAL(fi_ep_bind(s->ep, &s->av->fid, 0), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV | (w ? w->bind_flags : 0)), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cntr->fid, FI_READ | FI_WRITE), 0);
	EQUAL(fi_enable(s->ep), 0);
}

/* Puts the own address and the other process's into the vector. */
static inline void meet(struct side *s)
{
	char mine[64], theirs[64];
	size_t len = 0;
	EQUAL(fi_getname(&s->ep->fid, NULL, &len), -FI_ETOOSMALL);
	EQUAL(len, 64);
	EQUAL(fi_getname(&s->ep->fid, mine, &len), 0);
	tell(mine, 64);
	hear(theirs, 64);
	EQUAL(fi_av_insert(s->av, mine, 1, &s->self, 0, NULL), 1);
	EQUAL(fi_av_insert(s->av, theirs, 1, &s->other, 0, NULL), 1);
	EQUAL(s->self, 0);
	EQUAL(s->other, 1);
}

static inline void close_side(struct side *s)
{
	if (s->ep)
		EQUAL(fi_close(&s->ep->fid), 0);
	EQUAL(fi_close(&s->cq->fid), 0);
	EQUAL(fi_close(&s->av->fid), 0);
	EQUAL(fi_close(&s->cntr->fid), 0);
	EQUAL(fi_close(&s->domain->fid), 0);
	EQUAL(fi_close(&s->fabric->fid), 0);
	lf.freeinfo(s->info);
}

/* Waits for a completion that must be a success. */
static inline struct fi_cq_tagged_entry done(struct side *s)
{
	struct fi_cq_tagged_entry e;
	memset(&e, 0x5a, sizeof e);
	double end = now() + SECONDS;
	for (;;) {
		ssize_t r = fi_cq_read(s->cq, &e, 1);
		if (r == 1)
			return e;
		if (r == -FI_EAVAIL) {
			struct fi_cq_err_entry err = {0};
			fi_cq_readerr(s->cq, &err, 0);
			FAIL("completed with error %d (%s), flags %llx", err.err,
			     fi_cq_strerror(s->cq, err.prov_errno, NULL, NULL, 0), (unsigned long long)err.flags);
		}
		EQUAL(r, -FI_EAGAIN);
		if (now() > end)
			FAIL("no completion");
		if ((long)(now() * 1e6) % 64 == 0)
			sched_yield();
	}
}

/* Waits for a completion that must be an error. */
static inline struct fi_cq_err_entry failed(struct side *s, int expected)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	double end = now() + SECONDS;
	memset(&err, 0, sizeof err);
	for (;;) {
		ssize_t r = fi_cq_read(s->cq, &e, 1);
		if (r == -FI_EAVAIL)
			break;
		if (r == 1)
			FAIL("a success where an error was due, flags %llx", (unsigned long long)e.flags);
		EQUAL(r, -FI_EAGAIN);
		if (now() > end)
			FAIL("no completion");
	}
	EQUAL(fi_cq_read(s->cq, &e, 1), -FI_EAVAIL); /* blocked until the error is taken */
	EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
	EQUAL(err.err, expected);
	return err;
}

/* Nothing may complete for a while. */
static inline void silent(struct side *s)
{
	struct fi_cq_tagged_entry e;
	for (int i = 0; i < 2000; i++)
		EQUAL(fi_cq_read(s->cq, &e, 1), -FI_EAGAIN);
}

/* Repeats a post while there is no room. */
#define POST(side, call)                                                                                 \
	do {                                                                                             \
		double end_ = now() + SECONDS;                                                           \
		ssize_t r_;                                                                              \
		while ((r_ = (call)) == -FI_EAGAIN) {                                                    \
			struct fi_cq_tagged_entry none_;                                                 \
			(void)fi_cq_read((side)->cq, &none_, 0);                                         \
			if (now() > end_)                                                                \
				FAIL("no room: %s", #call);                                              \
			sched_yield();                                                                   \
		}                                                                                        \
		EQUAL(r_, 0);                                                                            \
	} while (0)

static inline void counted(struct side *s, uint64_t value)
{
	double end = now() + SECONDS;
	uint64_t found;
	while ((found = fi_cntr_read(s->cntr)) < value)
		if (now() > end)
			FAIL("counter is %llu, not %llu", (unsigned long long)found, (unsigned long long)value);
	EQUAL(found, value);
}

/* Bytes that tell where they belong. */
static inline void fill(void *at, size_t len, unsigned seed)
{
	unsigned char *p = at;
	for (size_t i = 0; i < len; i++)
		p[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static inline void filled(const void *at, size_t len, unsigned seed)
{
	const unsigned char *p = at;
	for (size_t i = 0; i < len; i++)
		if (p[i] != (unsigned char)(seed * 31 + i * 7 + (i >> 8)))
			FAIL("byte %zu of %zu is wrong", i, len);
}

#endif
