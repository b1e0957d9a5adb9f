/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Loops of collective calls, with whatever algorithm the MPI takes for them. */
#include "bench.h"

#include <mpi.h>

#define MOST_VALUES 512

static void allreduce(size_t bytes, uint64_t round)
{
    static uint64_t mine[MOST_VALUES], sums[MOST_VALUES];
    const uint64_t all = (uint64_t)ranks;
    int values = (int)(bytes / sizeof mine[0]);

    for (int i = 0; i < values; i++)
        mine[i] = round + (uint64_t)(my_rank + i);
    MPI_Allreduce(mine, sums, values, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < values; i++)
        if (sums[i] != all * (round + (uint64_t)i) + all * (all - 1) / 2)
            die("an allreduce gave a wrong sum");
}

double collective_batch(const struct block *b, uint64_t rounds)
{
    double start;

    if (b->kind == ALLREDUCE && (b->bytes == 0 || b->bytes % 8 != 0 || b->bytes > MOST_VALUES * 8))
        die("an allreduce takes 8 to 4096 bytes, in eights");
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        if (b->kind == BARRIER)
            MPI_Barrier(MPI_COMM_WORLD);
        else
            allreduce(b->bytes, i);
    }
    return now_seconds() - start;
}

/*
 * In either operation every rank learns from every other one. No algorithm does that with fewer one-way messages: when
 * the first rank knows of all, each of the others has sent once, and all but that one must still be told.
 */
uint64_t collective_messages(void)
{
    return 2 * (uint64_t)(ranks - 1);
}
