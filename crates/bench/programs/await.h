/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Where the two processors of a benchmark are to be while a block is measured. ISTHMUS_BENCH_AWAIT=LOW,HIGH,SECONDS: a block
 * begins when half a round of a bare line takes LOW to HIGH microseconds, and is measured again if it does not afterwards.
 * All blocks of a process together wait so long at most. Both processes play the line meanwhile: the host of a virtual machine
 * puts two processors that are busy on cores of their own sooner than two that are idle.
 */
#ifndef AWAIT_H
#define AWAIT_H

#include <stdio.h>
#include <stdlib.h>

static struct {
    double low, high, left; /* `left`: seconds */
} awaited;

static void await_open(void)
{
    const char *asked = getenv("ISTHMUS_BENCH_AWAIT");

    if (!asked || sscanf(asked, "%lf,%lf,%lf", &awaited.low, &awaited.high, &awaited.left) != 3)
        awaited.left = 0;
}

/* Whether to go on for it; `agree` gives the first process's opinion to both. A line of less than 0 is none. */
static int await_more(double line, double spent, int (*agree)(int))
{
    int is_there = line < 0 || (line >= awaited.low && line < awaited.high);

    return agree(!is_there && spent < awaited.left);
}

/* The line before a block. */
static double await_line(double (*line_us)(void), double (*now)(void), int (*agree)(int))
{
    double begun = now(), line = line_us();

    while (await_more(line, now() - begun, agree))
        line = line_us();
    awaited.left -= now() - begun;
    return line;
}

/* Whether the block that began then is to be measured again, after this line. */
static int await_again(double line, double begun, double (*now)(void), int (*agree)(int))
{
    int again = await_more(line, 0, agree);

    if (again)
        awaited.left -= now() - begun;
    return again;
}

#endif
