/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that use everything of the C face at once, on the host and in VMs, and are killed at random moments.
 *
 *	kills PLACES WORKERS KILLS PAUSE-US [SEED]       a place: starts workers, kills and replaces them
 *	kills worker SLOT LIFE PAUSE-US                  what it starts
 *
 * A place is the host or a VM; all places of a region are started with the same numbers. Each worker has a thread that waits
 * at a barrier of all, one that takes a mutex and a reader-writer lock, one that moves money by minitransactions, and one that
 * streams to its neighbour by IVC and hears who comes and goes. The places take turns in killing workers of their own. What
 * must hold:
 * - every survivor is told, by each of those objects that tell of deaths, and how long that takes is printed, of each of
 *   them: since the victim's end, which is what is promised, and since it was killed. A process that is killed ends once all
 *   its threads have had a processor to die on and the kernel has taken its memory back; nobody can know before. Its end is
 *   taken to be the last moment at which it was still seen, so that no sample is too short;
 * - nobody hangs: every thread of every worker gets on again;
 * - money is neither lost nor made, what locks protect is whole once it was mended, and streams are exact.
 *
 * The first place prints and decides. Where it is told "vm PID MEMBER" on its standard input, it kills that process last, all
 * workers of that member with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <isthmus.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 32
#define PLACES 8
#define ACCOUNTS 16
#define EACH 1000
#define GROUP 0x6b696c6c73
#define SECOND 1000000000ull
/* Nobody is late before that, on a machine with much else to do. */
#define HANG (60 * SECOND)
/* Of a run of 10,000 kills, twice. Where there are more, the test fails: nothing is left out. */
#define SAMPLES (1 << 19)
#define KILLS (1 << 15)
/* What is promised natively of 19 in 20; the first of the others are explained. */
#define LATE (SECOND / 10)

/* What tells of a death. */
enum news { BARRIER, MUTEX, RWLOCK, READER, WRITER, MEMBER, NEWS };
static const char *const news[] = {"barrier is broken", "mutex: owner died", "rwlock: owner died", "channel: reader",
				   "channel: writer",	"group: member left"};
/* What each worker has a thread for. */
enum work { MEET, LOCK, PAY, TALK, WORKS };
static const char *const works[] = {"barriers", "locks", "transfers", "channels"};

struct line {
	uint64_t life, ready, done[WORKS];
	/* The barrier in which it has a seat, when it heard that one was broken, and how long it had waited for a processor. */
	uint64_t seat, broken, broken_at, broken_waited;
	/* The lives of others that it knows: by membership, and as the other ends of its channels. */
	uint64_t knows[3][SLOTS];
} __attribute__((aligned(64)));

struct place {
	uint64_t there, member, ended, failed;
	/* The first place's clock, asked and answered; what is to be added to this place's own. */
	uint64_t ask, answer, answered;
	int64_t offset;
	uint64_t inexact;
} __attribute__((aligned(64)));

/* What a lock protects. */
struct safe {
	uint64_t holder, pair[2], before[2], changing;
} __attribute__((aligned(64)));

/* A life that was taken: when, and when it was still seen for the last time. */
struct kill {
	uint64_t victim, life, phase, at, seen;
};

/* Somebody who was told of that: by what, when, and how long it has been without a processor since it began to wait. */
struct sample {
	uint32_t kill, news;
	uint64_t at, waited;
};

struct board {
	uint64_t stop, epoch, parties, turn, phase, workers;
	uint64_t longest, transfers, refused, audits, bytes;
	/* Of deaths: how many held which lock. */
	uint64_t held[2], deaths, seated;
	struct safe safes[2];
	struct place places[PLACES];
	struct line lines[SLOTS];
	uint64_t kills, samples;
	struct kill kill[KILLS];
	struct sample sample[SAMPLES];
};

#define GET(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define SET(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_fetch_add(&(x), (v), __ATOMIC_SEQ_CST)

static struct isthmus *here;
static struct board *board;
static const char *who = "kills";
static uint64_t me, my_life, my_client;
static unsigned pause_us;
static struct place *own;
static bool is_worker;

static _Noreturn void fail(const char *format, ...)
{
	va_list args;
	char text[600];

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fprintf(stderr, "%s: %s\n", who, text);
	if (own && !is_worker)
		SET(own->failed, 1);
	_exit(1);
}

/* Once all are to end, others may be gone at any time. */
static bool ending(void)
{
	return GET(board->stop) != 0;
}

static int must(int result, const char *what)
{
	if (result < 0)
		fail("%s: error %d: %s", what, result, isthmus_error());
	return result;
}

static uint64_t clock_here(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* The same everywhere, to within what struct place says. */
static uint64_t now(void)
{
	return clock_here() + (uint64_t)GET(own->offset);
}

static uint64_t any(uint64_t *state, uint64_t limit)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (*state * 0x2545F4914F6CDD1DULL >> 11) % limit;
}

static uint64_t seed_of(uint64_t thread)
{
	return ((me + 1) << 40 | (my_life + 1) << 8 | thread) * 0x9E3779B97F4A7C15ULL;
}

static void rest(uint64_t *state)
{
	usleep((useconds_t)any(state, pause_us + 1));
}

/* Nanoseconds that this thread could have run and did not, for want of a processor; 0 where the kernel does not count them. */
static uint64_t without_processor(void)
{
	static __thread int file;
	char text[100];
	unsigned long long waited = 0;

	if (!file)
		file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	ssize_t n = pread(file, text, sizeof text - 1, 0);
	if (n <= 0)
		return 0;
	text[n] = 0;
	sscanf(text, "%*u %llu", &waited);
	return waited;
}
/* The same, as this thread began what it does. */
static __thread uint64_t waited_before;

static void begin_to_wait(void)
{
	waited_before = without_processor();
}

/* The number of that kill, or -1 if that life was not taken by anybody. */
static int64_t kill_of(uint64_t victim, uint64_t life)
{
	for (int64_t i = (int64_t)GET(board->kills) - 1; i >= 0; i--)
		if (GET(board->kill[i].life) == life && GET(board->kill[i].victim) == victim)
			return i;
	return -1;
}

static void count(enum news what, int64_t number, uint64_t at, uint64_t waited)
{
	uint64_t place = ADD(board->samples, 1);

	if (place >= SAMPLES)
		fail("more news than there is room for: raise SAMPLES");
	board->sample[place] = (struct sample){(uint32_t)number, what, at, waited};
}

static void told(enum news what, uint64_t victim, uint64_t life)
{
	uint64_t at = now();
	int64_t number = kill_of(victim, life);

	if (number >= 0)
		count(what, number, at, without_processor() - waited_before);
	else if (!ending())
		fail("worker %" PRIu64 ", life %" PRIu64 ", was not killed, and yet: %s", victim, life, news[what]);
}

/* ---- what workers do ---- */

/* A barrier that is broken stays so; its successor has the next number. The parties are part of the number. */
static void barrier_name(char *name, uint64_t epoch)
{
	sprintf(name, "kills-%" PRIu64, epoch);
}

static void next_epoch(uint64_t epoch)
{
	char name[40];
	uint64_t next = (epoch / 256 + 1) * 256 + GET(board->parties);

	if (__atomic_compare_exchange_n(&board->epoch, &epoch, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		barrier_name(name, epoch);
		isthmus_barrier_unlink(here, name);
	}
}

static void *meet(void *arg)
{
	struct line *line = arg;
	struct isthmus_barrier *barrier;
	uint64_t state = seed_of(MEET);
	char name[40];

	while (!ending()) {
		uint64_t epoch = GET(board->epoch);
		/* All ways to wait, the one that takes a processor seldom. */
		unsigned waiting = epoch / 256 % 8 == 0 ? ISTHMUS_SPIN : epoch / 256 % 2 ? ISTHMUS_BLOCK : ISTHMUS_HYBRID;
		barrier_name(name, epoch);
		int r = isthmus_barrier_join(here, name, (uint32_t)(epoch % 256), waiting, 0600, &barrier);
		if (r == ISTHMUS_EBROKEN) {
			next_epoch(epoch);
			continue;
		}
		if (r == ISTHMUS_EFULL) {
			/* With one that is dead, and not known to be. */
			usleep(500);
			continue;
		}
		must(r, "barrier");
		if (GET(board->epoch) != epoch) {
			/* One that was unlinked, and made again by this very call. */
			isthmus_barrier_leave(barrier);
			isthmus_barrier_unlink(here, name);
			continue;
		}
		SET(line->seat, epoch);
		ADD(line->ready, 1);
		for (bool last = false; !last;) {
			/* At the end somebody arrives and leaves, so that it is broken for those who wait already. */
			last = ending();
			begin_to_wait();
			r = isthmus_barrier_wait(barrier, last ? 0 : ISTHMUS_FOREVER);
			if (r < 0)
				break;
			ADD(line->done[MEET], 1);
			rest(&state);
		}
		if (r == ISTHMUS_EBROKEN) {
			SET(line->broken_waited, without_processor() - waited_before);
			SET(line->broken_at, now());
			SET(line->broken, epoch);
		} else if (!ending()) {
			must(r, "barrier");
		}
		SET(line->seat, 0);
		isthmus_barrier_leave(barrier);
		next_epoch(epoch);
	}
	return NULL;
}

/* Moves something from one to the other, and says first what was before. */
static void change(struct safe *safe, int died, enum news what, uint64_t *state)
{
	if (died) {
		uint64_t holder = GET(safe->holder);
		if (GET(safe->changing)) {
			SET(safe->pair[0], safe->before[0]);
			SET(safe->pair[1], safe->before[1]);
			SET(safe->changing, 0);
		}
		if (holder)
			told(what, (holder >> 32) - 1, holder & 0xffffffff);
	} else if (GET(safe->holder)) {
		fail("%s, and it belonged to %" PRIx64, "a lock was given without a word", GET(safe->holder));
	}
	SET(safe->holder, my_client);
	uint64_t a = GET(safe->pair[0]), b = GET(safe->pair[1]);
	if (a + b != EACH)
		fail("a lock protects %" PRIu64 " and %" PRIu64, a, b);
	uint64_t amount = any(state, a + 1);
	SET(safe->before[0], a);
	SET(safe->before[1], b);
	SET(safe->changing, 1);
	SET(safe->pair[0], b + amount);
	if (any(state, 4) == 0)
		rest(state);
	SET(safe->pair[1], a - amount);
	SET(safe->changing, 0);
	SET(safe->holder, 0);
}

struct locks {
	struct isthmus_mutex *mutex;
	struct isthmus_rwlock *rwlock;
};

static struct locks open_locks(void)
{
	struct locks l;

	must(isthmus_mutex_open(here, "kills", 0600, &l.mutex), "mutex");
	/* The dead are counted until their service knows. */
	must(isthmus_rwlock_open(here, "kills", 4 * SLOTS, 0600, &l.rwlock), "rwlock");
	return l;
}

static void close_locks(struct locks *l)
{
	isthmus_mutex_close(l->mutex);
	isthmus_rwlock_close(l->rwlock);
}

static void use_mutex(struct locks *l, uint64_t *state)
{
	int r = must(isthmus_mutex_lock(l->mutex, HANG), "lock");

	change(&board->safes[0], r == ISTHMUS_OWNER_DIED, MUTEX, state);
	if (r == ISTHMUS_OWNER_DIED)
		must(isthmus_mutex_mend(l->mutex), "mend");
	must(isthmus_mutex_unlock(l->mutex), "unlock");
}

static void write_under(struct locks *l, uint64_t *state)
{
	int r = must(isthmus_rwlock_write(l->rwlock, HANG), "write lock");

	change(&board->safes[1], r == ISTHMUS_OWNER_DIED, RWLOCK, state);
	if (r == ISTHMUS_OWNER_DIED)
		must(isthmus_rwlock_mend(l->rwlock), "mend");
	must(isthmus_rwlock_unlock(l->rwlock), "unlock");
}

static void *lock(void *arg)
{
	struct line *line = arg;
	struct locks l = open_locks();
	uint64_t state = seed_of(LOCK);

	ADD(line->ready, 1);
	while (!ending()) {
		uint64_t dice = any(&state, 4);
		begin_to_wait();
		int r = dice == 3 ? isthmus_rwlock_read(l.rwlock, HANG) : 0;
		if (dice < 2) {
			use_mutex(&l, &state);
		} else if (dice == 2 || r == ISTHMUS_EOWNERDIED) {
			write_under(&l, &state);
		} else {
			must(r, "read lock");
			if (board->safes[1].pair[0] + board->safes[1].pair[1] != EACH)
				fail("a reader sees half of a change");
			must(isthmus_rwlock_unlock(l.rwlock), "unlock");
		}
		ADD(line->done[LOCK], 1);
		rest(&state);
	}
	close_locks(&l);
	return NULL;
}

struct bank {
	struct isthmus_segment *segment;
	struct isthmus_space *space;
	struct isthmus_transaction *t;
	uint32_t accounts;
};

static struct bank open_bank(void)
{
	struct bank b;

	must(isthmus_segment_open(here, "bank", ISTHMUS_CREATE, 0600, ACCOUNTS * 8, &b.segment), "bank");
	must(isthmus_space_open(here, "bank", 0600, NULL, &b.space), "space");
	must(isthmus_space_add(b.space, b.segment, &b.accounts), "accounts");
	must(isthmus_transaction_new(b.space, &b.t), "transaction");
	return b;
}

static void close_bank(struct bank *b)
{
	isthmus_transaction_free(b->t);
	isthmus_space_close(b->space);
	isthmus_segment_close(b->segment);
}

static int commit(struct bank *b)
{
	uint64_t begun = clock_here();
	int r = must(isthmus_transaction_commit(b->t), "commit");
	uint64_t took = clock_here() - begun, most = GET(board->longest);

	while (took > most && !__atomic_compare_exchange_n(&board->longest, &most, took, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	return r;
}

/* All balances at one moment; UINT64_MAX if others were in the way. */
static uint64_t audit(struct bank *b)
{
	uint64_t balance[ACCOUNTS], all = 0;

	isthmus_transaction_clear(b->t);
	must(isthmus_transaction_read(b->t, ISTHMUS_NODE_LOCAL, b->accounts, 0, balance, sizeof balance), "read");
	if (commit(b) != ISTHMUS_COMMITTED)
		return UINT64_MAX;
	for (int i = 0; i < ACCOUNTS; i++)
		all += balance[i];
	return all;
}

/* From one account to the next ones, which takes several lines and writes. */
static bool pay(struct bank *b, uint64_t *state)
{
	uint64_t from = any(state, ACCOUNTS), others = 1 + any(state, 3), is[4], shall[4], amount = any(state, 20);

	isthmus_transaction_clear(b->t);
	for (uint64_t i = 0; i <= others; i++)
		must(isthmus_transaction_read(b->t, ISTHMUS_NODE_LOCAL, b->accounts, (from + i) % ACCOUNTS * 8, &is[i], 8), "read");
	if (commit(b) != ISTHMUS_COMMITTED)
		return false;
	if (is[0] < amount * others)
		return true;
	isthmus_transaction_clear(b->t);
	for (uint64_t i = 0; i <= others; i++) {
		uint64_t at = (from + i) % ACCOUNTS * 8;
		shall[i] = i ? is[i] + amount : is[0] - amount * others;
		must(isthmus_transaction_compare(b->t, ISTHMUS_NODE_LOCAL, b->accounts, at, &is[i], 8), "compare");
		must(isthmus_transaction_write(b->t, ISTHMUS_NODE_LOCAL, b->accounts, at, &shall[i], 8), "write");
	}
	return commit(b) == ISTHMUS_COMMITTED;
}

static void *pay_all(void *arg)
{
	struct line *line = arg;
	struct bank b = open_bank();
	uint64_t state = seed_of(PAY);

	ADD(line->ready, 1);
	while (!ending()) {
		if (pay(&b, &state)) {
			ADD(board->transfers, 1);
			ADD(line->done[PAY], 1);
		} else {
			ADD(board->refused, 1);
		}
		if (any(&state, 8) == 0) {
			uint64_t all = audit(&b);
			if (all != UINT64_MAX && all != ACCOUNTS * EACH)
				fail("the sum is %" PRIu64 ", not %d", all, ACCOUNTS * EACH);
			ADD(board->audits, 1);
		}
		rest(&state);
	}
	close_bank(&b);
	return NULL;
}

/* Channels: one to the next slot, and those that come. */
struct talk {
	struct line *line;
	struct isthmus_ivc *ivc;
	struct isthmus_peer next;
	bool is_next;
	struct end {
		struct isthmus_channel *channel;
		uint64_t slot, life, at;
	} out, in[SLOTS];
};

static unsigned char byte_of(uint64_t slot, uint64_t life, uint64_t at)
{
	return (unsigned char)((at * 31 + (at >> 8)) ^ slot * 7 ^ life * 13);
}

static uint64_t slot_of(const struct isthmus_peer *peer)
{
	uint64_t slot = (peer->client >> 32) - 1;

	if (slot >= SLOTS)
		fail("a stranger in the group: %" PRIx64, peer->client);
	return slot;
}

static void heard(const struct isthmus_event *event, void *arg)
{
	struct talk *t = arg;
	uint64_t slot, life = event->peer.client & 0xffffffff, *knows;

	if (event->kind != ISTHMUS_JOINED && event->kind != ISTHMUS_LEFT)
		return;
	slot = slot_of(&event->peer);
	knows = &t->line->knows[MEMBER - READER][slot];
	if (event->kind == ISTHMUS_JOINED) {
		SET(*knows, life);
		if (slot == (me + 1) % GET(board->workers)) {
			t->next = event->peer;
			t->is_next = true;
		}
		return;
	}
	if (t->is_next && t->next.client == event->peer.client)
		t->is_next = false;
	told(MEMBER, slot, life);
	if (GET(*knows) == life)
		SET(*knows, 0);
}

/* An end that is over for good: why says whether it may be. */
static void over(struct talk *t, struct end *end, int64_t why, enum news what)
{
	uint64_t *knows = &t->line->knows[what - READER][end->slot];

	if (why == ISTHMUS_EPEERDIED)
		told(what, end->slot, end->life);
	else if (!ending())
		fail("a channel with %" PRIu64 " ends by %d: %s", end->slot, (int)why, isthmus_error());
	if (GET(*knows) == end->life)
		SET(*knows, 0);
	isthmus_channel_close(end->channel);
	end->channel = NULL;
}

static void call_next(struct talk *t)
{
	struct isthmus_channel *channel;
	int r = isthmus_ivc_connect(t->ivc, &t->next, HANG, &channel);

	if (r == ISTHMUS_EREFUSED || r == ISTHMUS_ENOTFOUND || r == ISTHMUS_EPEERDIED)
		return;
	must(r, "connect");
	t->out = (struct end){channel, slot_of(&t->next), t->next.client & 0xffffffff, 0};
	must(isthmus_channel_watch(channel, 1, 0), "watch");
	SET(t->line->knows[WRITER - READER][t->out.slot], t->out.life);
}

static void take_calls(struct talk *t)
{
	struct isthmus_channel *channel;
	struct isthmus_peer peer;
	int r, i;

	while ((r = isthmus_ivc_accept(t->ivc, 0, &channel)) == 0) {
		must(isthmus_channel_peer(channel, &peer), "peer");
		for (i = 0; t->in[i].channel; i++)
			if (i == SLOTS - 1)
				fail("channels of the dead stay");
		t->in[i] = (struct end){channel, slot_of(&peer), peer.client & 0xffffffff, 0};
		must(isthmus_channel_watch(channel, 1, 0), "watch");
		SET(t->line->knows[0][t->in[i].slot], t->in[i].life);
	}
	if (r != ISTHMUS_EBUSY && r != ISTHMUS_EPEERDIED)
		must(r, "accept");
}

static void *talk(void *arg)
{
	struct talk t = {.line = arg};
	struct isthmus_ivc_options options = {.ring_bytes = 4096, .linger_ns = 1};
	unsigned char bytes[3000];
	uint64_t state = seed_of(TALK), next = 0;

	must(isthmus_ivc_register(here, GROUP, my_client, &options, &t.ivc), "register");
	ADD(t.line->ready, 1);
	struct pollfd p = {.fd = must(isthmus_ivc_descriptor(t.ivc), "descriptor"), .events = POLLIN};
	begin_to_wait();
	while (!ending()) {
		must(isthmus_ivc_events(t.ivc, 0, heard, &t), "events");
		take_calls(&t);
		for (int i = 0; i < SLOTS; i++) {
			struct end *end = &t.in[i];
			int64_t n = 1;
			while (end->channel && n > 0) {
				n = isthmus_channel_read(end->channel, bytes, 1 + any(&state, sizeof bytes));
				for (int64_t j = 0; j < n; j++, end->at++)
					if (bytes[j] != byte_of(end->slot, end->life, end->at))
						fail("byte %" PRIu64 " of slot %" PRIu64 " is wrong", end->at, end->slot);
				if (n > 0)
					ADD(board->bytes, (uint64_t)n);
				if (n < 0)
					over(&t, end, n, READER);
			}
		}
		if (!t.out.channel && t.is_next && !ending())
			call_next(&t);
		if (t.out.channel) {
			uint64_t len = 1 + any(&state, sizeof bytes);
			for (uint64_t j = 0; j < len; j++)
				bytes[j] = byte_of(me, my_life, t.out.at + j);
			int64_t n = isthmus_channel_write(t.out.channel, bytes, len);
			if (n >= 0)
				t.out.at += (uint64_t)n;
			else
				over(&t, &t.out, n, WRITER);
		}
		ADD(t.line->done[TALK], 1);
		/* Some write often, others sleep until something happens. */
		next = any(&state, 1 + pause_us / (me % 2 ? 10 : 500)) + 1;
		begin_to_wait();
		if (isthmus_ivc_arm(t.ivc) == 1)
			poll(&p, 1, (int)next);
	}
	for (int i = 0; i < SLOTS; i++)
		isthmus_channel_close(t.in[i].channel);
	isthmus_channel_close(t.out.channel);
	isthmus_ivc_close(t.ivc);
	return NULL;
}

static void open_board(void)
{
	struct isthmus_segment *segment;

	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "kills", ISTHMUS_CREATE, 0600, sizeof *board, &segment), "board");
	board = isthmus_segment_data(segment);
}

static struct place *place_of(uint64_t member)
{
	for (int i = 0; i < PLACES; i++)
		if (GET(board->places[i].there) && GET(board->places[i].member) == member)
			return &board->places[i];
	fail("no place is called %" PRIu64, member);
}

static int work(char **argv)
{
	static char name[60];
	void *(*const threads[WORKS])(void *) = {meet, lock, pay_all, talk};
	pthread_t thread[WORKS];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	is_worker = true;
	me = strtoull(argv[2], NULL, 0);
	my_life = strtoull(argv[3], NULL, 0);
	my_client = (me + 1) << 32 | my_life;
	pause_us = (unsigned)atoi(argv[4]);
	snprintf(name, sizeof name, "kills: worker %s, life %s", argv[2], argv[3]);
	who = name;
	open_board();
	own = place_of(isthmus_member(here));
	for (int i = 0; i < WORKS; i++)
		if (pthread_create(&thread[i], NULL, threads[i], &board->lines[me]))
			fail("no thread");
	for (int i = 0; i < WORKS; i++)
		pthread_join(thread[i], NULL);
	isthmus_detach(here);
	return 0;
}

/* ---- places ---- */

static uint64_t number, places, workers, seed;
static pid_t pids[SLOTS];
static char vm_line[200];

static void start(uint64_t slot)
{
	struct line *line = &board->lines[slot];
	char a[20], b[20], c[20];

	/* The dead one's line; nobody else writes it. */
	line->seat = line->broken = line->ready = 0;
	memset(line->knows, 0, sizeof line->knows);
	SET(line->life, line->life + 1);
	sprintf(a, "%" PRIu64, slot);
	sprintf(b, "%" PRIu64, line->life);
	sprintf(c, "%u", pause_us);
	pids[slot] = fork();
	if (pids[slot] == 0) {
		char *const argv[] = {"kills", "worker", a, b, c, NULL};
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	if (pids[slot] < 0)
		fail("fork: %s", strerror(errno));
}

static void all_live(void)
{
	int status;

	for (uint64_t i = number * workers; i < (number + 1) * workers; i++)
		if (pids[i] && waitpid(pids[i], &status, WNOHANG) > 0)
			fail("worker %" PRIu64 " ended by itself, status %d", i, status);
	for (uint64_t i = 0; i < places; i++)
		if (GET(board->places[i].failed))
			fail("place %" PRIu64 " has failed", i);
}

/* Somebody who must be told of a death, and by what. */
struct owed {
	uint64_t survivor, life, victim, victim_life, seat;
	enum news what;
};
static struct owed owed[4 * SLOTS * NEWS];
static size_t owes;

static bool is_told(const struct owed *o)
{
	struct line *line = &board->lines[o->survivor];

	switch (o->what) {
	case MUTEX:
	case RWLOCK:
		return GET(board->safes[o->what - MUTEX].holder) != ((o->victim + 1) << 32 | o->victim_life);
	case BARRIER:
		if (GET(line->life) != o->life)
			return true;
		if (GET(line->broken) == o->seat) {
			int64_t number = kill_of(o->victim, o->victim_life);
			uint64_t at = GET(line->broken_at);
			/* If not, it has heard of another death before this one. */
			if (at >= GET(board->kill[number].at))
				count(BARRIER, number, at, GET(line->broken_waited));
			return true;
		}
		return GET(line->seat) != o->seat;
	default:
		return GET(line->life) != o->life || GET(line->knows[o->what - READER][o->victim]) != o->victim_life;
	}
}

/* After a victim's death: who of the living must hear of it. `dead` tells who is not among them. */
static void note(uint64_t victim, const bool *dead)
{
	struct line *line = &board->lines[victim];
	struct owed o = {.victim = victim, .victim_life = GET(line->life), .seat = GET(line->seat)};
	uint64_t client = (victim + 1) << 32 | o.victim_life;

	ADD(board->deaths, 1);
	for (int i = 0; i < 2; i++) {
		o.what = i ? RWLOCK : MUTEX;
		if (GET(board->safes[i].holder) == client) {
			ADD(board->held[i], 1);
			owed[owes++] = o;
		}
	}
	if (o.seat)
		ADD(board->seated, 1);
	for (o.survivor = 0; o.survivor < GET(board->workers); o.survivor++) {
		line = &board->lines[o.survivor];
		o.life = GET(line->life);
		if (dead[o.survivor] || !o.life)
			continue;
		o.what = BARRIER;
		if (o.seat && GET(line->seat) == o.seat)
			owed[owes++] = o;
		for (o.what = READER; o.what <= MEMBER; o.what++)
			if (GET(line->knows[o.what - READER][victim]) == o.victim_life)
				owed[owes++] = o;
	}
}

static void await_told(void)
{
	uint64_t begun = clock_here();

	while (owes) {
		for (size_t i = 0; i < owes;)
			if (is_told(&owed[i]))
				owed[i] = owed[--owes];
			else
				i++;
		if (!owes)
			break;
		all_live();
		if (clock_here() - begun > HANG)
			fail("worker %" PRIu64 ", life %" PRIu64 ", was never told of the end of worker %" PRIu64 ", life %" PRIu64 ": %s",
			     owed[0].survivor, owed[0].life, owed[0].victim, owed[0].victim_life, news[owed[0].what]);
		usleep(200);
	}
}

/* Every thread of every worker gets on. */
static void await_progress(const bool *dead)
{
	static uint64_t before[SLOTS][WORKS];
	uint64_t begun = clock_here(), n = GET(board->workers);

	for (uint64_t i = 0; i < n; i++)
		for (int w = 0; w < WORKS; w++)
			before[i][w] = GET(board->lines[i].done[w]);
	for (uint64_t i = 0; i < n; i++)
		for (int w = 0; !dead[i] && w < WORKS;) {
			if (GET(board->lines[i].done[w]) != before[i][w]) {
				w++;
				continue;
			}
			all_live();
			if (clock_here() - begun > HANG)
				fail("worker %" PRIu64 ", life %" PRIu64 ", hangs: %s", i, GET(board->lines[i].life), works[w]);
			usleep(500);
		}
}

/* Writes down who is to be killed, just before. Returns its number among all. */
static uint64_t record(uint64_t victim)
{
	uint64_t i = ADD(board->kills, 1);

	if (i >= KILLS)
		fail("more kills than there is room for: raise KILLS");
	struct kill *k = &board->kill[i];
	SET(k->victim, victim);
	SET(k->phase, GET(board->phase));
	SET(k->at, now());
	SET(k->seen, k->at);
	SET(k->life, GET(board->lines[victim].life));
	return i;
}

/* Looks at those who were killed until all are gone. The time of a look is taken before it. */
static void await_ends(const uint64_t *victims, const uint64_t *numbers, uint64_t n)
{
	for (uint64_t left = n; left; usleep(100))
		for (uint64_t i = 0; i < n; i++) {
			int status;
			uint64_t at = now();
			if (!pids[victims[i]])
				continue;
			if (waitpid(pids[victims[i]], &status, WNOHANG) == 0) {
				SET(board->kill[numbers[i]].seen, at);
				continue;
			}
			if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
				fail("worker %" PRIu64 " ended by itself, status %d", victims[i], status);
			pids[victims[i]] = 0;
			left--;
		}
}

/* Kills up to two of the own workers at a moment, and replaces them. */
static void kill_some(uint64_t *left)
{
	bool dead[SLOTS] = {false};
	uint64_t victims[2], numbers[2], count = *left > 1 && workers > 2 && any(&seed, 4) == 0 ? 2 : 1;

	/* While the last ones start, when they are at work, or any time between. */
	uint64_t when = any(&seed, 4);
	if (when == 0)
		await_progress(dead);
	usleep((useconds_t)any(&seed, when == 1 ? 20 * pause_us : pause_us));
	all_live();
	for (uint64_t i = 0; i < count; i++) {
		do
			victims[i] = number * workers + any(&seed, workers);
		while (dead[victims[i]]);
		dead[victims[i]] = true;
		numbers[i] = record(victims[i]);
		kill(pids[victims[i]], SIGKILL);
	}
	await_ends(victims, numbers, count);
	for (uint64_t i = 0; i < count; i++)
		note(victims[i], dead);
	for (uint64_t i = 0; i < count; i++)
		start(victims[i]);
	await_told();
	*left -= count;
}

static uint64_t began;

/* Answers those who ask for the time. */
static void *tell_time(void *arg)
{
	(void)arg;
	for (;;) {
		for (uint64_t i = 1; i < places; i++) {
			struct place *p = &board->places[i];
			uint64_t ask = GET(p->ask);
			if (ask != GET(p->answered)) {
				SET(p->answer, clock_here());
				SET(p->answered, ask);
			}
		}
		usleep(100);
	}
	return NULL;
}

/* How long the service took at most to answer, and when that was. */
static uint64_t slowest, slowest_at;

static void *ask_service(void *arg)
{
	(void)arg;
	for (;;) {
		uint64_t begun = clock_here();
		if (isthmus_segment_unlink(here, "nothing") == 0)
			fail("there is nothing to unlink");
		uint64_t took = clock_here() - begun;
		if (took > slowest) {
			slowest_at = begun;
			slowest = took;
		}
		usleep(20000);
	}
	return NULL;
}

static void ask_time(int times)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < times; i++) {
		uint64_t ask = own->ask + 1, begun = clock_here();
		SET(own->ask, ask);
		while (GET(own->answered) != ask) {
			all_live();
			if (clock_here() - begun > HANG)
				fail("the first place does not answer");
			usleep(50);
		}
		uint64_t took = clock_here() - begun;
		if (took < best) {
			best = took;
			SET(own->offset, (int64_t)GET(own->answer) - (int64_t)(begun + took / 2));
		}
	}
	own->inexact = best / 2;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

/* One row: sorts what was measured. */
static void row(const char *name, uint64_t *ns, uint64_t n, uint64_t since_kill)
{
	uint64_t soon = 0;

	if (!n) {
		printf("%-20s %7d\n", name, 0);
		return;
	}
	qsort(ns, n, sizeof *ns, by_size);
	while (soon < n && ns[soon] <= LATE)
		soon++;
	printf("%-20s %7" PRIu64 " %8.1f %8.1f %8.1f %8.1f %9.2f %% %16.1f\n", name, n, ms(ns[n / 2]), ms(ns[n * 95 / 100]),
	       ms(ns[n * 99 / 100]), ms(ns[n - 1]), 100.0 * (double)soon / (double)n, ms(since_kill));
}

static uint64_t after(uint64_t at, uint64_t before)
{
	return at > before ? at - before : 0;
}

/* What was measured in a phase, of all news together in the last line. */
static void report(uint64_t phase)
{
	uint64_t all = GET(board->samples), n = 0, total = 0, slow = 0, worst = 0, *ns = malloc((all + KILLS) * sizeof *ns),
		 *total_ns = malloc((all + 1) * sizeof *ns);

	printf("%-20s %7s %8s %8s %8s %8s %11s %16s\n", "ms since the end", "times", "median", "95 %", "99 %", "worst", "within 100",
	       "worst since kill");
	for (uint64_t i = 0; i < NEWS; i++) {
		for (uint64_t j = n = worst = 0; j < all; j++) {
			const struct sample *s = &board->sample[j];
			const struct kill *k = &board->kill[s->kill];
			if (s->news != i || k->phase != phase)
				continue;
			total_ns[total++] = ns[n++] = after(s->at, k->seen);
			if (after(s->at, k->at) > worst)
				worst = after(s->at, k->at);
			if (after(s->at, k->seen) > LATE && slow++ < 20)
				printf("late at %.1f s: %s, %.1f ms after the end, %.1f of them without a processor\n", (double)(k->at - began) / SECOND,
				       news[i], ms(after(s->at, k->seen)), ms(s->waited));
		}
		row(news[i], ns, n, worst);
	}
	n = 0;
	for (uint64_t i = 0; i < GET(board->kills); i++)
		if (board->kill[i].phase == phase)
			ns[n++] = after(board->kill[i].seen, board->kill[i].at);
	row("from kill to end", ns, n, 0);
	qsort(total_ns, total, sizeof *ns, by_size);
	if (!total)
		fail("nobody was told of anything");
	printf("told %" PRIu64 " times: 95 %% within %.1f ms of the end, all within %.1f ms\n", total, ms(total_ns[total * 95 / 100]),
	       ms(total_ns[total - 1]));
	fflush(stdout);
	free(ns);
	free(total_ns);
}

static void *hear(void *arg)
{
	(void)arg;
	if (!fgets(vm_line, sizeof vm_line, stdin))
		vm_line[0] = 0;
	return NULL;
}

/* A whole VM, and nothing of it comes back. */
static void kill_vm(pid_t pid, uint64_t member, bool *dead)
{
	uint64_t first = (uint64_t)(place_of(member) - board->places) * workers, all = GET(board->workers);

	SET(board->phase, 1);
	SET(board->parties, all - workers);
	for (uint64_t i = first; i < first + workers; i++) {
		dead[i] = true;
		record(i);
	}
	/* Its memory is written no more once all its threads are gone, which is what this descriptor tells. */
	struct pollfd process = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	if (process.fd < 0 || kill(pid, SIGKILL))
		fail("cannot kill process %d: %s", (int)pid, strerror(errno));
	for (uint64_t at = now(); poll(&process, 1, 0) == 0; at = now()) {
		for (uint64_t i = 0; i < GET(board->kills); i++)
			if (board->kill[i].phase == 1)
				SET(board->kill[i].seen, at);
		usleep(200);
	}
	close(process.fd);
	for (uint64_t i = first; i < first + workers; i++)
		note(i, dead);
	printf("VM %" PRIu64 " is killed with its %" PRIu64 " workers, %zu times somebody must be told\n", member, workers, owes);
	await_told();
	await_progress(dead);
}

static int rule(char **argv)
{
	static char name[40];
	bool dead[SLOTS] = {false};
	pthread_t thread;
	uint64_t kills, begun = clock_here();

	places = strtoull(argv[1], NULL, 0);
	workers = strtoull(argv[2], NULL, 0);
	kills = strtoull(argv[3], NULL, 0);
	pause_us = (unsigned)atoi(argv[4]);
	if (places < 1 || places > PLACES || places * workers > SLOTS || workers < 1 || pause_us < 1)
		fail("up to %d places, and %d workers in all", PLACES, SLOTS);
	setlinebuf(stdout);
	open_board();
	for (number = 0; ADD(board->places[number].there, 1); number++)
		;
	own = &board->places[number];
	SET(own->member, isthmus_member(here));
	snprintf(name, sizeof name, "kills: place %" PRIu64, number);
	who = name;
	seed = (argv[5] ? strtoull(argv[5], NULL, 0) : (uint64_t)time(NULL)) * 0x9E3779B97F4A7C15ULL + number + 1;
	if (number == 0) {
		struct bank b = open_bank();
		for (int i = 0; i < ACCOUNTS; i++)
			((uint64_t *)isthmus_segment_data(b.segment))[i] = EACH;
		close_bank(&b);
		board->safes[0].pair[0] = board->safes[1].pair[0] = EACH;
		board->parties = places * workers;
		board->epoch = 256 + board->parties;
		SET(board->workers, places * workers);
		began = begun;
		if (pthread_create(&thread, NULL, tell_time, NULL) || pthread_create(&thread, NULL, hear, NULL) ||
		    pthread_create(&thread, NULL, ask_service, NULL))
			fail("no thread");
		printf("first place, of %" PRIu64 "\n", places);
	}
	while (!GET(board->workers))
		usleep(1000);
	if (number)
		ask_time(200);
	for (uint64_t i = 0; i < workers; i++)
		start(number * workers + i);
	await_progress(dead);
	for (uint64_t left = kills; left;) {
		while (GET(board->turn) % places != number) {
			all_live();
			usleep(300);
		}
		if (number)
			ask_time(10);
		kill_some(&left);
		if (left / 16 != (left + 1) / 16 || !left)
			await_progress(dead);
		ADD(board->turn, 1);
	}
	SET(own->ended, 1);
	/* Those who have more to kill go on. */
	while (!GET(board->stop)) {
		uint64_t ended = 0;
		all_live();
		for (uint64_t i = 0; i < places; i++)
			ended += GET(board->places[i].ended);
		if (ended < places && GET(board->turn) % places == number)
			ADD(board->turn, 1);
		if (number == 0 && ended == places)
			break;
		usleep(300);
	}
	if (number == 0) {
		double seconds = (double)(clock_here() - begun) / SECOND;
		await_progress(dead);
		printf("%" PRIu64 " kills in %.0f s among %" PRIu64 " workers in %" PRIu64 " places: %" PRIu64 " held the mutex, %" PRIu64
		       " wrote under the rwlock, %" PRIu64 " had a seat at the barrier\n",
		       GET(board->deaths), seconds, places * workers, places, GET(board->held[0]), GET(board->held[1]), GET(board->seated));
		report(0);
		for (uint64_t i = 1; i < places; i++)
			printf("the clock of place %" PRIu64 " is known to %.1f ms\n", i, (double)board->places[i].inexact / 1e6);
		int pid;
		uint64_t member;
		if (sscanf(vm_line, "vm %d %" SCNu64, &pid, &member) == 2) {
			kill_vm(pid, member, dead);
			report(1);
		}
		SET(board->stop, 1);
		printf("the service answered within %.1f ms, which it took at %.1f s\n", (double)slowest / 1e6,
		       (double)(slowest_at - began) / SECOND);
	}
	for (uint64_t i = number * workers; i < (number + 1) * workers; i++) {
		int status;
		waitpid(pids[i], &status, 0);
		if (status)
			fail("worker %" PRIu64 " ended with status %d", i, status);
	}
	if (number == 0) {
		struct bank b = open_bank();
		uint64_t all = audit(&b);
		printf("%" PRIu64 " transfers, %" PRIu64 " tried again, %" PRIu64 " audits, the longest commit %.1f ms; the sum is %" PRIu64 "\n",
		       board->transfers, board->refused, board->audits, (double)board->longest / 1e6, all);
		printf("%" PRIu64 " bytes came through channels\n", board->bytes);
		/* As the next owner would, who mends what the last of the dead have left, and looks at the rest. */
		struct locks l = open_locks();
		my_client = (uint64_t)(SLOTS + 1) << 32;
		use_mutex(&l, &seed);
		write_under(&l, &seed);
		close_locks(&l);
		if (all != ACCOUNTS * EACH)
			fail("money is lost or made");
		close_bank(&b);
	}
	printf("place %" PRIu64 ": all as it should be\n", number);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "worker"))
		return work(argv);
	if (argc == 5 || argc == 6)
		return rule(argv);
	fprintf(stderr, "usage: kills PLACES WORKERS KILLS PAUSE-US [SEED]\n");
	return 2;
}
