/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How fast a processor reads and writes the region's memory, beside memory of the process's own: what is cached is as fast as
 * that, what is not is slower by far. Prints one line of JSON. For scripts/kvm-check.
 */
#include <isthmus.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BYTES (1 << 20)
/* The part in which loads follow each other: any first cache holds it. */
#define CHAIN 2048
#define ROUNDS 15
/* Of one measurement. */
#define SECONDS 0.02

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile uint64_t sink;

static double reads(volatile uint64_t *at, double seconds)
{
    double begin = now(), end;
    size_t bytes = 0, from = 0;
    do {
        uint64_t sum = 0;
        for (size_t i = 0; i < 2048; i++)
            sum += at[from + i];
        sink = sum;
        bytes += 2048 * 8;
        from = (from + 2048) % (BYTES / 8);
        end = now();
    } while (end < begin + seconds);
    return (double)bytes / (end - begin) / 1e6;
}

static double writes(volatile uint64_t *at, double seconds)
{
    double begin = now(), end;
    size_t bytes = 0, from = 0;
    do {
        for (size_t i = 0; i < 2048; i++)
            at[from + i] = i;
        bytes += 2048 * 8;
        from = (from + 2048) % (BYTES / 8);
        end = now();
    } while (end < begin + seconds);
    return (double)bytes / (end - begin) / 1e6;
}

/* Nanoseconds from one load to the next that needs it. */
static double chain(volatile uint64_t *at, double seconds)
{
    /* Odd steps visit all words of the part, in an order that no processor foresees by their distance alone. */
    for (uint64_t i = 0, next; i < CHAIN; i++) {
        next = (i * 1237 + 409) % CHAIN;
        at[i] = next;
    }
    double begin = now(), end;
    size_t loads = 0;
    uint64_t i = 0;
    do {
        for (int n = 0; n < 1000; n++)
            i = at[i];
        loads += 1000;
        end = now();
    } while (end < begin + seconds);
    sink = i;
    return (end - begin) / (double)loads * 1e9;
}

struct rates {
    double read, write, load;
};

/* The best of several rounds, as whatever disturbs only slows. */
static void measure(struct rates *best, volatile uint64_t *at)
{
    double read = reads(at, SECONDS), write = writes(at, SECONDS), load = chain(at, SECONDS);
    best->read = read > best->read ? read : best->read;
    best->write = write > best->write ? write : best->write;
    best->load = best->load == 0 || load < best->load ? load : best->load;
}

static void show(const char *name, const struct rates *best, const char *after)
{
    printf("\"%s\": {\"read_mb_s\": %.1f, \"write_mb_s\": %.1f, \"load_ns\": %.2f}%s", name, best->read, best->write,
           best->load, after);
}

int main(void)
{
    struct isthmus *here;
    struct isthmus_segment *segment;
    struct rates of_own = {0}, of_region = {0};
    void *own = aligned_alloc(4096, BYTES), *region;

    if (!own || isthmus_attach(NULL, &here) != 0 ||
        isthmus_segment_open(here, "cached", ISTHMUS_CREATE, 0600, BYTES, &segment) != 0) {
        fprintf(stderr, "cached: %s\n", own ? isthmus_error() : "no memory");
        return 1;
    }
    region = isthmus_segment_data(segment);
    memset(own, 1, BYTES);
    memset(region, 1, BYTES);
    /* In turn, so that both have the same share of what else goes on. */
    for (int round = 0; round < ROUNDS; round++) {
        measure(&of_own, own);
        measure(&of_region, region);
    }
    printf("{");
    show("own", &of_own, ", ");
    show("region", &of_region, "}\n");
    isthmus_detach(here);
    return 0;
}
