/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Endpoints that are found by node and service, as programs do that libfabric's own suite has: the server opens its
 * endpoint under a service, the client asks for a node and that service, and its first message carries its own address.
 *
 * usage: names LIBFABRIC [TEST...]
 *
 * Between VMs (`in-vms`) the client is in another machine than the server, and names it by its host name.
 */
#include "pair.h"

/* A side whose information came of a node and a service. */
static void open_named(struct side *s, const char *node, const char *service, uint64_t flags, uint64_t caps)
{
	memset(s, 0, sizeof *s);
	struct wish w = {.caps = caps};
	struct fi_info *hints = hints_for(&w);
	EQUAL(lf.getinfo(API, node, service, flags, hints, &s->info), 0);
	lf.freeinfo(hints);
	EQUAL(lf.fabric(s->info->fabric_attr, &s->fabric, NULL), 0);
	EQUAL(fi_domain(s->fabric, s->info, &s->domain, NULL), 0);
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	EQUAL(fi_av_open(s->domain, &av, &s->av, NULL), 0);
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
	EQUAL(fi_cq_open(s->domain, &cq, &s->cq, NULL), 0);
	struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP};
	EQUAL(fi_cntr_open(s->domain, &cntr, &s->cntr, NULL), 0);
}

static void start(struct side *s)
{
	EQUAL(fi_endpoint(s->domain, s->info, &s->ep, NULL), 0);
	EQUAL(fi_ep_bind(s->ep, &s->av->fid, 0), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cntr->fid, FI_READ | FI_WRITE), 0);
	EQUAL(fi_enable(s->ep), 0);
}

/* The host name of the process that is to serve, as both know it. */
static const char *server_node(void)
{
	static char host[256];
	memset(host, 0, sizeof host);
	if (rank_here == 0) {
		CHECK(gethostname(host, sizeof host - 1) == 0);
		tell(host, sizeof host);
	} else {
		hear(host, sizeof host);
	}
	return host;
}

/* As fabtests' client and server exchange their addresses: by the first message, and one back. */
static void serve(struct side *s)
{
	char theirs[64];
	fi_addr_t client;
	POST(s, fi_recv(s->ep, theirs, sizeof theirs, NULL, FI_ADDR_UNSPEC, NULL));
	done(s);
	EQUAL(fi_av_insert(s->av, theirs, 1, &client, 0, NULL), 1);
	POST(s, fi_send(s->ep, "welcome", 8, NULL, client, NULL));
	done(s);
}

static void call(struct side *s, fi_addr_t server)
{
	char mine[64], answer[8] = "";
	size_t len = sizeof mine;
	EQUAL(fi_getname(&s->ep->fid, mine, &len), 0);
	POST(s, fi_recv(s->ep, answer, sizeof answer, NULL, FI_ADDR_UNSPEC, NULL));
	/* Nothing but -FI_EAGAIN until the server is there, and then the message goes. */
	POST(s, fi_send(s->ep, mine, len, NULL, server, NULL));
	done(s);
	done(s);
	CHECK(!strcmp(answer, "welcome"));
}

static void flow(struct side *unused, bool late, const char *service)
{
	(void)unused;
	struct side s;
	fi_addr_t server;
	const char *node = server_node();
	if (rank_here == 0) {
		open_named(&s, NULL, service, FI_SOURCE, 0);
		CHECK(s.info->src_addr && !s.info->dest_addr);
		if (late)
			barrier();
		start(&s);
		if (!late)
			barrier();
		serve(&s);
	} else {
		open_named(&s, node, service, 0, 0);
		CHECK(s.info->dest_addr && s.info->src_addr); /* the latter without a service */
		start(&s);
		EQUAL(fi_av_insert(s.av, s.info->dest_addr, 1, &server, 0, NULL), 1);
		if (late) {
			/* Nobody has the name: there is nothing wrong with it, but nothing goes. */
			for (int i = 0; i < 100; i++)
				EQUAL(fi_inject(s.ep, "x", 1, server), -FI_EAGAIN);
		}
		barrier();
		char back[64], text[200];
		size_t len = sizeof back, room = sizeof text;
		EQUAL(fi_av_lookup(s.av, server, back, &len), 0);
		CHECK(len == 64 && !memcmp(back, s.info->dest_addr, 64));
		fi_av_straddr(s.av, back, text, &room);
		CHECK(strstr(text, service));
		call(&s, server);
	}
	barrier();
	close_side(&s);
	barrier();
}

static void server_first(struct side *s)
{
	flow(s, false, "9228");
}

static void client_first(struct side *s)
{
	flow(s, true, "9229");
}

/* A service is there again as soon as its last server has closed it, and at each host or VM by itself. */
static void again(struct side *s)
{
	for (int i = 0; i < 5; i++)
		flow(s, i % 2, "again");
}

/* Which endpoints may be opened under a name. */
static void sole(struct side *unused)
{
	(void)unused;
	if (rank_here == 0) {
		struct side s;
		struct fid_ep *second;
		open_named(&s, NULL, "sole", FI_SOURCE, 0);
		start(&s);
		EQUAL(fi_endpoint(s.domain, s.info, &second, NULL), -FI_EADDRINUSE);
		for (int k = 0; k < 10; k++) {
			EQUAL(fi_close(&s.ep->fid), 0);
			EQUAL(fi_endpoint(s.domain, s.info, &s.ep, NULL), 0);
		}
		/* Another member's name, and half a name. */
		((char *)s.info->src_addr)[24] ^= 1;
		EQUAL(fi_endpoint(s.domain, s.info, &second, NULL), -FI_EADDRNOTAVAIL);
		((char *)s.info->src_addr)[24] ^= 1;
		s.info->src_addrlen = 32;
		EQUAL(fi_endpoint(s.domain, s.info, &second, NULL), -FI_EADDRNOTAVAIL);
		close_side(&s);
	}
	barrier();
}

/* Sources are told by the name's number, used before or not; a service may be inserted by itself. */
static void sources(struct side *unused)
{
	(void)unused;
	struct side s;
	fi_addr_t server, twice, from = FI_ADDR_NOTAVAIL;
	const char *node = server_node();
	if (rank_here == 0) {
		open_named(&s, NULL, "sources", FI_SOURCE, FI_MSG | FI_TAGGED | FI_SOURCE);
		start(&s);
		char theirs[64];
		hear(theirs, 64);
		EQUAL(fi_av_insert(s.av, theirs, 1, &server, 0, NULL), 1);
		for (const char *what = "xyz"; *what; what++) {
			POST(&s, fi_tinject(s.ep, what, 1, server, 7));
			barrier();
		}
	} else {
		open_named(&s, NULL, NULL, 0, FI_MSG | FI_TAGGED | FI_SOURCE);
		start(&s);
		int error = -1;
		EQUAL(fi_av_insertsvc(s.av, "nowhere.invalid", "sources", &server, FI_SYNC_ERR, &error), -FI_ENODATA);
		CHECK(server == FI_ADDR_NOTAVAIL && error == FI_ENODATA);
		EQUAL(fi_av_insertsvc(s.av, node, "nobody has this", &server, 0, NULL), 1);
		EQUAL(server, 0);
		EQUAL(fi_av_insertsvc(s.av, node, "sources", &server, FI_SYNC_ERR, &error), 1);
		CHECK(server == 1 && error == 0);
		EQUAL(fi_av_insertsvc(s.av, node, "sources", &twice, 0, NULL), 1);
		char mine[64], got = 0;
		size_t len = sizeof mine;
		EQUAL(fi_getname(&s.ep->fid, mine, &len), 0);
		tell(mine, 64);
		/* Nothing is posted to the numbers, and what is removed is reported no more. */
		fi_addr_t before = FI_ADDR_NOTAVAIL;
		for (const char *what = "xyz"; *what; what++) {
			POST(&s, fi_trecv(s.ep, &got, 1, NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
			struct fi_cq_tagged_entry e;
			double end = now() + SECONDS;
			ssize_t r;
			while ((r = fi_cq_readfrom(s.cq, &e, 1, &from)) == -FI_EAGAIN)
				CHECK(now() < end);
			EQUAL(r, 1);
			EQUAL(got, *what);
			if (*what == 'z') {
				CHECK(from == FI_ADDR_NOTAVAIL);
			} else {
				CHECK((from == server || from == twice) && from != before);
				EQUAL(fi_av_remove(s.av, &from, 1, 0), 0);
			}
			before = from;
			barrier();
		}
	}
	barrier();
	close_side(&s);
	barrier();
}

/* What another member has, or has had, is not found under the own node. */
static void elsewhere(struct side *outer)
{
	struct side s;
	fi_addr_t server;
	const char *node = server_node();
	char own[256] = "";
	CHECK(gethostname(own, sizeof own - 1) == 0);
	if (rank_here == 0) {
		open_named(&s, NULL, "elsewhere", FI_SOURCE, 0);
		start(&s);
		moving = &s; /* so that it takes what comes */
		barrier();
	} else {
		bool same = !strcmp(own, node);
		open_named(&s, NULL, NULL, 0, 0);
		start(&s);
		barrier();
		EQUAL(fi_av_insertsvc(s.av, "localhost", "elsewhere", &server, 0, NULL), 1);
		if (same)
			POST(&s, fi_inject(s.ep, "x", 1, server));
		else
			EQUAL(fi_inject(s.ep, "x", 1, server), -FI_EAGAIN);
	}
	barrier();
	moving = NULL;
	close_side(&s);
	barrier();
	moving = outer;
}

/* The name of a server that has ended at once, without closing anything, is free; its clients get to know its end. */
static void after_death(struct side *unused)
{
	(void)unused;
#ifndef OVER_MPI
	struct side s;
	if (rank_here == 0) {
		int ready[2];
		CHECK(pipe(ready) == 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			open_named(&s, NULL, "mortal", FI_SOURCE, 0);
			start(&s);
			CHECK(write(ready[1], "x", 1) == 1);
			pause();
		}
		char c;
		CHECK(read(ready[0], &c, 1) == 1);
		open_named(&s, NULL, "mortal", FI_SOURCE, 0);
		EQUAL(fi_endpoint(s.domain, s.info, &s.ep, NULL), -FI_EADDRINUSE);
		CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
		/* The service has to notice, which takes it a moment. */
		double end = now() + 1;
		int r;
		while ((r = fi_endpoint(s.domain, s.info, &s.ep, NULL)) == -FI_EADDRINUSE)
			CHECK(now() < end);
		EQUAL(r, 0);
		close_side(&s);
		close(ready[0]);
		close(ready[1]);
	}
#endif
	barrier();
}

static const struct test tests[] = {
	{"server_first", server_first, NULL}, {"client_first", client_first, NULL}, {"again", again, NULL}, {"sole", sole, NULL},
	{"sources", sources, NULL},           {"elsewhere", elsewhere, NULL},       {"after_death", after_death, NULL},
};
RUN_PAIR(tests)
