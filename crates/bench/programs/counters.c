/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Which way the bytes went, as the kernel counts them, and what processor time they cost. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

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

void counters_now(uint64_t *net, uint64_t *loopback, uint64_t *cma_bytes)
{
    char line[512], name[64];
    FILE *file = fopen("/proc/net/dev", "r");

    *net = *loopback = 0;
    *cma_bytes = atomic_load_explicit(&cma, memory_order_relaxed);
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        unsigned long long received, sent;

        if (sscanf(line, " %63[^:]: %llu %*u %*u %*u %*u %*u %*u %*u %llu", name, &received, &sent) != 3)
            continue;
        if (strcmp(name, "lo") == 0)
            *loopback += received;
        else
            *net += received + sent;
    }
    fclose(file);
}

double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}
