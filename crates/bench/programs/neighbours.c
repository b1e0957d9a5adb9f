/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Ranks that exchange messages with some others, or all of them, and then hold still until they are told to end, so that
 * somebody else can look at what memory that took. What they say to each other goes through files, since any collective
 * call would connect further ranks: rank N writes DIRECTORY/N when it has exchanged, and waits for DIRECTORY/end.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 4
#define MOST_BYTES 65536
/* Seconds after which nobody is going to tell us any more. */
#define PATIENCE 120

static const int sizes[] = { 8, 8192, MOST_BYTES };

/* The ring's nearest on both sides, `count` of them. */
static int neighbour(int i)
{
    int step = i / 2 + 1;

    return (my_rank + (i % 2 ? ranks - step : step)) % ranks;
}

static void exchange(int count, int bytes, char *out, char *in, MPI_Request *requests)
{
    memset(out, my_rank & 0xff, (size_t)bytes);
    for (int i = 0; i < count; i++)
        MPI_Irecv(in + (size_t)i * MOST_BYTES, bytes, MPI_BYTE, neighbour(i), TAG, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < count; i++)
        MPI_Isend(out, bytes, MPI_BYTE, neighbour(i), TAG, MPI_COMM_WORLD, &requests[count + i]);
    MPI_Waitall(2 * count, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++) {
        const char *got = in + (size_t)i * MOST_BYTES, wanted = (char)(neighbour(i) & 0xff);

        if (got[0] != wanted || got[bytes - 1] != wanted)
            die("a neighbour's message arrived with wrong content");
    }
}

static void hold(const char *directory)
{
    const char *run = getenv("ISTHMUS_RUN");
    char path[4096], done[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%d.part", directory, my_rank);
    snprintf(done, sizeof done, "%s/%d", directory, my_rank);
    file = fopen(path, "w");
    if (!file || fprintf(file, "%s\n", run ? run : "") < 0 || fclose(file) != 0 || rename(path, done) != 0)
        die("cannot write into the directory that was named");
    snprintf(path, sizeof path, "%s/end", directory);
    for (double start = now_seconds(); access(path, F_OK) != 0; nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL))
        if (now_seconds() - start > PATIENCE)
            die("nobody said that this is the end");
}

int neighbours_main(const char *plan, const char *directory)
{
    int count = strcmp(plan, "all") == 0 ? ranks - 1 : atoi(plan);
    char *out = malloc(MOST_BYTES), *in = malloc((size_t)MOST_BYTES * (size_t)ranks);
    MPI_Request *requests = malloc(sizeof(MPI_Request) * 2 * (size_t)ranks);

    if (count < 1 || count >= ranks)
        die("there are fewer ranks than neighbours, or none");
    if (!out || !in || !requests)
        die("no memory for the message buffers");
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            exchange(count, sizes[i], out, in, requests);
    hold(directory);
    free(out);
    free(in);
    free(requests);
    MPI_Finalize();
    return 0;
}
