/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * sysv [--fork] [--look ISTHMUS] KEY BUDGET_MS BLOCK...
 *
 * Two processes over System V IPC, and over sockets between the same two. With --fork the second one is a child; otherwise both
 * are started, and find each other by KEY. It is an ordinary program: whose IPC it uses is the dynamic linker's affair. Blocks:
 *
 *     sync:BYTES          turns: wait for the own semaphore (P), write the buffer, signal the other's (V)
 *     work:BYTES:US       the same with so much work in each turn; what a turn takes beyond it
 *     tcp:BYTES           the same bytes back and forth over sockets that block, or that are read again and again
 *     udp:BYTES, tcp-spin:BYTES, udp-spin:BYTES
 *     semop, semop-undo   +1 and -1 of a semaphore that nobody waits for, by one process
 *     stream:BYTES        messages of one queue, from the one process to the other
 *     segment:BYTES       shmget, shmat, shmdt, shmctl(IPC_RMID), by one process
 *     copy:BYTES          memcpy within a segment; copies: the same, and within memory of the process's own
 *
 * The first process prints a line of JSON for the objects (their ids, and which of them /proc/sysvipc has), one with what
 * `ISTHMUS ipcs --json` says of the region, and one for each block: the median of a few runs, the standard deviation of turns,
 * and half a round of a bare cache line before and after it. ISTHMUS_BENCH_PIN=A,B names the processors of the two;
 * ISTHMUS_BENCH_AWAIT: see await.h.
 */
#define _GNU_SOURCE
#include "sysv.h"
#include "await.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define FEWEST 4 /* rounds of a run */
#define SEMAPHORES 3 /* one of each process, and one that nobody waits for */

static int has_pair; /* of processors */
static double sum, squares, batches; /* of the turns of a block */

double add_batch(double start, double turns, double beyond_us)
{
    double now = now_seconds(), us = (now - start) * 1e6 / turns - beyond_us;

    sum += us;
    squares += us * us;
    batches++;
    return now;
}

struct tally {
    double sleeps, cpu_s, seen;
};

static struct tally tally_now(const struct block *b)
{
    struct rusage all, own;

    getrusage(RUSAGE_SELF, &all);
    getrusage(RUSAGE_THREAD, &own);
    return (struct tally){
        .sleeps = (double)own.ru_nvcsw,
        .cpu_s = (double)(all.ru_utime.tv_sec + all.ru_stime.tv_sec)
                 + (double)(all.ru_utime.tv_usec + all.ru_stime.tv_usec) * 1e-6,
        .seen = seen_by(b),
    };
}

/* So many rounds that a run takes its part of the budget: the first one's clock decides. */
static uint64_t fitting(const struct block *b)
{
    double wanted = b->budget_s / RUNS;

    for (uint64_t rounds = FEWEST;;) {
        double took = b->run(b, rounds), mine[2] = {0, 0}, theirs[2];

        mine[0] = took * 8 < wanted ? 0 : (double)rounds * wanted / took;
        exchange(mine, theirs, 2);
        if (me == 1)
            mine[0] = theirs[0];
        if (mine[0] > 0)
            return mine[0] < FEWEST * 2 ? FEWEST * 2 : (uint64_t)mine[0];
        rounds *= 8;
    }
}

/* The standard deviation of the batches of all runs. */
static double deviation(void)
{
    double mean = sum / batches;

    return sqrt(fmax(0, squares / batches - mean * mean));
}

static void print_number(const char *name, double value, int is_there)
{
    printf(is_there ? ",\"%s\":%.9g" : ",\"%s\":null", name, value);
}

/* What came of a block. */
struct outcome {
    uint64_t rounds;
    double times[RUNS], ops, lines[2];
    struct tally all; /* of this process */
};

static void print_block(const struct block *b, struct outcome *o, const double *theirs)
{
    double us = median(o->times, RUNS) * 1e6 / (double)o->rounds / b->ops_per_round - b->work_us;
    int is_seen = seen_by(b) > 0;

    if (b->is_rate)
        us = (double)(strcmp(b->metric, "bandwidth_MBps") == 0 ? b->bytes : 1) / us;
    printf("{\"isthmus_bench\":1,\"kind\":\"block\",\"benchmark\":\"%s\",\"subject\":\"%s\"", b->benchmark, b->subject);
    printf(",\"metric\":\"%s\",\"needs\":\"%s\"", b->metric, b->needs);
    print_number("bytes", (double)b->bytes, b->bytes > 0);
    print_number("value", us, 1);
    print_number("deviation", deviation(), b->is_turn && batches > 1);
    print_number("sleeps_per_turn", (o->all.sleeps + theirs[0]) / o->ops, b->is_turn);
    print_number("cpu_us_per_op", (o->all.cpu_s + theirs[1]) * 1e6 / o->ops, 1);
    /* Of packets each is seen twice at least: sent and received, by one kernel or by two. */
    print_number("packets", o->ops * 2, is_seen);
    print_number("seen", o->all.seen + theirs[2], is_seen);
    print_number("made", (double)segments_made, segments_made > 0);
    print_number("ours", (double)segments_ours, segments_made > 0);
    if (has_pair)
        printf(",\"line_us\":[%.6g,%.6g]}\n", o->lines[0], o->lines[1]);
    else
        printf(",\"line_us\":null}\n");
    fflush(stdout);
}

/* The first process's opinion. */
static int agree(int mine)
{
    double own = mine, theirs;

    exchange(&own, &theirs, 1);
    return (int)(me == 0 ? own : theirs);
}

/* In turn, so that what changes meanwhile changes for all of them: an emulator is slower at first. */
static void run_all(const struct block *b, struct outcome *outcomes, int count)
{
    segments_made = segments_ours = 0;
    sum = squares = batches = 0;
    for (int k = 0; k < count; k++) {
        outcomes[k].ops = 0;
        outcomes[k].all = (struct tally){0};
    }
    for (int run = 0; run < RUNS; run++)
        for (int k = 0; k < count; k++) {
            struct outcome *o = &outcomes[k];
            struct tally before = tally_now(&b[k]), after;

            o->times[run] = b[k].run(&b[k], o->rounds);
            after = tally_now(&b[k]);
            o->ops += (double)o->rounds * b[k].ops_per_round;
            o->all.sleeps += after.sleeps - before.sleeps;
            o->all.cpu_s += after.cpu_s - before.cpu_s;
            o->all.seen += after.seen - before.seen;
        }
}

static void run_blocks(const struct block *b, int count)
{
    struct outcome outcomes[2] = {{0}, {0}};
    double lines[2] = {0, 0}, begun;

    alarm(PATIENCE_S);
    for (int k = 0; k < count; k++)
        outcomes[k].rounds = fitting(&b[k]);
    do {
        alarm(PATIENCE_S);
        if (has_pair)
            lines[0] = await_line(line_us, now_seconds, agree);
        begun = now_seconds();
        run_all(b, outcomes, count);
        meet();
        if (has_pair)
            lines[1] = line_us();
    } while (has_pair && await_again(lines[1], begun, now_seconds, agree));
    for (int k = 0; k < count; k++) {
        struct outcome *o = &outcomes[k];
        double mine[3] = {o->all.sleeps, o->all.cpu_s, o->all.seen}, theirs[3];

        exchange(mine, theirs, 3);
        memcpy(o->lines, lines, sizeof lines);
        if (me == 0)
            print_block(&b[k], o, theirs);
    }
}

/* In a segment, and in memory of the process's own. */
static void copy(const struct block *b, int count)
{
    struct block both[2] = {*b, *b};

    both[1].subject = "malloc", both[1].needs = "";
    for (int k = 0; k < count; k++)
        open_copy(&both[k]);
    run_blocks(both, count);
    for (int k = 0; k < count; k++)
        close_copy(&both[k]);
}

/* NAME:BYTES:US */
static void plan(char *text, double budget_s, int has_net)
{
    struct block b = {.name = strtok(text, ":"), .budget_s = budget_s, .subject = "sysv", .needs = "", .ops_per_round = 1};
    const char *bytes = strtok(NULL, ":"), *us = strtok(NULL, ":");

    b.bytes = bytes ? (size_t)atoll(bytes) : 0;
    b.work_us = us ? atof(us) : 0;
    b.benchmark = b.name;
    if (strcmp(b.name, "sync") == 0 || strcmp(b.name, "work") == 0) {
        b.benchmark = b.work_us > 0 ? "sync_work" : "sync", b.metric = b.work_us > 0 ? "beyond_work_us" : "turn_us";
        b.needs = "shm sem", b.run = run_sync, b.is_turn = 1, b.ops_per_round = 2;
    } else if (strncmp(b.name, "tcp", 3) == 0 || strncmp(b.name, "udp", 3) == 0) {
        b.subject = b.name, b.benchmark = "sync", b.metric = "turn_us", b.run = run_socket, b.is_turn = 1, b.ops_per_round = 2;
        open_socket(&b, has_net);
    } else if (strcmp(b.name, "semop") == 0 || strcmp(b.name, "semop-undo") == 0) {
        b.benchmark = b.name[5] ? "semop_undo" : "semop", b.metric = "pair_us", b.needs = "sem", b.run = run_semop;
    } else if (strcmp(b.name, "stream") == 0) {
        b.metric = "rate_Mps", b.needs = "msg", b.run = run_stream, b.is_rate = 1;
    } else if (strcmp(b.name, "segment") == 0) {
        b.metric = "cycle_us", b.needs = "made", b.run = run_segment;
    } else if (strcmp(b.name, "copy") == 0 || strcmp(b.name, "copies") == 0) {
        b.benchmark = "copy", b.metric = "bandwidth_MBps", b.needs = "made", b.run = run_copy, b.is_rate = 1;
        copy(&b, b.name[3] == 'y' ? 1 : 2);
        return;
    } else {
        errno = 0;
        die(b.name);
    }
    if (b.is_turn && (b.bytes < sizeof(uint64_t) || b.bytes > MOST_BYTES)) {
        errno = 0;
        die("a buffer has 8 bytes to 64 KB");
    }
    run_blocks(&b, 1);
}

/* Whether the kernel's own table has an object, whose id is the second of a line. */
static int kernel_has(const char *table, int id)
{
    char path[64], text[512];
    FILE *file;
    int found = 0, key, other;

    snprintf(path, sizeof path, "/proc/sysvipc/%s", table);
    file = fopen(path, "r");
    while (file && fgets(text, sizeof text, file))
        found |= sscanf(text, "%d %d", &key, &other) == 2 && other == id;
    if (file)
        fclose(file);
    return found;
}

/* What the region's table of objects has, as another program sees it; nothing where there is none to ask. */
static void look(char *isthmus)
{
    int ends[2], status;
    char text[65536];
    size_t have = 0;
    ssize_t got;
    pid_t child;

    if (!isthmus || pipe(ends) != 0)
        return;
    child = fork();
    if (child == 0) {
        char *words[] = {isthmus, "ipcs", "--json", NULL};

        dup2(ends[1], 1);
        unsetenv("LD_PRELOAD");
        execv(isthmus, words);
        _exit(127);
    }
    close(ends[1]);
    while (have < sizeof text - 1 && (got = read(ends[0], text + have, sizeof text - 1 - have)) > 0)
        have += (size_t)got;
    close(ends[0]);
    text[have] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0 && text[0] == '{')
        printf("{\"isthmus_bench\":1,\"kind\":\"look\",\"ipcs\":%s}\n", text);
}

static void pin(void)
{
    const char *asked = getenv("ISTHMUS_BENCH_PIN");
    cpu_set_t mine;
    int cpu[2];

    if (!asked)
        return;
    if (sscanf(asked, "%d,%d", &cpu[0], &cpu[1]) != 2 || cpu[me] < 0 || cpu[me] >= CPU_SETSIZE)
        die("ISTHMUS_BENCH_PIN: two processors are needed, as 0,1");
    CPU_ZERO(&mine);
    CPU_SET(cpu[me], &mine);
    if (sched_setaffinity(0, sizeof mine, &mine) != 0)
        die("keep to a processor");
}

static void objects(key_t key, char *isthmus)
{
    static const union semun { int val; struct semid_ds *buf; unsigned short *array; } none = {.val = 0};

    if (me == 0) {
        semid = semget(key, SEMAPHORES, IPC_CREAT | 0600);
        msqid = msgget(key, IPC_CREAT | 0600);
        sample_id = shmget(IPC_PRIVATE, MOST_BYTES, IPC_CREAT | 0600);
        if (semid < 0 || msqid < 0 || sample_id < 0)
            die("make semaphores, a queue and a segment");
        for (int i = 0; i < SEMAPHORES; i++)
            if (semctl(semid, i, SETVAL, none) != 0)
                die("SETVAL");
    }
    meet();
    if (me == 1) {
        semid = semget(key, SEMAPHORES, 0600);
        msqid = msgget(key, 0600);
        if (semid < 0 || msqid < 0)
            die("find the semaphores and the queue");
    }
    meet();
    if (me == 0) {
        printf("{\"isthmus_bench\":1,\"kind\":\"objects\",\"shm\":%d,\"sem\":%d,\"msg\":%d,\"made\":%d", shmid, semid, msqid,
               sample_id);
        printf(",\"in_kernel\":[\"\"%s", kernel_has("shm", shmid) ? ",\"shm\"" : "");
        printf("%s", kernel_has("sem", semid) ? ",\"sem\"" : "");
        printf("%s%s]}\n", kernel_has("msg", msqid) ? ",\"msg\"" : "", kernel_has("shm", sample_id) ? ",\"made\"" : "");
        kernels_bit = kernel_has("shm", sample_id) ? sample_id & OURS : 0;
        look(isthmus);
        if (shmctl(sample_id, IPC_RMID, NULL) != 0)
            die("remove a segment");
        sample_id = -1;
        fflush(stdout);
    }
    meet();
}

int main(int argc, char **argv)
{
    int forks = 0, at = 1, status = 0;
    char *isthmus = NULL;
    char host[256] = "";
    pid_t child = -1;
    key_t key;

    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--fork") == 0)
            forks = 1;
        else if (strcmp(argv[at], "--look") == 0 && at + 1 < argc)
            isthmus = argv[++at];
    }
    if (argc - at < 3) {
        fprintf(stderr, "usage: sysv [--fork] [--look ISTHMUS] KEY BUDGET_MS BLOCK...\n");
        return 2;
    }
    key = (key_t)strtol(argv[at], NULL, 0);
    handle_signals();
    alarm(PATIENCE_S);
    if (forks) {
        /* Nobody else may have this key. */
        shmid = shmget(key, sizeof *shared, IPC_CREAT | IPC_EXCL | 0600);
        if (shmid < 0)
            die("make the segment");
        child = fork();
        if (child < 0)
            die("fork");
        if (child == 0) {
            me = 1;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
    }
    if (!forks || me == 1)
        shmid = shmget(key, sizeof *shared, IPC_CREAT | 0600);
    shared = shmid < 0 ? (void *)-1 : shmat(shmid, NULL, 0);
    if (shared == (void *)-1) {
        shared = NULL;
        die("attach the segment");
    }
    if (!forks)
        me = (int)atomic_fetch_add(&shared->members, 1);
    if (me > 1) {
        fprintf(stderr, "sysv: there is a third process with this key\n");
        _exit(1);
    }
    has_kernels = me == 0 && kernel_has("shm", shmid);
    pin();
    await_open();
    gethostname(host, sizeof host - 1);
    snprintf(shared->host[me], sizeof shared->host[me], "%s", host);
    meet();
    /* Each in a system of its own, or on processors of their own. */
    has_pair = strcmp(shared->host[0], shared->host[1]) != 0 || getenv("ISTHMUS_BENCH_PIN") != NULL;
    if (me == 0)
        printf("{\"isthmus_bench\":1,\"kind\":\"start\",\"hosts\":[\"%s\",\"%s\"]}\n", shared->host[0], shared->host[1]);
    meet();
    objects(key, isthmus);
    for (int i = at + 2; i < argc; i++)
        plan(argv[i], atof(argv[at + 1]) / 1000, !forks);
    meet();
    shmdt(shared);
    shared = NULL;
    if (me == 1)
        _exit(0);
    if (semctl(semid, 0, IPC_RMID) != 0 || msgctl(msqid, IPC_RMID, NULL) != 0 || shmctl(shmid, IPC_RMID, NULL) != 0)
        die("remove the objects");
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        die("the second process ended badly");
    fflush(stdout);
    return 0;
}
