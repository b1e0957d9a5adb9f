/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The floor under any message: two cache lines, one written by each of two processes in turn. They lie in the region
 * where the MPI has loaded the provider of isthmus, else in a file in /dev/shm if both ranks are on one host.
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
#define FILE_BYTES 4096

static _Atomic uint64_t *mine, *theirs;
static uint64_t turn;

static int all_have(const void *place)
{
    int have = place != NULL, all;

    MPI_Allreduce(&have, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

static int open_in_region(void)
{
    _Atomic uint64_t *(*own)(uint64_t *) = provider_function("isthmus_line_open");
    _Atomic uint64_t *(*peer)(const uint64_t *) = provider_function("isthmus_line_peer");
    uint64_t places[2][4];

    mine = own && peer ? own(places[my_rank]) : NULL;
    if (!all_have(mine))
        return 0;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, places, 4, MPI_UINT64_T, MPI_COMM_WORLD);
    theirs = peer(places[!my_rank]);
    return all_have(theirs);
}

static char *map_file(const char *path, int flags)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    void *at;

    if (fd < 0)
        return NULL;
    at = ftruncate(fd, FILE_BYTES) == 0 ? mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static int open_in_file(void)
{
    char path[64], *file = NULL;
    int there;

    snprintf(path, sizeof path, "/dev/shm/isthmus-line-%ld", (long)getpid());
    if (my_rank == 0)
        file = map_file(path, O_CREAT | O_EXCL);
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (my_rank == 1)
        file = map_file(path, 0);
    there = all_have(file);
    if (my_rank == 0)
        unlink(path);
    if (!there)
        return 0;
    /* Far enough apart that no prefetcher takes them for one. */
    mine = (_Atomic uint64_t *)(file + my_rank * FILE_BYTES / 2);
    theirs = (_Atomic uint64_t *)(file + !my_rank * FILE_BYTES / 2);
    return 1;
}

void line_open(int one_host)
{
    if (!open_in_region() && !(one_host && open_in_file()))
        mine = theirs = NULL;
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
