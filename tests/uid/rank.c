/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * rank describe           says, a line each, what makes this process its caller's
 * rank BYTES FILE         two ranks: rank 0 prints the same lines for both, `0 ` or `1 ` before each; each writes its
 *                         FILE.<rank> here, which the other reads whole; then BYTES go there and back
 */
#define _GNU_SOURCE
#include <grp.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES 1234567

extern char **environ;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int ascending(const void *a, const void *b)
{
    gid_t x = *(const gid_t *)a, y = *(const gid_t *)b;

    return (x > y) - (x < y);
}

/* With line ends as \n, so that each item stays on a line of its own. */
static void put_text(FILE *to, const char *text)
{
    for (; *text; text++)
        if (*text == '\n')
            fputs("\\n", to);
        else
            putc(*text, to);
    putc('\n', to);
}

static void describe(FILE *to)
{
    uid_t uids[3];
    gid_t gids[3], groups[256];
    mode_t mask = umask(0);
    char cwd[4096];
    int count = getgroups(256, groups);

    umask(mask);
    if (getresuid(&uids[0], &uids[1], &uids[2]) != 0 || getresgid(&gids[0], &gids[1], &gids[2]) != 0 || count < 0)
        fail("ids");
    fprintf(to, "uid %u %u %u\ngid %u %u %u\ngroups", uids[0], uids[1], uids[2], gids[0], gids[1], gids[2]);
    qsort(groups, (size_t)count, sizeof *groups, ascending);
    for (int i = 0; i < count; i++)
        fprintf(to, " %u", groups[i]);
    fprintf(to, "\numask %03o\n", mask);
    for (int resource = 0; resource < (int)RLIM_NLIMITS; resource++) {
        struct rlimit limit;

        if (getrlimit(resource, &limit) == 0)
            fprintf(to, "limit %d %lld %lld\n", resource, (long long)limit.rlim_cur, (long long)limit.rlim_max);
    }
    if (!getcwd(cwd, sizeof cwd))
        fail("getcwd");
    fprintf(to, "cwd ");
    put_text(to, cwd);
    for (char **variable = environ; *variable; variable++) {
        fprintf(to, "env ");
        put_text(to, *variable);
    }
}

static char byte_of(int rank, int at)
{
    return (char)((unsigned)(at + rank) * 2654435761u >> 13);
}

static void exchange_files(int rank, const char *name)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s.%d", name, rank);
    file = fopen(path, "wx");
    if (!file)
        fail(path);
    for (int i = 0; i < FILE_BYTES; i++)
        putc(byte_of(rank, i), file);
    if (fclose(file) != 0)
        fail(path);
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(path, sizeof path, "%s.%d", name, !rank);
    file = fopen(path, "r");
    if (!file)
        fail(path);
    for (int i = 0; i < FILE_BYTES; i++)
        if (getc(file) != (unsigned char)byte_of(!rank, i)) {
            fprintf(stderr, "%s: byte %d is missing or wrong\n", path, i);
            exit(1);
        }
    if (getc(file) != EOF) {
        fprintf(stderr, "%s: more than was written\n", path);
        exit(1);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    int rank, bytes, length;
    char *mine = NULL, *other, *line;
    size_t size = 0;
    FILE *text;

    if (argc == 2 && strcmp(argv[1], "describe") == 0) {
        describe(stdout);
        return 0;
    }
    /* Before MPI_Init, which adds variables of its own. */
    text = open_memstream(&mine, &size);
    if (argc != 3 || !text)
        fail("usage: rank describe | rank BYTES FILE");
    describe(text);
    fclose(text);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    exchange_files(rank, argv[2]);

    length = (int)size + 1;
    if (rank == 0) {
        for (int from = 0; from < 2; from++) {
            MPI_Status status;

            if (from == 1) {
                MPI_Probe(1, 1, MPI_COMM_WORLD, &status);
                MPI_Get_count(&status, MPI_CHAR, &length);
                mine = realloc(mine, (size_t)length);
                MPI_Recv(mine, length, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            for (line = strtok(mine, "\n"); line; line = strtok(NULL, "\n"))
                printf("%d %s\n", from, line);
        }
    } else {
        MPI_Send(mine, length, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }

    bytes = atoi(argv[1]);
    other = calloc(1, (size_t)bytes);
    if (rank == 0)
        MPI_Send(other, bytes, MPI_CHAR, 1, 2, MPI_COMM_WORLD);
    MPI_Recv(other, bytes, MPI_CHAR, !rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1)
        MPI_Send(other, bytes, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
