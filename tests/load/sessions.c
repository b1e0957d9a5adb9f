/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * MPI sessions: several at once, opened and closed again and again, beside none of the world model's and then with it.
 *
 * usage: mpirun -n N sessions
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                 \
	do {                                                                                             \
		if (!(condition)) {                                                                      \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);          \
			abort();                                                                         \
		}                                                                                        \
	} while (0)

static MPI_Comm open_one(MPI_Session *session, const char *tag)
{
	MPI_Group group;
	MPI_Comm comm;
	CHECK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, session) == MPI_SUCCESS);
	CHECK(MPI_Group_from_session_pset(*session, "mpi://WORLD", &group) == MPI_SUCCESS);
	CHECK(MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm) == MPI_SUCCESS);
	MPI_Group_free(&group);
	return comm;
}

static void use(MPI_Comm comm)
{
	int rank, size, sum;
	static char big[2][100000];
	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &size);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
	CHECK(sum == size * (size - 1) / 2);
	big[0][99999] = (char)rank;
	MPI_Sendrecv(big[0], 100000, MPI_CHAR, (rank + 1) % size, 1, big[1], 100000, MPI_CHAR, (rank + size - 1) % size, 1, comm,
		     MPI_STATUS_IGNORE);
	CHECK(big[1][99999] == (char)((rank + size - 1) % size));
}

int main(int argc, char **argv)
{
	for (int round = 0; round < 4; round++) {
		MPI_Session a, b;
		MPI_Comm ca = open_one(&a, "a"), cb = open_one(&b, "b");
		use(ca);
		use(cb);
		MPI_Comm_disconnect(&ca);
		MPI_Session_finalize(&a);
		use(cb);
		MPI_Comm_disconnect(&cb);
		MPI_Session_finalize(&b);
	}
	int rank;
	MPI_Session s;
	MPI_Init(&argc, &argv);
	MPI_Comm c = open_one(&s, "c");
	use(c);
	use(MPI_COMM_WORLD);
	MPI_Comm_disconnect(&c);
	MPI_Session_finalize(&s);
	use(MPI_COMM_WORLD);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank == 0)
		printf("sessions: ok\n");
	MPI_Finalize();
	return 0;
}
