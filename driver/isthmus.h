/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What programs say to the isthmus guest driver: isthmus(4).
 */
#ifndef _UAPI_LINUX_ISTHMUS_H
#define _UAPI_LINUX_ISTHMUS_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Version of this interface. */
#define ISTHMUS_ABI 1
/* Most members of a region, and most ranges of a grant. */
#define ISTHMUS_MEMBERS 1024
#define ISTHMUS_RANGES 64

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
	__u64 rings; /* of all vectors */
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

/* flags of struct isthmus_grant */
#define ISTHMUS_MAY_RING (1u << 0)

struct isthmus_grant {
	__u64 ranges; /* address of `count` ranges */
	__u32 count;
	__u32 flags;
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
#define ISTHMUS_GRANT _IOW(0xb7, 1, struct isthmus_grant)
/* With CAP_SYS_ADMIN. */
#define ISTHMUS_MEMBER _IOW(0xb7, 2, struct isthmus_member)
/*
 * With CAP_SYS_ADMIN: gives a descriptor that poll(2) finds readable once the vector has been rung since the descriptor was
 * made or read. read(2) gives how often, in 8 bytes; the end of the file once the device is gone.
 */
#define ISTHMUS_BELL _IO(0xb7, 3)
/* If granted: rings a vector of a member. The argument is this, and not an address. */
#define ISTHMUS_RING _IO(0xb7, 4)
#define ISTHMUS_RING_ARG(member, vector) ((unsigned long)(member) << 8 | (vector))

#endif
