# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Huge pages of 2 MiB for tests: how many the machine has, more of them for a while, and who has mapped some."""
import contextlib
import os
import pathlib
import time

FOLDER = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
BYTES = 2 << 20


def number(name):
    return int((FOLDER / name).read_text())


def available():
    """Pages that can be had; 0 where there are none of this size."""
    try:
        more = max(0, number("nr_overcommit_hugepages") - number("surplus_hugepages"))
        return number("free_hugepages") - number("resv_hugepages") + more
    except OSError:
        return 0


def too_many():
    """Bytes, a power of two, for which there are not enough pages."""
    size = BYTES
    while size <= available() * BYTES + (1 << 30):
        size *= 2
    return size


def could_reserve(count):
    """Whether the machine looks as if `count` pages more could be reserved: who says that they cannot has to explain it."""
    try:
        fields = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
        room = int(fields["MemFree"].split()[0]) * 1024
        return os.access(FOLDER / "nr_hugepages", os.W_OK) and room > 16 * count * BYTES
    except (OSError, KeyError):
        return False


@contextlib.contextmanager
def pool(count):
    """`count` pages more than there were. The reason comes as a RuntimeError where the machine does not allow it."""
    try:
        before, free = number("nr_hugepages"), number("free_hugepages")
        (FOLDER / "nr_hugepages").write_text(str(before + count))
        if number("free_hugepages") < free + count:
            # Once more, when what is in the way was moved.
            with contextlib.suppress(OSError):
                pathlib.Path("/proc/sys/vm/compact_memory").write_text("1")
            (FOLDER / "nr_hugepages").write_text(str(before + count))
    except OSError as error:
        raise RuntimeError(f"no huge pages can be reserved here ({error})") from None
    try:
        if number("free_hugepages") < free + count:
            raise RuntimeError(f"memory is too fragmented for {count} huge pages")
        yield
    finally:
        (FOLDER / "nr_hugepages").write_text(str(before))


def given_back(free, limit=5.0):
    """Waits until `free` pages are free."""
    end = time.monotonic() + limit
    while number("free_hugepages") != free and time.monotonic() < end:
        time.sleep(0.02)
    return number("free_hugepages")


def mapped(pid):
    """Bytes of a region that a process has mapped in huge pages, and in others."""
    huge = other = size = 0
    region = False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            region = "memfd:isthmus-region" in line
        elif region and words[0] == "Size:":
            size = int(words[1]) * 1024
        elif region and words[0] == "KernelPageSize:":
            if words[1] == "2048":
                huge += size
            else:
                other += size
    return huge, other
