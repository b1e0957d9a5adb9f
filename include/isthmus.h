/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * isthmus: shared memory between the virtual machines of one host, for programs written for it. isthmus(3) tells more.
 *
 *	struct isthmus *here;
 *	struct isthmus_segment *board;
 *	if (isthmus_attach(NULL, &here) == 0 &&
 *	    isthmus_segment_open(here, "board", ISTHMUS_CREATE, 0600, 4096, &board) == 0)
 *		strcpy(isthmus_segment_data(board), "seen in all VMs");
 *
 * Rules for all of it, unless a function says otherwise:
 * - Functions that can fail return 0 or a negative ISTHMUS_E...; isthmus_error() then says in words what was wrong.
 * - All functions may be called from any thread, also on the same object; the one that closes an object comes last.
 * - No call is a point of cancellation (pthread_cancel()).
 * - Names are UTF-8 of 1 to 127 bytes; each kind of object has names of its own. They are the same on the host and in all
 *   of its VMs. Lengths are in bytes.
 * - Objects stay, with their contents, until they are unlinked and no process has them open, or the region ends.
 * - After fork(), the child must attach for itself; it must not touch what its parent opened.
 * - The memory model is C11's: plain bytes need something that orders them, atomics on shared bytes work between processes
 *   and VMs.
 */
#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Errors. */
#define ISTHMUS_EINVAL (-1)     /* an argument is not valid */
#define ISTHMUS_ENOSERVICE (-2) /* no service to attach to, or it refuses this process, or it has ended */
#define ISTHMUS_ENOTFOUND (-3)  /* there is no object of that kind and name */
#define ISTHMUS_EEXIST (-4)     /* there is one already, or one with other parameters */
#define ISTHMUS_EACCESS (-5)    /* the object's mode or owner does not allow it to this user */
#define ISTHMUS_EFULL (-6)      /* no memory, no entry in a table, or no quota is left */
#define ISTHMUS_EREGION (-7)    /* what lies in the region is not valid */
#define ISTHMUS_EFAULT (-8)     /* an internal error of this library; the object refuses further calls */
#define ISTHMUS_ETIMEDOUT (-9)  /* the time ran out */
#define ISTHMUS_EBUSY (-10)     /* not possible without waiting */
#define ISTHMUS_EBROKEN (-11)   /* a participant of the barrier died or left: this and all later rounds cannot end */
#define ISTHMUS_EDEADLOCK (-12) /* this thread owns the lock already and would wait for itself */
#define ISTHMUS_ENOTOWNER (-13) /* this thread does not own the lock */
#define ISTHMUS_ELOST (-14)     /* an owner died, and the next unlocked it without having mended what it protects */
#define ISTHMUS_EOWNERDIED (-15) /* a writer died, and none has mended yet what the lock protects; not locked */
#define ISTHMUS_EOVERFLOW (-16) /* the semaphore would exceed its largest value */
#define ISTHMUS_EREFUSED (-17)  /* the member accepts no connections, or too many wait to be accepted */
#define ISTHMUS_EEND (-18)      /* end of the stream: the other end closed, and everything was read */
#define ISTHMUS_ECLOSED (-19)   /* the channel is closed in this direction */
#define ISTHMUS_EPEERDIED (-20) /* the process at the other end died without closing; what was not read is lost */
#define ISTHMUS_EFAULTY (-21)   /* the other end broke the protocol; the channel is unusable */
#define ISTHMUS_ESUSPENDED (-22) /* the channel is suspended: connect anew once the member can be reached again */
#define ISTHMUS_ENOTREACHABLE (-23) /* the memory node is on a host that this process cannot reach */

/* What an error number means, in a few words; never NULL. */
const char *isthmus_strerror(int error);

/* Why the last failed call of this thread failed, with names and values; "" if none did. Valid until the thread's next failure. */
const char *isthmus_error(void);

/* ---- attachment ---- */

/* A process's place in a region. */
struct isthmus;

/*
 * Attaches this process to the service at `socket`, or, if that is NULL, at the usual place: ISTHMUS_SOCKET, else
 * /run/isthmus/socket, else $XDG_RUNTIME_DIR/isthmus/socket. Errors: ISTHMUS_ENOSERVICE, ISTHMUS_EREGION.
 */
int isthmus_attach(const char *socket, struct isthmus **here);

/* Detaches. Objects that were opened through it stay usable until they are closed. NULL does nothing. */
void isthmus_detach(struct isthmus *here);

/* The number of the member (the host or a VM) that this process runs on; 0 is the host. */
uint32_t isthmus_member(const struct isthmus *here);

/* Writes the host name of member `index` to `name`: at most `bytes` bytes, with the final zero. Errors: ISTHMUS_ENOTFOUND. */
int isthmus_member_name(const struct isthmus *here, uint32_t index, char *name, size_t bytes);

/* ---- named segments ---- */

/* Bytes that all processes which open the same name share. */
struct isthmus_segment;

/* How to open. Without the first two, a segment must be there. */
#define ISTHMUS_CREATE 1    /* make it, all zeros, if there is none */
#define ISTHMUS_EXCLUSIVE 2 /* with ISTHMUS_CREATE: there must be none */
#define ISTHMUS_READ 4      /* not with ISTHMUS_CREATE. For reading: the data must not be written, which nothing but the mode enforces */
#define ISTHMUS_TRANSIENT 8 /* with ISTHMUS_CREATE: its name ends with the process that makes it, however that ends */

/*
 * Opens the segment called `name`. `mode` (as of a file, 0600 for instance) and `len` apply if it is made by this call; an
 * existing one keeps its own. Errors: ISTHMUS_ENOTFOUND, ISTHMUS_EEXIST, ISTHMUS_EACCESS, ISTHMUS_EFULL,
 * ISTHMUS_EINVAL (also for flags that do not go together), ISTHMUS_ENOSERVICE.
 */
int isthmus_segment_open(struct isthmus *here, const char *name, unsigned flags, unsigned mode, size_t len,
			 struct isthmus_segment **segment);

/* Its bytes, at a multiple of 4096; valid until isthmus_segment_close(). The address differs between processes. */
void *isthmus_segment_data(const struct isthmus_segment *segment);

/* Its length when it was opened. */
size_t isthmus_segment_len(const struct isthmus_segment *segment);

/*
 * Makes it smaller for all later openings; processes that have it open keep the length they opened it with. A minitransaction
 * whose process died may be completed by a process that opened the segment later, and then only within the new length. Errors:
 * ISTHMUS_EINVAL for 0 and for more than its length, ISTHMUS_EACCESS, ISTHMUS_ENOSERVICE.
 */
int isthmus_segment_shrink(struct isthmus_segment *segment, size_t len);

/* Closes it. NULL does nothing. */
void isthmus_segment_close(struct isthmus_segment *segment);

/*
 * Removes a name. The memory is freed when no process has the segment open. Errors: ISTHMUS_ENOTFOUND, ISTHMUS_EACCESS,
 * ISTHMUS_ENOSERVICE.
 */
int isthmus_segment_unlink(struct isthmus *here, const char *name);

/* What isthmus_segment_list() tells of a segment. */
struct isthmus_segment_info {
	const char *name; /* valid during the call */
	size_t len;
	unsigned mode;
	uint32_t uid, gid; /* owner and group */
	uint64_t opens;    /* processes that have it open */
	int unlinked;      /* whether its name was removed */
};

/* Calls `each` for every segment until one call returns a value other than 0, and returns that value. */
int isthmus_segment_list(struct isthmus *here, int (*each)(const struct isthmus_segment_info *info, void *arg), void *arg);

/* ---- synchronisation ----
 *
 * Between threads of any processes, on the host and in all VMs. What a thread did before it arrived, unlocked, posted or
 * notified is visible to each thread that goes on because of it. All processes open an object with the same parameters; the
 * first opening makes it, with `mode`. Times are in nanoseconds: 0 does not wait, ISTHMUS_FOREVER has no limit.
 *
 * No process waits for a dead one. The others learn of a death within 5 s of it, natively and between VMs; 19 of 20 within
 * 100 ms natively, and within 1 s between VMs. isthmus_barrier(3) says what that takes of the machine.
 */
#define ISTHMUS_FOREVER UINT64_MAX
/* What locking returns if the lock was taken and an earlier owner died holding it: what it protects may be half changed. */
#define ISTHMUS_OWNER_DIED 1

/* How the participants of a barrier wait. */
#define ISTHMUS_SPIN 1   /* polls and yields: for short waits, with a processor for each participant */
#define ISTHMUS_BLOCK 2  /* sleeps */
#define ISTHMUS_HYBRID 3 /* polls as long as that pays, then sleeps */

/* A participant of a barrier; for one thread at a time. */
struct isthmus_barrier;

/*
 * Takes one of the `parties` (1 to 4096) seats of the barrier called `name`. Errors: ISTHMUS_EFULL when live processes have
 * all seats, ISTHMUS_EBROKEN, ISTHMUS_EEXIST if it exists with other parameters, ISTHMUS_EINVAL, ISTHMUS_EACCESS,
 * ISTHMUS_ENOSERVICE; ISTHMUS_EBUSY if a process that resets it makes no progress for a second.
 */
int isthmus_barrier_join(struct isthmus *here, const char *name, uint32_t parties, unsigned waiting, unsigned mode,
			 struct isthmus_barrier **barrier);

/*
 * Arrives, and waits until all have. Returns 1 to one participant of each round and 0 to the others. Errors:
 * ISTHMUS_EBROKEN, for this and all later rounds, when a participant died before it arrived, or left in the middle of the
 * round; a death after arrival breaks only the next round. ISTHMUS_ETIMEDOUT, which breaks nothing: the caller has arrived,
 * the others need nothing more of it, and its next call goes on with this round.
 */
int isthmus_barrier_wait(struct isthmus_barrier *barrier, uint64_t timeout_ns);

/*
 * Leaves. Between two rounds the seat is free: the next round waits until another process has taken it and arrived. In the
 * middle of a round, after a time-out, leaving breaks the barrier, at least for participants that still wait. NULL does
 * nothing.
 */
void isthmus_barrier_leave(struct isthmus_barrier *barrier);

/*
 * Makes a broken barrier new, with all seats empty; does nothing if it is not broken. Any process may call it, also several at
 * once. The parameters are those of isthmus_barrier_join(), and the barrier is made if there is none. Errors: ISTHMUS_EBUSY
 * while a process with a seat lives, or its death is not known yet: retry; ISTHMUS_EEXIST, ISTHMUS_EINVAL, ISTHMUS_EACCESS,
 * ISTHMUS_ENOSERVICE.
 */
int isthmus_barrier_reset(struct isthmus *here, const char *name, uint32_t parties, unsigned waiting, unsigned mode);

/* Removes the name. Errors as of isthmus_segment_unlink(). */
int isthmus_barrier_unlink(struct isthmus *here, const char *name);

/*
 * A robust mutex: a thread owns it. When the owner's process dies, the next one gets it and is told; a thread that ends before its
 * process must not own it.
 */
struct isthmus_mutex;
int isthmus_mutex_open(struct isthmus *here, const char *name, unsigned mode, struct isthmus_mutex **mutex);

/*
 * Locks it. Returns 0, or ISTHMUS_OWNER_DIED: then mend what it protects and call isthmus_mutex_mend(); if it is unlocked
 * without that, it is lost for all processes (ISTHMUS_ELOST). Errors: ISTHMUS_ELOST, ISTHMUS_EDEADLOCK, ISTHMUS_ETIMEDOUT,
 * ISTHMUS_EBUSY with a time of 0.
 */
int isthmus_mutex_lock(struct isthmus_mutex *mutex, uint64_t timeout_ns);

/* Declares what it protects consistent again. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_mutex_mend(struct isthmus_mutex *mutex);

/* Unlocks it. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_mutex_unlock(struct isthmus_mutex *mutex);

/* Closes it; no thread of this process may own it. NULL does nothing. */
void isthmus_mutex_close(struct isthmus_mutex *mutex);
int isthmus_mutex_unlink(struct isthmus *here, const char *name);

/* A condition variable. All threads that wait at it use the same mutex. */
struct isthmus_condition;
int isthmus_condition_open(struct isthmus *here, const char *name, unsigned mode, struct isthmus_condition **condition);

/*
 * Unlocks `mutex`, sleeps until a notification or for the time given, and locks it again, however long that takes. It may
 * return without a notification, so check the condition again. Returns 0 or ISTHMUS_OWNER_DIED. Errors: ISTHMUS_ETIMEDOUT, with the
 * mutex locked; those of isthmus_mutex_lock() and ISTHMUS_ENOTOWNER, without.
 */
int isthmus_condition_wait(struct isthmus_condition *condition, struct isthmus_mutex *mutex, uint64_t timeout_ns);

/* Ends the wait of one thread, or of all. */
int isthmus_condition_notify(struct isthmus_condition *condition, int all);
void isthmus_condition_close(struct isthmus_condition *condition);
int isthmus_condition_unlink(struct isthmus *here, const char *name);

/* A counting semaphore, from 0 to 2147483647. It has no owners: a process that dies gives nothing back. */
struct isthmus_semaphore;
int isthmus_semaphore_open(struct isthmus *here, const char *name, uint32_t initial, unsigned mode,
			   struct isthmus_semaphore **semaphore);

/* Subtracts 1, waiting while the value is 0. Errors: ISTHMUS_ETIMEDOUT, ISTHMUS_EBUSY with a time of 0. */
int isthmus_semaphore_wait(struct isthmus_semaphore *semaphore, uint64_t timeout_ns);

/* Adds 1. Errors: ISTHMUS_EOVERFLOW. */
int isthmus_semaphore_post(struct isthmus_semaphore *semaphore);

/* The value now. */
int isthmus_semaphore_value(const struct isthmus_semaphore *semaphore, uint32_t *value);
void isthmus_semaphore_close(struct isthmus_semaphore *semaphore);
int isthmus_semaphore_unlink(struct isthmus *here, const char *name);

/*
 * A robust reader-writer lock that may be open `opens` (1 to 4096) times at once. A waiting writer goes before readers that
 * come later. Opening fails with ISTHMUS_EFULL when it is open that many times, and with ISTHMUS_ETIMEDOUT when a live process
 * has been opening or closing it for ten seconds: the process was stopped, or the lock was overwritten. A thread that has it for
 * reading must not lock it again: for writing that waits for ever, and for reading once a writer waits.
 */
struct isthmus_rwlock;
int isthmus_rwlock_open(struct isthmus *here, const char *name, uint32_t opens, unsigned mode, struct isthmus_rwlock **lock);

/* Locks it for reading. Errors: ISTHMUS_EOWNERDIED, ISTHMUS_ELOST, ISTHMUS_EDEADLOCK, ISTHMUS_ETIMEDOUT, ISTHMUS_EBUSY. */
int isthmus_rwlock_read(struct isthmus_rwlock *lock, uint64_t timeout_ns);

/* Locks it for writing. Returns 0 or ISTHMUS_OWNER_DIED, and fails, as isthmus_mutex_lock() does. */
int isthmus_rwlock_write(struct isthmus_rwlock *lock, uint64_t timeout_ns);

/* Declares what it protects consistent again; for the writer. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_rwlock_mend(struct isthmus_rwlock *lock);

/* Unlocks it, after reading or writing. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_rwlock_unlock(struct isthmus_rwlock *lock);

/* Closes it; no thread may hold it by this handle. NULL does nothing. */
void isthmus_rwlock_close(struct isthmus_rwlock *lock);
int isthmus_rwlock_unlink(struct isthmus *here, const char *name);

/*
 * Calls `make` unless a call for this name has returned 0 before, in any process; waits while another process is in its
 * `make`. If that process dies, or its `make` returns another value, a waiting one calls its own, after a death with
 * `taken_over` set. Returns what `make` returned, or 0 if it was not called. A `make` that calls isthmus_once() for the same
 * name waits for ever.
 */
int isthmus_once(struct isthmus *here, const char *name, unsigned mode, int (*make)(int taken_over, void *arg), void *arg);
int isthmus_once_unlink(struct isthmus *here, const char *name);

/* ---- minitransactions ----
 *
 * Reads, compares and writes of bytes in named segments, in any mix, done at one moment or not at all, even if processes are
 * killed. They are atomic among each other, not towards other accesses to the same bytes. Source: X. Ke, M.Sc. thesis, Alberta
 * 2011, 3.1.
 */
struct isthmus_space;
struct isthmus_transaction;

/* How many threads can commit at once, and how much; 0 is the default. All processes that open a space ask for the same. */
struct isthmus_space_shape {
	uint32_t slots;     /* threads that commit at the same time; a process keeps up to 16 of them: up to 512; default 64 */
	uint32_t locks;     /* a power of two up to 2^20; default 2048. Each guards some lines of 64 bytes */
	/*
	 * For one commit: 8, 8 for each line touched, 24 and its bytes in whole words of 8 for each write. Rounded up to a multiple of 64;
	 * up to 2^20; default 4096
	 */
	uint32_t log_bytes;
};

/*
 * Opens the space called `name`, or makes it. `shape` may be NULL. Errors: ISTHMUS_EEXIST if it exists with another shape,
 * ISTHMUS_EINVAL, ISTHMUS_EACCESS, ISTHMUS_EFULL, ISTHMUS_ENOSERVICE.
 */
int isthmus_space_open(struct isthmus *here, const char *name, unsigned mode, const struct isthmus_space_shape *shape,
		       struct isthmus_space **space);

/* Adds a segment and keeps it open; stores the number that items name it by, which is the same in all processes. */
int isthmus_space_add(const struct isthmus_space *space, const struct isthmus_segment *segment, uint32_t *id);
void isthmus_space_close(struct isthmus_space *space);
int isthmus_space_unlink(struct isthmus *here, const char *name);

/* The memory node of this host's segments. Others fail with ISTHMUS_ENOTREACHABLE. */
#define ISTHMUS_NODE_LOCAL 0

/* An empty minitransaction. It is for one thread at a time, and can be committed and filled again any number of times. */
int isthmus_transaction_new(const struct isthmus_space *space, struct isthmus_transaction **transaction);

/* Removes all items. */
int isthmus_transaction_clear(struct isthmus_transaction *transaction);

/*
 * Items: `len` bytes from `offset` of segment `segment` of a node. Each commit that reads stores the bytes read to `into`. Reads
 * and compares see the bytes from before the commit; writes are applied in the order of their items. Bytes to compare and to
 * write are copied in these calls.
 */
int isthmus_transaction_read(struct isthmus_transaction *transaction, uint32_t node, uint32_t segment, uint64_t offset,
			     void *into, size_t len);
int isthmus_transaction_compare(struct isthmus_transaction *transaction, uint32_t node, uint32_t segment, uint64_t offset,
				const void *bytes, size_t len);
int isthmus_transaction_write(struct isthmus_transaction *transaction, uint32_t node, uint32_t segment, uint64_t offset,
			      const void *bytes, size_t len);

#define ISTHMUS_COMMITTED 0      /* all compares were equal; everything was read and written */
#define ISTHMUS_COMPARE_FAILED 1 /* a compare was not equal; everything was read, nothing written */
#define ISTHMUS_LOCK_FAILED 2    /* locks were held by others for long; nothing was read or written: retry */

/*
 * Commits; returns one of these. Items that all lie in one aligned word of 8 bytes take a single compare-and-swap. Errors:
 * ISTHMUS_EINVAL for items out of bounds, of over 1 MiB, or larger than the log, ISTHMUS_ENOTFOUND for no such segment,
 * ISTHMUS_ENOTREACHABLE, ISTHMUS_EFULL when other processes have all slots.
 */
int isthmus_transaction_commit(struct isthmus_transaction *transaction);
void isthmus_transaction_free(struct isthmus_transaction *transaction);

/*
 * An aligned word of 8 bytes, looked up once: for loops that change the same words again and again. Each operation on it is a
 * minitransaction, atomic towards all others of the space. Any number of threads may use it at once. It keeps space and segment
 * open.
 */
struct isthmus_word;

/*
 * Looks up the word at `offset`, a multiple of 8, of a segment of a node. Errors: ISTHMUS_EINVAL if it is out of bounds or
 * misaligned, ISTHMUS_ENOTFOUND for no such segment, ISTHMUS_ENOTREACHABLE.
 */
int isthmus_word_find(const struct isthmus_space *space, uint32_t node, uint32_t segment, uint64_t offset,
		      struct isthmus_word **word);

/*
 * Reads it into `value`. Returns ISTHMUS_COMMITTED, or ISTHMUS_LOCK_FAILED, which leaves `value` unchanged. Errors of this and
 * the next function: ISTHMUS_EINVAL for NULL, ISTHMUS_EFULL when other processes have all slots, ISTHMUS_EREGION.
 */
int isthmus_word_load(const struct isthmus_word *word, uint64_t *value);

/*
 * Writes `value` if the word equals `*old`, and returns ISTHMUS_COMMITTED; else ISTHMUS_COMPARE_FAILED, with the word's value in
 * `*old`; or ISTHMUS_LOCK_FAILED. A thread that reads the value by a minitransaction sees all that this thread did before.
 */
int isthmus_word_exchange(struct isthmus_word *word, uint64_t *old, uint64_t value);

/* Frees it. NULL does nothing. */
void isthmus_word_free(struct isthmus_word *word);

/* ---- IVC: channels ----
 *
 * Byte streams between two processes, like those of connected sockets, through rings in shared memory. All contexts that
 * register with the same magic id form a group, on the host and in all VMs; groups do not see each other. Source: W. Huang, Ph.D.
 * thesis, Ohio State 2008, 6.1.
 *
 * At most one thread may read a channel and one may write to it at a time.
 */
struct isthmus_ivc;
struct isthmus_channel;

/* A member of a group. */
struct isthmus_peer {
	uint64_t client;       /* the id that its program chose; need not be unique */
	char host[64];         /* the name of its VM, or of the host */
	unsigned char address[32]; /* where it is; opaque, valid until the member leaves */
};

/* Sizes and limits; 0 is the default. */
struct isthmus_ivc_options {
	uint64_t ring_bytes;    /* ring that this end of a channel writes: a power of two from 256 to 2^30; default 65536 */
	uint64_t segment_bytes; /* step in which a reader frees room: a power of two from 64 to a quarter of the ring; default 64 */
	uint64_t linger_ns;     /* how long isthmus_ivc_close() waits until what was written is read; default 5 s */
	uint32_t backlog;       /* connections that may wait to be accepted; default 64 */
};

/*
 * Becomes a member of the group `magic`, as `client`. `options` may be NULL. Errors: ISTHMUS_EFULL, ISTHMUS_EINVAL,
 * ISTHMUS_ENOSERVICE.
 */
int isthmus_ivc_register(struct isthmus *here, uint64_t magic, uint64_t client, const struct isthmus_ivc_options *options,
			 struct isthmus_ivc **ivc);

/*
 * Leaves the group, once all its channels are closed; waits until what was written is read, as the options say. If a process
 * ends without this call, bytes that were not read are lost. NULL does nothing.
 */
void isthmus_ivc_close(struct isthmus_ivc *ivc);

/* Writes up to `most` other members to `peers`; returns how many there are. */
int isthmus_ivc_peers(const struct isthmus_ivc *ivc, struct isthmus_peer *peers, size_t most);

/*
 * Connects to a member. Errors: ISTHMUS_ENOTFOUND, ISTHMUS_EREFUSED, ISTHMUS_ESUSPENDED if this context is suspended before there is an
 * answer, ISTHMUS_EPEERDIED if the member dies before it, ISTHMUS_EFAULTY, ISTHMUS_EINVAL for this context itself, ISTHMUS_ETIMEDOUT,
 * ISTHMUS_EFULL.
 */
int isthmus_ivc_connect(const struct isthmus_ivc *ivc, const struct isthmus_peer *peer, uint64_t timeout_ns,
			struct isthmus_channel **channel);

/* Accepts a connection. Errors: ISTHMUS_ETIMEDOUT; ISTHMUS_EBUSY with a time of 0 if none waits; ISTHMUS_EFULL. */
int isthmus_ivc_accept(const struct isthmus_ivc *ivc, uint64_t timeout_ns, struct isthmus_channel **channel);

/*
 * A descriptor that becomes readable when there may be a connection, an event, or what isthmus_channel_watch() asked for. It
 * belongs to the context: poll it, and neither read nor close it. Before each sleep on it, isthmus_ivc_arm() must have returned
 * 1; it returns 0 when there is something already.
 */
int isthmus_ivc_descriptor(const struct isthmus_ivc *ivc);
int isthmus_ivc_arm(const struct isthmus_ivc *ivc);

/* What happens to a group and its channels. */
#define ISTHMUS_JOINED 1    /* a member can be reached that could not be before */
#define ISTHMUS_LEFT 2      /* a member has left or died */
#define ISTHMUS_SUSPENDED 3 /* a channel is no longer available, since an end migrates; with the bytes that were not read */
#define ISTHMUS_GONE 4      /* the context at the other end of a channel is gone; a mere close is read as ISTHMUS_EEND */

struct isthmus_event {
	int kind;
	int in_order; /* of ISTHMUS_LEFT: whether the member is known to have closed its context */
	struct isthmus_peer peer;
	uint64_t channel; /* isthmus_channel_id() of the channel, or 0 */
	const void *unread;
	size_t unread_bytes;
};

/*
 * Calls `each` for each event since the last call, waiting up to `timeout_ns` for one; returns how many there were. The first call
 * tells of what came after isthmus_ivc_register(): isthmus_ivc_peers() lists the members that were there before.
 */
int isthmus_ivc_events(const struct isthmus_ivc *ivc, uint64_t timeout_ns,
		       void (*each)(const struct isthmus_event *event, void *arg), void *arg);

/*
 * Suspends all channels, as before a migration: nothing is written any more, and bytes that were not read come with events, at
 * both ends. Returns how many channels were not suspended in time. isthmus_ivc_resume() allows new ones.
 */
int isthmus_ivc_suspend(const struct isthmus_ivc *ivc, uint64_t timeout_ns);
int isthmus_ivc_resume(const struct isthmus_ivc *ivc);

/*
 * Lends bytes to the other members of the group: a member that has the loan's ticket, which may be written to a channel, copies them by
 * isthmus_ivc_fetch(). In a VM with the guest driver and `isthmus run --grant` that is their only copy, as soon as the same memory is lent
 * again and there is room for its pages; elsewhere they are copied now, too. They must not change, and not be freed, before isthmus_loan_end().
 * 1 byte to 256 MiB. Errors: ISTHMUS_EINVAL, ISTHMUS_EFULL.
 */
struct isthmus_loan;
#define ISTHMUS_TICKET_BYTES 48
int isthmus_ivc_lend(const struct isthmus_ivc *ivc, const void *bytes, size_t len, unsigned char ticket[ISTHMUS_TICKET_BYTES],
		     struct isthmus_loan **loan);

/* How many bytes of a loan are copied once; 0 for NULL. */
uint64_t isthmus_loan_in_place(const struct isthmus_loan *loan);

/* Ends a loan: a member that still fetches from it gets ISTHMUS_ENOTFOUND. Before isthmus_ivc_close(). NULL does nothing. */
void isthmus_loan_end(struct isthmus_loan *loan);

/*
 * Copies `len` bytes of another member's loan, from its byte `at` on, into `into`. Errors, after which `into` holds nothing of use:
 * ISTHMUS_ENOTFOUND if the loan is over, or its lender is no member; ISTHMUS_EPEERDIED; ISTHMUS_EINVAL for bytes that it has not.
 */
int isthmus_ivc_fetch(const struct isthmus_ivc *ivc, const unsigned char ticket[ISTHMUS_TICKET_BYTES], uint64_t at, void *into,
		      size_t len);

/* The member at the other end of a channel. */
int isthmus_channel_peer(const struct isthmus_channel *channel, struct isthmus_peer *peer);

/* The channel's number in events. */
uint64_t isthmus_channel_id(const struct isthmus_channel *channel);

/*
 * Moves as many bytes as possible without waiting; returns how many, 0 if none. Errors of reading: after all bytes that had
 * arrived ISTHMUS_EEND and ISTHMUS_ESUSPENDED; ISTHMUS_EPEERDIED, with which bytes that were not read before the death was known are lost;
 * of writing: ISTHMUS_ECLOSED, ISTHMUS_EPEERDIED; of both
 * ISTHMUS_EFAULTY.
 */
int64_t isthmus_channel_read(struct isthmus_channel *channel, void *into, size_t len);
int64_t isthmus_channel_write(struct isthmus_channel *channel, const void *from, size_t len);

/* The same with up to 1024 pieces, as of readv(2). */
int64_t isthmus_channel_readv(struct isthmus_channel *channel, const struct iovec *pieces, int count);
int64_t isthmus_channel_writev(struct isthmus_channel *channel, const struct iovec *pieces, int count);

/*
 * Moves all of `len` bytes, or fails; waits up to `timeout_ns`. After ISTHMUS_ETIMEDOUT a part may have been moved;
 * isthmus_error() says how many bytes. A program that must go on after that uses isthmus_channel_read() or _write(), which
 * return the number of bytes.
 */
int isthmus_channel_read_all(struct isthmus_channel *channel, void *into, size_t len, uint64_t timeout_ns);
int isthmus_channel_write_all(struct isthmus_channel *channel, const void *from, size_t len, uint64_t timeout_ns);

/*
 * Writing without a copy: room for up to `most` bytes in the ring, as two pieces (the second is empty unless the room wraps
 * around the ring's end); returns how many bytes. isthmus_channel_commit() publishes the first `len` of them.
 */
int64_t isthmus_channel_reserve(struct isthmus_channel *channel, size_t most, struct iovec pieces[2]);
int isthmus_channel_commit(struct isthmus_channel *channel, size_t len);

/*
 * Reading without a copy: up to `most` bytes that have arrived, where they lie in the ring. isthmus_channel_release() frees the
 * first `len` of them for the writer; more than were shown last is ISTHMUS_EINVAL, and frees nothing. The bytes are known to be what
 * the other end wrote only once it has succeeded, and a faulty or hostile writer may change them while they are read.
 */
int64_t isthmus_channel_peek(struct isthmus_channel *channel, size_t most, struct iovec pieces[2]);
int isthmus_channel_release(struct isthmus_channel *channel, size_t len);

/*
 * Makes the context's descriptor readable for bytes to read, and for room to write, on this channel; also once that has ended. The end of
 * reading counts until a call that reads has returned its error.
 */
int isthmus_channel_watch(struct isthmus_channel *channel, int read, int write);

/* Ends writing: the other end reads what was written, and then gets ISTHMUS_EEND. */
int isthmus_channel_shutdown(struct isthmus_channel *channel);

/* Waits until the other end has read everything. */
int isthmus_channel_flush(struct isthmus_channel *channel, uint64_t timeout_ns);

/* Closes both directions; what was written before is still delivered. NULL does nothing. */
void isthmus_channel_close(struct isthmus_channel *channel);

#ifdef __cplusplus
}
#endif

#endif
