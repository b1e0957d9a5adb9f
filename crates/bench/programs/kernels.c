/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Small programs that communicate as four of the NAS Parallel Benchmarks do: a sort of integers (IS), a Fourier transform in three
 * dimensions (FT), cycles of a multigrid solver (MG), and sweeps of a solver of five coupled fields, plane by plane (LU). Two ranks share each
 * grid by one dimension: z, and of LU's x. What arrives is checked: keys, the transform there and back and its sums, each value of a halo once at the
 * start, and the solvers' residuals, which must be the same after as many loops. What the ranks hand to the MPI is counted: a call of
 * MPI_Alltoall as one message to the other rank.
 */
#include "bench.h"

#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

/* Messages above this are large, as in the paper's table I. */
#define LARGE 65536

/* In loops, and in all, what checks a solver included. */
static struct kernel_sent loops, all_sent;
static double loops_cpu;
static int in_loop;

static void count_in(struct kernel_sent *sent, size_t bytes)
{
    sent->messages++;
    sent->bytes += bytes;
    if (bytes > LARGE) {
        sent->large_messages++;
        sent->large_bytes += bytes;
    }
}

static void count(size_t bytes)
{
    count_in(&all_sent, bytes);
    if (in_loop)
        count_in(&loops, bytes);
}

static void *zeroed(size_t elements, size_t bytes)
{
    void *memory = calloc(elements, bytes);

    if (!memory)
        die("no memory for a kernel");
    /* Pages are there before anything is timed; a memset(3) of zeros would be left out. */
    for (size_t at = 0; at < elements * bytes; at += 4096)
        ((volatile char *)memory)[at] = 0;
    return memory;
}

static double *doubles(size_t number)
{
    return zeroed(number, sizeof(double));
}

/* The same numbers at each call with the same state. */
static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* The edge of a grid of which a rank has so many bytes, `each` in a cell. */
static int edge_of(size_t bytes, size_t each)
{
    for (int n = 8; n <= 512; n += 2)
        if ((size_t)n * (size_t)n * (size_t)n * each == bytes * (size_t)ranks)
            return n;
    die("a kernel's bytes are those of half a cube: ft 16, mg 8 and lu 40 bytes in a cell");
}

/* Sends `bytes` to the other rank and receives as many from it; the same tag at both ends. */
static void swap(const void *out, void *in, size_t bytes, int tag)
{
    count(bytes);
    MPI_Sendrecv(out, (int)bytes, MPI_BYTE, !my_rank, tag, in, (int)bytes, MPI_BYTE, !my_rank, tag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static double sum_of_all(double mine)
{
    double all;

    count(sizeof all);
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* ---- IS: keys of a rank are sent to whom their range belongs, and are ranked there */

#define KEY_BITS 19
#define RANGE (1 << (KEY_BITS - 1)) /* of each of two ranks */

static struct {
    int keys;
    int32_t *own, *sorted, *received, *place;
} is;

static void is_open(size_t bytes)
{
    uint64_t state = 314159265u + (uint64_t)my_rank;

    is.keys = (int)(bytes / sizeof *is.own);
    if (is.keys < 1)
        die("is: a rank has a key at least");
    is.own = zeroed((size_t)is.keys, sizeof *is.own);
    is.sorted = zeroed((size_t)is.keys, sizeof *is.sorted);
    is.received = zeroed(2 * (size_t)is.keys, sizeof *is.received);
    is.place = zeroed(RANGE, sizeof *is.place);
    for (int i = 0; i < is.keys; i++)
        /* About as NPB has them: more of them in the middle. */
        is.own[i] = (int32_t)((next_random(&state) % (1 << KEY_BITS) + next_random(&state) % (1 << KEY_BITS)) / 2);
}

static void is_close(void)
{
    free(is.own), free(is.sorted), free(is.received), free(is.place);
}

static void is_step(uint64_t number)
{
    int to[2] = { 0, 0 }, from[2], start[2], place[2], rest[2], got;
    int64_t sums[2] = { 0, 0 }, all[2];

    is.own[number % (uint64_t)is.keys] = (int32_t)(number % (1 << KEY_BITS));
    for (int i = 0; i < is.keys; i++)
        to[is.own[i] / RANGE]++;
    start[0] = place[0] = 0;
    start[1] = place[1] = to[0];
    for (int i = 0; i < is.keys; i++)
        is.sorted[place[is.own[i] / RANGE]++] = is.own[i];
    count(sizeof(int));
    MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
    rest[0] = 0;
    rest[1] = from[0];
    got = from[0] + from[1];
    count((size_t)to[!my_rank] * sizeof *is.sorted);
    /* What does not arrive is not what the last loop has left. */
    for (int i = 0; i < got; i += 1024)
        is.received[i] = -1;
    MPI_Alltoallv(is.sorted, to, start, MPI_INT32_T, is.received, from, rest, MPI_INT32_T, MPI_COMM_WORLD);
    memset(is.place, 0, RANGE * sizeof *is.place);
    for (int i = 0; i < got; i++) {
        int32_t key = is.received[i] - my_rank * RANGE;

        if (key < 0 || key >= RANGE)
            die("is: a key came to the wrong rank");
        is.place[key]++;
        sums[0] += is.received[i];
    }
    for (int i = 0; i < is.keys; i++)
        sums[0] -= is.own[i];
    /* How many keys are no larger. */
    for (int key = 1; key < RANGE; key++)
        is.place[key] += is.place[key - 1];
    sums[1] = got - is.keys;
    count(sizeof sums);
    MPI_Allreduce(sums, all, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (all[0] != 0 || all[1] != 0 || is.place[RANGE - 1] != got)
        die("is: keys were lost");
}

/* ---- FT: planes of z, and after the transposition of x */

struct complex {
    double re, im;
};

static struct {
    int n, logn;
    struct complex *wave, *field, *packed, *line, *roots;
    double *damp, checksum;
} ft;

/* In place, of n values that lie `stride` apart. */
static void fft_line(struct complex *at, size_t stride, int is_inverse)
{
    const int n = ft.n;
    struct complex *line = ft.line;

    for (int i = 0; i < n; i++) {
        unsigned reversed = 0;

        for (int bit = 0; bit < ft.logn; bit++)
            reversed |= ((unsigned)i >> bit & 1u) << (ft.logn - 1 - bit);
        line[reversed] = at[(size_t)i * stride];
    }
    for (int half = 1; half < n; half *= 2)
        for (int start = 0; start < n; start += 2 * half)
            for (int k = 0; k < half; k++) {
                struct complex root = ft.roots[k * (n / (2 * half))], a = line[start + k], b = line[start + k + half], turned;

                if (is_inverse)
                    root.im = -root.im;
                turned.re = root.re * b.re - root.im * b.im;
                turned.im = root.re * b.im + root.im * b.re;
                line[start + k] = (struct complex){ a.re + turned.re, a.im + turned.im };
                line[start + k + half] = (struct complex){ a.re - turned.re, a.im - turned.im };
            }
    for (int i = 0; i < n; i++)
        at[(size_t)i * stride] = line[i];
}

/* Of each of this rank's planes, along both of its dimensions or along one. */
static void fft_planes(struct complex *planes, int both, int is_inverse)
{
    const size_t n = (size_t)ft.n;

    for (size_t plane = 0; plane < n / (size_t)ranks; plane++)
        for (size_t i = 0; i < n; i++) {
            fft_line(planes + plane * n * n + i * n, 1, is_inverse);
            if (both && i == n - 1)
                for (size_t k = 0; k < n; k++)
                    fft_line(planes + plane * n * n + k, n, is_inverse);
        }
}

/* [a][y][b], with the rank's share of a, becomes [b][y][a], with its share of b. */
static void transpose(struct complex *data)
{
    const size_t n = (size_t)ft.n, part = n / (size_t)ranks, block = part * n * part;
    struct complex *at = ft.packed, *came = ft.packed + block * (size_t)ranks;

    for (size_t to = 0; to < (size_t)ranks; to++)
        for (size_t a = 0; a < part; a++)
            for (size_t y = 0; y < n; y++, at += part)
                memcpy(at, data + (a * n + y) * n + to * part, part * sizeof *at);
    count(block * sizeof *at);
    MPI_Alltoall(ft.packed, (int)(2 * block), MPI_DOUBLE, came, (int)(2 * block), MPI_DOUBLE, MPI_COMM_WORLD);
    for (size_t from = 0; from < (size_t)ranks; from++)
        for (size_t a = 0; a < part; a++)
            for (size_t y = 0; y < n; y++)
                for (size_t b = 0; b < part; b++, came++)
                    data[(b * n + y) * n + from * part + a] = *came;
}

static void ft_open(size_t bytes)
{
    size_t all = bytes / sizeof *ft.wave;
    uint64_t state = 271828183u + (uint64_t)my_rank;
    const double turn = 2 * acos(-1.0);

    ft.n = edge_of(bytes, sizeof *ft.wave);
    for (ft.logn = 0; 1 << ft.logn < ft.n; ft.logn++)
        ;
    if (1 << ft.logn != ft.n)
        die("ft: the edge of its grid is a power of two");
    ft.wave = zeroed(all, sizeof *ft.wave);
    ft.field = zeroed(all, sizeof *ft.field);
    ft.packed = zeroed(2 * all, sizeof *ft.packed);
    ft.line = zeroed((size_t)ft.n, sizeof *ft.line);
    ft.roots = zeroed((size_t)ft.n / 2, sizeof *ft.roots);
    ft.damp = doubles(all);
    ft.checksum = 0;
    for (int k = 0; k < ft.n / 2; k++)
        ft.roots[k] = (struct complex){ cos(turn * k / ft.n), -sin(turn * k / ft.n) };
    for (size_t i = 0; i < all; i++) {
        ft.field[i] = (struct complex){ next_random(&state) / 2147483648.0, next_random(&state) / 2147483648.0 };
        ft.damp[i] = 1 / (1 + (double)(i % 17));
    }
    /* There and back again it must be what it was. */
    memcpy(ft.wave, ft.field, all * sizeof *ft.wave);
    fft_planes(ft.wave, 1, 0);
    transpose(ft.wave);
    fft_planes(ft.wave, 0, 0);
    memcpy(ft.packed, ft.field, all * sizeof *ft.wave);
    memcpy(ft.field, ft.wave, all * sizeof *ft.wave);
    {
        struct complex *first = zeroed(all, sizeof *first);

        memcpy(first, ft.packed, all * sizeof *first);
        fft_planes(ft.wave, 0, 1);
        transpose(ft.wave);
        fft_planes(ft.wave, 1, 1);
        for (size_t i = 0; i < all; i++) {
            double cells = (double)ft.n * ft.n * ft.n;

            if (fabs(ft.wave[i].re / cells - first[i].re) + fabs(ft.wave[i].im / cells - first[i].im) > 1e-9)
                die("ft: a field is another one after its transformation there and back");
        }
        free(first);
    }
    memcpy(ft.wave, ft.field, all * sizeof *ft.wave);
}

static void ft_close(void)
{
    free(ft.wave), free(ft.field), free(ft.packed), free(ft.line), free(ft.roots), free(ft.damp);
}

/* `wave` is damped, and transformed back to x, y and z. */
static void ft_step(void)
{
    const size_t all = (size_t)ft.n * (size_t)ft.n * (size_t)ft.n / (size_t)ranks;
    double sum = 0;

    for (size_t i = 0; i < all; i++)
        ft.field[i] = (struct complex){ ft.wave[i].re * ft.damp[i], ft.wave[i].im * ft.damp[i] };
    fft_planes(ft.field, 0, 1);
    transpose(ft.field);
    fft_planes(ft.field, 1, 1);
    for (size_t i = 0; i < all; i += 61)
        sum += ft.field[i].re + ft.field[i].im;
    sum = sum_of_all(sum);
    if (ft.checksum != 0 && sum != ft.checksum)
        die("ft: the same transformation has given another sum");
    ft.checksum = sum;
}

/* ---- MG: V-cycles for Poisson's equation on a periodic cube */

#define MOST_LEVELS 8

static struct grid {
    int n, planes;      /* its edge, and this rank's planes */
    double *u, *v, *r;  /* with a plane of the other rank at both ends */
} mg[MOST_LEVELS];
static int mg_levels;

static size_t plane_of(const struct grid *g)
{
    return (size_t)g->n * (size_t)g->n;
}

/* With two ranks both neighbours are the other one. */
static void mg_halo(const struct grid *g, double *values)
{
    const size_t plane = plane_of(g), last = (size_t)g->planes;

    swap(values + plane, values + (last + 1) * plane, plane * sizeof *values, TAG);
    swap(values + last * plane, values, plane * sizeof *values, TAG + 1);
}

/* A value of its own for each cell of the cube. */
static double mark_of(int n, int z, int y, int x)
{
    return ((double)z * n + y) * n + x + 1;
}

static void mg_check_halo(struct grid *g)
{
    const int first = my_rank * g->planes;

    for (int z = 0; z < g->planes; z++)
        for (int y = 0; y < g->n; y++)
            for (int x = 0; x < g->n; x++)
                g->u[(size_t)(z + 1) * plane_of(g) + (size_t)(y * g->n + x)] = mark_of(g->n, first + z, y, x);
    mg_halo(g, g->u);
    for (int z = -1; z <= g->planes; z += g->planes + 1)
        for (int y = 0; y < g->n; y++)
            for (int x = 0; x < g->n; x++)
                if (g->u[(size_t)(z + 1) * plane_of(g) + (size_t)(y * g->n + x)] != mark_of(g->n, (first + z + g->n) % g->n, y, x))
                    die("mg: a plane of the other rank is not the one next to ours");
    memset(g->u, 0, (size_t)(g->planes + 2) * plane_of(g) * sizeof *g->u);
}

/* r = v - A u; gives the sum of its squares. */
static double mg_residual(struct grid *g)
{
    const int n = g->n;
    const size_t plane = plane_of(g);
    double sum = 0;

    mg_halo(g, g->u);
    for (int z = 1; z <= g->planes; z++)
        for (int y = 0; y < n; y++) {
            const double *here = g->u + (size_t)z * plane + (size_t)(y * n);
            const double *south = g->u + (size_t)z * plane + (size_t)((y + n - 1) % n * n);
            const double *north = g->u + (size_t)z * plane + (size_t)((y + 1) % n * n);
            double *r = g->r + (size_t)z * plane + (size_t)(y * n);
            const double *v = g->v + (size_t)z * plane + (size_t)(y * n);

            for (int x = 0; x < n; x++) {
                double around = here[x ? x - 1 : n - 1] + here[x + 1 < n ? x + 1 : 0] + south[x] + north[x] +
                                here[x - (int)plane] + here[x + (int)plane];

                r[x] = v[x] - (6 * here[x] - around);
                sum += r[x] * r[x];
            }
        }
    return sum;
}

static void mg_smooth(struct grid *g)
{
    const size_t plane = plane_of(g), all = (size_t)g->planes * plane;

    mg_residual(g);
    for (size_t i = plane; i < all + plane; i++)
        g->u[i] += 0.14 * g->r[i];
}

static void mg_cycle(int level)
{
    struct grid *fine = &mg[level], *coarse = &mg[level + 1];
    const size_t plane = plane_of(fine);

    if (level == mg_levels - 1) {
        for (int i = 0; i < 8; i++)
            mg_smooth(fine);
        return;
    }
    mg_smooth(fine);
    mg_residual(fine);
    memset(coarse->u, 0, (size_t)(coarse->planes + 2) * plane_of(coarse) * sizeof *coarse->u);
    for (int z = 0; z < coarse->planes; z++)
        for (int y = 0; y < coarse->n; y++)
            for (int x = 0; x < coarse->n; x++) {
                const double *r = fine->r + (size_t)(2 * z + 1) * plane + (size_t)(2 * y * fine->n + 2 * x);
                size_t up = plane, north = (size_t)fine->n;
                double eight = r[0] + r[1] + r[north] + r[north + 1] + r[up] + r[up + 1] + r[up + north] + r[up + north + 1];

                /* The mean, and four times as much, since cells are twice as wide. */
                coarse->v[(size_t)(z + 1) * plane_of(coarse) + (size_t)(y * coarse->n + x)] = eight / 2;
            }
    mg_cycle(level + 1);
    for (int z = 0; z < fine->planes; z++)
        for (int y = 0; y < fine->n; y++)
            for (int x = 0; x < fine->n; x++)
                fine->u[(size_t)(z + 1) * plane + (size_t)(y * fine->n + x)] +=
                    coarse->u[(size_t)(z / 2 + 1) * plane_of(coarse) + (size_t)(y / 2 * coarse->n + x / 2)];
    mg_smooth(fine);
}

static void mg_open(size_t bytes)
{
    int n = edge_of(bytes, sizeof(double));
    uint64_t state = 161803399u + (uint64_t)my_rank;

    mg_levels = 0;
    do {
        struct grid *g = &mg[mg_levels++];
        size_t all = (size_t)(n / ranks + 2) * (size_t)n * (size_t)n;

        *g = (struct grid){ n, n / ranks, doubles(all), doubles(all), doubles(all) };
        mg_check_halo(g);
        n /= 2;
    } while (n % (2 * ranks) == 0 && mg_levels < MOST_LEVELS);
    /* As in NPB ones at some places, and as many negative ones. */
    for (int i = 0; i < 20; i++) {
        struct grid *g = &mg[0];

        g->v[plane_of(g) + next_random(&state) % ((size_t)g->planes * plane_of(g))] += i % 2 ? 1 : -1;
    }
}

static void mg_close(void)
{
    for (int level = 0; level < mg_levels; level++)
        free(mg[level].u), free(mg[level].v), free(mg[level].r);
}

static void mg_begin(void)
{
    memset(mg[0].u, 0, (size_t)(mg[0].planes + 2) * plane_of(&mg[0]) * sizeof *mg[0].u);
}

/* ---- LU: sweeps over five coupled fields, forwards and back, whose planes the ranks go through one after the other */

#define FIELDS 5
#define HALO 2

static struct {
    int n, own;        /* the edge, and this rank's share of x */
    double *u, *f;     /* [z][y][x with HALO at both ends][FIELDS] */
    double *face, *column;
} lu;

static double *lu_at(double *values, int z, int y, int x)
{
    return values + (((size_t)z * (size_t)lu.n + (size_t)y) * (size_t)(lu.own + 2 * HALO) + (size_t)(x + HALO)) * FIELDS;
}

/* Two layers of x for the other rank, and its own. */
static void lu_faces(void)
{
    const size_t layers = HALO * FIELDS, all = (size_t)lu.n * (size_t)lu.n * layers;
    const int mine = my_rank ? 0 : lu.own - HALO, theirs = my_rank ? -HALO : lu.own;
    double *out = lu.face, *in = lu.face + all;

    for (int z = 0; z < lu.n; z++)
        for (int y = 0; y < lu.n; y++, out += layers)
            memcpy(out, lu_at(lu.u, z, y, mine), layers * sizeof *out);
    swap(lu.face, in, all * sizeof *in, TAG);
    for (int z = 0; z < lu.n; z++)
        for (int y = 0; y < lu.n; y++, in += layers)
            memcpy(lu_at(lu.u, z, y, theirs), in, layers * sizeof *in);
}

/* f - M u in one cell; outside of the cube all is zero. */
static double lu_cell(const double *u, const double *f, int z, int y, int field)
{
    const ptrdiff_t row = (lu.own + 2 * HALO) * FIELDS, plane = row * lu.n;
    double around = u[field - FIELDS] + u[field + FIELDS], mean = (u[0] + u[1] + u[2] + u[3] + u[4]) / FIELDS;

    around += (y > 0 ? u[field - row] : 0) + (y + 1 < lu.n ? u[field + row] : 0);
    around += (z > 0 ? u[field - plane] : 0) + (z + 1 < lu.n ? u[field + plane] : 0);
    return f[field] - (8 * u[field] - around - mean);
}

/* The column next to the other rank, of one plane. */
static void lu_pass(int z, int from, int to)
{
    const size_t bytes = (size_t)lu.n * FIELDS * sizeof(double);

    if (my_rank == from) {
        for (int y = 0; y < lu.n; y++)
            memcpy(lu.column + y * FIELDS, lu_at(lu.u, z, y, from < to ? lu.own - 1 : 0), FIELDS * sizeof(double));
        count(bytes);
        MPI_Send(lu.column, (int)bytes, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
    } else {
        MPI_Recv(lu.column, (int)bytes, MPI_BYTE, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int y = 0; y < lu.n; y++)
            memcpy(lu_at(lu.u, z, y, from < to ? -1 : lu.own), lu.column + y * FIELDS, FIELDS * sizeof(double));
    }
}

static void lu_plane(int z, int is_back)
{
    for (int j = 0; j < lu.n; j++)
        for (int i = 0; i < lu.own; i++) {
            int y = is_back ? lu.n - 1 - j : j, x = is_back ? lu.own - 1 - i : i;
            double *u = lu_at(lu.u, z, y, x), *f = lu_at(lu.f, z, y, x);

            for (int field = 0; field < FIELDS; field++)
                u[field] += 1.2 / 8 * lu_cell(u, f, z, y, field);
        }
}

static void lu_step(void)
{
    lu_faces();
    for (int z = 0; z < lu.n; z++) {
        if (my_rank == 1)
            lu_pass(z, 0, 1);
        lu_plane(z, 0);
        if (my_rank == 0)
            lu_pass(z, 0, 1);
    }
    for (int z = lu.n - 1; z >= 0; z--) {
        if (my_rank == 0)
            lu_pass(z, 1, 0);
        lu_plane(z, 1);
        if (my_rank == 1)
            lu_pass(z, 1, 0);
    }
}

static double lu_residual(void)
{
    double sum = 0;

    lu_faces();
    for (int z = 0; z < lu.n; z++)
        for (int y = 0; y < lu.n; y++)
            for (int x = 0; x < lu.own; x++)
                for (int field = 0; field < FIELDS; field++) {
                    double r = lu_cell(lu_at(lu.u, z, y, x), lu_at(lu.f, z, y, x), z, y, field);

                    sum += r * r;
                }
    return sum;
}

static size_t lu_all(void)
{
    return (size_t)lu.n * (size_t)lu.n * (size_t)(lu.own + 2 * HALO) * FIELDS;
}

/* As `mark_of`, for each field. */
static double lu_mark(int z, int y, int x, int field)
{
    return FIELDS * mark_of(lu.n, z, y, my_rank * lu.own + x) + field;
}

static void lu_check_cells(const char *what, int from, int to, int plane)
{
    for (int z = plane < 0 ? 0 : plane; z < (plane < 0 ? lu.n : plane + 1); z++)
        for (int y = 0; y < lu.n; y++)
            for (int x = from; x < to; x++)
                for (int field = 0; field < FIELDS; field++)
                    if (lu_at(lu.u, z, y, x)[field] != lu_mark(z, y, x, field))
                        die(what);
}

/* The other rank's cells are behind our last, or before our first. */
static void lu_check_halo(void)
{
    const int side = my_rank ? -1 : lu.own, first = my_rank ? -HALO : lu.own;

    for (int z = 0; z < lu.n; z++)
        for (int y = 0; y < lu.n; y++)
            for (int i = 0; i < lu.own * FIELDS; i++)
                lu_at(lu.u, z, y, 0)[i] = lu_mark(z, y, i / FIELDS, i % FIELDS);
    lu_faces();
    lu_check_cells("lu: a face of the other rank is not the one next to ours", first, first + HALO, -1);
    for (int z = 0; z < lu.n; z++) {
        for (int y = 0; y < lu.n; y++)
            memset(lu_at(lu.u, z, y, side), 0, FIELDS * sizeof(double));
        lu_pass(z, z % 2, !(z % 2));
        if (my_rank != z % 2)
            lu_check_cells("lu: a column of the other rank is not the one next to ours", side, side + 1, z);
    }
    memset(lu.u, 0, lu_all() * sizeof *lu.u);
}

static void lu_open(size_t bytes)
{
    uint64_t state = 577215664u + (uint64_t)my_rank;

    lu.n = edge_of(bytes, FIELDS * sizeof(double));
    lu.own = lu.n / ranks;
    lu.u = doubles(lu_all());
    lu.f = doubles(lu_all());
    lu.face = doubles(2 * (size_t)lu.n * (size_t)lu.n * HALO * FIELDS);
    lu.column = doubles((size_t)lu.n * FIELDS);
    lu_check_halo();
    for (int z = 0; z < lu.n; z++)
        for (int y = 0; y < lu.n; y++)
            for (int i = 0; i < lu.own * FIELDS; i++)
                lu_at(lu.f, z, y, 0)[i] = next_random(&state) / 2147483648.0 - 0.5;
}

static void lu_close(void)
{
    free(lu.u), free(lu.f), free(lu.face), free(lu.column);
}

/* ---- all four */

static double last_after;
static uint64_t last_rounds;

void kernel_open(const struct block *b)
{
    last_rounds = 0;
    switch (b->kind) {
    case IS: is_open(b->bytes); break;
    case FT: ft_open(b->bytes); break;
    case MG: mg_open(b->bytes); break;
    default: lu_open(b->bytes); break;
    }
}

void kernel_close(const struct block *b)
{
    switch (b->kind) {
    case IS: is_close(); break;
    case FT: ft_close(); break;
    case MG: mg_close(); break;
    default: lu_close(); break;
    }
}

/* A solver begins anew in each batch, and must have come nearer at its end. */
double kernel_batch(const struct block *b, uint64_t rounds)
{
    static uint64_t number;
    double start, before = 0, after = 0, cpu;

    /* Nothing that is counted reaches a rank that still reads its counters. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (b->kind == MG) {
        mg_begin();
        before = sum_of_all(mg_residual(&mg[0]));
    } else if (b->kind == LU) {
        memset(lu.u, 0, lu_all() * sizeof *lu.u);
        before = sum_of_all(lu_residual());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    in_loop = 1;
    cpu = cpu_seconds();
    start = now_seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        switch (b->kind) {
        case IS: is_step(number++); break;
        case FT: ft_step(); break;
        case MG: mg_cycle(0); break;
        default: lu_step(); break;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_seconds() - start;
    loops_cpu += cpu_seconds() - cpu;
    in_loop = 0;
    if (b->kind == MG)
        after = sum_of_all(mg_residual(&mg[0]));
    else if (b->kind == LU)
        after = sum_of_all(lu_residual());
    else
        return start;
    if (!(after < 0.5 * before))
        die("a solver does not come nearer");
    if (last_rounds == rounds && after != last_after)
        die("a solver has come somewhere else than with as many loops before");
    last_rounds = rounds;
    last_after = after;
    return start;
}

/* From here on it is counted. */
void kernel_count(void)
{
    memset(&loops, 0, sizeof loops);
    memset(&all_sent, 0, sizeof all_sent);
    loops_cpu = 0;
}

/* What both ranks have sent since, in loops and in all, and the processor time of this rank's loops. */
void kernel_counted(struct kernel_sent *in_loops, struct kernel_sent *in_all, double *cpu)
{
    const int words = (int)(sizeof loops / sizeof(uint64_t));

    MPI_Allreduce(&loops, in_loops, words, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&all_sent, in_all, words, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    *cpu = loops_cpu;
}
