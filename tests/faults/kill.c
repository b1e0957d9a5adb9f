/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that talk to each other in every way while one of them is killed, again and again.
 *
 * usage: kill LIBFABRIC SERVICE-PID ROUNDS [SEED]
 *
 * Two survivors and, in each round, a fresh victim exchange whatever the provider has: short, middling and long tagged
 * messages with directed receives, untagged ones into multi-receives, remote reads, writes and atomics, on memory of the
 * target's own and on memory in the region. The victim is killed at a random moment. Each survivor must then have every
 * operation with it ended within five seconds, as a success or with FI_ECONNRESET, be refused further ones, and go on with
 * the other survivor and with the next victim. What arrives must be what was sent. At the end all memory of the region is
 * free again, the service is killed, and two that are attached go on.
 */
#include "../provider/harness.h"

#include <isthmus_fi.h>

#include <sys/prctl.h>
#include <sys/stat.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>

#define PROMPT 5.0
#define LONGEST 400000
#define WINDOW 200000
#define KEY 7

/* What a process has under way with another one: one operation of each kind. */
enum kind { TSEND, TSENDL, TRECV, TRECV2, SEND, MRECV, READ, WRITE, ATOMIC, KINDS };
static const char *const kinds[] = {"tagged send",	"long tagged send", "tagged receive", "second tagged receive", "send",
				    "multi-receive",	"read",		    "write",	      "atomic"};

struct op {
	bool pending;
	size_t len;
	char *buf;
};

struct peer {
	bool used, dead;
	fi_addr_t address;
	uint64_t sent, longest, received, early, counter, finished;
	struct op ops[KINDS];
};

static struct side s;
static struct peer peers[2]; /* the other survivor and the victim, or both survivors */
static uint64_t state;
static char *window;

static uint64_t any(uint64_t limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state * 0x2545F4914F6CDD1DULL >> 11) % limit;
}

static void meet_peer(struct peer *p, const char *address)
{
	for (int k = 0; k < KINDS; k++) {
		if (!p->ops[k].buf)
			p->ops[k].buf = malloc(LONGEST);
		p->ops[k].pending = false;
	}
	p->sent = p->received = p->early = p->counter = p->finished = 0;
	p->dead = false;
	EQUAL(fi_av_insert(s.av, address, 1, &p->address, 0, NULL), 1);
	p->used = true;
}

/* Begins what is not under way; gives libfabric's answer. */
static ssize_t begin(struct peer *p, enum kind k)
{
	struct op *o = &p->ops[k];
	uint64_t one = 1;
	ssize_t r;

	switch (k) {
	case TSEND:
	case TSENDL: {
		/* A long message may be overtaken, by so many. */
		if (k == TSEND && p->ops[TSENDL].pending && p->sent > p->longest + 40)
			return -FI_EAGAIN;
		/* The tag says what is in the message; both kinds of sends count together. */
		static const size_t borders[] = {0, 8, 40, 41, 1000, 4096, 16000, 16384};
		o->len = k == TSENDL ? 16385 + any(LONGEST - 16385) : any(2) ? borders[any(8)] : any(16385);
		fill(o->buf, o->len, p->sent);
		r = fi_tsend(s.ep, o->buf, o->len, NULL, p->address, p->sent, o);
		if (r == 0 && k == TSENDL)
			p->longest = p->sent;
		if (r == 0)
			p->sent++;
		break;
	}
	case TRECV:
	case TRECV2:
		r = fi_trecv(s.ep, o->buf, LONGEST, NULL, p->address, 0, ~0ULL, o);
		break;
	case SEND:
		o->len = any(3000);
		fill(o->buf, o->len, 1);
		r = fi_send(s.ep, o->buf, o->len, NULL, p->address, o);
		break;
	case MRECV: {
		struct iovec v = {o->buf, LONGEST};
		struct fi_msg m = {.msg_iov = &v, .iov_count = 1, .addr = p->address, .context = o};
		r = fi_recvmsg(s.ep, &m, FI_MULTI_RECV | FI_COMPLETION);
		break;
	}
	case READ:
		o->len = any(WINDOW);
		memset(o->buf, 0, o->len);
		r = fi_read(s.ep, o->buf, o->len, NULL, p->address, 0, KEY, o);
		break;
	case WRITE:
		o->len = any(WINDOW);
		r = fi_write(s.ep, o->buf, o->len, NULL, p->address, WINDOW, KEY, o);
		break;
	case ATOMIC:
		r = fi_fetch_atomic(s.ep, &one, 1, NULL, o->buf, NULL, p->address, 2 * WINDOW, KEY, FI_UINT64, FI_SUM, o);
		break;
	default:
		FAIL("no such kind");
	}
	if (r == 0)
		o->pending = true;
	return r;
}

static struct peer *whose(void *context, enum kind *k)
{
	for (struct peer *p = peers; p < peers + 2; p++)
		if (context >= (void *)p->ops && context < (void *)(p->ops + KINDS)) {
			*k = (struct op *)context - p->ops;
			return p;
		}
	FAIL("a completion of nothing");
}

static void succeeded(const struct fi_cq_tagged_entry *e)
{
	enum kind k;
	struct peer *p = whose(e->op_context, &k);
	struct op *o = &p->ops[k];

	if (!o->pending)
		FAIL("%s completed twice", kinds[k]);
	p->finished++;
	switch (k) {
	case TRECV:
	case TRECV2:
		/* Each number comes once; a long message may be overtaken by others, which came behind it. */
		if (e->tag < p->received || e->tag - p->received >= 64 || p->early >> (e->tag - p->received) & 1)
			FAIL("message %llu comes again, or messages were lost before it: %llu is due",
			     (unsigned long long)e->tag, (unsigned long long)p->received);
		p->early |= 1ULL << (e->tag - p->received);
		for (; p->early & 1; p->early >>= 1)
			p->received++;
		filled(o->buf, e->len, e->tag);
		break;
	case MRECV:
		filled(e->buf, e->len, 1);
		if (!(e->flags & FI_MULTI_RECV))
			return;
		break;
	case READ:
		for (size_t i = 0; i < o->len; i++)
			CHECK(o->buf[i] == 0x5a);
		break;
	case ATOMIC: {
		uint64_t before = *(uint64_t *)o->buf;
		CHECK(p->counter == 0 || before >= p->counter);
		p->counter = before + 1;
		break;
	}
	default:
		break;
	}
	o->pending = false;
}

/* Takes completions; an error must be the end of somebody who may be dead. */
static void reap(bool may_die)
{
	struct fi_cq_tagged_entry e[4];
	ssize_t r = fi_cq_read(s.cq, e, 4);

	for (ssize_t i = 0; i < r; i++)
		succeeded(&e[i]);
	if (r == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};
		enum kind k;
		EQUAL(fi_cq_readerr(s.cq, &err, 0), 1);
		struct peer *p = whose(err.op_context, &k);
		if (err.err != FI_ECONNRESET)
			FAIL("%s ended with error %d", kinds[k], err.err);
		if (!may_die || p != &peers[1])
			FAIL("%s with a live peer ended with FI_ECONNRESET", kinds[k]);
		p->dead = true;
		if (k != MRECV || err.flags & FI_MULTI_RECV)
			p->ops[k].pending = false;
	} else if (r < 0) {
		EQUAL(r, -FI_EAGAIN);
		sched_yield();
	}
}

static void work(bool may_die)
{
	for (struct peer *p = peers; p < peers + 2; p++) {
		if (!p->used || p->dead)
			continue;
		for (enum kind k = 0; k < KINDS; k++) {
			if (p->ops[k].pending || (k != MRECV && k != TRECV && k != TRECV2 && any(3)))
				continue;
			ssize_t r = begin(p, k);
			if (r == -FI_ECONNRESET && may_die && p == &peers[1])
				p->dead = true;
			else if (r != -FI_EAGAIN)
				EQUAL(r, 0);
		}
	}
	reap(may_die);
}

/* The victim is dead: all with it ends in time, nothing new begins, and the other one does not notice. */
static void outlive(void)
{
	struct peer *p = &peers[1];
	double begun = now();
	uint64_t before = peers[0].finished;

	for (;;) {
		bool pending = false;
		for (enum kind k = 0; k < KINDS; k++)
			pending |= p->ops[k].pending;
		if (!pending && p->dead)
			break;
		if (now() > begun + PROMPT)
			for (enum kind k = 0; k < KINDS; k++)
				if (p->ops[k].pending || !p->dead)
					FAIL("%s with a dead peer has not ended after %.0f s (known dead: %d)", kinds[k],
					     PROMPT, p->dead);
		work(true);
	}
	for (enum kind k = 0; k < KINDS; k++) {
		ssize_t r = begin(p, k);
		if (k == TRECV || k == TRECV2 || k == MRECV) {
			/* What came whole before the death is still received. */
			while (r == 0 && p->ops[k].pending) {
				reap(true);
				if (now() > begun + PROMPT)
					FAIL("a %s from a dead peer waits for ever", kinds[k]);
				if (!p->ops[k].pending && !p->dead)
					r = begin(p, k);
			}
		} else if (r == 0) {
			/* A read of memory in the region is tried before anybody is asked; it fails all the same. */
			uint64_t ended = p->finished;
			CHECK(k == READ || k == WRITE || k == ATOMIC);
			while (p->ops[k].pending) {
				reap(true);
				if (now() > begun + PROMPT)
					FAIL("a %s with a dead peer has not ended", kinds[k]);
			}
			EQUAL(p->finished, ended);
		} else {
			EQUAL(r, -FI_ECONNRESET);
		}
	}
	while (peers[0].finished < before + 3) {
		work(true);
		if (now() > begun + PROMPT)
			FAIL("the traffic with the other survivor stands still");
	}
	EQUAL(fi_av_remove(s.av, &p->address, 1, 0), 0);
	p->used = false;
}

static void open_here(const char *lib)
{
	struct wish w = {.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV};
	struct fid_mr *mr;

	load(lib);
	open_side(&s, &w);
	size_t least = 4096;
	EQUAL(fi_setopt(&s.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
	/* The memory of about half of them is in the region, where others read, write and change it themselves. */
	if (state >> 20 & 1) {
		struct isthmus_memory_ops *memory = NULL;
		EQUAL(fi_open_ops(&s.domain->fid, ISTHMUS_MEMORY, 0, (void **)&memory, NULL), 0);
		EQUAL(memory->alloc(s.domain, 2 * WINDOW + 64, 64, (void **)&window), 0);
	} else {
		window = malloc(2 * WINDOW + 64);
	}
	memset(window, 0x5a, WINDOW);
	memset(window + WINDOW, 0, WINDOW + 64);
	EQUAL(fi_mr_reg(s.domain, window, 2 * WINDOW + 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL), 0);
	char mine[64];
	size_t len = sizeof mine;
	EQUAL(fi_getname(&s.ep->fid, mine, &len), 0);
	tell(mine, sizeof mine);
}

/* Orders of the controller: a = an address of peer 0, v = of peer 1, d = peer 1 is dead, g = go on for a while, q = quit. */
static void survive(void)
{
	for (;;) {
		char order;
		ssize_t n = recv(line, &order, 1, MSG_DONTWAIT);
		if (n == 0)
			_exit(0);
		if (n == 1) {
			char address[64];
			switch (order) {
			case 'a':
			case 'v':
				hear(address, 64);
				meet_peer(&peers[order == 'v'], address);
				break;
			case 'd':
				test_name = "outliving";
				outlive();
				test_name = "working";
				tell("o", 1);
				break;
			case 'g': {
				uint64_t before = peers[0].finished;
				double end = now() + PROMPT;
				while (peers[0].finished < before + 500) {
					work(false);
					if (now() > end)
						FAIL("the traffic stands still without the service");
				}
				tell("o", 1);
				break;
			}
			case 'q':
				_exit(0);
			}
		}
		work(true);
	}
}

static void victim(void)
{
	char address[64];
	for (int i = 0; i < 2; i++) {
		hear(address, 64);
		meet_peer(&peers[i], address);
	}
	tell("r", 1);
	for (;;)
		work(false);
}

/* The controller. */
struct worker {
	pid_t pid;
	int line;
	char address[64];
};

static struct worker start(const char *lib, int rank, void (*live)(void), uint64_t seed)
{
	struct worker w = {0};
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	fflush(NULL);
	w.pid = fork();
	CHECK(w.pid >= 0);
	if (w.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		rank_here = rank;
		line = pair[1];
		close(pair[0]);
		state = seed * 0x9E3779B97F4A7C15ULL + 1 + rank;
		test_name = "working";
		open_here(lib);
		live();
		_exit(1);
	}
	close(pair[1]);
	w.line = pair[0];
	return w;
}

/* Bytes that `w` sends, or the test ends. */
static void expect(struct worker *w, void *into, size_t len, const char *what)
{
	size_t got = 0;
	double end = now() + 60;
	while (got < len) {
		struct pollfd p = {.fd = w->line, .events = POLLIN};
		poll(&p, 1, 1000);
		ssize_t n = recv(w->line, (char *)into + got, len - got, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			FAIL("process %d ended: %s", w->pid, what);
		if (n > 0)
			got += n;
		if (now() > end)
			FAIL("process %d does not answer: %s", w->pid, what);
	}
}

static void order(struct worker *w, char what, const char *address)
{
	CHECK(send(w->line, &what, 1, MSG_NOSIGNAL) == 1);
	if (address)
		CHECK(send(w->line, address, 64, MSG_NOSIGNAL) == 64);
}

/* Granted bytes of the host's section, from the region of the service with this process id (docs/region-format.md). */
static uint64_t granted(pid_t service)
{
	static const char *region;
	if (!region) {
		char path[400], to[200];
		snprintf(path, sizeof path, "/proc/%d/fd", service);
		DIR *dir = opendir(path);
		CHECK(dir);
		for (struct dirent *d; !region && (d = readdir(dir));) {
			snprintf(path, sizeof path, "/proc/%d/fd/%s", service, d->d_name);
			ssize_t n = readlink(path, to, sizeof to - 1);
			if (n <= 0 || (to[n] = 0, !strstr(to, "memfd:isthmus-region")))
				continue;
			int fd = open(path, O_RDONLY);
			CHECK(fd >= 0);
			struct stat st;
			CHECK(fstat(fd, &st) == 0);
			region = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
			CHECK(region != MAP_FAILED);
			close(fd);
		}
		closedir(dir);
		CHECK(region);
	}
	uint64_t section, used;
	memcpy(&section, region + 4096 + 8, 8);
	memcpy(&used, region + section + 72, 8);
	return used;
}

static uint64_t settled(pid_t service, uint64_t most)
{
	double end = now() + PROMPT;
	uint64_t used;
	while ((used = granted(service)) > most && now() < end)
		usleep(1000);
	return used;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: kill LIBFABRIC SERVICE-PID ROUNDS [SEED]\n");
		return 2;
	}
	pid_t service = atoi(argv[2]);
	int rounds = atoi(argv[3]);
	uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 0) : (uint64_t)time(NULL);
	state = seed * 2 + 1;
	printf("seed %llu\n", (unsigned long long)seed);
	uint64_t first = granted(service);
	struct worker a = start(argv[1], 0, survive, seed), b = start(argv[1], 1, survive, seed + 1);
	expect(&a, a.address, 64, "its address");
	expect(&b, b.address, 64, "its address");
	order(&a, 'a', b.address);
	order(&b, 'a', a.address);
	double begun = now(), longest = 0;
	uint64_t steady = 0;
	for (int i = 0; i < rounds; i++) {
		char c;
		struct worker v = start(argv[1], 2, victim, seed + 3 + i);
		expect(&v, v.address, 64, "the victim's address");
		order(&a, 'v', v.address);
		order(&b, 'v', v.address);
		CHECK(send(v.line, a.address, 64, MSG_NOSIGNAL) == 64 && send(v.line, b.address, 64, MSG_NOSIGNAL) == 64);
		expect(&v, &c, 1, "the victim's start");
		/* Mostly at the beginning, where lanes open; sometimes later. */
		usleep(any(4) ? any(3000) : any(40000));
		kill(v.pid, SIGKILL);
		int status;
		EQUAL(waitpid(v.pid, &status, 0), v.pid);
		if (!WIFSIGNALED(status))
			FAIL("the victim ended by itself");
		double dead = now();
		close(v.line);
		order(&a, 'd', NULL);
		order(&b, 'd', NULL);
		expect(&a, &c, 1, "outliving a victim");
		expect(&b, &c, 1, "outliving a victim");
		if (now() - dead > longest)
			longest = now() - dead;
		if (i == (rounds < 40 ? rounds / 2 : 20))
			steady = (usleep(200000), granted(service));
	}
	/* The survivors' areas have found their size early on; what victims had is free again. */
	uint64_t last = settled(service, steady);
	if (last > steady + (1 << 20))
		FAIL("%llu bytes are granted after %d rounds, %llu after the first ones", (unsigned long long)last, rounds,
		     (unsigned long long)steady);
	order(&a, 'q', NULL);
	order(&b, 'q', NULL);
	EQUAL(waitpid(a.pid, NULL, 0), a.pid);
	EQUAL(waitpid(b.pid, NULL, 0), b.pid);
	EQUAL(settled(service, first), first);
	/* Those who are attached outlive the service. */
	a = start(argv[1], 0, survive, seed);
	b = start(argv[1], 1, survive, seed + 1);
	expect(&a, a.address, 64, "its address");
	expect(&b, b.address, 64, "its address");
	order(&a, 'a', b.address);
	order(&b, 'a', a.address);
	usleep(100000);
	kill(service, SIGKILL);
	for (int i = 0; i < 3; i++) {
		char c;
		order(&a, 'g', NULL);
		order(&b, 'g', NULL);
		expect(&a, &c, 1, "going on without the service");
		expect(&b, &c, 1, "going on without the service");
	}
	order(&a, 'q', NULL);
	order(&b, 'q', NULL);
	EQUAL(waitpid(a.pid, NULL, 0), a.pid);
	EQUAL(waitpid(b.pid, NULL, 0), b.pid);
	printf("%d victims in %.0f s, outlived by two each time, after at most %.2f s; %llu KiB granted then, none left\n", rounds,
	       now() - begun, longest, (unsigned long long)last >> 10);
	return 0;
}
