// SPDX-License-Identifier: Apache-2.0 OR MIT
// How many instructions a message of some bytes takes in each library, counted by stepping through a rank that sends and one that
// receives. What is received was sent before, so nothing is counted but the way of the message.
//
//     mpicc -O2 instructions.c -o instructions && isthmus run --vms 0 -n 2 --through-region -- ./instructions [BYTES] [put|get]
//
// With `put` or `get` those of MPI_Put or MPI_Get and MPI_Win_flush under a shared lock, while the target waits in a barrier.
//
// Prints a line for each side and library, on x86-64. (Callgrind 3.19, Debian 12's, lacks pidfd_open, with which a process attaches.)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

// What a lane has room for while nobody receives, and more executable mappings than there are.
enum { MESSAGES = 32, MOST_BYTES = 1024, LIBRARIES = 256 };

struct library {
    unsigned long from, to;
    char name[64];
    long count;
};

// How far the two are: written by the rank, read by who steps it, and back.
enum { BEFORE, MAY_TRACE, COUNTING, COUNTED };
static volatile int *stage;

static void die(const char *what)
{
    perror(what);
    _exit(1);
}

static int libraries_of(pid_t pid, struct library *all)
{
    char path[64], line[512];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    if (!maps)
        die(path);
    while (fgets(line, sizeof line, maps)) {
        if (n == LIBRARIES)
            die("too many mappings");
        struct library *at = &all[n];
        char rights[8] = "", name[400] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %399[^\n]", &at->from, &at->to, rights, name) < 3 || rights[2] != 'x')
            continue;
        const char *base = strrchr(name, '/');
        snprintf(at->name, sizeof at->name, "%.63s", base ? base + 1 : name[0] ? name : "anonymous");
        at->count = 0;
        n++;
    }
    fclose(maps);
    return n;
}

// Steps through the process until it has stopped counting.
static void step_through(pid_t pid, const char *who)
{
    struct library all[LIBRARIES];
    int status;
    while (*stage == BEFORE)
        usleep(100);
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) || ptrace(PTRACE_INTERRUPT, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid)
        die("ptrace");
    int n = libraries_of(pid, all);
    *stage = COUNTING;
    while (*stage != COUNTED) {
        struct user_regs_struct regs;
        if (ptrace(PTRACE_SINGLESTEP, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
            die("step");
        if (ptrace(PTRACE_GETREGS, pid, 0, &regs))
            die("registers");
        for (int k = 0; k < n; k++)
            if (regs.rip >= all[k].from && regs.rip < all[k].to)
                all[k].count++;
    }
    ptrace(PTRACE_DETACH, pid, 0, 0);
    for (int k = 0; k < n; k++)
        if (all[k].count >= MESSAGES)
            printf("%s %s: %.1f instructions per message\n", who, all[k].name, (double)all[k].count / MESSAGES);
}

// From here to `end` this process is stepped through.
static pid_t begin(const char *who)
{
    pid_t rank = getpid();
    *stage = BEFORE;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        step_through(rank, who);
        fflush(stdout);
        _exit(0);
    }
    if (prctl(PR_SET_PTRACER, pid, 0, 0, 0) && errno != EINVAL)
        die("prctl");
    *stage = MAY_TRACE;
    while (*stage != COUNTING)
        if (waitpid(pid, NULL, WNOHANG) == pid) {
            fprintf(stderr, "instructions: this process may not be traced (kernel.yama.ptrace_scope?)\n");
            MPI_Abort(MPI_COMM_WORLD, 77);
        }
    return pid;
}

static void end(pid_t pid)
{
    *stage = COUNTED;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

// One operation on the other rank's memory after the other, which take nothing of it.
static void one_sided(int rank, int bytes, int put)
{
    char *memory, *local = malloc(1 << 20);
    MPI_Win window;
    if (MPI_Alloc_mem(1 << 20, MPI_INFO_NULL, &memory) || !local)
        die("memory");
    memset(local, 1, 1 << 20);
    memset(memory, 2, 1 << 20);
    MPI_Win_create(memory, 1 << 20, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (int round = 0; round < 100; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            pid_t pid = 0;
            MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
            if (round == 99)
                pid = begin(put ? "put" : "get");
            for (int i = 0; i < MESSAGES; i++) {
                if (put)
                    MPI_Put(local, bytes, MPI_CHAR, 1, 4096, bytes, MPI_CHAR, window);
                else
                    MPI_Get(local, bytes, MPI_CHAR, 1, 4096, bytes, MPI_CHAR, window);
                MPI_Win_flush(1, window);
            }
            if (round == 99)
                end(pid);
            MPI_Win_unlock(1, window);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Win_free(&window);
    MPI_Free_mem(memory);
    free(local);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, bytes = argc > 1 ? atoi(argv[1]) : 8;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (bytes < 1 || bytes > MOST_BYTES) {
        fprintf(stderr, "instructions: 1 to %d bytes\n", MOST_BYTES);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char *buf = calloc(MESSAGES + 1, bytes);
    stage = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!buf || stage == MAP_FAILED)
        die("memory");
    if (argc > 2) {
        one_sided(rank, bytes, !strcmp(argv[2], "put"));
        MPI_Finalize();
        return 0;
    }
    // By this file the receiver learns that all is sent, without a call of the MPI. Two VMs do not share /tmp: INSTRUCTIONS_DIR names a
    // directory that they do.
    const char *shared = getenv("INSTRUCTIONS_DIR");
    char path[256];
    if (snprintf(path, sizeof path, "%s/instructions-XXXXXX", shared ? shared : "/tmp") >= (int)sizeof path)
        die("INSTRUCTIONS_DIR");
    int file = rank == 0 ? mkstemp(path) : -1;
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 1)
        file = open(path, O_RDONLY);
    if (file < 0)
        die(path);
    MPI_Barrier(MPI_COMM_WORLD);
    // Another VM cannot ask for the size of a file that has no name any more.
    if (rank == 0 && !shared)
        unlink(path);
    // The first rounds only warm up, and join what has to be joined; the last is counted.
    for (int round = 0; round < 100; round++) {
        int last = round == 99;
        pid_t pid = 0;
        MPI_Request requests[MESSAGES];
        if (rank == 1)
            for (int i = 0; i < MESSAGES; i++)
                MPI_Irecv(buf + (size_t)i * bytes, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, &requests[i]);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            if (last)
                pid = begin("send");
            for (int i = 0; i < MESSAGES; i++)
                MPI_Send(buf, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
            if (last)
                end(pid);
            if (write(file, "", 1) != 1)
                die(path);
        } else {
            struct stat seen;
            while (fstat(file, &seen) == 0 && seen.st_size <= round)
                usleep(100);
            if (last)
                pid = begin("receive");
            MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
            if (last)
                end(pid);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0 && shared)
        unlink(path);
    MPI_Finalize();
    return 0;
}
