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
 * - Names are UTF-8 of 1 to 127 bytes; each kind of object has names of its own. They are the same on the host and in all
 *   of its VMs. Lengths are in bytes.
 * - Objects stay, with their contents, until they are unlinked and nobody has them open, or the region ends.
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
#define ISTHMUS_EINVAL (-1)     /* an argument cannot be */
#define ISTHMUS_ENOSERVICE (-2) /* there is no service to attach to, it does not let us in, or it is gone */
#define ISTHMUS_ENOTFOUND (-3)  /* there is no object of that kind and name */
#define ISTHMUS_EEXIST (-4)     /* there is one already, or one with other parameters */
#define ISTHMUS_EACCESS (-5)    /* the object's mode or owner does not let this user do that */
#define ISTHMUS_EFULL (-6)      /* no memory, no place, or no quota is left */
#define ISTHMUS_EREGION (-7)    /* the region is not what it should be */
#define ISTHMUS_EFAULT (-8)     /* a fault of this library; the object refuses further calls */
#define ISTHMUS_ETIMEDOUT (-9)  /* the time was up */
#define ISTHMUS_EBUSY (-10)     /* it could not be done at once */
#define ISTHMUS_EBROKEN (-11)   /* a participant of the barrier is gone: this round and all later ones cannot end */
#define ISTHMUS_EDEADLOCK (-12) /* this thread owns the lock already and would wait for itself */
#define ISTHMUS_ENOTOWNER (-13) /* this thread does not own the lock */
#define ISTHMUS_ELOST (-14)     /* an owner died, and the next one gave the lock back without having mended what it protects */
#define ISTHMUS_EOWNERDIED (-15) /* a writer died, and no other has mended yet what the lock protects; not taken */
#define ISTHMUS_EOVERFLOW (-16) /* the semaphore would go beyond its largest value */
#define ISTHMUS_EREFUSED (-17)  /* the peer accepts no connections, or too many wait there */
#define ISTHMUS_EEND (-18)      /* end of the stream: the other side closed, and everything was read */
#define ISTHMUS_ECLOSED (-19)   /* the channel is closed in this direction */
#define ISTHMUS_EPEERDIED (-20) /* the other side is gone without having closed; what had arrived was read */
#define ISTHMUS_EFAULTY (-21)   /* the other side broke the protocol; the channel is dead */
#define ISTHMUS_ESUSPENDED (-22) /* the channel is suspended: connect anew once the peer can be reached again */
#define ISTHMUS_ENOTREACHABLE (-23) /* the memory node is of a host that this process does not reach */

/* What an error number means, in a few words; never NULL. */
const char *isthmus_strerror(int error);

/* What was wrong in the last call of this thread that failed, with names and values; "" if none did. Good until the next. */
const char *isthmus_error(void);

/* ---- attachment ---- */

/* A process's place in a region. */
struct isthmus;

/*
 * Attaches this process to the service at `socket`, or where all look for it if that is NULL: at ISTHMUS_SOCKET, else
 * /run/isthmus/socket, else $XDG_RUNTIME_DIR/isthmus/socket. Errors: ISTHMUS_ENOSERVICE, ISTHMUS_EREGION.
 */
int isthmus_attach(const char *socket, struct isthmus **here);

/* Ends it. What was opened by it stays usable until it is closed. NULL is fine. */
void isthmus_detach(struct isthmus *here);

/* The member that this process belongs to: its number, 0 for the host. */
uint32_t isthmus_member(const struct isthmus *here);

/* Writes the host name of member `index` into `name`, cut to `bytes` with its zero. Errors: ISTHMUS_ENOTFOUND. */
int isthmus_member_name(const struct isthmus *here, uint32_t index, char *name, size_t bytes);

/* ---- named segments ---- */

/* Bytes that all who open the same name see. */
struct isthmus_segment;

/* How to open. Without the first two, a segment must be there. */
#define ISTHMUS_CREATE 1    /* make it, all zeros, if there is none */
#define ISTHMUS_EXCLUSIVE 2 /* with ISTHMUS_CREATE: there must be none */
#define ISTHMUS_READ 4      /* to read only: writing to its data is a mistake, which nothing but its mode guards against */
#define ISTHMUS_TRANSIENT 8 /* with ISTHMUS_CREATE: its name goes with the process that makes it, however that ends */

/*
 * Opens the segment called `name`. `mode` (as of a file, 0600 for instance) and `len` are those of one that is made here; one
 * that is there keeps its own. Errors: ISTHMUS_ENOTFOUND, ISTHMUS_EEXIST, ISTHMUS_EACCESS, ISTHMUS_EFULL,
 * ISTHMUS_EINVAL, ISTHMUS_ENOSERVICE.
 */
int isthmus_segment_open(struct isthmus *here, const char *name, unsigned flags, unsigned mode, size_t len,
			 struct isthmus_segment **segment);

/* Its bytes, at a multiple of 4096; good until isthmus_segment_close(). Elsewhere they have other addresses. */
void *isthmus_segment_data(const struct isthmus_segment *segment);

/* How many bytes there were when it was opened. */
size_t isthmus_segment_len(const struct isthmus_segment *segment);

/*
 * Makes it smaller for all who open it from now on; who has it open keeps seeing what was there. A minitransaction that a
 * process died in may be completed by somebody who opened it later, and then only in what is left. Errors: ISTHMUS_EINVAL
 * for 0 and for more than it has, ISTHMUS_EACCESS, ISTHMUS_ENOSERVICE.
 */
int isthmus_segment_shrink(struct isthmus_segment *segment, size_t len);

/* Closes it. NULL is fine. */
void isthmus_segment_close(struct isthmus_segment *segment);

/* Takes a name away. The memory goes when nobody has it open. Errors: ISTHMUS_ENOTFOUND, ISTHMUS_EACCESS, ISTHMUS_ENOSERVICE. */
int isthmus_segment_unlink(struct isthmus *here, const char *name);

/* One segment, as the list has it. */
struct isthmus_segment_info {
	const char *name; /* good during the call */
	size_t len;
	unsigned mode;
	uint32_t uid, gid; /* owner and group */
	uint64_t opens;    /* processes that have it open */
	int unlinked;      /* whether its name is gone */
};

/* Calls `each` with every segment until it returns something else than 0, which is returned then. */
int isthmus_segment_list(struct isthmus *here, int (*each)(const struct isthmus_segment_info *info, void *arg), void *arg);

/* ---- synchronisation ----
 *
 * Between threads of any processes, on the host and in all VMs. What a thread did before it arrived, unlocked, posted or
 * notified is seen by those whom that lets go on. All who use an object open it with the same parameters; the first makes
 * it, with `mode`. Times are in nanoseconds: 0 does not wait, ISTHMUS_FOREVER has no limit.
 *
 * Who dies holds nobody up. The others learn of it within 5 s of its end, natively and between VMs; 19 of 20 within 100 ms
 * natively, and within 1 s between VMs. isthmus_barrier(3) says what that takes of the machine.
 */
#define ISTHMUS_FOREVER UINT64_MAX
/* What a lock's functions return where it was taken and an earlier owner died with it: what it protects may be half changed. */
#define ISTHMUS_OWNER_DIED 1

/* How the participants of a barrier wait. */
#define ISTHMUS_SPIN 1   /* looking, and offering the processor to others: for short waits, with a processor for each */
#define ISTHMUS_BLOCK 2  /* asleep */
#define ISTHMUS_HYBRID 3 /* looking as long as that pays, then asleep */

/* A participant of a barrier; for one thread at a time. */
struct isthmus_barrier;

/*
 * Takes one of the `parties` (1 to 4096) seats of the barrier called `name`. Errors: ISTHMUS_EFULL when all are taken by
 * processes that live, ISTHMUS_EBROKEN, ISTHMUS_EEXIST for one with other parameters, ISTHMUS_EINVAL, ISTHMUS_EACCESS,
 * ISTHMUS_ENOSERVICE; ISTHMUS_EBUSY if a process that resets it stands still, or is busy, for a second.
 */
int isthmus_barrier_join(struct isthmus *here, const char *name, uint32_t parties, unsigned waiting, unsigned mode,
			 struct isthmus_barrier **barrier);

/*
 * Arrives, and waits until all have. Returns 1 to one participant of each round and 0 to the others. Errors:
 * ISTHMUS_EBROKEN, for this and all later rounds, when a participant has died before it arrived, or has left in the middle of
 * the round; who dies after it arrived does no harm to this round, only to the next. ISTHMUS_ETIMEDOUT, which is no harm either:
 * the caller has arrived, the others get through without its doing anything more, and its next wait goes on with this round.
 */
int isthmus_barrier_wait(struct isthmus_barrier *barrier, uint64_t timeout_ns);

/*
 * Leaves. Between two rounds somebody else may take the seat, who is waited for; in the middle of one, after a time-out, the
 * barrier breaks, for those at least that still have to wait. NULL is fine.
 */
void isthmus_barrier_leave(struct isthmus_barrier *barrier);

/*
 * Makes a broken barrier new, with all seats empty, and does nothing to one that is not broken. Any process may, several at
 * once, too. The parameters are those of isthmus_barrier_join(), and as there the barrier is made if there is none. Errors:
 * ISTHMUS_EBUSY as long as a process has a seat that lives, or whose death is not known yet: try again; ISTHMUS_EEXIST,
 * ISTHMUS_EINVAL, ISTHMUS_EACCESS, ISTHMUS_ENOSERVICE.
 */
int isthmus_barrier_reset(struct isthmus *here, const char *name, uint32_t parties, unsigned waiting, unsigned mode);

/* Takes the name away. Errors as of isthmus_segment_unlink(). */
int isthmus_barrier_unlink(struct isthmus *here, const char *name);

/* A robust mutex: when its owner dies, the next one has it and is told. Owned by threads. */
struct isthmus_mutex;
int isthmus_mutex_open(struct isthmus *here, const char *name, unsigned mode, struct isthmus_mutex **mutex);

/*
 * Takes it. Returns 0, or ISTHMUS_OWNER_DIED: then mend what it protects, and say so by isthmus_mutex_mend(), or it is lost
 * for all when you unlock it. Errors: ISTHMUS_ELOST, ISTHMUS_EDEADLOCK, ISTHMUS_ETIMEDOUT, ISTHMUS_EBUSY with a time of 0.
 */
int isthmus_mutex_lock(struct isthmus_mutex *mutex, uint64_t timeout_ns);

/* Says that what it protects is sound again. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_mutex_mend(struct isthmus_mutex *mutex);

/* Gives it back. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_mutex_unlock(struct isthmus_mutex *mutex);

/* Closes it; it must not be locked by this process. NULL is fine. */
void isthmus_mutex_close(struct isthmus_mutex *mutex);
int isthmus_mutex_unlink(struct isthmus *here, const char *name);

/* A condition variable. All who wait at one use the same mutex. */
struct isthmus_condition;
int isthmus_condition_open(struct isthmus *here, const char *name, unsigned mode, struct isthmus_condition **condition);

/*
 * Unlocks `mutex`, sleeps until a notification or the time is up, and locks it again, however long that takes. May return for
 * no reason, so look again at what you wait for. Returns 0 or ISTHMUS_OWNER_DIED. Errors: ISTHMUS_ETIMEDOUT, with the
 * mutex locked; those of isthmus_mutex_lock() and ISTHMUS_ENOTOWNER, without.
 */
int isthmus_condition_wait(struct isthmus_condition *condition, struct isthmus_mutex *mutex, uint64_t timeout_ns);

/* Ends the wait of one thread, or of all. */
int isthmus_condition_notify(struct isthmus_condition *condition, int all);
void isthmus_condition_close(struct isthmus_condition *condition);
int isthmus_condition_unlink(struct isthmus *here, const char *name);

/* A counting semaphore, from 0 to 2147483647. Nobody owns what was taken from it: who dies gives nothing back. */
struct isthmus_semaphore;
int isthmus_semaphore_open(struct isthmus *here, const char *name, uint32_t initial, unsigned mode,
			   struct isthmus_semaphore **semaphore);

/* Takes one, waiting for it. Errors: ISTHMUS_ETIMEDOUT, ISTHMUS_EBUSY with a time of 0. */
int isthmus_semaphore_wait(struct isthmus_semaphore *semaphore, uint64_t timeout_ns);

/* Adds one. Errors: ISTHMUS_EOVERFLOW. */
int isthmus_semaphore_post(struct isthmus_semaphore *semaphore);

/* The value now. */
int isthmus_semaphore_value(const struct isthmus_semaphore *semaphore, uint32_t *value);
void isthmus_semaphore_close(struct isthmus_semaphore *semaphore);
int isthmus_semaphore_unlink(struct isthmus *here, const char *name);

/*
 * A robust reader-writer lock, that may be open `opens` (1 to 4096) times at once. Writers go before readers that come later.
 * Opening fails with ISTHMUS_EFULL when it is open so often, and with ISTHMUS_ETIMEDOUT when a process that lives has been
 * opening or closing it for ten seconds: it was stopped, or the lock was overwritten.
 */
struct isthmus_rwlock;
int isthmus_rwlock_open(struct isthmus *here, const char *name, uint32_t opens, unsigned mode, struct isthmus_rwlock **lock);

/* Takes it for reading. Errors: ISTHMUS_EOWNERDIED, ISTHMUS_ELOST, ISTHMUS_EDEADLOCK, ISTHMUS_ETIMEDOUT, ISTHMUS_EBUSY. */
int isthmus_rwlock_read(struct isthmus_rwlock *lock, uint64_t timeout_ns);

/* Takes it for writing. Returns 0 or ISTHMUS_OWNER_DIED, as a mutex does; errors too. */
int isthmus_rwlock_write(struct isthmus_rwlock *lock, uint64_t timeout_ns);

/* Says that what it protects is sound again, for the thread that writes. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_rwlock_mend(struct isthmus_rwlock *lock);

/* Gives it back, for reading or writing. Errors: ISTHMUS_ENOTOWNER. */
int isthmus_rwlock_unlock(struct isthmus_rwlock *lock);

/* Closes it; nobody may have it by this handle. NULL is fine. */
void isthmus_rwlock_close(struct isthmus_rwlock *lock);
int isthmus_rwlock_unlink(struct isthmus *here, const char *name);

/*
 * Calls `make` unless somebody's call for this name has returned 0 before; waits for a process that is at it. If that dies,
 * or its `make` returns something else, the next one is called, after a death with `taken_over`. Returns what `make`
 * returned, or 0 where it was not needed. A `make` that calls it for the same name waits for ever.
 */
int isthmus_once(struct isthmus *here, const char *name, unsigned mode, int (*make)(int taken_over, void *arg), void *arg);
int isthmus_once_unlink(struct isthmus *here, const char *name);

/* ---- minitransactions ----
 *
 * Reads, compares and writes of bytes in named segments, any mix of them, all at once or not at all, whoever is killed. They
 * hold against each other, not against other accesses to the same bytes. Source: X. Ke, M.Sc. thesis, Alberta 2011, 3.1.
 */
struct isthmus_space;
struct isthmus_transaction;

/* How many can commit at once, and how much; 0 is the usual. All who open a space ask for the same. */
struct isthmus_space_shape {
	uint32_t slots;     /* threads that commit at the same time, in all processes: up to 512; 64 */
	uint32_t locks;     /* a power of two up to 2^20; 2048. Each guards some lines of 64 bytes */
	uint32_t log_bytes; /* what a commit may take: 8, 8 for each line touched, 24 and its bytes for each write; 4096 */
};

/* Opens the space called `name`, or makes it. `shape` may be NULL. Errors: ISTHMUS_EEXIST for one of another shape, and more. */
int isthmus_space_open(struct isthmus *here, const char *name, unsigned mode, const struct isthmus_space_shape *shape,
		       struct isthmus_space **space);

/* Puts a segment in and keeps it open; gives the number that items name it by, which is the same for all processes. */
int isthmus_space_add(const struct isthmus_space *space, const struct isthmus_segment *segment, uint32_t *id);
void isthmus_space_close(struct isthmus_space *space);
int isthmus_space_unlink(struct isthmus *here, const char *name);

/* The memory node of this host's segments. Others get ISTHMUS_ENOTREACHABLE. */
#define ISTHMUS_NODE_LOCAL 0

/* An empty minitransaction. It is for one thread at a time, and can be committed and filled again any number of times. */
int isthmus_transaction_new(const struct isthmus_space *space, struct isthmus_transaction **transaction);

/* Takes all items out. */
int isthmus_transaction_clear(struct isthmus_transaction *transaction);

/*
 * Items: bytes from `offset` of segment `segment` of a node. What is read is written to `into` by each commit that reads; reads
 * and compares see what was there before, writes are made in their order. Bytes to compare and to write are copied now.
 */
int isthmus_transaction_read(struct isthmus_transaction *transaction, uint32_t node, uint32_t segment, uint64_t offset,
			     void *into, size_t len);
int isthmus_transaction_compare(struct isthmus_transaction *transaction, uint32_t node, uint32_t segment, uint64_t offset,
				const void *bytes, size_t len);
int isthmus_transaction_write(struct isthmus_transaction *transaction, uint32_t node, uint32_t segment, uint64_t offset,
			      const void *bytes, size_t len);

#define ISTHMUS_COMMITTED 0      /* all compares were equal, all is read and written */
#define ISTHMUS_COMPARE_FAILED 1 /* a compare was not equal: all is read, nothing is written */
#define ISTHMUS_LOCK_FAILED 2    /* others were in the way for long: nothing is read or written; try again */

/*
 * Commits: returns one of these. Items that all lie in one aligned word of 8 bytes take a single compare-and-swap. Errors:
 * ISTHMUS_EINVAL for what is out of bounds or larger than the log, ISTHMUS_ENOTFOUND for no such segment,
 * ISTHMUS_ENOTREACHABLE, ISTHMUS_EFULL when all slots are taken.
 */
int isthmus_transaction_commit(struct isthmus_transaction *transaction);
void isthmus_transaction_free(struct isthmus_transaction *transaction);

/*
 * An aligned word of 8 bytes, found once: for loops that change the same words again and again. What is done with it is a
 * minitransaction of its own, and holds against all others of the space. For any number of threads at once. It keeps space and
 * segment open.
 */
struct isthmus_word;

/*
 * Finds the word at `offset`, a multiple of 8, of a segment of a node. Errors: ISTHMUS_EINVAL for what is out of bounds or not
 * aligned, ISTHMUS_ENOTFOUND for no such segment, ISTHMUS_ENOTREACHABLE.
 */
int isthmus_word_find(const struct isthmus_space *space, uint32_t node, uint32_t segment, uint64_t offset,
		      struct isthmus_word **word);

/*
 * Reads it into `value`. Returns ISTHMUS_COMMITTED or ISTHMUS_LOCK_FAILED, which leaves `value` alone. Errors of both:
 * ISTHMUS_EINVAL for NULL, ISTHMUS_EFULL when all slots are taken, ISTHMUS_EREGION.
 */
int isthmus_word_load(const struct isthmus_word *word, uint64_t *value);

/*
 * Writes `value` if `*old` is there: returns ISTHMUS_COMMITTED; ISTHMUS_COMPARE_FAILED, with what is there in `*old`; or
 * ISTHMUS_LOCK_FAILED. Who sees the value by a minitransaction sees all that this thread did before.
 */
int isthmus_word_exchange(struct isthmus_word *word, uint64_t *old, uint64_t value);

/* Frees it. NULL is fine. */
void isthmus_word_free(struct isthmus_word *word);

/* ---- IVC: channels ----
 *
 * Byte streams between two processes, as of connected sockets, through rings in shared memory. All contexts that register
 * with the same magic id form a group, on the host and in all VMs; groups do not see each other. Source: W. Huang, Ph.D.
 * thesis, Ohio State 2008, 6.1.
 *
 * A channel is for one reader and one writer at a time.
 */
struct isthmus_ivc;
struct isthmus_channel;

/* A member of a group. */
struct isthmus_peer {
	uint64_t client;       /* the id that its program chose; nothing keeps two from choosing the same */
	char host[64];         /* the name of its VM, or of the host */
	unsigned char address[16]; /* where it is; opaque, good for this life of it */
};

/* Sizes and limits; 0 is the usual. */
struct isthmus_ivc_options {
	uint64_t ring_bytes;    /* of each channel's ring that is written here: a power of two from 256 to 2^30; 65536 */
	uint64_t segment_bytes; /* step in which a reader gives room back: a power of two from 64 to a quarter of the ring; 64 */
	uint64_t linger_ns;     /* how long isthmus_ivc_close() waits until what was written is read; 5 s */
	uint32_t backlog;       /* connections that may wait to be accepted; 64 */
};

/*
 * Becomes a member of the group `magic`, as `client`. `options` may be NULL. Errors: ISTHMUS_EFULL, ISTHMUS_EINVAL,
 * ISTHMUS_ENOSERVICE.
 */
int isthmus_ivc_register(struct isthmus *here, uint64_t magic, uint64_t client, const struct isthmus_ivc_options *options,
			 struct isthmus_ivc **ivc);

/*
 * Leaves the group, once all its channels are closed; waits until what was written is read, as the options say. A process that
 * ends without it takes unread bytes with it. NULL is fine.
 */
void isthmus_ivc_close(struct isthmus_ivc *ivc);

/* Writes up to `most` other members to `peers`; returns how many there are. */
int isthmus_ivc_peers(const struct isthmus_ivc *ivc, struct isthmus_peer *peers, size_t most);

/* Connects to a member. Errors: ISTHMUS_ENOTFOUND, ISTHMUS_EREFUSED, ISTHMUS_ETIMEDOUT, ISTHMUS_EFULL. */
int isthmus_ivc_connect(const struct isthmus_ivc *ivc, const struct isthmus_peer *peer, uint64_t timeout_ns,
			struct isthmus_channel **channel);

/* Accepts a connection. Errors: ISTHMUS_ETIMEDOUT; ISTHMUS_EBUSY with a time of 0 and none there. */
int isthmus_ivc_accept(const struct isthmus_ivc *ivc, uint64_t timeout_ns, struct isthmus_channel **channel);

/*
 * A descriptor that becomes readable when a connection, an event, or what isthmus_channel_watch() asked for may be there. It
 * is the context's: poll it, and neither read nor close it. Before each sleep on it, isthmus_ivc_arm() must have returned 1;
 * 0: something is there already.
 */
int isthmus_ivc_descriptor(const struct isthmus_ivc *ivc);
int isthmus_ivc_arm(const struct isthmus_ivc *ivc);

/* What happens to a group and its channels. */
#define ISTHMUS_JOINED 1    /* a member can be reached that could not before */
#define ISTHMUS_LEFT 2      /* a member has left or died */
#define ISTHMUS_SUSPENDED 3 /* a channel is no longer available, since a side migrates; with what was not read */
#define ISTHMUS_GONE 4      /* a channel's other side is gone */

struct isthmus_event {
	int kind;
	int in_order; /* of ISTHMUS_LEFT: whether it is known to have left in good order */
	struct isthmus_peer peer;
	uint64_t channel; /* isthmus_channel_id() of the channel, or 0 */
	const void *unread;
	size_t unread_bytes;
};

/*
 * Calls `each` with what has happened since the last call, waiting for something up to `timeout_ns`; returns how much that
 * was. The first call tells of all members there are.
 */
int isthmus_ivc_events(const struct isthmus_ivc *ivc, uint64_t timeout_ns,
		       void (*each)(const struct isthmus_event *event, void *arg), void *arg);

/*
 * Suspends all channels, as before a migration: nothing is written any more, and what was not read comes in events, on both
 * sides. Returns how many channels did not follow in time. isthmus_ivc_resume() allows new ones.
 */
int isthmus_ivc_suspend(const struct isthmus_ivc *ivc, uint64_t timeout_ns);
int isthmus_ivc_resume(const struct isthmus_ivc *ivc);

/* The other side of a channel. */
int isthmus_channel_peer(const struct isthmus_channel *channel, struct isthmus_peer *peer);

/* The channel's number in events. */
uint64_t isthmus_channel_id(const struct isthmus_channel *channel);

/*
 * Moves as many bytes as can be without waiting; returns how many, 0 if none can be now. Errors of reading, after all bytes
 * that came: ISTHMUS_EEND, ISTHMUS_EPEERDIED, ISTHMUS_ESUSPENDED; of writing: ISTHMUS_ECLOSED, ISTHMUS_EPEERDIED; of both
 * ISTHMUS_EFAULTY.
 */
int64_t isthmus_channel_read(struct isthmus_channel *channel, void *into, size_t len);
int64_t isthmus_channel_write(struct isthmus_channel *channel, const void *from, size_t len);

/* The same with up to 1024 pieces, as of readv(2). */
int64_t isthmus_channel_readv(struct isthmus_channel *channel, const struct iovec *pieces, int count);
int64_t isthmus_channel_writev(struct isthmus_channel *channel, const struct iovec *pieces, int count);

/*
 * Moves all of `len` bytes, or fails: waiting up to `timeout_ns`, at last asleep. After ISTHMUS_ETIMEDOUT a part may have been
 * moved; isthmus_error() says how many bytes. Who wants to go on then uses isthmus_channel_read() or _write(), which count.
 */
int isthmus_channel_read_all(struct isthmus_channel *channel, void *into, size_t len, uint64_t timeout_ns);
int isthmus_channel_write_all(struct isthmus_channel *channel, const void *from, size_t len, uint64_t timeout_ns);

/*
 * Writing without a copy: room for up to `most` bytes in the ring, as two pieces (the second one is empty unless the ring's
 * end lies between them); returns how many. isthmus_channel_commit() publishes the first `len` of them.
 */
int64_t isthmus_channel_reserve(struct isthmus_channel *channel, size_t most, struct iovec pieces[2]);
int isthmus_channel_commit(struct isthmus_channel *channel, size_t len);

/*
 * Reading without a copy: up to `most` bytes that have come, where they are. isthmus_channel_release() gives the first `len`
 * back to the writer; only when it succeeds were they the other side's, which may change them while they are looked at.
 */
int64_t isthmus_channel_peek(struct isthmus_channel *channel, size_t most, struct iovec pieces[2]);
int isthmus_channel_release(struct isthmus_channel *channel, size_t len);

/* Has the context's descriptor tell of bytes to read, and of room to write, on this channel. */
int isthmus_channel_watch(struct isthmus_channel *channel, int read, int write);

/* Shuts the own direction down: the other side reads what was written, and then ISTHMUS_EEND. */
int isthmus_channel_shutdown(struct isthmus_channel *channel);

/* Waits until the other side has read everything. */
int isthmus_channel_flush(struct isthmus_channel *channel, uint64_t timeout_ns);

/* Closes both directions; what was written before is still delivered. NULL is fine. */
void isthmus_channel_close(struct isthmus_channel *channel);

#ifdef __cplusplus
}
#endif

#endif
