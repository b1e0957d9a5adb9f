/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A check that ends the job, and says at which rank. */
#include <mpi.h>
#include <stdio.h>

static int rank;

#define CHECK(condition)                                                                                 \
	do {                                                                                             \
		if (!(condition)) {                                                                      \
			fprintf(stderr, "%s:%d: rank %d: not so: %s\n", __FILE__, __LINE__, rank,        \
				#condition);                                                             \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                    \
		}                                                                                        \
	} while (0)
