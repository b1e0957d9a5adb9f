/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A provider that has our name and offers nothing: compiled with -DITS_VERSION=N, of which the higher one stays.
 */
#include <errno.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

static int nothing(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		   struct fi_info **info)
{
	(void)version, (void)node, (void)service, (void)flags, (void)hints, (void)info;
	return -FI_ENODATA;
}

static int no_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	(void)attr, (void)fabric, (void)context;
	return -FI_ENODATA;
}

static struct fi_provider namesake = {
	.version = ITS_VERSION,
	.fi_version = FI_VERSION(2, 99),
	.name = "isthmus",
	.getinfo = nothing,
	.fabric = no_fabric,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	return &namesake;
}
