/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The measured blocks. Each calibrates itself once to batches of about a tenth of its budget, times the batches on
 * rank 0, and checks the data: whole messages before and after the timed part, within it a number in each message or,
 * where messages are touched, a word in each of its lines.
 */
#include "bench.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 10
#define MAX_DEPTH 256

const char *block_name(const struct block *b)
{
    static const char *const names[] = { "latency", "bandwidth", "bandwidth_windowed", "rate",
                                         "posted", "unexpected", "barrier", "allreduce",
                                         "pool", "both_ways", "once", "overhead", "bare_copy",
                                         "put", "get",
                                         "is", "ft", "mg", "lu" };

    if (b->kind == PINGPONG && !b->touched)
        return "bandwidth_untouched";
    if (b->kind == WINDOW && !b->touched)
        return "bandwidth_windowed_untouched";
    /* What an MPI takes for a collective call depends on whether threads may call it. */
    if (b->kind == BARRIER && thread_multiple)
        return "barrier_multiple";
    if (b->kind == ALLREDUCE && thread_multiple)
        return "allreduce_multiple";
    return names[b->kind];
}

const char *block_metric(const struct block *b)
{
    static const char *const metrics[] = { "latency_us", "bandwidth_MBps", "bandwidth_MBps", "rate_Mps",
                                           "latency_us", "latency_us", "loops_per_s", "loops_per_s",
                                           "bandwidth_MBps", "bandwidth_MBps", "bandwidth_MBps", "overhead_us", "bandwidth_MBps",
                                           "latency_us", "latency_us",
                                           "loops_per_s", "loops_per_s", "loops_per_s", "loops_per_s" };
    return metrics[b->kind];
}

/* Of constant size where possible: a call into the C library for each message would be measured, too. */
static void stamp(char *message, size_t bytes, uint64_t number)
{
    if (bytes >= sizeof number)
        memcpy(message, &number, sizeof number);
    else
        memcpy(message, &number, bytes);
}

static void check_stamp(const char *message, size_t bytes, uint64_t number)
{
    uint64_t came = 0;
    int is_whole = bytes >= sizeof number;

    if (is_whole)
        memcpy(&came, message, sizeof came);
    if (is_whole ? came != number : memcmp(message, &number, bytes) != 0)
        die("a message arrived out of order, twice or not at all");
}

/* A message that is shorter than a word has no more than its number. */
static int has_words(const struct block *b)
{
    return b->touched && b->bytes >= sizeof(uint64_t);
}

static void mark(const struct block *b, char *message, uint64_t number)
{
    if (has_words(b))
        touch(message, b->bytes, number);
    else
        stamp(message, b->bytes, number);
}

static void check_mark(const struct block *b, const char *message, uint64_t number)
{
    if (has_words(b))
        check_touch(message, b->bytes, number);
    else
        check_stamp(message, b->bytes, number);
}

static void fill(char *message, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        message[i] = (char)((seed + i) * 2654435761u >> 11);
}

static void check(const char *message, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (message[i] != (char)((seed + i) * 2654435761u >> 11))
            die("a message arrived with wrong content");
}

/* Whole messages, each byte checked, both ways. */
static void verify(char *buffer, size_t bytes)
{
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t seed = i * 97 + bytes;

        if (my_rank == 0) {
            fill(buffer, bytes, seed);
#ifdef BREAK_A_MESSAGE /* the test of this test */
            buffer[bytes / 2] ^= 1;
#endif
            MPI_Send(buffer, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            memset(buffer, 0, bytes);
            MPI_Recv(buffer, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(buffer, bytes, seed + 1);
        } else {
            memset(buffer, 0, bytes);
            MPI_Recv(buffer, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(buffer, bytes, seed);
            fill(buffer, bytes, seed + 1);
            MPI_Send(buffer, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* Of messages that are touched not: the branch would be taken for each, in a loop that short messages take, too. */
static void ping_pong(char *out, char *in, size_t bytes, uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        if (my_rank == 0) {
            stamp(out, bytes, i);
            MPI_Send(out, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(in, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_stamp(in, bytes, ~i);
        } else {
            MPI_Recv(in, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_stamp(in, bytes, i);
            stamp(out, bytes, ~i);
            MPI_Send(out, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* The same, touched. */
static void ping_pong_touched(char *out, char *in, size_t bytes, uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        if (my_rank == 0) {
            touch(out, bytes, i);
            MPI_Send(out, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(in, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_touch(in, bytes, ~i);
        } else {
            MPI_Recv(in, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_touch(in, bytes, i);
            touch(out, bytes, ~i);
            MPI_Send(out, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* `depth` messages from rank 0 in flight, each in a buffer of its own; an empty message back when all have arrived. */
static void window(const struct block *b, char *buffers, uint64_t rounds)
{
    MPI_Request requests[MAX_DEPTH];
    const int depth = b->depth;
    const size_t bytes = b->bytes;

    for (uint64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < depth; k++) {
            char *message = buffers + (size_t)k * bytes;

            if (my_rank == 0) {
                mark(b, message, i * (uint64_t)depth + (uint64_t)k);
                MPI_Isend(message, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &requests[k]);
            } else {
                MPI_Irecv(message, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &requests[k]);
            }
        }
        MPI_Waitall(depth, requests, MPI_STATUSES_IGNORE);
        if (my_rank == 0) {
            MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int k = 0; k < depth; k++)
                check_mark(b, buffers + (size_t)k * bytes, i * (uint64_t)depth + (uint64_t)k);
            MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

static int is_collective(const struct block *b)
{
    return b->kind == BARRIER || b->kind == ALLREDUCE;
}

static int is_windowed(const struct block *b)
{
    return b->kind == WINDOW || b->kind == RATE;
}

static int is_pooled(const struct block *b)
{
    return b->kind == POOL || b->kind == BOTH || b->kind == ONCE || b->kind == OVERHEAD || b->kind == BARE;
}

static int is_one_sided(const struct block *b)
{
    return b->kind == PUT || b->kind == GET;
}

static int is_kernel(const struct block *b)
{
    return b->kind == IS || b->kind == FT || b->kind == MG || b->kind == LU;
}

static double batch(const struct block *b, char *buffers, uint64_t rounds)
{
    double start;

    if (is_collective(b))
        return collective_batch(b, rounds);
    if (is_pooled(b))
        return pool_batch(b, rounds);
    if (is_one_sided(b))
        return window_batch(b, rounds);
    if (is_kernel(b))
        return kernel_batch(b, rounds);
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds();
    if (is_windowed(b))
        window(b, buffers, rounds);
    else if (has_words(b))
        ping_pong_touched(buffers, buffers + b->bytes, b->bytes, rounds);
    else
        ping_pong(buffers, buffers + b->bytes, b->bytes, rounds);
    return now_seconds() - start;
}

static double in_metric(const struct block *b, double seconds, uint64_t rounds)
{
    switch (b->kind) {
    case LATENCY:
    case POSTED:
    case UNEXPECTED: return seconds * 1e6 / (double)rounds / 2;
    case PINGPONG: return (double)b->bytes * 2 * (double)rounds / seconds / 1e6;
    case WINDOW: return (double)b->bytes * b->depth * (double)rounds / seconds / 1e6;
    case RATE: return b->depth * (double)rounds / seconds / 1e6;
    case IS:
    case FT:
    case MG:
    case LU:
    case BARRIER:
    case ALLREDUCE: return (double)rounds / seconds;
    case POOL:
    case BOTH:
    case ONCE: return (double)b->bytes * (double)pool_messages(b) * (double)rounds / seconds / 1e6;
    case OVERHEAD: return pool_overhead() * 1e6 / ((double)pool_messages(b) * (double)rounds);
    case BARE: return (double)b->bytes * b->depth * (double)rounds / seconds / 1e6;
    case PUT:
    case GET: return seconds * 1e6 / (double)rounds;
    case KINDS: break;
    }
    return 0;
}

static uint64_t messages_of_round(const struct block *b)
{
    if (is_collective(b))
        return collective_messages();
    if (is_pooled(b))
        return pool_messages(b);
    if (is_one_sided(b))
        return 1;
    return is_windowed(b) ? (uint64_t)b->depth : 2;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void block_run(struct block *b, double budget_seconds, struct sample *out)
{
    int copies = is_windowed(b) ? b->depth : 2, waiting = b->kind == POSTED || b->kind == UNEXPECTED;
    char *buffers = malloc(is_kernel(b) ? 1 : b->bytes * (size_t)copies + 1);
    /* The loops of a kernel are long. */
    const int batches = is_kernel(b) ? BATCHES / 3 : BATCHES;
    double values[BATCHES], took = 0, cpu;
    struct kernel_sent loops, all;
    uint64_t before[COUNTERS], after[COUNTERS], moved[COUNTERS], both[COUNTERS];

    if (!buffers || copies > MAX_DEPTH)
        die("no memory for the message buffers, or a window deeper than 256");
    /* Pages are touched before anything is timed. */
    if (!is_kernel(b))
        memset(buffers, 0, b->bytes * (size_t)copies);
    if (!is_collective(b) && !is_kernel(b))
        verify(buffers, b->bytes);
    if (waiting)
        waiting_begin(b->kind, b->depth);
    if (is_pooled(b))
        pool_open(b);
    if (is_one_sided(b))
        window_open(b);
    if (is_kernel(b))
        kernel_open(b);

    for (uint64_t rounds = 2; b->rounds == 0; rounds *= 2) {
        double took = batch(b, buffers, rounds), wanted = budget_seconds / BATCHES;
        uint64_t chosen = 0;

        if (took > wanted / 2)
            chosen = took > wanted ? rounds : rounds * 2;
        MPI_Bcast(&chosen, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        b->rounds = chosen;
    }

    MPI_Barrier(MPI_COMM_WORLD);
    kernel_count();
    counters_now(before);
    cpu = cpu_seconds();
    for (int i = 0; i < batches; i++) {
        double seconds = batch(b, buffers, b->rounds);

        took += seconds;
        values[i] = in_metric(b, seconds, b->rounds);
    }
    cpu = cpu_seconds() - cpu;
    counters_now(after);
    if (waiting)
        waiting_end();
    if (is_pooled(b))
        pool_close();
    if (is_one_sided(b))
        window_close();
    if (is_kernel(b))
        kernel_counted(&loops, &all, &cpu);
    else if (!is_collective(b))
        verify(buffers, b->bytes);
    free(buffers);

    out->value = median(values, batches);
    out->min = values[0];
    out->max = values[batches - 1];
    out->messages = b->rounds * BATCHES * messages_of_round(b);
    out->operations = out->messages;
    if (is_collective(b))
        out->operations = b->rounds * BATCHES;
    if (b->kind == BARE)
        out->operations = b->rounds * BATCHES * (uint64_t)b->depth;
    out->payload_bytes = out->messages * b->bytes;
    out->large_messages = out->large_bytes = out->sent_MBps = 0;
    if (is_kernel(b)) {
        out->operations = b->rounds * (uint64_t)batches;
        out->messages = all.messages;
        out->payload_bytes = all.bytes;
        out->large_messages = (double)loops.large_messages / (double)loops.messages;
        out->large_bytes = (double)loops.large_bytes / (double)loops.bytes;
        out->sent_MBps = (double)loops.bytes / took / 1e6;
        kernel_close(b);
    }
    MPI_Reduce(&cpu, &out->cpu_seconds, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    for (int i = 0; i < COUNTERS; i++)
        moved[i] = after[i] - before[i];
    moved[REGION_READ] = before[REGION_READ] + after[REGION_READ];
    MPI_Allreduce(moved, both, COUNTERS, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    out->net_bytes = moved[NET];
    out->loopback_bytes = moved[LOOPBACK];
    out->cma_bytes = both[CMA];
    out->region_counted = both[REGION_READ] == 2 * (uint64_t)ranks;
    out->region_bytes = least(both[REGION_TX_BYTES], both[REGION_RX_BYTES]) + both[REGION_RMA_BYTES] + both[REGION_DIRECT_BYTES];
    out->direct_bytes = both[REGION_DIRECT_BYTES];
    out->page_bytes = both[REGION_PAGE_BYTES];
    out->resident_bytes = both[REGION_RESIDENT_BYTES];
    out->region_messages = least(both[REGION_TX_MESSAGES], both[REGION_RX_MESSAGES]) + both[REGION_RMA];
}
