/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What programs say to the isthmus guest driver: isthmus(4).
 */
#ifndef _UAPI_LINUX_ISTHMUS_H
#define _UAPI_LINUX_ISTHMUS_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Version of this interface. */
#define ISTHMUS_ABI 3
/* Most members of a region, most ranges of a descriptor, and most pages of a call. */
#define ISTHMUS_MEMBERS 1024
#define ISTHMUS_RANGES 64
#define ISTHMUS_MOST_PAGES 512

/* flags of struct isthmus_info */
#define ISTHMUS_PAGES (1u << 0) /* its memory has pages: O_DIRECT and 2 MiB mappings work */
#define ISTHMUS_LOW (1u << 1)	/* it lies below 4 GiB, where firmware may have made it uncached */
#define ISTHMUS_GONE (1u << 2)	/* the device is unplugged */

struct isthmus_info {
	__u32 abi;
	__u32 flags;
	__u64 bytes;
	__u32 vectors;
	__u32 mappings; /* of all processes */
	__u64 rings;	/* of all vectors */
	__u64 pool;	/* pages of the pool; 0 if there is none */
	__u64 granted;	/* pages of it that are in use */
	__u64 splits;	/* huge pages that were split to be granted */
	__u64 kept;	/* pages that are kept */
};

/* flags of struct isthmus_range */
#define ISTHMUS_READ (1u << 0)
#define ISTHMUS_WRITE (1u << 1)
/* Once the device is gone: SIGBUS, instead of pages of zeros that nobody else has. */
#define ISTHMUS_FAULTS (1u << 2)

/* Offset and bytes are multiples of the system's page. */
struct isthmus_range {
	__u64 offset;
	__u64 bytes;
	__u32 flags;
	__u32 reserved; /* 0 */
};

/* flags of struct isthmus_allow */
#define ISTHMUS_MAY_RING (1u << 0)

struct isthmus_allow {
	__u64 ranges; /* address of `count` ranges */
	__u32 count;
	__u32 flags;
	__u32 owner; /* what the grant table calls it: 1 to ISTHMUS_OWNERS, or 0 without pages */
	__u32 pages; /* most pages that are granted by this owner at once */
};
#define ISTHMUS_OWNERS 16384u
/* Whom the grant table names for pages of an owner that is gone, and that others have still, as forked processes do. */
#define ISTHMUS_NOBODY (ISTHMUS_OWNERS + 1)

/*
 * The pool of pages that processes grant, and the grant table: a word for each page of the pool, from the first on, written by the
 * driver alone. Its lower 24 bits are the page's owner, 0 for a page that is free; the upper 40 are the page's generation, which changes
 * before anything else whenever what was granted stops being that: with the page freed, or its address another's. Whoever has copied a
 * page believes it if the page's word is still the one that the grant gave.
 */
struct isthmus_pool {
	__u64 offset; /* a multiple of 2 MiB, as bytes */
	__u64 bytes;
	__u64 table; /* offset of the table, a multiple of the system's page; its end is not behind `offset` */
};
#define ISTHMUS_OWNER(word) ((word) & 0xffffffu)

/* What became of a page. */
#define ISTHMUS_GRANTED 0
#define ISTHMUS_UNMAPPED 1  /* nothing is there */
#define ISTHMUS_KIND 2	    /* not private anonymous memory: of a file, shared, of a device, huge pages of hugetlbfs */
#define ISTHMUS_READ_ONLY 3 /* write-protected, or shared with a forked process until one of both writes */
#define ISTHMUS_WATCHED 4   /* by userfaultfd, or merged (KSM) */
#define ISTHMUS_HUGE 5	    /* of a huge page that was not to be split */
#define ISTHMUS_BUSY 6	    /* pinned, swapped out, or in use by the system just now */
#define ISTHMUS_FULL 7	    /* the pool has no free page */
#define ISTHMUS_LIMIT 8	    /* the owner has as many granted as the descriptor allows */

struct isthmus_page {
	__u64 word; /* its word in the grant table */
	__u32 page; /* which of the pool */
	__u32 why;  /* ISTHMUS_GRANTED, or why it is not */
};

/* flags of struct isthmus_pages */
#define ISTHMUS_SPLIT (1u << 0) /* huge pages may be split */
/*
 * Others may write to them. Pages that are granted now are kept: whatever becomes of their addresses, they are given to nobody else until
 * ISTHMUS_RELEASE or ISTHMUS_SETTLE, also with the process gone. A forked child gets copies of them at once, so they stay this process's.
 */
#define ISTHMUS_KEEP (1u << 1)

struct isthmus_pages {
	__u64 address; /* of the first, a multiple of the system's page */
	__u32 count;   /* 1 to ISTHMUS_MOST_PAGES */
	__u32 flags;
	__u64 results; /* address of `count` struct isthmus_page; not of ISTHMUS_REVOKE */
};

/* By which id this virtual machine's device knows a member of the region. */
struct isthmus_member {
	__u32 member; /* ISTHMUS_ALL: each of them */
	__u32 id;     /* ISTHMUS_NO_ID: by none */
};
#define ISTHMUS_ALL 0xffffffffu
#define ISTHMUS_NO_ID 0x10000u
#define ISTHMUS_OWN_ID 0x20000u /* this virtual machine itself */

/* Anybody with the descriptor. */
#define ISTHMUS_INFO _IOR(0xb7, 0, struct isthmus_info)
/* With CAP_SYS_ADMIN, once: what the descriptor may be used for. Before that, for nothing. */
#define ISTHMUS_ALLOW _IOW(0xb7, 1, struct isthmus_allow)
/* With CAP_SYS_ADMIN. */
#define ISTHMUS_MEMBER _IOW(0xb7, 2, struct isthmus_member)
/*
 * With CAP_SYS_ADMIN: gives a descriptor that poll(2) finds readable once the vector has been rung since the descriptor was
 * made or read. read(2) gives how often, in 8 bytes; the end of the file once the device is gone.
 */
#define ISTHMUS_BELL _IO(0xb7, 3)
/* If allowed: rings a vector of a member. The argument is this, and not an address. */
#define ISTHMUS_RING _IO(0xb7, 4)
#define ISTHMUS_RING_ARG(member, vector) ((unsigned long)(member) << 8 | (vector))
/* With CAP_SYS_ADMIN: where the pool is. Not while pages of another one are granted. */
#define ISTHMUS_POOL _IOW(0xb7, 5, struct isthmus_pool)
/*
 * If allowed: moves pages of the caller's private anonymous memory into the pool, each at its address and with its contents, which
 * other threads may use meanwhile. Gives how many of them are in the pool now; `results` says so of each.
 */
#define ISTHMUS_GRANT _IOW(0xb7, 6, struct isthmus_pages)
/* Moves pages back, those that can be, and are not kept. Gives how many there were in the pool and are no more. */
#define ISTHMUS_REVOKE _IOW(0xb7, 7, struct isthmus_pages)
/*
 * Nobody writes any more to pages that were kept by this descriptor: they go back to those who free them. `results` says which, by `page`;
 * nothing else of it is read, nor `address`. Gives how many had been kept.
 */
#define ISTHMUS_RELEASE _IOW(0xb7, 8, struct isthmus_pages)
/* With CAP_SYS_ADMIN: the same of all pages that an owner has kept, who is gone; the argument is the owner, 0 for each. */
#define ISTHMUS_SETTLE _IO(0xb7, 9)

#endif
