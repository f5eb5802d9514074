"""Durable files that are written once and never replaced, and an exclusive lock between processes."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpdd.common.errors import LedgerError
from dpdd.common.files.atomic import sync_folder


def write_new(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Put `data` at `path`, durably and in one step. False, and nothing done, when the file exists already."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # unlike rename, this never replaces a file
        except FileExistsError:
            return False
    finally:
        with suppress(OSError):
            partial.unlink()
    sync_folder(path.parent)
    return True


@contextmanager
def exclusive(path: Path, timeout: float, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file at `path`; LedgerError when another process keeps it for `timeout` seconds."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LedgerError(f"{path}: the silo's lock cannot be opened ({error.strerror})") from None
    try:
        ends = time.monotonic() + timeout
        reported = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise LedgerError(
                        f"{path}: another dpdd process is making a release for this silo; waited {timeout:g} s"
                    ) from None
                if not reported:
                    waiting()
                    reported = True
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
