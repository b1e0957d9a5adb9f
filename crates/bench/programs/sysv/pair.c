/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two processes that have a segment in common: how they wait for each other, time a bare line, and end. */
#define _GNU_SOURCE
#include "sysv.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <time.h>
#include <unistd.h>

#define LINE_ROUNDS 500

struct shared *shared;
int me, has_kernels, shmid = -1, semid = -1, msqid = -1, sample_id = -1;

static uint64_t turn, met;

/* A kernel's ids have the bit, too, once it has made very many. */
static int is_kernels(int id)
{
    return me == 0 && id >= 0 && (has_kernels || !(id & OURS));
}

static void clean(void)
{
    /* What a region has, it cleans up itself; nor may a handler of signals ask it. */
    if (is_kernels(semid))
        semctl(semid, 0, IPC_RMID);
    if (is_kernels(msqid))
        msgctl(msqid, IPC_RMID, NULL);
    if (is_kernels(shmid))
        shmctl(shmid, IPC_RMID, NULL);
    if (is_kernels(sample_id))
        shmctl(sample_id, IPC_RMID, NULL);
}

static void end(int signal)
{
    static const char late[] = "sysv: a block took too long: is the other process gone?\n";

    if (signal == SIGALRM && write(2, late, sizeof late - 1) < 0)
        _exit(1);
    clean();
    _exit(signal == SIGALRM ? 1 : 128 + signal);
}

_Noreturn void die(const char *what)
{
    fprintf(stderr, "sysv: process %d: %s: %s\n", me, what, errno ? strerror(errno) : "unexpected");
    if (shared)
        atomic_store(&shared->failed, 1);
    clean();
    _exit(1);
}

double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void handle_signals(void)
{
    struct sigaction handler = {.sa_handler = end};
    static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        sigaction(all[i], &handler, NULL);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void meet(void)
{
    const struct timespec nap = {.tv_nsec = 200000};

    atomic_store(&shared->of[me].arrivals, ++met);
    for (uint32_t looks = 0; atomic_load(&shared->of[!me].arrivals) < met; looks++) {
        if (atomic_load(&shared->failed)) {
            clean();
            _exit(1);
        }
        if (looks < 1000)
            relax();
        else
            nanosleep(&nap, NULL);
    }
}

void exchange(const double *mine, double *theirs, size_t count)
{
    memcpy(shared->of[me].values, mine, count * sizeof *mine);
    meet();
    memcpy(theirs, shared->of[!me].values, count * sizeof *theirs);
    meet();
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

double line_us(void)
{
    _Atomic uint64_t *mine = &shared->of[me].line, *theirs = &shared->of[!me].line;
    double medians[2], us[RUNS];

    meet();
    for (int with_pause = 0; with_pause < 2; with_pause++) {
        for (int run = 0; run < RUNS; run++) {
            double start = now_seconds();

            for (int i = 0; i < LINE_ROUNDS; i++) {
                turn++;
                if (me == 0)
                    atomic_store_explicit(mine, turn, memory_order_release);
                for (uint32_t looks = 1; atomic_load_explicit(theirs, memory_order_acquire) < turn; looks++) {
                    if (with_pause)
                        relax();
                    /* Should somebody else have a processor, the other one gets its turn. */
                    if (looks % (1u << 16) == 0)
                        sched_yield();
                }
                if (me == 1)
                    atomic_store_explicit(mine, turn, memory_order_release);
            }
            us[run] = (now_seconds() - start) * 1e6 / LINE_ROUNDS / 2;
        }
        medians[with_pause] = median(us, RUNS);
    }
    return medians[0] < medians[1] ? medians[0] : medians[1];
}
