/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A dynamic window to which rank 0 attaches memory, page by page, while the others read what was attached first.
 *
 * usage: attach apart|together
 *
 * Apart, a barrier lies between all that is attached and all that is read. Together, rank 0 attaches on while the others
 * read, as the MPI standard allows (each reads only what was attached before it was told of it). Each attached page comes
 * to lie below those before it, so that a list in the order of addresses changes all over.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, FIRST = 4, PAGES = 24, READS = 3000 };

static int rank, wrong;
static MPI_Win window;
static char *pages;

static void attach(int i)
{
	uint64_t *page = (uint64_t *)(pages + (size_t)2 * i * PAGE); /* with gaps: no two are one registration */
	page[0] = page[PAGE / 8 - 1] = 1000 + i;
	MPI_Win_attach(window, page, PAGE);
}

/* The page with this number, by each kind of access. */
static void read_page(uint64_t base, int i)
{
	MPI_Aint at = (MPI_Aint)(base + (uint64_t)2 * i * PAGE);
	uint64_t first = 0, last = 0, fetched = 0, zero = 0, was = 0;
	MPI_Get(&first, 1, MPI_UINT64_T, 0, at, 1, MPI_UINT64_T, window);
	MPI_Get(&last, 1, MPI_UINT64_T, 0, at + PAGE - 8, 1, MPI_UINT64_T, window);
	MPI_Fetch_and_op(&zero, &fetched, MPI_UINT64_T, 0, at, MPI_NO_OP, window);
	MPI_Win_flush(0, window);
	MPI_Compare_and_swap(&zero, &zero, &was, MPI_UINT64_T, 0, at, window);
	MPI_Win_flush(0, window);
	uint64_t right = 1000 + (uint64_t)i;
	if ((first != right || last != right || fetched != right || was != right) && wrong++ < 5)
		printf("rank %d: page %d has %lu, %lu, %lu, %lu instead of %lu\n", rank, i, first, last, fetched, was, right);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc < 2) {
		fprintf(stderr, "usage: attach apart|together\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int together = !strcmp(argv[1], "together");
	MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	uint64_t base = 0;
	int all = 0;
	if (rank == 0) {
		pages = mmap(NULL, 2 * PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MPI_Aint at;
		MPI_Get_address(pages, &at);
		base = (uint64_t)at;
		for (int i = PAGES - 1; i >= (together ? PAGES - FIRST : 0); i--)
			attach(i);
	}
	MPI_Bcast(&base, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	if (rank == 0) {
		int flag;
		for (int i = PAGES - FIRST - 1; together && i >= 0; i--) {
			attach(i);
			for (int k = 0; k < 2000; k++)
				MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
		}
	} else {
		for (int k = 0; k < READS; k++)
			read_page(base, together ? PAGES - 1 - k % FIRST : k % PAGES);
	}
	MPI_Win_unlock_all(window);
	MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; rank == 0 && i < PAGES; i++)
		MPI_Win_detach(window, pages + (size_t)2 * i * PAGE);
	MPI_Win_free(&window);
	if (rank == 0)
		printf("attach %s: %s\n", argv[1], all ? "WRONG" : "ok");
	MPI_Finalize();
	return all != 0;
}
