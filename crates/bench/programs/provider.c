/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The libfabric provider of isthmus, where the MPI has loaded it: see crates/provider/src/probe.rs. */
#define _GNU_SOURCE
#include "bench.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

static int is_provider(struct dl_phdr_info *file, size_t size, void *found)
{
    const char *slash = strrchr(file->dlpi_name, '/'), *name = slash ? slash + 1 : file->dlpi_name;

    (void)size;
    if (strcmp(name, "libisthmus-fi.so") != 0 && strcmp(name, "libisthmus_fi.so") != 0)
        return 0;
    *(const char **)found = file->dlpi_name;
    return 1;
}

void *provider_function(const char *name)
{
    const char *file = NULL;
    void *provider;

    /* libfabric keeps what it loads to itself, so the name alone is not found in the program's own scope. */
    if (!dl_iterate_phdr(is_provider, &file))
        return NULL;
    provider = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    return provider ? dlsym(provider, name) : NULL;
}
