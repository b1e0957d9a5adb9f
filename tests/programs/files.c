// SPDX-License-Identifier: Apache-2.0 OR MIT
// Writes interleaved records from all ranks into one file, independently and collectively, and checks each byte.
//
//   files FILE [ROUNDS]
//
// Ranks write their records through a strided file view at the same time. An MPI that reads, changes and writes back
// stretches of the file loses the records of others, unless a lock reaches all of them or it is told not to.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD = 24, RECORDS = 1000 };

static int rank, size;

static unsigned char byte_of(int owner, int record, int at, int round) {
    return (unsigned char)(owner * 61 + record * 7 + at + round * 13 + 1);
}

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int len;
    MPI_Error_string(code, text, &len);
    fprintf(stderr, "files: rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

// Returns how many records of the file are not what their owner wrote.
static int wrong_records(const char *name, int round) {
    FILE *file = fopen(name, "rb");
    unsigned char record[RECORD];
    int wrong = 0;
    if (!file) return -1;
    for (int i = 0; i < RECORDS * size; i++) {
        if (fread(record, RECORD, 1, file) != 1) {
            wrong += RECORDS * size - i;
            break;
        }
        for (int at = 0; at < RECORD; at++)
            if (record[at] != byte_of(i % size, i / size, at, round)) {
                wrong++;
                break;
            }
    }
    fclose(file);
    return wrong;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) {
        fprintf(stderr, "usage: files FILE [ROUNDS]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int rounds = argc > 2 ? atoi(argv[2]) : 4, failed = 0;
    unsigned char *mine = malloc(RECORD * RECORDS);
    MPI_Datatype strided;
    MPI_Type_vector(RECORDS, RECORD, RECORD * size, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    for (int round = 0; round < rounds; round++) {
        int collective = round % 2;
        for (int i = 0; i < RECORDS; i++)
            for (int at = 0; at < RECORD; at++) mine[i * RECORD + at] = byte_of(rank, i, at, round);
        MPI_File file;
        check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
        check(MPI_File_set_view(file, (MPI_Offset)rank * RECORD, MPI_BYTE, strided, "native", MPI_INFO_NULL), "view");
        MPI_Barrier(MPI_COMM_WORLD);
        if (collective)
            check(MPI_File_write_all(file, mine, RECORD * RECORDS, MPI_BYTE, MPI_STATUS_IGNORE), "write_all");
        else
            check(MPI_File_write(file, mine, RECORD * RECORDS, MPI_BYTE, MPI_STATUS_IGNORE), "write");
        check(MPI_File_close(&file), "close");
        MPI_Barrier(MPI_COMM_WORLD);
        int wrong = wrong_records(argv[1], round);
        if (wrong) {
            printf("files: rank %d, round %d (%s): %d of %d records are wrong\n", rank, round,
                   collective ? "collective" : "independent", wrong, RECORDS * size);
            failed = 1;
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) MPI_File_delete(argv[1], MPI_INFO_NULL);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && !failed) printf("files: %d rounds of %d ranks, all records as written\n", rounds, size);
    MPI_Finalize();
    return failed;
}
