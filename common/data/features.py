"""Features of many records, read by position: an array in memory is such a thing, and so is a file that stays on disk.

Whoever computes on records asks for a batch at a time, so that memory does not grow with their number. What is read
for one record never depends on which others are asked for.

>>> class Squares(LazyFeatures):
...     def rows(self, positions):
...         return (positions**2).astype(np.float32)[:, None]
>>> squares = Squares((5, 1), np.float32)
>>> len(squares), squares[1:3].ravel().tolist(), squares[np.array([4, 0])].ravel().tolist()
(5, [1.0, 4.0], [16.0, 0.0])
>>> Selected(squares, np.array([3, 2]))[:].ravel().tolist()
[9.0, 4.0]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Chosen = slice | npt.NDArray[np.int64]
"""Which records to read."""

MOST_BYTES_AT_ONCE = 1 << 25
"""What `LazyFeatures` converts in one go; a caller may ask for more."""


class Features(Protocol):
    """One row per record. A NumPy array is one as it is."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of records, then the shape of one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what is read."""

    @property
    def ndim(self) -> int:
        """How many numbers `shape` has."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: Chosen, /) -> npt.NDArray[Any]: ...


@runtime_checkable
class Originals(Protocol):
    """Features that are made of something else, and can say of what."""

    def original(self, position: int) -> str:
        """Where a record comes from, its size and type, for its owner's screen; none of its values."""


class LazyFeatures(ABC):
    """Features that are read, decoded or converted when they are asked for. A kind of them says how, in `rows`."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        # In 64 bits, which is what numbers are converted in.
        self._step = max(1, MOST_BYTES_AT_ONCE // (8 * max(1, math.prod(shape[1:]))))

    @abstractmethod
    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The features of these records, in this order; the positions are valid."""

    @property
    def ndim(self) -> int:
        """How many numbers `shape` has."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Chosen, /) -> npt.NDArray[Any]:
        positions = positions_of(chosen, len(self))
        if len(positions) <= self._step:
            return self.rows(positions) if len(positions) else np.empty((0, *self.shape[1:]), self.dtype)
        read = np.empty((len(positions), *self.shape[1:]), self.dtype)
        for start in range(0, len(positions), self._step):
            read[start : start + self._step] = self.rows(positions[start : start + self._step])
        return read


class Selected(LazyFeatures):
    """Some of other features' records, in an order of their own; nothing is read before it is asked for."""

    def __init__(self, of: Features, positions: npt.NDArray[np.int64]) -> None:
        super().__init__((len(positions), *of.shape[1:]), of.dtype)
        self._of, self._positions = of, positions

    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Those of the features that were selected from."""
        return self._of[self._positions[positions]]

    def original(self, position: int) -> str:
        """As the features that were selected from say."""
        return self._of.original(int(self._positions[position])) if isinstance(self._of, Originals) else "in memory"


def positions_of(chosen: Chosen, count: int) -> npt.NDArray[np.int64]:
    """The positions that are chosen out of `count` records; IndexError where there is no such record."""
    if isinstance(chosen, slice):
        return np.arange(*chosen.indices(count), dtype=np.int64)
    positions = np.asarray(chosen)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
        raise IndexError("records are chosen by a slice, or by a row of positions")
    positions = positions.astype(np.int64, copy=False)
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < count:
        raise IndexError(f"there is no such record among {count}")
    return positions
