/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Routines of BLAS in MPI: see ../blas.c. Each rank has its own rows; before each call, rank 0 sends all ranks the operand that
 * they need as a whole, and at the end of all it collects the result.
 */
#include "../kernels/kernels.h"
#include <mpi.h>

int main(int argc, char **argv)
{
	int rank, size, counts[MOST_PROCESSES], places[MOST_PROCESSES];
	void *operand[3] = {0}, *all = NULL;
	double sum = 0;
	MPI_Datatype row;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	struct options o = parse(argc, argv, MPI, &blas);
	const struct blas_routine *r = blas_routine(&o);
	struct slice mine = slice_of(o.n, rank, size), everything = {0, o.n};

	for (int i = 0; i < r->operands; i++) {
		struct slice rows = r->operand[i].whole ? everything : mine;
		operand[i] = zeros(blas_row_bytes(r, i, o.n) * (size_t)(rows.end - rows.begin));
		if (!r->operand[i].whole || rank == 0)
			blas_start(r, i, o.n, rows, operand[i]);
	}
	for (int i = 0; i < size; i++) {
		struct slice theirs = slice_of(o.n, i, size);
		counts[i] = (int)(theirs.end - theirs.begin);
		places[i] = (int)theirs.begin;
	}
	int result = r->result < 0 ? 0 : r->result;
	MPI_Type_contiguous((int)blas_row_bytes(r, result, o.n), MPI_BYTE, &row);
	MPI_Type_commit(&row);
	if (rank == 0)
		all = zeros(blas_row_bytes(r, result, o.n) * (size_t)o.n);

	MPI_Barrier(MPI_COMM_WORLD);
	double begin = now();
	for (long step = 0; step < o.steps; step++) {
		for (int i = 0; i < r->operands; i++)
			if (r->operand[i].whole)
				MPI_Bcast(operand[i], (int)(blas_row_bytes(r, i, o.n) / r->element * (size_t)o.n),
					  r->element == sizeof(float) ? MPI_FLOAT : MPI_DOUBLE, 0, MPI_COMM_WORLD);
		double part = r->compute(mine.end - mine.begin, o.n, step, operand);
		if (r->result < 0)
			MPI_Reduce(&part, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		else
			MPI_Barrier(MPI_COMM_WORLD);
	}
	if (r->result >= 0)
		MPI_Gatherv(operand[result], counts[rank], row, all, counts, places, row, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		double seconds = now() - begin, answer = blas_answer(r, o.n, sum, all);
		print_record(&o, size, seconds, answer, blas_error(r, o.n, o.steps, answer));
	}
	MPI_Type_free(&row);
	MPI_Finalize();
	return 0;
}
