# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two ranks that exchange long messages whose pages may be granted: the same buffers, new ones at the same addresses, parts of them,
both ways at once, and with forks in between. Each message's contents are its own, and are looked at. tests/vms/grants starts it."""
import os
import sys
import zlib

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, other = comm.rank, 1 - comm.rank


def fill(buffer, seed):
    """Every page differs from the others, and from what it was before."""
    view = memoryview(buffer)
    for at in range(0, len(buffer), 1024):
        part = view[at:at + 1024]
        part[:] = (b"%08x%08x" % (seed, at) * 64)[:len(part)]


def exchange(out, into, seed, both):
    fill(out, seed * 2 + rank)
    sums = comm.sendrecv(zlib.crc32(out), dest=other, source=other)
    if both:
        comm.Sendrecv(out, dest=other, recvbuf=into, source=other)
    elif seed % 2 == rank:
        comm.Send(out, dest=other)
        return
    else:
        comm.Recv(into, source=other)
    assert zlib.crc32(into) == sums, f"rank {rank}, message {seed} of {len(out)} bytes: wrong bytes"


seed = 0
for length in (65536, 300000, 1 << 20, (1 << 20) + 4097):
    into = bytearray(length)
    # The same buffer.
    out = bytearray(length)
    for _ in range(12):
        exchange(out, into, seed, seed % 3 == 0)
        seed += 1
    # Another one, which is at the same address as likely as not.
    for _ in range(8):
        del out
        out = bytearray(length)
        for _ in range(3):
            exchange(out, into, seed, True)
            seed += 1
    # A forked child has the same pages, and writes to them; so does its parent.
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            fill(out, 0xdead)
            os._exit(0)
        for _ in range(3):
            exchange(out, into, seed, True)
            seed += 1
        os.waitpid(pid, 0)
    # Parts of it, from everywhere.
    for at in range(0, length - 65536, max((length - 65536) // 7, 1)):
        exchange(memoryview(out)[at:], memoryview(into)[at:], seed, True)
        seed += 1
# More than may be granted, in turn, twice.
buffers = [bytearray(1 << 20) for _ in range(24)]
into = bytearray(1 << 20)
for _ in range(2):
    for buffer in buffers:
        exchange(buffer, into, seed, True)
        seed += 1
comm.Barrier()
if rank == 0:
    print(f"{seed} messages, all as they were sent")
sys.stdout.flush()
if os.environ.get("HOLD"):
    # While somebody looks at what is granted.
    if rank == 0:
        sys.stdin.readline()  # Open MPI 5 does not pass on the end of its input
    comm.Barrier()
