# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the tests of VMs share: one `isthmus run` at a time, looked at from outside, and what it must not leave behind."""
import atexit
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

MARK = f"ISTHMUS_TEST_MARK={uuid.uuid4()}"
# Seconds that the end of a job may take once its cause is there: 3 of them are the launcher's, for an end in good order.
PROMPT = 8.0
# Run directories and sockets of this test alone lie here; short, as sockets' paths are.
OWN = pathlib.Path(tempfile.mkdtemp(prefix="vms-", dir="/tmp"))
# Names of all run directories that were seen; each has a twin in /dev/shm.
NAMES = set()
# A test that is stopped for its time ends what it has started, as after a failure.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def stat(pid):
    """Name, state and parent of a process; None if it is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
    return name, rest[0], int(rest[1])


def descendants(root):
    """(pid, name) of all processes below `root`, parents first."""
    everyone = {int(p.name): stat(p.name) for p in pathlib.Path("/proc").glob("[0-9]*")}
    found, todo = [], [root]
    while todo:
        parent = todo.pop(0)
        for pid, known in everyone.items():
            if known and known[2] == parent:
                found.append((pid, known[0]))
                todo.append(pid)
    return found


def marked():
    """Processes that this test brought into being, zombies apart."""
    left = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                known = stat(path.name)
                if known and known[1] != "Z":
                    left.append((int(path.name), known[0]))
        except OSError:
            pass
    return left


def files():
    """Run directories and their twins."""
    NAMES.update(f.name for f in OWN.glob("isthmus-*"))
    return {f"{place}/{name}" for place in (OWN, "/dev/shm") for name in NAMES if os.path.lexists(f"{place}/{name}")}


def environment(**more):
    env = {name: value for name, value in os.environ.items() if name != "ISTHMUS_SOCKET"}
    env.update(more, XDG_RUNTIME_DIR=str(OWN))
    env.update([MARK.split("=")])
    return env


def end_all():
    """After a failure: what the test itself has started, and no other process. A run's own processes end and remove what it
    has made, so they are asked first."""
    for limit, number in ((PROMPT, signal.SIGTERM), (PROMPT, signal.SIGKILL)):
        processes = marked()
        for pid, _ in processes:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        until = time.monotonic() + limit
        while processes and marked() and time.monotonic() < until:
            time.sleep(0.05)


@atexit.register
def clear():
    """Removes what a run that was killed has left in /dev/shm, and this test's own place."""
    for name in files():
        shutil.rmtree(name, ignore_errors=True)
    shutil.rmtree(OWN, ignore_errors=True)


class Run:
    """One `isthmus run`. Its two streams are kept apart, and in memory unless `output` names a file."""

    def __init__(self, isthmus, *words, ready=None, limit=300, output=None, env=None):
        self.before = files()
        self.out, self.err = [], []
        self.seen = {}
        self.begun = time.monotonic()
        self.process = subprocess.Popen([isthmus, "run", *map(str, words)], env=environment(**(env or {})),
                                        stdin=subprocess.DEVNULL, stdout=output or subprocess.PIPE, stderr=subprocess.PIPE)
        streams = [(self.process.stderr, self.err)] + ([] if output else [(self.process.stdout, self.out)])
        self.readers = [threading.Thread(target=self.read, args=stream, daemon=True) for stream in streams]
        for reader in self.readers:
            reader.start()
        if ready:
            self.wait_for(ready, limit)

    def read(self, stream, to):
        for line in stream:
            line = line.decode(errors="replace")
            to.append(line)
            self.seen.setdefault(line.strip(), time.monotonic())

    def text(self):
        return "".join(self.err + self.out)[-6000:]

    def wait_until(self, true, limit, what):
        end = time.monotonic() + limit
        while not (got := true()):
            assert self.process.poll() is None, f"the run ended with {self.process.returncode} before {what}:\n{self.text()}"
            assert time.monotonic() < end, f"{what}: not within {limit} s:\n{self.text()}"
            time.sleep(0.02)
        return got

    def wait_for(self, line, limit=300):
        self.wait_until(lambda: line in self.seen, limit, f"the line '{line}'")

    def qemus(self):
        """QEMU's processes by the VM's name, which is the word after -name."""
        found = {}
        for pid, name in descendants(self.process.pid):
            if name.startswith("qemu"):
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"-name" in words:
                    found[words[words.index(b"-name") + 1].split(b",")[0].decode()] = pid
        return found

    def folder(self):
        """The run's directory."""
        return self.wait_until(lambda: [name for name in files() - self.before if name.startswith(str(OWN))], 20,
                               "the run's directory")[0]

    def monitor(self, vm):
        return Monitor(f"{self.folder()}/{vm}/qmp")

    def end(self, status, says=(), within=PROMPT, since=None):
        """The job ends within so many seconds with this status, and its errors say all of `says`."""
        since = since or time.monotonic()
        try:
            got = self.process.wait(max(0.1, since + within - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within} s: {descendants(self.process.pid)}; "
                                 f"output:\n{self.text()}") from None
        took = time.monotonic() - since
        for reader in self.readers:
            reader.join(5)
        assert got == status, f"status {got}, not {status}; output:\n{self.text()}"
        for word in says:
            assert word in "".join(self.err), f"'{word}' is not in the errors:\n{self.text()}"
        self.nothing_left()
        return took

    def nothing_left(self):
        since = time.monotonic()
        mine = {pid for pid, _ in getattr(self, "others", [])}

        def left():
            return [p for p in marked() if p[0] not in mine], files() - self.before
        while any(left()) and time.monotonic() < since + PROMPT:
            time.sleep(0.05)
        processes, names = left()
        assert not processes, f"processes are left: {processes}"
        assert not names, f"files are left: {names}"


class Monitor:
    """QEMU's monitor."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        # By a relative path, as that of a socket is short.
        self.socket.connect(str(path))
        self.answers = self.socket.makefile()
        self.events = []
        assert "QMP" in json.loads(self.answers.readline())
        self.ask("qmp_capabilities")

    def next(self):
        line = self.answers.readline()
        assert line, "QEMU has closed its monitor"
        answer = json.loads(line)
        if "event" in answer:
            self.events.append((answer["event"], answer.get("data", {})))
        return answer

    def ask(self, command, **arguments):
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while "return" not in (answer := self.next()):
            assert "error" not in answer, f"{command} {arguments}: {answer['error']['desc']}"
        return answer["return"]

    def wait_for(self, event, **data):
        while not any(name == event and data.items() <= about.items() for name, about in self.events):
            self.next()


def stats(path):
    """The counters that --stats has written; the file goes."""
    path = pathlib.Path(path)
    told = json.loads(path.read_text())
    path.unlink()
    return told
