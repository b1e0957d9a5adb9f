# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One rank's part of a run of mpi4py's own test-suite: runs its modules in order and reports each test as it happens.

    worker.py SUITE REPORT SKIP MODULE...

SUITE is the `test` directory of mpi4py's source archive. Each rank appends to REPORT/rank-N one line per event
(`load MODULE`, `loaded MODULE`, `start ID`, `ok ID`, `skip ID`, `fail ID`, `error ID`, `mapped FILE`, then `done`), unbuffered, so that a run that hangs or crashes
says in which test. Tests and modules named in the file SKIP are left out, on every rank alike: most tests are collective.

One fault of mpi4py's own is mended before the tests run. mpi4py.util.sync.Mutex clears its place in the queue (an
accumulate on the window of its own rank) and joins the queue without a flush between the two; MPI orders nothing there.
Where an MPI applies what a rank does to itself later than what another rank sends (MPICH, over any libfabric provider),
the next rank's entry is wiped out and both wait for ever: 14 of 25 runs of 1,000 new mutexes each, none of 40 with the
flush. It says so in the log when a later mpi4py no longer has that text.
"""
import inspect
import os
import re
import sys
import tempfile
import unittest

suite_dir, report_dir, skip_file, *modules = sys.argv[1:]
sys.dont_write_bytecode = True
sys.path.insert(0, suite_dir)
# Rank 0 names the file that all of them open, so it has to be in a directory that is one for ranks in several VMs, too.
tempfile.tempdir = report_dir
for optional in ("cupy", "numba"):  # as the suite's own main.py has it
    sys.modules[optional] = None

from mpi4py import MPI  # noqa: E402  (after the path is set)

rank = MPI.COMM_WORLD.Get_rank()
report = open(os.path.join(report_dir, f"rank-{rank}"), "a", buffering=1)
details = open(os.path.join(report_dir, f"rank-{rank}.details"), "a", buffering=1)
with open(skip_file) as lines:
    skipped = {line.strip() for line in lines}


def mend_mutex():
    """Puts the missing flush into Mutex._acquire; the module's other code stays as it is."""
    from mpi4py.util import sync

    clear = "window.Accumulate(null, self_rank, next_id, MPI.REPLACE)"
    text = inspect.getsource(sync.Mutex._acquire)
    lines = text.splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.strip() == clear]
    if len(at) != 1:
        print("worker: mpi4py.util.sync.Mutex._acquire is not what the mend knows; left as it is", file=sys.stderr)
        return
    indent = lines[at[0]][: -len(lines[at[0]].lstrip())]
    lines.insert(at[0] + 1, f"{indent}window.Flush(self_rank)\n")
    namespace = {}
    exec(compile("class Mended:\n" + "".join(lines), sync.__file__, "exec"), vars(sync), namespace)  # noqa: S102
    sync.Mutex._acquire = namespace["Mended"].__dict__["_acquire"]


mend_mutex()


class Reporter(unittest.TestResult):
    """Writes events down. A failing subtest fails its test; the worst event of a test counts."""

    def _failed(self, kind, test, err):
        report.write(f"{kind} {test.id()}\n")
        details.write(f"{kind} {test.id()}\n{self._exc_info_to_string(err, test)}\n")

    def startTest(self, test):
        super().startTest(test)
        report.write(f"start {test.id()}\n")

    def addSuccess(self, test):
        report.write(f"ok {test.id()}\n")

    def addSkip(self, test, reason):
        report.write(f"skip {test.id()}\n")

    def addExpectedFailure(self, test, err):
        report.write(f"ok {test.id()}\n")

    def addUnexpectedSuccess(self, test):
        report.write(f"fail {test.id()}\n")

    def addFailure(self, test, err):
        self._failed("fail", test, err)

    def addError(self, test, err):
        self._failed("error", test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._failed("fail" if issubclass(err[0], test.failureException) else "error", test, err)


def without_skipped(suite):
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(without_skipped(test))
        elif test.id() not in skipped:
            kept.addTest(test)
    return kept


if rank == 0:
    vendor = "%s %s" % (MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])))
    report.write(f"mpi {vendor}, {MPI.COMM_WORLD.Get_size()} ranks\n")
for module in modules:
    if module in skipped:
        continue
    # Some call MPI as they are loaded.
    report.write(f"load {module}\n")
    tests = without_skipped(unittest.defaultTestLoader.loadTestsFromName(module))
    report.write(f"loaded {module}\n")
    tests.run(Reporter())
    # A shared end of each module: a rank that ran ahead would mix two modules' messages in what follows.
    MPI.COMM_WORLD.Barrier()

# Shared memory by which an MPI passes messages beside libfabric: MPICH's segments, Open MPI's sm and vader.
# Intel MPI maps its own in any case; there the counters alone tell.
with open("/proc/self/maps") as maps:
    mapped = {os.path.basename(line.split()[5]) for line in maps if len(line.split()) > 5 and "/dev/shm/" in line}
for name in sorted(mapped):
    if re.match(r"mpich_shm|vader_segment|sm_segment", name):
        report.write(f"mapped {name}\n")
report.write("done\n")
