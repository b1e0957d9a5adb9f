/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Message queues: what msgget(2), msgop(2) and msgctl(2) say of them. Rights are in key.c. */
#include "check.h"
#include "leave.h"

#include <sys/syscall.h>

#define LARGEST 16384

struct message {
	long type;
	char text[LARGEST];
};

static int msgmax(void)
{
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	return info.msgmax < LARGEST ? info.msgmax : LARGEST;
}

static int send_text(int id, long type, const char *text, int flags)
{
	struct message m = {.type = type};
	size_t len = strlen(text);
	memcpy(m.text, text, len);
	return msgsnd(id, &m, len, flags);
}

/* That the next message of what is asked for has this type and text. */
#define RECEIVE(id, wanted, flags, type_, text_)                                                                     \
	do {                                                                                                         \
		struct message m_;                                                                                   \
		memset(&m_, 0x5a, sizeof m_);                                                                        \
		ssize_t got_ = OK(msgrcv(id, &m_, sizeof m_.text, wanted, flags));                                   \
		EQUAL(got_, strlen(text_));                                                                          \
		EQUAL(m_.type, type_);                                                                               \
		if (memcmp(m_.text, text_, got_) != 0)                                                               \
			FAIL("expected the message %s, found %.*s", text_, (int)got_, m_.text);                      \
		EQUAL(m_.text[got_], 0x5a);                                                                          \
	} while (0)

#define EMPTY(id)                                                                                                    \
	do {                                                                                                         \
		struct message m_;                                                                                   \
		FAILS(msgrcv(id, &m_, sizeof m_.text, 0, IPC_NOWAIT | MSG_NOERROR), ENOMSG);                         \
		EQUAL(msg_stat(id).msg_qnum, 0);                                                                     \
	} while (0)

static void set_qbytes(int id, int bytes)
{
	struct msqid_ds ds = msg_stat(id);
	ds.msg_qbytes = bytes;
	OK(msgctl(id, IPC_SET, &ds));
	EQUAL(msg_stat(id).msg_qbytes, bytes);
}

/* A queue in which there is no room for a single byte. */
static int full_queue(void)
{
	int id = new_msg();
	set_qbytes(id, 100);
	struct message m = {.type = 9};
	OK(msgsnd(id, &m, 100, IPC_NOWAIT));
	return id;
}

/* msgget(2) */

CASE(get_private_is_new, "A new queue is created if key has the value IPC_PRIVATE; msgget(2)")
{
	int first = new_msg(), second = new_msg();
	CHECK(first >= 0 && second >= 0 && first != second);
	OK(send_text(first, 1, "first", 0));
	EMPTY(second);
}

CASE(get_private_ignores_flags, "With IPC_PRIVATE all but the least significant 9 bits of msgflg are ignored; msgget(2)")
{
	int create = OK(keep_msg(msgget(IPC_PRIVATE, IPC_CREAT | 0600)));
	int both = OK(keep_msg(msgget(IPC_PRIVATE, IPC_CREAT | IPC_EXCL | 0600)));
	int excl = OK(keep_msg(msgget(IPC_PRIVATE, IPC_EXCL | 0600)));
	CHECK(create != both && both != excl && create != excl);
}

CASE(get_creates_and_finds, "Created if no queue with the key exists and IPC_CREAT is specified; else found by key; msgget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_msg(msgget(key, IPC_CREAT | 0600)));
	CHECK(id >= 0);
	EQUAL(OK(msgget(key, 0)), id);
	EQUAL(OK(msgget(key, IPC_CREAT | 0600)), id);
	EQUAL(OK(its_msgget(p, key, 0)), id);
	EQUAL(OK(its_msgget(p, key, IPC_CREAT | 0600)), id);
}

CASE(get_exclusive, "IPC_CREAT and IPC_EXCL, and the queue exists: EEXIST; msgget(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_msg(msgget(key, IPC_CREAT | IPC_EXCL | 0600)));
	FAILS(msgget(key, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
	FAILS(its_msgget(p, key, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
	EQUAL(OK(msgget(key, IPC_EXCL | 0600)), id);
}

CASE(get_exclusive_race, "Of several who create with IPC_EXCL one succeeds; msgget(2)")
{
	struct peer *p[4];
	for (int i = 0; i < 4; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		key_t key = fresh_key();
		int made = 0, id = -1;
		for (int i = 0; i < 4; i++)
			its_msgget(later(p[i]), key, IPC_CREAT | IPC_EXCL | 0600);
		for (int i = 0; i < 4; i++) {
			int got = result(p[i]);
			if (got == -1)
				EQUAL(errno, EEXIST);
			else
				made++, id = keep_msg(got);
		}
		EQUAL(made, 1);
		EQUAL(OK(msgget(key, 0)), id);
		OK(msgctl(id, IPC_RMID, NULL));
	}
}

CASE(get_absent, "No queue exists for key and msgflg did not specify IPC_CREAT: ENOENT; msgget(2)")
{
	FAILS(msgget(fresh_key(), 0600), ENOENT);
	FAILS(msgget(fresh_key(), 0), ENOENT);
	key_t key = fresh_key();
	OK(msgctl(OK(keep_msg(msgget(key, IPC_CREAT | 0600))), IPC_RMID, NULL));
	FAILS(msgget(key, 0), ENOENT);
}

CASE(get_namespaces_of_kinds, "A key is associated with a queue, a set and a segment, each on its own; svipc(7)")
{
	key_t key = fresh_key();
	int queue = OK(keep_msg(msgget(key, IPC_CREAT | IPC_EXCL | 0600)));
	FAILS(semget(key, 0, 0), ENOENT);
	FAILS(shmget(key, 0, 0), ENOENT);
	int set = OK(keep_sem(semget(key, 1, IPC_CREAT | IPC_EXCL | 0600)));
	int segment = OK(keep_shm(shmget(key, 1, IPC_CREAT | IPC_EXCL | 0600)));
	OK(semctl(set, 0, IPC_RMID));
	EQUAL(OK(msgget(key, 0)), queue);
	EQUAL(OK(shmget(key, 0, 0)), segment);
}

CASE(get_initial_data, "msqid_ds is initialized: ids, mode, msg_ctime, msg_qbytes to MSGMNB; all else is 0; msgget(2)")
{
	const int modes[] = {0600, 0777, 0640, 0404};
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	umask(077);
	for (int i = 0; i < 4; i++) {
		key_t key = fresh_key();
		int id = OK(keep_msg(msgget(key, IPC_CREAT | modes[i])));
		struct msqid_ds ds = msg_stat(id);
		EQUAL(ds.msg_perm.__key, key);
		EQUAL(ds.msg_perm.cuid, geteuid());
		EQUAL(ds.msg_perm.uid, geteuid());
		EQUAL(ds.msg_perm.cgid, getegid());
		EQUAL(ds.msg_perm.gid, getegid());
		EQUAL(ds.msg_perm.mode, modes[i]);
		EQUAL(ds.msg_qnum, 0);
		EQUAL(ds.__msg_cbytes, 0);
		EQUAL(ds.msg_lspid, 0);
		EQUAL(ds.msg_lrpid, 0);
		EQUAL(ds.msg_stime, 0);
		EQUAL(ds.msg_rtime, 0);
		IS_NOW(ds.msg_ctime);
		EQUAL(ds.msg_qbytes, info.msgmnb);
	}
}

CASE(limit_queues, "The limit for the number of message queues (MSGMNI) would be exceeded: ENOSPC; msgget(2)")
{
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	if (info.msgmni > 5000)
		SKIP("MSGMNI is %d", info.msgmni);
	LIMIT(30);
	int id = -1, count = 0;
	for (int i = 0; i <= info.msgmni; i++) {
		int got = keep_msg(msgget(IPC_PRIVATE, 0600));
		if (got == -1)
			break;
		id = got;
		count++;
	}
	CHECK(count >= 1 && count <= info.msgmni);
	FAILS(msgget(IPC_PRIVATE, 0600), ENOSPC);
	FAILS(msgget(fresh_key(), IPC_CREAT | 0600), ENOSPC);
	OK(msgctl(id, IPC_RMID, NULL));
	new_msg();
}

/* msgsnd(2) */

CASE(snd_and_rcv, "msgsnd appends a copy of the message; msgrcv removes a message and places it in the buffer; msgop(2)")
{
	struct peer *p = peer();
	int id = new_msg();
	struct message m;
	EQUAL(OK(send_text(id, 3, "one", 0)), 0);
	OK(send_text(id, 1, "second", 0));
	OK(its_msgsnd(p, id, 2, "the third", 9, 0));
	RECEIVE(id, 0, 0, 3, "one");
	EQUAL(OK(its_msgrcv(p, id, &m, 100, 0, 0)), 6);
	EQUAL(m.type, 1);
	EQUAL(memcmp(m.text, "second", 6), 0);
	RECEIVE(id, 0, 0, 2, "the third");
	EMPTY(id);
}

CASE(snd_copies, "msgsnd appends a copy of the message: what is changed later is not in it; msgop(2)")
{
	int id = new_msg();
	struct message m = {2, "before"};
	OK(msgsnd(id, &m, 6, 0));
	memcpy(m.text, "after!", 6);
	m.type = 5;
	RECEIVE(id, 0, 0, 2, "before");
}

CASE(snd_all_lengths, "Messages of zero length are permitted, and longer ones up to MSGMAX; msgop(2)")
{
	LIMIT(30);
	int id = new_msg(), most = msgmax(), previous = -1;
	static struct message m, found;
	for (int len = 0; len <= most; len = len < 100 ? len + 1 : len == most ? most + 1 : len + 61 > most ? most : len + 61) {
		m.type = len + 1;
		for (int i = 0; i < len; i++)
			m.text[i] = (i * 31 + len) % 251;
		OK(msgsnd(id, &m, len, IPC_NOWAIT));
		memset(&found, 0x5a, sizeof found);
		EQUAL(OK(msgrcv(id, &found, sizeof found.text, 0, IPC_NOWAIT)), len);
		EQUAL(found.type, len + 1);
		EQUAL(memcmp(found.text, m.text, len), 0);
		if (len < LARGEST)
			EQUAL(found.text[len], 0x5a);
		previous = len;
	}
	EQUAL(previous, most);
}

CASE(snd_types, "The mtype field must have a strictly positive integer value; msgop(2)")
{
	int id = new_msg();
	FAILS(send_text(id, 0, "x", 0), EINVAL);
	FAILS(send_text(id, -1, "x", 0), EINVAL);
	FAILS(send_text(id, LONG_MIN, "x", 0), EINVAL);
	EQUAL(msg_stat(id).msg_qnum, 0);
	OK(send_text(id, LONG_MAX, "large", 0));
	OK(send_text(id, 1L << 40, "larger than int", 0));
	RECEIVE(id, 1L << 40, IPC_NOWAIT, 1L << 40, "larger than int");
	RECEIVE(id, 0, IPC_NOWAIT, LONG_MAX, "large");
}

CASE(snd_invalid_length, "msgsz is less than 0 or greater than the system value MSGMAX: EINVAL; msgop(2)")
{
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	int id = new_msg();
	struct message *m = calloc(1, sizeof(long) + info.msgmax + 1);
	m->type = 1;
	FAILS(msgsnd(id, m, (size_t)-1, IPC_NOWAIT), EINVAL);
	FAILS(msgsnd(id, m, (size_t)LONG_MIN, IPC_NOWAIT), EINVAL);
	FAILS(msgsnd(id, m, (size_t)info.msgmax + 1, IPC_NOWAIT), EINVAL);
	OK(msgsnd(id, m, info.msgmax, IPC_NOWAIT));
	EQUAL(msg_stat(id).__msg_cbytes, info.msgmax);
}

CASE(snd_invalid_id, "Invalid msqid value: EINVAL; msgop(2)")
{
	FAILS(send_text(-1, 1, "x", 0), EINVAL);
	GONE(send_text(INT_MAX, 1, "x", 0));
	int id = new_msg();
	OK(msgctl(id, IPC_RMID, NULL));
	GONE(send_text(id, 1, "x", 0));
}

CASE(snd_bad_address, "The address pointed to by msgp is not accessible: EFAULT; msgop(2)")
{
	int id = new_msg();
	FAILS(msgsnd(id, no_memory(), 1, 0), EFAULT);
	FAILS(msgsnd(id, (void *)8, 1, 0), EFAULT);
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(pages + PAGE, PAGE, PROT_NONE);
	struct message *m = (struct message *)(pages + PAGE - sizeof(long) - 10);
	m->type = 1;
	FAILS(msgsnd(id, m, 11, 0), EFAULT);
	EQUAL(msg_stat(id).msg_qnum, 0);
	OK(msgsnd(id, m, 10, 0));
	EQUAL(msg_stat(id).msg_qnum, 1);
}

CASE(snd_updates, "msg_lspid is set to the caller's process ID, msg_qnum is incremented, msg_stime is now; msgop(2)")
{
	struct peer *p = peer_at(0);
	int id = new_msg();
	OK(send_text(id, 1, "12345", 0));
	struct msqid_ds ds = msg_stat(id);
	EQUAL(ds.msg_lspid, getpid());
	EQUAL(ds.msg_lrpid, 0);
	EQUAL(ds.msg_qnum, 1);
	EQUAL(ds.__msg_cbytes, 5);
	IS_NOW(ds.msg_stime);
	EQUAL(ds.msg_rtime, 0);
	OK(its_msgsnd(p, id, 1, "123", 3, 0));
	OK(its_msgctl(p, id, IPC_STAT, &ds));
	EQUAL(ds.msg_lspid, p->pid);
	EQUAL(ds.msg_qnum, 2);
	EQUAL(ds.__msg_cbytes, 8);
	EQUAL(msg_stat(id).msg_lspid, peers_are_here ? p->pid : 0);
	FAILS(send_text(id, 0, "x", 0), EINVAL);
	EQUAL(msg_stat(id).msg_lspid, peers_are_here ? p->pid : 0);
}

CASE(snd_full_of_bytes,
     "A queue is full if its bytes would exceed msg_qbytes; with IPC_NOWAIT the call fails with EAGAIN; msgop(2)")
{
	int id = new_msg();
	struct message m = {.type = 1};
	set_qbytes(id, 100);
	OK(msgsnd(id, &m, 60, IPC_NOWAIT));
	FAILS(msgsnd(id, &m, 41, IPC_NOWAIT), EAGAIN);
	OK(msgsnd(id, &m, 40, IPC_NOWAIT));
	FAILS(msgsnd(id, &m, 1, IPC_NOWAIT), EAGAIN);
	struct msqid_ds ds = msg_stat(id);
	EQUAL(ds.msg_qnum, 2);
	EQUAL(ds.__msg_cbytes, 100);
	/* One of no bytes has room. */
	OK(msgsnd(id, &m, 0, IPC_NOWAIT));
	EQUAL(OK(msgrcv(id, &m, sizeof m.text, 0, 0)), 60);
	m.type = 1;
	OK(msgsnd(id, &m, 60, IPC_NOWAIT));
	/* One that can never have room. */
	FAILS(msgsnd(id, &m, 101, IPC_NOWAIT), EAGAIN);
}

CASE(snd_full_of_messages, "A queue is full if the number of its messages would exceed msg_qbytes; msgop(2)")
{
	int id = new_msg();
	struct message m = {.type = 1};
	set_qbytes(id, 10);
	for (int i = 0; i < 10; i++)
		OK(msgsnd(id, &m, 0, IPC_NOWAIT));
	FAILS(msgsnd(id, &m, 0, IPC_NOWAIT), EAGAIN);
	EQUAL(OK(msgrcv(id, &m, 0, 0, 0)), 0);
	OK(msgsnd(id, &m, 0, IPC_NOWAIT));
	FAILS(msgsnd(id, &m, 0, IPC_NOWAIT), EAGAIN);
	EQUAL(msg_stat(id).msg_qnum, 10);
}

CASE(snd_full_by_default, "During queue creation msg_qbytes is initialized to MSGMNB bytes; msgop(2)")
{
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	int id = new_msg(), len = 1000, count = 0;
	struct message m = {.type = 1};
	while (msgsnd(id, &m, len, IPC_NOWAIT) == 0)
		count++;
	EQUAL(errno, EAGAIN);
	EQUAL(count, info.msgmnb / len);
}

CASE(snd_blocks, "If insufficient space is available, msgsnd blocks until space becomes available; msgop(2)")
{
	struct peer *p = peer();
	int id = full_queue();
	struct message m;
	its_msgsnd(later(p), id, 4, "waited", 6, 0);
	CHECK(blocks(p));
	EQUAL(msg_stat(id).msg_qnum, 1);
	EQUAL(OK(msgrcv(id, &m, sizeof m.text, 0, 0)), 100);
	OK(result(p));
	RECEIVE(id, 0, IPC_NOWAIT, 4, "waited");
	struct msqid_ds ds;
	OK(its_msgctl(p, id, IPC_STAT, &ds));
	EQUAL(ds.msg_lspid, p->pid);
	EQUAL(ds.msg_lrpid, peers_are_here ? getpid() : 0);
	EMPTY(id);
}

CASE(snd_blocks_for_messages, "msgsnd blocks on a queue that is full by its number of messages; msgop(2)")
{
	struct peer *p = peer();
	int id = new_msg();
	struct message m = {.type = 1};
	set_qbytes(id, 3);
	for (int i = 0; i < 3; i++)
		OK(msgsnd(id, &m, 0, 0));
	its_msgsnd(later(p), id, 2, "", 0, 0);
	CHECK(blocks(p));
	EQUAL(OK(msgrcv(id, &m, 0, 0, 0)), 0);
	OK(result(p));
	EQUAL(OK(msgrcv(id, &m, 0, 2, IPC_NOWAIT)), 0);
	EQUAL(msg_stat(id).msg_qnum, 2);
}

CASE(snd_blocks_in_number, "All who wait for space go on when there is enough for all; msgop(2)")
{
	enum { SENDERS = 5 };
	struct peer *p[SENDERS];
	int id = full_queue(), seen = 0;
	struct message m;
	for (int i = 0; i < SENDERS; i++) {
		p[i] = peer();
		its_msgsnd(later(p[i]), id, i + 1, "twenty bytes of text", 20, 0);
		CHECK(blocks(p[i]));
	}
	EQUAL(OK(msgrcv(id, &m, sizeof m.text, 0, 0)), 100);
	for (int i = 0; i < SENDERS; i++)
		OK(result(p[i]));
	EQUAL(msg_stat(id).msg_qnum, SENDERS);
	EQUAL(msg_stat(id).__msg_cbytes, 100);
	for (int i = 0; i < SENDERS; i++) {
		EQUAL(OK(msgrcv(id, &m, sizeof m.text, 0, 0)), 20);
		seen |= 1 << m.type;
	}
	EQUAL(seen, (1 << (SENDERS + 1)) - 2);
}

CASE(snd_blocks_until_set, "The limit can be modified using msgctl: a larger one has room for who waits; msgop(2)")
{
	struct peer *p = peer();
	int id = full_queue();
	its_msgsnd(later(p), id, 4, "more", 4, 0);
	CHECK(blocks(p));
	set_qbytes(id, 103);
	CHECK(blocks(p));
	set_qbytes(id, 104);
	OK(result(p));
	EQUAL(msg_stat(id).msg_qnum, 2);
}

CASE(snd_blocks_until_removed, "The queue is removed: a blocked msgsnd fails with EIDRM; msgop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = full_queue();
	its_msgsnd(later(p), id, 4, "never", 5, 0);
	its_msgsnd(later(q), id, 5, "never", 5, 0);
	CHECK(blocks(p));
	CHECK(blocks(q));
	OK(msgctl(id, IPC_RMID, NULL));
	FAILS(result(p), EIDRM);
	FAILS(result(q), EIDRM);
}

CASE(snd_blocks_until_killed, "The message of a sender that is killed while it waits is not sent; msgop(2)")
{
	struct peer *p = peer();
	int id = full_queue();
	struct message m;
	its_msgsnd(later(p), id, 4, "never", 5, 0);
	CHECK(blocks(p));
	its_kill(p);
	EQUAL(OK(msgrcv(id, &m, sizeof m.text, 0, 0)), 100);
	EMPTY(id);
	OK(send_text(id, 1, "next", IPC_NOWAIT));
	RECEIVE(id, 0, IPC_NOWAIT, 1, "next");
}

/* msgrcv(2) */

CASE(rcv_returns_length, "msgrcv returns the number of bytes actually copied into the mtext array; msgop(2)")
{
	int id = new_msg();
	struct message m;
	OK(send_text(id, 1, "", 0));
	OK(send_text(id, 2, "seven77", 0));
	m.text[0] = 'u';
	EQUAL(OK(msgrcv(id, &m, 0, 0, 0)), 0);
	EQUAL(m.type, 1);
	EQUAL(m.text[0], 'u');
	EQUAL(OK(msgrcv(id, &m, 7, 0, 0)), 7);
	EQUAL(m.type, 2);
}

CASE(rcv_too_long, "The text has length greater than msgsz: not removed, and E2BIG; msgop(2)")
{
	int id = new_msg();
	struct message m;
	OK(send_text(id, 1, "ten bytes!", 0));
	FAILS(msgrcv(id, &m, 9, 0, 0), E2BIG);
	FAILS(msgrcv(id, &m, 0, 1, IPC_NOWAIT), E2BIG);
	FAILS(msgrcv(id, &m, 9, -5, IPC_NOWAIT), E2BIG);
	struct msqid_ds ds = msg_stat(id);
	EQUAL(ds.msg_qnum, 1);
	EQUAL(ds.msg_lrpid, 0);
	EQUAL(ds.msg_rtime, 0);
	RECEIVE(id, 0, 0, 1, "ten bytes!");
}

CASE(rcv_truncates, "With MSG_NOERROR the text is truncated, and the truncated part is lost; msgop(2)")
{
	int id = new_msg();
	struct message m;
	OK(send_text(id, 1, "ten bytes!", 0));
	OK(send_text(id, 1, "next", 0));
	memset(&m, 0x5a, sizeof m);
	EQUAL(OK(msgrcv(id, &m, 4, 0, MSG_NOERROR)), 4);
	EQUAL(memcmp(m.text, "ten \x5a", 5), 0);
	EQUAL(msg_stat(id).__msg_cbytes, 4);
	RECEIVE(id, 0, MSG_NOERROR, 1, "next");
	OK(send_text(id, 1, "all of it", 0));
	EQUAL(OK(msgrcv(id, &m, 0, 0, MSG_NOERROR)), 0);
	EMPTY(id);
}

CASE(rcv_first, "If msgtyp is 0, then the first message in the queue is read; msgop(2)")
{
	int id = new_msg();
	OK(send_text(id, 5, "a", 0));
	OK(send_text(id, 1, "b", 0));
	OK(send_text(id, 3, "c", 0));
	RECEIVE(id, 0, 0, 5, "a");
	RECEIVE(id, 0, 0, 1, "b");
	RECEIVE(id, 0, 0, 3, "c");
}

CASE(rcv_exact_type, "If msgtyp is greater than 0, the first message of type msgtyp is read; msgop(2)")
{
	int id = new_msg();
	OK(send_text(id, 5, "a", 0));
	OK(send_text(id, 1, "b", 0));
	OK(send_text(id, 5, "c", 0));
	OK(send_text(id, 2, "d", 0));
	RECEIVE(id, 1, 0, 1, "b");
	FAILS(msgrcv(id, &(struct message){0}, LARGEST, 1, IPC_NOWAIT), ENOMSG);
	FAILS(msgrcv(id, &(struct message){0}, LARGEST, 4, IPC_NOWAIT), ENOMSG);
	RECEIVE(id, 2, 0, 2, "d");
	RECEIVE(id, 5, 0, 5, "a");
	RECEIVE(id, 5, 0, 5, "c");
	EMPTY(id);
}

CASE(rcv_except_type, "With MSG_EXCEPT the first message of a type that differs from msgtyp is read; msgop(2)")
{
	int id = new_msg();
	OK(send_text(id, 5, "a", 0));
	OK(send_text(id, 1, "b", 0));
	OK(send_text(id, 5, "c", 0));
	OK(send_text(id, 2, "d", 0));
	RECEIVE(id, 5, MSG_EXCEPT, 1, "b");
	RECEIVE(id, 5, MSG_EXCEPT, 2, "d");
	FAILS(msgrcv(id, &(struct message){0}, LARGEST, 5, MSG_EXCEPT | IPC_NOWAIT), ENOMSG);
	RECEIVE(id, 4, MSG_EXCEPT, 5, "a");
	/* It is used with msgtyp greater than 0. */
	OK(send_text(id, 2, "e", 0));
	RECEIVE(id, -3, MSG_EXCEPT, 2, "e");
	RECEIVE(id, 0, MSG_EXCEPT, 5, "c");
	EMPTY(id);
}

CASE(rcv_lowest_type,
     "If msgtyp is less than 0, the first message with the lowest type up to its absolute value is read; msgop(2)")
{
	int id = new_msg();
	OK(send_text(id, 7, "a", 0));
	OK(send_text(id, 4, "b", 0));
	OK(send_text(id, 9, "c", 0));
	OK(send_text(id, 4, "d", 0));
	OK(send_text(id, 6, "e", 0));
	FAILS(msgrcv(id, &(struct message){0}, LARGEST, -3, IPC_NOWAIT), ENOMSG);
	RECEIVE(id, -8, 0, 4, "b");
	RECEIVE(id, -8, 0, 4, "d");
	RECEIVE(id, -8, 0, 6, "e");
	RECEIVE(id, -8, 0, 7, "a");
	FAILS(msgrcv(id, &(struct message){0}, LARGEST, -8, IPC_NOWAIT), ENOMSG);
	RECEIVE(id, -9, 0, 9, "c");
	OK(send_text(id, LONG_MAX, "most", 0));
	OK(send_text(id, LONG_MAX - 1, "less", 0));
	RECEIVE(id, LONG_MIN, IPC_NOWAIT, LONG_MAX - 1, "less");
	RECEIVE(id, -LONG_MAX, IPC_NOWAIT, LONG_MAX, "most");
	EMPTY(id);
}

CASE(rcv_nowait, "IPC_NOWAIT: return immediately if no message of the requested type is in the queue, with ENOMSG; msgop(2)")
{
	int id = new_msg();
	struct message m;
	FAILS(msgrcv(id, &m, sizeof m.text, 0, IPC_NOWAIT), ENOMSG);
	OK(send_text(id, 3, "x", 0));
	FAILS(msgrcv(id, &m, sizeof m.text, 2, IPC_NOWAIT), ENOMSG);
	FAILS(msgrcv(id, &m, sizeof m.text, -2, IPC_NOWAIT), ENOMSG);
	FAILS(msgrcv(id, &m, sizeof m.text, 3, IPC_NOWAIT | MSG_EXCEPT), ENOMSG);
	EQUAL(msg_stat(id).msg_qnum, 1);
}

CASE(rcv_invalid, "msqid was invalid, or msgsz was less than 0: EINVAL; msgop(2)")
{
	struct message m;
	FAILS(msgrcv(-1, &m, 10, 0, IPC_NOWAIT), EINVAL);
	GONE(msgrcv(INT_MAX, &m, 10, 0, IPC_NOWAIT));
	int id = new_msg();
	OK(send_text(id, 3, "x", 0));
	FAILS(msgrcv(id, &m, (size_t)-1, 0, IPC_NOWAIT), EINVAL);
	FAILS(msgrcv(id, &m, (size_t)LONG_MIN, 0, IPC_NOWAIT), EINVAL);
	EQUAL(msg_stat(id).msg_qnum, 1);
	OK(msgctl(id, IPC_RMID, NULL));
	GONE(msgrcv(id, &m, 10, 0, IPC_NOWAIT));
}

CASE(rcv_bad_address, "The address pointed to by msgp is not accessible: EFAULT; msgop(2)")
{
	int id = new_msg();
	OK(send_text(id, 3, "x", 0));
	FAILS(msgrcv(id, no_memory(), 10, 0, IPC_NOWAIT), EFAULT);
	OK(send_text(id, 3, "x", 0));
	FAILS(msgrcv(id, constant_memory(), 10, 3, IPC_NOWAIT), EFAULT);
	/* The queue is as good as before, whether or not these messages are lost. */
	OK(send_text(id, 4, "y", 0));
	RECEIVE(id, 4, IPC_NOWAIT, 4, "y");
}

CASE(rcv_updates, "msg_lrpid is set to the caller's process ID, msg_qnum is decremented, msg_rtime is now; msgop(2)")
{
	struct peer *p = peer_at(0);
	int id = new_msg();
	OK(send_text(id, 1, "12345", 0));
	OK(send_text(id, 2, "123", 0));
	RECEIVE(id, 1, 0, 1, "12345");
	struct msqid_ds ds = msg_stat(id);
	EQUAL(ds.msg_lrpid, getpid());
	EQUAL(ds.msg_qnum, 1);
	EQUAL(ds.__msg_cbytes, 3);
	IS_NOW(ds.msg_rtime);
	OK(its_msgrcv(p, id, NULL, 100, 0, 0));
	OK(its_msgctl(p, id, IPC_STAT, &ds));
	EQUAL(ds.msg_lrpid, p->pid);
	EQUAL(ds.msg_qnum, 0);
	EQUAL(ds.__msg_cbytes, 0);
	FAILS(msgrcv(id, &(struct message){0}, 10, 0, IPC_NOWAIT), ENOMSG);
	EQUAL(msg_stat(id).msg_lrpid, peers_are_here ? p->pid : 0);
}

CASE(rcv_blocks, "msgrcv blocks until a message of the desired type is placed in the queue; msgop(2)")
{
	struct peer *p = peer();
	int id = new_msg();
	struct message m = {0};
	its_msgrcv(later(p), id, &m, 100, 0, 0);
	CHECK(blocks(p));
	OK(send_text(id, 6, "hello", 0));
	EQUAL(OK(result(p)), 5);
	EQUAL(m.type, 6);
	EQUAL(memcmp(m.text, "hello", 5), 0);
	EMPTY(id);
	struct msqid_ds ds;
	OK(its_msgctl(p, id, IPC_STAT, &ds));
	EQUAL(ds.msg_lrpid, p->pid);
	EQUAL(ds.msg_lspid, peers_are_here ? getpid() : 0);
	IS_NOW(ds.msg_rtime);
	IS_NOW(ds.msg_stime);
	EQUAL(ds.__msg_cbytes, 0);
}

CASE(rcv_blocks_for_type,
     "msgrcv blocks until a message of the desired type is placed in the queue: exactly, range, except; msgop(2)")
{
	struct peer *p = peer();
	int id = new_msg();
	struct message m = {0};
	OK(send_text(id, 7, "there before", 0));
	its_msgrcv(later(p), id, &m, 100, 5, 0);
	CHECK(blocks(p));
	OK(send_text(id, 4, "no", 0));
	OK(send_text(id, 6, "no", 0));
	CHECK(blocks(p));
	OK(send_text(id, 5, "yes", 0));
	EQUAL(OK(result(p)), 3);
	EQUAL(m.type, 5);
	RECEIVE(id, 4, IPC_NOWAIT, 4, "no");
	/* 7 and 6 are left. */
	its_msgrcv(later(p), id, &m, 100, -5, 0);
	CHECK(blocks(p));
	OK(send_text(id, 9, "no", 0));
	CHECK(blocks(p));
	OK(send_text(id, 3, "three", 0));
	EQUAL(OK(result(p)), 5);
	EQUAL(m.type, 3);
	RECEIVE(id, 6, IPC_NOWAIT, 6, "no");
	RECEIVE(id, 9, IPC_NOWAIT, 9, "no");
	its_msgrcv(later(p), id, &m, 100, 7, MSG_EXCEPT);
	CHECK(blocks(p));
	OK(send_text(id, 7, "no", 0));
	CHECK(blocks(p));
	OK(send_text(id, 8, "eight", 0));
	EQUAL(OK(result(p)), 5);
	EQUAL(m.type, 8);
	EQUAL(msg_stat(id).msg_qnum, 2);
}

CASE(rcv_blocks_too_long, "A message longer than msgsz is not removed, and E2BIG: for a receiver that waits as well; msgop(2)")
{
	struct peer *p = peer();
	int id = new_msg();
	its_msgrcv(later(p), id, NULL, 3, 0, 0);
	CHECK(blocks(p));
	OK(send_text(id, 6, "four", 0));
	FAILS(result(p), E2BIG);
	EQUAL(msg_stat(id).msg_qnum, 1);
	RECEIVE(id, 0, IPC_NOWAIT, 6, "four");
	its_msgrcv(later(p), id, NULL, 3, 0, MSG_NOERROR);
	CHECK(blocks(p));
	OK(send_text(id, 6, "four", 0));
	EQUAL(OK(result(p)), 3);
	EMPTY(id);
}

CASE(rcv_blocks_in_number, "Of several who wait, each message goes to one; msgop(2)")
{
	enum { RECEIVERS = 4 };
	struct peer *p[RECEIVERS];
	bool waits[RECEIVERS];
	int id = new_msg(), seen = 0;
	for (int i = 0; i < RECEIVERS; i++) {
		p[i] = peer();
		its_msgrcv(later(p[i]), id, NULL, 100, 0, 0);
		CHECK(blocks(p[i]));
		waits[i] = true;
	}
	for (int n = 1; n <= RECEIVERS; n++) {
		OK(send_text(id, n, "for one", 0));
		int got = 0;
		while (got == 0)
			for (int i = 0; i < RECEIVERS; i++)
				if (waits[i] && has_result(p[i])) {
					EQUAL(OK(result(p[i])), 7);
					seen |= 1 << *(long *)p[i]->data;
					waits[i] = false;
					got++;
				}
		EQUAL(got, 1);
		pause_ms(2);
		for (int i = 0; i < RECEIVERS; i++)
			CHECK(!waits[i] || !has_result(p[i]));
	}
	EQUAL(seen, (1 << (RECEIVERS + 1)) - 2);
}

CASE(rcv_blocks_of_types, "Of several who wait, the one who wants the type has the message; msgop(2)")
{
	struct peer *p[3];
	int id = new_msg();
	for (int i = 0; i < 3; i++) {
		p[i] = peer();
		its_msgrcv(later(p[i]), id, NULL, 100, i + 1, 0);
		CHECK(blocks(p[i]));
	}
	for (int i = 3; i-- > 0;) {
		OK(send_text(id, i + 1, "mine", 0));
		EQUAL(OK(result(p[i])), 4);
		EQUAL(*(long *)p[i]->data, i + 1);
		for (int j = 0; j < i; j++)
			CHECK(!has_result(p[j]));
	}
	EMPTY(id);
}

CASE(rcv_blocks_until_removed, "The queue is removed from the system: a blocked msgrcv fails with EIDRM; msgop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_msg();
	OK(send_text(id, 1, "left", 0));
	its_msgrcv(later(p), id, NULL, 100, 5, 0);
	its_msgrcv(later(q), id, NULL, 100, 1, MSG_EXCEPT);
	CHECK(blocks(p));
	CHECK(blocks(q));
	OK(msgctl(id, IPC_RMID, NULL));
	FAILS(result(p), EIDRM);
	FAILS(result(q), EIDRM);
}

CASE(rcv_blocks_until_killed, "A receiver that is killed while it waits takes nothing; msgop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_msg();
	its_msgrcv(later(p), id, NULL, 100, 0, 0);
	its_msgrcv(later(q), id, NULL, 100, 8, 0);
	CHECK(blocks(p));
	CHECK(blocks(q));
	its_kill(p);
	OK(send_text(id, 1, "for the living", 0));
	EQUAL(msg_stat(id).msg_qnum, 1);
	RECEIVE(id, 0, IPC_NOWAIT, 1, "for the living");
	its_kill(q);
	OK(send_text(id, 8, "x", 0));
	RECEIVE(id, 8, IPC_NOWAIT, 8, "x");
}

CASE(rcv_then_sender_waits, "A receiver and a sender that wait for each other's queue go on in turn; msgop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_msg();
	struct message m = {.type = 1};
	set_qbytes(id, 10);
	OK(msgsnd(id, &m, 10, 0));
	/* Not for what is there: for what the sender has, who has no room. */
	its_msgrcv(later(p), id, NULL, 100, 2, 0);
	CHECK(blocks(p));
	its_msgsnd(later(q), id, 2, "two", 3, 0);
	CHECK(blocks(q));
	CHECK(blocks(p));
	EQUAL(OK(msgrcv(id, &m, 10, 1, 0)), 10);
	OK(result(q));
	EQUAL(OK(result(p)), 3);
	EMPTY(id);
}

/* MSG_COPY */

CASE(copy_of_message, "MSG_COPY: nondestructively fetch a copy of the message at the ordinal position; msgop(2)")
{
	int id = new_msg();
	struct message m;
	OK(send_text(id, 5, "a", 0));
	OK(send_text(id, 3, "bb", 0));
	if (msgrcv(id, &m, sizeof m.text, 0, MSG_COPY | IPC_NOWAIT) == -1 && errno == ENOSYS)
		SKIP("the kernel has no MSG_COPY");
	RECEIVE(id, 0, MSG_COPY | IPC_NOWAIT, 5, "a");
	RECEIVE(id, 1, MSG_COPY | IPC_NOWAIT, 3, "bb");
	FAILS(msgrcv(id, &m, sizeof m.text, 2, MSG_COPY | IPC_NOWAIT), ENOMSG);
	FAILS(msgrcv(id, &m, 1, 1, MSG_COPY | IPC_NOWAIT), E2BIG);
	EQUAL(msg_stat(id).msg_qnum, 2);
	EQUAL(msg_stat(id).msg_lrpid, 0);
}

CASE(copy_invalid, "MSG_COPY, but not IPC_NOWAIT, or both MSG_COPY and MSG_EXCEPT: EINVAL; msgop(2)")
{
	int id = new_msg();
	struct message m;
	OK(send_text(id, 5, "a", 0));
	FAILS(msgrcv(id, &m, sizeof m.text, 0, MSG_COPY), EINVAL);
	FAILS(msgrcv(id, &m, sizeof m.text, 0, MSG_COPY | MSG_EXCEPT | IPC_NOWAIT), EINVAL);
	EQUAL(msg_stat(id).msg_qnum, 1);
}

/* Signals */

struct turn {
	atomic_int go, entered, returned, value, error;
};

static void busy_us(double us)
{
	for (double until = now() + us * 1e-6; now() < until;)
		;
}

/* The child sends or receives in turn after turn, until it is killed. */
static pid_t waiting_child(struct turn *turn, int id, bool sends, int flags)
{
	pid_t pid = child();
	if (pid == 0) {
		struct message m = {.type = 3};
		catch_signal(SIGUSR1, flags);
		/* What the first call of a process has to ask others is no wait for the queue. */
		if (sends)
			FAILS(msgsnd(id, &m, 10, IPC_NOWAIT), EAGAIN);
		else
			FAILS(msgrcv(id, &m, 10, 3, IPC_NOWAIT), ENOMSG);
		for (int i = 1;; i++) {
			while (atomic_load(&turn->go) != i)
				sched_yield();
			atomic_store(&turn->entered, i);
			int value = sends ? msgsnd(id, &m, 10, 0) : (int)msgrcv(id, &m, 10, 3, 0);
			int error = errno;
			m.type = 3;
			atomic_store(&turn->value, value);
			atomic_store(&turn->error, error);
			atomic_store(&turn->returned, i);
		}
	}
	return pid;
}

/* A signal at any moment around the call's beginning. If it comes before, the next one ends the call. */
static void interrupted(bool sends, int flags)
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = full_queue();
	pid_t pid = waiting_child(turn, id, sends, flags);
	for (int i = 1; i <= 300; i++) {
		atomic_store(&turn->go, i);
		while (atomic_load(&turn->entered) != i)
			sched_yield();
		busy_us(i * 7 % 300);
		kill(pid, SIGUSR1);
		for (int wait = 0; atomic_load(&turn->returned) != i; wait++) {
			if (wait % 64 == 63)
				kill(pid, SIGUSR1);
			pause_us(50);
		}
		EQUAL(atomic_load(&turn->value), -1);
		EQUAL(atomic_load(&turn->error), EINTR);
	}
	EQUAL(msg_stat(id).msg_qnum, 1);
	kill_child(pid);
	EQUAL(OK(msgrcv(id, &(struct message){0}, 100, 0, IPC_NOWAIT)), 100);
	EMPTY(id);
}

/* A single signal to a call in which the child sleeps. */
static void interrupted_once(bool sends, int flags)
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = full_queue();
	pid_t pid = waiting_child(turn, id, sends, flags);
	for (int i = 1; i <= 100; i++) {
		atomic_store(&turn->go, i);
		CHECK(sleeps(pid, pid, &turn->entered, i, &turn->returned));
		busy_us(i * 7 % 300);
		kill(pid, SIGUSR1);
		while (atomic_load(&turn->returned) != i)
			sched_yield();
		EQUAL(atomic_load(&turn->value), -1);
		EQUAL(atomic_load(&turn->error), EINTR);
	}
	EQUAL(msg_stat(id).msg_qnum, 1);
	kill_child(pid);
}

CASE(signal_snd, "A signal is caught: a blocked msgsnd fails with EINTR; msgop(2)")
{
	interrupted(true, 0);
}

CASE(signal_restart_snd, "msgsnd is never automatically restarted, regardless of SA_RESTART; msgop(2)")
{
	interrupted(true, SA_RESTART);
}

CASE(signal_once_snd, "A signal is caught while msgsnd sleeps: EINTR, at once; msgop(2)")
{
	interrupted_once(true, SA_RESTART);
}

CASE(signal_rcv, "The calling process catches a signal: a blocked msgrcv fails with EINTR; msgop(2)")
{
	interrupted(false, 0);
}

CASE(signal_restart_rcv, "msgrcv is never automatically restarted, regardless of SA_RESTART; msgop(2)")
{
	interrupted(false, SA_RESTART);
}

CASE(signal_once_rcv, "A signal is caught while msgrcv sleeps: EINTR, at once; msgop(2)")
{
	interrupted_once(false, SA_RESTART);
}

CASE(signal_or_message, "msgrcv either fails with EINTR or removes a message, never both; msgop(2)")
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = new_msg(), successes = 0;
	pid_t pid = waiting_child(turn, id, false, SA_RESTART);
	for (int i = 1; i <= 300; i++) {
		atomic_store(&turn->go, i);
		CHECK(sleeps(pid, pid, &turn->entered, i, &turn->returned));
		/* The signal comes before, after, or not at all. */
		if (i % 3 == 0)
			kill(pid, SIGUSR1);
		busy_us(i % 20);
		OK(send_text(id, 3, "message", 0));
		if (i % 3 == 1)
			kill(pid, SIGUSR1);
		while (atomic_load(&turn->returned) != i)
			sched_yield();
		if (atomic_load(&turn->value) == -1) {
			EQUAL(atomic_load(&turn->error), EINTR);
			RECEIVE(id, 0, IPC_NOWAIT, 3, "message");
		} else {
			EQUAL(atomic_load(&turn->value), 7);
			successes++;
		}
		EMPTY(id);
	}
	CHECK(successes >= 100);
	kill_child(pid);
}

CASE(signal_or_sent, "msgsnd either fails with EINTR or appends its message, never both; msgop(2)")
{
	LIMIT(60);
	struct turn *turn = shared_memory(sizeof *turn);
	int id = full_queue(), successes = 0;
	struct message m;
	pid_t pid = waiting_child(turn, id, true, SA_RESTART);
	for (int i = 1; i <= 300; i++) {
		atomic_store(&turn->go, i);
		CHECK(sleeps(pid, pid, &turn->entered, i, &turn->returned));
		if (i % 3 == 0)
			kill(pid, SIGUSR1);
		busy_us(i % 20);
		EQUAL(OK(msgrcv(id, &m, sizeof m.text, 9, 0)), 100);
		if (i % 3 == 1)
			kill(pid, SIGUSR1);
		while (atomic_load(&turn->returned) != i)
			sched_yield();
		if (atomic_load(&turn->value) == -1) {
			EQUAL(atomic_load(&turn->error), EINTR);
		} else {
			EQUAL(OK(msgrcv(id, &m, sizeof m.text, 3, IPC_NOWAIT)), 10);
			successes++;
		}
		EMPTY(id);
		m.type = 9;
		OK(msgsnd(id, &m, 100, IPC_NOWAIT));
	}
	CHECK(successes >= 100);
	kill_child(pid);
}

CASE(signal_of_one, "The process that catches the signal fails with EINTR; others wait on; msgop(2)")
{
	struct peer *p = peer(), *q = peer();
	int id = new_msg();
	its_catch(p, SIGUSR1, SA_RESTART);
	its_msgrcv(later(p), id, NULL, 100, 1, 0);
	its_msgrcv(later(q), id, NULL, 100, 1, 0);
	CHECK(blocks(p));
	CHECK(blocks(q));
	its_signal(p, SIGUSR1);
	FAILS(result(p), EINTR);
	EQUAL(its_caught(p), 1);
	CHECK(blocks(q));
	OK(send_text(id, 1, "for q", 0));
	EQUAL(OK(result(q)), 5);
}

static int call_msgrcv(int id)
{
	struct {
		long type;
		char text[16];
	} message;

	return (int)msgrcv(id, &message, sizeof message.text, 0, 0);
}

CASE(signal_handler_leaves, "A handler may leave a call that sleeps for good, and nothing is left of that call; msgop(2), siglongjmp(3)")
{
	LIMIT(60);
	atomic_int *made = shared_memory(2 * sizeof *made); /* calls; none returns */
	int id = new_msg();
	pid_t pid = child();
	if (pid == 0) {
		EQUAL(leave_calls(made, 100, call_msgrcv, id), 100);
		int before = open_files();
		EQUAL(leave_calls(made, 300, call_msgrcv, id), 300);
		EQUAL(open_files(), before);
		OK(send_text(id, 1, "late", 0));
		EQUAL(OK(call_msgrcv(id)), 4);
		_exit(0);
	}
	have_left(made, pid, 400);
	JOIN(pid);
}

static int give_message(int id)
{
	return send_text(id, 1, "more", 0);
}

CASE(signal_handler_forks, "A signal is caught: EINTR, in a child that its handler has forked as in the parent; msgop(2), fork(2)")
{
	int id = new_msg();
	for (int has_thread = 0; has_thread < 2; has_thread++) {
		fork_in_a_call(call_msgrcv, give_message, id, has_thread);
		EQUAL(msg_stat(id).msg_qnum, 0);
	}
}

/* What cannot go on in a queue of the kernel's, whatever implements the calls of this program. */
struct cancelled {
	int id;
	bool sends;
	atomic_int tid, has_cleaned;
};

static void clean(void *arg)
{
	atomic_fetch_add(&((struct cancelled *)arg)->has_cleaned, 1);
}

static void *call_of_kernel(void *arg)
{
	struct cancelled *c = arg;
	struct {
		long type;
		char text[1000];
	} message = {.type = 1};
	pthread_cleanup_push(clean, c);
	atomic_store(&c->tid, gettid());
	if (c->sends)
		for (;;)
			msgsnd(c->id, &message, sizeof message.text, 0);
	msgrcv(c->id, &message, sizeof message.text, 0, 0);
	pthread_cleanup_pop(0);
	return arg;
}

CASE(kernel_cancelled, "msgsnd and msgrcv are points of cancellation, at queues of the kernel; pthreads(7)")
{
	for (int sends = 0; sends < 2; sends++) {
		static struct cancelled c;
		pthread_t thread;
		void *answer = NULL;
		struct timespec until;
		c = (struct cancelled){.id = OK(syscall(SYS_msgget, IPC_PRIVATE, 0600)), .sends = sends};
		CHECK(pthread_create(&thread, NULL, call_of_kernel, &c) == 0);
		UNTIL(atomic_load(&c.tid) && state_of(getpid(), atomic_load(&c.tid)) == 'S');
		pthread_cancel(thread);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 3 * scale;
		int joined = pthread_timedjoin_np(thread, &answer, &until);
		syscall(SYS_msgctl, c.id, IPC_RMID, NULL);
		EQUAL(joined, 0);
		CHECK(answer == PTHREAD_CANCELED);
		EQUAL(atomic_load(&c.has_cleaned), 1);
	}
}

/* Many at once */

/* Numbers of messages, by sender and in order. */
struct numbered {
	long type;
	int sender, number;
	char rest[600];
};

static void many_to_many(int senders, int receivers, int each, int qbytes)
{
	LIMIT(60);
	int id = new_msg();
	set_qbytes(id, qbytes);
	/* How often each message was received. */
	atomic_int *times = shared_memory(senders * each * sizeof(atomic_int));
	pid_t pid[16];
	for (int s = 0; s < senders; s++)
		if ((pid[s] = child()) == 0) {
			struct numbered m = {.sender = s};
			for (int n = 0; n < each; n++) {
				size_t len = 2 * sizeof(int) + (n * 13 + s) % sizeof m.rest;
				m.type = n % 3 + 1;
				m.number = n;
				memset(m.rest, n + s, sizeof m.rest);
				OK(msgsnd(id, &m, len, 0));
			}
			_exit(0);
		}
	for (int r = 0; r < receivers; r++)
		if ((pid[senders + r] = child()) == 0) {
			int last[16];
			memset(last, -1, sizeof last);
			for (;;) {
				struct numbered m;
				ssize_t got = OK(msgrcv(id, &m, sizeof m - sizeof(long), 0, 0));
				if (m.type == 77)
					_exit(0);
				CHECK(m.sender >= 0 && m.sender < senders && m.number >= 0 && m.number < each);
				EQUAL(got, 2 * sizeof(int) + (m.number * 13 + m.sender) % sizeof m.rest);
				EQUAL(m.type, m.number % 3 + 1);
				for (size_t i = 0; i < got - 2 * sizeof(int); i++)
					EQUAL(m.rest[i], (char)(m.number + m.sender));
				/* What one has sent comes in order. */
				CHECK(m.number > last[m.sender]);
				last[m.sender] = m.number;
				atomic_fetch_add(&times[m.sender * each + m.number], 1);
			}
		}
	for (int s = 0; s < senders; s++)
		JOIN(pid[s]);
	for (int r = 0; r < receivers; r++) {
		struct numbered end = {.type = 77};
		OK(msgsnd(id, &end, 0, 0));
	}
	for (int r = 0; r < receivers; r++)
		JOIN(pid[senders + r]);
	for (int i = 0; i < senders * each; i++)
		EQUAL(atomic_load(&times[i]), 1);
	EMPTY(id);
	EQUAL(msg_stat(id).__msg_cbytes, 0);
}

CASE(many_one_to_one, "Messages are received in the order in which they were sent, each once; msgop(2)")
{
	many_to_many(1, 1, 3000, 2000);
}

CASE(many_to_one, "Each message is received once, those of a sender in order; msgop(2)")
{
	many_to_many(3, 1, 1000, 1500);
}

CASE(many_to_many, "Each message is received once, by one of several; msgop(2)")
{
	many_to_many(3, 3, 1000, 1500);
}

CASE(many_of_types, "Each receiver has the messages of its type, in order; msgop(2)")
{
	enum { TYPES = 3, EACH = 700 };
	LIMIT(60);
	int id = new_msg();
	pid_t pid[TYPES];
	set_qbytes(id, 200);
	for (int t = 0; t < TYPES; t++)
		if ((pid[t] = child()) == 0) {
			for (int n = 0; n < EACH; n++) {
				struct numbered m;
				EQUAL(OK(msgrcv(id, &m, 100, t + 1, 0)), 8);
				EQUAL(m.type, t + 1);
				EQUAL(m.number, n);
			}
			_exit(0);
		}
	for (int n = 0; n < EACH; n++)
		for (int t = 0; t < TYPES; t++) {
			struct numbered m = {.type = t + 1, .number = n};
			OK(msgsnd(id, &m, 8, 0));
		}
	for (int t = 0; t < TYPES; t++)
		JOIN(pid[t]);
	EMPTY(id);
}

CASE(many_killed, "A process that is killed while it sends or receives leaves the queue whole; msgop(2)")
{
	LIMIT(60);
	int id = new_msg();
	set_qbytes(id, 3000);
	for (int i = 0; i < 300; i++) {
		pid_t pid = child();
		if (pid == 0) {
			struct numbered m = {.sender = i};
			for (int n = 0;; n++) {
				size_t len = 2 * sizeof(int) + n % sizeof m.rest;
				m.type = n % 3 + 1;
				m.number = n;
				memset(m.rest, n, sizeof m.rest);
				OK(msgsnd(id, &m, len, 0));
				OK(msgrcv(id, &m, sizeof m - sizeof(long), n % 2 ? 0 : n % 3 + 1, 0));
			}
		}
		pause_us(i % 50 * 15);
		kill_child(pid);
		/* At most one message is there, and it is whole. */
		struct msqid_ds ds = msg_stat(id);
		CHECK(ds.msg_qnum <= 1);
		struct numbered m;
		ssize_t got = msgrcv(id, &m, sizeof m - sizeof(long), 0, IPC_NOWAIT);
		if (ds.msg_qnum == 0) {
			EQUAL(got, -1);
			EQUAL(errno, ENOMSG);
			EQUAL(ds.__msg_cbytes, 0);
		} else {
			EQUAL(got, ds.__msg_cbytes);
			EQUAL(got, 2 * sizeof(int) + m.number % sizeof m.rest);
			EQUAL(m.sender, i);
			EQUAL(m.type, m.number % 3 + 1);
			for (size_t b = 0; b < got - 2 * sizeof(int); b++)
				EQUAL(m.rest[b], (char)m.number);
		}
	}
	EMPTY(id);
}

static void *receives(void *argument)
{
	int id = *(int *)argument;
	long sum = 0;
	for (;;) {
		struct numbered m;
		OK(msgrcv(id, &m, sizeof m - sizeof(long), 0, 0));
		if (m.type == 77)
			return (void *)sum;
		sum += m.number;
	}
}

CASE(many_threads, "Threads of one process receive as processes do; msgop(2)")
{
	LIMIT(60);
	int id = new_msg();
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, receives, &id) == 0);
	long sum = 0;
	for (int n = 1; n <= 2000; n++) {
		struct numbered m = {.type = 1, .number = n};
		OK(msgsnd(id, &m, 2 * sizeof(int), 0));
	}
	for (int i = 0; i < 4; i++)
		OK(send_text(id, 77, "", 0));
	for (int i = 0; i < 4; i++) {
		void *part;
		pthread_join(threads[i], &part);
		sum += (long)part;
	}
	EQUAL(sum, 2000 * 2001 / 2);
	EMPTY(id);
}

CASE(vfork_child_sends, "A vfork'ed child is a process of its own: msg_lspid; msgop(2), vfork(2)")
{
	int id = new_msg();
	OK(send_text(id, 1, "parent", 0));
	pid_t pid = vfork();
	if (pid == 0)
		_exit(send_text(id, 2, "child", 0) == 0 ? 0 : 1);
	JOIN(pid);
	EQUAL(msg_stat(id).msg_lspid, pid);
	OK(send_text(id, 3, "parent", 0));
	EQUAL(msg_stat(id).msg_lspid, getpid());
	RECEIVE(id, 2, IPC_NOWAIT, 2, "child");
}

/* msgctl(2) */

CASE(ctl_stat, "IPC_STAT copies the information into buf: the same for every process; msgctl(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_msg(its_msgget(p, key, IPC_CREAT | 0640)));
	OK(send_text(id, 1, "text", 0));
	struct msqid_ds mine = msg_stat(id), its;
	OK(its_msgctl(p, id, IPC_STAT, &its));
	EQUAL(mine.msg_perm.__key, key);
	EQUAL(mine.msg_perm.mode, 0640);
	EQUAL(mine.msg_qnum, 1);
	EQUAL(its.msg_qnum, 1);
	EQUAL(its.__msg_cbytes, 4);
	EQUAL(mine.msg_ctime, its.msg_ctime);
	EQUAL(mine.msg_stime, its.msg_stime);
	EQUAL(mine.msg_perm.cuid, its.msg_perm.cuid);
}

CASE(ctl_set, "IPC_SET writes msg_qbytes, ids and the 9 bits of msg_perm.mode, updating msg_ctime; msgctl(2)")
{
	int id = new_msg();
	OK(send_text(id, 1, "text", 0));
	struct msqid_ds before = msg_stat(id), set = before;
	pause_us(1100000);
	set.msg_perm.mode = 07000 | 0644;
	set.msg_perm.uid = geteuid() == 0 ? 1234 : geteuid();
	set.msg_perm.gid = geteuid() == 0 ? 2345 : getegid();
	set.msg_qbytes = 1000;
	set.msg_perm.cuid = 55;
	set.msg_perm.cgid = 66;
	set.msg_perm.__key = 77;
	set.msg_qnum = 9;
	set.__msg_cbytes = 9;
	set.msg_stime = set.msg_rtime = set.msg_ctime = 123456;
	set.msg_lspid = set.msg_lrpid = 1;
	OK(msgctl(id, IPC_SET, &set));
	struct msqid_ds after = msg_stat(id);
	EQUAL(after.msg_perm.mode, 0644);
	EQUAL(after.msg_perm.uid, set.msg_perm.uid);
	EQUAL(after.msg_perm.gid, set.msg_perm.gid);
	EQUAL(after.msg_qbytes, 1000);
	EQUAL(after.msg_perm.cuid, before.msg_perm.cuid);
	EQUAL(after.msg_perm.cgid, before.msg_perm.cgid);
	EQUAL(after.msg_perm.__key, before.msg_perm.__key);
	EQUAL(after.msg_qnum, 1);
	EQUAL(after.__msg_cbytes, 4);
	EQUAL(after.msg_stime, before.msg_stime);
	EQUAL(after.msg_rtime, 0);
	EQUAL(after.msg_lspid, getpid());
	EQUAL(after.msg_lrpid, 0);
	IS_NOW(after.msg_ctime);
	CHECK(after.msg_ctime > before.msg_ctime);
}

CASE(ctl_op_keeps_ctime, "msg_ctime is the time of creation or of the last IPC_SET; msgctl(2)")
{
	int id = new_msg();
	long before = msg_stat(id).msg_ctime;
	pause_us(1100000);
	OK(send_text(id, 1, "text", 0));
	RECEIVE(id, 0, 0, 1, "text");
	struct msqid_ds ds = msg_stat(id);
	EQUAL(ds.msg_ctime, before);
	CHECK(ds.msg_stime > before && ds.msg_rtime > before);
}

CASE(ctl_qbytes_beyond_most, "IPC_SET beyond MSGMNB needs CAP_SYS_RESOURCE: else EPERM; msgctl(2)")
{
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	int id = new_msg();
	set_qbytes(id, 10);
	set_qbytes(id, info.msgmnb);
	struct msqid_ds ds = msg_stat(id);
	ds.msg_qbytes = info.msgmnb + 1;
	if (!capable(CAP_SYS_RESOURCE)) {
		FAILS(msgctl(id, IPC_SET, &ds), EPERM);
		EQUAL(msg_stat(id).msg_qbytes, info.msgmnb);
	} else {
		OK(msgctl(id, IPC_SET, &ds));
		EQUAL(msg_stat(id).msg_qbytes, info.msgmnb + 1);
	}
}

CASE(ctl_qbytes_below_used, "msg_qbytes may be less than what is there: then the queue is full; msgctl(2), msgop(2)")
{
	int id = new_msg();
	OK(send_text(id, 1, "twelve bytes", 0));
	set_qbytes(id, 5);
	FAILS(send_text(id, 1, "x", IPC_NOWAIT), EAGAIN);
	RECEIVE(id, 0, 0, 1, "twelve bytes");
	OK(send_text(id, 1, "five5", IPC_NOWAIT));
}

CASE(ctl_remove, "IPC_RMID: immediately remove the message queue; the third argument is ignored; msgctl(2)")
{
	struct peer *p = peer();
	key_t key = fresh_key();
	int id = OK(keep_msg(msgget(key, IPC_CREAT | 0600)));
	OK(send_text(id, 1, "lost", 0));
	OK(its_msgctl(p, id, IPC_RMID, NULL));
	struct msqid_ds ds = {0};
	GONE(msgctl(id, IPC_STAT, &ds));
	GONE(msgctl(id, IPC_SET, &ds));
	GONE(msgctl(id, IPC_RMID, NULL));
	FAILS(msgget(key, 0), ENOENT);
	int next = OK(keep_msg(msgget(key, IPC_CREAT | IPC_EXCL | 0600)));
	CHECK(next != id);
	EMPTY(next);
	OK(msgctl(next, IPC_RMID, no_memory()));
}

CASE(ctl_remove_race, "Removed once: of several who remove a queue, one succeeds; msgctl(2)")
{
	struct peer *p[3];
	for (int i = 0; i < 3; i++)
		p[i] = peer();
	for (int round = 0; round < 50; round++) {
		int id = new_msg(), removed = 0;
		for (int i = 0; i < 3; i++)
			OK(its_msgsnd(p[i], id, 1, "x", 1, 0));
		for (int i = 0; i < 3; i++)
			its_msgctl(later(p[i]), id, IPC_RMID, NULL);
		for (int i = 0; i < 3; i++)
			if (result(p[i]) == 0)
				removed++;
			else
				CHECK(errno == EINVAL || errno == EIDRM);
		EQUAL(removed, 1);
	}
}

CASE(ctl_invalid_id, "Invalid value for msqid: EINVAL; msgctl(2)")
{
	struct msqid_ds ds = {0};
	FAILS(msgctl(-1, IPC_STAT, &ds), EINVAL);
	FAILS(msgctl(-1, IPC_SET, &ds), EINVAL);
	FAILS(msgctl(-1, IPC_RMID, NULL), EINVAL);
	GONE(msgctl(INT_MAX, IPC_STAT, &ds));
	GONE(msgctl(INT_MAX, IPC_RMID, NULL));
}

CASE(ctl_invalid_command, "Invalid value for cmd: EINVAL; msgctl(2)")
{
	struct msqid_ds ds = {0};
	int id = new_msg();
	FAILS(msgctl(id, 9999, &ds), EINVAL);
	FAILS(msgctl(id, -1, &ds), EINVAL);
	FAILS(msgctl(id, SETVAL, &ds), EINVAL);
}

CASE(ctl_bad_address, "The address pointed to by buf is not accessible: EFAULT; msgctl(2)")
{
	int id = new_msg();
	FAILS(msgctl(id, IPC_STAT, no_memory()), EFAULT);
	FAILS(msgctl(id, IPC_STAT, constant_memory()), EFAULT);
	FAILS(msgctl(id, IPC_STAT, (void *)8), EFAULT);
	FAILS(msgctl(id, IPC_STAT, NULL), EFAULT);
	FAILS(msgctl(id, IPC_SET, no_memory()), EFAULT);
	FAILS(msgctl(id, IPC_SET, NULL), EFAULT);
	FAILS(msgctl(0, IPC_INFO, no_memory()), EFAULT);
	FAILS(msgctl(0, MSG_INFO, no_memory()), EFAULT);
	EQUAL(msg_stat(id).msg_perm.mode, 0600);
}

static int handler_queue, handler_failures;
#define HANDLED 20000
static void use_queue(int number)
{
	(void)number;
	int error = errno;
	struct { long type; char text[8]; } message = {1, "handler"};
	bool good = msgsnd(handler_queue, &message, sizeof message.text, IPC_NOWAIT) == 0 || errno == EAGAIN || errno == EDEADLK;
	good = good && (msgrcv(handler_queue, &message, sizeof message.text, 0, IPC_NOWAIT) != -1 || errno == ENOMSG || errno == EDEADLK);
	handler_failures += !good;
	count_signal(0);
	if (atomic_load(&signals_caught) >= HANDLED)
		setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	errno = error;
}

CASE(signal_handler_same_queue, "Queues are not for handlers of signals: a call that interrupts one on the same queue fails, and waits for nothing; isthmus_sysv(7)")
{
	LIMIT(40);
	handler_queue = new_msg();
	pid_t pid = child();
	if (pid == 0) {
		struct { long type; char text[8]; } message = {1, "first"};
		struct sigaction action = {.sa_handler = use_queue, .sa_flags = SA_RESTART};
		struct itimerval every = {.it_interval = {.tv_usec = 100}, .it_value = {.tv_usec = 100}};
		sigaction(SIGALRM, &action, NULL);
		setitimer(ITIMER_REAL, &every, NULL);
		while (atomic_load(&signals_caught) < HANDLED) {
			CHECK(msgsnd(handler_queue, &message, sizeof message.text, IPC_NOWAIT) == 0 || errno == EAGAIN);
			CHECK(msgrcv(handler_queue, &message, sizeof message.text, 0, IPC_NOWAIT) != -1 || errno == ENOMSG);
		}
		EQUAL(handler_failures, 0);
		_exit(0);
	}
	JOIN(pid);
}

CASE(ctl_info, "IPC_INFO returns limits in a structure of type msginfo; msgctl(2)")
{
	struct msginfo info;
	memset(&info, 0, sizeof info);
	new_msg();
	CHECK(OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info)) >= 0);
	CHECK(info.msgmax >= 1 && info.msgmnb >= 1 && info.msgmni >= 1);
}

CASE(ctl_msg_info, "MSG_INFO: msgpool is the number of queues, msgmap that of messages, msgtql that of bytes; msgctl(2)")
{
	for (int i = 0; i < 50; i++) {
		struct msginfo before, after;
		OK(msgctl(0, MSG_INFO, (struct msqid_ds *)&before));
		int one = new_msg(), two = new_msg();
		OK(send_text(one, 1, "12345", 0));
		OK(send_text(one, 1, "123", 0));
		OK(send_text(two, 1, "1", 0));
		CHECK(OK(msgctl(0, MSG_INFO, (struct msqid_ds *)&after)) >= 0);
		OK(msgctl(one, IPC_RMID, NULL));
		OK(msgctl(two, IPC_RMID, NULL));
		CHECK(after.msgpool >= 2 && after.msgmap >= 3 && after.msgtql >= 9);
		if (after.msgpool == before.msgpool + 2 && after.msgmap == before.msgmap + 3 && after.msgtql == before.msgtql + 9)
			return;
		pause_us(10000);
	}
	FAIL("expected two queues more, with 3 messages of 9 bytes; found it never");
}

static int index_of(int id, int command, struct msqid_ds *ds)
{
	struct msginfo info;
	int highest = OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	for (int i = 0; i <= highest; i++)
		if (msgctl(i, command, ds) == id)
			return i;
	FAIL("expected queue %d at an index up to %d", id, highest);
}

static void stat_by_index(int command)
{
	key_t key = fresh_key();
	int id[3];
	struct msqid_ds ds;
	for (int i = 0; i < 3; i++) {
		id[i] = OK(keep_msg(msgget(i ? IPC_PRIVATE : key, IPC_CREAT | 0600)));
		for (int n = 0; n < i; n++)
			OK(send_text(id[i], 1, "four", 0));
	}
	for (int i = 0; i < 3; i++) {
		memset(&ds, 0, sizeof ds);
		index_of(id[i], command, &ds);
		EQUAL(ds.msg_qnum, i);
		EQUAL(ds.__msg_cbytes, 4 * i);
		EQUAL(ds.msg_perm.__key, i ? IPC_PRIVATE : key);
		EQUAL(ds.msg_perm.mode, 0600);
	}
	int at = index_of(id[2], command, &ds);
	OK(msgctl(id[2], IPC_RMID, NULL));
	int found = msgctl(at, command, &ds);
	CHECK(found == -1 ? errno == EINVAL : found != id[2]);
}

CASE(ctl_stat_index, "MSG_STAT: the argument is an index; returns the identifier; msgctl(2)")
{
	stat_by_index(MSG_STAT);
}

CASE(ctl_stat_any_index, "MSG_STAT_ANY returns a msqid_ds structure as for MSG_STAT; msgctl(2)")
{
	stat_by_index(MSG_STAT_ANY);
}

CASE(ctl_stat_unused_index, "The index value referred to an array slot that is currently unused: EINVAL; msgctl(2)")
{
	struct msqid_ds ds;
	struct msginfo info;
	int highest = OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	FAILS(msgctl(-1, MSG_STAT, &ds), EINVAL);
	FAILS(msgctl(highest + 1000, MSG_STAT, &ds), EINVAL);
	FAILS(msgctl(highest + 1000, MSG_STAT_ANY, &ds), EINVAL);
}
