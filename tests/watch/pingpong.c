/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two ranks that exchange short and long messages for as many seconds as they are told. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static char bytes[100000];

static void exchange(int rank, int len)
{
    if (rank == 0) {
        MPI_Send(bytes, len, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(bytes, len, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(bytes, len, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(bytes, len, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, go = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double end = MPI_Wtime() + atof(argc > 1 ? argv[1] : "1");
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
    }
    while (go) {
        for (int i = 0; i < 20; i++)
            exchange(rank, 8);
        exchange(rank, sizeof bytes);
        go = MPI_Wtime() < end;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
