/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Whether a libfabric lists the provider, with the environment as it is, and at which API versions.
 *
 * usage: loading LIBFABRIC yes|no
 */
#include "harness.h"

int main(int argc, char **argv)
{
	if (argc < 3)
		FAIL("usage: loading LIBFABRIC yes|no");
	load(argv[1]);
	/* A provider that says less than its caller's version is passed over: MPICH asks for 2.5. */
	uint32_t apis[] = {0, FI_VERSION(1, 5), FI_VERSION(1, 15), lf.version()};
	for (int i = 0; i < 4; i++) {
		struct fi_info *info = NULL;
		int found = 0;
		if (lf.getinfo(apis[i], NULL, NULL, 0, NULL, &info) == 0)
			for (struct fi_info *f = info; f; f = f->next)
				found += !strcmp(f->fabric_attr->prov_name, "isthmus");
		if (info)
			lf.freeinfo(info);
		if (found != !strcmp(argv[2], "yes"))
			FAIL("listed %d times at API %u.%u, and it should %s", found, FI_MAJOR(apis[i]), FI_MINOR(apis[i]), argv[2]);
	}
	return 0;
}
