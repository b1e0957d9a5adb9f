/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Keys and rights: ftok(3), and what the man pages of the three kinds, and svipc(7), say of users, modes and privileges. */
#include "check.h"

/* ftok(3). Its files are in the working directory, which processes of all places see. */

static char file_name[64];

static const char *new_file(const char *name)
{
	snprintf(file_name, sizeof file_name, "key-%d-%s", (int)getpid(), name);
	int fd = open(file_name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
	if (fd == -1)
		FAIL("the working directory cannot be written");
	close(fd);
	return file_name;
}

CASE(ftok_is_a_key, "ftok generates a key_t type key, suitable for use with msgget, semget, or shmget; ftok(3)")
{
	struct peer *p = peer();
	const char *path = new_file("plain");
	key_t key = OK(ftok(path, 'A'));
	CHECK(key != IPC_PRIVATE);
	int id = OK(keep_msg(msgget(key, IPC_CREAT | 0600)));
	key_t its = OK(its_ftok(p, path, 'A'));
	EQUAL(its, key);
	EQUAL(OK(its_msgget(p, its, 0)), id);
	EQUAL(OK(its_semget(p, its, 1, IPC_CREAT | 0600)), keep_sem(semget(key, 0, 0)));
	EQUAL(OK(its_shmget(p, its, 1, IPC_CREAT | 0600)), keep_shm(shmget(key, 0, 0)));
	unlink(path);
}

CASE(ftok_same_file, "The value is the same for all pathnames that name the same file; ftok(3)")
{
	const char *path = new_file("same");
	char other[5000], directory[4096], link[100];
	key_t key = OK(ftok(path, 'x'));
	EQUAL(OK(ftok(path, 'x')), key);
	snprintf(other, sizeof other, "./%s", path);
	EQUAL(OK(ftok(other, 'x')), key);
	CHECK(getcwd(directory, sizeof directory));
	snprintf(other, sizeof other, "%s/%s", directory, path);
	EQUAL(OK(ftok(other, 'x')), key);
	snprintf(other, sizeof other, "/..//%s/./%s", directory, path);
	EQUAL(OK(ftok(other, 'x')), key);
	snprintf(link, sizeof link, "%s-link", path);
	OK(symlink(path, link));
	key_t by_link = ftok(link, 'x');
	unlink(link);
	EQUAL(by_link, key);
	OK(chdir("/"));
	snprintf(other, sizeof other, "%s/%s", directory + 1, path);
	EQUAL(OK(ftok(other, 'x')), key);
	OK(chdir(directory));
	/* Of its directory as well. */
	EQUAL(OK(ftok(".", 'x')), OK(ftok(directory, 'x')));
	unlink(path);
}

CASE(ftok_contents, "ftok uses the identity of the file, not what is in it; ftok(3)")
{
	const char *path = new_file("contents");
	key_t key = OK(ftok(path, 1));
	FILE *file = fopen(path, "w");
	fputs("some text\n", file);
	fclose(file);
	OK(chmod(path, 0600));
	EQUAL(OK(ftok(path, 1)), key);
	unlink(path);
}

CASE(hardlink_ftok, "The value is the same for all pathnames that name the same file: hard links; ftok(3), semget(2)")
{
	const char *path = new_file("hard");
	char other[100];
	snprintf(other, sizeof other, "%s-other", path);
	OK(link(path, other));
	key_t key = ftok(path, 'x'), its = ftok(other, 'x');
	unlink(path);
	unlink(other);
	EQUAL(its, key);
}

CASE(ftok_differs, "The value should be different when the files or the project IDs differ; ftok(3)")
{
	char path[8][64];
	key_t key[16];
	for (int i = 0; i < 8; i++) {
		char name[8];
		snprintf(name, sizeof name, "%d", i);
		strcpy(path[i], new_file(name));
	}
	for (int i = 0; i < 16; i++)
		key[i] = OK(ftok(path[i / 2], i % 2 ? 'a' : 'b'));
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < i; j++)
			CHECK(key[i] != key[j]);
	for (int i = 0; i < 8; i++)
		unlink(path[i]);
}

CASE(ftok_project, "The least significant 8 bits of proj_id are used; ftok(3)")
{
	const char *path = new_file("project");
	key_t key = OK(ftok(path, 0x41));
	EQUAL(OK(ftok(path, 0x141)), key);
	EQUAL(OK(ftok(path, 0x7fffff41)), key);
	EQUAL(OK(ftok(path, -0xbf)), key);
	for (int project = 1; project < 256; project++)
		if (project != 0x41)
			CHECK(OK(ftok(path, project)) != key);
	unlink(path);
}

CASE(ftok_errors, "On failure -1 is returned, with errno indicating the error as for stat(2); ftok(3)")
{
	const char *path = new_file("errors");
	char other[5000];
	FAILS(ftok("there/is/no/such/file", 1), ENOENT);
	FAILS(ftok("", 1), ENOENT);
	snprintf(other, sizeof other, "%s/below", path);
	FAILS(ftok(other, 1), ENOTDIR);
	memset(other, 'x', sizeof other - 1);
	other[sizeof other - 1] = 0;
	FAILS(ftok(other, 1), ENAMETOOLONG);
	snprintf(other, sizeof other, "%s-loop", path);
	OK(symlink(other, other));
	key_t key = ftok(other, 1);
	int error = errno;
	unlink(other);
	unlink(path);
	EQUAL(key, -1);
	EQUAL(error, ELOOP);
	FAILS(ftok(path, 1), ENOENT);
}

CASE(users_ftok, "The pathname must refer to an accessible file: EACCES; ftok(3)")
{
	NEEDS_ROOT();
	char directory[] = "/tmp/sysv-key-XXXXXX", path[100];
	CHECK(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/file", directory);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	/* A file that cannot be read has an identity all the same. */
	OK(chmod(directory, 0755));
	OK(ftok(path, 1));
	struct peer *p = peer_at(0);
	bool here = peers_are_here;
	key_t open_to_all = 0, closed = 0;
	int error = 0;
	if (here) {
		its_ids(p, 1000, 1000, -1);
		open_to_all = its_ftok(p, path, 1);
		chmod(directory, 0700);
		closed = its_ftok(p, path, 1);
		error = errno;
	}
	unlink(path);
	rmdir(directory);
	if (!here)
		SKIP("the peers see other files");
	CHECK(open_to_all != -1);
	EQUAL(closed, -1);
	EQUAL(error, EACCES);
}

/* The three kinds of objects, alike. */

enum kind { SHM, SEM, MSG };
static const char *const kinds[] = {"segment", "set", "queue"};

static int its_get(struct peer *p, enum kind kind, key_t key, int flags)
{
	bool makes = flags & IPC_CREAT || key == IPC_PRIVATE;
	switch (kind) {
	case SHM:
		return keep_shm(its_shmget(p, key, makes ? PAGE : 0, flags));
	case SEM:
		return keep_sem(its_semget(p, key, makes ? 2 : 0, flags));
	case MSG:
		return keep_msg(its_msgget(p, key, flags));
	}
	return -1;
}

static int its_stat(struct peer *p, enum kind kind, int id, struct ipc_perm *perm)
{
	struct shmid_ds shm;
	struct semid_ds sem;
	struct msqid_ds msg;
	int done = -1;
	switch (kind) {
	case SHM:
		done = its_shmctl(p, id, IPC_STAT, &shm);
		*perm = shm.shm_perm;
		break;
	case SEM:
		done = its_semctl(p, id, 0, IPC_STAT, (union semun){.buf = &sem});
		*perm = sem.sem_perm;
		break;
	case MSG:
		done = its_msgctl(p, id, IPC_STAT, &msg);
		*perm = msg.msg_perm;
		break;
	}
	return done;
}

static int its_set(struct peer *p, enum kind kind, int id, uid_t uid, gid_t gid, int mode)
{
	struct ipc_perm perm = {.uid = uid, .gid = gid, .mode = mode};
	struct shmid_ds shm = {.shm_perm = perm};
	struct semid_ds sem = {.sem_perm = perm};
	struct msqid_ds msg = {.msg_perm = perm, .msg_qbytes = 1000};
	switch (kind) {
	case SHM:
		return its_shmctl(p, id, IPC_SET, &shm);
	case SEM:
		return its_semctl(p, id, 0, IPC_SET, (union semun){.buf = &sem});
	case MSG:
		return its_msgctl(p, id, IPC_SET, &msg);
	}
	return -1;
}

static int its_remove(struct peer *p, enum kind kind, int id)
{
	switch (kind) {
	case SHM:
		return its_shmctl(p, id, IPC_RMID, NULL);
	case SEM:
		return its_semctl(p, id, 0, IPC_RMID, (union semun){0});
	case MSG:
		return its_msgctl(p, id, IPC_RMID, NULL);
	}
	return -1;
}

/* Something that needs no more than to read; of a queue there must be a message of type 1. */
static int its_use_to_read(struct peer *p, enum kind kind, int id)
{
	char *at;
	switch (kind) {
	case SHM:
		at = its_shmat(p, id, NULL, SHM_RDONLY);
		return at == (char *)-1 ? -1 : its_shmdt(p, at);
	case SEM:
		return its_semop1(p, id, 0, 0, IPC_NOWAIT);
	case MSG:
		return its_msgrcv(p, id, NULL, 100, 1, IPC_NOWAIT) == -1 ? -1 : 0;
	}
	return -1;
}

/* Something that needs to write: a segment is read as well. */
static int its_use_to_write(struct peer *p, enum kind kind, int id)
{
	char *at;
	switch (kind) {
	case SHM:
		at = its_shmat(p, id, NULL, 0);
		return at == (char *)-1 ? -1 : its_shmdt(p, at);
	case SEM:
		return its_semop1(p, id, 1, 1, IPC_NOWAIT);
	case MSG:
		return its_msgsnd(p, id, 2, "x", 1, IPC_NOWAIT);
	}
	return -1;
}

static struct peer *user(uid_t uid, gid_t gid, int group)
{
	struct peer *p = peer();
	its_ids(p, uid, gid, group);
	return p;
}

#define NEVER(call, error, ...)                                                                                      \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		errno = 0;                                                                                           \
		long r_ = (call);                                                                                    \
		int e_ = errno;                                                                                      \
		char what_[200];                                                                                     \
		snprintf(what_, sizeof what_, __VA_ARGS__);                                                          \
		if (r_ != -1 || e_ != (error))                                                                       \
			FAIL("%s: expected %s, found %s", what_, strerrorname_np(error),                             \
			     r_ != -1 ? "success" : strerrorname_np(e_));                                            \
	} while (0)

#define ALLOWED(call, ...)                                                                                           \
	do {                                                                                                         \
		AT_LINE;                                                                                             \
		char what_[200];                                                                                     \
		snprintf(what_, sizeof what_, __VA_ARGS__);                                                          \
		if ((call) == -1)                                                                                    \
			FAIL("%s: expected success, found %s", what_, strerrorname_np(errno));                       \
	} while (0)

CASE(users_modes, "The 9 bits of mode grant read and write to owner, group and others: EACCES; svipc(7), and all ctl, op, get")
{
	NEEDS_ROOT();
	LIMIT(60);
	/* The creator, one of its group, one with it as a further group, and one of neither. */
	struct peer *p[] = {user(1000, 2000, -1), user(1001, 2000, -1), user(1002, 3000, 2000), user(1003, 3000, -1)};
	struct peer *root = peer();
	const int shift[] = {6, 3, 3, 0};
	for (int kind = SHM; kind <= MSG; kind++)
		for (int bits = 0; bits < 64; bits++) {
			/* The two bits of each of the three classes. */
			int mode = (bits >> 4 & 3) << 7 | (bits >> 2 & 3) << 4 | (bits & 3) << 1;
			key_t key = fresh_key();
			int id = OK(its_get(p[0], kind, key, IPC_CREAT | mode));
			for (int i = 0; i < 4; i++) {
				int granted = mode >> shift[i] & 7, needed = kind == SHM ? 6 : 2;
				struct ipc_perm perm;
				char what[100];
				snprintf(what, sizeof what, "%s of mode %04o, user %d", kinds[kind], mode, i);
				if (kind == MSG)
					OK(its_msgsnd(root, id, 1, "for all", 7, IPC_NOWAIT));
				if (granted & 4) {
					ALLOWED(its_use_to_read(p[i], kind, id), "%s reads", what);
					ALLOWED(its_stat(p[i], kind, id, &perm), "%s", what);
					EQUAL(perm.mode, mode);
				} else {
					NEVER(its_use_to_read(p[i], kind, id), EACCES, "%s reads", what);
					NEVER(its_stat(p[i], kind, id, &perm), EACCES, "%s", what);
				}
				if ((granted & needed) == needed)
					ALLOWED(its_use_to_write(p[i], kind, id), "%s writes", what);
				else
					NEVER(its_use_to_write(p[i], kind, id), EACCES, "%s writes", what);
				/* What is asked for when it is found. */
				for (int asked = 0; asked <= 6; asked += 2)
					if ((granted & asked) == asked)
						EQUAL(OK(its_get(p[i], kind, key, asked << 6)), id);
					else
						NEVER(its_get(p[i], kind, key, asked << 6), EACCES, "%s asks %o", what, asked);
			}
			OK(its_remove(root, kind, id));
		}
}

CASE(users_get_asks_in_any_class,
     "If the object exists, the permissions are verified: those asked for in any class; shmget(2), semget(2), msgget(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	for (int kind = SHM; kind <= MSG; kind++) {
		key_t key = fresh_key();
		int id = OK(its_get(owner, kind, key, IPC_CREAT | 0604));
		EQUAL(OK(its_get(other, kind, key, 0)), id);
		EQUAL(OK(its_get(other, kind, key, 0004)), id);
		EQUAL(OK(its_get(other, kind, key, 0444)), id);
		NEVER(its_get(other, kind, key, 0002), EACCES, "%s", kinds[kind]);
		NEVER(its_get(other, kind, key, 0020), EACCES, "%s", kinds[kind]);
		NEVER(its_get(other, kind, key, 0600), EACCES, "%s", kinds[kind]);
		NEVER(its_get(other, kind, key, IPC_CREAT | 0600), EACCES, "%s", kinds[kind]);
		NEVER(its_get(other, kind, key, IPC_CREAT | IPC_EXCL | 0600), EEXIST, "%s", kinds[kind]);
	}
}

CASE(users_execute_bits, "Bits 0100, 0010 and 0001 are unused by the system; shmctl(2), semctl(2), msgctl(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	for (int kind = SHM; kind <= MSG; kind++) {
		struct ipc_perm perm;
		int id = OK(its_get(owner, kind, IPC_PRIVATE, 0111));
		NEVER(its_use_to_read(owner, kind, id), EACCES, "%s", kinds[kind]);
		NEVER(its_use_to_read(other, kind, id), EACCES, "%s", kinds[kind]);
		NEVER(its_use_to_write(owner, kind, id), EACCES, "%s", kinds[kind]);
		id = OK(its_get(owner, kind, IPC_PRIVATE, 0775));
		OK(its_stat(other, kind, id, &perm));
		EQUAL(perm.mode, 0775);
	}
}

CASE(users_root, "A process with CAP_IPC_OWNER needs no permissions; shmget(2), shmop(2), semop(2), msgop(2) and others")
{
	NEEDS_ROOT();
	if (!capable(CAP_IPC_OWNER))
		SKIP("root has no CAP_IPC_OWNER");
	struct peer *owner = user(1000, 2000, -1), *root = peer();
	for (int kind = SHM; kind <= MSG; kind++) {
		struct ipc_perm perm;
		key_t key = fresh_key();
		int id = OK(its_get(owner, kind, key, IPC_CREAT | 0));
		EQUAL(OK(its_get(root, kind, key, 0666)), id);
		if (kind == MSG)
			OK(its_msgsnd(root, id, 1, "x", 1, 0));
		ALLOWED(its_use_to_read(root, kind, id), "%s", kinds[kind]);
		ALLOWED(its_use_to_write(root, kind, id), "%s", kinds[kind]);
		ALLOWED(its_stat(root, kind, id, &perm), "%s", kinds[kind]);
		EQUAL(perm.mode, 0);
		EQUAL(perm.cuid, 1000);
		EQUAL(perm.cgid, 2000);
		ALLOWED(its_set(root, kind, id, 1000, 2000, 0200), "%s", kinds[kind]);
		ALLOWED(its_remove(root, kind, id), "%s", kinds[kind]);
	}
}

CASE(users_effective_ids, "It is the effective ids of the calling process that count; shmget(2), semget(2), msgget(2) and ctl")
{
	NEEDS_ROOT();
	struct peer *p = peer(), *q = peer();
	its_effective_ids(p, 1000, 2000);
	its_effective_ids(q, 1003, 3000);
	for (int kind = SHM; kind <= MSG; kind++) {
		struct ipc_perm perm;
		int id = OK(its_get(p, kind, IPC_PRIVATE, 0600));
		OK(its_stat(p, kind, id, &perm));
		EQUAL(perm.uid, 1000);
		EQUAL(perm.cuid, 1000);
		EQUAL(perm.gid, 2000);
		EQUAL(perm.cgid, 2000);
		NEVER(its_stat(q, kind, id, &perm), EACCES, "%s", kinds[kind]);
		NEVER(its_set(q, kind, id, 1003, 3000, 0600), EPERM, "%s", kinds[kind]);
		NEVER(its_remove(q, kind, id), EPERM, "%s", kinds[kind]);
		OK(its_remove(p, kind, id));
	}
}

CASE(users_set_and_remove,
     "IPC_SET and IPC_RMID: the effective user ID must match owner or creator: EPERM; shmctl(2), semctl(2), msgctl(2)")
{
	NEEDS_ROOT();
	struct peer *creator = user(1000, 2000, -1), *owner = user(1001, 2001, -1), *member = user(1002, 2000, 2001),
		    *other = user(1003, 3000, -1), *root = peer();
	for (int kind = SHM; kind <= MSG; kind++) {
		struct ipc_perm perm;
		int id = OK(its_get(creator, kind, IPC_PRIVATE, 0666));
		NEVER(its_set(owner, kind, id, 1001, 2001, 0666), EPERM, "%s, not yet the owner", kinds[kind]);
		NEVER(its_remove(owner, kind, id), EPERM, "%s, not yet the owner", kinds[kind]);
		ALLOWED(its_set(creator, kind, id, 1001, 2001, 0666), "%s, the creator", kinds[kind]);
		OK(its_stat(root, kind, id, &perm));
		EQUAL(perm.uid, 1001);
		EQUAL(perm.gid, 2001);
		EQUAL(perm.cuid, 1000);
		EQUAL(perm.cgid, 2000);
		/* All may write, which is not enough. */
		NEVER(its_set(member, kind, id, 1002, 2000, 0666), EPERM, "%s, a member of the groups", kinds[kind]);
		NEVER(its_set(other, kind, id, 1003, 3000, 0666), EPERM, "%s, another one", kinds[kind]);
		NEVER(its_remove(member, kind, id), EPERM, "%s, a member of the groups", kinds[kind]);
		NEVER(its_remove(other, kind, id), EPERM, "%s, another one", kinds[kind]);
		ALLOWED(its_set(owner, kind, id, 1001, 2001, 0600), "%s, the owner", kinds[kind]);
		ALLOWED(its_set(creator, kind, id, 1001, 2001, 0), "%s, the creator", kinds[kind]);
		ALLOWED(its_set(root, kind, id, 1003, 2001, 0), "%s, root", kinds[kind]);
		NEVER(its_remove(owner, kind, id), EPERM, "%s, the owner no longer", kinds[kind]);
		/* No permission to read or write is needed. */
		ALLOWED(its_remove(other, kind, id), "%s, the owner now", kinds[kind]);
		id = OK(its_get(creator, kind, IPC_PRIVATE, 0));
		OK(its_set(root, kind, id, 1003, 3000, 0));
		ALLOWED(its_remove(creator, kind, id), "%s, the creator", kinds[kind]);
		id = OK(its_get(creator, kind, IPC_PRIVATE, 0));
		ALLOWED(its_remove(root, kind, id), "%s, root", kinds[kind]);
	}
}

CASE(users_new_owner, "The owner's bits are for owner and creator, the group's for both of their groups; svipc(7)")
{
	NEEDS_ROOT();
	struct peer *creator = user(1000, 2000, -1), *owner = user(1001, 2001, -1), *of_creator = user(1002, 2000, -1),
		    *of_owner = user(1003, 2001, -1), *other = user(1004, 3000, -1);
	for (int kind = SHM; kind <= MSG; kind++) {
		struct ipc_perm perm;
		int id = OK(its_get(creator, kind, IPC_PRIVATE, 0600));
		NEVER(its_stat(owner, kind, id, &perm), EACCES, "%s", kinds[kind]);
		OK(its_set(creator, kind, id, 1001, 2001, 0400));
		ALLOWED(its_stat(owner, kind, id, &perm), "%s", kinds[kind]);
		ALLOWED(its_stat(creator, kind, id, &perm), "%s", kinds[kind]);
		NEVER(its_stat(of_creator, kind, id, &perm), EACCES, "%s", kinds[kind]);
		OK(its_set(creator, kind, id, 1001, 2001, 0040));
		NEVER(its_stat(owner, kind, id, &perm), EACCES, "%s", kinds[kind]);
		NEVER(its_stat(creator, kind, id, &perm), EACCES, "%s", kinds[kind]);
		ALLOWED(its_stat(of_creator, kind, id, &perm), "%s", kinds[kind]);
		ALLOWED(its_stat(of_owner, kind, id, &perm), "%s", kinds[kind]);
		NEVER(its_stat(other, kind, id, &perm), EACCES, "%s", kinds[kind]);
		OK(its_set(creator, kind, id, 1001, 2001, 0004));
		NEVER(its_stat(of_owner, kind, id, &perm), EACCES, "%s", kinds[kind]);
		ALLOWED(its_stat(other, kind, id, &perm), "%s", kinds[kind]);
	}
}

CASE(users_mode_change_takes_effect,
     "IPC_SET updates the mode: who was refused is allowed, and the other way round; shmctl(2), semctl(2), msgctl(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	for (int kind = SHM; kind <= MSG; kind++) {
		int id = OK(its_get(owner, kind, IPC_PRIVATE, 0600));
		for (int i = 0; i < 5; i++) {
			NEVER(its_use_to_write(other, kind, id), EACCES, "%s", kinds[kind]);
			OK(its_set(owner, kind, id, 1000, 2000, 0606));
			ALLOWED(its_use_to_write(other, kind, id), "%s", kinds[kind]);
			OK(its_set(owner, kind, id, 1000, 2000, 0600));
		}
	}
}

CASE(users_invalid_ids, "IPC_SET of a uid or gid that none can have: EINVAL; shmctl(2), semctl(2), msgctl(2)")
{
	NEEDS_ROOT();
	struct peer *p = peer();
	for (int kind = SHM; kind <= MSG; kind++) {
		int id = OK(its_get(p, kind, IPC_PRIVATE, 0600));
		NEVER(its_set(p, kind, id, (uid_t)-1, 0, 0600), EINVAL, "%s", kinds[kind]);
		NEVER(its_set(p, kind, id, 0, (gid_t)-1, 0600), EINVAL, "%s", kinds[kind]);
	}
}

/* Of each kind. */

CASE(users_shm_attached_stay, "The permissions are needed to attach: who has attached goes on; shmop(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	int id = OK(its_get(owner, SHM, IPC_PRIVATE, 0666));
	char *its = OK(its_shmat(other, id, NULL, 0)), byte = 'b';
	OK(its_set(owner, SHM, id, 1000, 2000, 0));
	its_write(other, its, &byte, 1);
	FAILS(its_shmat(other, id, NULL, SHM_RDONLY), EACCES);
	FAILS(its_shmat(owner, id, NULL, SHM_RDONLY), EACCES);
	EQUAL(*OK((char *)shmat(id, NULL, 0)), 'b');
	OK(its_shmdt(other, its));
}

CASE(users_shm_remove_attached, "Removed by its owner while others have it attached; shmctl(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	int id = OK(its_get(owner, SHM, IPC_PRIVATE, 0666));
	struct shmid_ds ds;
	OK(its_shmat(other, id, NULL, 0));
	OK(its_remove(owner, SHM, id));
	OK(its_shmctl(other, id, IPC_STAT, &ds));
	EQUAL(ds.shm_perm.mode, 0666 | SHM_DEST);
	EQUAL(ds.shm_nattch, 1);
	/* Permissions hold until the end, and the last one's leave ends it, whoever that is. */
	OK(its_shmat(owner, id, NULL, 0));
	its_kill(owner);
	EQUAL(nattch(id), 1);
	its_kill(other);
	GONE(shmctl(id, IPC_STAT, &ds));
}

CASE(users_sem_commands, "EACCES: GETALL, GETPID, GETVAL, GETNCNT, GETZCNT, IPC_STAT, SETALL, SETVAL need permissions; semctl(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *reader = user(1001, 2000, -1), *writer = user(1003, 3000, -1);
	const int reading[] = {GETPID, GETVAL, GETNCNT, GETZCNT};
	int id = OK(its_get(owner, SEM, IPC_PRIVATE, 0642));
	unsigned short values[2] = {0};
	for (int i = 0; i < 4; i++) {
		OK(its_semctl(reader, id, 0, reading[i], (union semun){0}));
		FAILS(its_semctl(writer, id, 0, reading[i], (union semun){0}), EACCES);
	}
	OK(its_getall(reader, id, values, 2));
	FAILS(its_getall(writer, id, values, 2), EACCES);
	OK(its_setall(writer, id, values, 2));
	FAILS(its_setall(reader, id, values, 2), EACCES);
	OK(its_semctl(writer, id, 0, SETVAL, (union semun){.val = 0}));
	FAILS(its_semctl(reader, id, 0, SETVAL, (union semun){.val = 0}), EACCES);
	/* To wait for zero is to read, to increase or decrease is to alter. */
	OK(its_semop1(reader, id, 0, 0, 0));
	FAILS(its_semop1(writer, id, 0, 0, 0), EACCES);
	OK(its_semop1(writer, id, 0, 1, 0));
	OK(its_semop1(writer, id, 0, -1, 0));
	FAILS(its_semop1(reader, id, 0, 1, 0), EACCES);
	FAILS(its_semop1(reader, id, 0, -1, IPC_NOWAIT), EACCES);
	FAILS(its_semtimedop(reader, id, (&(struct sembuf){0, 1, 0}), 1, 0.001), EACCES);
	OK(its_semctl(owner, id, 0, GETVAL, (union semun){0}));
}

CASE(users_sem_undo, "What was done with SEM_UNDO is undone even if it could not be done any more; semop(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	int id = OK(its_get(owner, SEM, IPC_PRIVATE, 0666));
	OK(its_semop1(other, id, 0, 5, SEM_UNDO));
	OK(its_set(owner, SEM, id, 1000, 2000, 0600));
	FAILS(its_semop1(other, id, 0, 1, SEM_UNDO), EACCES);
	EQUAL(OK(its_getval(owner, id, 0)), 5);
	its_kill(other);
	EQUAL(OK(its_getval(owner, id, 0)), 0);
}

CASE(users_sem_of_several_users, "Processes of several users wait for each other; semop(2)")
{
	NEEDS_ROOT();
	struct peer *p = user(1000, 2000, -1), *q = user(1003, 3000, -1);
	int id = OK(its_get(p, SEM, IPC_PRIVATE, 0606));
	for (int i = 0; i < 5; i++) {
		its_semop1(later(q), id, 0, -1, 0);
		CHECK(blocks(q));
		EQUAL(OK(its_semctl(p, id, 0, GETNCNT, (union semun){0})), 1);
		OK(its_semop1(p, id, 0, 1, 0));
		OK(result(q));
	}
	its_semop1(later(q), id, 0, -1, 0);
	CHECK(blocks(q));
	OK(its_remove(p, SEM, id));
	FAILS(result(q), EIDRM);
}

CASE(users_msg_directions, "Write permission is needed to send a message, and read permission to receive one; msgop(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *reader = user(1001, 2000, -1), *writer = user(1003, 3000, -1);
	int id = OK(its_get(owner, MSG, IPC_PRIVATE, 0642));
	OK(its_msgsnd(writer, id, 1, "hello", 5, 0));
	FAILS(its_msgrcv(writer, id, NULL, 100, 0, IPC_NOWAIT), EACCES);
	FAILS(its_msgsnd(reader, id, 1, "hello", 5, 0), EACCES);
	EQUAL(OK(its_msgrcv(reader, id, NULL, 100, 0, IPC_NOWAIT)), 5);
	its_msgrcv(later(reader), id, NULL, 100, 0, 0);
	CHECK(blocks(reader));
	OK(its_msgsnd(writer, id, 3, "again", 5, 0));
	EQUAL(OK(result(reader)), 5);
}

CASE(users_msg_qbytes, "A process without CAP_SYS_RESOURCE cannot raise msg_qbytes beyond MSGMNB: EPERM; msgctl(2)")
{
	NEEDS_ROOT();
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
	struct peer *owner = user(1000, 2000, -1);
	int id = OK(its_get(owner, MSG, IPC_PRIVATE, 0600));
	struct msqid_ds ds;
	OK(its_msgctl(owner, id, IPC_STAT, &ds));
	ds.msg_qbytes = 10;
	OK(its_msgctl(owner, id, IPC_SET, &ds));
	ds.msg_qbytes = info.msgmnb;
	OK(its_msgctl(owner, id, IPC_SET, &ds));
	ds.msg_qbytes = info.msgmnb + 1;
	FAILS(its_msgctl(owner, id, IPC_SET, &ds), EPERM);
	OK(its_msgctl(owner, id, IPC_STAT, &ds));
	EQUAL(ds.msg_qbytes, info.msgmnb);
}

CASE(users_info, "IPC_INFO and *_INFO need no permissions; shmctl(2), semctl(2), msgctl(2)")
{
	NEEDS_ROOT();
	pid_t pid = child();
	if (pid == 0) {
		OK(setgroups(0, NULL));
		OK(setresgid(1003, 1003, 1003));
		OK(setresuid(1003, 1003, 1003));
		union {
			struct shminfo shm;
			struct shm_info shm_used;
			struct msginfo msg;
		} info;
		struct seminfo sem;
		OK(shmctl(0, IPC_INFO, (struct shmid_ds *)&info));
		OK(shmctl(0, SHM_INFO, (struct shmid_ds *)&info));
		OK(msgctl(0, IPC_INFO, (struct msqid_ds *)&info));
		OK(msgctl(0, MSG_INFO, (struct msqid_ds *)&info));
		OK(semctl(0, 0, IPC_INFO, (union semun){.__buf = &sem}));
		OK(semctl(0, 0, SEM_INFO, (union semun){.__buf = &sem}));
		_exit(0);
	}
	JOIN(pid);
}

/* What one gets who looks for an object at each index. */
static int by_index(struct peer *p, enum kind kind, bool any, int id, int highest)
{
	struct shmid_ds shm;
	struct semid_ds sem;
	struct msqid_ds msg;
	bool refused = false;
	for (int i = 0; i <= highest; i++) {
		int got = kind == SHM ? its_shmctl(p, i, any ? SHM_STAT_ANY : SHM_STAT, &shm)
			: kind == SEM ? its_semctl(p, i, 0, any ? SEM_STAT_ANY : SEM_STAT, (union semun){.buf = &sem})
				      : its_msgctl(p, i, any ? MSG_STAT_ANY : MSG_STAT, &msg);
		if (got == id)
			return 0;
		refused |= got == -1 && errno == EACCES;
	}
	return refused ? EACCES : ENOENT;
}

CASE(users_stat_any,
     "*_STAT needs read permission: EACCES; for *_STAT_ANY the mode is not checked; shmctl(2), semctl(2), msgctl(2)")
{
	NEEDS_ROOT();
	struct peer *owner = user(1000, 2000, -1), *other = user(1003, 3000, -1);
	for (int kind = SHM; kind <= MSG; kind++) {
		struct shminfo shm;
		struct seminfo sem;
		struct msginfo msg;
		int id = OK(its_get(owner, kind, IPC_PRIVATE, 0600));
		int highest = kind == SHM ? shmctl(0, IPC_INFO, (struct shmid_ds *)&shm)
			    : kind == SEM ? semctl(0, 0, IPC_INFO, (union semun){.__buf = &sem})
					  : msgctl(0, IPC_INFO, (struct msqid_ds *)&msg);
		EQUAL(by_index(owner, kind, false, id, highest), 0);
		EQUAL(by_index(owner, kind, true, id, highest), 0);
		EQUAL(by_index(other, kind, false, id, highest), EACCES);
		EQUAL(by_index(other, kind, true, id, highest), 0);
	}
}

/* Without root: what is left of rights to a process that is no other user. */
CASE(owner_without_rights, "An owner has what the owner's bits grant: EACCES; shmop(2), semop(2), msgop(2) and ctl")
{
	struct peer *p = peer();
	if (geteuid() == 0)
		its_ids(p, 1000, 1000, -1);
	else if (capable(CAP_IPC_OWNER))
		SKIP("there is CAP_IPC_OWNER");
	for (int kind = SHM; kind <= MSG; kind++) {
		struct ipc_perm perm;
		int id = OK(its_get(p, kind, IPC_PRIVATE, 0077));
		NEVER(its_use_to_read(p, kind, id), EACCES, "%s", kinds[kind]);
		NEVER(its_use_to_write(p, kind, id), EACCES, "%s", kinds[kind]);
		NEVER(its_stat(p, kind, id, &perm), EACCES, "%s", kinds[kind]);
		OK(its_set(p, kind, id, geteuid() == 0 ? 1000 : geteuid(), geteuid() == 0 ? 1000 : getegid(), 0400));
		OK(its_stat(p, kind, id, &perm));
		EQUAL(perm.mode, 0400);
		NEVER(its_use_to_write(p, kind, id), EACCES, "%s", kinds[kind]);
		OK(its_remove(p, kind, id));
	}
}
