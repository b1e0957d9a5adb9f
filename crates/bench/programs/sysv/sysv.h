/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The two processes of `bench sysv`, and the blocks that they run; see main.c. */
#ifndef SYSV_H
#define SYSV_H

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RUNS 7 /* of a block, of which the median counts */
#define BATCH 8 /* rounds that the clock is read once for: its reading would show in a single one */
#define PATIENCE_S 120 /* of a block: a process that waits for one that is gone ends */
#define MOST_BYTES 65536
#define OURS (1 << 30) /* a bit of each id of isthmus; a kernel has it only after very many objects */

/* What both have in the segment. */
struct shared {
    struct {
        _Alignas(4096) _Atomic uint64_t line; /* far enough apart that no prefetcher takes them for one */
        _Alignas(2048) _Atomic uint64_t arrivals;
        double values[8];
    } of[2];
    _Atomic uint32_t members, failed;
    _Atomic uint64_t received, answered; /* messages of the stream, and packets, in all runs */
    char host[2][256];
    uint16_t port[2];
    _Alignas(4096) char buffer[MOST_BYTES];
};

/* pair.c: the two of them, the first of which is process 0, and the objects that are removed when a signal ends it. */
extern struct shared *shared;
extern int me, shmid, semid, msqid, sample_id;
/* Whether the segment that both share, and so all else, is the kernel's: as its own table says. */
extern int has_kernels;

void handle_signals(void);
_Noreturn void die(const char *what);
double now_seconds(void);
double median(double *values, size_t count);
/* Waits for the other one, asleep: it may be at work alone. */
void meet(void);
/* Gives the other one's numbers for the own. */
void exchange(const double *mine, double *theirs, size_t count);
/* Half a round of a bare line in microseconds, with or without the processor's hint, whatever is shorter. */
double line_us(void);

/* Each makes so many rounds, and gives the seconds that they took in the first process. */
struct block {
    const char *name, *benchmark, *subject, *metric;
    const char *needs; /* the objects that prove which IPC it was */
    char *copied; /* the memory that is copied in: two parts */
    size_t bytes;
    double work_us, ops_per_round, budget_s;
    double (*run)(const struct block *, uint64_t rounds);
    int is_turn; /* there are a deviation and sleeps */
    int is_rate; /* the figure is operations per microsecond, or megabytes a second */
};

/* main.c: adds a batch of turns that began at `start` to the deviation, and gives the time. */
double add_batch(double start, double turns, double beyond_us);

/* ipc.c */
extern uint64_t segments_made, segments_ours;
/* OURS where the kernel's own segments have that bit, too, as the one that was looked up in its table has. */
extern int kernels_bit;
double run_sync(const struct block *b, uint64_t rounds);
double run_semop(const struct block *b, uint64_t rounds);
double run_stream(const struct block *b, uint64_t rounds);
double run_segment(const struct block *b, uint64_t rounds);
double run_copy(const struct block *b, uint64_t rounds);
/* Makes the memory that is copied in, and gives it back. */
void open_copy(struct block *b);
void close_copy(const struct block *b);

/* sockets.c */
void open_socket(const struct block *b, int has_net);
double run_socket(const struct block *b, uint64_t rounds);
/* Segments or datagrams that this kernel has sent and received, if it is about these. */
double seen_by(const struct block *b);

#endif
