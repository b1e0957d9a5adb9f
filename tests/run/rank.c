/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A rank for tests/run/ends. Says `ready` once every rank is up and has heard from every other, then works on
 * for ever; told `die`, the last rank kills itself a second later; told `die-after MICROSECONDS`, rank 1 does, counted
 * from before MPI_Init, or under Intel MPI from its end; told `count`, rank 0 says `step N` about every second.
 */
#include <mpi.h>
#include <signal.h>
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

static void die_after(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], "die-after") != 0 || early_rank() != 1)
        return;
    struct itimerval when = {.it_value = {.tv_sec = atol(argv[2]) / 1000000, .tv_usec = atol(argv[2]) % 1000000}};
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &when, NULL);
}

int main(int argc, char **argv)
{
    int rank, ranks, sum;

    /* Intel's launcher waits for ever for the others of a rank that ended before it was in MPI_Init, with isthmus or
       without. */
#ifndef I_MPI_VERSION
    die_after(argc, argv);
#endif
    MPI_Init(&argc, &argv);
#ifdef I_MPI_VERSION
    die_after(argc, argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
    }
    if (argc > 1 && strcmp(argv[1], "die") == 0 && rank == ranks - 1) {
        sleep(1);
        puts("dying");
        fflush(stdout);
        usleep(300000);
        kill(getpid(), SIGKILL);
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
