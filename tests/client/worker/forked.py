"""A worker whose supervisor is forked from a process that has imported everything, for tests that start many.

Whoever calls `start` must have one thread and hold neither key nor records. A supervisor that was killed is followed
by one as everywhere else: a fresh interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import cast

from dpdd.client.worker import jobs, supervisor
from dpdd.client.worker.worker import Worker


class Forked:
    """As much of `subprocess.Popen` as a `Worker` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = 3600.0) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("supervisor", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


class ForkedWorker(Worker):
    """Forks its first supervisor."""

    def __init__(self) -> None:
        super().__init__()
        self._first = True

    def _launch(self, control: socket.socket) -> subprocess.Popen[bytes]:
        if not self._first:
            return super()._launch(control)
        self._first = False
        if (pid := os.fork()) == 0:
            try:
                os.setsid()
                kept = os.dup2(control.fileno(), 9)
                os.closerange(3, 9)
                os.closerange(10, 1 << 16)
                supervisor.supervise(socket.socket(fileno=kept), jobs.serve_job)
            finally:
                os._exit(0)
        return cast("subprocess.Popen[bytes]", Forked(pid))


def workers_of(node: int) -> list[int]:
    """The processes that work for a node at this moment."""
    return [worker for supervised in children(node) for worker in children(supervised)]


def children(pid: int) -> list[int]:
    """The processes that the main thread of a process started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
