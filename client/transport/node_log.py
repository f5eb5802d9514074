"""The node's log: `state/node.log`, of bounded size and for its owner's eyes, and the console's warnings.

What was asked, answered and refused, and what went wrong, with tracebacks. It stays in the silo. No record is in it:
dpdd's own errors name files and positions, and never repeat what a record holds; of any other error, whose text may
quote one, the log has the type and the place alone.
"""

from __future__ import annotations

import io
import logging
import os
import traceback
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dpdd.client.worker.endings import WorkerEnded
from dpdd.common.config import one_line
from dpdd.common.errors import sayable

LOG_BYTES = 5_000_000
OLD_LOGS = 4


def keep_log(path: Path) -> None:
    """Write what this process says of itself to `path`, and its warnings to stderr as one sentence each."""
    log = logging.getLogger("dpdd")
    log.setLevel(logging.INFO)
    log.propagate = False
    kept = _OwnersFile(path, encoding="utf-8", maxBytes=LOG_BYTES, backupCount=OLD_LOGS)
    kept.setFormatter(_Line("%(asctime)s %(levelname)s %(message)s"))
    shown = logging.StreamHandler()
    shown.setFormatter(_Sentence())
    shown.setLevel(logging.WARNING)
    for old in log.handlers:
        old.close()
    log.handlers[:] = [kept, shown]


class _OwnersFile(RotatingFileHandler):
    """A rotating log that nobody but its owner reads, whatever the umask and the mode of an older file."""

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        return io.TextIOWrapper(io.FileIO(descriptor, "a"), encoding=self.encoding, write_through=True)


class _Line(logging.Formatter):
    """The message in one line, whatever a coordinator put into it; then the traceback, if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Where it happened and what it was; neither what a library says of it nor what it came from."""
        error = ei[1]
        if error is None:
            return ""
        frames = "".join(traceback.format_tb(error.__traceback__))
        if isinstance(error, WorkerEnded) and error.where:
            frames += f"and in the worker:\n{error.where}"
        return f"Traceback (most recent call last):\n{frames}{type(error).__name__}: {one_line(sayable(error))}"


class _Sentence(logging.Formatter):
    """The message alone: tracebacks are in the file."""

    def format(self, record: logging.LogRecord) -> str:
        return f"  {one_line(record.getMessage())}"
