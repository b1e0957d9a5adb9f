/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the guest driver lets processes do, and what not: isthmus(4). As root, in a VM with a device that no agent uses:
 *
 *	driver NODE CASE		one of the cases below
 *	driver NODE gone		says "ready", and goes on once the device is unplugged
 *	driver NODE cycles PCI N	N times: the driver takes the device PCI, processes map it, and it is taken away
 *	driver NODE without_pages PCI	the driver takes the device PCI anew, told to have no pages for it
 *
 * The region behind it has at least 64 MiB. Ends with 0 if all holds, else says what does not.
 */
#include "driver.h"

/* ---- Cases ---- */

static void about(void)
{
	struct isthmus_info i = info(node_open(O_RDWR));

	CHECK(i.abi == ISTHMUS_ABI);
	CHECK(i.bytes >= 64 * MIB);
	CHECK(i.vectors == 8);
	CHECK(i.flags == ISTHMUS_PAGES);
	FAILS(ioctl(node_open(O_RDWR), ISTHMUS_INFO, (void *)8), EFAULT);
	FAILS(ioctl(node_open(O_RDWR), _IO(0xb7, 99), 0), ENOTTY);
}

static void user_allows(int fd)
{
	struct isthmus_range all = {0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE, 0};

	FAILS(allow(fd, &all, 1, 0), EPERM);
	FAILS(map(fd, 0, PAGE, PROT_READ), EACCES);
	FAILS(open(node, O_RDWR), EACCES);
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	FAILS(open(path, O_RDWR), EACCES);
}

static void allows(void)
{
	int fd = node_open(O_RDWR);
	uint64_t bytes = info(fd).bytes;
	const uint32_t both = ISTHMUS_READ | ISTHMUS_WRITE;
	struct isthmus_range many[ISTHMUS_RANGES + 1];
	const struct isthmus_range bad[] = {
		{1, PAGE, both, 0}, {0, PAGE + 1, both, 0}, {0, 0, both, 0}, {0, PAGE, 8, 0}, {0, PAGE, both, 1},
		{0, bytes + PAGE, both, 0}, {bytes, PAGE, both, 0}, {-PAGE, 2 * PAGE, both, 0}, {PAGE, -PAGE, both, 0},
	};

	FAILS(map(fd, 0, PAGE, PROT_READ), EACCES);
	FAILS(ring(fd, 0, 0), EACCES);
	as_user(user_allows, fd);
	for (unsigned int i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		FAILS(allow(fd, &bad[i], 1, 0), EINVAL);
	for (unsigned int i = 0; i <= ISTHMUS_RANGES; i++)
		many[i] = (struct isthmus_range){2 * i * PAGE, PAGE, i % 2 ? both : ISTHMUS_READ, 0};
	FAILS(allow(fd, many, ISTHMUS_RANGES + 1, 0), EINVAL);
	FAILS(allow(fd, many, UINT32_MAX, 0), EINVAL);
	FAILS(allow(fd, many, 1, 2), EINVAL);
	FAILS(allow(fd, (void *)8, 1, 0), EFAULT);
	FAILS(map(fd, 0, PAGE, PROT_READ), EACCES);
	/* The first three next to one another, and gaps between the others. */
	many[2].offset = PAGE;
	OK(allow(fd, many, ISTHMUS_RANGES, 0));
	FAILS(allow(fd, many, 1, 0), EBUSY);
	FAILS(ring(fd, 0, 0), EACCES);
	mapped(fd, 0, 3 * PAGE, PROT_READ);
	FAILS(map(fd, 0, 4 * PAGE, PROT_READ), EACCES);
	FAILS(map(fd, 3 * PAGE, PAGE, PROT_READ), EACCES);
	FAILS(map(fd, (2 * ISTHMUS_RANGES + 2) * PAGE, PAGE, PROT_READ), EACCES);
	FAILS(map(fd, bytes, PAGE, PROT_READ), EACCES);
	FAILS(map(fd, -PAGE, PAGE, PROT_READ), EOVERFLOW);
	FAILS(map(fd, 0, PAGE, PROT_READ | PROT_WRITE), EACCES);
	mapped(fd, 2 * (ISTHMUS_RANGES - 1) * PAGE, PAGE, PROT_READ | PROT_WRITE);
	FAILS(map(fd, 0, PAGE, PROT_READ | PROT_EXEC), EPERM);
	FAILS(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0), EINVAL);
	FAILS(mprotect((void *)mapped(fd, 0, PAGE, PROT_READ), PAGE, PROT_READ | PROT_WRITE), EACCES);
	FAILS(mprotect((void *)mapped(fd, 0, PAGE, PROT_READ), PAGE, PROT_READ | PROT_EXEC), EACCES);
	FAILS(mremap((void *)mapped(fd, 0, PAGE, PROT_READ), PAGE, 4 * PAGE, MREMAP_MAYMOVE), EFAULT);
	/* Through a descriptor that is open for reading. */
	int reading = node_open(O_RDONLY);
	OK(allow(reading, &(struct isthmus_range){0, PAGE, both, 0}, 1, 0));
	FAILS(map(reading, 0, PAGE, PROT_READ | PROT_WRITE), EACCES);
	mapped(reading, 0, PAGE, PROT_READ);
}

static long minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

static void pages(void)
{
	const size_t bytes = 32 * MIB;
	int fd = allowed(0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);
	volatile unsigned char *at = mapped(fd, 32 * MIB, bytes, PROT_READ | PROT_WRITE);
	volatile unsigned char *again = mapped(fd, 32 * MIB, bytes, PROT_READ);
	long before = minor_faults();

	for (size_t i = 0; i < bytes; i += PAGE)
		at[i] = (unsigned char)(i / PAGE);
	long faults = minor_faults() - before;
	printf("%ld faults for %zu MiB\n", faults, bytes / MIB);
	CHECK(faults <= (long)(bytes / (2 * MIB)) + 4);
	for (size_t i = 0; i < bytes; i += PAGE)
		CHECK(again[i] == (unsigned char)(i / PAGE));
	/* A part of it unmapped, and one of another protection: the rest is there. */
	OK(munmap((void *)(at + 2 * MIB + PAGE), PAGE));
	OK(mprotect((void *)(at + 4 * MIB), PAGE, PROT_READ));
	CHECK(at[2 * MIB] == (unsigned char)(2 * MIB / PAGE) && at[2 * MIB + 2 * PAGE] == (unsigned char)(2 * MIB / PAGE + 2));
	at[4 * MIB + PAGE] = 77;
	CHECK(again[4 * MIB + PAGE] == 77);
	/* Where 2 MiB do not fit. */
	volatile unsigned char *odd = mapped(fd, 32 * MIB + PAGE, 4 * MIB, PROT_READ | PROT_WRITE);
	odd[0] = 78;
	CHECK(again[PAGE] == 78);
	/* A forked child has it, too. */
	pid_t pid = (pid_t)OK(fork());
	int status;
	if (pid == 0) {
		at[0] = 79;
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0 && again[0] == 79);
	/* System calls that need pages: of another process, and of a pipe that takes them as they are. */
	unsigned char copy[2] = {0};
	struct iovec here = {copy, 1}, there = {(void *)at, 1};
	CHECK(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 && copy[0] == 79);
	int ends[2];
	OK(pipe(ends));
	CHECK(vmsplice(ends[1], &there, 1, 0) == 1);
	at[0] = 80;
	CHECK(read(ends[0], copy, 1) == 1 && copy[0] == 80);
}

/* What needs pages of memory: files are read into it and written from it, without a copy where the file system can do that, and
 * other processes read it. Gives whether all of it works; either all does, or none. */
static bool direct(int fd)
{
	volatile unsigned char *at = mapped(fd, 32 * MIB, 2 * MIB, PROT_READ | PROT_WRITE);
	unsigned char copy[PAGE];
	struct iovec here = {copy, PAGE}, there = {(void *)(at + PAGE), PAGE};
	int file = (int)OK(open("/proc/self/exe", O_RDONLY));

	CHECK(pread(file, copy, PAGE, 0) == PAGE);
	close(file);
	/* The system's own files come from the host: reads and writes of more than a KiB go to and from the pages themselves. */
	file = (int)OK(open("/proc/self/exe", O_RDONLY | O_DIRECT));
	memset((void *)(at + PAGE), 0, PAGE);
	ssize_t got = pread(file, (void *)(at + PAGE), PAGE, 0);
	bool by_file = got == PAGE;
	CHECK(by_file ? memcmp((void *)(at + PAGE), copy, PAGE) == 0 : got == -1);
	close(file);
	memset((void *)(at + PAGE), 78, PAGE);
	memset(copy, 0, PAGE);
	bool by_process = process_vm_readv(getpid(), &here, 1, &there, 1, 0) == PAGE;
	CHECK(by_process ? copy[PAGE - 1] == 78 : errno == EFAULT);
	CHECK(by_file == by_process);
	munmap((void *)at, 2 * MIB);
	return by_file;
}

static void o_direct(void)
{
	CHECK(direct(allowed(0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE)));
}

static void write_back(void)
{
	int fd = allowed(0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);
	char path[64], line[256], *name = strrchr(node, '/') + 1;
	unsigned long long start = 0;

	snprintf(path, sizeof(path), "/sys/class/misc/%s/device/resource", name);
	FILE *resources = fopen(path, "r");
	CHECK(resources);
	for (int i = 0; i < 3; i++)
		CHECK(fgets(line, sizeof(line), resources));
	CHECK(sscanf(line, "%llx", &start) == 1 && start >= 1ull << 32);
	mapped(fd, 0, MIB, PROT_READ)[0];
	mkdir("/tmp/debug", 0700);
	OK(syscall(SYS_mount, "debugfs", "/tmp/debug", "debugfs", 0, ""));
	FILE *types = fopen("/tmp/debug/x86/pat_memtype_list", "r");
	CHECK(types);
	bool found = false;
	while (fgets(line, sizeof(line), types)) {
		unsigned long long from, to;
		char type[32];
		/* "PAT: [mem 0x...-0x...] write-back" */
		if (sscanf(line, "PAT: [mem 0x%llx-0x%llx] %31s", &from, &to, type) == 3 && from <= start && start < to) {
			printf("%s", line);
			CHECK(strcmp(type, "write-back") == 0);
			found = true;
		}
	}
	CHECK(found);
}

static void user_rings(int fd)
{
	FAILS(ring(fd, 3, 0), EPERM);
	FAILS(ioctl(fd, ISTHMUS_BELL, 1), EPERM);
	FAILS(set_member(fd, 5, 5), EPERM);
	OK(ring(fd, 3, 1));
	FAILS(ring(fd, 4, 1), ENOENT);
}

static void bells(void)
{
	int fd = allowed(0, PAGE, ISTHMUS_READ);
	int one = (int)OK(ioctl(fd, ISTHMUS_BELL, 1)), two = (int)OK(ioctl(fd, ISTHMUS_BELL, 2));
	uint64_t count;

	FAILS(ioctl(fd, ISTHMUS_BELL, 8), EINVAL);
	FAILS(ioctl(fd, ISTHMUS_BELL, -1l), EINVAL);
	FAILS(set_member(fd, ISTHMUS_MEMBERS, 1), EINVAL);
	FAILS(set_member(fd, 1, ISTHMUS_NO_ID + 1), EINVAL);
	OK(set_member(fd, ISTHMUS_ALL, ISTHMUS_NO_ID));
	FAILS(ring(fd, 3, 1), ENOENT);
	OK(set_member(fd, 3, ISTHMUS_OWN_ID));
	CHECK(!ready(one) && !ready(two));
	FAILS(read(one, &count, sizeof(count)), EAGAIN);
	FAILS(read(one, &count, 4), EINVAL);
	OK(ring(fd, 3, 1));
	OK(ring(fd, 3, 1));
	CHECK(ready(one) == POLLIN && !ready(two));
	CHECK(read(one, &count, sizeof(count)) == sizeof(count) && count == 2 && !ready(one));
	as_user(user_rings, fd);
	CHECK(read(one, &count, sizeof(count)) == sizeof(count) && count == 1);
	FAILS(ring(fd, 3, 8), EINVAL);
	FAILS(ring(fd, 3, 255), EINVAL);
	FAILS(ring(fd, ISTHMUS_MEMBERS, 1), EINVAL);
	FAILS(ioctl(fd, ISTHMUS_RING, -1l), EINVAL);
	/* Another descriptor of the same vector begins with none. */
	OK(ring(fd, 3, 2));
	int late = (int)OK(ioctl(fd, ISTHMUS_BELL, 2));
	CHECK(ready(two) == POLLIN && !ready(late));
	/* By the device: its own id is 0. */
	OK(set_member(fd, 7, 0));
	OK(ring(fd, 7, 2));
	struct pollfd both = {.fd = late, .events = POLLIN};
	CHECK(poll(&both, 1, 5000) == 1);
	/* A reader that sleeps is woken. */
	CHECK(read(one, &count, sizeof(count)) == -1);
	OK(fcntl(one, F_SETFL, 0));
	pid_t pid = (pid_t)OK(fork());
	int status;
	if (pid == 0) {
		usleep(50000);
		OK(ring(fd, 3, 1));
		_exit(0);
	}
	CHECK(read(one, &count, sizeof(count)) == sizeof(count) && count == 1);
	OK(waitpid(pid, &status, 0));
	CHECK(status == 0);
}

/* A process that rings without end does not take the processor from others, and the last ring comes through. */
static void storm(void)
{
	int fd = allowed(0, PAGE, ISTHMUS_READ);
	int bell = (int)OK(ioctl(fd, ISTHMUS_BELL, 3));
	uint64_t count, all = 0;
	double end = now() + 1;
	long rings = 0;

	OK(set_member(fd, 7, 0));
	for (; now() < end; rings++)
		OK(ring(fd, 7, 3));
	usleep(100000);
	while (read(bell, &count, sizeof(count)) == sizeof(count))
		all += count;
	printf("%ld rings, %llu interrupts and pauses in a second\n", rings, (unsigned long long)all);
	CHECK(all >= 1 && all <= 110000);
	OK(ring(fd, 7, 3));
	struct pollfd p = {.fd = bell, .events = POLLIN};
	CHECK(poll(&p, 1, 5000) == 1);
}

/* An ordinary user that tries everything with a descriptor for 16 pages from page 16 on, the upper half for reading. */
static void hostile(int fd)
{
	static unsigned char rubbish[4096];
	long done = 0, refused = 0;

	for (long i = 0; i < 60000; i++) {
		if (i % 1000 == 0)
			for (unsigned int k = 0; k < sizeof(rubbish); k++)
				rubbish[k] = (unsigned char)next();
		if (next() % 2) {
			static const unsigned int known[] = {ISTHMUS_INFO, ISTHMUS_ALLOW, ISTHMUS_MEMBER, ISTHMUS_BELL, ISTHMUS_RING};
			unsigned int command = next() % 4 ? known[next() % 5] : (unsigned int)next();
			unsigned long arguments[] = {(unsigned long)rubbish + next() % 4096, next(), next() % 8, 0, -1ul};
			/* Else it does what it says: the terminal's, for instance. */
			if (_IOC_TYPE(command) != 0xb7)
				continue;
			long got = ioctl(fd, command, arguments[next() % 5]);
			bool is_allowed = command == ISTHMUS_INFO || command == ISTHMUS_RING;
			CHECK(got == -1 || (got == 0 && is_allowed));
			got == -1 ? refused++ : done++;
			continue;
		}
		uint64_t page = next() % 4 ? next() % 48 : next() >> 12;
		size_t count = next() % 24 + 1;
		int protection = (int)(next() % 8), flags = next() % 8 ? MAP_SHARED : MAP_PRIVATE;
		volatile unsigned char *at = mmap(NULL, count * PAGE, protection, flags, fd, (off_t)(page * PAGE));
		if (at == MAP_FAILED) {
			refused++;
			continue;
		}
		CHECK(page >= 16 && page + count <= 32 && !(protection & PROT_EXEC) && flags == MAP_SHARED);
		CHECK(!(protection & PROT_WRITE) || page + count <= 24);
		if (protection & PROT_WRITE)
			at[next() % (count * PAGE)] = 1;
		else if (protection & PROT_READ)
			(void)at[next() % (count * PAGE)];
		if (page + count > 24)
			FAILS(mprotect((void *)at, count * PAGE, PROT_READ | PROT_WRITE), EACCES);
		size_t new_count = next() % 32 + 1;
		void *moved = mremap((void *)at, count * PAGE, new_count * PAGE, (int)(next() % 2));
		if (moved != MAP_FAILED)
			madvise(moved, PAGE * (next() % new_count), (int)(next() % 26));
		if (moved == MAP_FAILED)
			munmap((void *)at, count * PAGE);
		else
			munmap(moved, new_count * PAGE);
		done++;
	}
	printf("%ld calls were refused, %ld carried out\n", refused, done);
	fflush(stdout);
}

static void fuzz(void)
{
	int fd = node_open(O_RDWR), all = allowed(0, 64 * MIB, ISTHMUS_READ);
	const struct isthmus_range ranges[] = {
		{16 * PAGE, 8 * PAGE, ISTHMUS_READ | ISTHMUS_WRITE, 0}, {24 * PAGE, 8 * PAGE, ISTHMUS_READ, 0}};
	volatile unsigned char *whole = mapped(all, 0, 64 * MIB, PROT_READ);
	unsigned char *before = malloc(64 * MIB);

	OK(set_member(fd, ISTHMUS_ALL, ISTHMUS_NO_ID));
	OK(set_member(fd, 3, ISTHMUS_OWN_ID));
	OK(allow(fd, ranges, 2, ISTHMUS_MAY_RING));
	memcpy(before, (void *)whole, 64 * MIB);
	as_user(hostile, fd);
	/* Nobody else uses it. */
	CHECK(memcmp(before, (void *)whole, 16 * PAGE) == 0);
	CHECK(memcmp(before + 24 * PAGE, (void *)(whole + 24 * PAGE), 64 * MIB - 24 * PAGE) == 0);
}

static sigjmp_buf back;
static volatile sig_atomic_t signals;

static void on_bus(int number)
{
	(void)number;
	signals++;
	siglongjmp(back, 1);
}

static bool faults(volatile unsigned char *at)
{
	int before = signals;

	if (sigsetjmp(back, 1) == 0)
		(void)*at;
	return signals != before;
}

static void gone(void)
{
	int fd = node_open(O_RDWR);
	const struct isthmus_range ranges[] = {{0, 2 * MIB, ISTHMUS_READ | ISTHMUS_WRITE, 0},
					       {2 * MIB, 2 * MIB, ISTHMUS_READ | ISTHMUS_WRITE | ISTHMUS_FAULTS, 0}};
	char line[8];

	signal(SIGBUS, on_bus);
	OK(allow(fd, ranges, 2, ISTHMUS_MAY_RING));
	OK(set_member(fd, 3, 9));
	int bell = (int)OK(ioctl(fd, ISTHMUS_BELL, 1));
	volatile unsigned char *both = mapped(fd, 0, 4 * MIB, PROT_READ | PROT_WRITE);
	volatile unsigned char *other = mapped(fd, 0, 4 * MIB, PROT_READ | PROT_WRITE);
	both[2 * MIB + 5] = 1;
	both[MIB] = 2;
	CHECK(!ready(bell));
	printf("ready\n");
	fflush(stdout);
	struct pollfd p = {.fd = bell, .events = POLLIN};
	CHECK(poll(&p, 1, 60000) == 1 && (p.revents & POLLHUP));
	CHECK(read(bell, line, 8) == 0);
	/* The memory is gone when the call says so. */
	CHECK(info(fd).flags & ISTHMUS_GONE);
	CHECK(both[0] == 0 && both[MIB] == 0 && both[2 * MIB - 1] == 0);
	both[7] = 7;
	CHECK(both[7] == 7 && other[7] == 7 && both[PAGE + 7] == 0);
	CHECK(faults(both + 2 * MIB) && faults(both + 2 * MIB + 5) && faults(other + 4 * MIB - 1));
	CHECK(mapped(fd, 0, PAGE, PROT_READ)[7] == 7);
	FAILS(ring(fd, 3, 1), ENODEV);
	FAILS(open(node, O_RDWR), ENOENT);
	FAILS(syscall(SYS_delete_module, "isthmus", O_NONBLOCK), EWOULDBLOCK);
}

/* Unloads the module, once nothing is open: a path to a bell outlives the bell, and the module with it. */
static void unload(void)
{
	int fd = node_open(O_RDWR), bell = (int)OK(ioctl(fd, ISTHMUS_BELL, 1)), got = -1;
	char name[64];

	snprintf(name, sizeof(name), "/proc/self/fd/%d", bell);
	int path = (int)OK(open(name, O_PATH));
	close(bell);
	close(fd);
	/* What is closed is given back a moment later. */
	usleep(200000);
	FAILS(syscall(SYS_delete_module, "isthmus", O_NONBLOCK), EWOULDBLOCK);
	close(path);
	for (int i = 0; i < 50 && got; i++) {
		usleep(100000);
		got = (int)syscall(SYS_delete_module, "isthmus", O_NONBLOCK);
	}
	CHECK(got == 0);
}

/* While something is mapped there is no sleep of the system. */
static void suspend(void)
{
	int fd = allowed(0, PAGE, ISTHMUS_READ);
	int state = (int)OK(open("/sys/power/state", O_WRONLY));

	mapped(fd, 0, PAGE, PROT_READ)[0];
	FAILS(write(state, "freeze", 6), EBUSY);
	FAILS(syscall(SYS_delete_module, "isthmus", O_NONBLOCK), EWOULDBLOCK);
}

static void cycle(const char *device, bool with_death)
{
	pid_t pids[3];
	int ends[2], status;
	char byte;

	bind_device(device);
	OK(pipe(ends));
	for (int i = 0; i < 3; i++) {
		pids[i] = (pid_t)OK(fork());
		if (pids[i])
			continue;
		int fd = allowed(0, 16 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);
		volatile unsigned char *at = mapped(fd, 0, 16 * MIB, PROT_READ | PROT_WRITE);
		int bell = (int)OK(ioctl(fd, ISTHMUS_BELL, 1));
		for (size_t k = 8 * MIB; k < 16 * MIB; k += MIB)
			at[k] = (unsigned char)i;
		struct pollfd p = {.fd = bell, .events = POLLIN};
		CHECK(write(ends[1], "", 1) == 1);
		CHECK(poll(&p, 1, 20000) == 1);
		while (at[8 * MIB])
			;
		for (size_t k = 0; k < 16 * MIB; k += MIB / 4)
			at[k] = 1;
		_exit(0);
	}
	for (int i = 0; i < 3; i++)
		CHECK(read(ends[0], &byte, 1) == 1);
	if (with_death)
		OK(kill(pids[0], SIGKILL));
	put("/sys/bus/pci/drivers/isthmus/unbind", device);
	for (int i = 0; i < 3; i++) {
		OK(waitpid(pids[i], &status, 0));
		CHECK(status == 0 || (with_death && i == 0 && WTERMSIG(status) == SIGKILL));
	}
	close(ends[0]);
	close(ends[1]);
}

/* Pages that a pipe has hold up the end of the device. */
static void pinned(const char *device)
{
	int ends[2], status;
	char byte;

	bind_device(device);
	int fd = allowed(0, 16 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);
	volatile unsigned char *at = mapped(fd, 0, 16 * MIB, PROT_READ | PROT_WRITE);
	at[5 * MIB] = 42;
	struct iovec there = {(void *)(at + 5 * MIB), 1};
	OK(pipe(ends));
	CHECK(vmsplice(ends[1], &there, 1, 0) == 1);
	pid_t pid = (pid_t)OK(fork());
	if (pid == 0) {
		put("/sys/bus/pci/drivers/isthmus/unbind", device);
		_exit(0);
	}
	for (int i = 0; i < 100 && at[5 * MIB]; i++)
		usleep(100000);
	CHECK(at[5 * MIB] == 0);
	usleep(200000);
	CHECK(waitpid(pid, &status, WNOHANG) == 0);
	CHECK(read(ends[0], &byte, 1) == 1 && byte == 42);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	close(ends[0]);
	close(ends[1]);
	munmap((void *)at, 16 * MIB);
	close(fd);
}

static void cycles(const char *device, int count)
{
	put("/sys/bus/pci/drivers/isthmus/unbind", device);
	pinned(device);
	count_cycles(device, count, cycle);
}

static void bind_anew(const char *device, const char *pages)
{
	put("/sys/bus/pci/drivers/isthmus/unbind", device);
	put("/sys/module/isthmus/parameters/pages", pages);
	bind_device(device);
}

/* Where there is no memory for pages, or none is to be taken for them. */
static void without_pages(const char *device)
{
	struct isthmus_info info = {0};

	bind_anew(device, "N");
	int fd = allowed(0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);
	OK(ioctl(fd, ISTHMUS_INFO, &info));
	CHECK(!(info.flags & ISTHMUS_PAGES));
	volatile unsigned char *at = mapped(fd, 32 * MIB, 4 * MIB, PROT_READ | PROT_WRITE);
	volatile unsigned char *again = mapped(fd, 32 * MIB, 4 * MIB, PROT_READ);
	long before = minor_faults();
	for (size_t i = 0; i < 4 * MIB; i += PAGE)
		at[i] = (unsigned char)(i / PAGE + 1);
	long faults = minor_faults() - before;
	printf("%ld faults for 4 MiB\n", faults);
	CHECK(faults >= (long)(4 * MIB / PAGE));
	for (size_t i = 0; i < 4 * MIB; i += PAGE)
		CHECK(again[i] == (unsigned char)(i / PAGE + 1));
	CHECK(!direct(fd));
	close(fd);
	munmap((void *)at, 4 * MIB);
	munmap((void *)again, 4 * MIB);
	bind_anew(device, "Y");
	fd = allowed(0, 64 * MIB, ISTHMUS_READ | ISTHMUS_WRITE);
	OK(ioctl(fd, ISTHMUS_INFO, &info));
	CHECK(info.flags & ISTHMUS_PAGES);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {{"about", about}, {"allows", allows}, {"pages", pages}, {"o_direct", o_direct}, {"write_back", write_back}, {"bells", bells}, {"storm", storm},
		   {"fuzz", fuzz}, {"suspend", suspend}, {"unload", unload}, {"gone", gone}};

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count < 3)
		return 2;
	node = words[1];
	if (count == 5 && strcmp(words[2], "cycles") == 0) {
		cycles(words[3], atoi(words[4]));
		return 0;
	}
	if (count == 4 && strcmp(words[2], "without_pages") == 0) {
		without_pages(words[3]);
		return 0;
	}
	for (unsigned int i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (strcmp(all[i].name, words[2]) == 0) {
			all[i].run();
			return 0;
		}
	printf("no case %s\n", words[2]);
	return 2;
}
