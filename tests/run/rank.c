/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A rank for tests/run/ends. Says what it has mapped in /dev/shm, and `ready` once every rank is up and has heard from every other, then works on
 * for ever.
 *
 *   die                           the last rank kills itself a second later
 *   die-after MICROSECONDS SEED   rank 1 does, counted from before MPI_Init, or under Intel MPI from its end; the work is
 *                                 a mix of short and long messages, collectives and one-sided operations that follows
 *                                 from the seed
 *   die-at-work ...               the same, counted from the beginning of that work
 *   mix STEPS SEED                so many steps of it, and then the end
 *   abort                         the last rank calls MPI_Abort
 *   exit                          the last rank ends without MPI_Finalize
 *   count                         rank 0 says `step N` about every second
 */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static void die(int signal)
{
    ssize_t said = write(1, "dying\n", 6);
    (void)signal;
    (void)said;
    kill(getpid(), SIGKILL);
}

/* The rank, as the launcher says it before MPI does. */
static int early_rank(void)
{
    const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (int i = 0; i < 3; i++)
        if (getenv(names[i]))
            return atoi(getenv(names[i]));
    return -1;
}

static void die_after(const char *mode, int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], mode) != 0 || early_rank() != 1)
        return;
    struct itimerval when = {.it_value = {.tv_sec = atol(argv[2]) / 1000000, .tv_usec = atol(argv[2]) % 1000000}};
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &when, NULL);
}

#define BULK (1 << 20)

static int rank, ranks;
static uint64_t state;
/* How often this rank has counted one up at the next. */
static int64_t counted;
static unsigned char *out, *in, *window;

static void filled(const unsigned char *at, size_t len, int seed, const char *what)
{
    for (size_t i = 0; i < len; i += 1 + i / 64)
        if (at[i] != (unsigned char)(seed + i % 251)) {
            printf("rank %d: byte %zu of a %s is wrong\n", rank, i, what);
            fflush(stdout);
            MPI_Abort(MPI_COMM_WORLD, 9);
        }
}

static void fill(unsigned char *at, size_t len, int seed)
{
    for (size_t i = 0; i < len; i++)
        at[i] = (unsigned char)(seed + i % 251);
}

/* One step of the mix; all ranks draw the same one. */
static int step(int number, MPI_Win win)
{
    static const int lengths[] = {8, 8, 4000, 100000, BULK, BULK};
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, sum;
    MPI_Request requests[64];

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint64_t drawn = state * 0x2545F4914F6CDD1DULL >> 11;
    int kind = drawn % 8, len = lengths[drawn / 8 % 6];
    switch (kind) {
    case 0:
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case 1:
        fill(out, len, number + rank);
        MPI_Sendrecv(out, len, MPI_BYTE, next, 1, in, len, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        filled(in, len, number + before, "message");
        break;
    case 2: /* a burst */
        for (int i = 0; i < 32; i++) {
            MPI_Irecv(in + 8 * i, 8, MPI_BYTE, before, 2, MPI_COMM_WORLD, &requests[i]);
            MPI_Isend(out, 8, MPI_BYTE, next, 2, MPI_COMM_WORLD, &requests[32 + i]);
        }
        MPI_Waitall(64, requests, MPI_STATUSES_IGNORE);
        break;
    case 3:
        if (rank == 0)
            fill(in, len, number);
        MPI_Bcast(in, len, MPI_BYTE, 0, MPI_COMM_WORLD);
        filled(in, len, number, "broadcast");
        break;
    case 4:
        fill(out, len, number + rank);
        MPI_Win_fence(0, win);
        MPI_Put(out, len, MPI_BYTE, next, 0, len, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        filled(window, len, number + before, "put");
        break;
    case 5:
        fill(window, len, number + rank);
        MPI_Win_fence(0, win);
        MPI_Get(in, len, MPI_BYTE, next, 0, len, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        filled(in, len, number + next, "get");
        break;
    case 6:
        memset(window, 0, len);
        fill(out, len, number + rank);
        MPI_Win_fence(0, win);
        MPI_Accumulate(out, len / 8, MPI_INT64_T, next, 0, len / 8, MPI_INT64_T, MPI_SUM, win);
        MPI_Win_fence(0, win);
        filled(window, len, number + before, "accumulate");
        break;
    case 7: {
        int64_t one = 1, was = -1;
        fill(out, len, number + rank);
        /* The next may still look at what came to its window in the step before. */
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, next, 0, win);
        MPI_Fetch_and_op(&one, &was, MPI_INT64_T, next, BULK, MPI_SUM, win);
        MPI_Put(out, len, MPI_BYTE, next, 0, len, MPI_BYTE, win);
        MPI_Win_unlock(next, win);
        MPI_Barrier(MPI_COMM_WORLD);
        /* Nobody else counts there. */
        if (was != counted++) {
            printf("rank %d: fetched %lld in place of %lld\n", rank, (long long)was, (long long)counted - 1);
            fflush(stdout);
            MPI_Abort(MPI_COMM_WORLD, 9);
        }
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, win);
        filled(window, len, number + before, "put under a lock");
        MPI_Win_unlock(rank, win);
        /* What others put is not to meet the next step. */
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
    }
    return kind;
}

/* So many steps; for ever if that is 0. */
static void mix(int steps, uint64_t seed)
{
    int done[8] = {0};
    MPI_Win win;

    state = 2 * seed + 1;
    out = malloc(BULK);
    in = malloc(BULK);
    MPI_Win_allocate(BULK + 8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    memset(out, 0, BULK);
    memset(window, 0, BULK + 8);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; steps == 0 || i < steps; i++)
        done[step(i, win)]++;
    MPI_Win_free(&win);
    if (rank == 0) {
        printf("mixed:");
        for (int i = 0; i < 8; i++)
            printf(" %d", done[i]);
        printf("\n");
    }
}

/* What this rank has mapped in /dev/shm, for the test to look for afterwards. */
static void tell_mapped(void)
{
    char line[4096], *path;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps))
        if ((path = strstr(line, "/dev/shm/")) && !strstr(path, " (deleted)"))
            printf("mapped %s", path);
    if (maps)
        fclose(maps);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int sum;

    /* Intel's launcher waits for ever for the others of a rank that ended before it was in MPI_Init, with isthmus or
       without. */
#ifndef I_MPI_VERSION
    die_after("die-after", argc, argv);
#endif
    MPI_Init(&argc, &argv);
#ifdef I_MPI_VERSION
    die_after("die-after", argc, argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    tell_mapped();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
    }
    if (argc > 1 && rank == ranks - 1) {
        /* What they have told is to come through. */
        usleep(200000);
        if (strcmp(argv[1], "abort") == 0)
            MPI_Abort(MPI_COMM_WORLD, 5);
        if (strcmp(argv[1], "exit") == 0)
            exit(5);
    }
    if (argc > 1 && strcmp(argv[1], "die") == 0 && rank == ranks - 1) {
        sleep(1);
        puts("dying");
        fflush(stdout);
        usleep(300000);
        kill(getpid(), SIGKILL);
    }
    if (argc > 3) {
        die_after("die-at-work", argc, argv);
        mix(strcmp(argv[1], "mix") == 0 ? atoi(argv[2]) : 0, strtoull(argv[3], NULL, 10));
        MPI_Finalize();
        return 0;
    }
    double next = MPI_Wtime() + 1;
    for (int step = 1;;) {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && argc > 1 && strcmp(argv[1], "count") == 0 && MPI_Wtime() > next) {
            printf("step %d\n", step++);
            fflush(stdout);
            next = MPI_Wtime() + 1;
        }
    }
}
