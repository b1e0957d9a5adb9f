/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A rank for tests/run/ends. Says `ready` once every rank is up and has heard from every other, then works on
 * for ever; told `die`, the last rank kills itself a second later.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, ranks, sum;

    MPI_Init(&argc, &argv);
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
    for (;;)
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}
