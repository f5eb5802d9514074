"""Rows of numbers in a file, read by position without holding the file in memory.

The file is read with ``pread``, not mapped: mapped pages count as memory of the process. What does not lie in a file
row by row (compressed, or column by column) is written once to a temporary file that has no name: only this user can
read it, and it is gone with the process, whatever ends that. It lies where ``TMPDIR`` says.

>>> writer = RowWriter((2,), np.float32)
>>> writer.append(np.arange(6, dtype=np.float32).reshape(3, 2))
>>> rows = writer.finish()
>>> len(rows), rows[np.array([2, 0])].tolist()
(3, [[4.0, 5.0], [0.0, 1.0]])
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data.features import Chosen, positions_of
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown

_BLOCK = 1 << 24


class RowFile:
    """`count` rows of a shape and dtype, one after the other from `offset` on. The file stays open as long as this."""

    def __init__(
        self, file: IO[bytes], name: str, offset: int, count: int, row_shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> None:
        self._file, self._name, self._offset = file, name, offset
        self.shape = (count, *row_shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._row_bytes = math.prod(row_shape) * self.dtype.itemsize

    @classmethod
    def open(cls, path: Path, offset: int, count: int, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> RowFile:
        """Rows of the file at `path`, which is known to hold them."""
        return cls(path.open("rb", buffering=0), str(path), offset, count, row_shape, dtype)

    @property
    def ndim(self) -> int:
        """How many numbers `shape` has."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Chosen, /) -> npt.NDArray[Any]:
        positions = positions_of(chosen, len(self))
        rows = np.empty((len(positions), *self.shape[1:]), self.dtype)
        if not rows.size:
            return rows
        room = rows.reshape(-1).view(np.uint8).data
        ends = np.append(np.flatnonzero(np.diff(positions) != 1) + 1, len(positions))
        start = 0
        for end in ends.tolist():  # rows that follow each other are read in one go
            at = self._offset + int(positions[start]) * self._row_bytes
            self._fill(room[start * self._row_bytes : end * self._row_bytes], at)
            start = end
        return rows

    def _fill(self, room: memoryview, at: int) -> None:
        done = 0
        while done < len(room):
            try:
                count = os.preadv(self._file.fileno(), [room[done : done + _BLOCK]], at + done)
            except OSError as error:
                raise DataError(f"{shown(self._name)} cannot be read any more ({error.strerror})") from error
            if count == 0:
                raise DataError(f"{shown(self._name)} became shorter while it was read; leave it alone during a run")
            done += count


class RowWriter:
    """Rows that arrive block by block, on their way to a temporary `RowFile`."""

    def __init__(self, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._file = temporary_file()
        self._count, self._row_shape, self._dtype = 0, row_shape, np.dtype(dtype)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write some more rows."""
        if rows.shape[1:] != self._row_shape or rows.dtype != self._dtype:
            raise ValueError(f"rows are {self._dtype} {self._row_shape}, not {rows.dtype} {rows.shape[1:]}")
        with room_for_temporary_files():
            self._file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        self._count += len(rows)

    def finish(self) -> RowFile:
        """All rows that were written."""
        with room_for_temporary_files():
            self._file.flush()
        return RowFile(self._file, "a temporary file", 0, self._count, self._row_shape, self._dtype)

    def discard(self) -> None:
        """Give the file up, also one that could not be written to its end."""
        with suppress(OSError):
            self._file.close()


def temporary_file() -> IO[bytes]:
    """A file without a name, which nobody else can open and nothing leaves behind."""
    with room_for_temporary_files():
        return tempfile.TemporaryFile(prefix="dpdd-")


@contextmanager
def room_for_temporary_files() -> Iterator[None]:
    """Turn a full disk into a sentence that says where it is full."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{shown(tempfile.gettempdir())} cannot take a temporary copy of the records ({error.strerror}); "
            "make room there, or name another folder in TMPDIR"
        ) from error


def copy_bytes(source: IO[bytes], target: IO[bytes] | None, count: int) -> int:
    """Read up to `count` bytes, a block at a time, into `target` (None: nowhere); how many there were."""
    done = 0
    while done < count:
        block = source.read(min(_BLOCK, count - done))
        if not block:
            break
        if target is not None:
            with room_for_temporary_files():
                target.write(block)
        done += len(block)
    if target is not None:
        with room_for_temporary_files():
            target.flush()
    return done


def by_rows(numbers: RowFile, shape: tuple[int, ...]) -> RowFile:
    """The rows of an array of this shape, out of its numbers in Fortran order: those of the first axis come fastest."""
    count, row_shape = shape[0], shape[1:]
    width = math.prod(row_shape)
    writer = RowWriter(row_shape, numbers.dtype.newbyteorder("="))  # which is what stacking makes of them
    step = max(1, _BLOCK // max(1, width * numbers.dtype.itemsize))
    for start in range(0, count if width else 0, step):
        stop = min(count, start + step)
        columns = np.stack([numbers[at * count + start : at * count + stop] for at in range(width)])
        writer.append(columns.reshape(*row_shape[::-1], stop - start).transpose())
    return writer.finish()
