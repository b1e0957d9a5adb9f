/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program does with a message besides sending it: it computes it before, and reads it afterwards. A message that
 * nobody has written since the last one lies unchanged in the caches of both sides, and whatever moves it finds it there;
 * one that has just been written must be fetched from the writer's cache, line by line, and one that is read must arrive in
 * the reader's. So bandwidth is measured with both, inside of the measured time, of all subjects alike.
 *
 * A word of each line of 64 bytes is enough for the line to move, and costs the least. Each word differs from those of the
 * same message and of the one before, and their sum is checked, so a line that did not arrive is noticed, and a compiler can
 * leave nothing out.
 */
#include "bench.h"

#include <string.h>

#define LINE 64

static uint64_t first_word(uint64_t number)
{
    return (number + 1) * 0x9e3779b97f4a7c15u;
}

void touch(char *message, size_t bytes, uint64_t number)
{
    uint64_t word = first_word(number);

    for (size_t at = 0; at + sizeof word <= bytes; at += LINE, word++)
        memcpy(message + at, &word, sizeof word);
#ifdef BREAK_A_TOUCH /* the test of this test */
    message[bytes / 2 / LINE * LINE] ^= 1;
#endif
}

void check_touch(const char *message, size_t bytes, uint64_t number)
{
    uint64_t sum = 0, lines = 0, word;

    for (size_t at = 0; at + sizeof word <= bytes; at += LINE, lines++) {
        memcpy(&word, message + at, sizeof word);
        sum += word;
    }
    /* One after the other the words count upwards. */
    if (sum != lines * first_word(number) + lines * (lines - 1) / 2)
        die("a message arrived without what had been written into it");
}
