/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The floor under any message: one cache line that two processes write in turn. Where the line lies is
 * ISTHMUS_BENCH_LINE=PATH[:OFFSET] if that is set, or a file in /dev/shm if both ranks are on one host.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 1000
#define BATCHES 7

static _Atomic uint64_t *word;
static uint64_t turn;

static void *map_line(const char *path, off_t offset, int flags)
{
    long page = sysconf(_SC_PAGESIZE);
    off_t start = offset / page * page;
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    char *at;

    if (fd < 0)
        return NULL;
    if ((flags & O_CREAT) && ftruncate(fd, page) != 0) {
        close(fd);
        return NULL;
    }
    at = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, start);
    close(fd);
    return at == MAP_FAILED ? NULL : at + (offset - start);
}

void line_open(void)
{
    const char *place = getenv("ISTHMUS_BENCH_LINE");
    char path[4096] = "", host[2][256];
    int have, all;

    if (place && *place) {
        const char *colon = strrchr(place, ':');
        off_t offset = colon ? (off_t)strtoull(colon + 1, NULL, 0) : 0;

        snprintf(path, sizeof path, "%.*s", (int)(colon ? colon - place : (long)strlen(place)), place);
        word = map_line(path, offset, 0);
        path[0] = 0;
    } else {
        memset(host, 0, sizeof host);
        gethostname(host[my_rank], sizeof host[0] - 1);
        MPI_Bcast(host[0], sizeof host[0], MPI_CHAR, 0, MPI_COMM_WORLD);
        MPI_Bcast(host[1], sizeof host[1], MPI_CHAR, 1, MPI_COMM_WORLD);
        if (strcmp(host[0], host[1]) == 0) {
            snprintf(path, sizeof path, "/dev/shm/isthmus-line-%ld", (long)getpid());
            if (my_rank == 0)
                word = map_line(path, 0, O_CREAT | O_EXCL);
            MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
            if (my_rank == 1)
                word = map_line(path, 0, 0);
        }
    }
    have = word != NULL;
    MPI_Allreduce(&have, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (my_rank == 0 && path[0])
        unlink(path);
    if (!all)
        word = NULL;
    if (word && my_rank == 0)
        atomic_store_explicit(word, 0, memory_order_release);
    MPI_Barrier(MPI_COMM_WORLD);
}

static inline void wait_for(uint64_t value, int with_pause)
{
    for (uint32_t spins = 1; atomic_load_explicit(word, memory_order_acquire) != value; spins++) {
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

        for (int round = 0; round < ROUNDS; round++, turn += 2) {
            if (my_rank == 0) {
                atomic_store_explicit(word, turn + 1, memory_order_release);
                wait_for(turn + 2, with_pause);
            } else {
                wait_for(turn + 1, with_pause);
                atomic_store_explicit(word, turn + 2, memory_order_release);
            }
        }
        us[batch] = (now_seconds() - start) * 1e6 / ROUNDS / 2;
    }
    return median(us, BATCHES);
}

double line_us(void)
{
    double plain, paused;

    if (!word)
        return -1;
    plain = half_round_us(0);
    paused = half_round_us(1);
    return plain < paused ? plain : paused;
}
