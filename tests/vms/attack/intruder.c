// SPDX-License-Identifier: GPL-2.0
// What the kernel of a VM of an isolated region can do to write where it must not: mappings of its own, and DMA of another device, that
// with which the file system comes from the host. It does not stay: loading it fails with EAGAIN once it has done all that.
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/module.h>

static unsigned long long at, bytes, from;
static char *file;

module_param(at, ullong, 0);	/* where a device's memory begins */
module_param(bytes, ullong, 0); /* how much it has */
module_param(from, ullong, 0);	/* from where on it is written */
module_param(file, charp, 0);	/* of 9p, uncached, with a page of words */

static void by_ioremap(void)
{
	void __iomem *memory = ioremap(at, bytes);
	u64 i;

	if (!memory) {
		pr_info("attack: ioremap: refused\n");
		return;
	}
	for (i = from; i < bytes; i += PAGE_SIZE)
		memcpy_toio(memory + i + 80, "ATTACK-ioremap  ", 16);
	iounmap(memory);
	pr_info("attack: ioremap: written\n");
}

static void by_memremap(void)
{
	char *memory = memremap(at, bytes, MEMREMAP_WB);
	u64 i;

	if (!memory) {
		pr_info("attack: memremap: refused\n");
		return;
	}
	for (i = from; i < bytes; i += PAGE_SIZE)
		memcpy(memory + i + 96, "ATTACK-memremap ", 16);
	memunmap(memory);
	pr_info("attack: memremap: written\n");
}

/* One page, whole. It has an address in the kernel's own mapping, so that the file system lets the host write there itself. */
static void by_dma(void)
{
	struct dev_pagemap pages = {
		.type = MEMORY_DEVICE_GENERIC,
		.range = {.start = at, .end = at + bytes - 1},
		.nr_range = 1,
	};
	char *memory = memremap_pages(&pages, NUMA_NO_NODE);
	struct file *in;
	loff_t position = 0;
	ssize_t got;

	if (IS_ERR(memory)) {
		pr_info("attack: dma: refused: %ld\n", PTR_ERR(memory));
		return;
	}
	in = filp_open(file, O_RDONLY, 0);
	if (IS_ERR(in)) {
		pr_info("attack: dma: no file: %ld\n", PTR_ERR(in));
	} else {
		got = kernel_read(in, memory + from, PAGE_SIZE, &position);
		pr_info("attack: dma: read %zd\n", got);
		filp_close(in, NULL);
	}
	memunmap_pages(&pages);
}

static int __init attack_init(void)
{
	by_ioremap();
	by_memremap();
	by_dma();
	return -EAGAIN;
}
module_init(attack_init);

MODULE_DESCRIPTION("Writes where a virtual machine must not (a test)");
MODULE_LICENSE("GPL");
