/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Waiting without polling, between two processes: fi_cq_sread, fi_cntr_wait, FI_WAIT_FD with fi_trywait, fi_cq_signal.
 *
 * A wake-up that gets lost does not hang a test, since every sleep is bounded; so the tests count how long each wait took.
 *
 * usage: wait LIBFABRIC [TEST...]
 *
 * Compiled with mpicc and -DOVER_MPI it runs as two ranks instead of forking, so that they may be in two VMs.
 */
#include "harness.h"
#include <poll.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define ROUNDS 400
/* A wake-up that is lost is made up for after a quarter of a second, or in a VM that interrupts wake after 5 s. */
#define LOST 0.2

static enum fi_wait_obj wait_obj;
static enum fi_threading threading;

static double cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* As open_side, but the queue and the counter have a wait object. */
static void open_waiting(struct side *s)
{
	struct wish w = {.threading = threading};
	memset(s, 0, sizeof *s);
	struct fi_info *hints = hints_for(&w);
	EQUAL(lf.getinfo(API, NULL, NULL, 0, hints, &s->info), 0);
	lf.freeinfo(hints);
	EQUAL(lf.fabric(s->info->fabric_attr, &s->fabric, NULL), 0);
	EQUAL(fi_domain(s->fabric, s->info, &s->domain, NULL), 0);
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	EQUAL(fi_av_open(s->domain, &av, &s->av, NULL), 0);
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = wait_obj};
	EQUAL(fi_cq_open(s->domain, &cq, &s->cq, NULL), 0);
	struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait_obj};
	EQUAL(fi_cntr_open(s->domain, &cntr, &s->cntr, NULL), 0);
	EQUAL(fi_endpoint(s->domain, s->info, &s->ep, NULL), 0);
	EQUAL(fi_ep_bind(s->ep, &s->av->fid, 0), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cntr->fid, FI_READ | FI_WRITE), 0);
	EQUAL(fi_enable(s->ep), 0);
}

static struct fi_cq_tagged_entry sread_one(struct side *s)
{
	struct fi_cq_tagged_entry e;
	double end = now() + SECONDS;
	for (;;) {
		ssize_t r = fi_cq_sread(s->cq, &e, 1, NULL, 10000);
		if (r == 1)
			return e;
		if (r != -FI_EAGAIN || now() > end)
			FAIL("fi_cq_sread gives %zd", r);
	}
}

static struct fi_cq_tagged_entry poll_one(struct side *s)
{
	int fd = -1;
	struct fi_cq_tagged_entry e;
	double end = now() + SECONDS;
	EQUAL(fi_control(&s->cq->fid, FI_GETWAIT, &fd), 0);
	for (;;) {
		ssize_t r = fi_cq_read(s->cq, &e, 1);
		if (r == 1)
			return e;
		EQUAL(r, -FI_EAGAIN);
		struct fid *fids[] = {&s->cq->fid};
		int t = fi_trywait(s->fabric, fids, 1);
		if (t == -FI_EAGAIN)
			continue;
		EQUAL(t, 0);
		struct pollfd p = {.fd = fd, .events = POLLIN};
		CHECK(poll(&p, 1, 10000) >= 0);
		if (now() > end)
			FAIL("nothing came");
	}
}

static struct fi_cq_tagged_entry one(struct side *s)
{
	return wait_obj == FI_WAIT_FD ? poll_one(s) : sread_one(s);
}

/* A message of the other's comes, is answered by one, and so on: seconds for each, with this way of waiting. */
static double exchanges(struct side *s, struct fi_cq_tagged_entry (*wait)(struct side *), char *bytes, size_t len, int rounds)
{
	double begun = now();
	for (int i = 0; i < rounds; i++) {
		POST(s, fi_trecv(s->ep, bytes + len, len, NULL, s->other, 0, 0, s));
		if (rank_here == 0)
			POST(s, fi_tsend(s->ep, bytes, len, NULL, s->other, 0, NULL));
		for (int ends = 0; ends < 2; ends++) {
			struct fi_cq_tagged_entry e = wait(s);
			if (e.flags & FI_RECV && rank_here == 1)
				POST(s, fi_tsend(s->ep, bytes, len, NULL, s->other, 0, NULL));
		}
	}
	return (now() - begun) / rounds;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/*
 * Long messages: who waits for room or for the next piece is woken, and does not sleep until it looks by itself. What is
 * promised (1.5 times as long as polling) is for `isthmus bench`, where nothing else runs; sleeps without a bell make it 20 to 60.
 */
static void long_messages(struct side *s)
{
	enum { BLOCKS = 7, ROUNDS_EACH = 20 };
	static const size_t lengths[] = {65536, 1 << 20};
	char *bytes = calloc(2, 1 << 20);
	for (int l = 0; l < 2; l++) {
		double polled[BLOCKS], slept[BLOCKS];
		for (int b = 0; b < BLOCKS; b++) {
			barrier();
			polled[b] = exchanges(s, done, bytes, lengths[l], ROUNDS_EACH);
			barrier();
			slept[b] = exchanges(s, one, bytes, lengths[l], ROUNDS_EACH);
		}
		qsort(polled, BLOCKS, sizeof *polled, by_value);
		qsort(slept, BLOCKS, sizeof *slept, by_value);
		double ratio = slept[BLOCKS / 2] / polled[BLOCKS / 2];
		if (rank_here == 0)
			printf("%zu bytes, there and back: %.0f us polling, %.0f us asleep, %.2fx\n", lengths[l],
			       polled[BLOCKS / 2] * 1e6, slept[BLOCKS / 2] * 1e6, ratio);
		barrier();
#ifdef OVER_MPI
		/* A wake-up in a VM takes longer than the message. */
		const double most = 100;
#else
		const double most = 10;
#endif
		if (rank_here == 0 && ratio > most)
			FAIL("waits for messages of %zu bytes take %.1f times as long asleep", lengths[l], ratio);
	}
	free(bytes);
}

/* Gives how much of the processor two seconds of waiting took. */
static double wait_for_nothing(struct side *s)
{
	struct fi_cq_tagged_entry e;
	double begun = now(), used = cpu();
	EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, 0), -FI_EAGAIN);
	CHECK(now() - begun < 1);
	begun = now();
	EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, 1500), -FI_EAGAIN);
	double took = now() - begun;
	CHECK(took >= 1.49);
	EQUAL(fi_cntr_wait(s->cntr, 1, 500), -FI_ETIMEDOUT);
	return cpu() - used;
}

/* Nobody sends: the whole time passes, and costs nothing. */
static void nothing(struct side *s)
{
	double used = wait_for_nothing(s);
#ifdef OVER_MPI
	/* A guest counts as used what its emulator had to wait for; not each time. Polling would have used all of the 2 s. */
	const double most = 1;
	barrier();
	double again = wait_for_nothing(s);
	used = again < used ? again : used;
#else
	const double most = 0.1;
#endif
	if (used > most)
		FAIL("2 s of waiting cost %.3f s of processor", used);
	barrier();
}

/* The same by poll() on the descriptor, which may be readable now and then for no reason. */
static void nothing_by_descriptor(struct side *s)
{
	struct fi_cq_tagged_entry e;
	int fd = -1, for_nothing = 0;
	struct fid *fids[] = {&s->cq->fid};
	double begun, used = cpu();
	EQUAL(fi_control(&s->cq->fid, FI_GETWAIT, &fd), 0);
	CHECK(fd >= 0);
	begun = now();
	for (double left; (left = begun + 2 - now()) > 0;) {
		EQUAL(fi_cq_read(s->cq, &e, 1), -FI_EAGAIN);
		EQUAL(fi_trywait(s->fabric, fids, 1), 0);
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int found = poll(&p, 1, (int)(left * 1000) + 1);
		CHECK(found == 0 || (found == 1 && p.revents == POLLIN));
		for_nothing += found;
	}
	used = cpu() - used;
	printf("    readable %d times in 2 s for nothing\n", for_nothing);
	/* Every quarter of a second is what an endpoint sleeps at most. */
	if (for_nothing > 40)
		FAIL("readable %d times in 2 s for nothing", for_nothing);
#ifdef OVER_MPI
	const double most = 1; /* as above */
#else
	const double most = 0.1;
#endif
	if (used > most)
		FAIL("2 s of waiting cost %.3f s of processor", used);
	barrier();
	/* It is not deaf: a message makes it readable. */
	if (rank_here) {
		usleep(300000);
		POST(s, fi_tinject(s->ep, "x", 1, s->other, 1));
	} else {
		char in;
		POST(s, fi_trecv(s->ep, &in, 1, NULL, s->other, 1, 0, &in));
		begun = now();
		CHECK(poll_one(s).op_context == &in);
		CHECK(now() - begun < 5);
	}
	barrier();
}

/* Both sides sleep now and then: each is woken when its message comes. */
static void ping_pong(struct side *s)
{
	char in[16], out[16] = "ping";
	double slowest = 0, sum = 0, used = cpu(), begun = now();
	int late = 0;
	unsigned seed = 7 + rank_here;
	for (int i = 0; i < ROUNDS; i++) {
		EQUAL(fi_trecv(s->ep, in, sizeof in, NULL, s->other, i, 0, in), 0);
		if (rank_here == 0) {
			usleep(rand_r(&seed) % 3000);
			double start = now();
			POST(s, fi_tinject(s->ep, out, sizeof out, s->other, i));
			one(s);
			double took = now() - start;
			sum += took;
			late += took > LOST;
			if (took > slowest)
				slowest = took;
		} else {
			one(s);
			POST(s, fi_tinject(s->ep, out, sizeof out, s->other, i));
		}
	}
	if (rank_here == 0) {
		printf("    round trip %.0f us on average, %.0f us at most, %d late; %.0f %% of a processor\n",
		       sum / ROUNDS * 1e6, slowest * 1e6, late, (cpu() - used) / (now() - begun) * 100);
		/* Lost wake-ups, of which a busy machine may be the reason now and then. */
		if (late > ROUNDS / 50)
			FAIL("%d of %d round trips took more than %.0f ms", late, ROUNDS, LOST * 1e3);
		if (sum / ROUNDS > 0.02)
			FAIL("a round trip takes %.1f ms on average", sum / ROUNDS * 1e3);
	}
	barrier();
}

/* Large messages have many parts, and each side waits for the other's. */
static void bulk(struct side *s)
{
	size_t len = 3000000;
	char *out = malloc(len), *in = malloc(len);
	double begun = now();
	for (unsigned i = 0; i < 8; i++) {
		fill(out, len, i + rank_here);
		EQUAL(fi_trecv(s->ep, in, len, NULL, s->other, i, 0, in), 0);
		POST(s, fi_tsend(s->ep, out, len, NULL, s->other, i, out));
		one(s);
		one(s);
		filled(in, len, i + !rank_here);
	}
	if (now() - begun > 10)
		FAIL("8 times 3 MB took %.1f s", now() - begun);
	barrier();
	free(out);
	free(in);
}

/* The target sleeps in its queue, the initiator in its counter. */
static void counter(struct side *s)
{
	static uint64_t memory[64];
	struct fid_mr *mr;
	uint64_t key = 0, addr = (uintptr_t)memory, theirs[2];
	EQUAL(fi_mr_reg(s->domain, memory, sizeof memory, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 5, 0, &mr, NULL), 0);
	key = fi_mr_key(mr);
	if (!(s->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR))
		addr = 0;
	uint64_t mine[2] = {key, addr};
	tell(mine, sizeof mine);
	hear(theirs, sizeof theirs);
	char in[8];
	EQUAL(fi_trecv(s->ep, in, sizeof in, NULL, s->other, 99, 0, in), 0);
	if (rank_here == 0) {
		double begun = now();
		int late = 0;
		for (uint64_t i = 1; i <= 100; i++) {
			usleep(500);
			double start = now();
			POST(s, fi_write(s->ep, &i, sizeof i, NULL, s->other, theirs[1], theirs[0], NULL));
			EQUAL(fi_cntr_wait(s->cntr, i, 10000), 0);
			late += now() - start > LOST;
		}
		if (late > 2)
			FAIL("%d of 100 writes took more than %.0f ms", late, LOST * 1e3);
		if (now() - begun > 5)
			FAIL("100 writes took %.1f s", now() - begun);
		EQUAL(fi_cntr_wait(s->cntr, 101, 50), -FI_ETIMEDOUT);
		POST(s, fi_tinject(s->ep, "end", 4, s->other, 99));
	} else {
		CHECK(one(s).flags & FI_RECV);
		EQUAL(memory[0], 100);
	}
	barrier();
	EQUAL(fi_close(&mr->fid), 0);
}

static void *signals(void *arg)
{
	struct side *s = arg;
	usleep(200000);
	EQUAL(fi_cq_signal(s->cq), 0);
	return NULL;
}

/* fi_cq_signal ends a wait. */
static void signaled(struct side *s)
{
	struct fi_cq_tagged_entry e;
	pthread_t thread;
	double begun = now();
	CHECK(pthread_create(&thread, NULL, signals, s) == 0);
	EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, -1), -FI_EAGAIN);
	CHECK(now() - begun > 0.15 && now() - begun < 5);
	pthread_join(thread, NULL);
	if (wait_obj == FI_WAIT_FD) {
		/* It ends one wait, and no others. */
		struct fid *fids[] = {&s->cq->fid};
		int t = -FI_EAGAIN;
		EQUAL(fi_cq_signal(s->cq), 0);
		for (int i = 0; i < 100 && t == -FI_EAGAIN; i++)
			t = fi_trywait(s->fabric, fids, 1);
		EQUAL(t, 0);
		EQUAL(fi_cq_read(s->cq, &e, 1), -FI_EAGAIN);
	}
	barrier();
}

#define LATE 21

struct late {
	struct side *s;
	_Atomic int seen;
};

static void *sees_late(void *arg)
{
	struct late *l = arg;
	for (int i = 0; i < LATE; i++) {
		sread_one(l->s);
		l->seen++;
	}
	return NULL;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* A thread sleeps in the queue; another one posts receives of messages that have arrived long before. */
static void late_receives(struct side *s)
{
	static char in[LATE];
	double took[LATE];
	struct late l = {.s = s};
	pthread_t thread;
	if (rank_here == 1)
		for (int i = 0; i < LATE; i++)
			POST(s, fi_tinject(s->ep, "x", 1, s->other, i));
	barrier();
	if (rank_here == 0) {
		CHECK(pthread_create(&thread, NULL, sees_late, &l) == 0);
		for (int i = 0; i < LATE; i++) {
			usleep(20000 + 1000 * i);
			double begun = now();
			EQUAL(fi_trecv(s->ep, &in[i], 1, NULL, s->other, i, 0, &in[i]), 0);
			while (l.seen == i)
				usleep(100);
			took[i] = now() - begun;
		}
		pthread_join(thread, NULL);
		qsort(took, LATE, sizeof *took, by_size);
		/* Where nobody wakes the thread, it looks after half of its longest sleep on average: 25 ms, or more in a VM. */
		if (took[LATE / 2] > 0.01)
			FAIL("a completion was seen after %.1f ms (median)", took[LATE / 2] * 1e3);
	}
	barrier();
}

static void *receives(void *arg)
{
	struct side *s = arg;
	for (int i = 0; i < 2 * ROUNDS; i++)
		sread_one(s);
	return NULL;
}

/* One thread sleeps in the queue for all completions; the other one sends, and large ones so that both are needed. */
static void threads(struct side *s)
{
	enum { LEN = 20000 };
	static char out[LEN], in[ROUNDS][LEN];
	pthread_t thread;
	double begun = now();
	for (int i = 0; i < ROUNDS; i++)
		EQUAL(fi_trecv(s->ep, in[i], LEN, NULL, s->other, i, 0, in[i]), 0);
	barrier();
	CHECK(pthread_create(&thread, NULL, receives, s) == 0);
	fill(out, LEN, 3 + rank_here);
	for (int i = 0; i < ROUNDS; i++) {
		if (i % 50 == 0)
			usleep(20000);
		double end = now() + SECONDS;
		while (fi_tsend(s->ep, out, LEN, NULL, s->other, i, out) == -FI_EAGAIN) {
			CHECK(now() < end);
			usleep(100);
		}
	}
	pthread_join(thread, NULL);
	for (int i = 0; i < ROUNDS; i++)
		filled(in[i], LEN, 3 + !rank_here);
	if (now() - begun > 10)
		FAIL("took %.1f s", now() - begun);
	barrier();
}

static void *sleeps_beside(void *arg)
{
	struct side *s = arg;
	EQUAL(fi_cntr_wait(s->cntr, 1, 3000), -FI_ETIMEDOUT);
	return NULL;
}

/* Two threads sleep on one endpoint. They do not wake each other for nothing, and one who is woken costs the other no message. */
static void beside(struct side *s)
{
	struct fi_cq_tagged_entry e;
	pthread_t thread;
	double used = cpu();
	CHECK(pthread_create(&thread, NULL, sleeps_beside, s) == 0);
	EQUAL(fi_cq_sread(s->cq, &e, 1, NULL, 1500), -FI_EAGAIN);
	used = cpu() - used;
#ifdef OVER_MPI
	const double most = 1; /* as above */
#else
	const double most = 0.1;
#endif
	if (used > most)
		FAIL("1.5 s of waiting by two threads cost %.3f s of processor", used);
	barrier();
	ping_pong(s);
	pthread_join(thread, NULL);
	barrier();
}

static atomic_bool reads_on;

static void *reads_beside(void *arg)
{
	struct side *s = arg;
	static const int pauses[] = {0, 20, 300, 1000, 50};
	for (int i = 0; atomic_load(&reads_on); i++) {
		/* Nothing is asked for, so each entry is the other thread's. */
		struct fi_cq_tagged_entry none;
		EQUAL(fi_cq_read(s->cq, &none, 0), -FI_EAGAIN);
		fi_cntr_read(s->cntr);
		if (pauses[i % 5])
			usleep(pauses[i % 5]);
	}
	return NULL;
}

/* One thread waits by the descriptor, and another one reads the same queue meanwhile, which ends what fi_trywait had promised. */
static void read_beside(struct side *s)
{
	pthread_t thread;
	atomic_store(&reads_on, true);
	CHECK(pthread_create(&thread, NULL, reads_beside, s) == 0);
	ping_pong(s);
	atomic_store(&reads_on, false);
	pthread_join(thread, NULL);
	barrier();
}

#ifdef OVER_MPI
#define ASLEEP 4

struct watched {
	pid_t thread;
	long wake_ups;
};

/* Voluntary switches of a thread of this process. */
static long switches(pid_t thread)
{
	char line[128];
	long count = -1;
	snprintf(line, sizeof line, "/proc/self/task/%d/status", (int)thread);
	FILE *status = fopen(line, "r");
	CHECK(status != NULL);
	while (fgets(line, sizeof line, status))
		sscanf(line, "voluntary_ctxt_switches: %ld", &count);
	fclose(status);
	CHECK(count >= 0);
	return count;
}

static void *watches(void *arg)
{
	struct watched *w = arg;
	/* It polls first. */
	usleep(1500000);
	long before = switches(w->thread);
	sleep(ASLEEP);
	w->wake_ups = switches(w->thread) - before;
	return NULL;
}

/* A sleeper that the device's interrupts wake looks every 5 s; others every quarter of a second. */
static void asleep(struct side *s)
{
	struct watched w = {.thread = (pid_t)syscall(SYS_gettid)};
	if (rank_here == 1) {
		sleep(ASLEEP + 3);
		POST(s, fi_tinject(s->ep, "x", 1, s->other, 1));
	} else {
		char in;
		pthread_t thread;
		bool is_rung = access("/dev/isthmus0", F_OK) == 0;
		POST(s, fi_trecv(s->ep, &in, 1, NULL, s->other, 1, 0, &in));
		CHECK(pthread_create(&thread, NULL, watches, &w) == 0);
		CHECK(one(s).op_context == &in);
		pthread_join(thread, NULL);
		printf("    %ld wake-ups in %d s%s\n", w.wake_ups, ASLEEP, is_rung ? ", by interrupts" : "");
		CHECK(w.wake_ups <= (is_rung ? 3 : ASLEEP * 5));
	}
	barrier();
}
#endif

/* Who waits for one that dies learns of it soon. */
static void death(struct side *s)
{
	char in[8];
	struct fi_cq_tagged_entry e;
	EQUAL(fi_trecv(s->ep, in, sizeof in, NULL, s->other, 1, 0, in), 0);
	POST(s, fi_tinject(s->ep, "x", 2, s->other, 2));
	if (rank_here == 1) {
		usleep(300000);
		raise(SIGKILL);
	}
	double begun = now();
	ssize_t r = fi_cq_sread(s->cq, &e, 1, NULL, 20000);
	EQUAL(r, -FI_EAVAIL);
	struct fi_cq_err_entry err = {0};
	EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
	CHECK(err.op_context == in);
	CHECK(now() - begun < 5);
}

static const struct {
	const char *name;
	void (*run)(struct side *);
	enum fi_wait_obj wait;
	enum fi_threading threading;
	bool dies;
} tests[] = {
	{"nothing", nothing, FI_WAIT_UNSPEC, FI_THREAD_DOMAIN, false},
	{"nothing_on_descriptor", nothing, FI_WAIT_FD, FI_THREAD_SAFE, false},
	{"nothing_by_descriptor", nothing_by_descriptor, FI_WAIT_FD, FI_THREAD_SAFE, false},
	{"ping_pong", ping_pong, FI_WAIT_UNSPEC, FI_THREAD_DOMAIN, false},
	{"ping_pong_safe", ping_pong, FI_WAIT_UNSPEC, FI_THREAD_SAFE, false},
	{"ping_pong_by_descriptor", ping_pong, FI_WAIT_FD, FI_THREAD_DOMAIN, false},
	{"bulk", bulk, FI_WAIT_UNSPEC, FI_THREAD_DOMAIN, false},
	{"bulk_by_descriptor", bulk, FI_WAIT_FD, FI_THREAD_DOMAIN, false},
	{"long_messages", long_messages, FI_WAIT_UNSPEC, FI_THREAD_DOMAIN, false},
	{"long_by_descriptor", long_messages, FI_WAIT_FD, FI_THREAD_DOMAIN, false},
	{"counter", counter, FI_WAIT_UNSPEC, FI_THREAD_DOMAIN, false},
	{"signaled", signaled, FI_WAIT_UNSPEC, FI_THREAD_SAFE, false},
	{"signaled_descriptor", signaled, FI_WAIT_FD, FI_THREAD_SAFE, false},
	{"late_receives", late_receives, FI_WAIT_UNSPEC, FI_THREAD_SAFE, false},
	{"late_receives_by_descriptor", late_receives, FI_WAIT_FD, FI_THREAD_SAFE, false},
	{"threads", threads, FI_WAIT_UNSPEC, FI_THREAD_SAFE, false},
	{"threads_by_descriptor", threads, FI_WAIT_FD, FI_THREAD_SAFE, false},
	{"beside", beside, FI_WAIT_UNSPEC, FI_THREAD_SAFE, false},
	{"beside_by_descriptor", beside, FI_WAIT_FD, FI_THREAD_SAFE, false},
	{"read_beside", read_beside, FI_WAIT_FD, FI_THREAD_SAFE, false},
#ifdef OVER_MPI
	{"asleep", asleep, FI_WAIT_UNSPEC, FI_THREAD_SAFE, false},
	{"asleep_by_descriptor", asleep, FI_WAIT_FD, FI_THREAD_SAFE, false},
#endif
	{"death", death, FI_WAIT_UNSPEC, FI_THREAD_DOMAIN, true},
};

static bool chosen(int argc, char **argv, const char *name)
{
	for (int i = 2; i < argc; i++)
		if (!strcmp(argv[i], name))
			return true;
	return argc == 2;
}

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	bool dies = false;
	if (argc < 2)
		FAIL("usage: wait LIBFABRIC [TEST...]");
	setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef OVER_MPI
	pid_t child = 0;
	(void)pair;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank_here);
#else
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	rank_here = child == 0;
	line = pair[rank_here];
	close(pair[!rank_here]);
#endif
	load(argv[1]);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (!chosen(argc, argv, tests[i].name))
			continue;
#ifdef OVER_MPI
		if (tests[i].dies)
			continue;
#endif
		struct side s;
		test_name = tests[i].name;
		wait_obj = tests[i].wait;
		threading = tests[i].threading;
		alarm(3 * SECONDS);
		double start = now();
		open_waiting(&s);
		meet(&s);
		barrier();
		tests[i].run(&s);
		dies = tests[i].dies;
		if (!dies) {
			close_side(&s);
			barrier();
		}
		if (rank_here == 0)
			printf("%-24s ok  %6.2f s\n", test_name, now() - start);
	}
#ifdef OVER_MPI
	MPI_Finalize();
	if (rank_here == 0)
		printf("wait: ok over MPI (libfabric %u.%u)\n", FI_MAJOR(lf.version()), FI_MINOR(lf.version()));
#endif
	if (child == 0)
		return 0;
	CHECK(waitpid(child, &status, 0) == child);
	if (dies ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status)
		FAIL("the other process ended with status %#x", status);
	printf("wait: ok (libfabric %u.%u)\n", FI_MAJOR(lf.version()), FI_MINOR(lf.version()));
	return 0;
}
