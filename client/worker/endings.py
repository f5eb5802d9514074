"""How workers end: the errors that a node makes of it, and of what a worker says went wrong.

>>> print(sentence(STOPPED, None, 0)[:55])
the worker ended without an answer: the node stops; not
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dpdd.client.worker.limits import Limits
from dpdd.client.worker.supervisor import End
from dpdd.common import errors
from dpdd.common.config import one_line
from dpdd.common.errors import DpddError, IntegrityError

STOPPED = "stopped"
"""How a worker ends that the node itself ended."""
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What comes of reading values that a worker sent as JSON, where they are not what it should send."""


class WorkerEnded(DpddError):
    """A worker ended without an answer: `end` is the limit that it met, or what else befell it."""

    def __init__(self, message: str, end: str, where: str = "") -> None:
        super().__init__(message)
        self.end = end
        self.where = where


def no_message() -> IntegrityError:
    """The error of a node that cannot read what a worker sent."""
    return IntegrityError("the worker sent something that is no message; nothing was released")


def error_of(payload: bytes, limits: Limits) -> DpddError:
    """What a worker says went wrong, as an error of ours."""
    try:
        said = json.loads(payload)
        name, text, where = str(said["error"]), one_line(said["text"])[:2000], str(said["where"])[:8000]
    except UNREADABLE:
        return no_message()
    if name in (End.MEMORY, "disk"):
        return WorkerEnded(sentence(name, limits, 0), name, where)
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, DpddError) and found is not DpddError:
        return found(text)
    return WorkerEnded(f"the worker failed: {text}", "failed", where)


_WORDS: Mapping[str, Callable[[Any, int], str]] = {
    End.MEMORY: lambda limits, _: f"it took more than {limits.memory} bytes of memory (most_memory in [policy])",
    "disk": lambda limits, _: f"a temporary file had more than {limits.disk} bytes (most_disk in [policy])",
    End.CPU: lambda limits, _: f"it took more than {limits.cpu_seconds} CPU seconds (most_cpu_seconds in [policy])",
    End.TIME: lambda limits, _: f"it took more than {limits.seconds:g} seconds (most_seconds in [worker])",
    End.KILLED: lambda *_: "somebody killed it, or the system had no memory left",
    End.SIGNAL: lambda _, code: f"by signal {-code}",
    STOPPED: lambda *_: "the node stops",
    End.EXIT: lambda _, code: f"with exit code {code}",
}


def sentence(end: str, limits: Limits | None, code: int) -> str:
    """How a worker ended, and what that means."""
    how = _WORDS[end](limits, code) if end in _WORDS else "and its supervisor with it"
    return (
        f"the worker ended without an answer: {how}; nothing was released, and what was reserved stays so: the same "
        "request may be tried again at no further cost"
    )
