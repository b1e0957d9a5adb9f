/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Which way the bytes went, as the kernel counts them, and what processor time they cost. */
#define _GNU_SOURCE
#include "bench.h"

#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define UNUSED_TAG 9

static _Atomic uint64_t cma;

static ssize_t counted(ssize_t moved)
{
    if (moved > 0)
        atomic_fetch_add_explicit(&cma, (uint64_t)moved, memory_order_relaxed);
    return moved;
}

/*
 * The kernel has no counter for cross-memory attach. The MPI library's calls find these two first (the program is
 * linked with -rdynamic), so they can be counted here.
 */
ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                         unsigned long remotes, unsigned long flags)
{
    return counted(syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags));
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                          unsigned long remotes, unsigned long flags)
{
    return counted(syscall(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags));
}

/* What the provider counts in this process, in the order of docs/region-format.md. */
static void region_now(uint64_t now[COUNTERS])
{
    int (*read)(uint64_t *, size_t) = provider_function("isthmus_counters");
    uint64_t counters[34];
    int found;

    if (!read)
        return;
    /* It adds up what its endpoints counted only every few hundred calls of progress, of which each probe is one. */
    for (int i = 0; i < 1024; i++)
        MPI_Iprobe(!my_rank, UNUSED_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    if (read(counters, 34) != 0)
        return;
    now[REGION_READ] = 1;
    now[REGION_TX_MESSAGES] = counters[0];
    now[REGION_TX_BYTES] = counters[1];
    now[REGION_RX_MESSAGES] = counters[2];
    now[REGION_RX_BYTES] = counters[3];
    now[REGION_RMA] = counters[8];
    now[REGION_RMA_BYTES] = counters[9];
    now[REGION_DIRECT_BYTES] = counters[19];
    now[REGION_PAGE_BYTES] = counters[28];
    now[REGION_RESIDENT_BYTES] = counters[33];
}

void counters_now(uint64_t now[COUNTERS])
{
    char line[512], name[64];
    FILE *file = fopen("/proc/net/dev", "r");

    memset(now, 0, COUNTERS * sizeof *now);
    now[CMA] = atomic_load_explicit(&cma, memory_order_relaxed);
    region_now(now);
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        unsigned long long received, sent;

        if (sscanf(line, " %63[^:]: %llu %*u %*u %*u %*u %*u %*u %*u %llu", name, &received, &sent) != 3)
            continue;
        if (strcmp(name, "lo") == 0)
            now[LOOPBACK] += received;
        else
            now[NET] += received + sent;
    }
    fclose(file);
}

double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}
