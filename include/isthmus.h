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
 * Makes it smaller for all who open it from now on; who has it open keeps seeing what was there. Errors: ISTHMUS_EINVAL for
 * 0 and for more than it has, ISTHMUS_EACCESS, ISTHMUS_ENOSERVICE.
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
 * Who dies holds nobody up. Natively the others learn of it within 100 ms, between VMs within a few seconds.
 */
#define ISTHMUS_FOREVER UINT64_MAX
/* What a lock's functions return where it was taken and an earlier owner died with it: what it protects may be half changed. */
#define ISTHMUS_OWNER_DIED 1

/* How the participants of a barrier wait. */
#define ISTHMUS_SPIN 1   /* looking all the time: for short waits, with a processor for each */
#define ISTHMUS_BLOCK 2  /* asleep */
#define ISTHMUS_HYBRID 3 /* looking as long as that pays, then asleep */

/* A participant of a barrier; for one thread at a time. */
struct isthmus_barrier;

/*
 * Takes one of the `parties` (1 to 4096) seats of the barrier called `name`. Errors: ISTHMUS_EFULL when all are taken by
 * processes that live, ISTHMUS_EEXIST for one with other parameters, ISTHMUS_EINVAL, ISTHMUS_EACCESS, ISTHMUS_ENOSERVICE.
 */
int isthmus_barrier_join(struct isthmus *here, const char *name, uint32_t parties, unsigned waiting, unsigned mode,
			 struct isthmus_barrier **barrier);

/*
 * Arrives, and waits until all have. Returns 1 to one participant of each round and 0 to the others. Errors:
 * ISTHMUS_EBROKEN, for this and all later rounds, when a participant has died or left in the middle of a round;
 * ISTHMUS_ETIMEDOUT, after which the next wait goes on with this round.
 */
int isthmus_barrier_wait(struct isthmus_barrier *barrier, uint64_t timeout_ns);

/* Leaves; between two rounds, or the barrier breaks. NULL is fine. */
void isthmus_barrier_leave(struct isthmus_barrier *barrier);

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

/* A robust reader-writer lock, that may be open `opens` (1 to 4096) times at once. Writers go before readers that come later. */
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
void isthmus_rwlock_close(struct isthmus_rwlock *lock);
int isthmus_rwlock_unlink(struct isthmus *here, const char *name);

/*
 * Calls `make` unless somebody's call for this name has returned 0 before; waits for a process that is at it. If that dies,
 * or its `make` returns something else, the next one is called, after a death with `taken_over`. Returns what `make`
 * returned, or 0 where it was not needed.
 */
int isthmus_once(struct isthmus *here, const char *name, unsigned mode, int (*make)(int taken_over, void *arg), void *arg);
int isthmus_once_unlink(struct isthmus *here, const char *name);

#ifdef __cplusplus
}
#endif

#endif
