/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A rank for tests/run/short, which has nothing to do but to end.
 *
 *   short MICROSECONDS... HOW
 *
 * Rank N ends after the Nth of the times, modulo how many there are. HOW is `0`, or what one rank does in place of that:
 * `RANK:STATUS` or `RANK:-SIGNAL`; then all others wait to be ended by the launcher, for at most a minute.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *said = getenv("OMPI_COMM_WORLD_RANK");
    if (!said || argc < 3)
        return 99;
    int rank = atoi(said), times = argc - 2;
    const char *how = argv[argc - 1], *what = strchr(how, ':');
    usleep(atol(argv[1 + rank % times]));
    if (!what)
        return 0;
    if (rank != atoi(how)) {
        if (strchr(what, '+'))
            return 0;
        sleep(60);
        return 98;
    }
    int end = atoi(what + 1);
    if (end >= 0)
        return end;
    raise(-end);
    return 97;
}
