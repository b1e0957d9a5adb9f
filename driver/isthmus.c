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

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/nospec.h>
#include <linux/overflow.h>
#include <linux/pci.h>
#include <linux/pfn_t.h>
#include <linux/poll.h>
#include <linux/pseudo_fs.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/xarray.h>

#include "isthmus.h"

/* The device. */
#define VENDOR 0x1af4
#define DEVICE 0x1110
#define REGISTERS 0
#define MEMORY 2
#define DOORBELL 0x0c

/* What a region begins with: "ISTHMUS1". */
#define MAGIC 0x3153554d48545349ull

#define MOST_VECTORS 8
/* A vector that interrupts this often within a window is off for a pause. */
#define STORM 1000
#define STORM_WINDOW_NS (10 * NSEC_PER_MSEC)
#define STORM_PAUSE_NS (1 * NSEC_PER_MSEC)

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
	struct dev_pagemap pagemap;
	/* Whose address space all mappings are of. */
	struct inode *inode;
	atomic_t mappings;
	u32 ids[ISTHMUS_MEMBERS];
	unsigned int vector_count;
	struct vector vectors[MOST_VECTORS];
};

/* An open descriptor. */
struct client {
	struct region *region;
	/* Held while it is granted; what is granted never changes. */
	struct mutex lock;
	bool is_granted;
	bool may_ring;
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
static struct vfsmount *inodes;

static void region_free(struct kref *refs)
{
	struct region *r = container_of(refs, struct region, refs);

	iput(r->inode);
	ida_free(&numbers, r->number);
	kfree(r);
}

/* ---- Interrupts ---- */

static void vector_ring(struct vector *v)
{
	atomic64_inc(&v->rings);
	wake_up_interruptible_poll(&v->sleepers, EPOLLIN | EPOLLRDNORM);
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
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		goto free;
	/* Each has an inode of its own, by which a program tells it from its other descriptors. */
	inode = alloc_anon_inode(inodes->mnt_sb);
	file = ERR_CAST(inode);
	if (!IS_ERR(inode)) {
		file = alloc_file_pseudo(inode, inodes, "isthmus-bell", O_RDONLY | O_NONBLOCK, &bell_operations);
		if (IS_ERR(file))
			iput(inode);
	}
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		fd = PTR_ERR(file);
		goto free;
	}
	/* The end of the file gives both back. */
	__module_get(THIS_MODULE);
	kref_get(&r->refs);
	file->private_data = b;
	fd_install(fd, file);
	return fd;

free:
	kfree(b);
	return fd;
}

/* ---- Mappings ---- */

/* The flags that all bytes of a range have; 0 if one of them is not granted. */
static u32 client_flags(struct client *c, u64 offset, u64 bytes)
{
	u64 end, at = offset;
	u32 flags = ~0u;

	/* Pairs with client_grant. */
	if (!smp_load_acquire(&c->is_granted) || check_add_overflow(offset, bytes, &end))
		return 0;
	while (at < end) {
		const struct isthmus_range *range = NULL;
		unsigned int i;

		for (i = 0; i < c->count && !range; i++) {
			const struct isthmus_range *r = &c->ranges[i];

			/* Ends do not overflow: client_grant saw to that. */
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
					  phys_to_pfn_t(r->start + offset, r->has_pages ? PFN_DEV | PFN_MAP : PFN_DEV));
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
	    r->bytes - offset >= PMD_SIZE)
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

/* ---- Descriptors ---- */

static int client_open(struct inode *inode, struct file *file)
{
	struct region *r = container_of(file->private_data, struct region, misc);
	struct client *c = kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT);

	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	xa_init(&c->standins);
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

static long client_grant(struct client *c, const void __user *from)
{
	struct isthmus_grant grant;
	unsigned int i;
	long error = 0;
	u64 end;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (copy_from_user(&grant, from, sizeof(grant)))
		return -EFAULT;
	if (grant.count > ISTHMUS_RANGES || grant.flags & ~ISTHMUS_MAY_RING)
		return -EINVAL;
	mutex_lock(&c->lock);
	if (c->is_granted)
		error = -EBUSY;
	else if (copy_from_user(c->ranges, u64_to_user_ptr(grant.ranges), grant.count * sizeof(*c->ranges)))
		error = -EFAULT;
	for (i = 0; i < grant.count && !error; i++) {
		const struct isthmus_range *range = &c->ranges[i];

		if (!PAGE_ALIGNED(range->offset | range->bytes) || !range->bytes || range->reserved ||
		    range->flags & ~(ISTHMUS_READ | ISTHMUS_WRITE | ISTHMUS_FAULTS) ||
		    check_add_overflow(range->offset, range->bytes, &end) || end > c->region->bytes)
			error = -EINVAL;
	}
	if (!error) {
		c->count = grant.count;
		c->may_ring = grant.flags & ISTHMUS_MAY_RING;
		/* Pairs with those who look without the lock. */
		smp_store_release(&c->is_granted, true);
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

	if (!smp_load_acquire(&c->is_granted) || !c->may_ring)
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
	case ISTHMUS_GRANT:
		return client_grant(c, at);
	case ISTHMUS_MEMBER:
		return client_member(c, at);
	case ISTHMUS_BELL:
		return bell_make(c->region, argument);
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

/* Reserves the memory as write-back, so that faults map it so, with pages if there is room for them. */
static int region_memory(struct region *r)
{
	struct device *device = &r->device->dev;

	if (pages && IS_ALIGNED(r->start | r->bytes, PMD_SIZE)) {
		r->pagemap.type = MEMORY_DEVICE_GENERIC;
		r->pagemap.range.start = r->start;
		r->pagemap.range.end = r->start + r->bytes - 1;
		r->pagemap.nr_range = 1;
		r->memory = memremap_pages(&r->pagemap, dev_to_node(device));
		if (!IS_ERR(r->memory)) {
			r->has_pages = true;
			return 0;
		}
		dev_info(device, "no pages for %llu bytes of memory (error %ld), so O_DIRECT and 2 MiB mappings do not work\n",
			 r->bytes, PTR_ERR(r->memory));
	}
	r->memory = memremap(r->start, r->bytes, MEMREMAP_WB);
	return r->memory ? 0 : -ENOMEM;
}

/*
 * Waits until nobody has pages pinned: memunmap_pages does not, since Linux 5.18. With the mappings gone, none are pinned anew.
 */
static void region_wait(struct region *r)
{
	unsigned long pfn, end = PHYS_PFN(r->start + r->bytes), begun = jiffies;
	bool is_told = false;

	for (pfn = PHYS_PFN(r->start); pfn < end; pfn++) {
		while (page_ref_count(pfn_to_page(pfn)) > 1) {
			schedule_timeout_idle(HZ / 100);
			if (!is_told && time_after(jiffies, begun + 10 * HZ)) {
				dev_warn(&r->device->dev, "unplugging waits for pages of its memory that a process has pinned\n");
				is_told = true;
			}
		}
		if (!(pfn % 1024))
			cond_resched();
	}
}

static void region_unmap(struct region *r)
{
	if (r->has_pages)
		memunmap_pages(&r->pagemap);
	else
		memunmap(r->memory);
	r->memory = NULL;
}

static int region_vectors(struct region *r)
{
	unsigned int i;
	int error, count = pci_alloc_irq_vectors(r->device, 1, MOST_VECTORS, PCI_IRQ_MSIX);

	if (count < 0) {
		dev_err(&r->device->dev, "it has no interrupts: it is no ivshmem-doorbell device\n");
		return count;
	}
	for (i = 0; i < count; i++) {
		struct vector *v = &r->vectors[i];

		v->irq = pci_irq_vector(r->device, i);
		error = request_irq(v->irq, vector_interrupt, 0, r->name, v);
		if (error) {
			while (i--)
				free_irq(r->vectors[i].irq, &r->vectors[i]);
			pci_free_irq_vectors(r->device);
			return error;
		}
	}
	r->vector_count = count;
	return 0;
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
	kref_init(&r->refs);
	init_rwsem(&r->lock);
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
	error = region_memory(r);
	if (error)
		goto unmap;
	error = -ENODEV;
	if (le64_to_cpu(READ_ONCE(*(__le64 *)r->memory)) != MAGIC) {
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
	unsigned int i;

	/* Nobody opens it any more. */
	misc_deregister(&r->misc);
	down_write(&r->lock);
	WRITE_ONCE(r->is_gone, true);
	up_write(&r->lock);
	/* From here on a fault gives no memory of the device, and no register is written. */
	unmap_mapping_range(r->inode->i_mapping, 0, 0, 1);
	region_silence(r);
	WRITE_ONCE(r->is_over, true);
	for (i = 0; i < r->vector_count; i++)
		wake_up_interruptible_poll(&r->vectors[i].sleepers, EPOLLIN | EPOLLRDNORM | EPOLLHUP);
	if (r->has_pages)
		region_wait(r);
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
	return atomic_read(&r->mappings) ? -EBUSY : 0;
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
