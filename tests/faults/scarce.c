/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A process at work that gets no more descriptors, or no more memory.
 *
 * usage: scarce LIBFABRIC descriptors|memory|short [SEED]
 *
 * `descriptors`: it may open nothing more. What it then asks libfabric for is had, or refused with a negative error; its
 * traffic goes on, a new peer is reached, and with its descriptors it has back what was refused.
 * `memory`: it has 64 MiB left, and somebody sends it five times that for which it has no receives. That one finds no more
 * room; a third one's messages, reads, writes and atomics go on; once there are receives all of it arrives, in order.
 * `short`: the same with messages that go without a data ring, and one long one in front of most of them, to a process that
 * sleeps whenever it waits. The long one is had while there is no memory, and so is what a third process sends.
 */
#include "../provider/harness.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define PROMPT 5.0
#define LONGEST 200000
#define WINDOW 100000
#define KEY 7
#define LEFT (64 << 20)
#define FLOOD (5LL * LEFT)
#define SHORT_FLOOD 1200000
#define LONG_ONE 10
#define GREET 0x100000000ULL

static struct side s;
static uint64_t state;
static char *out, *in, *window;
static struct fid_mr *mr;

static uint64_t any(uint64_t limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state * 0x2545F4914F6CDD1DULL >> 11) % limit;
}

/* The length of the message with this number, the same for both sides; few are long. */
static size_t length(uint64_t number)
{
	static const size_t lengths[] = {0, 8, 40, 41, 1000, 4096, 16000, 16384};
	uint64_t x = (number + 1) * 0x9E3779B97F4A7C15ULL;
	x ^= x >> 29;
	return x % 400 == 0 ? LONGEST : lengths[x / 400 % 8];
}

static void open_here(const char *lib)
{
	load(lib);
	struct wish wish = {.wait = FI_WAIT_UNSPEC};
	open_side(&s, &wish);
	out = malloc(LONGEST);
	in = malloc(LONGEST);
	window = malloc(WINDOW + 64);
	memset(window, 0, WINDOW + 64);
	EQUAL(fi_mr_reg(s.domain, window, WINDOW + 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL), 0);
}

static fi_addr_t meet_here(void)
{
	char mine[64], theirs[64];
	size_t len = sizeof mine;
	fi_addr_t address;
	EQUAL(fi_getname(&s.ep->fid, mine, &len), 0);
	tell(mine, 64);
	hear(theirs, 64);
	EQUAL(fi_av_insert(s.av, theirs, 1, &address, 0, NULL), 1);
	return address;
}

static void completed(double since, const char *what)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;
	while ((r = fi_cq_read(s.cq, &e, 1)) != 1) {
		EQUAL(r, -FI_EAGAIN);
		if (now() > since + PROMPT)
			FAIL("%s has not ended", what);
		sched_yield();
	}
}

/* Messages of all kinds there and back; the other side does the same. */
static void talk(fi_addr_t to)
{
	static const size_t lengths[] = {8, 1000, 16000, LONGEST};
	for (int k = 0; k < 4; k++) {
		fill(out, lengths[k], k);
		memset(in, 0, lengths[k]);
		EQUAL(fi_trecv(s.ep, in, LONGEST, NULL, to, GREET + k, 0, NULL), 0);
		POST(&s, fi_tsend(s.ep, out, lengths[k], NULL, to, GREET + k, NULL));
		completed(now(), "a message");
		completed(now(), "a message");
		filled(in, lengths[k], k);
	}
}

/* Waits asleep for what is there when this says so. */
static void asleep(double limit, const char *what, bool (*there)(void))
{
	double end = now() + limit;
	while (!there()) {
		struct fi_cq_tagged_entry none;
		EQUAL(fi_cq_sread(s.cq, &none, 1, NULL, 20), -FI_EAGAIN);
		if (now() > end)
			FAIL("%s: waited for %.0f s", what, limit);
	}
}

/* Reads, writes and changes what `to` has registered. */
static void reach(fi_addr_t to)
{
	static const size_t lengths[] = {8, 4000, 30000, WINDOW};
	for (int k = 0; k < 4; k++) {
		uint64_t one = 1, before;
		fill(out, lengths[k], 50 + k);
		POST(&s, fi_write(s.ep, out, lengths[k], NULL, to, 0, KEY, NULL));
		completed(now(), "a write");
		memset(in, 0, lengths[k]);
		POST(&s, fi_read(s.ep, in, lengths[k], NULL, to, 0, KEY, NULL));
		completed(now(), "a read");
		filled(in, lengths[k], 50 + k);
		POST(&s, fi_fetch_atomic(s.ep, &one, 1, NULL, &before, NULL, to, WINDOW, KEY, FI_UINT64, FI_SUM, NULL));
		completed(now(), "an atomic");
		EQUAL(before % 4, k);
	}
}

/* Makes progress until the other side says this. */
static void until(char expected)
{
	double end = now() + SECONDS;
	for (;;) {
		struct fi_cq_tagged_entry none;
		char c;
		ssize_t n = recv(line, &c, 1, MSG_DONTWAIT);
		if (n == 1) {
			EQUAL(c, expected);
			return;
		}
		if (n == 0)
			FAIL("the other process is gone");
		EQUAL(fi_cq_read(s.cq, &none, 1), -FI_EAGAIN);
		if (now() > end)
			FAIL("nobody says '%c'", expected);
		sched_yield();
	}
}

static size_t short_length(uint64_t number)
{
	static const size_t lengths[] = {0, 8, 40};
	return number == LONG_ONE ? LONGEST : lengths[number % 3];
}

/* Sends so many messages, and says so once there has been no room for a while. */
static void flood_shortly(fi_addr_t to)
{
	uint64_t sent = 0, ended = 0;
	bool told = false;
	char *same = malloc(LONGEST);
	fill(same, LONGEST, 3);
	while (ended < SHORT_FLOOD) {
		struct fi_cq_tagged_entry e[64];
		double since = now();
		ssize_t got, r = -FI_EAGAIN;
		while (sent < SHORT_FLOOD && (r = fi_tsend(s.ep, same, short_length(sent), NULL, to, sent, NULL)) == 0)
			sent++;
		EQUAL(sent < SHORT_FLOOD ? r : -FI_EAGAIN, -FI_EAGAIN);
		while ((got = fi_cq_read(s.cq, e, 64)) <= 0) {
			EQUAL(got, -FI_EAGAIN);
			if (sent < SHORT_FLOOD && fi_tsend(s.ep, same, short_length(sent), NULL, to, sent, NULL) == 0) {
				sent++;
				since = now();
			}
			if (!told && now() > since + 0.5) {
				tell("f", 1);
				told = true;
			}
			if (now() > since + 2 * SECONDS)
				FAIL("no room after %llu messages", (unsigned long long)sent);
			sched_yield();
		}
		ended += got;
	}
	if (!told)
		FAIL("%d messages that nobody receives were all taken", SHORT_FLOOD);
	free(same);
}

/* The others do as they are told: m = an address comes, t = talk, r = reach, f = flood, s = flood with short messages,
   1 = one message, q = quit. */
static void serve(void)
{
	fi_addr_t to = FI_ADDR_UNSPEC;
	for (;;) {
		struct fi_cq_tagged_entry none;
		char order;
		ssize_t n = recv(line, &order, 1, MSG_DONTWAIT);
		if (n == 0)
			_exit(1);
		if (n < 0) {
			EQUAL(fi_cq_read(s.cq, &none, 1), -FI_EAGAIN);
			sched_yield();
			continue;
		}
		switch (order) {
		case 'm':
			to = meet_here();
			break;
		case 't':
			talk(to);
			break;
		case 'r':
			reach(to);
			tell("o", 1);
			break;
		case 'f': {
			/* Told once, when none has ended for a while: the receiver has no memory for more. Then it goes on. */
			long long sent = 0;
			uint64_t ended = 0, number = 0;
			bool told = false;
			char *same = malloc(LONGEST);
			double since = now();
			fill(same, LONGEST, 3);
			while (sent < FLOOD || ended < number) {
				struct fi_cq_tagged_entry e[16];
				ssize_t r = -FI_EAGAIN, got;
				if (sent < FLOOD && (r = fi_tsend(s.ep, same, length(number), NULL, to, number, NULL)) == 0) {
					sent += length(number++);
					since = now();
				} else {
					EQUAL(r, -FI_EAGAIN);
				}
				if ((got = fi_cq_read(s.cq, e, 16)) > 0) {
					ended += got;
					since = now();
				} else {
					EQUAL(got, -FI_EAGAIN);
					sched_yield();
				}
				if (!told && now() > since + 0.5) {
					tell("f", 1);
					told = true;
				}
				if (now() > since + 2 * SECONDS)
					FAIL("nothing ends after %llu messages, %lld bytes", (unsigned long long)ended, sent);
			}
			if (!told)
				FAIL("%lld bytes that nobody receives were all taken", sent);
			tell("e", 1);
			tell(&number, sizeof number);
			break;
		}
		case 's':
			flood_shortly(to);
			break;
		case '1':
			EQUAL(fi_tinject(s.ep, "once", 4, to, GREET + 99), 0);
			break;
		case 'q':
			fi_close(&mr->fid);
			close_side(&s);
			_exit(0);
		}
	}
}

struct other {
	pid_t pid;
	int line;
	fi_addr_t address;
};

static struct other start(const char *lib, int rank)
{
	struct other o = {0};
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	fflush(NULL);
	o.pid = fork();
	CHECK(o.pid >= 0);
	if (o.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		rank_here = rank;
		line = pair[1];
		close(pair[0]);
		test_name = "serving";
		open_here(lib);
		serve();
	}
	close(pair[1]);
	o.line = pair[0];
	return o;
}

static void order(struct other *o, char what)
{
	line = o->line;
	tell(&what, 1);
}

static void both_talk(struct other *o)
{
	order(o, 't');
	talk(o->address);
}

static void end(struct other *o)
{
	int status;
	order(o, 'q');
	/* It closes its endpoint in good order, for which it may need us. */
	while (waitpid(o->pid, &status, WNOHANG) == 0) {
		struct fi_cq_tagged_entry none;
		EQUAL(fi_cq_read(s.cq, &none, 1), -FI_EAGAIN);
		sched_yield();
	}
	EQUAL(status, 0);
}

static int refused;

/* What was asked for is had, or refused in time with an error. */
static bool had(const char *what, int answer, double since)
{
	if (answer > 0 || answer < -FI_ERRNO_OFFSET * 2)
		FAIL("%s: %d is no error", what, answer);
	if (now() > since + PROMPT)
		FAIL("%s took %.1f s", what, now() - since);
	printf("    %s: %s\n", what, answer ? strerror(-answer) : "had");
	refused += answer != 0;
	return answer == 0;
}

/* Everything further that a program may open, used and closed. Gives how much was refused. */
static int open_more(void)
{
	struct fid_domain *domain;
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fi_info *info;
	struct fi_cq_tagged_entry none;
	refused = 0;
	static const enum fi_wait_obj waits[] = {FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD};
	static const char *const names[] = {"no wait object", "any wait object", "a descriptor"};
	for (int w = 0; w < 3; w++) {
		char what[100];
		struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = waits[w]};
		snprintf(what, sizeof what, "queue with %s", names[w]);
		if (had(what, fi_cq_open(s.domain, &attr, &cq, NULL), now())) {
			snprintf(what, sizeof what, "endpoint with that queue");
			if (had(what, fi_endpoint(s.domain, s.info, &ep, NULL), now())) {
				int r = fi_ep_bind(ep, &s.av->fid, 0);
				r = r ? r : fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
				if (had("enabling it", r ? r : fi_enable(ep), now())) {
					int fd;
					if (waits[w] == FI_WAIT_FD && had("its descriptor", fi_control(&cq->fid, FI_GETWAIT, &fd), now())) {
						struct fid *fids[] = {&cq->fid};
						int ready = fi_trywait(s.fabric, fids, 1);
						had("trying to wait", ready == -FI_EAGAIN ? 0 : ready, now());
					}
					if (waits[w] != FI_WAIT_NONE) {
						double since = now();
						EQUAL(fi_cq_sread(cq, &none, 1, NULL, 100), -FI_EAGAIN);
						CHECK(now() < since + PROMPT);
					}
				}
				EQUAL(fi_close(&ep->fid), 0);
			}
			EQUAL(fi_close(&cq->fid), 0);
		}
		struct fi_cntr_attr counter = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = waits[w]};
		snprintf(what, sizeof what, "counter with %s", names[w]);
		if (had(what, fi_cntr_open(s.domain, &counter, &cntr, NULL), now()))
			EQUAL(fi_close(&cntr->fid), 0);
		/* Event queues have no descriptors. */
		struct fi_eq_attr events = {.wait_obj = waits[w]};
		snprintf(what, sizeof what, "event queue with %s", names[w]);
		if (waits[w] != FI_WAIT_FD && had(what, fi_eq_open(s.fabric, &events, &eq, NULL), now()))
			EQUAL(fi_close(&eq->fid), 0);
	}
	if (had("domain", fi_domain(s.fabric, s.info, &domain, NULL), now()))
		EQUAL(fi_close(&domain->fid), 0);
	struct fi_info *hints = hints_for(NULL);
	if (had("fi_getinfo", lf.getinfo(API, NULL, NULL, 0, hints, &info), now()))
		lf.freeinfo(info);
	lf.freeinfo(hints);
	return refused;
}

/* An endpoint on a queue that was opened in better times: who waits there is woken, or looks up often enough. */
static void wait_on(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e[2];
	struct fid *fids[] = {&cq->fid};
	struct fid_ep *ep;
	fi_addr_t self;
	char mine[64];
	size_t len = sizeof mine;
	int fd;

	EQUAL(fi_endpoint(s.domain, s.info, &ep, NULL), 0);
	EQUAL(fi_ep_bind(ep, &s.av->fid, 0), 0);
	EQUAL(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_enable(ep), 0);
	EQUAL(fi_control(&cq->fid, FI_GETWAIT, &fd), 0);
	CHECK(fd >= 0);
	int ready = fi_trywait(s.fabric, fids, 1);
	if (ready != -FI_EAGAIN)
		had("trying to wait for an endpoint without an eventfd", ready, now());
	EQUAL(fi_cq_sread(cq, e, 2, NULL, 100), -FI_EAGAIN);
	EQUAL(fi_getname(&ep->fid, mine, &len), 0);
	EQUAL(fi_av_insert(s.av, mine, 1, &self, 0, NULL), 1);
	EQUAL(fi_trecv(ep, in, LONGEST, NULL, FI_ADDR_UNSPEC, 5, 0, NULL), 0);
	/* From another endpoint of this process. */
	EQUAL(fi_tinject(s.ep, out, 16, self, 5), 0);
	EQUAL(fi_cq_sread(cq, e, 2, NULL, 1000 * (int)PROMPT), 1);
	EQUAL(fi_close(&ep->fid), 0);
	EQUAL(fi_av_remove(s.av, &self, 1, 0), 0);
}

static void descriptors(struct other *b, struct other *c)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
	struct fid_cq *cq;
	struct rlimit before, none;
	EQUAL(fi_cq_open(s.domain, &attr, &cq, NULL), 0);
	int next = dup(0);
	CHECK(next >= 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
	close(next);
	none = before;
	none.rlim_cur = next;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(dup(0) < 0 && errno == EMFILE);
	both_talk(b);
	int less = open_more();
	CHECK(less > 0);
	both_talk(b);
	wait_on(cq);
	both_talk(b);
	/* Somebody new. */
	order(c, 'm');
	c->address = meet_here();
	both_talk(c);
	reach(c->address);
	order(c, 'r');
	until('o');
	both_talk(b);
	CHECK(dup(0) < 0 && errno == EMFILE);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	printf("  with descriptors:\n");
	EQUAL(open_more(), 0);
	wait_on(cq);
	EQUAL(fi_close(&cq->fid), 0);
	both_talk(b);
	both_talk(c);
	printf("  %d things were refused without descriptors, none with them; the traffic went on\n", less);
}

static void memory(struct other *b, struct other *c)
{
	order(c, 'm');
	c->address = meet_here();
	both_talk(c);
	long pages;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld", &pages) == 1);
	fclose(f);
	struct rlimit before, now_;
	CHECK(getrlimit(RLIMIT_AS, &before) == 0);
	now_ = before;
	now_.rlim_cur = pages * sysconf(_SC_PAGESIZE) + LEFT;
	CHECK(setrlimit(RLIMIT_AS, &now_) == 0);
	order(b, 'f');
	test_name = "being flooded";
	until('f');
	test_name = "going on with others";
	/* There is memory for what the program does. */
	for (int i = 0; i < 3; i++) {
		order(c, 'r');
		until('o');
		both_talk(c);
		void *small = malloc(10000);
		CHECK(small);
		free(small);
	}
	/* All of it comes, in order. */
	test_name = "receiving the flood";
	double begun = now();
	long long received = 0;
	uint64_t number = 0, of_them;
	char *all = malloc(LONGEST), *right = malloc(LONGEST);
	CHECK(all && right);
	fill(right, LONGEST, 3);
	for (; received < FLOOD; number++) {
		struct fi_cq_tagged_entry e;
		ssize_t r;
		EQUAL(fi_trecv(s.ep, all, LONGEST, NULL, b->address, 0, GREET - 1, NULL), 0);
		while ((r = fi_cq_read(s.cq, &e, 1)) == -FI_EAGAIN) {
			if (now() > begun + 2 * SECONDS)
				FAIL("message %llu does not come", (unsigned long long)number);
			sched_yield();
		}
		EQUAL(r, 1);
		EQUAL(e.tag, number);
		EQUAL(e.len, length(number));
		CHECK(memcmp(all, right, e.len) == 0);
		received += e.len;
	}
	line = b->line;
	until('e');
	hear(&of_them, sizeof of_them);
	EQUAL(of_them, number);
	both_talk(b);
	both_talk(c);
	CHECK(setrlimit(RLIMIT_AS, &before) == 0);
	printf("  %llu messages, %lld MiB, with memory for %d; all came, and others' traffic went on\n", (unsigned long long)number,
	       received >> 20, LEFT >> 20);
}

static bool flooded(void)
{
	char c = 0;
	return recv(line, &c, 1, MSG_DONTWAIT) == 1 && c == 'f';
}

/* What a program that probes does. */
static bool one_is_there(void)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry why = {0};
	struct fi_msg_tagged probe = {.addr = FI_ADDR_UNSPEC, .tag = GREET + 99};
	EQUAL(fi_trecvmsg(s.ep, &probe, FI_PEEK), 0);
	double end = now() + PROMPT;
	ssize_t r;
	while ((r = fi_cq_read(s.cq, &e, 1)) == -FI_EAGAIN && now() < end)
		;
	if (r == 1)
		return true;
	EQUAL(r, -FI_EAVAIL);
	EQUAL(fi_cq_readerr(s.cq, &why, 0), 1);
	EQUAL(why.err, FI_ENOMSG);
	return false;
}

static void short_ones(struct other *b, struct other *c)
{
	struct fi_cq_tagged_entry e;
	struct rlimit before, now_;
	long pages;
	char *all = malloc(LONGEST), *right = malloc(LONGEST);
	CHECK(all && right);
	fill(right, LONGEST, 3);
	order(c, 'm');
	c->address = meet_here();
	both_talk(c);
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld", &pages) == 1);
	fclose(f);
	CHECK(getrlimit(RLIMIT_AS, &before) == 0);
	now_ = before;
	now_.rlim_cur = pages * sysconf(_SC_PAGESIZE) + LEFT;
	CHECK(setrlimit(RLIMIT_AS, &now_) == 0);
	order(b, 's');
	asleep(2 * SECONDS, "being flooded", flooded);
	order(c, '1');
	asleep(PROMPT, "one message of somebody else", one_is_there);
	EQUAL(fi_trecv(s.ep, all, LONGEST, NULL, b->address, LONG_ONE, 0, NULL), 0);
	EQUAL(fi_cq_sread(s.cq, &e, 1, NULL, 1000 * (int)PROMPT), 1);
	EQUAL(e.tag, LONG_ONE);
	EQUAL(e.len, LONGEST);
	CHECK(memcmp(all, right, LONGEST) == 0);
	for (uint64_t number = 0; number < SHORT_FLOOD; number++) {
		if (number == LONG_ONE)
			continue;
		EQUAL(fi_trecv(s.ep, all, LONGEST, NULL, b->address, 0, GREET - 1, NULL), 0);
		ssize_t r = fi_cq_sread(s.cq, &e, 1, NULL, 1000 * (int)PROMPT);
		if (r != 1)
			FAIL("message %llu does not come: %zd", (unsigned long long)number, r);
		EQUAL(e.tag, number);
		EQUAL(e.len, short_length(number));
		CHECK(memcmp(all, right, e.len) == 0);
	}
	EQUAL(fi_trecv(s.ep, all, LONGEST, NULL, c->address, GREET + 99, 0, NULL), 0);
	EQUAL(fi_cq_sread(s.cq, &e, 1, NULL, 1000 * (int)PROMPT), 1);
	CHECK(e.len == 4 && memcmp(all, "once", 4) == 0);
	both_talk(b);
	both_talk(c);
	CHECK(setrlimit(RLIMIT_AS, &before) == 0);
	printf("  %d short messages, with memory for %d MiB of them; all came to a process that sleeps\n", SHORT_FLOOD, LEFT >> 20);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: scarce LIBFABRIC descriptors|memory|short [SEED]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	state = (argc > 3 ? strtoull(argv[3], NULL, 0) : 1) * 2 + 1;
	struct other b = start(argv[1], 1), c = start(argv[1], 2);
	rank_here = 0;
	open_here(argv[1]);
	order(&b, 'm');
	b.address = meet_here();
	test_name = argv[2];
	both_talk(&b);
	if (strcmp(argv[2], "short") == 0)
		short_ones(&b, &c);
	else
		strcmp(argv[2], "memory") == 0 ? memory(&b, &c) : descriptors(&b, &c);
	test_name = "ending";
	end(&b);
	end(&c);
	fi_close(&mr->fid);
	close_side(&s);
	return 0;
}
