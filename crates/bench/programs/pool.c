/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Long messages from buffers that come back, or that do not: what a way that prepares a buffer to be read in place pays off
 * with. Each message is written before it is sent and read after it was received, all of it inside of the measured time.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_BUFFERS 256

/* One buffer for each message that is under way or comes in turn; each is the allocator's own, as a program's are. */
static char *buffers[2 * MOST_BUFFERS];
static int buffer_count;

/* What both have. */
static char *shared[2];
static size_t shared_bytes;

static void *touched(size_t bytes)
{
    char *buffer = malloc(bytes);

    if (!buffer)
        die("no memory for the message buffers");
    /* Pages are there before anything is timed; a compiler makes calloc(3) of a memset(3) here, which has none. */
    memset(buffer, 1, bytes);
    return buffer;
}

/*
 * What a rank works while a message is under way: pieces of arithmetic, of as many turns each, in registers alone, so that nothing that
 * a message does to a cache makes them longer.
 */
static uint64_t piece;
static volatile uint64_t worked;
/* In the MPI's calls. */
static double in_calls;

static void work(uint64_t turns)
{
    uint64_t x = worked;

    for (uint64_t i = 0; i < turns; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    worked = x;
}

static double time_of(uint64_t turns)
{
    double start = now_seconds();

    work(turns);
    return now_seconds() - start;
}

/* As long as this takes with nothing else to do. */
static uint64_t turns_in(double seconds)
{
    uint64_t turns = 1000;
    double took = 0;

    while (took < 1e-3) {
        turns *= 2;
        took = time_of(turns);
    }
    /* The processor may have been another program's meanwhile. */
    for (int i = 0; i < 2; i++) {
        double again = time_of(turns);

        took = again < took ? again : took;
    }
    turns = (uint64_t)((double)turns * seconds / took);
    return turns > 0 ? turns : 1;
}

static void one_way(const struct block *b, uint64_t rounds);
static void one_way_at_work(const struct block *b, uint64_t rounds);

/* A piece is a quarter of what a message takes where both ranks wait for it. */
#define PIECES 4
#define TRIALS 16
/* Messages before those that are measured: what chooses a way for them may have to find out that both work. */
#define SETTLED 64

static void work_open(const struct block *b)
{
    const uint64_t rounds = TRIALS / (uint64_t)b->depth + 1;
    double took = 0;

    for (int warm = 1; warm >= 0; warm--) {
        MPI_Barrier(MPI_COMM_WORLD);
        took = now_seconds();
        one_way(b, rounds);
        MPI_Barrier(MPI_COMM_WORLD);
        took = now_seconds() - took;
    }
    took /= (double)rounds * b->depth;
    MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    piece = turns_in(took / PIECES);
    MPI_Barrier(MPI_COMM_WORLD);
    one_way_at_work(b, SETTLED / (uint64_t)b->depth + 1);
}

void pool_open(const struct block *b)
{
    int sides = b->kind == BOTH ? 2 : 1;

    if (b->depth > MOST_BUFFERS)
        die("a pool has 256 buffers at most");
    buffer_count = b->depth * sides;
    if (b->kind == ONCE || b->kind == BARE)
        buffer_count *= my_rank; /* what is sent lies elsewhere */
    if (b->kind == BARE && b->bytes * (size_t)b->depth > shared_bytes) {
        shared_bytes = b->bytes * (size_t)b->depth;
        if (!line_is_open() || !share(shared_bytes, shared))
            die("no memory that both ranks have");
    }
    for (int i = 0; i < buffer_count; i++)
        buffers[i] = touched(b->bytes);
    if (b->kind == OVERHEAD)
        work_open(b);
}

void pool_close(void)
{
    for (int i = 0; i < buffer_count; i++)
        free(buffers[i]);
    buffer_count = 0;
}

/* Rank 0 sends, from its buffers in turn; rank 1 receives, into as many. */
static void one_way(const struct block *b, uint64_t rounds)
{
    const int bytes = (int)b->bytes;

    for (uint64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < b->depth; k++) {
            uint64_t number = i * (uint64_t)b->depth + (uint64_t)k;

            if (my_rank == 0) {
                touch(buffers[k], b->bytes, number);
                MPI_Send(buffers[k], bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            } else {
                MPI_Recv(buffers[k], bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check_touch(buffers[k], b->bytes, number);
            }
        }
    }
}

/*
 * The same, of ranks that have work of their own while the message is under way. What is counted is the time in the MPI's calls; none of them
 * waits, so each rank would have worked in that time. What threads of the MPI or of the system do elsewhere meanwhile is not in it.
 */
static void one_way_at_work(const struct block *b, uint64_t rounds)
{
    const int bytes = (int)b->bytes;

    in_calls = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < b->depth; k++) {
            uint64_t number = i * (uint64_t)b->depth + (uint64_t)k;
            MPI_Request request;
            double start;
            int done = 0;

            if (my_rank == 0)
                touch(buffers[k], b->bytes, number);
            start = now_seconds();
            if (my_rank == 0)
                MPI_Isend(buffers[k], bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &request);
            else
                MPI_Irecv(buffers[k], bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &request);
            for (;;) {
                MPI_Test(&request, &done, MPI_STATUS_IGNORE);
                in_calls += now_seconds() - start;
                if (done)
                    break;
                work(piece);
                start = now_seconds();
            }
            if (my_rank == 1)
                check_touch(buffers[k], b->bytes, number);
        }
    }
}

/* Both send and receive at the same time. */
static void both_ways(const struct block *b, uint64_t rounds)
{
    const int bytes = (int)b->bytes, other = !my_rank;

    for (uint64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < b->depth; k++) {
            uint64_t number = 2 * (i * (uint64_t)b->depth + (uint64_t)k);
            char *out = buffers[k], *in = buffers[b->depth + k];
            MPI_Request requests[2];

            touch(out, b->bytes, number + (uint64_t)my_rank);
            MPI_Irecv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[0]);
            MPI_Isend(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[1]);
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
            check_touch(in, b->bytes, number + (uint64_t)other);
        }
    }
}

/*
 * Each message from memory of its own, which nothing was ever sent from: at addresses that no mapping had before, and its pages
 * are there when the clock starts.
 */
static double some_once(const struct block *b, size_t each, uint64_t rounds)
{
    static uintptr_t next = (uintptr_t)1 << 44;
    const size_t all = each * rounds;
    char *fresh = NULL;
    double start;

    if (my_rank == 0) {
        fresh = mmap((void *)next, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (fresh == MAP_FAILED)
            die("no memory at addresses that were never used");
        next += all;
        memset(fresh, 0, all);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        if (my_rank == 0) {
            touch(fresh + each * i, b->bytes, i);
            MPI_Send(fresh + each * i, (int)b->bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        } else {
            MPI_Recv(buffers[0], (int)b->bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_touch(buffers[0], b->bytes, i);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds() - start;
    if (fresh)
        munmap(fresh, all);
    return start;
}

/* No more of it than this at the same time. */
#define MOST_FRESH (32u << 20)

static double once(const struct block *b, uint64_t rounds)
{
    const size_t each = (b->bytes + 0xffff) & ~(size_t)0xffff;
    const uint64_t most = each < MOST_FRESH ? MOST_FRESH / each : 1;
    double took = 0;

    for (uint64_t n; rounds > 0; rounds -= n) {
        n = rounds < most ? rounds : most;
        took += some_once(b, each, n);
    }
    return took;
}

/*
 * What no message can beat: rank 0 writes into memory that both have, rank 1 copies it from there, says so, and reads its copy. Two
 * bare lines say when.
 */
static void bare_copy(const struct block *b, uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds * (uint64_t)b->depth; i++) {
        const size_t k = i % (size_t)b->depth, at = k * b->bytes;

        if (my_rank == 0)
            touch(shared[0] + at, b->bytes, i);
        line_turn(1);
        if (my_rank == 1)
            memcpy(buffers[k], shared[1] + at, b->bytes);
        line_turn(0);
        if (my_rank == 1)
            check_touch(buffers[k], b->bytes, i);
    }
}

double pool_batch(const struct block *b, uint64_t rounds)
{
    double start;

    if (b->kind == ONCE)
        return once(b, rounds);
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds();
    if (b->kind == BARE)
        bare_copy(b, rounds);
    else if (b->kind == BOTH)
        both_ways(b, rounds);
    else if (b->kind == OVERHEAD)
        one_way_at_work(b, rounds);
    else
        one_way(b, rounds);
    /* Until all has arrived. */
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds() - start;
    if (b->kind == OVERHEAD)
        MPI_Reduce(my_rank == 0 ? MPI_IN_PLACE : &in_calls, &in_calls, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return start;
}

double pool_overhead(void)
{
    return in_calls;
}

/* Of one round, in either direction. */
uint64_t pool_messages(const struct block *b)
{
    if (b->kind == BARE)
        return 0; /* none of the MPI's */
    return b->kind == ONCE ? 1 : (uint64_t)b->depth * (b->kind == BOTH ? 2 : 1);
}
