/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A hash map in a named segment: processes on the host and in VMs insert, look up and remove keys in it at the same time, without
 * a lock of their own, and check each other's work.
 *
 *	cc -O2 map.c $(pkg-config --cflags --libs isthmus) -o map
 *	isthmus run --vms 2 -n 4 -- ./map 4
 *
 * The one idea: decide on what was read, and commit only if that is still so. A key may lie in any of the REACH slots from its
 * home on; those are read at one moment, and a change of one of them compares them all. If anything there has changed
 * meanwhile, nothing is written, and the operation begins anew. So no key is ever in two slots, and a process that is killed
 * leaves no slot half written.
 */
#define _POSIX_C_SOURCE 200809L
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>

#define REACH 8
#define HOMES 256
#define KEYS 100
#define MOST 64 /* processes */

struct slot {
	uint64_t key, value; /* a key of 0: nothing is here */
};

/* The segment. A new one is all zeros: an empty map. */
struct shared {
	struct slot slots[HOMES + REACH - 1];
	_Atomic uint64_t came;
	int64_t has[MOST][KEYS + 1]; /* how often a process has inserted a key, less how often it has removed it */
};

struct map {
	struct isthmus_transaction *t;
	uint32_t segment;
	struct slot near[REACH]; /* what was read last: the slots in which a key may lie */
	unsigned again;
};

static void must(int error, const char *what)
{
	if (error < 0) {
		fprintf(stderr, "map: %s: %s\n", what, isthmus_error());
		exit(1);
	}
}

/* ---- the map ---- */

/* Where the slots of a key begin, in bytes of the segment. */
static uint64_t home(uint64_t key)
{
	return key * 0x9e3779b97f4a7c15 / (UINT64_MAX / HOMES + 1) * sizeof(struct slot);
}

/* Reads all slots in which `key` may lie, as they are at one moment. */
static void read_near(struct map *map, uint64_t key)
{
	int outcome;

	must(isthmus_transaction_clear(map->t), "clear");
	must(isthmus_transaction_read(map->t, ISTHMUS_NODE_LOCAL, map->segment, home(key), map->near, sizeof map->near), "read");
	do
		must(outcome = isthmus_transaction_commit(map->t), "commit");
	while (outcome != ISTHMUS_COMMITTED);
}

/* Which of the slots that were read has `key`: -1 for none. */
static int slot_with(const struct map *map, uint64_t key)
{
	for (int i = 0; i < REACH; i++)
		if (map->near[i].key == key)
			return i;
	return -1;
}

/* Writes one of the slots of `key`, if all of them are what was read. Returns whether they were. */
static int change(struct map *map, uint64_t key, int i, struct slot to)
{
	uint64_t begin = home(key), place = begin + (unsigned)i * sizeof to;

	must(isthmus_transaction_clear(map->t), "clear");
	must(isthmus_transaction_compare(map->t, ISTHMUS_NODE_LOCAL, map->segment, begin, map->near, sizeof map->near), "compare");
	must(isthmus_transaction_write(map->t, ISTHMUS_NODE_LOCAL, map->segment, place, &to, sizeof to), "write");
	int outcome = isthmus_transaction_commit(map->t);
	must(outcome, "commit");
	map->again += outcome != ISTHMUS_COMMITTED;
	return outcome == ISTHMUS_COMMITTED;
}

/* Returns whether the key is there, and its value. */
static int look_up(struct map *map, uint64_t key, uint64_t *value)
{
	read_near(map, key);
	int i = slot_with(map, key);
	if (i >= 0)
		*value = map->near[i].value;
	return i >= 0;
}

/* Returns whether it was inserted: not if it was there. */
static int insert(struct map *map, uint64_t key, uint64_t value)
{
	int free;

	do {
		read_near(map, key);
		if (slot_with(map, key) >= 0)
			return 0;
		if ((free = slot_with(map, 0)) < 0) {
			fprintf(stderr, "map: no room for key %llu\n", (unsigned long long)key);
			exit(1);
		}
	} while (!change(map, key, free, (struct slot){key, value}));
	return 1;
}

/* Returns whether the key was there, and the value that it had. */
static int take_out(struct map *map, uint64_t key, uint64_t *value)
{
	int i;

	do {
		read_near(map, key);
		if ((i = slot_with(map, key)) < 0)
			return 0;
		*value = map->near[i].value;
	} while (!change(map, key, i, (struct slot){0, 0}));
	return 1;
}

/* ---- its users ---- */

/* A value names its key and the process that inserted it, so a reader can tell whether it is whole. */
static void check(uint64_t key, uint64_t value, unsigned parties)
{
	if (value / MOST != key || value % MOST >= parties) {
		fprintf(stderr, "map: key %llu has the value %llu, which was never inserted\n", (unsigned long long)key,
			(unsigned long long)value);
		exit(1);
	}
}

/* Anything at all, in turns. */
static void work(struct map *map, struct shared *shared, uint64_t me, unsigned parties, unsigned operations)
{
	uint64_t seed = me + 1, value;

	for (unsigned done = 0; done < operations; done++) {
		seed = seed * 6364136223846793005 + 1442695040888963407;
		uint64_t key = 1 + (seed >> 33) % KEYS;
		switch ((seed >> 60) % 3) {
		case 0:
			if (look_up(map, key, &value))
				check(key, value, parties);
			break;
		case 1:
			shared->has[me][key] += insert(map, key, key * MOST + me);
			break;
		default:
			if (take_out(map, key, &value)) {
				check(key, value, parties);
				shared->has[me][key]--;
			}
		}
	}
}

/* When all are done: what has been inserted and not been removed is there, once, and nothing else. */
static unsigned count(struct map *map, const struct shared *shared, unsigned parties)
{
	unsigned there = 0, taken = 0;

	for (uint64_t key = 1; key <= KEYS; key++) {
		uint64_t value;
		int64_t expected = 0;
		int found = look_up(map, key, &value);
		for (unsigned process = 0; process < parties; process++)
			expected += shared->has[process][key];
		if (found != expected) {
			fprintf(stderr, "map: key %llu was inserted %lld times more than removed, and is %s\n",
				(unsigned long long)key, (long long)expected, found ? "there" : "not there");
			exit(1);
		}
		there += (unsigned)found;
	}
	for (unsigned i = 0; i < HOMES + REACH - 1; i++)
		taken += shared->slots[i].key != 0;
	if (taken != there) {
		fprintf(stderr, "map: %u slots are taken by %u keys\n", taken, there);
		exit(1);
	}
	return there;
}

int main(int argc, char **argv)
{
	unsigned parties = argc > 1 ? (unsigned)atoi(argv[1]) : 2, operations = argc > 2 ? (unsigned)atoi(argv[2]) : 20000;
	struct map map = {0};
	struct isthmus *here;
	struct isthmus_segment *segment;
	struct isthmus_space *space;
	struct isthmus_barrier *barrier;

	if (parties < 1 || parties > MOST) {
		fprintf(stderr, "map: 1 to %d parties\n", MOST);
		return 2;
	}
	must(isthmus_attach(NULL, &here), "attach");
	must(isthmus_segment_open(here, "map", ISTHMUS_CREATE, 0600, sizeof(struct shared), &segment), "segment");
	must(isthmus_space_open(here, "map", 0600, NULL, &space), "space");
	must(isthmus_space_add(space, segment, &map.segment), "add");
	must(isthmus_transaction_new(space, &map.t), "transaction");
	must(isthmus_barrier_join(here, "map", parties, ISTHMUS_HYBRID, 0600, &barrier), "join");
	struct shared *shared = isthmus_segment_data(segment);
	uint64_t me = shared->came++;

	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the start");
	work(&map, shared, me, parties, operations);
	must(isthmus_barrier_wait(barrier, ISTHMUS_FOREVER), "the end");
	printf("process %llu: %u operations, %u changes tried again; %u keys are there, as all have counted\n",
	       (unsigned long long)me, operations, map.again, count(&map, shared, parties));
	if (me == 0) {
		must(isthmus_segment_unlink(here, "map"), "unlink");
		must(isthmus_space_unlink(here, "map"), "unlink");
		must(isthmus_barrier_unlink(here, "map"), "unlink");
	}
	isthmus_transaction_free(map.t);
	isthmus_barrier_leave(barrier);
	isthmus_space_close(space);
	isthmus_segment_close(segment);
	isthmus_detach(here);
	return 0;
}
