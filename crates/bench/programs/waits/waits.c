/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * waits REPS BUDGET_MS BYTES...
 *
 * A tagged ping-pong between two processes that wait for their completions in two ways: reading the queue again and again
 * (fi_cq_read: "spin"), and asleep until something is there (fi_cq_sread of a queue with FI_WAIT_UNSPEC: "sread"); over the
 * provider of isthmus, and over libfabric's own for one host, shm. All take turns within a repetition, block after block.
 * The first process prints a line of JSON for each, with how often both went to sleep in a round, as the kernel counts it, and
 * half a round of a bare cache line before and after it. ISTHMUS_BENCH_PIN=A,B names the processors of the two; otherwise they
 * have the first two that are allowed.
 */
#define _GNU_SOURCE
#include "await.h"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#define API FI_VERSION(1, 15)
#define TAG 7
#define MOST_SIZES 16
#define MOST_BYTES (64u << 20)
#define MOST_NAME 512
#define PATIENCE_S 20
#define FEWEST_ROUNDS 8 /* of a batch */
#define BATCHES 7

static int rank, line_fd = -1;

static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    void (*freeinfo)(struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} lf;

/* One way to wait over one provider, and how many completions of each kind there have been. */
struct way {
    const char *provider, *name;
    int sleeps, is_there;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t other;
    uint64_t sent, received;
    uint64_t rounds[MOST_SIZES]; /* of a batch; 0 until calibrated */
};

static struct way ways[] = {
    {.provider = "isthmus", .name = "isthmus-spin", .sleeps = 0},
    {.provider = "isthmus", .name = "isthmus-sread", .sleeps = 1},
    {.provider = "shm", .name = "shm-spin", .sleeps = 0},
    {.provider = "shm", .name = "shm-sread", .sleeps = 1},
};
#define WAYS (int)(sizeof ways / sizeof *ways)

static void die(const char *who, const char *what, long error)
{
    fprintf(stderr, "waits: process %d: %s: %s", rank, who, what);
    if (error)
        fprintf(stderr, ": %s", lf.strerror && error < 0 ? lf.strerror((int)-error) : "unexpected answer");
    fprintf(stderr, "\n");
    _exit(1);
}

static double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What the two say to each other besides; each says and hears the same amount. */
static void exchange(const void *mine, void *theirs, size_t bytes)
{
    size_t have = 0;

    if (write(line_fd, mine, bytes) != (ssize_t)bytes)
        die("the two processes", "the other one is gone", 0);
    while (have < bytes) {
        ssize_t got = read(line_fd, (char *)theirs + have, bytes - have);

        if (got <= 0)
            die("the two processes", "the other one is gone", 0);
        have += (size_t)got;
    }
}

static void meet(void)
{
    char mine = 1, theirs;

    exchange(&mine, &theirs, 1);
}

/* Whether libfabric has it here; what is there must open. */
static int open_way(struct way *w)
{
    struct fi_info *hints = lf.dupinfo(NULL), *info = NULL;
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = w->sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
    struct { size_t length; char name[MOST_NAME]; } mine = {.length = MOST_NAME}, theirs;
    int there, both, error;

    if (!hints)
        die(w->name, "no memory", 0);
    hints->caps = FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(w->provider);
    there = lf.getinfo(API, NULL, NULL, 0, hints, &info) == 0;
    lf.freeinfo(hints);
    exchange(&there, &both, sizeof there);
    if (!there || !both)
        return 0;
    if ((error = lf.fabric(info->fabric_attr, &w->fabric, NULL)))
        die(w->name, "fi_fabric", error);
    if ((error = fi_domain(w->fabric, info, &w->domain, NULL)))
        die(w->name, "fi_domain", error);
    if ((error = fi_av_open(w->domain, &av_attr, &w->av, NULL)))
        die(w->name, "fi_av_open", error);
    if ((error = fi_cq_open(w->domain, &cq_attr, &w->cq, NULL)))
        die(w->name, "fi_cq_open", error);
    if ((error = fi_endpoint(w->domain, info, &w->ep, NULL)))
        die(w->name, "fi_endpoint", error);
    if ((error = fi_ep_bind(w->ep, &w->av->fid, 0)) || (error = fi_ep_bind(w->ep, &w->cq->fid, FI_TRANSMIT | FI_RECV)))
        die(w->name, "fi_ep_bind", error);
    if ((error = fi_enable(w->ep)))
        die(w->name, "fi_enable", error);
    if ((error = fi_getname(&w->ep->fid, mine.name, &mine.length)))
        die(w->name, "fi_getname", error);
    exchange(&mine, &theirs, sizeof mine);
    error = fi_av_insert(w->av, theirs.name, 1, &w->other, 0, NULL);
    if (error != 1)
        die(w->name, "fi_av_insert", error);
    return 1;
}

static void close_way(struct way *w)
{
    struct fid *all[] = {&w->ep->fid, &w->cq->fid, &w->av->fid, &w->domain->fid, &w->fabric->fid};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int error = fi_close(all[i]);

        if (error)
            die(w->name, "fi_close", error);
    }
}

/* Waits in this way until there have been so many completions. */
static void wait_for(struct way *w, uint64_t received, uint64_t sent)
{
    struct fi_cq_tagged_entry entries[4];

    while (w->received < received || w->sent < sent) {
        ssize_t got = w->sleeps ? fi_cq_sread(w->cq, entries, 4, NULL, PATIENCE_S * 1000) : fi_cq_read(w->cq, entries, 4);

        /* An interrupted sleep is no end, and one that ends for nothing is the provider's to choose. */
        if (got == -FI_EAGAIN || got == -FI_EINTR)
            continue;
        if (got < 0)
            die(w->name, "wait for a completion", got);
        for (ssize_t i = 0; i < got; i++) {
            w->received += (entries[i].flags & FI_RECV) != 0;
            w->sent += (entries[i].flags & FI_SEND) != 0;
        }
    }
}

static void post_receive(struct way *w, void *buffer, size_t bytes)
{
    ssize_t posted;

    while ((posted = fi_trecv(w->ep, buffer, bytes, NULL, FI_ADDR_UNSPEC, TAG, 0, NULL)) == -FI_EAGAIN)
        fi_cq_read(w->cq, NULL, 0);
    if (posted)
        die(w->name, "fi_trecv", posted);
}

static void post_send(struct way *w, const void *buffer, size_t bytes)
{
    ssize_t posted;

    /* Without a queue entry to read into, nothing that completes meanwhile is lost. */
    while ((posted = fi_tsend(w->ep, buffer, bytes, NULL, w->other, TAG, NULL)) == -FI_EAGAIN)
        fi_cq_read(w->cq, NULL, 0);
    if (posted)
        die(w->name, "fi_tsend", posted);
}

static void stamp(char *message, size_t bytes, uint64_t number)
{
    memcpy(message, &number, sizeof number);
    memcpy(message + bytes - sizeof number, &number, sizeof number);
}

static void check(const struct way *w, const char *message, size_t bytes, uint64_t number)
{
    if (memcmp(message, &number, sizeof number) != 0 || memcmp(message + bytes - sizeof number, &number, sizeof number) != 0)
        die(w->name, "a message arrived with wrong content", 0);
}

static double ping_pong(struct way *w, char *out, char *in, size_t bytes, uint64_t rounds)
{
    uint64_t received = w->received, sent = w->sent;
    double start;

    post_receive(w, in, bytes);
    meet();
    start = now_seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        if (rank == 0) {
            stamp(out, bytes, i);
            post_send(w, out, bytes);
            wait_for(w, ++received, ++sent);
            check(w, in, bytes, ~i);
            if (i + 1 < rounds)
                post_receive(w, in, bytes);
        } else {
            wait_for(w, ++received, sent);
            check(w, in, bytes, i);
            if (i + 1 < rounds)
                post_receive(w, in, bytes);
            stamp(out, bytes, ~i);
            post_send(w, out, bytes);
            sent++;
        }
    }
    if (rank == 1)
        wait_for(w, received, sent);
    return now_seconds() - start;
}

static int is_provider(struct dl_phdr_info *file, size_t size, void *found)
{
    const char *slash = strrchr(file->dlpi_name, '/'), *name = slash ? slash + 1 : file->dlpi_name;

    (void)size;
    if (strcmp(name, "libisthmus-fi.so") != 0 && strcmp(name, "libisthmus_fi.so") != 0)
        return 0;
    *(const char **)found = file->dlpi_name;
    return 1;
}

/* Bytes that this process's provider saw leave and come, in the order of docs/region-format.md; 0 where it is not loaded. */
static void region_now(struct way *w, uint64_t now[2])
{
    static int (*read_counters)(uint64_t *, size_t);
    const char *file = NULL;
    uint64_t counters[10];

    if (!read_counters && dl_iterate_phdr(is_provider, &file)) {
        void *provider = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);

        *(void **)&read_counters = provider ? dlsym(provider, "isthmus_counters") : NULL;
    }
    now[0] = now[1] = 0;
    /* It adds up what its endpoints counted only every few hundred calls of progress. */
    for (int i = 0; i < 1024; i++)
        fi_cq_read(w->cq, NULL, 0);
    if (read_counters && read_counters(counters, 10) == 0) {
        now[0] = counters[1] + counters[9];
        now[1] = counters[3] + counters[9];
    }
}

struct tally {
    uint64_t sleeps, left, came;
    double cpu;
};

static void tally_now(struct way *w, struct tally *t)
{
    uint64_t region[2];
    struct rusage u;

    region_now(w, region);
    getrusage(RUSAGE_SELF, &u);
    t->cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    getrusage(RUSAGE_THREAD, &u);
    t->sleeps = (uint64_t)u.ru_nvcsw;
    t->left = region[0];
    t->came = region[1];
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

#define LINE_ROUNDS 1000
#define LINE_BYTES 8192

/* One word of each process, far enough apart that no prefetcher takes them for one; none until both have processors of their own. */
static _Atomic uint64_t *my_word, *their_word;
static uint64_t turn;

static void line_open(char *shared)
{
    my_word = (_Atomic uint64_t *)(shared + rank * LINE_BYTES / 2);
    their_word = (_Atomic uint64_t *)(shared + !rank * LINE_BYTES / 2);
}

/* Both count on, however long the other one takes, so that a batch that was too slow spoils no later one. */
static double line_batch(int with_pause)
{
    double start = now_seconds();

    for (int i = 0; i < LINE_ROUNDS; i++) {
        turn++;
        if (rank == 0)
            atomic_store_explicit(my_word, turn, memory_order_release);
        for (uint32_t looks = 1; atomic_load_explicit(their_word, memory_order_acquire) < turn; looks++) {
            if (with_pause) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#elif defined(__aarch64__)
                __asm__ volatile("yield");
#endif
            }
            /* Should somebody else have a processor, the other one gets its turn. */
            if (looks % (1u << 20) == 0)
                sched_yield();
        }
        if (rank == 1)
            atomic_store_explicit(my_word, turn, memory_order_release);
    }
    return (now_seconds() - start) * 1e6 / LINE_ROUNDS / 2;
}

/* Half a round of a bare line in microseconds, with or without the processor's hint, whatever is shorter; less than 0 without. */
static double line_us(void)
{
    double medians[2], us[BATCHES];

    if (!my_word)
        return -1;
    meet();
    for (int with_pause = 0; with_pause < 2; with_pause++) {
        for (int i = 0; i < BATCHES; i++)
            us[i] = line_batch(with_pause);
        qsort(us, BATCHES, sizeof *us, ascending);
        medians[with_pause] = us[BATCHES / 2];
    }
    return medians[0] < medians[1] ? medians[0] : medians[1];
}

/* The first one's opinion. */
static int agree(int mine)
{
    int theirs;

    exchange(&mine, &theirs, sizeof mine);
    return rank == 0 ? mine : theirs;
}

static void block(struct way *w, char *out, char *in, size_t bytes, uint64_t *rounds, double budget)
{
    struct tally before, after, mine, theirs;
    double times[BATCHES], line[2], begun;

    for (uint64_t tried = FEWEST_ROUNDS; *rounds == 0; tried *= 2) {
        double took = ping_pong(w, out, in, bytes, tried);
        uint64_t chosen = took > budget / BATCHES / 2 ? tried : 0, other;

        exchange(&chosen, &other, sizeof chosen);
        /* The first one's clock decides. */
        *rounds = rank == 0 ? chosen : other;
    }
    do {
        line[0] = await_line(line_us, now_seconds, agree);
        begun = now_seconds();
        tally_now(w, &before);
        for (int i = 0; i < BATCHES; i++)
            times[i] = ping_pong(w, out, in, bytes, *rounds);
        tally_now(w, &after);
        line[1] = line_us();
    } while (await_again(line[1], begun, now_seconds, agree));
    qsort(times, BATCHES, sizeof *times, ascending);
    mine.sleeps = after.sleeps - before.sleeps;
    mine.left = after.left - before.left;
    mine.came = after.came - before.came;
    mine.cpu = after.cpu - before.cpu;
    exchange(&mine, &theirs, sizeof mine);
    if (rank != 0)
        return;
    uint64_t left = mine.left + theirs.left, came = mine.came + theirs.came, all = *rounds * BATCHES;

    printf("{\"isthmus_bench\":1,\"kind\":\"wait\",\"subject\":\"%s\",\"bytes\":%zu,\"latency_us\":%.6g,\"sleeps_per_round\":%.6g,"
           "\"cpu_us_per_op\":%.6g,\"payload_bytes\":%llu,\"region_bytes\":%llu,",
           w->name, bytes, times[BATCHES / 2] * 1e6 / (double)*rounds / 2, (double)(mine.sleeps + theirs.sleeps) / (double)all,
           (mine.cpu + theirs.cpu) * 1e6 / (double)all / 2, (unsigned long long)(all * 2 * bytes),
           (unsigned long long)(left < came ? left : came));
    if (line[0] >= 0)
        printf("\"line_us\":[%.6g,%.6g]}\n", line[0], line[1]);
    else
        printf("\"line_us\":null}\n");
    fflush(stdout);
}

/* On one of the two processors that are asked for, or else of the first two allowed; 0 if it cannot be. */
static int pin(void)
{
    const char *asked = getenv("ISTHMUS_BENCH_PIN");
    cpu_set_t allowed, mine;
    int place = rank, cpu[2];

    /* A launcher may have bound this rank to one core: what is asked for is not limited by that. */
    if (asked) {
        if (sscanf(asked, "%d,%d", &cpu[0], &cpu[1]) != 2 || cpu[0] == cpu[1] || cpu[rank] < 0 || cpu[rank] >= CPU_SETSIZE)
            die("ISTHMUS_BENCH_PIN", "two processors are needed, as 0,1", 0);
    } else {
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
            return 0;
        for (cpu[rank] = 0; !CPU_ISSET(cpu[rank], &allowed) || place-- > 0; cpu[rank]++)
            ;
    }
    CPU_ZERO(&mine);
    CPU_SET(cpu[rank], &mine);
    return sched_setaffinity(0, sizeof mine, &mine) == 0;
}

int main(int argc, char **argv)
{
    int pair[2], reps, status = 0, sizes = 0;
    size_t bytes[MOST_SIZES], most = 0;
    double budget;
    char *out, *in, *shared;
    int have_own, others_have;
    pid_t child;
    void *library;

    if (argc < 4 || argc - 3 > MOST_SIZES || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        fprintf(stderr, "usage: waits REPS BUDGET_MS BYTES...\n");
        return 2;
    }
    reps = atoi(argv[1]);
    budget = atof(argv[2]) / 1000;
    for (int i = 3; i < argc; i++) {
        bytes[sizes] = (size_t)atoll(argv[i]);
        if (bytes[sizes] < sizeof(uint64_t) || bytes[sizes] > MOST_BYTES)
            die("usage", "a message has 8 bytes to 64 MB", 0);
        most = bytes[sizes] > most ? bytes[sizes] : most;
        sizes++;
    }
    /* Two providers are asked for, each by its name. */
    unsetenv("FI_PROVIDER");
    shared = mmap(NULL, LINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    child = fork();
    if (child < 0)
        die("start", "a second process", 0);
    rank = child == 0;
    if (rank == 1)
        prctl(PR_SET_PDEATHSIG, 9);
    line_fd = pair[rank];
    close(pair[!rank]);
    library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        die("libfabric", dlerror(), 0);
    *(void **)&lf.getinfo = dlsym(library, "fi_getinfo");
    *(void **)&lf.dupinfo = dlsym(library, "fi_dupinfo");
    *(void **)&lf.freeinfo = dlsym(library, "fi_freeinfo");
    *(void **)&lf.fabric = dlsym(library, "fi_fabric");
    *(void **)&lf.strerror = dlsym(library, "fi_strerror");
    if (!lf.getinfo || !lf.dupinfo || !lf.freeinfo || !lf.fabric || !lf.strerror)
        die("libfabric", "it lacks one of its own functions", 0);
    have_own = pin();
    exchange(&have_own, &others_have, sizeof have_own);
    if (have_own && others_have && shared != MAP_FAILED)
        line_open(shared);
    await_open();
    out = calloc(1, most);
    in = calloc(1, most);
    if (!out || !in)
        die("start", "no memory", 0);
    for (int i = 0; i < WAYS; i++) {
        ways[i].is_there = open_way(&ways[i]);
        if (!ways[i].is_there && rank == 0)
            printf("{\"isthmus_bench\":1,\"kind\":\"absent\",\"subject\":\"%s\"}\n", ways[i].name);
    }
    for (int rep = 0; rep < reps; rep++)
        for (int size = 0; size < sizes; size++)
            for (int i = 0; i < WAYS; i++)
                if (ways[i].is_there)
                    block(&ways[i], out, in, bytes[size], &ways[i].rounds[size], budget);
    meet();
    for (int i = 0; i < WAYS; i++)
        if (ways[i].is_there)
            close_way(&ways[i]);
    meet();
    if (rank == 1)
        _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the second process", "it ended badly", 0);
    /* The providers' own ends are not what is measured. */
    fflush(stdout);
    _exit(0);
}
