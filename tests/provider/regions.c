/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that are in two regions at once, by the services that they name one after the other.
 *
 * usage: ISTHMUS=PROGRAM ISTHMUS_SOCKET=PATH regions LIBFABRIC [TEST...]
 *
 * It starts services of its own, in a folder beside PATH, which stays if a test fails.
 */
#include "pair.h"

#include <sys/prctl.h>

static char folder[96], sockets[2][108];
static pid_t services[2];

static void start(int which)
{
	double end = now() + SECONDS;
	services[which] = fork();
	CHECK(services[which] >= 0);
	if (services[which] == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
		execl(getenv("ISTHMUS"), "isthmus", "host", "--socket", sockets[which], "--region-size", "64M", (char *)NULL);
		_exit(127);
	}
	/* The name of a service that was killed is still there. */
	struct fi_info *info = NULL, *hints = hints_for(NULL);
	setenv("ISTHMUS_SOCKET", sockets[which], 1);
	while (access(sockets[which], F_OK) || lf.getinfo(API, NULL, NULL, 0, hints, &info)) {
		CHECK(now() < end && waitpid(services[which], NULL, WNOHANG) == 0);
		usleep(20000);
	}
	lf.freeinfo(info);
	lf.freeinfo(hints);
}

static void stop(int which)
{
	kill(services[which], SIGKILL);
	CHECK(waitpid(services[which], NULL, 0) == services[which]);
}

static void open_in(struct side *s, int which)
{
	setenv("ISTHMUS_SOCKET", sockets[which], 1);
	open_side(s, NULL);
	meet(s);
}

static const char *name_of(struct side *s)
{
	return s->info->fabric_attr->name;
}

static void use(struct side *s)
{
	moving = s;
	tagged_sizes(s);
	moving = NULL;
}

/* How many regions are mapped. */
static int regions(void)
{
	char row[512], known[8][64];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(row, sizeof row, maps)) {
		char device[16], inode[32], key[64];
		if (!strstr(row, "memfd:isthmus") || sscanf(row, "%*s %*s %*s %15s %31s", device, inode) != 2)
			continue;
		snprintf(key, sizeof key, "%s %s", device, inode);
		int i = 0;
		while (i < count && strcmp(known[i], key))
			i++;
		if (i == count && count < 8)
			strcpy(known[count++], key);
	}
	fclose(maps);
	return count;
}

/* Messages stay in the region of their endpoint, whichever service was named last. */
static void each_in_its_own(struct side *a)
{
	struct side b;
	fi_addr_t none;
	char name[64];
	size_t len = sizeof name;
	open_in(&b, 1);
	CHECK(strcmp(name_of(a), name_of(&b)));
	EQUAL(regions(), 2);
	EQUAL(fi_getname(&a->ep->fid, name, &len), 0);
	CHECK(fi_av_insert(b.av, name, 1, &none, 0, NULL) != 1);
	use(a);
	use(&b);
	/* In turns, and all at once. */
	uint64_t got[2][64], v;
	for (int i = 0; i < 64; i++) {
		POST(a, fi_trecv(a->ep, &got[0][i], 8, NULL, a->other, i, 0, &got));
		POST(&b, fi_trecv(b.ep, &got[1][i], 8, NULL, b.other, i, 0, &got));
	}
	barrier();
	for (int i = 0; i < 64; i++) {
		v = 1000 + i;
		POST(a, fi_tinject(a->ep, &v, 8, a->other, i));
		v = 2000 + i;
		POST(&b, fi_tinject(b.ep, &v, 8, b.other, i));
	}
	for (int i = 0; i < 64; i++) {
		done(&b);
		done(a);
	}
	for (int i = 0; i < 64; i++) {
		EQUAL(got[0][i], 1000 + i);
		EQUAL(got[1][i], 2000 + i);
	}
	barrier();
	/* Who goes last detaches; the other region stays. */
	close_side(&b);
	EQUAL(regions(), 1);
	use(a);
}

/* What is in one region only names that region, wherever the variable points. */
static void by_what_is_there(struct side *a)
{
	struct side b;
	struct fi_info *info, *hints = hints_for(NULL);
	char name[64];
	size_t len = sizeof name;
	open_in(&b, 1);
	for (int nowhere = 0; nowhere < 2; nowhere++) {
		setenv("ISTHMUS_SOCKET", nowhere ? "/nowhere" : sockets[1], 1);
		struct side *both[] = {a, &b};
		for (int i = 0; i < 2; i++) {
			struct fid_domain *domain;
			hints->fabric_attr->name = strdup(name_of(both[i]));
			EQUAL(lf.getinfo(API, NULL, NULL, 0, hints, &info), 0);
			CHECK(!strcmp(info->fabric_attr->name, name_of(both[i])));
			EQUAL(fi_domain(both[i]->fabric, info, &domain, NULL), 0);
			struct fid_av *av;
			struct fi_av_attr attr = {.type = FI_AV_TABLE};
			EQUAL(fi_av_open(domain, &attr, &av, NULL), 0);
			fi_addr_t found;
			EQUAL(fi_getname(&both[i]->ep->fid, name, &len), 0);
			EQUAL(fi_av_insert(av, name, 1, &found, 0, NULL), 1);
			EQUAL(fi_close(&av->fid), 0);
			EQUAL(fi_close(&domain->fid), 0);
			lf.freeinfo(info);
			free(hints->fabric_attr->name);
			hints->fabric_attr->name = NULL;
			hints->dest_addr = memcpy(malloc(64), name, 64);
			hints->dest_addrlen = 64;
			EQUAL(lf.getinfo(API, NULL, NULL, 0, hints, &info), 0);
			CHECK(!strcmp(info->fabric_attr->name, name_of(both[i])));
			lf.freeinfo(info);
			free(hints->dest_addr);
			hints->dest_addr = NULL;
			hints->dest_addrlen = 0;
			/* An open fabric. */
			hints->fabric_attr->fabric = both[i]->fabric;
			EQUAL(lf.getinfo(API, NULL, NULL, 0, hints, &info), 0);
			CHECK(!strcmp(info->fabric_attr->name, name_of(both[i])));
			lf.freeinfo(info);
			hints->fabric_attr->fabric = NULL;
		}
	}
	lf.freeinfo(hints);
	use(&b);
	close_side(&b);
	use(a);
}

/* A child has no part in either, and gets attachments of its own to both. */
static void forked(struct side *a)
{
	struct side b;
	open_in(&b, 1);
	barrier();
	pid_t child = fork();
	if (child == 0) {
		struct side *both[] = {a, &b};
		struct fid_ep *ep;
		EQUAL(regions(), 0);
		for (int i = 0; i < 2; i++) {
			CHECK(fi_endpoint(both[i]->domain, both[i]->info, &ep, NULL) < 0);
			struct side own;
			char name[64];
			size_t len = sizeof name;
			uint64_t v = 0, x = 5 + i;
			setenv("ISTHMUS_SOCKET", sockets[i], 1);
			open_side(&own, NULL);
			CHECK(!strcmp(name_of(&own), name_of(both[i])));
			EQUAL(fi_getname(&own.ep->fid, name, &len), 0);
			EQUAL(fi_av_insert(own.av, name, 1, &own.self, 0, NULL), 1);
			POST(&own, fi_trecv(own.ep, &v, 8, NULL, own.self, 1, 0, &v));
			POST(&own, fi_tinject(own.ep, &x, 8, own.self, 1));
			done(&own);
			EQUAL(v, x);
			EQUAL(regions(), 1);
			close_side(&own);
			EQUAL(regions(), 0);
			/* A fabric of the parent's is still that region. */
			struct fid_domain *domain;
			EQUAL(fi_domain(both[i]->fabric, both[i]->info, &domain, NULL), 0);
			EQUAL(fi_close(&domain->fid), 0);
		}
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	EQUAL(status, 0);
	use(a);
	use(&b);
	close_side(&b);
}

/* One service is killed: the other's region does not notice, what is open in its own goes on, and what listens at its path
   later is another region. */
static void death_of_a_service(struct side *a)
{
	struct side b, anew;
	struct fi_info *info, *hints = hints_for(NULL);
	struct fid_domain *domain;
	open_in(&b, 1);
	use(&b);
	barrier();
	if (rank_here == 0)
		stop(1);
	barrier();
	use(a);
	use(&b);
	setenv("ISTHMUS_SOCKET", sockets[1], 1);
	EQUAL(lf.getinfo(API, NULL, NULL, 0, hints, &info), -FI_ENODATA);
	CHECK(fi_domain(b.fabric, b.info, &domain, NULL) < 0);
	barrier();
	if (rank_here == 0)
		start(1);
	barrier();
	open_in(&anew, 1);
	CHECK(strcmp(name_of(&anew), name_of(&b)));
	EQUAL(regions(), 3);
	EQUAL(fi_domain(b.fabric, b.info, &domain, NULL), -FI_ENODATA);
	use(a);
	use(&anew);
	use(&b);
	close_side(&b);
	EQUAL(regions(), 2);
	use(&anew);
	close_side(&anew);
	use(a);
	lf.freeinfo(hints);
}

static const struct test tests[] = {
	{"each_in_its_own", each_in_its_own, NULL},
	{"by_what_is_there", by_what_is_there, NULL},
	{"forked", forked, NULL},
	{"death_of_a_service", death_of_a_service, NULL},
};

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	if (argc < 2 || !getenv("ISTHMUS") || !getenv("ISTHMUS_SOCKET"))
		FAIL("usage: ISTHMUS=PROGRAM ISTHMUS_SOCKET=PATH %s LIBFABRIC [TEST...]", argv[0]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	load(argv[1]);
	out = malloc(4000000);
	in = malloc(4000000);
	CHECK(snprintf(folder, sizeof folder, "%s-XXXXXX", getenv("ISTHMUS_SOCKET")) < (int)sizeof folder);
	CHECK(mkdtemp(folder));
	for (int i = 0; i < 2; i++)
		snprintf(sockets[i], sizeof sockets[i], "%s/%c", folder, 'a' + i);
	start(0);
	start(1);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	rank_here = child == 0;
	line = pair[rank_here];
	close(pair[!rank_here]);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (!chosen(argc, argv, tests[i].name))
			continue;
		struct side a;
		test_name = tests[i].name;
		alarm(3 * SECONDS);
		double begin = now();
		open_in(&a, 0);
		tests[i].run(&a);
		close_side(&a);
		barrier();
		if (rank_here == 0)
			printf("%-24s ok  %6.2f s\n", test_name, now() - begin);
	}
	if (child == 0)
		return 0;
	CHECK(waitpid(child, &status, 0) == child);
	EQUAL(status, 0);
	for (int i = 0; i < 2; i++) {
		kill(services[i], SIGTERM);
		CHECK(waitpid(services[i], NULL, 0) == services[i]);
	}
	EQUAL(rmdir(folder), 0);
	return 0;
}
