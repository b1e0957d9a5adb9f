/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Pictures as PNG files in a directory, and an animation of them as one more (APNG, which browsers play), without a library:
 *
 *	struct film *film = film_begin("pictures", 2);
 *	film->pixels[FILM_ROW * y + 1 + x] = 255;
 *	film_shoot(film, 1), film_shoot(film, 2);
 *	film_end(film);
 *
 * A pixel is the number of a colour: 0 is dark, for the ground, and 1 to 255 go from deep blue to white. Nothing is packed.
 * Functions return 0, or -1 or NULL with errno.
 *
 * PNG is in ISO/IEC 15948, with animations since its third edition; the stream of pixels in RFC 1950, its blocks in RFC 1951.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILM_WIDTH 720
#define FILM_HEIGHT 480
/* A row is a byte that says how the row is changed before packing (0: not at all), and a byte for each pixel. */
#define FILM_ROW (1 + FILM_WIDTH)
#define FILM_PIXELS (FILM_ROW * FILM_HEIGHT)
/* Blocks of bytes as they are: at most 65535, with five bytes before them. The stream has two before all and four behind. */
#define FILM_BLOCK 65535
#define FILM_STREAM (2 + FILM_PIXELS + 5 * ((FILM_PIXELS + FILM_BLOCK - 1) / FILM_BLOCK) + 4)

struct film {
	const char *directory;
	FILE *file;
	uint32_t pieces; /* so far; the animation numbers them */
	unsigned char palette[256][3];
	unsigned char pixels[FILM_PIXELS];
	unsigned char stream[4 + FILM_STREAM]; /* with room for a piece's number before it */
};

static unsigned char *put32(unsigned char *at, uint32_t value)
{
	for (int shift = 24; shift >= 0; shift -= 8)
		*at++ = (unsigned char)(value >> shift);
	return at;
}

static uint32_t crc(uint32_t sum, const unsigned char *bytes, size_t len)
{
	static uint32_t table[256];
	for (uint32_t n = 0; table[255] == 0 && n < 256; n++) {
		uint32_t c = n;
		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? 0xedb88320 ^ c >> 1 : c >> 1;
		table[n] = c;
	}
	for (size_t at = 0; at < len; at++)
		sum = table[(sum ^ bytes[at]) & 255] ^ sum >> 8;
	return sum;
}

/* A piece of a PNG file: its length, its type, its bytes, and a check of the latter two. */
static void chunk(FILE *file, const char *type, const unsigned char *bytes, size_t len)
{
	unsigned char head[8], tail[4];
	memcpy(put32(head, (uint32_t)len), type, 4);
	put32(tail, ~crc(crc(~0u, head + 4, 4), bytes, len));
	fwrite(head, 1, 8, file);
	fwrite(bytes, 1, len, file);
	fwrite(tail, 1, 4, file);
}

/* What each PNG begins with: its size, and its colours. */
static void film_png(const struct film *film, FILE *file)
{
	unsigned char header[13] = {[8] = 8 /* bits a pixel */, 3 /* in a palette */, 0, 0, 0};
	put32(put32(header, FILM_WIDTH), FILM_HEIGHT);
	fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
	chunk(file, "IHDR", header, sizeof header);
	chunk(file, "PLTE", film->palette[0], sizeof film->palette);
}

/* Opens one of the files. */
static FILE *film_open(const struct film *film, const char *name)
{
	char path[4096 + 64]; /* more than a system takes, and a name */
	snprintf(path, sizeof path, "%.4096s/%s", film->directory, name);
	return fopen(path, "wb");
}

/* Ends a file; says whether all of it was written. */
static int film_close(FILE *file)
{
	chunk(file, "IEND", (const unsigned char *)"", 0);
	int failed = ferror(file);
	return fclose(file) || failed ? -1 : 0;
}

/* Wraps the pixels in a zlib stream without packing them. */
static void film_wrap(struct film *film)
{
	unsigned char *at = film->stream + 4;
	uint32_t a = 1, b = 0;
	*at++ = 0x78, *at++ = 0x01;
	for (size_t done = 0; done < FILM_PIXELS; done += FILM_BLOCK) {
		size_t len = FILM_PIXELS - done < FILM_BLOCK ? FILM_PIXELS - done : FILM_BLOCK;
		*at++ = done + len == FILM_PIXELS;
		*at++ = (unsigned char)len, *at++ = (unsigned char)(len >> 8);
		*at++ = (unsigned char)~len, *at++ = (unsigned char)(~len >> 8);
		memcpy(at, film->pixels + done, len);
		at += len;
	}
	for (size_t n = 0; n < FILM_PIXELS; n++) {
		a = (a + film->pixels[n]) % 65521;
		b = (b + a) % 65521;
	}
	put32(at, b << 16 | a);
}

/* Begins an animation of so many frames in a directory, which is made if there is none. */
static struct film *film_begin(const char *directory, uint32_t frames)
{
	unsigned char control[8] = {0}; /* how many frames, and how often to play them: 0 is without end */
	struct film *film = calloc(1, sizeof *film);
	if (!film)
		return NULL;
	film->directory = directory;
	film->palette[0][0] = film->palette[0][1] = 14, film->palette[0][2] = 24;
	for (int n = 1; n < 256; n++) {
		film->palette[n][0] = (unsigned char)(n < 128 ? 24 : 24 + (n - 128) * 9 / 5);
		film->palette[n][1] = (unsigned char)(70 + n * 2 / 3);
		film->palette[n][2] = (unsigned char)(160 + n * 3 / 8);
	}
	if ((mkdir(directory, 0777) && errno != EEXIST) || !(film->file = film_open(film, "animation.png"))) {
		free(film);
		return NULL;
	}
	film_png(film, film->file);
	put32(control, frames);
	chunk(film->file, "acTL", control, sizeof control);
	return film;
}

/* Writes the pixels as the animation's next frame, and to a file of their own, with `number` in its name. */
static int film_shoot(struct film *film, uint64_t number)
{
	unsigned char control[26] = {[21] = 1, [23] = 25}; /* number, size, where, shown for 1/25 s */
	char name[64];
	snprintf(name, sizeof name, "frame-%06llu.png", (unsigned long long)number);
	FILE *file = film_open(film, name);
	if (!file)
		return -1;
	film_wrap(film);
	film_png(film, file);
	chunk(file, "IDAT", film->stream + 4, FILM_STREAM);

	put32(put32(put32(control, film->pieces), FILM_WIDTH), FILM_HEIGHT);
	chunk(film->file, "fcTL", control, sizeof control);
	if (film->pieces++ == 0) {
		chunk(film->file, "IDAT", film->stream + 4, FILM_STREAM);
	} else {
		put32(film->stream, film->pieces++);
		chunk(film->file, "fdAT", film->stream, 4 + FILM_STREAM);
	}
	return film_close(file);
}

/* Ends the animation. */
static int film_end(struct film *film)
{
	int error = film_close(film->file);
	free(film);
	return error;
}
