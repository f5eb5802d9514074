"""Embeddings that are kept from one pass over the records to the next, so that a later stage need not compute them.

They belong to one `Records`, which has them as `Records.kept`: other records never see them. Each kind of row has a key
that says everything it was computed with. A few lie in memory, more in a temporary file without a name
(`dpdd.common.data.row_file`), which is gone with the process, whatever ends it. What does not fit (the silo's quota,
half of what is free on the disk, the largest file that the process may write) is not kept, and computed again. Nothing
here reaches a release, a message or the outbox.

>>> import numpy as np
>>> kept = Kept(1 << 20)
>>> keeping = kept.begin("a backbone's", count=3, width=2)
>>> keeping.add(np.zeros((2, 2), np.float32))
>>> kept.find("a backbone's") is None  # until all are there
True
>>> keeping.add(np.ones((1, 2), np.float32))
>>> kept.find("a backbone's")[1:3].tolist()
[[0.0, 0.0], [1.0, 1.0]]
>>> kept, Kept(0).begin("too many", count=3, width=2).goes_on
(Kept(private), False)
"""

from __future__ import annotations

import os
import resource
import tempfile
from typing import NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.features import Features
from dpdd.common.data.row_file import RowWriter
from dpdd.common.errors import DataError

QUOTA = 1 << 30
"""Bytes of embeddings that are kept of a silo's records, where nobody says otherwise."""
LARGEST_QUOTA = 1 << 32
IN_MEMORY = 1 << 25
"""Bytes up to which they lie in memory, all kinds together."""
_DTYPE = np.dtype(np.float32)


class Kept:
    """Rows of numbers, one for each record, of every kind that was computed in full; `most` is their quota in bytes."""

    def __init__(self, most: int = QUOTA) -> None:
        self._most = most
        self._rows: dict[str, Features] = {}
        self._in_memory: dict[str, int] = {}
        self._in_files: dict[str, int] = {}

    def find(self, key: str) -> Features | None:
        """The rows of this kind, in the order of the records; None where they have to be computed."""
        return self._rows.get(key)

    def begin(self, key: str, count: int, width: int) -> Keeping:
        """Where so many rows of this kind will be put as they are computed; what there is no room for is dropped."""
        self.drop(key)
        size = count * width * _DTYPE.itemsize
        in_memory = sum(self._in_memory.values())
        if in_memory + sum(self._in_files.values()) + size > self._most:
            return Keeping(self, key, count, None)
        try:
            if in_memory + size <= IN_MEMORY:
                self._in_memory[key] = size
                return Keeping(self, key, count, np.empty((count, width), _DTYPE))
            if size <= _room_for_a_file():
                self._in_files[key] = size
                return Keeping(self, key, count, RowWriter((width,), _DTYPE))
        except (DataError, MemoryError):
            self.drop(key)
        return Keeping(self, key, count, None)

    def put(self, key: str, rows: Features) -> None:
        """Keep rows that are complete."""
        self._rows[key] = rows

    def clear(self) -> None:
        """Forget all: no stage is left that could want them."""
        for key in (*self._rows, *self._in_memory, *self._in_files):
            self.drop(key)

    def drop(self, key: str) -> None:
        """Forget this kind, also what is not complete yet."""
        for each in (self._rows, self._in_memory, self._in_files):
            each.pop(key, None)

    def __repr__(self) -> str:
        return "Kept(private)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("what was computed of private records is not pickled or copied to another process")


class Keeping:
    """Rows on their way to a `Kept`: it has them when the last one is here, and never a part of them."""

    def __init__(self, kept: Kept, key: str, count: int, target: NDArray[np.float32] | RowWriter | None) -> None:
        self._kept, self._key, self._count, self._target, self._done = kept, key, count, target, 0

    @property
    def goes_on(self) -> bool:
        """Whether there is room for them."""
        return self._target is not None

    def add(self, rows: NDArray[np.float32]) -> None:
        """The rows of the next records."""
        target = self._target
        if target is None:
            return
        try:
            if isinstance(target, RowWriter):
                target.append(rows)
            else:
                target[self._done : self._done + len(rows)] = rows
            self._done += len(rows)
            if self._done == self._count:
                self._kept.put(self._key, target.finish() if isinstance(target, RowWriter) else target)
        except DataError:  # the disk is full by now
            assert isinstance(target, RowWriter)
            target.discard()
            self._kept.drop(self._key)
            self._target = None

    def __repr__(self) -> str:
        return "Keeping(private)"


def _room_for_a_file() -> int:
    """The largest temporary file that leaves others room."""
    disk = os.statvfs(tempfile.gettempdir())
    room = disk.f_bavail * disk.f_frsize // 2
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return room if largest == resource.RLIM_INFINITY else min(room, largest)
