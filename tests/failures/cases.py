# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the scripts in this directory have in common: cases that are run one after the other, commands with a limit of time,
small file systems, and the look for what was left behind."""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

MARK = f"ISTHMUS_TEST_MARK={uuid.uuid4()}"
INSIDE = "ISTHMUS_TEST_INSIDE"


class Skipped(Exception):
    """Something that this machine or user cannot do."""


class Ended:
    """A command that has ended."""

    def __init__(self, line, status, text, seconds):
        self.line, self.status, self.text, self.seconds = line, status, text, seconds

    def expect(self, status, *words):
        """With `status` (None: any but 0), having said all `words`."""
        right = self.status != 0 if status is None else self.status == status
        assert right, f"{self.line}: status {self.status} and not {status}:\n{self.text}"
        for word in words:
            assert word in self.text, f"{self.line}: '{word}' is not in its words:\n{self.text}"
        return self


def environment(**changes):
    """Ours with `changes`, of which None takes a variable away, and a mark by which processes are found."""
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    env.update([MARK.split("=")])
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env


def run(*line, limit=60, env=None, cwd=None, before=None, **more):
    """Runs a command to its end; one that takes longer than `limit` is a failure."""
    line = [str(word) for word in line]
    begin = time.monotonic()
    process = subprocess.Popen(line, env=env or environment(), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=before, **more)
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        end_marked()
        raise AssertionError(f"{' '.join(line)}: still running after {limit} s:\n{process.communicate()[0]}") from None
    return Ended(" ".join(line), process.returncode, text, time.monotonic() - begin)


def marked():
    """Processes that this test brought into being, zombies apart: number and name."""
    left = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    left.append((int(path.name), (path / "comm").read_text().strip()))
        except OSError:
            pass
    return left


def end_marked():
    for pid, _ in marked():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def nobody_left(limit=8):
    until = time.monotonic() + limit
    while marked() and time.monotonic() < until:
        time.sleep(0.05)
    assert not marked(), f"processes are left: {marked()}"


def is_root():
    """Root of the machine, and not of a user name space alone."""
    return os.geteuid() == 0 and pathlib.Path("/proc/self/uid_map").read_text().split()[2] == "4294967295"


def in_mount_name_space():
    """Starts this script again where mounts are its own, as root of a user name space if it is not root's already; False
    where that is not allowed."""
    if INSIDE in os.environ:
        return True
    how = ["unshare", "--mount", "--propagation", "private"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if subprocess.run([*how, "mount", "-t", "tmpfs", "none", "/mnt"], stderr=subprocess.DEVNULL, check=False).returncode:
        return False
    os.environ[INSIDE] = "yes"
    os.execvp(how[0], [*how, sys.executable, *sys.argv])


class Small:
    """A file system of that size, at `place`, for a while."""

    def __init__(self, place, size, options=""):
        self.place, self.size, self.options = pathlib.Path(place), size, options

    def __enter__(self):
        self.place.mkdir(exist_ok=True)
        here = pathlib.Path.cwd()
        below = self.place.resolve() in here.parents
        checkout = os.open(here, os.O_PATH) if below else None
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}{self.options}", "none", self.place], check=True)
        if below:
            # A checkout below it, as of /tmp, stays in its place.
            here.mkdir(parents=True)
            subprocess.run(["mount", "--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{checkout}", here], check=True)
            os.close(checkout)
            os.chdir(here)
        return self.place

    def foreign(self):
        """What is there beside the checkout."""
        return [name for name in os.listdir(self.place) if self.place / name not in pathlib.Path.cwd().parents]

    def grow(self, size):
        subprocess.run(["mount", "-o", f"remount,size={size}", self.place], check=True)

    def __exit__(self, *_):
        here = os.getcwd()
        subprocess.run(["umount", "-l", self.place], check=True)
        os.chdir(here)


def fill(place):
    """Leaves no room there."""
    with open(pathlib.Path(place) / "filling", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


PROGRAM = """
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words)
{
	int rank;
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Barrier(MPI_COMM_WORLD);
	printf("rank %d\\n", rank);
	return MPI_Finalize();
}
"""


def compiled(mpi, work, source=PROGRAM, name="rank"):
    """A program of that MPI, in the directory `work`."""
    program = pathlib.Path(work) / f"{name}-{pathlib.Path(mpi).name}"
    if not program.exists():
        text = program.with_suffix(".c")
        text.write_text(source)
        subprocess.run([f"{mpi}/bin/mpicc", "-O2", "-Wall", "-o", program, text], check=True)
    return program


def main(text, cases, prepare=lambda parser: None):
    """Runs the cases, or those that are named; each is called with the parsed words, of which `work` is a directory of its
    own. Its end is the program's."""
    p = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("isthmus")
    prepare(p)
    p.add_argument("--case", action="append", default=[], help="this one alone; may be given again")
    a = p.parse_intermixed_args()
    a.isthmus = os.path.abspath(a.isthmus)
    chosen = [case for case in cases if not a.case or case.__name__ in a.case]
    if not chosen:
        sys.exit(f"no such case; there are: {', '.join(case.__name__ for case in cases)}")
    failures, skipped = [], 0
    # In the working directory, which guests see as it is, and which no case fills.
    a.work = pathlib.Path(tempfile.mkdtemp(dir=".", prefix=".failures-")).resolve()
    try:
        for case in chosen:
            print(case.__name__, flush=True)
            begin = time.monotonic()
            try:
                case(a)
                nobody_left()
                print(f"    as it should be, {time.monotonic() - begin:.1f} s", flush=True)
            except Skipped as reason:
                skipped += 1
                print(f"skipped: {case.__name__}: {reason}", flush=True)
            except AssertionError as error:
                failures.append(f"{case.__name__}: {error}")
                print(f"    FAILED: {error}", flush=True)
                end_marked()
    finally:
        end_marked()
        shutil.rmtree(a.work, ignore_errors=True)
    # Again, where the end of a log is all that is seen.
    for failure in failures:
        print(f"FAILED: {failure[:1000]}")
    print(f"{len(chosen) - len(failures) - skipped} of {len(chosen)} as they should be, {skipped} skipped")
    sys.exit(1 if failures else 0)
