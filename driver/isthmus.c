// SPDX-License-Identifier: GPL-2.0
/*
 * The memory that virtual machines share: a driver for QEMU's ivshmem-doorbell device with an isthmus region in it.
 *
 * It gives processes write-back mappings of those parts of the region that the descriptor they have was granted, and
 * lets them ring and be rung. It knows nothing of what lies in the region but its first word. The agent, which is root,
 * opens the device and grants; isthmus(4) is for its users.
 *
 * Source: QEMU, docs/specs/ivshmem-spec.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/nospec.h>
#include <linux/overflow.h>
#include <linux/pci.h>
#include <linux/pfn_t.h>
#include <linux/poll.h>
#include <linux/pseudo_fs.h>
#include <linux/random.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "isthmus.h"

/* Linux 6.15 keeps it in the folio. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
static inline struct dev_pagemap *page_pgmap(const struct page *page)
{
	return page->pgmap;
}
#endif

/* The device. */
#define VENDOR 0x1af4
#define DEVICE 0x1110
#define REGISTERS 0
#define MEMORY 2
#define DOORBELL 0x0c

/* What a region begins with: "ISTHMUS1". */
#define MAGIC 0x3153554d48545349ull
/* The first word of a member's own section where that is a device of its own, in isolated mode: what the host service has put
 * there, or the member's directory. */
#define SECTION_MAGIC 0x5353554d48545349ull
#define DIRECTORY_MAGIC 0x3152494452454550ull

#define MOST_VECTORS 8
/* A vector that interrupts this often within a window is off for a pause. */
#define STORM 1000
#define STORM_WINDOW_NS (10 * NSEC_PER_MSEC)
#define STORM_PAUSE_NS (1 * NSEC_PER_MSEC)

/* Pages that are moved at once. */
#define CHUNK 16

static bool pages = true;
module_param(pages, bool, 0644);
MODULE_PARM_DESC(pages, "Have pages for the memory, which take 1.6 % of it from the system's, so that O_DIRECT and 2 MiB mappings work");

struct vector {
	wait_queue_head_t sleepers;
	atomic64_t rings;
	int irq;
	/* Of the handler alone, which never runs twice at once. */
	u64 window;
	unsigned int count;
	struct hrtimer pause;
};

/* A page of the pool. */
struct pooled {
	/* What the grant table has. */
	u64 word;
	/* The next one of the list that it is on: free, or to be cleared. */
	u32 next;
	/* The descriptor that keeps it, by which it is pinned; NULL if none does. */
	struct client *keeper;
	/* Number of the page of its process where it was kept. */
	unsigned long kept_at;
};
#define NO_PAGE U32_MAX
/* Of pages whose keeper is closed. */
#define NO_KEEPER ((struct client *)ERR_PTR(-ENOENT))
#define OWNER_BITS 24
/* No number of a page of a process. */
#define ANYWHERE ULONG_MAX
#define NOBODY ISTHMUS_NOBODY
/* How often, at most every ms, another process's memory is tried to be locked: once in a while to drain the pool, and at a close. */
#define DRAIN_TRIES 100
#define CLOSE_TRIES 5000

/* The pages that processes grant. */
struct pool {
	u64 offset;
	u64 bytes;
	u64 table;
	struct work_struct clear;
	/* Held for what follows; page_free may be called in an interrupt. */
	spinlock_t lock;
	u32 count;
	struct pooled *pages;
	/* The grant table; NULL while the memory has no address. Others may write there, so nothing is read from there. */
	__le64 *published;
	/* First and last of those that are free, and of those that are to be cleared before they are. */
	u32 free;
	u32 last;
	u32 dirty;
	u32 dirty_last;
	u32 used;
	/* Of those, by owner. */
	u32 *granted;
	u32 kept;
	u64 splits;
};

/* A device with a region. It outlives the device while a descriptor of it is open. */
struct region {
	struct kref refs;
	struct miscdevice misc;
	char name[24];
	int number;
	/* Held for writing to set is_gone; for reading by whatever uses registers or maps memory. */
	struct rw_semaphore lock;
	bool is_gone;
	/* Once no mapping reaches the device any more either. */
	bool is_over;
	struct pci_dev *device;
	void __iomem *registers;
	phys_addr_t start;
	u64 bytes;
	void *memory;
	bool has_pages;
	/* Before the pool, the pool, and behind it. */
	struct dev_pagemap pagemaps[3];
	struct pool pool;
	/* How often each owner was settled, by which descriptors of an earlier process of that number are known; the pool's lock is held. */
	u32 *lives;
	/* Whose address space all mappings are of. */
	struct inode *inode;
	atomic_t mappings;
	/* Descriptors that pages were granted by, and what is held to look at them. */
	struct mutex clients_lock;
	struct list_head clients;
	u32 ids[ISTHMUS_MEMBERS];
	unsigned int vector_count;
	struct vector vectors[MOST_VECTORS];
};

/* An open descriptor. */
struct client {
	struct region *region;
	/* Held while it is allowed things, which never change, and while pages are granted or taken back. */
	struct mutex lock;
	bool is_allowed;
	bool may_ring;
	u32 owner;
	u32 life;
	u32 most_pages;
	/* Of the one process that grants pages by it. */
	bool has_notifier;
	struct mmu_interval_notifier notifier;
	struct list_head others;
	/* The thread that moves pages just now: what the kernel tells of that is known here. */
	struct task_struct *mover;
	/* Held for what follows. */
	spinlock_t at_lock;
	/* The addresses that are being granted, and whether one of them has changed since that was begun. */
	unsigned long chunk_start;
	unsigned long chunk_end;
	bool is_hit;
	/* Which page of the pool is at an address, by the address's page. */
	struct xarray granted_at;
	/* How many pages it keeps; the pool's lock is held for that. */
	u32 kept;
	unsigned int count;
	struct isthmus_range ranges[ISTHMUS_RANGES];
	/* What stands in for the memory once the device is gone, by page. */
	struct xarray standins;
};

/* A descriptor that a vector makes readable. */
struct bell {
	struct region *region;
	struct vector *vector;
	atomic64_t seen;
};

static DEFINE_IDA(numbers);
/* Of the regions' address spaces, which no path reaches. */
static struct vfsmount *inodes;
/* Of the bells; there while there are any. */
static struct vfsmount *bells;
static int bell_count;
static struct file_system_type bells_type;

static void region_free(struct kref *refs)
{
	struct region *r = container_of(refs, struct region, refs);

	iput(r->inode);
	kvfree(r->pool.pages);
	kvfree(r->pool.granted);
	kvfree(r->lives);
	ida_free(&numbers, r->number);
	kfree(r);
}

/* ---- Interrupts ---- */

static void vector_ring(struct vector *v)
{
	atomic64_inc(&v->rings);
	/* Each has a bell of its own, so all of them, also those of EPOLLEXCLUSIVE. */
	wake_up_interruptible_all(&v->sleepers);
}

static enum hrtimer_restart vector_resume(struct hrtimer *timer)
{
	struct vector *v = container_of(timer, struct vector, pause);

	/* What came meanwhile may be lost; what comes from here on is not. */
	enable_irq(v->irq);
	vector_ring(v);
	return HRTIMER_NORESTART;
}

static irqreturn_t vector_interrupt(int irq, void *data)
{
	struct vector *v = data;
	u64 now = ktime_get_ns();

	if (now - v->window > STORM_WINDOW_NS) {
		v->window = now;
		v->count = 0;
	}
	if (++v->count >= STORM) {
		v->count = 0;
		disable_irq_nosync(irq);
		hrtimer_start(&v->pause, ns_to_ktime(STORM_PAUSE_NS), HRTIMER_MODE_REL);
	}
	vector_ring(v);
	return IRQ_HANDLED;
}

/* ---- Bells ---- */

static ssize_t bell_read(struct file *file, char __user *to, size_t len, loff_t *at)
{
	struct bell *b = file->private_data;
	struct region *r = b->region;
	u64 rings, seen;
	int error;

	if (len < sizeof(rings))
		return -EINVAL;
	for (;;) {
		seen = atomic64_read(&b->seen);
		rings = atomic64_read(&b->vector->rings);
		if (rings != seen) {
			if (atomic64_cmpxchg(&b->seen, seen, rings) == seen)
				break;
			/* Another reader was first. */
			continue;
		}
		if (READ_ONCE(r->is_over))
			return 0;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		error = wait_event_interruptible(b->vector->sleepers,
						 atomic64_read(&b->vector->rings) != atomic64_read(&b->seen) ||
							 READ_ONCE(r->is_over));
		if (error)
			return error;
	}
	rings -= seen;
	return copy_to_user(to, &rings, sizeof(rings)) ? -EFAULT : sizeof(rings);
}

static __poll_t bell_poll(struct file *file, poll_table *wait)
{
	struct bell *b = file->private_data;
	__poll_t ready = 0;

	poll_wait(file, &b->vector->sleepers, wait);
	if (atomic64_read(&b->vector->rings) != atomic64_read(&b->seen))
		ready |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(b->region->is_over))
		ready |= EPOLLIN | EPOLLRDNORM | EPOLLHUP;
	return ready;
}

static int bell_release(struct inode *inode, struct file *file)
{
	struct bell *b = file->private_data;

	kref_put(&b->region->refs, region_free);
	kfree(b);
	simple_release_fs(&bells, &bell_count);
	return 0;
}

static const struct file_operations bell_operations = {
	.owner = THIS_MODULE,
	.read = bell_read,
	.poll = bell_poll,
	.release = bell_release,
	.llseek = noop_llseek,
};

static long bell_make(struct region *r, unsigned long vector)
{
	struct inode *inode;
	struct file *file;
	struct bell *b;
	int fd;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (vector >= r->vector_count)
		return -EINVAL;
	b = kzalloc(sizeof(*b), GFP_KERNEL_ACCOUNT);
	if (!b)
		return -ENOMEM;
	b->region = r;
	b->vector = &r->vectors[vector];
	atomic64_set(&b->seen, atomic64_read(&b->vector->rings));
	fd = simple_pin_fs(&bells_type, &bells, &bell_count);
	if (fd < 0)
		goto free;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		goto release;
	/* Each has an inode of its own, by which a program tells it from its other descriptors. */
	inode = alloc_anon_inode(bells->mnt_sb);
	file = ERR_CAST(inode);
	if (!IS_ERR(inode)) {
		file = alloc_file_pseudo(inode, bells, "isthmus-bell", O_RDONLY | O_NONBLOCK, &bell_operations);
		if (IS_ERR(file))
			iput(inode);
	}
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		fd = PTR_ERR(file);
		goto release;
	}
	/* The end of the file gives both back. */
	__module_get(THIS_MODULE);
	kref_get(&r->refs);
	file->private_data = b;
	fd_install(fd, file);
	return fd;

release:
	simple_release_fs(&bells, &bell_count);
free:
	kfree(b);
	return fd;
}

/* ---- Mappings ---- */

/* The flags that all bytes of a range have; 0 if one of them is not allowed. */
static u32 client_flags(struct client *c, u64 offset, u64 bytes)
{
	u64 end, at = offset;
	u32 flags = ~0u;

	/* Pairs with client_allow. */
	if (!smp_load_acquire(&c->is_allowed) || check_add_overflow(offset, bytes, &end))
		return 0;
	while (at < end) {
		const struct isthmus_range *range = NULL;
		unsigned int i;

		for (i = 0; i < c->count && !range; i++) {
			const struct isthmus_range *r = &c->ranges[i];

			/* Ends do not overflow: client_allow saw to that. */
			if (r->offset <= at && at < r->offset + r->bytes)
				range = r;
		}
		if (!range)
			return 0;
		flags &= range->flags;
		at = range->offset + range->bytes;
	}
	return flags;
}

/* A page of zeros for this descriptor alone. */
static vm_fault_t standin(struct client *c, struct vm_fault *vmf)
{
	struct page *page, *old;

	if (client_flags(c, (u64)vmf->pgoff << PAGE_SHIFT, PAGE_SIZE) & ISTHMUS_FAULTS)
		return VM_FAULT_SIGBUS;
	page = xa_load(&c->standins, vmf->pgoff);
	if (!page) {
		page = alloc_page(GFP_HIGHUSER | __GFP_ZERO | __GFP_ACCOUNT);
		if (!page)
			return VM_FAULT_OOM;
		old = xa_cmpxchg(&c->standins, vmf->pgoff, NULL, page, GFP_KERNEL);
		if (old) {
			__free_page(page);
			if (xa_is_err(old))
				return VM_FAULT_OOM;
			page = old;
		}
	}
	switch (vm_insert_page(vmf->vma, vmf->address & PAGE_MASK, page)) {
	case 0:
	case -EBUSY: /* Another thread was first. */
		return VM_FAULT_NOPAGE;
	case -ENOMEM:
		return VM_FAULT_OOM;
	default:
		return VM_FAULT_SIGBUS;
	}
}

/*
 * Pages of the pool are those of processes, of which each may be free when its turn comes: nobody else pins them, so here they are
 * memory without pages.
 */
static bool is_pooled(const struct region *r, u64 offset)
{
	return offset >= r->pool.offset && offset - r->pool.offset < r->pool.bytes;
}

static u64 region_flags(const struct region *r, u64 offset)
{
	return r->has_pages && !is_pooled(r, offset) ? PFN_DEV | PFN_MAP : PFN_DEV;
}

static vm_fault_t memory_fault(struct vm_fault *vmf)
{
	struct client *c = vmf->vma->vm_file->private_data;
	struct region *r = c->region;
	u64 offset = (u64)vmf->pgoff << PAGE_SHIFT;
	vm_fault_t result;

	down_read(&r->lock);
	if (r->is_gone)
		result = standin(c, vmf);
	else if (offset >= r->bytes)
		result = VM_FAULT_SIGBUS;
	else
		result = vmf_insert_mixed(vmf->vma, vmf->address,
					  phys_to_pfn_t(r->start + offset, region_flags(r, offset)));
	up_read(&r->lock);
	return result;
}

static vm_fault_t memory_fault_2m(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct client *c = vma->vm_file->private_data;
	struct region *r = c->region;
	unsigned long address = vmf->address & PMD_MASK;
	vm_fault_t result = VM_FAULT_FALLBACK;
	u64 offset;

	if (address < vma->vm_start || address + PMD_SIZE > vma->vm_end)
		return VM_FAULT_FALLBACK;
	offset = ((u64)vma->vm_pgoff << PAGE_SHIFT) + (address - vma->vm_start);
	down_read(&r->lock);
	if (!r->is_gone && r->has_pages && IS_ALIGNED(r->start + offset, PMD_SIZE) && offset < r->bytes &&
	    r->bytes - offset >= PMD_SIZE && !is_pooled(r, offset))
		result = vmf_insert_pfn_pmd(vmf, phys_to_pfn_t(r->start + offset, PFN_DEV | PFN_MAP),
					    vmf->flags & FAULT_FLAG_WRITE);
	up_read(&r->lock);
	return result;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
static vm_fault_t memory_huge_fault(struct vm_fault *vmf, unsigned int order)
{
	return order == PMD_SHIFT - PAGE_SHIFT ? memory_fault_2m(vmf) : VM_FAULT_FALLBACK;
}
#else
static vm_fault_t memory_huge_fault(struct vm_fault *vmf, enum page_entry_size size)
{
	return size == PE_SIZE_PMD ? memory_fault_2m(vmf) : VM_FAULT_FALLBACK;
}
#endif

static void memory_open(struct vm_area_struct *vma)
{
	struct client *c = vma->vm_file->private_data;

	atomic_inc(&c->region->mappings);
}

static void memory_close(struct vm_area_struct *vma)
{
	struct client *c = vma->vm_file->private_data;

	atomic_dec(&c->region->mappings);
}

static const struct vm_operations_struct memory_operations = {
	.open = memory_open,
	.close = memory_close,
	.fault = memory_fault,
	.huge_fault = memory_huge_fault,
};

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

static int client_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct client *c = file->private_data;
	u32 flags = client_flags(c, (u64)vma->vm_pgoff << PAGE_SHIFT, vma->vm_end - vma->vm_start);

	/* Which a descriptor that is open for reading has, too. */
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (!(flags & ISTHMUS_READ) || ((vma->vm_flags & VM_WRITE) && !(flags & ISTHMUS_WRITE)))
		return -EACCES;
	vm_flags_clear(vma, flags & ISTHMUS_WRITE ? VM_MAYEXEC : VM_MAYEXEC | VM_MAYWRITE);
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP | (c->region->has_pages ? VM_HUGEPAGE : 0));
	vma->vm_ops = &memory_operations;
	memory_open(vma);
	return 0;
}

/* ---- The pool of pages ---- */

static struct page *pool_page(const struct region *r, u32 page)
{
	return pfn_to_page(PHYS_PFN(r->start + r->pool.offset) + page);
}

static u32 pool_number(const struct region *r, const struct page *page)
{
	return page_to_pfn(page) - PHYS_PFN(r->start + r->pool.offset);
}

/* Called with the lock: puts a page's word into the grant table. */
static void pool_publish(struct pool *pool, u32 page)
{
	if (pool->published)
		WRITE_ONCE(pool->published[page], cpu_to_le64(pool->pages[page].word));
}

/* Called with the lock: what was granted with this page is no longer that. */
static void pool_change(struct pool *pool, u32 page, u32 owner)
{
	struct pooled *p = &pool->pages[page];

	p->word = ((p->word >> OWNER_BITS) + 1) << OWNER_BITS | owner;
	pool_publish(pool, page);
	/* Before whatever is done to the page next. */
	smp_wmb();
}

static bool pool_is_used(struct pool *pool)
{
	bool is_used;

	/* Whoever frees a page has scheduled that it is cleared before it lets go of the lock. */
	spin_lock_irq(&pool->lock);
	is_used = pool->used;
	spin_unlock_irq(&pool->lock);
	return is_used;
}

/* A page has no user any more. */
static void pool_page_free(struct page *page)
{
	struct region *r = container_of(page_pgmap(page), struct region, pagemaps[1]);
	struct pool *pool = &r->pool;
	u32 number = pool_number(r, page);
	struct pooled *p = &pool->pages[number];
	unsigned long flags;

	spin_lock_irqsave(&pool->lock, flags);
	pool->granted[ISTHMUS_OWNER(p->word)]--;
	pool_change(pool, number, 0);
	/* In order, so that the pages of a chunk lie one behind the other when they are granted again. */
	p->next = NO_PAGE;
	if (pool->dirty == NO_PAGE)
		pool->dirty = number;
	else
		pool->pages[pool->dirty_last].next = number;
	pool->dirty_last = number;
	pool->used--;
	queue_work(system_unbound_wq, &pool->clear);
	spin_unlock_irqrestore(&pool->lock, flags);
}

static const struct dev_pagemap_ops pool_operations = {
	.page_free = pool_page_free,
};

/* Pages that were freed become free once others see nothing of what was in them. */
static void pool_clear(struct work_struct *work)
{
	struct pool *pool = container_of(work, struct pool, clear);
	struct region *r = container_of(pool, struct region, pool);
	u32 number;

	for (;;) {
		spin_lock_irq(&pool->lock);
		number = pool->dirty;
		if (number != NO_PAGE)
			pool->dirty = pool->pages[number].next;
		spin_unlock_irq(&pool->lock);
		if (number == NO_PAGE)
			return;
		clear_highpage(pool_page(r, number));
		spin_lock_irq(&pool->lock);
		pool->pages[number].next = NO_PAGE;
		if (pool->free == NO_PAGE)
			pool->free = number;
		else
			pool->pages[pool->last].next = number;
		pool->last = number;
		spin_unlock_irq(&pool->lock);
		cond_resched();
	}
}

/* A free page, locked and with one reference; NULL and the reason if there is none. */
static struct page *pool_take(struct client *c, u32 *why)
{
	struct region *r = c->region;
	struct pool *pool = &r->pool;
	struct page *page = NULL;
	u32 number;

	spin_lock_irq(&pool->lock);
	number = pool->free;
	if (r->lives[c->owner] != c->life || pool->granted[c->owner] >= c->most_pages) {
		*why = ISTHMUS_LIMIT;
	} else if (number == NO_PAGE) {
		*why = ISTHMUS_FULL;
	} else {
		pool->free = pool->pages[number].next;
		pool->granted[c->owner]++;
		pool->used++;
		pool_change(pool, number, c->owner);
		page = pool_page(r, number);
	}
	spin_unlock_irq(&pool->lock);
	if (page) {
		zone_device_page_init(page);
		/* Which its last user may have left, since such pages are on no list of the kernel's. */
		folio_clear_active(page_folio(page));
		folio_clear_unevictable(page_folio(page));
		folio_clear_referenced(page_folio(page));
		if (folio_test_clear_mlocked(page_folio(page)))
			mod_zone_page_state(page_zone(page), NR_MLOCK, -1);
	}
	return page;
}

/* Makes a pool without a table yet, of which no page is used; nor free, before it was cleared. */
static int pool_make(struct pool *pool, const struct isthmus_pool *place)
{
	u32 count = place->bytes >> PAGE_SHIFT, i;
	struct pooled *pages = NULL;
	u32 *granted = NULL;

	if (count) {
		pages = kvcalloc(count, sizeof(*pages), GFP_KERNEL);
		granted = kvcalloc(NOBODY + 1, sizeof(*granted), GFP_KERNEL);
		if (!pages || !granted) {
			kvfree(pages);
			kvfree(granted);
			return -ENOMEM;
		}
	}
	for (i = 0; i < count; i++) {
		/* No word of this pool is one that somebody has of a former one. */
		pages[i].word = get_random_u64() << OWNER_BITS;
		pages[i].next = i + 1 < count ? i + 1 : NO_PAGE;
	}
	spin_lock_irq(&pool->lock);
	swap(pool->pages, pages);
	swap(pool->granted, granted);
	pool->published = NULL;
	pool->free = NO_PAGE;
	pool->dirty = count ? 0 : NO_PAGE;
	pool->dirty_last = count - 1;
	pool->count = count;
	spin_unlock_irq(&pool->lock);
	pool->offset = place->offset;
	pool->bytes = place->bytes;
	pool->table = place->table;
	kvfree(pages);
	kvfree(granted);
	return 0;
}

/* Gives the pool its table, in memory that has an address now; NULL before it has none any more. */
static void pool_show(struct pool *pool, void *memory)
{
	u32 i;

	spin_lock_irq(&pool->lock);
	pool->published = memory && pool->count ? memory + pool->table : NULL;
	/* What changes from here on goes into the table by itself, so interrupts have their turn between these. */
	for (i = 0; pool->published && i < pool->count; i++) {
		pool_publish(pool, i);
		if (i % 1024 == 1023) {
			spin_unlock_irq(&pool->lock);
			cond_resched();
			spin_lock_irq(&pool->lock);
		}
	}
	spin_unlock_irq(&pool->lock);
}

/* Nobody keeps a page any more that this keeper had kept, of this owner or, with 0, of any. Gives whether it had. */
static bool pool_release(struct region *r, u32 number, struct client *keeper, u32 owner)
{
	struct pool *pool = &r->pool;
	bool was_kept;

	spin_lock_irq(&pool->lock);
	was_kept = number < pool->count && keeper && pool->pages[number].keeper == keeper &&
		   (!owner || ISTHMUS_OWNER(pool->pages[number].word) == owner);
	if (was_kept) {
		/* Which is open: pages of a closed one have none. */
		if (keeper != NO_KEEPER)
			keeper->kept--;
		pool->pages[number].keeper = NULL;
		pool->kept--;
	}
	spin_unlock_irq(&pool->lock);
	if (was_kept)
		unpin_user_page(pool_page(r, number));
	return was_kept;
}

/* The same of all pages of an owner, 0 for each, whoever keeps them. */
static void pool_settle(struct region *r, u32 owner)
{
	struct pool *pool = &r->pool;
	u32 number;

	for (number = 0; READ_ONCE(pool->kept) && number < pool->count; number++) {
		struct client *keeper;

		/* The keeper may be closing, and be another one then: NO_KEEPER. */
		do
			keeper = READ_ONCE(pool->pages[number].keeper);
		while (keeper && !pool_release(r, number, keeper, owner) && READ_ONCE(pool->pages[number].keeper) != keeper);
		if (!(number % 1024))
			cond_resched();
	}
}

/* An owner's process is gone, or with 0 each owner's: descriptors that were allowed before grant no pages any more. */
static void pool_renew(struct region *r, u32 owner)
{
	u32 i;

	spin_lock_irq(&r->pool.lock);
	for (i = owner ?: 1; i <= (owner ?: ISTHMUS_OWNERS); i++)
		r->lives[i]++;
	spin_unlock_irq(&r->pool.lock);
}

/*
 * The same: pages that others still have, forked processes above all, count no longer for whoever is called so next.
 */
static void pool_orphan(struct region *r, u32 owner)
{
	struct pool *pool = &r->pool;
	u32 number;

	spin_lock_irq(&pool->lock);
	for (number = 0; number < pool->count && (!owner || pool->granted[owner]); number++) {
		u32 of = ISTHMUS_OWNER(pool->pages[number].word);

		if (of && of != NOBODY && (!owner || of == owner)) {
			pool->granted[of]--;
			pool->granted[NOBODY]++;
			pool_change(pool, number, NOBODY);
		}
		if (number % 1024 == 1023) {
			spin_unlock_irq(&pool->lock);
			cond_resched();
			spin_lock_irq(&pool->lock);
		}
	}
	spin_unlock_irq(&pool->lock);
}

/* ---- Granted pages ---- */

/*
 * Whether a page is kept by this descriptor, and was kept at this very address if that is given: what is noted elsewhere may be of a time
 * before the page was moved.
 */
static bool is_kept(struct client *c, void *entry, unsigned long index)
{
	struct pool *pool = &c->region->pool;
	u32 number = xa_to_value(entry);
	unsigned long flags;
	bool is_it;

	if (!entry)
		return false;
	spin_lock_irqsave(&pool->lock, flags);
	/* The pool may be another by now. */
	is_it = number < pool->count && pool->pages[number].keeper == c && (index == ANYWHERE || pool->pages[number].kept_at == index);
	spin_unlock_irqrestore(&pool->lock, flags);
	return is_it;
}

/* Called with at_lock: these addresses get other pages, or none; those that are kept, perhaps not. */
static void pages_change(struct client *c, unsigned long start, unsigned long end, bool but_kept)
{
	struct pool *pool = &c->region->pool;
	unsigned long index, flags;
	void *entry;

	xa_for_each_range(&c->granted_at, index, entry, start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT) {
		u32 number = xa_to_value(entry);

		if (but_kept && is_kept(c, entry, index))
			continue;
		xa_erase(&c->granted_at, index);
		spin_lock_irqsave(&pool->lock, flags);
		/* The pool may be another by now, and the page another's, who grants it again then. */
		if (number < pool->count)
			pool_change(pool, number, ISTHMUS_OWNER(pool->pages[number].word));
		spin_unlock_irqrestore(&pool->lock, flags);
	}
}

static bool pages_invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct client *c = container_of(notifier, struct client, notifier);

	/* Each address keeps its page; or it is moved here, where each page is looked at. */
	if (range->event == MMU_NOTIFY_PROTECTION_VMA || range->event == MMU_NOTIFY_SOFT_DIRTY || READ_ONCE(c->mover) == current)
		return true;
	spin_lock(&c->at_lock);
	mmu_interval_set_seq(notifier, sequence);
	if (range->start < c->chunk_end && c->chunk_start < range->end)
		c->is_hit = true;
	/*
	 * A fork, which copies pages that are pinned for the child, is the only one that protects anonymous pages so. And nobody moves a
	 * page that is pinned, as another descriptor of this process may try.
	 */
	pages_change(c, range->start, range->end, range->event == MMU_NOTIFY_PROTECTION_PAGE || range->event == MMU_NOTIFY_MIGRATE);
	spin_unlock(&c->at_lock);
	return true;
}

static const struct mmu_interval_notifier_ops pages_operations = {
	.invalidate = pages_invalidate,
};

/* Whether a huge page is at this address; it may become one at any time, or be none any more. */
static bool is_huge(struct mm_struct *mm, unsigned long address)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t pmd;

	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return false;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return false;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) || pud_bad(*pud))
		return false;
	pmd = READ_ONCE(*pmd_offset(pud, address));
	return pmd_present(pmd) && pmd_trans_huge(pmd);
}

/* Whether an area can have pages that were granted. */
static bool has_private_pages(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) && !(vma->vm_flags & (VM_SPECIAL | VM_SHARED));
}

/* Why no page of an area can be granted; 0 if some may be. */
static u32 area_refusal(struct vm_area_struct *vma)
{
	/* What was written of a private mapping of a file is anonymous memory, too, but is seldom a buffer. */
	if (!has_private_pages(vma))
		return ISTHMUS_KIND;
#ifdef VM_SHADOW_STACK
	if (vma->vm_flags & VM_SHADOW_STACK)
		return ISTHMUS_KIND;
#endif
	if (!(vma->vm_flags & VM_WRITE))
		return ISTHMUS_READ_ONLY;
	if (userfaultfd_armed(vma) || vma->vm_flags & VM_MERGEABLE)
		return ISTHMUS_WATCHED;
	return 0;
}

static void refuse(struct isthmus_page *results, u32 count, u32 why)
{
	while (count--)
		*results++ = (struct isthmus_page){ .page = NO_PAGE, .why = why };
}

/* What becomes of a page that is locked, and mapped nowhere until the chunk is finished. */
static unsigned long grant_page(struct client *c, unsigned long from, struct isthmus_page *result)
{
	struct page *page = migrate_pfn_to_page(from), *to;
	struct pool *pool = &c->region->pool;

	result->why = ISTHMUS_BUSY;
	if (!(from & MIGRATE_PFN_MIGRATE))
		return 0;
	/* A forked process has it, too. */
	if (page && !(from & MIGRATE_PFN_WRITE)) {
		result->why = ISTHMUS_READ_ONLY;
		return 0;
	}
	if (page && is_zone_device_page(page)) {
		/* It is in the pool already, and stays where it is; another's, which a forked process can have, is not ours to grant. */
		u32 number = pool_number(c->region, page);

		spin_lock_irq(&pool->lock);
		if (ISTHMUS_OWNER(pool->pages[number].word) == c->owner) {
			result->page = number;
			result->why = ISTHMUS_GRANTED;
		}
		spin_unlock_irq(&pool->lock);
		return 0;
	}
	to = pool_take(c, &result->why);
	if (!to)
		return 0;
	if (page)
		copy_highpage(to, page);
	else
		clear_highpage(to);
	result->page = pool_number(c->region, to);
	result->why = ISTHMUS_GRANTED;
	return migrate_pfn(page_to_pfn(to));
}

/*
 * From when a page is at its address on, it is known to be there; but for a chunk of which an address has changed since the chunk was
 * begun, which is tried again another time.
 */
static u32 grant_note(struct client *c, unsigned long address, u32 count, struct isthmus_page *results)
{
	struct pool *pool = &c->region->pool;
	u32 i, granted = 0;

	spin_lock(&c->at_lock);
	for (i = 0; i < count; i++) {
		struct isthmus_page *result = &results[i];
		unsigned long index = (address >> PAGE_SHIFT) + i;
		void *entry = xa_mk_value(result->page);
		bool is_noted;

		/* A page that is kept cannot be moved, and is where it was. */
		if (result->why == ISTHMUS_BUSY && is_kept(c, xa_load(&c->granted_at, index), index)) {
			entry = xa_load(&c->granted_at, index);
			*result = (struct isthmus_page){ .page = xa_to_value(entry), .why = ISTHMUS_GRANTED };
		}
		if (result->why != ISTHMUS_GRANTED)
			continue;
		/* What is noted already has not changed since then. */
		is_noted = xa_load(&c->granted_at, index) == entry ||
			   (!c->is_hit && !xa_is_err(xa_store(&c->granted_at, index, entry, GFP_ATOMIC)));
		spin_lock_irq(&pool->lock);
		if (!is_noted) {
			pool_change(pool, result->page, ISTHMUS_OWNER(pool->pages[result->page].word));
			*result = (struct isthmus_page){ .page = NO_PAGE, .why = ISTHMUS_BUSY };
		} else {
			/* A new agent has cleared the table, perhaps. */
			pool_publish(pool, result->page);
			result->word = pool->pages[result->page].word;
			granted++;
		}
		spin_unlock_irq(&pool->lock);
	}
	spin_unlock(&c->at_lock);
	return granted;
}

/* Grants pages of one area, as many as are moved at once. */
static u32 grant_chunk(struct client *c, struct vm_area_struct *vma, unsigned long address, u32 count, struct isthmus_page *results)
{
	unsigned long from[CHUNK], to[CHUNK];
	struct migrate_vma move = {
		.vma = vma,
		.start = address,
		.end = address + count * PAGE_SIZE,
		.src = from,
		.dst = to,
		.pgmap_owner = c->region,
		.flags = MIGRATE_VMA_SELECT_SYSTEM | MIGRATE_VMA_SELECT_DEVICE_COHERENT,
	};
	u32 i, granted = 0;

	refuse(results, count, ISTHMUS_BUSY);
	for (i = 0; i < count; i++)
		if (xa_reserve(&c->granted_at, (address >> PAGE_SHIFT) + i, GFP_KERNEL_ACCOUNT))
			break;
	if (i == count && migrate_vma_setup(&move) == 0) {
		for (i = 0; i < move.npages; i++)
			to[i] = grant_page(c, from[i], &results[i]);
		migrate_vma_pages(&move);
		for (i = 0; i < move.npages; i++)
			if (to[i] && !(from[i] & MIGRATE_PFN_MIGRATE))
				results[i] = (struct isthmus_page){ .page = NO_PAGE, .why = ISTHMUS_BUSY };
		granted = grant_note(c, address, move.npages, results);
		migrate_vma_finalize(&move);
	}
	for (i = 0; i < count; i++)
		xa_release(&c->granted_at, (address >> PAGE_SHIFT) + i);
	return granted;
}

/* Moves pages of one area back to the system's memory, whoever granted them. */
static u32 revoke_chunk(struct region *r, struct vm_area_struct *vma, unsigned long address, u32 count)
{
	unsigned long from[CHUNK], to[CHUNK];
	struct pool *pool = &r->pool;
	struct migrate_vma move = {
		.vma = vma,
		.start = address,
		.end = address + count * PAGE_SIZE,
		.src = from,
		.dst = to,
		.pgmap_owner = r,
		.flags = MIGRATE_VMA_SELECT_DEVICE_COHERENT,
	};
	u32 i, revoked = 0;

	/* Of a huge page none is in the pool; it would be split. */
	if (is_huge(vma->vm_mm, address) || migrate_vma_setup(&move))
		return 0;
	for (i = 0; i < move.npages; i++) {
		struct page *page = migrate_pfn_to_page(from[i]), *new = NULL;

		if (page && from[i] & MIGRATE_PFN_MIGRATE)
			/* What there is no memory for stays: nobody is to be killed for it. */
			new = alloc_page_vma(GFP_HIGHUSER_MOVABLE | __GFP_RETRY_MAYFAIL | __GFP_NOWARN, vma, address + i * PAGE_SIZE);
		to[i] = 0;
		if (new) {
			lock_page(new);
			to[i] = migrate_pfn(page_to_pfn(new));
		}
	}
	/* Refuses pages that the kernel still holds, and may be reading into. So they are copied after that, and not before. */
	migrate_vma_pages(&move);
	for (i = 0; i < move.npages; i++) {
		if (to[i] && from[i] & MIGRATE_PFN_MIGRATE) {
			struct page *page = migrate_pfn_to_page(from[i]);
			u32 number = pool_number(r, page);

			copy_highpage(migrate_pfn_to_page(to[i]), page);
			/* Before the process writes to the page that it has instead. */
			spin_lock_irq(&pool->lock);
			pool_change(pool, number, ISTHMUS_OWNER(pool->pages[number].word));
			spin_unlock_irq(&pool->lock);
			revoked++;
		}
	}
	migrate_vma_finalize(&move);
	return revoked;
}

/* The area at an address, and how much of the next pages is in it or in the gap before the next one. */
static struct vm_area_struct *area_at(struct mm_struct *mm, unsigned long address, u32 *count)
{
	struct vm_area_struct *vma = find_vma_intersection(mm, address, address + *count * PAGE_SIZE);

	if (vma && vma->vm_start > address) {
		*count = (vma->vm_start - address) >> PAGE_SHIFT;
		return NULL;
	}
	if (vma)
		*count = min_t(unsigned long, *count, (vma->vm_end - address) >> PAGE_SHIFT);
	return vma;
}

/* Pages up to the next multiple of a chunk, so that none has parts of two huge pages. */
static u32 chunk_at(unsigned long address, u32 most)
{
	return min_t(u32, most, CHUNK - (address >> PAGE_SHIFT) % CHUNK);
}

/* Grants the next pages, at most a chunk; `count` becomes how many were looked at. Gives how many are granted now, or an error. */
static long grant_next(struct client *c, unsigned long address, u32 *count, struct isthmus_page *results, bool may_split)
{
	struct mm_struct *mm = current->mm;
	struct region *r = c->region;
	struct vm_area_struct *vma;
	long granted = 0;
	u32 why;

	spin_lock(&c->at_lock);
	c->chunk_start = address;
	c->chunk_end = address + *count * PAGE_SIZE;
	c->is_hit = false;
	spin_unlock(&c->at_lock);
	/* Waits for changes that have begun before, and so before what those may hold. */
	mmu_interval_read_begin(&c->notifier);
	mmap_read_lock(mm);
	/* As in a fault. */
	down_read(&r->lock);
	vma = area_at(mm, address, count);
	why = vma ? area_refusal(vma) : ISTHMUS_UNMAPPED;
	if (r->is_gone) {
		granted = -ENODEV;
	} else if (!r->pool.count) {
		granted = -EOPNOTSUPP;
	} else if (why) {
		refuse(results, *count, why);
	} else {
		bool was_huge = is_huge(mm, address);

		if (was_huge && !may_split) {
			refuse(results, *count, ISTHMUS_HUGE);
		} else {
			WRITE_ONCE(c->mover, current);
			granted = grant_chunk(c, vma, address, *count, results);
			WRITE_ONCE(c->mover, NULL);
			if (was_huge && !is_huge(mm, address))
				/* One more or less does no harm. */
				WRITE_ONCE(r->pool.splits, r->pool.splits + 1);
		}
	}
	up_read(&r->lock);
	mmap_read_unlock(mm);
	return granted;
}

/* Has the process write to pages that are protected since a fork: they are its own then. Gives whether there were any. */
static bool unshare_chunk(unsigned long address, u32 count, const struct isthmus_page *results)
{
	bool any = false;
	struct page *page;
	u32 i;

	for (i = 0; i < count; i++) {
		if (results[i].why == ISTHMUS_READ_ONLY && pin_user_pages_fast(address + i * PAGE_SIZE, 1, FOLL_WRITE, &page) == 1) {
			unpin_user_page(page);
			any = true;
		}
	}
	return any;
}

/*
 * Pages that are kept already cannot be moved. They are where they were, but their grant may have ended for a change that did not come
 * about. Called after a grant of the chunk; gives how many more are granted.
 */
static u32 renew_chunk(struct client *c, unsigned long address, u32 count, struct isthmus_page *results)
{
	struct region *r = c->region;
	u32 i, granted = 0;

	for (i = 0; i < count; i++) {
		struct page *page;

		if (results[i].why != ISTHMUS_BUSY || pin_user_pages_fast(address + i * PAGE_SIZE, 1, FOLL_WRITE, &page) != 1)
			continue;
		down_read(&r->lock);
		if (!r->is_gone && is_zone_device_page(page) && page_pgmap(page) == &r->pagemaps[1]) {
			u32 number = pool_number(r, page);

			if (is_kept(c, xa_mk_value(number), ANYWHERE)) {
				results[i] = (struct isthmus_page){ .page = number, .why = ISTHMUS_GRANTED };
				granted += grant_note(c, address + i * PAGE_SIZE, 1, &results[i]);
			}
		}
		up_read(&r->lock);
		unpin_user_page(page);
	}
	return granted;
}

/* Keeps a page that was granted. Gives whether it did, or had. */
static bool keep_page(struct client *c, unsigned long address, const struct isthmus_page *result)
{
	struct region *r = c->region;
	struct pool *pool = &r->pool;
	bool is_right, is_new = false;
	struct page *page;

	/* By which a fork knows that the child gets a copy. */
	if (pin_user_pages_fast(address, 1, FOLL_WRITE, &page) != 1)
		return false;
	/* As in a fault. */
	down_read(&r->lock);
	spin_lock_irq(&pool->lock);
	/* The address may have another page since. */
	is_right = !r->is_gone && result->page < pool->count && page == pool_page(r, result->page) &&
		   pool->pages[result->page].word == result->word && r->lives[c->owner] == c->life;
	if (is_right && !pool->pages[result->page].keeper) {
		pool->pages[result->page].keeper = c;
		c->kept++;
		pool->kept++;
		is_new = true;
	}
	is_right = is_right && pool->pages[result->page].keeper == c;
	if (is_right)
		pool->pages[result->page].kept_at = address >> PAGE_SHIFT;
	spin_unlock_irq(&pool->lock);
	up_read(&r->lock);
	if (!is_new)
		unpin_user_page(page);
	return is_right;
}

/* The same of the pages of a chunk; gives how many of them are granted still. */
static u32 keep_chunk(struct client *c, unsigned long address, u32 count, struct isthmus_page *results)
{
	u32 i, granted = 0;

	for (i = 0; i < count; i++) {
		if (results[i].why != ISTHMUS_GRANTED)
			continue;
		if (keep_page(c, address + i * PAGE_SIZE, &results[i]))
			granted++;
		else
			refuse(&results[i], 1, ISTHMUS_BUSY);
	}
	return granted;
}

/* The same the other way, up to the first page that is kept. */
static long revoke_next(struct client *c, struct mm_struct *mm, unsigned long address, u32 *count)
{
	struct region *r = c->region;
	struct vm_area_struct *vma;
	unsigned long i;
	long revoked = 0;

	for (i = 0; i < *count; i++) {
		unsigned long index = (address >> PAGE_SHIFT) + i;

		if (!is_kept(c, xa_load(&c->granted_at, index), index))
			continue;
		*count = max(i, 1ul);
		if (!i)
			return 0;
	}
	mmap_read_lock(mm);
	down_read(&r->lock);
	vma = area_at(mm, address, count);
	if (r->is_gone)
		revoked = -ENODEV;
	else if (!r->pool.count)
		revoked = -EOPNOTSUPP;
	else if (vma && has_private_pages(vma))
		/* Each descriptor by which the process has granted pages hears of it. */
		revoked = revoke_chunk(r, vma, address, *count);
	up_read(&r->lock);
	mmap_read_unlock(mm);
	return revoked;
}

/* What is granted is of the process that granted the first page. */
static long pages_begin(struct client *c)
{
	struct region *r = c->region;
	long error;

	if (!smp_load_acquire(&c->is_allowed) || !c->most_pages)
		return -EACCES;
	if (c->has_notifier)
		return c->notifier.mm == current->mm ? 0 : -EPERM;
	error = mmu_interval_notifier_insert(&c->notifier, current->mm, 0, ULONG_MAX, &pages_operations);
	/* The first of a process is not inserted while a signal waits. */
	if (error)
		return error == -EINTR ? -ERESTARTNOINTR : error;
	c->has_notifier = true;
	mutex_lock(&r->clients_lock);
	list_add(&c->others, &r->clients);
	mutex_unlock(&r->clients_lock);
	return 0;
}

static long client_move(struct client *c, const void __user *from, bool is_grant)
{
	struct isthmus_page *results = NULL;
	struct isthmus_pages pages;
	u32 done, count;
	unsigned long end;
	long error, moved = 0;

	if (copy_from_user(&pages, from, sizeof(pages)))
		return -EFAULT;
	if (!PAGE_ALIGNED(pages.address) || !pages.count || pages.count > ISTHMUS_MOST_PAGES ||
	    pages.flags & ~(is_grant ? ISTHMUS_SPLIT | ISTHMUS_KEEP : 0) ||
	    check_add_overflow((unsigned long)pages.address, pages.count * PAGE_SIZE, &end) || end > TASK_SIZE)
		return -EINVAL;
	if (is_grant) {
		results = kcalloc(pages.count, sizeof(*results), GFP_KERNEL_ACCOUNT);
		if (!results)
			return -ENOMEM;
		refuse(results, pages.count, ISTHMUS_BUSY);
	}
	mutex_lock(&c->lock);
	error = pages_begin(c);
	for (done = 0; done < pages.count && error >= 0 && !fatal_signal_pending(current); done += count) {
		unsigned long address = pages.address + done * PAGE_SIZE;

		count = chunk_at(address, pages.count - done);
		error = is_grant ? grant_next(c, address, &count, results + done, pages.flags & ISTHMUS_SPLIT) :
				   revoke_next(c, current->mm, address, &count);
		if (error >= 0 && pages.flags & ISTHMUS_KEEP && unshare_chunk(address, count, results + done))
			error = grant_next(c, address, &count, results + done, pages.flags & ISTHMUS_SPLIT);
		if (error >= 0 && pages.flags & ISTHMUS_KEEP)
			error += renew_chunk(c, address, count, results + done);
		if (error > 0 && pages.flags & ISTHMUS_KEEP)
			error = keep_chunk(c, address, count, results + done);
		if (error > 0)
			moved += error;
		cond_resched();
	}
	mutex_unlock(&c->lock);
	if (error >= 0 && is_grant && copy_to_user(u64_to_user_ptr(pages.results), results, pages.count * sizeof(*results)))
		error = -EFAULT;
	kfree(results);
	return error < 0 ? error : moved;
}

static long client_grant(struct client *c, const void __user *from)
{
	return client_move(c, from, true);
}

static long client_revoke(struct client *c, const void __user *from)
{
	return client_move(c, from, false);
}

static long client_release_pages(struct client *c, const void __user *from)
{
	struct isthmus_page *named;
	struct isthmus_pages pages;
	long released = 0;
	u32 i;

	if (copy_from_user(&pages, from, sizeof(pages)))
		return -EFAULT;
	if (!pages.count || pages.count > ISTHMUS_MOST_PAGES || pages.flags)
		return -EINVAL;
	named = memdup_user(u64_to_user_ptr(pages.results), pages.count * sizeof(*named));
	if (IS_ERR(named))
		return PTR_ERR(named);
	/* Held by whoever keeps pages by this descriptor. */
	mutex_lock(&c->lock);
	/* A forked process knows nothing of who writes there. */
	if (!c->has_notifier || c->notifier.mm != current->mm)
		released = -EPERM;
	down_read(&c->region->lock);
	for (i = 0; i < pages.count && released >= 0; i++)
		released += pool_release(c->region, named[i].page, c, 0);
	up_read(&c->region->lock);
	mutex_unlock(&c->lock);
	kfree(named);
	return released;
}

/*
 * The lock of a process's memory, which a thread may hold for as long as it waits for a file system: so many tries, of which those that
 * fail are used up. Gives whether it was had.
 */
static bool mm_lock_within(struct mm_struct *mm, unsigned int *tries)
{
	for (;;) {
		if (mmap_read_trylock(mm))
			return true;
		if (!*tries || fatal_signal_pending(current))
			return false;
		--*tries;
		usleep_range(500, 1000);
	}
}

/*
 * Moves back what was granted by a descriptor and is where it was granted. The pool stays as long as there is any such page, so nothing
 * else is held.
 */
static void pages_evict(struct client *c, unsigned int *tries)
{
	struct mm_struct *mm = c->notifier.mm;
	unsigned long index = 0;
	u32 count;

	if (!mmget_not_zero(mm))
		/* Its pages are freed, but for those that somebody has pinned or a forked process has, too. */
		return;
	while (xa_find(&c->granted_at, &index, ULONG_MAX, XA_PRESENT)) {
		unsigned long address = index << PAGE_SHIFT;
		u32 most = chunk_at(address, CHUNK);
		struct vm_area_struct *vma;

		/* What others have granted beside it stays. */
		for (count = 1; count < most && xa_load(&c->granted_at, index + count);)
			count++;
		/* Otherwise they are moved when this is called again, or freed by their process. */
		if (mm_lock_within(mm, tries)) {
			vma = area_at(mm, address, &count);
			if (vma && has_private_pages(vma))
				revoke_chunk(c->region, vma, address, count);
			mmap_read_unlock(mm);
		}
		index += count;
		cond_resched();
	}
	mmput(mm);
}

/*
 * The same of all descriptors of an owner, 0 for each. A process that has its memory locked has its turn when this is called again, or when
 * it closes the descriptor. Called without the region's lock, which is taken after that of a process's memory.
 */
static void clients_evict(struct region *r, u32 owner)
{
	unsigned int tries = DRAIN_TRIES;
	struct client *c;

	mutex_lock(&r->clients_lock);
	list_for_each_entry(c, &r->clients, others)
		if (!owner || c->owner == owner)
			pages_evict(c, &tries);
	mutex_unlock(&r->clients_lock);
}

static long client_settle(struct client *c, unsigned long owner)
{
	struct region *r = c->region;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (owner > ISTHMUS_OWNERS)
		return -EINVAL;
	down_read(&r->lock);
	pool_renew(r, owner);
	pool_settle(r, owner);
	up_read(&r->lock);
	/* Or a process that has let go of its place and keeps its descriptor would have its limit again in each next one. */
	clients_evict(r, owner);
	/* Others' are left, those of forked processes above all. */
	down_read(&r->lock);
	pool_orphan(r, owner);
	up_read(&r->lock);
	return 0;
}

/* Nobody grants pages by this descriptor any more. */
static void pages_end(struct client *c)
{
	struct region *r = c->region;
	struct pool *pool = &r->pool;
	unsigned int tries = CLOSE_TRIES;
	u32 number;

	if (!c->has_notifier)
		return;
	mutex_lock(&r->clients_lock);
	list_del(&c->others);
	mutex_unlock(&r->clients_lock);
	pages_evict(c, &tries);
	/* What is left is not looked after any more: nobody believes it from now on, before an address has another page. */
	spin_lock(&c->at_lock);
	pages_change(c, 0, ULONG_MAX, false);
	spin_unlock(&c->at_lock);
	mmu_interval_notifier_remove(&c->notifier);
	xa_destroy(&c->granted_at);
	/* Others may be writing to what was kept, which the agent knows. */
	spin_lock_irq(&pool->lock);
	for (number = 0; c->kept && number < pool->count; number++) {
		if (pool->pages[number].keeper == c) {
			pool->pages[number].keeper = NO_KEEPER;
			c->kept--;
		}
		if (number % 1024 == 1023) {
			spin_unlock_irq(&pool->lock);
			cond_resched();
			spin_lock_irq(&pool->lock);
		}
	}
	spin_unlock_irq(&pool->lock);
}

/* Moves back pages that a process has, wherever they are: moved to other addresses, or a forked process's. */
static void mm_evict(struct region *r, struct mm_struct *mm, const u32 *numbers, u32 count)
{
	struct vm_area_struct *vma;
	unsigned int tries = DRAIN_TRIES;
	u32 i;

	VMA_ITERATOR(vmi, mm, 0);
	if (!mm_lock_within(mm, &tries))
		return;
	for_each_vma(vmi, vma) {
		if (!vma->anon_vma || !has_private_pages(vma))
			continue;
		for (i = 0; i < count; i++) {
			/* Where it is in the area, if it is one of this area's. */
			unsigned long at = READ_ONCE(pool_page(r, numbers[i])->index) - vma->vm_pgoff;

			if (at < vma_pages(vma))
				revoke_chunk(r, vma, vma->vm_start + (at << PAGE_SHIFT), 1);
		}
		cond_resched();
	}
	mmap_read_unlock(mm);
}

/* The pages that are used; gives how many, none if there is no memory for them. */
static u32 pool_list(struct pool *pool, u32 **numbers)
{
	u32 count = 0, i;

	*numbers = kvmalloc_array(pool->count, sizeof(**numbers), GFP_KERNEL);
	if (!*numbers)
		return 0;
	for (i = 0; i < pool->count; i++)
		if (ISTHMUS_OWNER(READ_ONCE(pool->pages[i].word)))
			(*numbers)[count++] = i;
	return count;
}

/* The memory of a process, of which the first thread may have ended; NULL if there is none any more. */
static struct mm_struct *task_mm(struct task_struct *process)
{
	struct mm_struct *mm = NULL;
	struct task_struct *thread;

	rcu_read_lock();
	for_each_thread(process, thread) {
		mm = get_task_mm(thread);
		if (mm)
			break;
	}
	rcu_read_unlock();
	return mm;
}

static long drain(void *unused)
{
	unsigned long none;

	/* Which has this processor give back the pages that it keeps for a moment, though there is nothing to move. */
	return migrate_device_range(&none, 0, 0);
}

/* A page of memory that was locked may be kept by a processor after it was freed. */
static void drain_all(void)
{
	int cpu;

	for_each_online_cpu(cpu)
		work_on_cpu(cpu, drain, NULL);
}

/* Moves back all pages of the pool that are mapped anywhere. A page that is not is freed by whoever has it. */
static void pool_evict(struct region *r)
{
	unsigned int count = 0, most = 64, i;
	struct task_struct *task, **all;
	u32 *numbers, used;

	clients_evict(r, 0);
	if (!pool_is_used(&r->pool))
		return;
	drain_all();
	used = pool_list(&r->pool, &numbers);
	rcu_read_lock();
	for_each_process(task)
		most++;
	rcu_read_unlock();
	/* Those that began meanwhile have their turn when this is called again. */
	all = kvmalloc_array(most, sizeof(*all), GFP_KERNEL);
	if (all && used) {
		rcu_read_lock();
		for_each_process(task) {
			if (count == most)
				break;
			get_task_struct(task);
			all[count++] = task;
		}
		rcu_read_unlock();
	}
	for (i = 0; i < count; i++) {
		struct mm_struct *mm = task_mm(all[i]);

		if (mm) {
			mm_evict(r, mm, numbers, used);
			mmput(mm);
		}
		put_task_struct(all[i]);
	}
	kvfree(all);
	kvfree(numbers);
}

/* Waits until the pool has no page in use, and none to be cleared. */
static void pool_drain(struct region *r)
{
	unsigned long begun = jiffies, pause = HZ / 50;
	bool is_told = false;

	for (;;) {
		pool_settle(r, 0);
		pool_evict(r);
		if (!pool_is_used(&r->pool))
			break;
		schedule_timeout_idle(pause);
		pause = min_t(unsigned long, 2 * pause, HZ);
		if (!is_told && time_after(jiffies, begun + 10 * HZ)) {
			dev_warn(&r->device->dev, "unplugging waits for granted pages that cannot be moved: pinned, or there is no memory for them\n");
			is_told = true;
		}
	}
	flush_work(&r->pool.clear);
}

/* ---- Memory ---- */

static void region_unmap(struct region *r)
{
	unsigned int i;

	pool_show(&r->pool, NULL);
	if (!r->has_pages)
		memunmap(r->memory);
	for (i = 0; i < ARRAY_SIZE(r->pagemaps) && r->has_pages; i++)
		if (r->pagemaps[i].nr_range)
			memunmap_pages(&r->pagemaps[i]);
	r->has_pages = false;
	r->memory = NULL;
}

/* A part of the memory gets pages. */
static int region_part(struct region *r, unsigned int part, u64 begin, u64 end)
{
	struct dev_pagemap *pagemap = &r->pagemaps[part];
	void *memory;

	memset(pagemap, 0, sizeof(*pagemap));
	if (begin == end)
		return 0;
	pagemap->type = MEMORY_DEVICE_GENERIC;
	if (part == 1) {
		pagemap->type = MEMORY_DEVICE_COHERENT;
		pagemap->ops = &pool_operations;
		pagemap->owner = r;
	}
	pagemap->range.start = r->start + begin;
	pagemap->range.end = r->start + end - 1;
	pagemap->nr_range = 1;
	memory = memremap_pages(pagemap, dev_to_node(&r->device->dev));
	if (IS_ERR(memory)) {
		pagemap->nr_range = 0;
		return PTR_ERR(memory);
	}
	/* All parts are where the kernel has all memory, side by side. */
	if (!part)
		r->memory = memory;
	return 0;
}

/* Reserves the memory as write-back, so that faults map it so, with pages if they are wanted and there is room for them. */
static int region_memory(struct region *r, bool with_pages)
{
	const u64 edges[] = { 0, r->pool.offset, r->pool.offset + r->pool.bytes, r->bytes };
	unsigned int i;
	int error = 0;

	if (with_pages && IS_ALIGNED(r->start | r->bytes, PMD_SIZE)) {
		r->has_pages = true;
		for (i = 0; i < ARRAY_SIZE(r->pagemaps) && !error; i++)
			/* Without a pool all is in the first part. */
			error = r->pool.bytes ? region_part(r, i, edges[i], edges[i + 1]) :
						region_part(r, i, 0, i ? 0 : r->bytes);
		if (!error)
			return 0;
		while (i < ARRAY_SIZE(r->pagemaps))
			r->pagemaps[i++].nr_range = 0;
		region_unmap(r);
		dev_info(&r->device->dev, "no pages for %llu bytes of memory (error %d), so O_DIRECT and 2 MiB mappings do not work\n",
			 r->bytes, error);
	}
	r->memory = memremap(r->start, r->bytes, MEMREMAP_WB);
	return r->memory ? 0 : -ENOMEM;
}

/*
 * Waits until nobody has pages pinned: memunmap_pages does not, since Linux 5.18. With the mappings gone, none are pinned anew. Gives
 * up after so many seconds, 0 for never.
 */
static int region_wait(struct region *r, unsigned int seconds)
{
	unsigned long pfn, end = PHYS_PFN(r->start + r->bytes), begun = jiffies;
	bool is_told = seconds;

	for (pfn = PHYS_PFN(r->start); pfn < end; pfn++) {
		if (is_pooled(r, PFN_PHYS(pfn) - r->start))
			continue;
		while (page_ref_count(pfn_to_page(pfn)) > 1) {
			schedule_timeout_idle(HZ / 100);
			if (seconds && time_after(jiffies, begun + seconds * HZ))
				return -EBUSY;
			if (!is_told && time_after(jiffies, begun + 10 * HZ)) {
				dev_warn(&r->device->dev, "unplugging waits for pages of its memory that a process has pinned\n");
				is_told = true;
			}
		}
		if (!(pfn % 1024))
			cond_resched();
	}
	return 0;
}

/* No mapping reaches the device any more: whoever waits for rings hears of it. */
static void region_end(struct region *r)
{
	unsigned int i;

	WRITE_ONCE(r->is_gone, true);
	WRITE_ONCE(r->is_over, true);
	for (i = 0; i < r->vector_count; i++)
		wake_up_interruptible_all(&r->vectors[i].sleepers);
}

/* Called with the lock held for writing: the pool comes to this place. Gives 1 if it was at another one. */
static long region_place_pool(struct region *r, const struct isthmus_pool *place)
{
	long error;

	if (r->is_gone)
		return -ENODEV;
	if (place->offset == r->pool.offset && place->bytes == r->pool.bytes && place->table == r->pool.table)
		return 0;
	if (!r->has_pages)
		return -EOPNOTSUPP;
	if (pool_is_used(&r->pool))
		drain_all();
	if (pool_is_used(&r->pool))
		return -EBUSY;
	flush_work(&r->pool.clear);
	/* They are filled anew by faults, which wait for the lock. */
	unmap_mapping_range(r->inode->i_mapping, 0, 0, 1);
	error = region_wait(r, 1);
	if (error)
		return error;
	error = pool_make(&r->pool, place);
	if (error)
		return error;
	region_unmap(r);
	/* As it was taken, whatever the parameter says since. */
	error = region_memory(r, true);
	if (error)
		region_end(r);
	else if (!r->has_pages)
		error = -ENOMEM;
	if (error)
		/* Which needs no memory. */
		pool_make(&r->pool, &(struct isthmus_pool){ 0 });
	else
		pool_show(&r->pool, r->memory);
	/* A VM that boots anew may have left things there. */
	if (!error)
		queue_work(system_unbound_wq, &r->pool.clear);
	return error ?: 1;
}

static long client_pool(struct client *c, const void __user *from)
{
	struct region *r = c->region;
	struct isthmus_pool place;
	u64 end, table_end;
	long error;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (copy_from_user(&place, from, sizeof(place)))
		return -EFAULT;
	if (!place.bytes && (place.offset || place.table))
		return -EINVAL;
	if (place.bytes) {
		if (!IS_ALIGNED(place.offset | place.bytes, PMD_SIZE) || !PAGE_ALIGNED(place.table) ||
		    check_add_overflow(place.offset, place.bytes, &end) || end > r->bytes ||
		    check_add_overflow(place.table, (place.bytes >> PAGE_SHIFT) * sizeof(u64), &table_end) || table_end > place.offset)
			return -EINVAL;
	}
	down_write(&r->lock);
	error = region_place_pool(r, &place);
	up_write(&r->lock);
	/* Processes that free pages without end would have the agent of a pool that is there already wait. */
	if (error == 1)
		flush_work(&r->pool.clear);
	return min(error, 0l);
}

/* ---- Descriptors ---- */

static int client_open(struct inode *inode, struct file *file)
{
	struct region *r = container_of(file->private_data, struct region, misc);
	struct client *c = kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT);

	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	xa_init_flags(&c->standins, XA_FLAGS_ACCOUNT);
	xa_init_flags(&c->granted_at, XA_FLAGS_ACCOUNT);
	spin_lock_init(&c->at_lock);
	/* The caller holds what remove waits for before it lets go. */
	kref_get(&r->refs);
	c->region = r;
	file->private_data = c;
	/* One address space for all, so that remove finds every mapping. */
	file->f_mapping = r->inode->i_mapping;
	return 0;
}

static int client_release(struct inode *inode, struct file *file)
{
	struct client *c = file->private_data;
	unsigned long index;
	struct page *page;

	pages_end(c);
	xa_for_each(&c->standins, index, page)
		put_page(page);
	xa_destroy(&c->standins);
	kref_put(&c->region->refs, region_free);
	kfree(c);
	return 0;
}

static long client_info(struct client *c, void __user *to)
{
	struct region *r = c->region;
	struct isthmus_info info = {
		.abi = ISTHMUS_ABI,
		.bytes = r->bytes,
		.vectors = r->vector_count,
		.mappings = atomic_read(&r->mappings),
		.pool = READ_ONCE(r->pool.count),
		.granted = READ_ONCE(r->pool.used),
		.splits = READ_ONCE(r->pool.splits),
		.kept = READ_ONCE(r->pool.kept),
	};
	unsigned int i;

	if (r->has_pages)
		info.flags |= ISTHMUS_PAGES;
	if (r->start < SZ_4G)
		info.flags |= ISTHMUS_LOW;
	if (READ_ONCE(r->is_over))
		info.flags |= ISTHMUS_GONE;
	for (i = 0; i < r->vector_count; i++)
		info.rings += atomic64_read(&r->vectors[i].rings);
	return copy_to_user(to, &info, sizeof(info)) ? -EFAULT : 0;
}

static long client_allow(struct client *c, const void __user *from)
{
	struct isthmus_allow allow;
	unsigned int i;
	long error = 0;
	u64 end;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (copy_from_user(&allow, from, sizeof(allow)))
		return -EFAULT;
	if (allow.count > ISTHMUS_RANGES || allow.flags & ~ISTHMUS_MAY_RING || allow.owner > ISTHMUS_OWNERS ||
	    (allow.pages && !allow.owner))
		return -EINVAL;
	mutex_lock(&c->lock);
	if (c->is_allowed)
		error = -EBUSY;
	else if (copy_from_user(c->ranges, u64_to_user_ptr(allow.ranges), allow.count * sizeof(*c->ranges)))
		error = -EFAULT;
	for (i = 0; i < allow.count && !error; i++) {
		const struct isthmus_range *range = &c->ranges[i];

		if (!PAGE_ALIGNED(range->offset | range->bytes) || !range->bytes || range->reserved ||
		    range->flags & ~(ISTHMUS_READ | ISTHMUS_WRITE | ISTHMUS_FAULTS) ||
		    check_add_overflow(range->offset, range->bytes, &end) || end > c->region->bytes)
			error = -EINVAL;
	}
	if (!error) {
		c->count = allow.count;
		c->may_ring = allow.flags & ISTHMUS_MAY_RING;
		c->owner = allow.owner;
		spin_lock_irq(&c->region->pool.lock);
		c->life = c->region->lives[c->owner];
		spin_unlock_irq(&c->region->pool.lock);
		c->most_pages = allow.pages;
		/* Pairs with those who look without the lock. */
		smp_store_release(&c->is_allowed, true);
	}
	mutex_unlock(&c->lock);
	return error;
}

static long client_member(struct client *c, const void __user *from)
{
	struct isthmus_member member;
	u32 i;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (copy_from_user(&member, from, sizeof(member)))
		return -EFAULT;
	if (member.id > ISTHMUS_NO_ID && member.id != ISTHMUS_OWN_ID)
		return -EINVAL;
	if (member.member != ISTHMUS_ALL && member.member >= ISTHMUS_MEMBERS)
		return -EINVAL;
	for (i = 0; i < ISTHMUS_MEMBERS; i++)
		if (member.member == ISTHMUS_ALL || member.member == i)
			WRITE_ONCE(c->region->ids[i], member.id);
	return 0;
}

static long client_ring(struct client *c, unsigned long argument)
{
	struct region *r = c->region;
	unsigned long member = argument >> 8, vector = argument & 0xff;
	long error = 0;
	u32 id;

	if (!smp_load_acquire(&c->is_allowed) || !c->may_ring)
		return -EACCES;
	/* A device that has fewer vectors knows no more of others'. */
	if (member >= ISTHMUS_MEMBERS || vector >= r->vector_count)
		return -EINVAL;
	/* Of deaths, which the agent tells of. */
	if (!vector && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (READ_ONCE(r->is_gone))
		return -ENODEV;
	id = READ_ONCE(r->ids[array_index_nospec(member, ISTHMUS_MEMBERS)]);
	if (id == ISTHMUS_NO_ID)
		return -ENOENT;
	if (id == ISTHMUS_OWN_ID) {
		vector_ring(&r->vectors[array_index_nospec(vector, MOST_VECTORS)]);
		return 0;
	}
	down_read(&r->lock);
	if (r->is_gone)
		error = -ENODEV;
	else
		iowrite32(id << 16 | vector, r->registers + DOORBELL);
	up_read(&r->lock);
	return error;
}

static long client_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct client *c = file->private_data;
	void __user *at = (void __user *)argument;

	switch (command) {
	case ISTHMUS_RING:
		return client_ring(c, argument);
	case ISTHMUS_INFO:
		return client_info(c, at);
	case ISTHMUS_ALLOW:
		return client_allow(c, at);
	case ISTHMUS_MEMBER:
		return client_member(c, at);
	case ISTHMUS_BELL:
		return bell_make(c->region, argument);
	case ISTHMUS_POOL:
		return client_pool(c, at);
	case ISTHMUS_GRANT:
		return client_grant(c, at);
	case ISTHMUS_REVOKE:
		return client_revoke(c, at);
	case ISTHMUS_RELEASE:
		return client_release_pages(c, at);
	case ISTHMUS_SETTLE:
		return client_settle(c, argument);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations client_operations = {
	.owner = THIS_MODULE,
	.open = client_open,
	.release = client_release,
	.unlocked_ioctl = client_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = client_mmap,
	.get_unmapped_area = thp_get_unmapped_area,
	.llseek = noop_llseek,
};

/* ---- The device ---- */

static int inodes_init(struct fs_context *context)
{
	return init_pseudo(context, MAGIC >> 32) ? 0 : -ENOMEM;
}

/* Without an owner: the module ends this mount itself. */
static struct file_system_type inodes_type = {
	.name = KBUILD_MODNAME,
	.init_fs_context = inodes_init,
	.kill_sb = kill_anon_super,
};

/* With one: a path to a bell (O_PATH) outlives the bell, and with it this mount must. */
static struct file_system_type bells_type = {
	.owner = THIS_MODULE,
	.name = KBUILD_MODNAME,
	.init_fs_context = inodes_init,
	.kill_sb = kill_anon_super,
};

static int region_inode(struct region *r)
{
	struct inode *inode = alloc_anon_inode(inodes->mnt_sb);

	if (IS_ERR(inode))
		return PTR_ERR(inode);
	/* Else no fault asks for 2 MiB. */
	inode->i_flags |= S_DAX;
	r->inode = inode;
	return 0;
}

/*
 * Whether what is in the memory is a region's. What another member has in its section, an ivshmem-plain device, is up to that one, and
 * must not keep this machine from having the device: who gives it to the driver says that it is a region's.
 */
static bool region_is_there(struct region *r)
{
	u64 first = le64_to_cpu(READ_ONCE(*(__le64 *)r->memory));

	return !r->device->msix_cap || first == MAGIC || first == SECTION_MAGIC || first == DIRECTORY_MAGIC;
}

static void region_silence(struct region *r)
{
	unsigned int i;

	for (i = 0; i < r->vector_count; i++) {
		/* Which ends the handler and its pause. */
		disable_irq(r->vectors[i].irq);
		if (hrtimer_cancel(&r->vectors[i].pause))
			enable_irq(r->vectors[i].irq);
		free_irq(r->vectors[i].irq, &r->vectors[i]);
	}
	pci_free_irq_vectors(r->device);
}

static int region_vectors(struct region *r)
{
	unsigned int i;
	int error, count;

	/* An ivshmem-plain device: another member's section, which is only mapped. */
	if (!r->device->msix_cap)
		return 0;
	count = pci_alloc_irq_vectors(r->device, 1, MOST_VECTORS, PCI_IRQ_MSIX);
	if (count < 0) {
		dev_err(&r->device->dev, "its MSI-X vectors cannot be allocated\n");
		return count;
	}
	for (i = 0; i < count; i++) {
		struct vector *v = &r->vectors[i];

		v->irq = pci_irq_vector(r->device, i);
		error = request_irq(v->irq, vector_interrupt, 0, r->name, v);
		if (error) {
			r->vector_count = i;
			region_silence(r);
			r->vector_count = 0;
			return error;
		}
	}
	r->vector_count = count;
	return 0;
}

static struct region *region_make(struct pci_dev *device)
{
	struct region *r = kzalloc(sizeof(*r), GFP_KERNEL);
	unsigned int i;

	if (!r)
		return NULL;
	r->number = ida_alloc(&numbers, GFP_KERNEL);
	if (r->number < 0) {
		kfree(r);
		return NULL;
	}
	r->lives = kvcalloc(ISTHMUS_OWNERS + 1, sizeof(*r->lives), GFP_KERNEL);
	if (!r->lives) {
		ida_free(&numbers, r->number);
		kfree(r);
		return NULL;
	}
	kref_init(&r->refs);
	init_rwsem(&r->lock);
	mutex_init(&r->clients_lock);
	INIT_LIST_HEAD(&r->clients);
	spin_lock_init(&r->pool.lock);
	INIT_WORK(&r->pool.clear, pool_clear);
	r->pool.free = r->pool.dirty = NO_PAGE;
	r->device = device;
	for (i = 0; i < ISTHMUS_MEMBERS; i++)
		r->ids[i] = ISTHMUS_NO_ID;
	for (i = 0; i < MOST_VECTORS; i++) {
		struct vector *v = &r->vectors[i];

		init_waitqueue_head(&v->sleepers);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
		hrtimer_setup(&v->pause, vector_resume, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
		hrtimer_init(&v->pause, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
		v->pause.function = vector_resume;
#endif
	}
	snprintf(r->name, sizeof(r->name), "isthmus%d", r->number);
	r->misc.minor = MISC_DYNAMIC_MINOR;
	r->misc.name = r->name;
	r->misc.fops = &client_operations;
	r->misc.parent = &device->dev;
	r->misc.mode = 0600;
	return r;
}

static int isthmus_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	struct region *r;
	int error;

	error = pci_enable_device_mem(device);
	if (error)
		return error;
	error = pci_request_regions(device, KBUILD_MODNAME);
	if (error)
		goto disable;
	error = -ENOMEM;
	r = region_make(device);
	if (!r)
		goto release;
	error = region_inode(r);
	if (error)
		goto put;
	r->start = pci_resource_start(device, MEMORY);
	r->bytes = pci_resource_len(device, MEMORY);
	error = -ENODEV;
	if (!r->start || r->bytes < PAGE_SIZE) {
		dev_err(&device->dev, "its memory has no address: its PCI port needs a larger window\n");
		goto put;
	}
	error = -ENOMEM;
	r->registers = pci_iomap(device, REGISTERS, 0);
	if (!r->registers)
		goto put;
	error = region_memory(r, pages);
	if (error)
		goto unmap;
	error = -ENODEV;
	if (!region_is_there(r)) {
		dev_info(&device->dev, "no isthmus region is in it\n");
		goto forget;
	}
	pci_set_master(device);
	error = region_vectors(r);
	if (error)
		goto forget;
	pci_set_drvdata(device, r);
	error = misc_register(&r->misc);
	if (error)
		goto silence;
	return 0;

silence:
	region_silence(r);
forget:
	region_unmap(r);
unmap:
	pci_iounmap(device, r->registers);
put:
	kref_put(&r->refs, region_free);
release:
	pci_release_regions(device);
disable:
	pci_disable_device(device);
	return error;
}

static void isthmus_remove(struct pci_dev *device)
{
	struct region *r = pci_get_drvdata(device);

	/* Nobody opens it any more. */
	misc_deregister(&r->misc);
	down_write(&r->lock);
	WRITE_ONCE(r->is_gone, true);
	up_write(&r->lock);
	/* From here on a fault gives no memory of the device, and no register is written. */
	unmap_mapping_range(r->inode->i_mapping, 0, 0, 1);
	region_silence(r);
	region_end(r);
	/* What processes granted moves back to them. */
	if (r->pool.count)
		pool_drain(r);
	if (r->has_pages)
		region_wait(r, 0);
	if (r->memory)
		region_unmap(r);
	pci_iounmap(device, r->registers);
	pci_clear_master(device);
	pci_release_regions(device);
	pci_disable_device(device);
	kref_put(&r->refs, region_free);
}

static int isthmus_suspend(struct device *device)
{
	struct region *r = dev_get_drvdata(device);

	/* The memory would be there again, and others would have gone on with it meanwhile. */
	return atomic_read(&r->mappings) || READ_ONCE(r->pool.used) ? -EBUSY : 0;
}

static int isthmus_resume(struct device *device)
{
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(isthmus_power, isthmus_suspend, isthmus_resume);

/* Bound by driver_override alone: others use the same device for their own. */
static const struct pci_device_id isthmus_devices[] = {
	{ PCI_DEVICE(VENDOR, DEVICE), .override_only = 1 },
	{}
};

static struct pci_driver isthmus_driver = {
	.name = KBUILD_MODNAME,
	.id_table = isthmus_devices,
	.probe = isthmus_probe,
	.remove = isthmus_remove,
	.driver.pm = pm_sleep_ptr(&isthmus_power),
};

static int __init isthmus_init(void)
{
	int error;

	inodes = kern_mount(&inodes_type);
	if (IS_ERR(inodes))
		return PTR_ERR(inodes);
	error = pci_register_driver(&isthmus_driver);
	if (error)
		kern_unmount(inodes);
	return error;
}
module_init(isthmus_init);

static void __exit isthmus_exit(void)
{
	pci_unregister_driver(&isthmus_driver);
	kern_unmount(inodes);
	ida_destroy(&numbers);
}
module_exit(isthmus_exit);

MODULE_DESCRIPTION("Memory shared by virtual machines (isthmus)");
MODULE_AUTHOR("The isthmus authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("1");
