"""NumPy's ``.npz`` archives, read without pickle and without believing headers that the file cannot back.

``numpy.load`` allocates what a member's header announces before it looks whether the bytes are there. Here
the header must agree with the member's length, the length with `check_growth`, and memory grows with the
bytes that arrive.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "pairs.npz"
>>> np.savez(path, x=np.eye(2, dtype=np.float32))
>>> keys(path), header(path, "x"), read(path, "x").sum()
(('x',), ((2, 2), dtype('float32')), np.float32(2.0))
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import check_growth, read_up_to, reading, require_file, shown

_WHAT = "an .npz archive"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
_MAX_DIMENSIONS = 32


def keys(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays in the archive, in its order."""
    require_file(path, _WHAT)
    with reading(path, _WHAT), zipfile.ZipFile(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist())


@dataclass(frozen=True)
class Member:
    """An array of an archive whose header agrees with its length; `stream` stands at its first number.

    `offset` is where that lies in the archive's file, None where the array is compressed.
    """

    stream: IO[bytes]
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int | None

    @property
    def bytes(self) -> int:
        """How many the numbers take."""
        return math.prod(self.shape) * self.dtype.itemsize


def header(path: Path, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of one array without reading its data."""
    with member(path, key) as array:
        return array.shape, array.dtype


def read(path: Path, key: str) -> npt.NDArray[Any]:
    """Return one array; it owns its memory and may be written to."""
    with member(path, key) as array:
        data = read_up_to(array.stream, array.bytes)  # to the member's end, where zipfile verifies the checksum
        check_whole(path, key, len(data), array.bytes)
        flat: npt.NDArray[Any] = np.frombuffer(data, dtype=array.dtype)
        return flat.reshape(array.shape[::-1]).transpose() if array.fortran else flat.reshape(array.shape)


def check_whole(path: Path, key: str, held: int, wanted: int) -> None:
    """DataError where an array ended before all of its bytes had been read."""
    if held != wanted:
        raise DataError(f"{shown(path)}: array {key!r} is cut short or damaged; fetch or write it again")


@contextmanager
def member(path: Path, key: str) -> Iterator[Member]:
    """One array of the archive, to be read as a stream; every failure to read it is a `DataError`."""
    names = keys(path)
    if key not in names:
        present = ", ".join(repr(shown(name, 40)) for name in names[:8]) or "none"
        raise DataError(f"{shown(path)} has no array {key!r}; the arrays in it are: {present}")
    with reading(path, _WHAT), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        info = members[key]
        if info.compress_type not in _PACKINGS:
            raise DataError(
                f"{shown(path)}: array {key!r} is packed in a way NumPy does not use; write it with np.savez"
            )
        check_growth(path, info.compress_size, info.file_size)
        with archive.open(info) as stream:
            shape, fortran, dtype = _read_header(path, key, stream)
            announced = math.prod(shape) * dtype.itemsize + stream.tell()
            if announced != info.file_size:
                raise DataError(
                    f"{shown(path)}: array {key!r} announces {announced} bytes but has {info.file_size}; "
                    "it is cut short or damaged"
                )
            offset = None
            if info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size:
                offset = _start(path, info) + stream.tell()
            yield Member(stream, shape, fortran, dtype, offset)


def _start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: after its local header, whose name and extra field have lengths of their own."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + name + extra


def _read_header(path: Path, key: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = npy.read_array_header_2_0(stream)
    else:
        raise DataError(f"{shown(path)}: array {key!r} has format version {version}; write it with np.savez")
    if dtype.names is not None or dtype.subdtype is not None:
        raise DataError(f"{shown(path)}: array {key!r} has named fields; write it as a plain array")
    if dtype.hasobject:
        raise DataError(
            f"{shown(path)}: array {key!r} holds Python objects, which could run code when read; "
            "write it as numbers or fixed-width text"
        )
    if dtype.itemsize == 0 or len(shape) > _MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise DataError(f"{shown(path)}: array {key!r} has the impossible form {dtype} {shape}; write it again")
    return shape, fortran, dtype
