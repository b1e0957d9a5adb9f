// SPDX-License-Identifier: Apache-2.0 OR MIT
// What root of a VM of an isolated region can do to write where it must not. tests/vms/isolated calls it, and looks on the host at what is
// in the region's files. Each try writes a word of its own at the beginning of each page, so that it is known afterwards which one got
// through, and says what became of it. Of the VM's own section only the last quarter is written, where nothing is in use: that is how the
// test knows that what it tries does write where it may.
//
//     attack sysfs | registers | mem     by resource2 and resource0 of sysfs; by /dev/mem
//     attack driver                      by the guest driver, of which root may ask anything
//     attack swap                        with the addresses of the own device and of another one exchanged
//     attack load FILE WORDS             loads a kernel module
//     attack scribble SECONDS            writes at random over the whole of the own section, and rings everybody
//     attack frames SECONDS [join]       says to the host service at random what an agent may say, and what only the service may, by
//                                        the agent's own wake port, and prints each second how many frames that were;
//                                        with `join` also such frames, upon which the service enters this VM anew
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../../driver/isthmus.h"

#define DEVICES "/sys/bus/pci/devices"
#define PAGE 4096ul
#define MOST 64

struct device {
	char name[32];
	int is_own; // it has doorbells
	uint64_t start, bytes;
};

static struct device devices[MOST];
static int count;

static void fail(const char *what)
{
	fprintf(stderr, "attack: %s: %s\n", what, strerror(errno));
	exit(1);
}

static __attribute__((format(printf, 1, 2))) const char *path(const char *form, ...)
{
	static char text[4][512];
	static int next;
	char *to = text[next++ % 4];
	va_list words;

	va_start(words, form);
	vsnprintf(to, sizeof(text[0]), form, words);
	va_end(words);
	return to;
}

static unsigned long number_in(const char *file)
{
	FILE *in = fopen(file, "r");
	unsigned long number = 0;

	if (in) {
		if (fscanf(in, "%lx", &number) != 1)
			number = 0;
		fclose(in);
	}
	return number;
}

static void find(void)
{
	DIR *all = opendir(DEVICES);
	struct dirent *entry;

	if (!all)
		fail(DEVICES);
	while ((entry = readdir(all)) && count < MOST) {
		struct device *d = &devices[count];
		uint64_t first, last;
		FILE *in;
		int row;

		if (number_in(path(DEVICES "/%s/vendor", entry->d_name)) != 0x1af4 ||
		    number_in(path(DEVICES "/%s/device", entry->d_name)) != 0x1110)
			continue;
		snprintf(d->name, sizeof(d->name), "%.31s", entry->d_name);
		d->is_own = !access(path(DEVICES "/%s/resource1", d->name), F_OK);
		in = fopen(path(DEVICES "/%s/resource", d->name), "r");
		if (!in)
			fail("resource");
		for (row = 0; row < 3; row++)
			if (fscanf(in, "%lx %lx %*x", &first, &last) != 2)
				fail("a row of resource");
		fclose(in);
		d->start = first;
		d->bytes = last - first + 1;
		count++;
	}
	closedir(all);
	if (count < 3) {
		fprintf(stderr, "attack: this VM has %d devices: the region is not isolated\n", count);
		exit(1);
	}
}

// The word that a try leaves, 16 bytes, each kind of try at a place of its own in each page. The module has those behind.
static void leave(const struct device *d, volatile char *at, uint64_t bytes, const char *how)
{
	static const char *const kinds[] = {"sysfs", "registers", "mem", "driver", "swap"};
	char word[17];
	uint64_t from = d->is_own ? bytes / 4 * 3 / PAGE * PAGE : 0, place = 0, i;

	while (strcmp(kinds[place], how))
		place++;
	snprintf(word, sizeof(word), "ATTACK-%-9s", how);
	for (; from < bytes; from += PAGE)
		for (i = 0; i < 16; i++)
			at[from + 16 * place + i] = word[i];
}

static void told(const struct device *d, const char *how, const char *became)
{
	printf("%s %s %s: %s\n", how, d->name, d->is_own ? "own" : "other", became);
}

static void by_sysfs(const char *resource, const char *how)
{
	int i;

	for (i = 0; i < count; i++) {
		struct device *d = &devices[i];
		const char *file = path(DEVICES "/%s/%s", d->name, resource);
		struct stat stat;
		int fd = open(file, O_RDWR);
		void *at;

		if (fd < 0 || fstat(fd, &stat))
			fail(file);
		at = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (at == MAP_FAILED) {
			told(d, how, "refused");
			continue;
		}
		// A register of the own device rings.
		if (!d->is_own || stat.st_size > 4096)
			leave(d, at, stat.st_size, how);
		munmap(at, stat.st_size);
		told(d, how, "written");
	}
}

static void by_mem(void)
{
	int i, fd = open("/dev/mem", O_RDWR | O_SYNC);

	for (i = 0; i < count; i++) {
		struct device *d = &devices[i];
		void *at = fd < 0 ? MAP_FAILED : mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, d->start);

		if (at == MAP_FAILED) {
			told(d, "mem", "refused");
			continue;
		}
		leave(d, at, d->bytes, "mem");
		munmap(at, d->bytes);
		told(d, "mem", "written");
	}
}

// A descriptor of a device that the driver has, for all of its memory; -1 without the driver.
static int opened(const struct device *d)
{
	struct isthmus_range range = {.bytes = d->bytes, .flags = ISTHMUS_READ | ISTHMUS_WRITE};
	struct isthmus_allow allow = {.ranges = (uintptr_t)&range, .count = 1, .flags = ISTHMUS_MAY_RING};
	DIR *all = opendir(path(DEVICES "/%s/misc", d->name));
	struct dirent *entry;
	int fd = -1;

	while (all && (entry = readdir(all)))
		if (!strncmp(entry->d_name, "isthmus", 7))
			fd = open(path("/dev/%s", entry->d_name), O_RDWR);
	if (all)
		closedir(all);
	if (fd >= 0 && ioctl(fd, ISTHMUS_ALLOW, &allow))
		fail("ISTHMUS_ALLOW");
	return fd;
}

static void by_driver(void)
{
	int i;

	for (i = 0; i < count; i++) {
		struct device *d = &devices[i];
		struct isthmus_pool pool = {.offset = 2 << 20, .bytes = 2 << 20, .table = 1 << 20};
		int fd = opened(d);
		void *at = fd < 0 ? MAP_FAILED : mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (at == MAP_FAILED) {
			told(d, "driver", "refused");
			continue;
		}
		leave(d, at, d->bytes, "driver");
		// The driver's own stores, to the grant table; with the memory of this device alone, and that of none other.
		if (!d->is_own && d->bytes >= 8 << 20 && !ioctl(fd, ISTHMUS_POOL, &pool)) {
			pool.bytes = 0;
			ioctl(fd, ISTHMUS_POOL, &pool);
		}
		munmap(at, d->bytes);
		close(fd);
		told(d, "driver", "written");
	}
}

// ---- Addresses ----

static int config_of(const char *folder)
{
	int fd = open(path("%s/config", folder), O_RDWR);

	if (fd < 0)
		fail(folder);
	return fd;
}

static uint32_t get(int fd, int at)
{
	uint32_t value;

	if (pread(fd, &value, 4, at) != 4)
		fail("read a configuration space");
	return value;
}

static void put(int fd, int at, uint32_t value)
{
	if (pwrite(fd, &value, 4, at) != 4)
		fail("write a configuration space");
}

// BAR2 of a device, and the window of the port that it is behind.
static const int BAR[] = {0x18, 0x1c}, WINDOW[] = {0x24, 0x28, 0x2c};

static void exchange(int a, int b, const int *at, int words)
{
	int i;

	for (i = 0; i < words; i++) {
		uint32_t of_a = get(a, at[i]), of_b = get(b, at[i]);

		put(a, at[i], of_b);
		put(b, at[i], of_a);
	}
}

static void decode(int fd, int on)
{
	uint16_t command = (uint16_t)get(fd, 4);

	command = on ? command | 2 : command & ~2;
	if (pwrite(fd, &command, 2, 4) != 2)
		fail("write a command register");
}

static const char *port_of(const struct device *d)
{
	char *real = realpath(path(DEVICES "/%s", d->name), NULL);
	const char *port;

	if (!real)
		fail(d->name);
	*strrchr(real, '/') = 0;
	port = path("%s", real);
	free(real);
	return port;
}

// What a device's memory begins with; 0 if it cannot be told.
static uint64_t first_word(const struct device *d)
{
	int fd = open(path(DEVICES "/%s/resource2", d->name), O_RDONLY);
	volatile uint64_t *at = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t first = at == MAP_FAILED ? 0 : *at;

	if (at != MAP_FAILED)
		munmap((void *)at, PAGE);
	if (fd >= 0)
		close(fd);
	return first;
}

// Without the driver: stores go to where the own device was, and another one is now.
static void by_swap(void)
{
	struct device *own = NULL;
	int i;

	for (i = 0; i < count; i++)
		if (devices[i].is_own)
			own = &devices[i];
	if (!own)
		fail("no own device");
	for (i = 0; i < count; i++) {
		struct device *d = &devices[i];
		uint64_t bytes = d->bytes < own->bytes ? d->bytes : own->bytes, first, seen;
		int fd, a, b, port_a, port_b;
		void *at;

		if (d->is_own)
			continue;
		first = first_word(d);
		fd = open(path(DEVICES "/%s/resource2", own->name), O_RDWR);
		at = fd < 0 ? MAP_FAILED : mmap(NULL, own->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (at == MAP_FAILED) {
			told(d, "swap", "refused");
			continue;
		}
		a = config_of(path(DEVICES "/%s", own->name));
		b = config_of(path(DEVICES "/%s", d->name));
		port_a = config_of(port_of(own));
		port_b = config_of(port_of(d));
		decode(a, 0);
		decode(b, 0);
		exchange(port_a, port_b, WINDOW, 3);
		exchange(a, b, BAR, 2);
		decode(b, 1);
		// What is there is the other one's, or this tries nothing.
		seen = *(volatile uint64_t *)at;
		leave(d, at, bytes, "swap");
		decode(b, 0);
		exchange(a, b, BAR, 2);
		exchange(port_a, port_b, WINDOW, 3);
		decode(a, 1);
		decode(b, 1);
		close(a);
		close(b);
		close(port_a);
		close(port_b);
		munmap(at, own->bytes);
		told(d, "swap", first && seen == first ? "written" : "elsewhere");
	}
}

static void load(const char *file, const char *words)
{
	int fd = open(file, O_RDONLY);

	if (fd < 0)
		fail(file);
	// The module does not want to stay.
	if (syscall(SYS_finit_module, fd, words, 0) && errno != EAGAIN)
		fail("load the module");
	close(fd);
}

// ---- Lies ----

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void scribble(long seconds)
{
	struct device *own = NULL;
	struct timespec now, end;
	uint64_t state = 0x9e3779b97f4a7c15, rounds = 0, rings = 0;
	volatile uint64_t *words, *table;
	volatile uint32_t *bell = NULL;
	int i, fd;

	for (i = 0; i < count; i++)
		if (devices[i].is_own)
			own = &devices[i];
	fd = opened(own);
	if (fd < 0) {
		int registers = open(path(DEVICES "/%s/resource0", own->name), O_RDWR);

		fd = open(path(DEVICES "/%s/resource2", own->name), O_RDWR);
		bell = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, registers, 0);
		if (bell == MAP_FAILED)
			fail("map the registers");
	}
	words = mmap(NULL, own->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		fail("map the own section");
	table = words;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += seconds;
	do {
		for (i = 0; i < 4096; i++) {
			uint64_t value = next_random(&state), at = next_random(&state);

			// Half of it in the tables, where each word means something; half of the values small, as numbers and states are.
			at %= at & 1 << 20 ? (64 << 10) / 8 : own->bytes / 8;
			if (value & 1)
				value >>= 8 + value % 55;
			table[at] = value;
		}
		for (i = 0; i < 64; i++) {
			unsigned member = next_random(&state) % 5, vector = next_random(&state) % 8;

			if (bell)
				bell[3] = member << 16 | vector;
			else if (ioctl(fd, ISTHMUS_RING, ISTHMUS_RING_ARG(member, vector)))
				continue;
			rings++;
		}
		rounds++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end.tv_sec);
	printf("scribbled %lu words, rang %lu times\n", rounds * 4096, rings);
}

// The agent's descriptor of the wake port, which the kernel opens for one process at a time.
static int wake_port(void)
{
	DIR *ports = opendir("/sys/class/virtio-ports"), *processes, *files;
	struct dirent *entry, *file;
	char port[300] = "", name[64], to[300];
	int fd = -1;

	while (ports && (entry = readdir(ports))) {
		FILE *in = fopen(path("/sys/class/virtio-ports/%s/name", entry->d_name), "r");

		if (in && fgets(name, sizeof(name), in) && !strcmp(name, "isthmus.wake\n"))
			snprintf(port, sizeof(port), "/dev/%s", entry->d_name);
		if (in)
			fclose(in);
	}
	closedir(ports);
	processes = opendir("/proc");
	while (fd < 0 && (entry = readdir(processes))) {
		long pid = strtol(entry->d_name, NULL, 10);

		files = pid > 0 && pid != getpid() ? opendir(path("/proc/%ld/fd", pid)) : NULL;
		while (files && fd < 0 && (file = readdir(files))) {
			ssize_t length = readlink(path("/proc/%ld/fd/%s", pid, file->d_name), to, sizeof(to) - 1);
			int process;

			if (length < 0)
				continue;
			to[length] = 0;
			if (strcmp(to, port))
				continue;
			process = syscall(SYS_pidfd_open, pid, 0);
			fd = syscall(SYS_pidfd_getfd, process, atoi(file->d_name), 0);
			close(process);
		}
		if (files)
			closedir(files);
	}
	closedir(processes);
	return fd;
}

// Half of the numbers small, as members, slots and questions are.
static uint64_t some_number(uint64_t *state, unsigned bits)
{
	uint64_t number = next_random(state) >> (64 - bits);

	return next_random(state) & 1 ? number >> (next_random(state) % bits) : number;
}

static void frames(long seconds, int joins)
{
	static const char kinds[][5] = {"look", "bell", "peer", "ring", "gate", "died", "call", "seen", "join"};
	struct timespec now, end, pause = {.tv_nsec = 1000000};
	uint64_t state = 0x2545f4914f6cdd1d, said = 0;
	int fd = wake_port(), second = 0;

	if (fd < 0)
		fail("the agent's wake port");
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += seconds;
	do {
		unsigned char frame[16];
		uint32_t number = some_number(&state, 32);
		uint64_t kind = next_random(&state) % (joins ? 9 : 8), place = some_number(&state, 64);
		ssize_t bytes = kind == 1 || kind == 2 || kind == 4 ? 16 : 8, written;

		memcpy(frame, kinds[kind], 4);
		memcpy(frame + 4, &number, 4);
		memcpy(frame + 8, &place, 8);
		// Whole frames, and of known kinds: at the first that is not, the service closes the port and hears no more.
		written = write(fd, frame, bytes);
		if (written > 0 && written != bytes)
			fail("a frame was cut");
		if (written < 0 && errno != EAGAIN)
			fail("the port takes no more frames");
		said += written > 0;
		if (written < 0)
			nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec != second) {
			second = now.tv_sec;
			printf("said %lu frames\n", said);
		}
	} while (now.tv_sec < end.tv_sec);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 2)
		return 2;
	find();
	if (!strcmp(argv[1], "sysfs"))
		by_sysfs("resource2", "sysfs");
	else if (!strcmp(argv[1], "registers"))
		by_sysfs("resource0", "registers");
	else if (!strcmp(argv[1], "mem"))
		by_mem();
	else if (!strcmp(argv[1], "driver"))
		by_driver();
	else if (!strcmp(argv[1], "swap"))
		by_swap();
	else if (!strcmp(argv[1], "load") && argc == 4)
		load(argv[2], argv[3]);
	else if (!strcmp(argv[1], "scribble") && argc == 3)
		scribble(atol(argv[2]));
	else if (!strcmp(argv[1], "frames") && argc >= 3)
		frames(atol(argv[2]), argc == 4 && !strcmp(argv[3], "join"));
	else
		return 2;
	return 0;
}
