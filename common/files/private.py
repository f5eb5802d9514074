"""Files that only their owner reads: a umask for state, and a check of keys and folders that others may read.

>>> import os, pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder, private_umask():
...     path = pathlib.Path(folder, "state")
...     path.mkdir()
...     oct(path.stat().st_mode & 0o777), open_to_others(path)
('0o700', False)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpdd.common.errors import IntegrityError
from dpdd.common.files.atomic import sync_folder

OTHERS = 0o077


@contextmanager
def private_umask() -> Iterator[None]:
    """What is made in here is for its owner alone. The umask is the process's: for commands, not for threads."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(path: Path) -> bool:
    """Whether anybody but the owner may read, write or enter `path`."""
    return bool(path.stat().st_mode & OTHERS)


def owners_only(path: Path, what: str) -> None:
    """IntegrityError when others may read the file at `path`: a key that others may have read signs for nobody."""
    if open_to_others(path):
        raise IntegrityError(f"{path}: {what} is open to others; `chmod 600 {path}` closes it")


def folder_warning(folder: Path) -> list[str]:
    """A sentence when others may enter a state folder, for `preflight` and `status`; else nothing."""
    if not open_to_others(folder):
        return []
    return [f"{folder} is open to other users of this machine; `chmod 700 {folder}` closes it"]


def write_private(path: Path, data: bytes) -> None:
    """A file that only its owner reads, durably; an existing one is replaced whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
