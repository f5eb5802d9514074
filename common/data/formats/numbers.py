"""Numbers as they stand in a file, turned into the features that `LabelledRecords` holds.

Pixels are mapped from the declared `value_range` onto [0, 1]; where that range is (0, 255) and all of them
are whole numbers they are kept as 8-bit, a quarter of the memory. The numbers of a table stay as they are.
What is not finite passes through. Messages name a row and never repeat its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import as_float
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown

_CHUNK_BYTES = 1 << 25
_SLACK = 1e-6  # a bound that was itself rounded to 32 bits still counts as inside


def to_features(
    values: npt.NDArray[Any], spec: DataSpec, path: Path, first: int = 1, unit: str = "row"
) -> npt.NDArray[Any]:
    """Return `values` (one row per record) as features of the declared shape; rows count from `first`."""
    rows = values.reshape(len(values), *spec.shape)
    convert = _to_table if spec.is_table else _to_pixels
    if rows.dtype == np.uint8 and convert is _to_pixels and spec.value_range == (0, 255):
        return rows
    step = max(1, _CHUNK_BYTES // (8 * int(np.prod(spec.shape))))
    starts = range(0, len(rows), step)
    return join([convert(rows[start : start + step], spec, path, first + start, unit) for start in starts], spec)


def join(parts: Sequence[npt.NDArray[Any]], spec: DataSpec) -> npt.NDArray[Any]:
    """Return the parts as one array; 8-bit only if every part is."""
    if not parts:
        return np.zeros((0, *spec.shape), dtype=np.float32)
    if len({part.dtype for part in parts}) > 1:
        parts = [as_float(part) if part.dtype == np.uint8 else part for part in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _to_pixels(rows: npt.NDArray[Any], spec: DataSpec, path: Path, first: int, unit: str) -> npt.NDArray[Any]:
    low, high = spec.value_range
    wide = rows.astype(np.float64)
    finite = np.isfinite(wide)
    slack = _SLACK * max(abs(low), abs(high), high - low)
    with np.errstate(invalid="ignore"):
        outside = finite & ((wide < low - slack) | (wide > high + slack))
    if outside.any():
        raise DataError(
            f"{shown(path)}: {unit} {first + _first_row(outside)} has a value outside value_range "
            f"({low:g}, {high:g}); declare the range the pixels really have"
        )
    if (low, high) == (0, 255) and finite.all():
        small = wide.clip(0, 255).astype(np.uint8)
        if np.array_equal(small, wide):
            return small
    wide -= low
    wide /= high - low
    np.clip(wide, 0, 1, out=wide, where=finite)
    return wide.astype(np.float32)


def _to_table(rows: npt.NDArray[Any], spec: DataSpec, path: Path, first: int, unit: str) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        narrow = rows.astype(np.float32)
    lost = np.isinf(narrow) & np.isfinite(rows)
    if lost.any():
        raise DataError(
            f"{shown(path)}: {unit} {first + _first_row(lost)} has a value too large for a 32-bit number; rescale it"
        )
    return narrow


def _first_row(flags: npt.NDArray[np.bool_]) -> int:
    return int(flags.reshape(len(flags), -1).any(axis=1).argmax())
