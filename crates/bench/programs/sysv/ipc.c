/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Blocks over System V IPC. */
#define _GNU_SOURCE
#include "sysv.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

uint64_t segments_made, segments_ours;
int kernels_bit;

static void change(unsigned short number, short by, short flags)
{
    struct sembuf op = {.sem_num = number, .sem_op = by, .sem_flg = flags};

    while (semop(semid, &op, 1) != 0)
        if (errno != EINTR)
            die("semop");
}

static void work(double us)
{
    for (double end = now_seconds() + us * 1e-6; now_seconds() < end;)
        ;
}

/* The other one's bytes are there, and the own ones in their place. */
static void turn_over(char *buffer, const struct block *b, int check)
{
    if (check && (buffer[0] != !me + 'a' || buffer[b->bytes - 1] != !me + 'a')) {
        errno = 0;
        die("the buffer has not what the other one wrote");
    }
    memset(buffer, me + 'a', b->bytes);
    if (b->work_us > 0)
        work(b->work_us);
}

double run_sync(const struct block *b, uint64_t rounds)
{
    double start, batch;

    meet();
    batch = start = now_seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        if (me == 1 || i > 0)
            change((unsigned short)me, -1, 0);
        turn_over(shared->buffer, b, me == 1 || i > 0);
        change((unsigned short)!me, 1, 0);
        if (me == 0 && (i + 1) % BATCH == 0)
            batch = add_batch(batch, 2 * BATCH, b->work_us);
    }
    if (me == 0)
        change(0, -1, 0);
    return now_seconds() - start;
}

double run_semop(const struct block *b, uint64_t rounds)
{
    short flags = strcmp(b->name, "semop-undo") == 0 ? SEM_UNDO : 0;
    double start = now_seconds();

    for (uint64_t i = 0; me == 0 && i < rounds; i++) {
        change(2, 1, flags);
        change(2, -1, flags);
    }
    return now_seconds() - start;
}

struct message {
    long type;
    uint64_t number;
    char rest[MOST_BYTES];
};

double run_stream(const struct block *b, uint64_t rounds)
{
    static struct message message = {.type = 1};
    static uint64_t messages;
    uint64_t last = messages + rounds;
    double start;

    meet();
    start = now_seconds();
    while (messages < last) {
        messages++;
        if (me == 0) {
            message.number = messages;
            while (msgsnd(msqid, &message, b->bytes, 0) != 0)
                if (errno != EINTR)
                    die("msgsnd");
            continue;
        }
        while (msgrcv(msqid, &message, b->bytes, 1, 0) != (ssize_t)b->bytes)
            if (errno != EINTR)
                die("msgrcv");
        if (message.number != messages) {
            errno = 0;
            die("a message is out of order");
        }
    }
    if (me == 1)
        atomic_store(&shared->received, last);
    for (uint32_t looks = 1; atomic_load(&shared->received) < last; looks++)
        if (looks % 1024 == 0)
            sched_yield();
    return now_seconds() - start;
}

double run_segment(const struct block *b, uint64_t rounds)
{
    double start = now_seconds();

    for (uint64_t i = 0; me == 0 && i < rounds; i++) {
        int id = sample_id = shmget(IPC_PRIVATE, b->bytes, IPC_CREAT | 0600);
        void *at = id < 0 ? (void *)-1 : shmat(id, NULL, 0);

        if (at == (void *)-1 || shmdt(at) != 0 || shmctl(id, IPC_RMID, NULL) != 0)
            die("make and remove a segment");
        sample_id = -1;
        segments_made++;
        segments_ours += (id & OURS) != kernels_bit;
    }
    return now_seconds() - start;
}

/* From one part to the other. Were these a power of two apart, pages of both would share entries of an emulator's TLB. */
static size_t apart(const struct block *b)
{
    return b->bytes + 33 * 4096;
}

double run_copy(const struct block *b, uint64_t rounds)
{
    size_t distance = apart(b);
    double start = now_seconds();

    for (uint64_t i = 0; me == 0 && i < rounds; i++) {
        memcpy(b->copied + (i % 2 ? 0 : distance), b->copied + (i % 2 ? distance : 0), b->bytes);
        /* No copy may be left out because of the next. */
        __asm__ volatile("" : : "r"(b->copied) : "memory");
    }
    return now_seconds() - start;
}

void open_copy(struct block *b)
{
    size_t all = apart(b) + b->bytes;

    if (me != 0)
        return;
    if (b->needs[0] != '\0') {
        int id = shmget(IPC_PRIVATE, all, IPC_CREAT | 0600);

        b->copied = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
        if (b->copied == (void *)-1 || shmctl(id, IPC_RMID, NULL) != 0)
            die("make a segment to copy in");
    } else if (!(b->copied = malloc(all))) {
        die("memory to copy in");
    }
    memset(b->copied, 'x', all);
}

void close_copy(const struct block *b)
{
    if (me == 0 && b->needs[0] == '\0')
        free(b->copied);
    else if (me == 0 && shmdt(b->copied) != 0)
        die("shmdt");
}
