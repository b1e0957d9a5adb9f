/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * mpi-bench [--reps N] [--budget-ms N] BLOCK...
 * mpi-bench --neighbours N|all DIRECTORY
 *
 * BLOCK is latency:BYTES, pingpong:BYTES, window:BYTES:DEPTH or rate:BYTES:DEPTH; posted:BYTES:COUNT or
 * unexpected:BYTES:COUNT, a latency beside COUNT receives or messages of other tags that wait; pool:BYTES:BUFFERS and
 * both:BYTES:BUFFERS, one message at a time from so many buffers in turn, one way and both at the same time, once:BYTES, each
 * from memory that nothing was sent from before, overhead:BYTES:BUFFERS, the time in the MPI's calls for those of pool while both ranks have work
 * of their own, and bare:BYTES:BUFFERS, the same without an MPI, from memory
 * that both have; put:BYTES and get:BYTES, one-sided operations one after the other, each flushed; is:BYTES, ft:BYTES, mg:BYTES
 * and lu:BYTES, kernels of which each rank has so much; and for any number of ranks barrier or allreduce:BYTES. Messages of pingpong and window are written before they are sent and read after they
 * were received, unless :untouched stands behind. The plan is run N times over, block after block, with the bare line
 * timed before and after each where there are two ranks. ISTHMUS_BENCH_PIN=1 binds each rank's main thread to a processor
 * of its own, where there are enough for all; ISTHMUS_BENCH_PIN=A,B binds two of one host to these.
 * ISTHMUS_BENCH_THREADS=multiple asks the MPI for MPI_THREAD_MULTIPLE. ISTHMUS_BENCH_AWAIT: see await.h.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "await.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_BLOCKS 96
#define UNTOUCHED ":untouched"
#define HOST_NAME 256

int my_rank, ranks, thread_multiple;

double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void die(const char *what)
{
    fprintf(stderr, "mpi-bench: rank %d: %s\n", my_rank, what);
    /* MPICH's launcher forgets what it has not read yet when a rank aborts. */
    struct timespec moment = {.tv_nsec = 100000000};
    nanosleep(&moment, NULL);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static struct block parse_block(const char *text)
{
    static const char *const names[] = { "latency", "pingpong", "window", "rate",
                                         "posted", "unexpected", "barrier", "allreduce",
                                         "pool", "both", "once", "overhead", "bare",
                                         "put", "get",
                                         "is", "ft", "mg", "lu" };
    struct block b = { .depth = 1 };
    char name[16];
    unsigned long long bytes = 0;
    int fields = sscanf(text, "%15[a-z]:%llu:%d", name, &bytes, &b.depth), kind;
    const char *untouched = strstr(text, UNTOUCHED);

    for (kind = 0; kind < KINDS && fields >= 1 && strcmp(name, names[kind]) != 0; kind++)
        ;
    if (fields < (kind == BARRIER ? 1 : 2) || kind == KINDS || b.depth < 1 || bytes > (1u << 30))
        die("bad block; say latency:BYTES, pingpong:BYTES[:untouched], window:BYTES:DEPTH[:untouched], rate:BYTES:DEPTH, "
            "posted:BYTES:COUNT, unexpected:BYTES:COUNT, barrier, allreduce:BYTES, pool:BYTES:BUFFERS, both:BYTES:BUFFERS, "
            "once:BYTES, overhead:BYTES:BUFFERS, bare:BYTES:BUFFERS, put:BYTES, get:BYTES, is:BYTES, ft:BYTES, mg:BYTES or lu:BYTES");
    if (untouched && (strcmp(untouched, UNTOUCHED) != 0 || (kind != PINGPONG && kind != WINDOW)))
        die("bad block; only pingpong and window may end in " UNTOUCHED);
    if (kind != BARRIER && kind != ALLREDUCE && ranks != 2)
        die("all blocks but barrier and allreduce take exactly two ranks");
    b.kind = (enum kind)kind;
    b.bytes = (size_t)bytes;
    b.touched = (kind == PINGPONG || kind == WINDOW || (kind >= POOL && kind < IS)) && !untouched;
    return b;
}

/*
 * The n-th rank of a host takes the n-th processor that it may use, or of the two that are named. Helper threads of the MPI
 * stay where they are.
 */
static int pin(char (*hosts)[HOST_NAME], const char *asked)
{
    cpu_set_t allowed, mine;
    int place = 0, together = 0, pair[2];

    for (int rank = 0; rank < ranks; rank++) {
        int same = strcmp(hosts[rank], hosts[my_rank]) == 0;

        together += same;
        place += same && rank < my_rank;
    }
    if (sscanf(asked, "%d,%d", &pair[0], &pair[1]) == 2) {
        if (together > 2 || pair[place] < 0 || pair[place] >= CPU_SETSIZE)
            return -1;
        CPU_ZERO(&mine);
        CPU_SET(pair[place], &mine);
        return sched_setaffinity(0, sizeof mine, &mine) == 0 ? pair[place] : -1;
    }
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < together)
        return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || place-- > 0)
            continue;
        CPU_ZERO(&mine);
        CPU_SET(cpu, &mine);
        return sched_setaffinity(0, sizeof mine, &mine) == 0 ? cpu : -1;
    }
    return -1;
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text >= ' ')
            putchar(*text);
        else
            break; /* an MPI's version text runs over several lines; the first says enough */
    putchar('"');
}

/* Open MPI's own switch, whoever set it: whether its ranks give their processor away while they wait. */
static const char *yields(void)
{
    int provided, index, value, count;
    const char *answer = "null";
    MPI_T_cvar_handle handle;

    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return answer;
    if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        unsigned char bytes[256] = { 0 };

        /* A boolean of one byte or an integer: not zero in its first byte either way. */
        if (count <= 16 && MPI_T_cvar_read(handle, bytes) == MPI_SUCCESS) {
            memcpy(&value, bytes, sizeof value);
            answer = value & 0xff ? "true" : "false";
        }
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return answer;
}

/* The first rank's opinion. */
static int agree(int mine)
{
    MPI_Bcast(&mine, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return mine;
}

int main(int argc, char **argv)
{
    double before_init = now_seconds(), init, slowest_init, budget = 0.1;
    char version[MPI_MAX_LIBRARY_VERSION_STRING], host[HOST_NAME] = "", (*hosts)[HOST_NAME];
    const char *asked = getenv("ISTHMUS_BENCH_PIN"), *threads = getenv("ISTHMUS_BENCH_THREADS");
    struct block blocks[MAX_BLOCKS];
    int length, reps = 3, count = 0, cpu = -1, *cpus, level;

    thread_multiple = threads && strcmp(threads, "multiple") == 0;
    if (thread_multiple)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    else
        MPI_Init(&argc, &argv);
    init = now_seconds() - before_init;
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_library_version(version, &length);
    if (argc == 4 && strcmp(argv[1], "--neighbours") == 0)
        return neighbours_main(argv[2], argv[3]);
    if (thread_multiple && level < MPI_THREAD_MULTIPLE)
        die("this MPI does not give MPI_THREAD_MULTIPLE");
    if (ranks < 2)
        die("this benchmark takes at least two ranks");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--reps") == 0 && i + 1 < argc)
            reps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--budget-ms") == 0 && i + 1 < argc)
            budget = atof(argv[++i]) / 1000;
        else if (count < MAX_BLOCKS)
            blocks[count++] = parse_block(argv[i]);
    }
    if (count == 0 || reps < 1 || budget <= 0)
        die("nothing to do");

    hosts = calloc((size_t)ranks, sizeof *hosts);
    cpus = calloc((size_t)ranks, sizeof *cpus);
    if (!hosts || !cpus)
        die("no memory");
    gethostname(host, sizeof host - 1);
    MPI_Allgather(host, sizeof host, MPI_CHAR, hosts, sizeof host, MPI_CHAR, MPI_COMM_WORLD);
    if (asked && *asked)
        cpu = pin(hosts, asked);
    MPI_Gather(&cpu, 1, MPI_INT, cpus, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Reduce(&init, &slowest_init, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (my_rank == 0) {
        printf("{\"isthmus_bench\":1,\"kind\":\"start\",\"mpi\":");
        print_string(version);
        printf(",\"hosts\":[");
        for (int rank = 0; rank < ranks; rank++) {
            printf(rank > 0 ? "," : "");
            print_string(hosts[rank]);
        }
        printf("],\"cpus\":[");
        for (int rank = 0; rank < ranks; rank++)
            printf(rank > 0 ? ",%d" : "%d", cpus[rank]);
        printf("],\"yields\":%s,\"init_s\":%.6f}\n", yields(), slowest_init);
        fflush(stdout);
    }
    if (ranks == 2)
        line_open(strcmp(hosts[0], hosts[1]) == 0);
    await_open();

    for (int rep = 0; rep < reps; rep++) {
        for (int i = 0; i < count; i++) {
            double line[2], begun;
            struct sample s;

            do {
                line[0] = await_line(line_us, now_seconds, agree);
                begun = now_seconds();
                block_run(&blocks[i], budget, &s);
                line[1] = line_us();
            } while (await_again(line[1], begun, now_seconds, agree));
            if (my_rank != 0)
                continue;
            printf("{\"isthmus_bench\":1,\"kind\":\"block\",\"benchmark\":\"%s\",\"metric\":\"%s\",\"bytes\":%zu,"
                   "\"depth\":%d,\"rep\":%d,\"value\":%.6g,\"min\":%.6g,\"max\":%.6g,\"messages\":%llu,\"cpu_us_per_op\":%.6g,",
                   block_name(&blocks[i]), block_metric(&blocks[i]), blocks[i].bytes, blocks[i].depth, rep, s.value, s.min, s.max,
                   (unsigned long long)s.messages, s.cpu_seconds * 1e6 / (double)s.operations);
            if (s.sent_MBps > 0)
                printf("\"large_messages\":%.6g,\"large_bytes\":%.6g,\"sent_MBps\":%.6g,", s.large_messages, s.large_bytes,
                       s.sent_MBps);
            if (line[0] >= 0)
                printf("\"line_us\":[%.6g,%.6g],", line[0], line[1]);
            else
                printf("\"line_us\":null,");
            if (s.region_counted)
                printf("\"region_bytes\":%llu,\"region_messages\":%llu,\"page_bytes\":%llu,\"resident_bytes\":%llu,\"direct_bytes\":%llu,",
                       (unsigned long long)s.region_bytes, (unsigned long long)s.region_messages,
                       (unsigned long long)s.page_bytes, (unsigned long long)s.resident_bytes,
                       (unsigned long long)s.direct_bytes);
            else
                printf("\"region_bytes\":null,\"region_messages\":null,");
            printf("\"payload_bytes\":%llu,\"net_bytes\":%llu,\"loopback_bytes\":%llu,\"cma_bytes\":%llu}\n",
                   (unsigned long long)s.payload_bytes, (unsigned long long)s.net_bytes,
                   (unsigned long long)s.loopback_bytes, (unsigned long long)s.cma_bytes);
            fflush(stdout);
        }
    }
    free(hosts);
    free(cpus);
    MPI_Finalize();
    return 0;
}
