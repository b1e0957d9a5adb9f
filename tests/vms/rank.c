/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A rank for tests/vms/run.
 *
 *   wait           says `ready` once all ranks have heard of each other, then works on for ever
 *   among BYTES [FILE]   all pairs talk: sums, alltoall and messages of several lengths up to BYTES, with their contents
 *                  checked; then rank 0 says `checked`, and all go on until there is such a file
 *   long BYTES     rank 0 sends one message of so many bytes to rank 1, which sends it back, as MPI-4 does and by a derived type
 *   shout BYTES    each rank prints numbered lines of so many bytes in all, and nothing else is printed
 *   eat            the last rank fills memory until somebody stops it; the others wait for it
 *   spawn N [HOST]   the ranks start N more, there if a host is named, and all of them talk
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks;

static void wrong(const char *what, size_t at)
{
    printf("rank %d: %s is wrong at %zu\n", rank, what, at);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 9);
}

/* What stands at word `i` of a message that follows from `seed`: no two words of one message are the same. */
static uint64_t word(uint64_t seed, size_t i)
{
    return (seed + i) * 0x9E3779B97F4A7C15ULL;
}

static void fill(uint64_t *at, size_t words, uint64_t seed)
{
    for (size_t i = 0; i < words; i++)
        at[i] = word(seed, i);
}

static void check(const uint64_t *at, size_t words, uint64_t seed, const char *what)
{
    for (size_t i = 0; i < words; i++)
        if (at[i] != word(seed, i))
            wrong(what, i);
}

static void *memory(size_t bytes)
{
    void *got = malloc(bytes);
    if (!got) {
        printf("rank %d: no %zu bytes of memory\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 8);
    }
    return got;
}

/* Every rank with every other one, all content checked. */
static void among(MPI_Comm comm, size_t most)
{
    int me, all;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    uint64_t *out = memory(most * all), *in = memory(most * all);
    MPI_Request *requests = memory(2 * all * sizeof *requests);

    for (size_t bytes = 8; bytes <= most; bytes *= 8) {
        size_t words = bytes / 8;
        for (int to = 0; to < all; to++)
            fill(out + to * words, words, 1000 * me + to);
        memset(in, 0, bytes * all);
        MPI_Alltoall(out, (int)words, MPI_UINT64_T, in, (int)words, MPI_UINT64_T, comm);
        for (int from = 0; from < all; from++)
            check(in + from * words, words, 1000 * from + me, "alltoall");

        memset(in, 0, bytes * all);
        for (int other = 0; other < all; other++) {
            MPI_Irecv(in + other * words, (int)words, MPI_UINT64_T, other, (int)bytes, comm, &requests[2 * other]);
            MPI_Isend(out + other * words, (int)words, MPI_UINT64_T, other, (int)bytes, comm, &requests[2 * other + 1]);
        }
        MPI_Waitall(2 * all, requests, MPI_STATUSES_IGNORE);
        for (int from = 0; from < all; from++)
            check(in + from * words, words, 1000 * from + me, "a message");

        for (size_t i = 0; i < words; i++)
            out[i] = i + (uint64_t)me;
        MPI_Allreduce(out, in, (int)words, MPI_UINT64_T, MPI_SUM, comm);
        for (size_t i = 0; i < words; i++)
            if (in[i] != all * i + (uint64_t)all * (all - 1) / 2)
                wrong("a sum", i);
    }
    free(requests);
    free(in);
    free(out);
}

/* Works on, and says so, until there is such a file. */
static void until(const char *file)
{
    int there = file == NULL;

    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && !there) {
        puts("checked");
        fflush(stdout);
    }
    while (!there) {
        if (rank == 0) {
            there = access(file, F_OK) == 0;
            usleep(50000);
        }
        MPI_Bcast(&there, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

static void long_message(size_t bytes)
{
    size_t words = bytes / 8;
    uint64_t *buffer = memory(bytes);

    /* One type of 1 MB, so that the number of them is small. */
    MPI_Datatype block;
    MPI_Type_contiguous(1 << 17, MPI_UINT64_T, &block);
    MPI_Type_commit(&block);
    int blocks = (int)(words >> 17);
    double begin = MPI_Wtime();
    if (rank == 0) {
        fill(buffer, words, 7);
        MPI_Send(buffer, blocks, block, 1, 1, MPI_COMM_WORLD);
        memset(buffer, 0, bytes);
#if MPI_VERSION >= 4
        MPI_Recv_c(buffer, (MPI_Count)bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("large count, ");
#else
        MPI_Recv(buffer, blocks, block, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#endif
        check(buffer, words, 7, "the answer");
        printf("%zu bytes there and back in %.1f s\n", bytes, MPI_Wtime() - begin);
    } else if (rank == 1) {
        MPI_Status status;
        MPI_Count got;
        MPI_Recv(buffer, blocks, block, 0, 1, MPI_COMM_WORLD, &status);
        MPI_Get_elements_x(&status, MPI_UINT64_T, &got);
        if ((size_t)got != words)
            wrong("the count", (size_t)got);
        check(buffer, words, 7, "a long message");
#if MPI_VERSION >= 4
        MPI_Send_c(buffer, (MPI_Count)bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
#else
        MPI_Send(buffer, blocks, block, 0, 2, MPI_COMM_WORLD);
#endif
    }
    MPI_Type_free(&block);
    free(buffer);
}

/* Lines of 100 letters, small ones of rank 0 and capitals of rank 1, so that the two can be told apart wherever a launcher mixes
   them: the line's number in eight digits of 26, and letters that follow from it. */
static void shout(size_t bytes)
{
    char line[100], first = rank == 0 ? 'a' : 'A';
    for (size_t number = 0; number < bytes / 100; number++) {
        size_t rest = number;
        for (int i = 7; i >= 0; i--, rest /= 26)
            line[i] = (char)(first + rest % 26);
        for (size_t i = 8; i < 99; i++)
            line[i] = (char)(first + (number + i) % 26);
        line[99] = '\n';
        fwrite(line, 1, 100, stdout);
    }
    fflush(stdout);
}

static void eat(void)
{
    if (rank != ranks - 1) {
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    for (;;) {
        /* Volatile, or the compiler leaves out what nobody reads. */
        volatile char *piece = memory(1 << 22);
        for (size_t i = 0; i < 1 << 22; i += 512)
            piece[i] = (char)i;
    }
}

static void spawn(const char *program, int more, const char *host)
{
    MPI_Comm parents, children, everybody;
    char *arguments[] = {"child", NULL};
    MPI_Info info = MPI_INFO_NULL;
    int *codes = memory((size_t)more * sizeof *codes);

    MPI_Comm_get_parent(&parents);
    if (parents == MPI_COMM_NULL) {
        if (host) {
            MPI_Info_create(&info);
            MPI_Info_set(info, "host", host);
        }
        MPI_Comm_spawn(program, arguments, more, info, 0, MPI_COMM_WORLD, &children, codes);
        MPI_Intercomm_merge(children, 0, &everybody);
    } else {
        children = parents;
        MPI_Intercomm_merge(parents, 1, &everybody);
    }
    among(everybody, 1 << 15);
    int me, all, length;
    char place[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm_rank(everybody, &me);
    MPI_Comm_size(everybody, &all);
    MPI_Get_processor_name(place, &length);
    printf("%s %d of %d on %s\n", parents == MPI_COMM_NULL ? "parent" : "child", me, all, place);
    fflush(stdout);
    MPI_Barrier(everybody);
    MPI_Comm_free(&everybody);
    MPI_Comm_disconnect(&children);
    free(codes);
}

int main(int argc, char **argv)
{
    int sum;
    const char *mode = argc > 1 ? argv[1] : "wait";
    size_t number = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (strcmp(mode, "child") == 0) {
        spawn(argv[0], 1, NULL);
        MPI_Finalize();
        return 0;
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (strcmp(mode, "shout") == 0) {
        shout(number);
        MPI_Finalize();
        return 0;
    }
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
    }
    if (strcmp(mode, "among") == 0) {
        among(MPI_COMM_WORLD, number);
        until(argc > 3 ? argv[3] : NULL);
    } else if (strcmp(mode, "long") == 0) {
        long_message(number);
    } else if (strcmp(mode, "eat") == 0) {
        eat();
    } else if (strcmp(mode, "spawn") == 0) {
        spawn(argv[0], (int)number, argc > 3 ? argv[3] : NULL);
    } else {
        for (;;)
            MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts("done");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
