/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * One operation on memory of the other rank after the other, each until it is complete there: MPI_Put or MPI_Get and MPI_Win_flush. The
 * target does nothing meanwhile but wait for the end of the batch.
 */
#include "bench.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

/* The window, and where in it: away from its edges, which share their pages with other memory. */
#define WINDOW_BYTES (1u << 20)
#define PLACE (128u << 10)

/* The allocator's own, as a program's are. */
static char *mine;
static MPI_Win window;

void window_open(const struct block *b)
{
    if (b->bytes > WINDOW_BYTES - 2 * PLACE)
        die("a window has 768 KiB at most for an operation");
    mine = calloc(1, WINDOW_BYTES);
    if (!mine)
        die("no memory for a window");
    MPI_Win_create(mine, WINDOW_BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    MPI_Barrier(MPI_COMM_WORLD);
}

void window_close(void)
{
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(mine);
}

double window_batch(const struct block *b, uint64_t rounds)
{
    /* What is there in the end is looked at by its owner. */
    static uint64_t number;
    const int bytes = (int)b->bytes, is_put = b->kind == PUT;
    char *local = calloc(1, b->bytes);
    double took;

    if (!local)
        die("no memory for what is put");
    if (my_rank == 1 && !is_put) {
        touch(mine + PLACE, b->bytes, rounds);
        MPI_Win_sync(window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    took = now_seconds();
    for (uint64_t i = 0; my_rank == 0 && i < rounds; i++) {
        if (is_put) {
            touch(local, b->bytes, number + i);
            MPI_Put(local, bytes, MPI_BYTE, 1, PLACE, bytes, MPI_BYTE, window);
        } else {
            MPI_Get(local, bytes, MPI_BYTE, 1, PLACE, bytes, MPI_BYTE, window);
        }
        MPI_Win_flush(1, window);
        if (!is_put)
            check_touch(local, b->bytes, rounds);
    }
    took = now_seconds() - took;
    MPI_Barrier(MPI_COMM_WORLD);
    number += rounds;
    if (my_rank == 1 && is_put) {
        MPI_Win_sync(window);
        check_touch(mine + PLACE, b->bytes, number - 1);
    }
    free(local);
    return took;
}
