"""Durable files that are written once and never replaced, and exclusive locks between processes."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpdd.common.errors import ConfigError, LedgerError
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


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold `path` for as long as this process does `what`; ConfigError, at once, when another process does.

    A lock of the process, not of the file: no child keeps it, and a crash ends it. The file says who holds it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: the lock cannot be opened ({error.strerror})") from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            process = f"process {holder}" if holder.isdecimal() else "another process"
            raise ConfigError(f"{path.parent.parent}: {process} {what} already; stop it first") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
