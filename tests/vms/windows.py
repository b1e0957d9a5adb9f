# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two ranks with windows of their own memory, of which pages may be granted: puts, gets and atomics of all lengths at all places, while
their owner reads and writes beside them; windows that come and go at the same addresses; forks while windows are open; and a target that
sleeps. All that a window has is compared with what it should have. tests/vms/grants starts it."""
import os
import random
import struct
import sys
import time
import zlib

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, other = comm.rank, 1 - comm.rank
rng = random.Random(rank + 5)
operations = 0


def of_owner(size):
    """Where the part of a window begins that its owner writes; the other rank writes what is before."""
    return size // 2


def compare(win, memory, model, what):
    """What this rank has put into the other's window, and what the other has written there itself."""
    size = len(memory)
    half = of_owner(size)
    comm.Barrier()
    theirs, own = comm.sendrecv((zlib.crc32(model), zlib.crc32(memory[half:])), dest=other, source=other)
    assert zlib.crc32(memory[:half]) == theirs, f"{what}: rank {rank} has other bytes than were put"
    seen = bytearray(size)
    win.Lock(other, MPI.LOCK_SHARED)
    win.Get(seen, other)
    win.Unlock(other)
    assert seen[:half] == model and zlib.crc32(memoryview(seen)[half:]) == own, f"{what}: rank {rank} got other bytes"
    comm.Barrier()


def epoch(win, memory, model, rounds):
    global operations
    size = len(memory)
    half = of_owner(size)
    comm.Barrier()
    win.Lock(other, MPI.LOCK_SHARED)
    for _ in range(rounds):
        length = min(rng.choice((1, 8, 100, 4096, 5000, 65536, 200000, size)), half)
        at = rng.randrange(half - length + 1)
        bytes_ = rng.randbytes(length)
        win.Put(bytes_, other, (at, length))
        win.Flush(other)
        model[at:at + length] = bytes_
        if rng.random() < 0.5:
            at = rng.randrange(half - length + 1)
            seen = bytearray(length)
            win.Get(seen, other, (at, length))
            win.Flush(other)
            assert seen == model[at:at + length], f"rank {rank}: {length} bytes at {at} are others than were put"
        at = half + rng.randrange(size - half - 100)
        memory[at:at + 100] = rng.randbytes(100)
        operations += 2
    win.Unlock(other)


def windows(size):
    """Some at new addresses, more at those of former ones."""
    for number in range(3):
        memory = memoryview(bytearray(size))
        model = bytearray(of_owner(size))
        win = MPI.Win.Create(memory, 1, comm=comm)
        # Another one of the same memory, which ends before it.
        second = MPI.Win.Create(memory, 1, comm=comm)
        epoch(second, memory, model, 25)
        compare(second, memory, model, f"the second of window {number} of {size} bytes")
        second.Free()
        for again in range(3):
            epoch(win, memory, model, 25)
            compare(win, memory, model, f"window {number} of {size} bytes, {again}")
            if again == 1:
                # The child has copies, and writes to them; so does its parent, and the other rank.
                pid = os.fork()
                if pid == 0:
                    memory[:] = bytes(size)
                    os._exit(0)
                epoch(win, memory, model, 25)
                os.waitpid(pid, 0)
                compare(win, memory, model, f"window {number} of {size} bytes, with a child")
        win.Free()
        assert memory[:of_owner(size)] is not None
        memory.release()


def counting():
    """Both add to the same words."""
    win = MPI.Win.Allocate(1 << 18, 8, comm=comm)
    words = memoryview(win).cast("Q")
    win.Lock(rank)
    for at in range(len(words)):
        words[at] = 0
    win.Unlock(rank)
    comm.Barrier()
    rounds, places = 200, (600, 1111, 20000)
    one, before = struct.pack("Q", 1), bytearray(8)
    win.Lock_all()
    for i in range(rounds):
        for target in (rank, other):
            win.Fetch_and_op([one, MPI.UINT64_T], [before, MPI.UINT64_T], target, places[i % 3], MPI.SUM)
            win.Flush(target)
    win.Unlock_all()
    comm.Barrier()
    win.Lock(rank)
    assert sum(words[place] for place in places) == 2 * rounds, [words[place] for place in places]
    win.Unlock(rank)
    win.Free()


def asleep():
    """A target that does nothing at all. Gives how long puts to it took, in seconds, and how many there were."""
    size, count = 1 << 20, 200
    win = MPI.Win.Allocate(size, 1, comm=comm)
    taken = 0
    win.Lock_all()
    comm.Barrier()
    if rank == 0:
        for _ in range(10):
            win.Put(b"12345678", other, (8192, 8))
            win.Flush(other)
        comm.send(None, dest=other)
        comm.recv(source=other)
        begun = time.monotonic()
        for i in range(count):
            win.Put(struct.pack("Q", i), other, (8192, 8))
            win.Flush(other)
        taken = time.monotonic() - begun
    else:
        comm.recv(source=other)
        comm.send(None, dest=other)
        time.sleep(2)
    comm.Barrier()
    win.Unlock_all()
    if rank == 1:
        win.Lock(rank)
        assert bytes(memoryview(win)[8192:8200]) == struct.pack("Q", count - 1)
        win.Unlock(rank)
    win.Free()
    return taken, count


for size in (20000, 300000, 12 << 20):
    windows(size)
for _ in range(3):
    counting()
taken, count = asleep()
operations = comm.allreduce(operations)
if rank == 0:
    print(f"{operations} operations, all as they should be; {count} puts took {taken:.3f} s of a target's sleep")
sys.stdout.flush()
