"""IDX files, the format of MNIST and its relatives: a short header, then bytes; plain or gzipped.

An image file is ``00 00 08 03``, the three sizes N, H, W as big-endian 32-bit numbers, and N*H*W bytes; a
label file is ``00 00 08 01``, N, and N bytes. Whether a file is gzipped is read from its first bytes, not
from its name. Sizes are checked against the file's real length before anything is allocated.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> write(folder / "images.gz", np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
>>> read_images(folder / "images.gz").shape
(2, 2, 3)
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import check_growth, read_up_to, reading, require_file, shown

_GZIP = b"\x1f\x8b"
_DEFLATE_LIMIT = 1032  # no deflate stream expands further, so a header that claims more is a lie
_KINDS = {1: "IDX label file", 3: "IDX image file"}


def read_images(path: Path) -> npt.NDArray[np.uint8]:
    """Return the images in `path` as a uint8 array of shape N, H, W."""
    return _read(path, 3)


def read_labels(path: Path) -> npt.NDArray[np.uint8]:
    """Return the labels in `path` as a uint8 array of shape N."""
    return _read(path, 1)


def write(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write images (N, H, W) or labels (N); gzipped, without a date in it, if the name ends in .gz."""
    if array.dtype != np.uint8 or array.ndim not in _KINDS:
        raise DataError(
            f"{shown(path)} cannot be written: IDX takes uint8 images N, H, W or uint8 labels N, "
            f"not {array.dtype} with {array.ndim} dimensions"
        )
    data = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


@dataclass(frozen=True)
class Content:
    """What follows the header of an IDX file: `stream` stands at the first byte, which is at `offset` in a plain file.

    `offset` is None where the file is gzipped.
    """

    stream: IO[bytes]
    shape: tuple[int, ...]
    offset: int | None


@contextmanager
def content(path: Path, dimensions: int) -> Iterator[Content]:
    """The images (3 dimensions) or labels (1) of an IDX file, as a stream that must be read to its end.

    Every failure to read it is a `DataError`; the length of a plain file is checked before, a gzipped one's by
    `check_whole`.
    """
    what = f"an {_KINDS[dimensions]}"
    size = require_file(path, what)
    with reading(path, what), path.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=raw) if packed else raw)
        shape = _read_shape(path, stream, dimensions)
        count = math.prod(shape)
        header = 4 + 4 * dimensions
        if packed:
            if count + header > _DEFLATE_LIMIT * size:
                raise DataError(_wrong_length(path, shape, f"at most {_DEFLATE_LIMIT * size}"))
            check_growth(path, size, count)
        elif count != size - header:
            raise DataError(_wrong_length(path, shape, str(size - header)))
        yield Content(stream, shape, None if packed else header)


def check_whole(path: Path, held: Content, count: int) -> None:
    """DataError unless `count` bytes were announced, all were read, and none follow.

    Asking for one more makes gzip verify its checksum.
    """
    announced = math.prod(held.shape)
    more = bool(held.stream.read(1)) if count == announced else False
    if count != announced or more:
        raise DataError(_wrong_length(path, held.shape, "more" if more else str(count)))


def _read(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    with content(path, dimensions) as held:
        data = read_up_to(held.stream, math.prod(held.shape))
        check_whole(path, held, len(data))
    return np.frombuffer(data, dtype=np.uint8).reshape(held.shape)


def _read_shape(path: Path, stream: IO[bytes], dimensions: int) -> tuple[int, ...]:
    header = stream.read(4 + 4 * dimensions)
    magic = bytes((0, 0, 8, dimensions))
    if header[:4] != magic:
        start = header[:4].hex(" ") or "nothing"
        other = _KINDS.get(header[3]) if header[:3] == magic[:3] and len(header) > 3 else None
        hint = f" (that is an {other}: are images and labels swapped?)" if other else ""
        raise DataError(
            f"{shown(path)} starts with {start}{hint}, but an {_KINDS[dimensions]} starts with {magic.hex(' ')}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(
            f"{shown(path)} ends within its header: an {_KINDS[dimensions]} has {4 + 4 * dimensions} bytes of header"
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if 0 in shape[1:]:
        raise DataError(f"{shown(path)} announces images of {shape[1]} x {shape[2]} pixels; both must be at least 1")
    return shape


def _wrong_length(path: Path, shape: tuple[int, ...], held: str) -> str:
    sizes = " x ".join(map(str, shape))
    return (
        f"{shown(path)} announces {sizes} = {math.prod(shape)} bytes of data but holds {held}; "
        "it is cut short or damaged, fetch it again"
    )
