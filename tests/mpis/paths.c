// SPDX-License-Identifier: Apache-2.0 OR MIT
// Uses each kind of communication whose native path is to be seen: tagged messages short and long, from a named source
// and from any, put and get, and the accumulate family with one operation for all. Answers are checked.
//
//   paths [pt2pt|rma|atomics|windows|init]...   the first three by default; windows is all of atomics but these themselves, and
//                                               init one barrier
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONG = 1 << 20, WORDS = 1024, ROUNDS = 50 };

static int rank, size;

static void fail(const char *what) {
    fprintf(stderr, "paths: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void pt2pt(void) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    char *out = malloc(LONG), *in = malloc(LONG);
    for (int round = 0; round < ROUNDS; round++) {
        int len = round % 10 ? 1 << (round % 10) : LONG, from = round % 2 ? left : MPI_ANY_SOURCE;
        MPI_Status status;
        memset(out, rank + round, (size_t)len);
        MPI_Sendrecv(out, len, MPI_CHAR, right, round, in, len, MPI_CHAR, from, round, MPI_COMM_WORLD, &status);
        if (status.MPI_SOURCE != left || in[0] != (char)(left + round) || in[len - 1] != in[0]) fail("wrong message");
    }
    free(out);
    free(in);
}

static MPI_Win window(MPI_Aint bytes, void *base) {
    MPI_Info info;
    MPI_Win win;
    MPI_Info_create(&info);
    MPI_Info_set(info, "accumulate_ops", "same_op");
    // MPICH would do them with the processor's own instructions where ranks share a host.
    MPI_Info_set(info, "disable_shm_accumulate", "true");
    MPI_Win_create(base, bytes, sizeof(long), info, MPI_COMM_WORLD, &win);
    MPI_Info_free(&info);
    return win;
}

static void rma(void) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    long *mine = calloc(WORDS, sizeof(long)), *copy = calloc(WORDS, sizeof(long));
    MPI_Win win = window(WORDS * sizeof(long), mine);
    for (long round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < WORDS; i++) copy[i] = round * 1000 + rank;
        MPI_Win_fence(0, win);
        MPI_Put(copy, WORDS, MPI_LONG, right, 0, WORDS, MPI_LONG, win);
        MPI_Win_fence(0, win);
        if (mine[0] != round * 1000 + left || mine[WORDS - 1] != mine[0]) fail("wrong put");
        MPI_Get(copy, WORDS, MPI_LONG, right, 0, WORDS, MPI_LONG, win);
        MPI_Win_fence(0, win);
        if (copy[0] != round * 1000 + rank || copy[WORDS - 1] != copy[0]) fail("wrong get");
    }
    MPI_Win_free(&win);
    free(mine);
    free(copy);
}

static void atomics(int rounds) {
    long *mine = calloc(2, sizeof(long)), one = 1, sum = 0;
    MPI_Win win = window(2 * sizeof(long), mine);
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < rounds; round++) {
        long before = -1;
        MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, win);
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, win);
        MPI_Get_accumulate(&one, 1, MPI_LONG, &sum, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, win);
        MPI_Win_flush(0, win);
        if (before < 2 * round || sum <= before) fail("a fetched value went back");
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
    MPI_Fetch_and_op(&one, &sum, MPI_LONG, 0, 0, MPI_NO_OP, win);
    MPI_Win_unlock(0, win);
    if (sum != 3L * rounds * size) fail("accumulates were lost");
    // A swap of its own window, whose only operation it is.
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&win);
    mine[0] = 0;
    win = window(2 * sizeof(long), mine);
    long got = -1, tries = 0, want, next;
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < rounds; round++)
        for (got = -1, want = 0; got != want; tries++) {
            if (got >= 0) want = got;
            next = want + 1;
            MPI_Compare_and_swap(&next, &want, &got, MPI_LONG, 0, 0, win);
            MPI_Win_flush(0, win);
        }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && mine[0] != (long)rounds * size) fail("swaps were lost");
    MPI_Win_free(&win);
    free(mine);
}

int main(int argc, char **argv) {
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    MPI_Init(&argc, &argv);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc == 1) {
        pt2pt();
        rma();
        atomics(ROUNDS);
    }
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "pt2pt")) pt2pt();
        else if (!strcmp(argv[i], "rma")) rma();
        else if (!strcmp(argv[i], "atomics")) atomics(ROUNDS);
        else if (!strcmp(argv[i], "windows")) atomics(0);
        else if (!strcmp(argv[i], "init")) MPI_Barrier(MPI_COMM_WORLD);
        else fail("unknown part");
    }
    double init = (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) / 1e9;
    if (rank == 0) printf("paths: all answers right, MPI_Init took %.3f s\n", init);
    MPI_Finalize();
    return 0;
}
