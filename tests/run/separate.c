/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Ranks that reach each other in every way: messages, puts, accumulates and atomics, all looked at. Then rank 0 says `ready`, and all
 * meet until the file that the argument names is there.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG = 100000, ROUNDS = 20 };

static int rank, size;

static void check(int right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 9);
}

static void messages(int len)
{
    char *out = malloc(len), *in = malloc(len);
    for (int step = 1; step < size; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        memset(out, rank + 1, len);
        memset(in, 0, len);
        MPI_Sendrecv(out, len, MPI_BYTE, to, step, in, len, MPI_BYTE, from, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(in[0] == from + 1 && in[len - 1] == from + 1, "a message is wrong");
    }
    free(out);
    free(in);
}

static void one_sided(void)
{
    long *own, got = -1, one = 1, mine = rank;
    MPI_Win win;
    MPI_Win_allocate((size + 2) * sizeof *own, sizeof *own, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &win);
    MPI_Win_lock_all(0, win);
    memset(own, 0, (size + 2) * sizeof *own);
    MPI_Win_sync(win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int to = 0; to < size; to++) {
        MPI_Put(&mine, 1, MPI_LONG, to, rank, 1, MPI_LONG, win);
        for (int i = 0; i < ROUNDS; i++)
            MPI_Accumulate(&one, 1, MPI_LONG, to, size, 1, MPI_LONG, MPI_SUM, win);
        for (int i = 0; i < ROUNDS; i++)
            MPI_Fetch_and_op(&one, &got, MPI_LONG, to, size + 1, MPI_SUM, win);
    }
    MPI_Win_flush_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    for (int from = 0; from < size; from++)
        check(own[from] == from, "a put is wrong");
    check(own[size] == size * ROUNDS, "an accumulate is lost");
    check(own[size + 1] == size * ROUNDS && got >= 0, "a fetch_and_op is lost");
    MPI_Get(&got, 1, MPI_LONG, (rank + 1) % size, rank, 1, MPI_LONG, win);
    MPI_Win_flush_all(win);
    check(got == rank, "a get is wrong");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    int go = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < ROUNDS; i++) {
        messages(8);
        messages(LONG);
    }
    one_sided();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
    }
    while (go) {
        messages(8);
        go = argc > 1 && access(argv[1], F_OK) != 0;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
