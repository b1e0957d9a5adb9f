/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the libfabric provider "isthmus" offers beyond libfabric. fi_isthmus(7) tells more.
 *
 *	struct isthmus_memory_ops *memory;
 *	if (fi_open_ops(&domain->fid, ISTHMUS_MEMORY, 0, (void **)&memory, NULL) == 0)
 *		memory->alloc(domain, bytes, 64, &window);
 */
#ifndef ISTHMUS_FI_H
#define ISTHMUS_FI_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fid_domain;

/* Name of the operations on a domain's memory, for fi_open_ops(3) on the domain. */
#define ISTHMUS_MEMORY "isthmus_memory"

/*
 * Memory in the region. What is registered within it is read, written and changed by other processes themselves: RMA and
 * atomics on it need nothing of this process. It is ordinary memory otherwise, of this process alone; a forked child does
 * not have it. Both calls may be made from any thread that may use the domain.
 */
struct isthmus_memory_ops {
	/* Bytes of this structure; later versions add to its end. */
	size_t size;
	/*
	 * Takes `bytes` at a multiple of `align`, a power of two of at most 4096 (0 means 64). Their contents are not
	 * defined. Gives 0 and the address, or a negative libfabric error: -FI_ENOSPC when the region is full, -FI_EINVAL
	 * for arguments that make no sense.
	 */
	int (*alloc)(struct fid_domain *domain, size_t bytes, size_t align, void **address);
	/*
	 * Gives it back, with the address that `alloc` gave. Gives 0; -FI_EINVAL for any other address; -FI_EBUSY while
	 * a registration lies within it, or while others are still at work there. A domain is not closed (-FI_EBUSY)
	 * before all its memory was given back.
	 */
	int (*free)(struct fid_domain *domain, void *address);
};

#ifdef __cplusplus
}
#endif

#endif
