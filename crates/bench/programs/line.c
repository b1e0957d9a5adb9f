/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The floor under any message: two cache lines, one written by each of two processes in turn, and under any long one: memory that one
 * has written and the other copies. They lie in the region where the MPI has loaded the provider of isthmus, else in a file in
 * /dev/shm if both ranks are on one host.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 1000
#define BATCHES 7
#define LINE_BYTES 64

static _Atomic uint64_t *mine, *theirs;
static uint64_t turn;
static int is_one_host;

static int all_have(const void *place)
{
    int have = place != NULL, all;

    MPI_Allreduce(&have, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

static int share_in_region(size_t bytes, char *both[2])
{
    char *(*own)(uint64_t *, uint64_t) = provider_function("isthmus_line_open");
    char *(*peer)(const uint64_t *, uint64_t) = provider_function("isthmus_line_peer");
    uint64_t places[2][4];

    both[0] = own && peer ? own(places[my_rank], bytes) : NULL;
    if (!all_have(both[0]))
        return 0;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, places, 4, MPI_UINT64_T, MPI_COMM_WORLD);
    both[1] = peer(places[!my_rank], bytes);
    return all_have(both[1]);
}

static char *map_file(const char *path, int flags, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    void *at;

    if (fd < 0)
        return NULL;
    at = ftruncate(fd, (off_t)bytes) == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static int share_in_file(size_t bytes, char *both[2])
{
    /* Far enough apart that no prefetcher takes lines of the one and of the other for neighbours. */
    const size_t half = (bytes + 4095) / 4096 * 4096 + 4096;
    static int count;
    char path[64], *file = NULL;
    int there;

    snprintf(path, sizeof path, "/dev/shm/isthmus-line-%ld-%d", (long)getpid(), count++);
    if (my_rank == 0)
        file = map_file(path, O_CREAT | O_EXCL, 2 * half);
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (my_rank == 1)
        file = map_file(path, 0, 2 * half);
    there = all_have(file);
    if (my_rank == 0)
        unlink(path);
    if (!there)
        return 0;
    both[0] = file + (size_t)my_rank * half;
    both[1] = file + (size_t)!my_rank * half;
    return 1;
}

int share(size_t bytes, char *both[2])
{
    return share_in_region(bytes, both) || (is_one_host && share_in_file(bytes, both));
}

void line_open(int one_host)
{
    char *both[2];

    is_one_host = one_host;
    if (!share(LINE_BYTES, both))
        return;
    mine = (_Atomic uint64_t *)both[0];
    theirs = (_Atomic uint64_t *)both[1];
}

static inline void wait_for(uint64_t value, int with_pause)
{
    for (uint32_t spins = 1; atomic_load_explicit(theirs, memory_order_acquire) != value; spins++) {
        if (with_pause) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
        /* With fewer processors than ranks the other must get its turn; otherwise this is never reached. */
        if (spins % (1u << 20) == 0)
            sched_yield();
    }
}

int line_is_open(void)
{
    return mine != NULL;
}

/* The next turn of a line: rank 0 begins it, and rank 1 ends it. */
void line_turn(int begins)
{
    if (begins == (my_rank == 0)) {
        atomic_store_explicit(mine, turn + 1, memory_order_release);
        if (!begins)
            turn++;
    } else {
        wait_for(turn + 1, 0);
        if (!begins)
            turn++;
    }
}

static double half_round_us(int with_pause)
{
    double us[BATCHES];

    MPI_Barrier(MPI_COMM_WORLD);
    for (int batch = 0; batch < BATCHES; batch++) {
        double start = now_seconds();

        for (int round = 0; round < ROUNDS; round++) {
            turn++;
            if (my_rank != 0)
                wait_for(turn, with_pause);
            atomic_store_explicit(mine, turn, memory_order_release);
            if (my_rank == 0)
                wait_for(turn, with_pause);
        }
        us[batch] = (now_seconds() - start) * 1e6 / ROUNDS / 2;
    }
    return median(us, BATCHES);
}

double line_us(void)
{
    double plain, paused;

    if (!mine)
        return -1;
    plain = half_round_us(0);
    paused = half_round_us(1);
    return plain < paused ? plain : paused;
}
