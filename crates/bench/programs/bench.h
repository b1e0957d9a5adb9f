/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared parts of the MPI benchmark: a plan of blocks, run again and again by the ranks of one job, so that what is
 * compared was measured in the same processes at nearly the same time.
 *
 * Rank 0 prints one JSON object a line on standard output, each beginning with {"isthmus_bench":1, ; the Rust side
 * (crates/bench/src/program.rs) reads them and ignores every other line.
 */
#ifndef ISTHMUS_BENCH_H
#define ISTHMUS_BENCH_H

#include <stddef.h>
#include <stdint.h>

/* BARRIER and ALLREDUCE take any number of ranks, the others two. */
enum kind { LATENCY, PINGPONG, WINDOW, RATE, POSTED, UNEXPECTED, BARRIER, ALLREDUCE, POOL, BOTH, ONCE, OVERHEAD, BARE, PUT, GET,
            IS, FT, MG, LU, KINDS };

struct block {
    enum kind kind;
    size_t bytes;
    int depth;        /* messages in flight: WINDOW and RATE; what waits beside: POSTED and UNEXPECTED; buffers in turn: POOL, BOTH, OVERHEAD and BARE */
    int touched;      /* PINGPONG and WINDOW: each message is written before it is sent and read after it was received */
    uint64_t rounds;  /* per batch; 0 until calibrated */
};

/* What one repetition of a block gave. Times in seconds, counters over all its batches. */
struct sample {
    double value, min, max;   /* of the batches, in the block's metric; value is the median */
    uint64_t operations;      /* messages, or loops of a collective or a kernel */
    uint64_t messages;        /* one-way messages of the block's size; of a collective the fewest that it can be made of */
    double cpu_seconds;       /* all ranks, user and system */
    uint64_t payload_bytes;   /* all directions */
    uint64_t net_bytes;       /* received and sent by rank 0's host on interfaces other than loopback */
    uint64_t loopback_bytes;  /* received by rank 0's host on loopback */
    uint64_t cma_bytes;       /* moved by process_vm_readv and process_vm_writev, all ranks */
    int region_counted;       /* whether all ranks have a region whose counters can be read; if so: */
    uint64_t region_bytes, region_messages; /* sent by one rank and received by another through it */
    uint64_t page_bytes;      /* of region_bytes, those that their receivers copied from pages that the senders granted */
    uint64_t resident_bytes;    /* those that they copied from where the senders have them in the region */
    double large_messages, large_bytes; /* of a kernel: which share of its messages, and of their bytes, is in such of more than 64 KiB */
    double sent_MBps;         /* of a kernel: what both ranks send, in a second */
    uint64_t direct_bytes;    /* of region_bytes, those that a rank read or changed in the other's memory, without a message */
};

/* blocks.c */
#define TAG 7
const char *block_name(const struct block *b);
const char *block_metric(const struct block *b);
void block_run(struct block *b, double budget_seconds, struct sample *out);

/* touch.c: a word of each cache line of a message is written, or read and checked, for the number that the message has */
void touch(char *message, size_t bytes, uint64_t number);
void check_touch(const char *message, size_t bytes, uint64_t number);

/* line.c: half a round of one bare cache line between the two ranks, in microseconds; negative where they share none */
void line_open(int one_host);
double line_us(void);
int line_is_open(void);
void line_turn(int begins);
/* Zeroed memory that this rank alone writes and the other one reads, and that of the other one; for good. 0 where there is none. */
int share(size_t bytes, char *both[2]);

/* waiting.c: receives that stay posted, or messages that nobody receives, while a ping-pong goes on beside them */
void waiting_begin(enum kind kind, int count);
void waiting_end(void);

/* collective.c */
double collective_batch(const struct block *b, uint64_t rounds);
uint64_t collective_messages(void);

/* pool.c: long messages from buffers that come back, or never do */
void pool_open(const struct block *b);
double pool_batch(const struct block *b, uint64_t rounds);
uint64_t pool_messages(const struct block *b);
double pool_overhead(void); /* on rank 0: seconds in the MPI's calls, both ranks, in the last batch of OVERHEAD */
void pool_close(void);

/* window.c: one-sided operations */
void window_open(const struct block *b);
double window_batch(const struct block *b, uint64_t rounds);
void window_close(void);

/* kernels.c: as NAS Parallel Benchmarks communicate; `bytes` of a block are those of one rank's keys or cells */
struct kernel_sent {
    uint64_t messages, bytes, large_messages, large_bytes;
};
void kernel_open(const struct block *b);
double kernel_batch(const struct block *b, uint64_t rounds);
void kernel_count(void);
void kernel_counted(struct kernel_sent *in_loops, struct kernel_sent *in_all, double *cpu);
void kernel_close(const struct block *b);

/* neighbours.c */
int neighbours_main(const char *plan, const char *directory);

/* counters.c */
enum counter { NET, LOOPBACK, CMA, REGION_READ, REGION_TX_MESSAGES, REGION_TX_BYTES, REGION_RX_MESSAGES, REGION_RX_BYTES,
               REGION_RMA, REGION_RMA_BYTES, REGION_DIRECT_BYTES, REGION_PAGE_BYTES, REGION_RESIDENT_BYTES, COUNTERS };
void counters_now(uint64_t now[COUNTERS]);
double cpu_seconds(void);

/* provider.c: a function of the provider of isthmus, by name; NULL where this process has not loaded it */
void *provider_function(const char *name);

/* main.c */
extern int my_rank, ranks, thread_multiple;
double now_seconds(void);
double median(double *values, int count); /* sorts them */
void die(const char *what) __attribute__((noreturn));

#endif
