/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Random sequences of System V calls of a few processes, one call at a time, with a trace of their results.
 *
 *	usage: random [--peers ADDRESS:PORT] [--places N] [--one-user] SEED [STEPS]
 *
 * The same seed gives the same sequence, so that the trace of one implementation can be compared with that of another: the
 * kernel's is the model. Ids, keys, process ids and times are named by what they stand for. No call waits. Now and then a
 * process is killed and replaced, ends, forks and goes on as its child, or executes itself afresh; as root the processes are
 * of several users, unless --one-user is given. With --places N the processes are in N places in turn, and a process id of another place reads as 0, as
 * it does across namespaces of process ids; without --peers this is only what is printed.
 *
 * Not in the trace is what the man pages leave open: shm_lpid, and whether shm_dtime is set, when a process has last detached
 * without a call of shmdt(2), which the kernel takes for one; EIDRM reads as EINVAL.
 */
#define NO_CASES
#include "check.h"

#define PROCESSES 4
#define KEYS 3
#define MOST_OBJECTS 4096
#define MOST_ATTACHED 8
#define MOST_NAMES 8192

enum kind { SHM, SEM, MSG };
static const char *const kinds[] = {"shm", "sem", "msg"};

struct object {
	enum kind kind;
	int id, number;
	/* As far as its creation and its removal tell. */
	bool removed;
	int len;
	bool dtime_set, dtime_unknown, lpid_unknown;
};

struct attached {
	int object;
	char *at;
	bool constant;
};

struct process {
	struct peer *peer;
	int number, incarnation, count;
	struct attached attached[MOST_ATTACHED];
};

static struct object objects[MOST_OBJECTS];
static int objects_count, objects_of[3];
static struct process processes[PROCESSES];
static struct {
	int place;
	pid_t pid;
	char name[16];
} names[MOST_NAMES];
static int names_count;
static key_t keys[KEYS];
static uint64_t state;
static bool root;

/* xorshift64* */
static uint32_t next(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 0x2545f4914f6cdd1d) >> 32;
}

static int below(int n) { return next() % n; }
static bool chance(int percent) { return below(100) < percent; }
#define ONE_OF(...) ((const int[]){__VA_ARGS__}[below(sizeof((const int[]){__VA_ARGS__}) / sizeof(int))])

static const char *failure(void)
{
	return strerrorname_np(errno == EIDRM ? EINVAL : errno);
}

static void outcome(long value)
{
	if (value == -1)
		printf(" = %s\n", failure());
	else
		printf(" = %ld\n", value);
}

static void name_process(struct process *p)
{
	if (names_count == MOST_NAMES)
		FAIL("too many processes");
	names[names_count].place = p->peer->place;
	names[names_count].pid = p->peer->pid;
	snprintf(names[names_count].name, sizeof names[0].name, "p%d.%d", p->number, p->incarnation);
	names_count++;
}

/* What a process id is to someone in a place. */
static const char *name_of(pid_t pid, int place)
{
	if (pid == 0)
		return "0";
	for (int i = names_count; i-- > 0;)
		if (names[i].pid == pid && names[i].place == place)
			return names[i].name;
	for (int i = names_count; i-- > 0;)
		if (names[i].pid == pid && peers_are_here)
			return "0";
	return "unknown";
}

static void become_user(struct peer *p, int number)
{
	const uid_t uids[PROCESSES] = {1000, 1000, 1001, 1002};
	const gid_t gids[PROCESSES] = {1000, 1000, 1000, 1002};
	const int groups[PROCESSES] = {-1, 1001, -1, 1001};
	if (root)
		its_ids(p, uids[number], gids[number], groups[number]);
}

static void start(int i)
{
	struct process *p = &processes[i];
	p->number = i;
	p->incarnation++;
	p->count = 0;
	p->peer = peer_at(i % net.places);
	become_user(p->peer, i);
	name_process(p);
}

static struct object *named(enum kind kind, int id)
{
	for (int i = 0; i < objects_count; i++)
		if (objects[i].kind == kind && objects[i].id == id)
			return &objects[i];
	if (objects_count == MOST_OBJECTS)
		FAIL("too many objects");
	struct object *o = &objects[objects_count++];
	*o = (struct object){.kind = kind, .id = keep("msq"[kind], id), .number = objects_of[kind]++};
	return o;
}

/* One of the last few of a kind, removed or not; an id that is none if there is none. */
static struct object *some(enum kind kind)
{
	static struct object nothing = {.id = -1, .number = -1};
	int candidates[8], count = 0;
	for (int i = objects_count; i-- > 0 && count < 8;)
		if (objects[i].kind == kind && (!objects[i].removed || chance(15)))
			candidates[count++] = i;
	if (count == 0 || chance(2))
		return &nothing;
	return &objects[candidates[below(count)]];
}

static int living(enum kind kind)
{
	int count = 0;
	for (int i = 0; i < objects_count; i++)
		count += objects[i].kind == kind && !objects[i].removed;
	return count;
}

static void print_perm(const struct ipc_perm *perm)
{
	const char *key = perm->__key == IPC_PRIVATE ? "private" : "unknown";
	char text[16];
	for (int i = 0; i < KEYS; i++)
		if (perm->__key == keys[i]) {
			snprintf(text, sizeof text, "k%d", i);
			key = text;
		}
	printf(" key %s", key);
	if (root)
		printf(" uid %d gid %d cuid %d cgid %d", perm->uid, perm->gid, perm->cuid, perm->cgid);
	printf(" mode %05o", perm->mode);
}

static const char *time_of(long t) { return t == 0 ? "0" : "set"; }

static void stat_of(struct peer *p, struct object *o)
{
	switch (o->kind) {
	case SHM: {
		struct shmid_ds ds;
		if (its_shmctl(p, o->id, IPC_STAT, &ds) == -1)
			break;
		printf(" =");
		print_perm(&ds.shm_perm);
		printf(" segsz %lu nattch %lu cpid %s lpid %s atime %s dtime %s ctime %s\n", (unsigned long)ds.shm_segsz,
		       (unsigned long)ds.shm_nattch, name_of(ds.shm_cpid, p->place),
		       o->lpid_unknown ? "open" : name_of(ds.shm_lpid, p->place), time_of(ds.shm_atime),
		       o->dtime_unknown && !o->dtime_set ? "open" : time_of(ds.shm_dtime), time_of(ds.shm_ctime));
		return;
	}
	case SEM: {
		struct semid_ds ds;
		if (its_semctl(p, o->id, 0, IPC_STAT, (union semun){.buf = &ds}) == -1)
			break;
		printf(" =");
		print_perm(&ds.sem_perm);
		printf(" nsems %lu otime %s ctime %s\n", (unsigned long)ds.sem_nsems, time_of(ds.sem_otime),
		       time_of(ds.sem_ctime));
		return;
	}
	case MSG: {
		struct msqid_ds ds;
		if (its_msgctl(p, o->id, IPC_STAT, &ds) == -1)
			break;
		printf(" =");
		print_perm(&ds.msg_perm);
		printf(" qnum %lu cbytes %lu qbytes %lu lspid %s lrpid %s stime %s rtime %s ctime %s\n",
		       (unsigned long)ds.msg_qnum, (unsigned long)ds.__msg_cbytes, (unsigned long)ds.msg_qbytes,
		       name_of(ds.msg_lspid, p->place), name_of(ds.msg_lrpid, p->place), time_of(ds.msg_stime),
		       time_of(ds.msg_rtime), time_of(ds.msg_ctime));
		return;
	}
	}
	printf(" = %s\n", failure());
}

static void values_of(struct peer *p, struct object *o)
{
	unsigned short values[8] = {0};
	long done = its_getall(p, o->id, values, o->len);
	if (done == -1) {
		printf(" = %s\n", failure());
		return;
	}
	printf(" =");
	for (int i = 0; i < o->len; i++)
		printf(" %d", values[i]);
	printf("\n");
}

/* All that has not been removed, seen by one process. */
static void look(struct peer *p, const char *who)
{
	for (int i = 0; i < objects_count; i++) {
		struct object *o = &objects[i];
		if (o->removed && !(o->kind == SHM))
			continue;
		if (o->removed && i + 40 < objects_count)
			continue;
		printf("  %s: %s%d", who, kinds[o->kind], o->number);
		stat_of(p, o);
		if (o->kind != SEM)
			continue;
		printf("  %s: %s%d values", who, kinds[o->kind], o->number);
		values_of(p, o);
		printf("  %s: %s%d pids =", who, kinds[o->kind], o->number);
		for (int n = 0; n < o->len; n++) {
			int pid = its_semctl(p, o->id, n, GETPID, (union semun){0});
			printf(" %s", pid == -1 ? failure() : name_of(pid, p->place));
		}
		printf("\n");
	}
}

static void get(struct process *p)
{
	enum kind kind = below(3);
	int which = below(KEYS + 1);
	key_t key = which == KEYS ? IPC_PRIVATE : keys[which];
	int flags = ONE_OF(0666, 0666, 0666, 0666, 0666, 0666, 0600, 0640, 0644, 0444, 0222, 0000);
	if (chance(70))
		flags |= IPC_CREAT;
	if (chance(25))
		flags |= IPC_EXCL;
	/* Not more of them than the trace can look at. */
	if (living(kind) >= 6) {
		flags &= ~IPC_CREAT;
		if (key == IPC_PRIVATE)
			key = keys[which = 0];
	}
	int len = kind == SHM ? ONE_OF(0, 1, 100, 4096, 4097, 10000) : ONE_OF(-1, 0, 1, 2, 3, 4, 4);
	char name[16] = "private";
	if (which < KEYS)
		snprintf(name, sizeof name, "k%d", which);
	int before = objects_count, id = -1;
	if (kind == SHM) {
		printf("shmget(%s, %d, %#o)", name, len, flags);
		id = its_shmget(p->peer, key, len, flags);
	} else if (kind == SEM) {
		printf("semget(%s, %d, %#o)", name, len, flags);
		id = its_semget(p->peer, key, len, flags);
	} else {
		printf("msgget(%s, %#o)", name, flags);
		id = its_msgget(p->peer, key, flags);
	}
	if (id == -1) {
		printf(" = %s\n", failure());
		return;
	}
	must_be_ours(id);
	struct object *o = named(kind, id);
	if (objects_count > before)
		o->len = len;
	printf(" = %s%d\n", kinds[kind], o->number);
}

static void detach(struct process *p);

static void attach(struct process *p)
{
	struct object *o = some(SHM);
	if (p->count == MOST_ATTACHED)
		return detach(p);
	int flags = chance(30) ? SHM_RDONLY : 0;
	bool wrong = chance(5);
	printf("shmat(shm%d, %s, %#o)", o->number, wrong ? "1" : "NULL", flags);
	char *at = its_shmat(p->peer, o->id, wrong ? (void *)1 : NULL, flags);
	if (at == (char *)-1)
		return (void)printf(" = %s\n", failure());
	printf(" = attached %d\n", p->count);
	p->attached[p->count++] = (struct attached){o - objects, at, flags};
	o->lpid_unknown = false;
}

static void detach(struct process *p)
{
	if (p->count == 0 && chance(90))
		return attach(p);
	if (p->count == 0 || chance(5)) {
		printf("shmdt(nothing)");
		return outcome(its_shmdt(p->peer, (void *)4096));
	}
	int i = below(p->count);
	struct object *o = &objects[p->attached[i].object];
	printf("shmdt(attached %d, shm%d)", i, o->number);
	outcome(its_shmdt(p->peer, p->attached[i].at));
	p->attached[i] = p->attached[--p->count];
	o->lpid_unknown = false;
	o->dtime_set = true;
}

static void touch(struct process *p)
{
	if (p->count == 0)
		return attach(p);
	int i = below(p->count);
	struct attached *a = &p->attached[i];
	struct object *o = &objects[a->object];
	static unsigned char bytes[10000];
	if (!a->constant && chance(60)) {
		int at = below(o->len), len = 1 + below(o->len - at < 50 ? o->len - at : 50);
		memset(bytes, below(256), len);
		its_write(p->peer, a->at + at, bytes, len);
		printf("writes %d bytes at %d to shm%d\n", len, at, o->number);
	} else {
		uint32_t hash = 2166136261;
		its_read(p->peer, a->at, bytes, o->len);
		for (int b = 0; b < o->len; b++)
			hash = (hash ^ bytes[b]) * 16777619;
		printf("reads shm%d = %08x\n", o->number, hash);
	}
}

static void operate(struct process *p)
{
	struct object *o = some(SEM);
	struct sembuf sops[5];
	int count = chance(2) ? 0 : ONE_OF(1, 1, 1, 2, 2, 3, 4), timed = chance(10);
	printf("%s(sem%d", timed ? "semtimedop" : "semop", o->number);
	for (int i = 0; i < count; i++) {
		sops[i].sem_num = chance(3) ? 4 : below(o->len > 0 ? o->len : 4);
		sops[i].sem_op = chance(4) ? ONE_OF(32767, -32767, -32768) : below(7) - 3;
		sops[i].sem_flg = (timed ? 0 : IPC_NOWAIT) | (chance(40) ? SEM_UNDO : 0);
		printf(", {%d, %d%s}", sops[i].sem_num, sops[i].sem_op, sops[i].sem_flg & SEM_UNDO ? ", undo" : "");
	}
	printf(")");
	outcome(timed ? its_semtimedop(p->peer, o->id, sops, count, 0) : its_semop(p->peer, o->id, sops, count));
}

static void value(struct process *p)
{
	struct object *o = some(SEM);
	int num = chance(5) ? ONE_OF(-1, 4, 100) : below(o->len > 0 ? o->len : 4);
	switch (below(7)) {
	case 0: {
		int to = chance(10) ? ONE_OF(-1, 32768, 32767) : below(6);
		printf("semctl(sem%d, %d, SETVAL, %d)", o->number, num, to);
		return outcome(its_semctl(p->peer, o->id, num, SETVAL, (union semun){.val = to}));
	}
	case 1: {
		unsigned short values[8];
		printf("semctl(sem%d, SETALL", o->number);
		for (int i = 0; i < 8; i++) {
			values[i] = chance(4) ? 40000 : below(6);
			if (i < o->len)
				printf(", %d", values[i]);
		}
		printf(")");
		return outcome(its_setall(p->peer, o->id, values, 8));
	}
	case 2: {
		printf("semctl(sem%d, %d, GETPID)", o->number, num);
		int pid = its_semctl(p->peer, o->id, num, GETPID, (union semun){0});
		return (void)printf(" = %s\n", pid == -1 ? failure() : name_of(pid, p->peer->place));
	}
	case 3:
		printf("semctl(sem%d, %d, GETVAL)", o->number, num);
		return outcome(its_semctl(p->peer, o->id, num, GETVAL, (union semun){0}));
	case 4:
		printf("semctl(sem%d, %d, GETNCNT)", o->number, num);
		return outcome(its_semctl(p->peer, o->id, num, GETNCNT, (union semun){0}));
	case 5:
		printf("semctl(sem%d, %d, GETZCNT)", o->number, num);
		return outcome(its_semctl(p->peer, o->id, num, GETZCNT, (union semun){0}));
	case 6:
		printf("semctl(sem%d, GETALL)", o->number);
		return values_of(p->peer, o);
	}
}

static void send_one(struct process *p)
{
	struct object *o = some(MSG);
	long type = chance(5) ? ONE_OF(0, -1) : 1 + below(5);
	int len = chance(3) ? 20000 : ONE_OF(0, 1, 10, 50, 300, 1000);
	static unsigned char text[20000];
	int fill = below(256);
	for (int i = 0; i < len; i++)
		text[i] = fill + i * 3;
	printf("msgsnd(msg%d, type %ld, %d bytes of %d)", o->number, type, len, fill);
	outcome(its_msgsnd(p->peer, o->id, type, text, len, IPC_NOWAIT));
}

static void receive_one(struct process *p)
{
	struct object *o = some(MSG);
	long type = below(13) - 6;
	int size = ONE_OF(0, 5, 100, 2000, 2000, 2000), flags = IPC_NOWAIT;
	if (chance(25))
		flags |= MSG_NOERROR;
	if (chance(15))
		flags |= MSG_EXCEPT;
	printf("msgrcv(msg%d, %d, %ld, %#o)", o->number, size, type, flags);
	long got = its_msgrcv(p->peer, o->id, NULL, size, type, flags);
	if (got == -1)
		return (void)printf(" = %s\n", failure());
	uint32_t hash = 2166136261;
	long its_type;
	memcpy(&its_type, p->peer->data, sizeof its_type);
	for (long i = 0; i < got; i++)
		hash = (hash ^ p->peer->data[sizeof(long) + i]) * 16777619;
	printf(" = %ld, type %ld, %08x\n", got, its_type, hash);
}

static void control(struct process *p)
{
	enum kind kind = below(3);
	struct object *o = some(kind);
	const char *call = kind == SHM ? "shmctl" : kind == SEM ? "semctl" : "msgctl";
	if (chance(40)) {
		printf("%s(%s%d, IPC_STAT)", call, kinds[kind], o->number);
		/* An id that is none has no kind of its own. */
		o->kind = kind;
		return stat_of(p->peer, o);
	}
	if (chance(35)) {
		int done = -1;
		printf("%s(%s%d, IPC_RMID)", call, kinds[kind], o->number);
		if (kind == SHM)
			done = its_shmctl(p->peer, o->id, IPC_RMID, NULL);
		else if (kind == SEM)
			done = its_semctl(p->peer, o->id, 0, IPC_RMID, (union semun){0});
		else
			done = its_msgctl(p->peer, o->id, IPC_RMID, NULL);
		if (done == 0)
			o->removed = true;
		return outcome(done);
	}
	struct ipc_perm perm = {.mode = ONE_OF(0666, 0666, 0666, 0666, 0666, 0666, 0600, 0640, 0444, 0222, 0000)};
	perm.uid = root ? 1000u + below(3) : geteuid();
	perm.gid = root ? 1000u + below(3) : getegid();
	int bytes = ONE_OF(0, 100, 1000, 5000, 16384);
	printf("%s(%s%d, IPC_SET, uid %d gid %d mode %#o", call, kinds[kind], o->number, root ? perm.uid : 0, root ? perm.gid : 0,
	       perm.mode);
	if (kind == SHM) {
		struct shmid_ds ds = {.shm_perm = perm};
		printf(")");
		outcome(its_shmctl(p->peer, o->id, IPC_SET, &ds));
	} else if (kind == SEM) {
		struct semid_ds ds = {.sem_perm = perm};
		printf(")");
		outcome(its_semctl(p->peer, o->id, 0, IPC_SET, (union semun){.buf = &ds}));
	} else {
		struct msqid_ds ds = {.msg_perm = perm, .msg_qbytes = bytes};
		printf(" qbytes %d)", bytes);
		outcome(its_msgctl(p->peer, o->id, IPC_SET, &ds));
	}
}

/* What happened to the segments of a process that made no call. */
static void left_open(struct process *p, bool detached)
{
	for (int i = 0; i < p->count; i++) {
		struct object *o = &objects[p->attached[i].object];
		o->lpid_unknown = true;
		o->dtime_unknown |= detached;
	}
}

static void live(struct process *p)
{
	switch (below(4)) {
	case 0:
		printf("is killed\n");
		left_open(p, true);
		its_kill(p->peer);
		free(p->peer);
		return start(p->number);
	case 1:
		printf("exits\n");
		left_open(p, true);
		its_exit(p->peer, chance(50));
		free(p->peer);
		return start(p->number);
	case 2:
		printf("forks and exits\n");
		left_open(p, true);
		its_fork(p->peer);
		p->incarnation++;
		return name_process(p);
	case 3:
		printf("executes itself\n");
		left_open(p, true);
		its_exec(p->peer);
		p->count = 0;
		return;
	}
}

static void run(int seed, int steps)
{
	state = 0x9e3779b97f4a7c15 ^ (uint64_t)seed << 20;
	for (int i = 0; i < 10; i++)
		next();
	for (int i = 0; i < KEYS; i++)
		keys[i] = fresh_key();
	for (int i = 0; i < PROCESSES; i++)
		start(i);
	/* Sees all as root. */
	struct peer *observer = peer_at(0);
	for (int step = 1; step <= steps; step++) {
		struct process *p = &processes[below(PROCESSES)];
		printf("%d %s ", step, name_of(p->peer->pid, p->peer->place));
		int what = below(100);
		if (what < 12)
			get(p);
		else if (what < 22)
			attach(p);
		else if (what < 30)
			detach(p);
		else if (what < 40)
			touch(p);
		else if (what < 58)
			operate(p);
		else if (what < 68)
			value(p);
		else if (what < 78)
			send_one(p);
		else if (what < 86)
			receive_one(p);
		else if (what < 95)
			control(p);
		else
			live(p);
		if (step % 50 == 0)
			look(observer, "all");
	}
	for (int i = 0; i < PROCESSES; i++) {
		left_open(&processes[i], true);
		its_kill(processes[i].peer);
	}
	printf("all are killed\n");
	look(observer, "all");
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	int seed = -1, steps = 1000;
	start_of_peers(argc, argv);
	root = geteuid() == 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--one-user"))
			root = false;
		else if ((!strcmp(argv[i], "--peers") || !strcmp(argv[i], "--places")) && i + 1 < argc)
			i++;
		else if (seed == -1)
			seed = atoi(argv[i]);
		else
			steps = atoi(argv[i]);
	}
	if (seed < 0 || steps < 1) {
		fprintf(stderr, "usage: random [--peers ADDRESS:PORT] [--places N] [--one-user] SEED [STEPS]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	main_pid = getpid();
	shared = shared_memory(sizeof *shared);
	start_server();
	pid_t pid = fork();
	must(pid != -1, "fork");
	if (pid == 0)
		run(seed, steps);
	int status = 0;
	waitpid(pid, &status, 0);
	reset_peers();
	remove_kept();
	if (status != 0) {
		fflush(stdout);
		fprintf(stderr, "random: %s\n", atomic_load(&shared->verdict) == FAILED ? shared->said : "ended badly");
		return 1;
	}
	return 0;
}
