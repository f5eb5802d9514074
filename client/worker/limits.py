"""What a worker may take of the machine, and how the system is told.

Memory is what a process has to itself: `RLIMIT_DATA` makes an allocation fail that goes beyond, and the supervisor
kills a worker whose pages (private, or shared without a file; in memory or swapped out) come to more. What is mapped
from files does not count, as the system takes that back when it needs it. `RLIMIT_AS` would count it, and torch's
libraries alone map half a gigabyte.

>>> Limits(seconds=60.0, memory=1 << 30).cpu_seconds is None
True
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from dpdd.client.config import LEAST_MEMORY

SHARE_OF_MACHINE = 0.75
"""Of the machine's memory: what a worker may take where the policy names no ceiling."""
_STACKS = 3 * (8 << 20)
"""Bytes per processor: stacks of threads that read, decode and compute are mapped in full and hardly ever touched."""
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_PAGES = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """Of one job. `seconds` are by the wall clock; `disk` is the size of a temporary file; None sets no limit."""

    seconds: float
    memory: int
    cpu_seconds: int | None = None
    disk: int | None = None

    def apply(self, *, stays: bool = False) -> None:
        """Limit this process, and all that it starts, for good.

        The CPU time of one that `stays` for several jobs is watched from outside, as each of them has that much.
        """
        _limit(resource.RLIMIT_DATA, self.memory + _STACKS * (os.cpu_count() or 1))
        _limit(resource.RLIMIT_CORE, 0)  # a core would be a copy of the records
        if self.disk is not None:
            _limit(resource.RLIMIT_FSIZE, self.disk)
        if self.cpu_seconds is not None and not stays:
            _limit(resource.RLIMIT_CPU, self.cpu_seconds, grace=1)  # SIGXCPU says why, and SIGKILL follows


def _limit(which: int, value: int, grace: int = 0) -> None:
    hard = resource.getrlimit(which)[1]
    most = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
    resource.setrlimit(which, (min(value, most), most))


def machine_memory() -> int:
    """The bytes that this machine has, or this container where that is less."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            most = min(most, int(Path(path).read_text()))
        except (OSError, ValueError):  # another kind of cgroup, or "max"
            continue
    return most


def default_memory() -> int:
    """What a worker may take where the policy names no ceiling."""
    return max(int(SHARE_OF_MACHINE * machine_memory()), LEAST_MEMORY)


def own_bytes(pid: int) -> int:
    """What the process has to itself now; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * sum(map(int, _PAGES.findall(status)))


def cpu_seconds_of(pid: int) -> float:
    """What all threads of the process have taken so far; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which forked it, ends; and gain no privileges meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "a worker needs Linux")
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)
