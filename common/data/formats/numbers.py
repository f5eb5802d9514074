"""Numbers as they stand in a file, turned into the features that `LabelledRecords` holds.

Pixels are mapped from the declared `value_range` onto [0, 1] as float32; 8-bit ones whose range is (0, 255) stay as
they are, a quarter of the memory. Which of the two is decided by the file's type and the declaration, never by what
other records hold. The numbers of a table stay as they are, in 32 bits. What is not finite passes through. Messages
name a record and never repeat its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpdd.common.data import fitting
from dpdd.common.data.features import Features, LazyFeatures
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.schema import DEFAULT_RANGE
from dpdd.common.errors import DataError

Layout = Literal["as it is", "channels last", "no channels"]
"""How a record's numbers stand in the file, beside the declared C, H, W (or the columns of a table)."""

_CHUNK = 1 << 20
_SLACK = 1e-6  # a bound that was itself rounded to 32 bits still counts as inside


def feature_dtype(stored: npt.DTypeLike, spec: DataSpec) -> np.dtype[Any]:
    """What numbers of the type `stored` become: uint8 as they are, or float32."""
    small = np.dtype(stored) == np.uint8 and not spec.is_table and spec.value_range == DEFAULT_RANGE
    return np.dtype(np.uint8 if small else np.float32)


def to_features(values: npt.NDArray[Any], spec: DataSpec, where: Callable[[int], str]) -> npt.NDArray[Any]:
    """Return `values`, one row per record, converted; `where(row)` ("scans.npz: record 7") begins a message."""
    if feature_dtype(values.dtype, spec) == np.uint8:
        return values
    features = np.empty(values.shape, dtype=np.float32)
    numbers, converted = values.reshape(-1), features.reshape(-1)
    convert = _to_table if spec.is_table else _to_pixels
    for start in range(0, numbers.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        wrong, why = convert(numbers[part], converted[part], spec.value_range)
        if wrong.any():
            row = (start + int(wrong.argmax())) // math.prod(values.shape[1:])
            raise DataError(f"{where(row)} has a value {why}")
    return features


class NumericFeatures(LazyFeatures):
    """Numbers that stand record by record in a source, converted and, if they are images, fitted when they are read."""

    def __init__(self, source: Features, layout: Layout, spec: DataSpec, where: Callable[[int], str]) -> None:
        super().__init__((len(source), *spec.shape), feature_dtype(source.dtype, spec))
        self._source, self._layout, self._spec, self._where = source, layout, spec, where
        self.source_shape = arranged_shape(source.shape[1:], layout)

    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read, arranged as C, H, W, mapped onto [0, 1] and fitted."""
        values = self._source[positions]
        if self._layout == "channels last":
            values = values.transpose(0, 3, 1, 2)
        elif self._layout == "no channels":
            values = values[:, None]
        features = to_features(np.ascontiguousarray(values), self._spec, lambda row: self._where(int(positions[row])))
        if features.shape[1:] == self._spec.shape:
            return features
        return np.stack([fitting.fitted(image, self._spec.shape, self._spec.fit) for image in features])

    def original(self, position: int) -> str:
        """The record's number, size and type."""
        shape, dtype = self.source_shape, self._source.dtype
        if self._spec.is_table:
            return f"{self._where(position)}: {shape[0]} numbers, {dtype}"
        how = fitting.describe(shape, self._spec.shape, self._spec.fit)
        channels = "grey" if shape[0] == 1 else "RGB"
        return f"{self._where(position)}: {shape[2]} x {shape[1]} pixels, {channels}, {dtype}: {how}"


def arranged_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The shape of a record as C, H, W, from the one that it has in the file."""
    if layout == "channels last":
        return (shape[2], shape[0], shape[1])
    return (1, *shape) if layout == "no channels" else shape


def _to_pixels(
    numbers: npt.NDArray[Any], converted: npt.NDArray[np.float32], value_range: tuple[float, float]
) -> tuple[npt.NDArray[np.bool_], str]:
    low, high = value_range
    wide = numbers.astype(np.float64)
    finite = np.isfinite(wide)
    slack = _SLACK * max(abs(low), abs(high), high - low)
    with np.errstate(invalid="ignore"):
        outside = finite & ((wide < low - slack) | (wide > high + slack))
    wide -= low
    wide /= high - low
    np.clip(wide, 0, 1, out=wide, where=finite)
    converted[:] = wide
    return outside, f"outside value_range ({low:g}, {high:g}); declare the range the pixels really have"


def _to_table(
    numbers: npt.NDArray[Any], converted: npt.NDArray[np.float32], _range: tuple[float, float]
) -> tuple[npt.NDArray[np.bool_], str]:
    with np.errstate(over="ignore"):
        converted[:] = numbers.astype(np.float32)
    return np.isinf(converted) & np.isfinite(numbers), "too large for a 32-bit number; rescale it"
