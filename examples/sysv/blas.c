/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Routines of BLAS over System V IPC. All operands lie in the segment; each rank has its own rows of vectors and matrices, and
 * reads others' where the routine needs all. After each call, the result is there for all ranks.
 */
#include "kernels/kernels.h"
#include "team.h"

/* An operand's place in the segment; that of the third and last: its end. */
static size_t place_of(const struct blas_routine *r, int operand, long n)
{
	size_t at = 0;
	for (int i = 0; i < operand && i < r->operands; i++)
		at += (blas_row_bytes(r, i, n) * (size_t)n + 63) / 64 * 64;
	return at;
}

static void work(struct team *t)
{
	const struct options *o = t->options;
	const struct blas_routine *r = blas_routine(o);
	struct slice rows = slice_of(o->n, t->rank, t->size);
	void *whole[3] = {0}, *operand[3] = {0};
	double sum = 0;

	for (int i = 0; i < r->operands; i++) {
		whole[i] = (char *)t->data + place_of(r, i, o->n);
		void *mine = (char *)whole[i] + blas_row_bytes(r, i, o->n) * (size_t)rows.begin;
		operand[i] = r->operand[i].whole ? whole[i] : mine;
		blas_start(r, i, o->n, rows, mine);
	}
	team_barrier(t);
	double begin = now();
	for (long step = 0; step < o->steps; step++) {
		double part = r->compute(rows.end - rows.begin, o->n, step, operand);
		if (r->result < 0)
			sum = team_sum(t, part);
		else
			team_barrier(t);
	}
	if (t->rank == 0) {
		double seconds = now() - begin, answer = blas_answer(r, o->n, sum, r->result < 0 ? NULL : whole[r->result]);
		print_record(o, t->size, seconds, answer, blas_error(r, o->n, o->steps, answer));
	}
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv, SYSV, &blas);
	const struct blas_routine *r = blas_routine(&o);
	return team_run(&o, place_of(r, r->operands, o.n), work);
}
