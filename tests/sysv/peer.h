/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Peers: processes that make System V calls for a case, each on its own or later, while the case goes on.
 *
 *	struct peer *p = peer();
 *	its_semop(later(p), id, &sop, 1);	begins the call
 *	CHECK(blocks(p));			waits until it sleeps in it
 *	FAILS(result(p), EIDRM);		waits for its end
 *
 * A server starts them, so that they inherit nothing of a case. It is a child of the program; with --peers it is a program
 * of tests that was started with --serve elsewhere, in another virtual machine for instance, and connects over TCP. With
 * --places N there are N of these, which take turns. Who is in another place has another clock, and process ids that mean
 * nothing here.
 */
#ifndef PEER_H
#define PEER_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MOST_DATA 65536
#define MOST_PLACES 8

enum what {
	SHMGET, SHMAT, SHMDT, SHMCTL, SEMGET, SEMOP, SEMCTL, GETALL_, SETALL_, MSGGET, MSGSND, MSGRCV, MSGCTL, FTOK,
	READ_, WRITE_, ADD_, IDS, CATCH, CAUGHT, FORK, EXEC, EXIT
};

struct request {
	int32_t what, id;
	int64_t a, b, c, d;
	uint64_t len;
};

struct reply {
	int64_t value;
	int32_t error;
	uint64_t len;
};

struct peer {
	int fd, place;
	pid_t pid;
	bool is_later;
	/* Where the data of the reply goes, or the rest of what was received. */
	void *out;
	size_t out_len;
	unsigned char data[MOST_DATA];
};

/* What is asked of a server. */
enum order { NEW, SIGNAL, WAIT, STATE, RESET };
struct order_for {
	uint32_t number;
	int32_t order, pid, signal;
};
struct answer {
	uint32_t number;
	int32_t value;
};
struct hello {
	uint32_t magic;
	int32_t pid;
};
#define MAGIC 0x53795356

static struct {
	int listener, places, control[MOST_PLACES];
	uint32_t orders;
	struct sockaddr_storage address;
	socklen_t address_len;
} net = {.listener = -1};
static int peers_count;
/* Whether the peers are processes of this machine. */
static bool peers_are_here = true;

static inline bool read_all(int fd, void *to, size_t len)
{
	for (char *at = to; len > 0;) {
		ssize_t got = read(fd, at, len);
		if (got <= 0 && !(got == -1 && errno == EINTR))
			return false;
		if (got > 0)
			at += got, len -= got;
	}
	return true;
}

static inline bool write_all(int fd, const void *from, size_t len)
{
	for (const char *at = from; len > 0;) {
		ssize_t put = send(fd, at, len, MSG_NOSIGNAL);
		if (put <= 0 && !(put == -1 && errno == EINTR))
			return false;
		if (put > 0)
			at += put, len -= put;
	}
	return true;
}

/* What a peer does. */

static inline int64_t perform(const struct request *q, unsigned char *data, struct reply *r)
{
	static struct {
		long type;
		unsigned char text[MOST_DATA];
	} message;
	struct timespec limit;
	void *address = (void *)(intptr_t)q->a;
	r->len = 0;
	errno = 0;
	switch ((enum what)q->what) {
	case SHMGET:
		return shmget(q->a, q->b, q->c);
	case SHMAT:
		return (intptr_t)shmat(q->id, address, q->b);
	case SHMDT:
		return shmdt(address);
	case SHMCTL:
		r->len = sizeof(struct shmid_ds);
		return shmctl(q->id, q->a, (void *)data);
	case SEMGET:
		return semget(q->a, q->b, q->c);
	case SEMOP:
		if (!q->b)
			return semop(q->id, (void *)data, q->a);
		limit.tv_sec = q->c;
		limit.tv_nsec = q->d;
		return semtimedop(q->id, (void *)data, q->a, &limit);
	case SEMCTL:
		if (q->a == SETVAL)
			return semctl(q->id, q->b, q->a, (union semun){.val = q->c});
		r->len = sizeof(struct semid_ds);
		return semctl(q->id, q->b, q->a, (union semun){.buf = (void *)data});
	case GETALL_:
		r->len = q->a * sizeof(unsigned short);
		return semctl(q->id, 0, GETALL, (union semun){.array = (void *)data});
	case SETALL_:
		return semctl(q->id, 0, SETALL, (union semun){.array = (void *)data});
	case MSGGET:
		return msgget(q->a, q->b);
	case MSGSND:
		message.type = q->a;
		memcpy(message.text, data, q->len);
		return msgsnd(q->id, &message, q->len, q->b);
	case MSGRCV: {
		ssize_t got = msgrcv(q->id, &message, q->b, q->a, q->c);
		if (got >= 0) {
			memcpy(data, &message, sizeof(long) + got);
			r->len = sizeof(long) + got;
		}
		return got;
	}
	case MSGCTL:
		r->len = sizeof(struct msqid_ds);
		return msgctl(q->id, q->a, (void *)data);
	case FTOK:
		return ftok((char *)data, q->a);
	case READ_:
		r->len = q->b;
		memcpy(data, address, q->b);
		return 0;
	case WRITE_:
		memcpy(address, data, q->len);
		return 0;
	case ADD_:
		for (int64_t i = 0; i < q->b; i++)
			atomic_fetch_add((atomic_int *)address, 1);
		return 0;
	case IDS: {
		/* Effective ids alone if d is set. */
		gid_t groups[1] = {q->c};
		if (setgroups(q->c == -1 ? 0 : 1, groups) == -1)
			return -1;
		if (q->d)
			return setegid(q->b) == -1 ? -1 : seteuid(q->a);
		return setresgid(q->b, q->b, q->b) == -1 ? -1 : setresuid(q->a, q->a, q->a);
	}
	case CATCH:
		catch_signal(q->a, q->b);
		return 0;
	case CAUGHT:
		return atomic_load(&signals_caught);
	case FORK:
	case EXEC:
	case EXIT:
		break;
	}
	errno = ENOSYS;
	return -1;
}

static inline void reply_to(int fd, int64_t value, int error, const void *data, size_t len)
{
	struct reply r = {value, error, len};
	if (!write_all(fd, "R", 1) || !write_all(fd, &r, sizeof r) || !write_all(fd, data, len))
		_exit(0);
}

/* Does what comes from a connection, until it is closed. After an exec, that has been asked for. */
static inline void __attribute__((noreturn)) serve(int fd, bool after_exec)
{
	static unsigned char data[MOST_DATA];
	struct request q;
	if (after_exec)
		reply_to(fd, getpid(), 0, NULL, 0);
	while (read_all(fd, &q, sizeof q) && q.len <= sizeof data && read_all(fd, data, q.len)) {
		/* Said before each call, so that one that does not return is known to have begun. */
		if (!write_all(fd, "E", 1))
			break;
		if (q.what == FORK) {
			/* The child takes the parent's place. */
			pid_t pid = fork();
			if (pid != 0) {
				if (pid == -1)
					reply_to(fd, -1, errno, NULL, 0);
				_exit(0);
			}
			/* Not before the parent is gone, which the driver waits for, too. */
			reply_to(fd, getpid(), 0, NULL, 0);
		} else if (q.what == EXEC) {
			char number[16];
			snprintf(number, sizeof number, "%d", fd);
			execl("/proc/self/exe", program_invocation_name, "--peer", number, NULL);
			reply_to(fd, -1, errno, NULL, 0);
		} else if (q.what == EXIT) {
			if (q.a)
				exit(q.b);
			_exit(q.b);
		} else {
			struct reply r;
			int64_t value = perform(&q, data, &r);
			int error = errno;
			reply_to(fd, value, error, data, r.len);
		}
	}
	_exit(0);
}

/* What a server does. */

static inline int connection(const struct sockaddr_storage *address, socklen_t len)
{
	int one = 1, fd = socket(address->ss_family, SOCK_STREAM, 0);
	if (fd == -1 || connect(fd, (const struct sockaddr *)address, len) == -1) {
		if (fd != -1)
			close(fd);
		return -1;
	}
	if (address->ss_family == AF_INET)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

static inline void __attribute__((noreturn)) serve_orders(int control)
{
	static pid_t started[4096];
	int count = 0;
	struct order_for o;
	/* Children of peers that have ended are waited for here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	while (read_all(control, &o, sizeof o)) {
		struct answer answer = {o.number, 0};
		switch ((enum order)o.order) {
		case NEW:
			answer.value = fork();
			if (answer.value == 0) {
				setpgid(0, 0);
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				close(control);
				int fd = connection(&net.address, net.address_len);
				struct hello hello = {MAGIC, getpid()};
				if (fd == -1 || !write_all(fd, &hello, sizeof hello))
					_exit(1);
				serve(fd, false);
			}
			setpgid(answer.value, answer.value);
			if (answer.value > 0 && count < 4096)
				started[count++] = answer.value;
			break;
		case SIGNAL:
			answer.value = kill(o.pid, o.signal);
			break;
		case WAIT: {
			int status;
			answer.value = waitpid(o.pid, &status, 0) == o.pid ? status : -1;
			/* Its group may live on in a child. */
			for (int i = 0; i < count; i++)
				if (started[i] == o.pid && kill(-o.pid, 0) == -1)
					started[i--] = started[--count];
			break;
		}
		case STATE:
			answer.value = state_of(o.pid, o.pid);
			break;
		case RESET:
			for (int i = 0; i < count; i++)
				kill(-started[i], SIGKILL);
			while (count > 0 && waitpid(-1, NULL, 0) > 0)
				;
			count = 0;
			break;
		}
		if (!write_all(control, &answer, sizeof answer))
			break;
	}
	for (int i = 0; i < count; i++)
		kill(-started[i], SIGKILL);
	_exit(0);
}

/* The driver's side. */

static inline int32_t order(int place, enum order what, pid_t pid, int signal)
{
	struct order_for o = {++net.orders, what, pid, signal};
	struct answer answer;
	if (!write_all(net.control[place], &o, sizeof o))
		FAIL("the server of peers is gone");
	/* A case that was killed may have left an answer. */
	do
		if (!read_all(net.control[place], &answer, sizeof answer))
			FAIL("the server of peers is gone");
	while (answer.number != o.number);
	return answer.value;
}

static inline void reset_peers(void)
{
	/* The numbers of the case's own orders are not known here. */
	net.orders += 1000000;
	for (int i = 0; i < net.places; i++)
		order(i, RESET, 0, 0);
}

/* A peer of a place; by default they take turns. */
static inline struct peer *peer_at(int place)
{
	struct peer *p = calloc(1, sizeof *p);
	p->place = place;
	p->pid = order(place, NEW, 0, 0);
	for (;;) {
		struct hello hello;
		int one = 1;
		p->fd = accept4(net.listener, NULL, NULL, SOCK_CLOEXEC);
		if (p->fd == -1)
			FAIL("no connection from a peer");
		if (!peers_are_here)
			setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		/* Of an earlier case there may be one who came late. */
		if (read_all(p->fd, &hello, sizeof hello) && hello.magic == MAGIC && hello.pid == p->pid)
			break;
		close(p->fd);
	}
	peers_count++;
	return p;
}

static inline struct peer *peer(void)
{
	return peer_at(peers_count % net.places);
}

/* The next call of this peer is begun, and ended by result(). */
static inline struct peer *later(struct peer *p)
{
	p->is_later = true;
	return p;
}

static inline bool has_result(struct peer *p)
{
	struct pollfd fd = {p->fd, POLLIN, 0};
	return poll(&fd, 1, 0) == 1;
}

static inline long result(struct peer *p)
{
	char letter;
	struct reply r;
	if (!read_all(p->fd, &letter, 1) || letter != 'R' || !read_all(p->fd, &r, sizeof r) || r.len > sizeof p->data ||
	    !read_all(p->fd, p->data, r.len))
		FAIL("a peer has died during a call");
	if (p->out)
		memcpy(p->out, p->data, p->out_len < r.len ? p->out_len : r.len);
	p->out = NULL;
	errno = r.error;
	return r.value;
}

/* Whether the peer sleeps in its call; false if it has returned from it. One may sleep for a while until its service has opened an
 * object for it, which the kernel does at once. */
static inline bool blocks(struct peer *p)
{
	bool ours = getenv("SYSV_TEST_OURS");
	for (int times = 0; times < 3;) {
		if (has_result(p))
			return false;
		char state = order(p->place, STATE, p->pid, 0);
		if (state == 'X' || state == 'Z')
			FAIL("a peer that was to block is dead");
		times = state == 'S' ? times + 1 : 0;
		pause_us(peers_are_here && !ours ? 300 : 3000 * scale);
	}
	return !has_result(p);
}

static inline long ask(struct peer *p, struct request q, const void *in, void *out, size_t out_len)
{
	char letter;
	if (!write_all(p->fd, &q, sizeof q) || !write_all(p->fd, in, q.len) || !read_all(p->fd, &letter, 1) || letter != 'E')
		FAIL("a peer has died before a call");
	p->out = out;
	p->out_len = out_len;
	if (!p->is_later)
		return result(p);
	p->is_later = false;
	return 0;
}

#define ASK(p, ...) ask(p, (struct request){__VA_ARGS__}, NULL, NULL, 0)

static inline int its_shmget(struct peer *p, key_t key, size_t size, int flags)
{
	return ASK(p, .what = SHMGET, .a = key, .b = size, .c = flags);
}

/* The address is the peer's. */
static inline char *its_shmat(struct peer *p, int id, const void *address, int flags)
{
	return (char *)ASK(p, .what = SHMAT, .id = id, .a = (intptr_t)address, .b = flags);
}

static inline int its_shmdt(struct peer *p, const void *address)
{
	return ASK(p, .what = SHMDT, .a = (intptr_t)address);
}

static inline int its_shmctl(struct peer *p, int id, int cmd, struct shmid_ds *buf)
{
	static struct shmid_ds unused, none;
	buf = buf ?: &none;
	return ask(p, (struct request){.what = SHMCTL, .id = id, .a = cmd, .len = sizeof *buf},
		   cmd == IPC_SET ? buf : &unused, buf, sizeof *buf);
}

static inline int its_semget(struct peer *p, key_t key, int nsems, int flags)
{
	return ASK(p, .what = SEMGET, .a = key, .b = nsems, .c = flags);
}

static inline int its_semop(struct peer *p, int id, struct sembuf *sops, size_t count)
{
	return ask(p, (struct request){.what = SEMOP, .id = id, .a = count, .len = count * sizeof *sops}, sops, NULL, 0);
}

static inline int its_semop1(struct peer *p, int id, int num, int op, int flags)
{
	struct sembuf sop = {num, op, flags};
	return its_semop(p, id, &sop, 1);
}

static inline int its_semtimedop(struct peer *p, int id, struct sembuf *sops, size_t count, double seconds)
{
	long whole = (long)seconds;
	return ask(p, (struct request){.what = SEMOP, .id = id, .a = count, .b = 1, .c = whole, .d = (seconds - whole) * 1e9,
		   .len = count * sizeof *sops}, sops, NULL, 0);
}

/* Not for GETALL and SETALL. */
static inline int its_semctl(struct peer *p, int id, int num, int cmd, union semun arg)
{
	static struct semid_ds unused, none;
	if (cmd == SETVAL)
		return ASK(p, .what = SEMCTL, .id = id, .a = cmd, .b = num, .c = arg.val);
	struct semid_ds *buf = cmd == IPC_STAT || cmd == IPC_SET || cmd == SEM_STAT || cmd == SEM_STAT_ANY ? arg.buf : &none;
	return ask(p, (struct request){.what = SEMCTL, .id = id, .a = cmd, .b = num, .len = sizeof *buf},
		   cmd == IPC_SET ? buf : &unused, buf, sizeof *buf);
}

static inline int its_getval(struct peer *p, int id, int num)
{
	return its_semctl(p, id, num, GETVAL, (union semun){0});
}

static inline int its_getall(struct peer *p, int id, unsigned short *array, int count)
{
	return ask(p, (struct request){.what = GETALL_, .id = id, .a = count}, NULL, array, count * sizeof *array);
}

static inline int its_setall(struct peer *p, int id, unsigned short *array, int count)
{
	return ask(p, (struct request){.what = SETALL_, .id = id, .len = count * sizeof *array}, array, NULL, 0);
}

static inline int its_msgget(struct peer *p, key_t key, int flags)
{
	return ASK(p, .what = MSGGET, .a = key, .b = flags);
}

static inline int its_msgsnd(struct peer *p, int id, long type, const void *text, size_t len, int flags)
{
	return ask(p, (struct request){.what = MSGSND, .id = id, .a = type, .b = flags, .len = len}, text, NULL, 0);
}

/* Message as of msgop(2); without one it stays in p->data. */
static inline long its_msgrcv(struct peer *p, int id, void *message, size_t size, long type, int flags)
{
	return ask(p, (struct request){.what = MSGRCV, .id = id, .a = type, .b = size, .c = flags}, NULL, message,
		   sizeof(long) + size);
}

static inline int its_msgctl(struct peer *p, int id, int cmd, struct msqid_ds *buf)
{
	static struct msqid_ds unused, none;
	buf = buf ?: &none;
	return ask(p, (struct request){.what = MSGCTL, .id = id, .a = cmd, .len = sizeof *buf},
		   cmd == IPC_SET ? buf : &unused, buf, sizeof *buf);
}

static inline key_t its_ftok(struct peer *p, const char *path, int project)
{
	return ask(p, (struct request){.what = FTOK, .a = project, .len = strlen(path) + 1}, path, NULL, 0);
}

static inline void its_read(struct peer *p, const void *address, void *to, size_t len)
{
	ask(p, (struct request){.what = READ_, .a = (intptr_t)address, .b = len}, NULL, to, len);
}

static inline void its_write(struct peer *p, void *address, const void *from, size_t len)
{
	ask(p, (struct request){.what = WRITE_, .a = (intptr_t)address, .len = len}, from, NULL, 0);
}

/* Adds 1 to an atomic_int, so many times. */
static inline void its_add(struct peer *p, void *address, int times)
{
	ASK(p, .what = ADD_, .a = (intptr_t)address, .b = times);
}

/* Makes a peer of root another user's: with one further group, unless it is -1. */
static inline void its_ids(struct peer *p, uid_t uid, gid_t gid, int group)
{
	if (ASK(p, .what = IDS, .a = uid, .b = gid, .c = group) == -1)
		FAIL("a peer cannot become user %d: %s", (int)uid, strerrorname_np(errno));
}

static inline void its_effective_ids(struct peer *p, uid_t uid, gid_t gid)
{
	if (ASK(p, .what = IDS, .a = uid, .b = gid, .c = -1, .d = 1) == -1)
		FAIL("a peer cannot become user %d: %s", (int)uid, strerrorname_np(errno));
}

static inline void its_catch(struct peer *p, int number, int flags)
{
	ASK(p, .what = CATCH, .a = number, .b = flags);
}

static inline int its_caught(struct peer *p)
{
	return ASK(p, .what = CAUGHT);
}

static inline void its_signal(struct peer *p, int number)
{
	if (order(p->place, SIGNAL, p->pid, number) == -1)
		FAIL("a peer cannot be sent a signal");
}

/* Waits for a peer's end; the status is that of waitpid(2). */
static inline int its_status(struct peer *p)
{
	close(p->fd);
	p->fd = -1;
	return order(p->place, WAIT, p->pid, 0);
}

static inline void its_kill(struct peer *p)
{
	its_signal(p, SIGKILL);
	EQUAL(its_status(p), SIGKILL);
}

/* It calls exit(), or _exit() if it is not `clean`. */
static inline void its_exit(struct peer *p, bool clean)
{
	ASK(later(p), .what = EXIT, .a = clean, .b = 3);
	EQUAL(its_status(p), 3 << 8);
}

/* It executes this program afresh, and goes on as it. */
static inline void its_exec(struct peer *p)
{
	EQUAL(ASK(p, .what = EXEC), p->pid);
}

/* It forks and ends; the child goes on in its place. */
static inline void its_fork(struct peer *p)
{
	pid_t pid = ASK(p, .what = FORK);
	if (pid == -1)
		FAIL("a peer cannot fork");
	EQUAL(order(p->place, WAIT, p->pid, 0), 0);
	p->pid = pid;
}

static inline void name_of_net(const char *text)
{
	char host[256];
	const char *colon = strrchr(text, ':');
	struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
	if (!colon || colon - text >= (long)sizeof host) {
		fprintf(stderr, "%s is not ADDRESS:PORT\n", text);
		exit(2);
	}
	memcpy(host, text, colon - text);
	host[colon - text] = 0;
	if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
		fprintf(stderr, "%s: no such address\n", text);
		exit(2);
	}
	memcpy(&net.address, found->ai_addr, found->ai_addrlen);
	net.address_len = found->ai_addrlen;
	freeaddrinfo(found);
}

/* Becomes a peer or a server if the arguments say so; else it notes down where the peers are. */
static inline void start_of_peers(int argc, char **argv)
{
	const char *text = getenv("SYSV_TEST_SCALE");
	scale = text && atoi(text) > 0 ? atoi(text) : 1;
	if (argc == 3 && !strcmp(argv[1], "--peer"))
		serve(atoi(argv[2]), true);
	if (argc == 2 && !strcmp(argv[1], "--nothing"))
		_exit(0);
	if (argc == 3 && !strcmp(argv[1], "--serve")) {
		name_of_net(argv[2]);
		/* The driver may not be there yet. */
		for (int i = 0; i < 600 * scale; i++) {
			int fd = connection(&net.address, net.address_len);
			if (fd != -1)
				serve_orders(fd);
			pause_us(1e5);
		}
		fprintf(stderr, "%s: nobody listens at %s\n", argv[0], argv[2]);
		exit(1);
	}
	net.places = 1;
	for (int i = 1; i + 1 < argc; i++) {
		if (!strcmp(argv[i], "--peers")) {
			name_of_net(argv[i + 1]);
			peers_are_here = false;
			clocks_differ = 10;
		} else if (!strcmp(argv[i], "--places")) {
			net.places = atoi(argv[i + 1]);
			if (net.places < 1 || net.places > MOST_PLACES) {
				fprintf(stderr, "%s: --places takes 1 to %d\n", argv[0], MOST_PLACES);
				exit(2);
			}
		}
	}
}

static inline void must(bool done, const char *what)
{
	if (!done) {
		perror(what);
		exit(1);
	}
}

static inline void start_server(void)
{
	int one = 1;
	if (peers_are_here) {
		struct sockaddr_un *name = (struct sockaddr_un *)&net.address;
		name->sun_family = AF_UNIX;
		/* An abstract name, which is no file. */
		int len = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "sysv-tests-%d", (int)getpid());
		net.address_len = offsetof(struct sockaddr_un, sun_path) + 1 + len;
	}
	net.listener = socket(net.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(net.listener != -1, "socket");
	setsockopt(net.listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	must(bind(net.listener, (struct sockaddr *)&net.address, net.address_len) == 0, "bind");
	must(listen(net.listener, 64) == 0, "listen");
	for (int i = 0; i < net.places; i++) {
		if (peers_are_here) {
			int fds[2];
			must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
			pid_t pid = fork();
			must(pid != -1, "fork");
			if (pid == 0) {
				close(net.listener);
				for (int j = 0; j < i; j++)
					close(net.control[j]);
				close(fds[0]);
				serve_orders(fds[1]);
			}
			close(fds[1]);
			net.control[i] = fds[0];
		} else {
			net.control[i] = accept4(net.listener, NULL, NULL, SOCK_CLOEXEC);
			must(net.control[i] != -1, "accept");
			setsockopt(net.control[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		}
	}
}
#endif
