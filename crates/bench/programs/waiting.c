/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a ping-pong has to be found among. Either rank 1 has receives posted whose messages do not come until the end, so
 * that each arriving message must be told from all of them; or messages have come to rank 1 that it does not receive
 * until the end, so that each receive must be looked for among them. Each has a tag of its own, and content that is
 * checked when it is received at last.
 */
#include "bench.h"

#include <mpi.h>
#include <stdlib.h>

/* Above every tag that the benchmark uses otherwise, and with 10,000 of them below what each MPI must allow (32767). */
#define FIRST_TAG 1000
#define MOST 30000

static enum kind kind;
static int count;
static uint64_t *contents;
static MPI_Request *requests;

static uint64_t content(int i)
{
    return (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
}

static void send_all(void)
{
    for (int i = 0; i < count; i++) {
        contents[i] = content(i);
        MPI_Isend(&contents[i], 8, MPI_BYTE, 1, FIRST_TAG + i, MPI_COMM_WORLD, &requests[i]);
    }
}

static void receive_all(void)
{
    for (int i = 0; i < count; i++) {
        contents[i] = 0;
        MPI_Irecv(&contents[i], 8, MPI_BYTE, 0, FIRST_TAG + i, MPI_COMM_WORLD, &requests[i]);
    }
}

void waiting_begin(enum kind which, int how_many)
{
    kind = which;
    count = how_many;
    if (count > MOST)
        die("more than 30,000 that wait");
    contents = malloc((size_t)count * sizeof *contents);
    requests = malloc((size_t)count * sizeof(MPI_Request));
    if (!contents || !requests)
        die("no memory for what waits");
    if (kind == POSTED && my_rank == 1)
        receive_all();
    if (kind == UNEXPECTED && my_rank == 0)
        send_all();
}

void waiting_end(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (kind == POSTED && my_rank == 0)
        send_all();
    if (kind == UNEXPECTED && my_rank == 1)
        receive_all();
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++)
        if (my_rank == 1 && contents[i] != content(i))
            die("a message that waited has wrong content");
    free(contents);
    free(requests);
}
