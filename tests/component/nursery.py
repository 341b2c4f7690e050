"""Starts agents, holders and operators by a fork of a process that has imported them already.

The tests start some two hundred of them, and importing takes most of what each one costs. What runs is what
`python -m MODULE` runs, with arguments and an environment of its own, in a child of the test's process. Benchmarks and
the rack start programs in the ordinary way.

    the test → a nursery, once → forks twice; the middle process ends, so that the test's process inherits the program
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
NODES = ("flashboot_agent.node", "flashboot_agent.holder")
OPERATORS = ("flashboot_operator",)
"""They share nothing of weight, so that each kind has a nursery of its own."""
REPO = Path(__file__).resolve().parents[2]
_START_SECONDS = 60.0


class Forked:
    """A child of this process, as far as subprocess.Popen is needed."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            time.sleep(0.005)  # between two looks
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Ends with this process: its connection is closed then."""

    def __init__(self, modules: Sequence[str]) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_SECONDS)
        paths = os.pathsep.join(map(str, (REPO, REPO / "agent", REPO / "operator")))
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, pass_fds=[theirs.fileno()])
        theirs.close()
        self._socket = ours

    def start(self, module: str, args: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        """`log`: where its output is appended."""
        self._socket.send(json.dumps({"module": module, "args": args, "env": dict(env), "log": str(log)}).encode())
        answer = self._socket.recv(64)
        assert answer, f"the nursery ended with {self._process.wait(10)}"
        return Forked(int(answer), [module, *args])


@cache
def nursery(modules: Sequence[str] = NODES) -> Nursery:
    """The one of this process for these modules."""
    return Nursery(modules)


def _fork_twice() -> int:
    """In the program 0; in the nursery its pid, once nobody is between it and the test's process."""
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        program = os.fork()
        if program == 0:
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, str(program).encode())
        os._exit(0)
    os.close(writing)
    pid = int(os.read(reading, 64))
    os.close(reading)
    os.waitpid(middle, 0)
    return pid


def _serve(requests: socket.socket) -> str | None:
    """In a program: the module that it shall run. In the nursery: None, at the end."""
    while request := requests.recv(1 << 20):
        pid = _fork_twice()
        if pid == 0:
            requests.close()
            return _become(**json.loads(request))
        requests.send(str(pid).encode())
    return None


def _become(module: str, args: list[str], env: dict[str, str], log: str) -> str:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *args]
    return module


def main() -> None:
    for module in sys.argv[2:]:
        __import__(f"{module}.__main__")
        del sys.modules[f"{module}.__main__"]  # each program runs it anew
    # A program at its end would look through all that was imported here, and copy each page of it: half a second.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        program = _serve(requests)
    if program is not None:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
