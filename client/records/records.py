"""Private records, read by position from wherever they lie.

`Records` says nothing about itself when printed and refuses to be pickled, so that neither a log line, a
traceback with local variables, nor a worker process carries private data away by accident.

>>> records = Records(np.zeros((3, 1, 2, 2), dtype=np.uint8), np.array([0, 1, 1]))
>>> records
Records(private)
>>> [batch.shape for batch, _ in records.batches(2)]
[(2, 1, 2, 2), (1, 1, 2, 2)]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt

from dpdd.client.records.kept import Kept
from dpdd.common.data.features import Chosen, Features, Selected
from dpdd.common.data.labelled_records import as_float
from dpdd.common.data.read_ahead import read_ahead
from dpdd.common.errors import DataError

BLOCK = 64
"""Records that are read in one go, at least: enough for all cores to have something to decode."""


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Features and labels of a silo's records, one row each.

    `features` is uint8 N, C, H, W; or float32 N, C, H, W in [0, 1]; or float32 N, d for a table; an array, or anything
    that is read by position (`dpdd.common.data.features`). `labels` is int64 N. Values that are not finite are allowed:
    a mechanism gives such a record no contribution. Arrays are read-only. `kept` is where embeddings of these very
    records may stay for a later stage; None: nowhere.
    """

    features: Features
    labels: npt.NDArray[np.int64]
    kept: Kept | None = None

    def __post_init__(self) -> None:
        form = (str(self.features.dtype), self.features.ndim)
        if form not in (("uint8", 4), ("float32", 4), ("float32", 2)):
            raise DataError(
                "features must be uint8 or float32 N, C, H, W, or float32 N, d, "
                f"not {form[0]} with {form[1]} dimensions"
            )
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise DataError(f"labels must be int64 N, not {self.labels.dtype} with {self.labels.ndim} dimensions")
        if len(self.features) != len(self.labels):
            raise DataError("features and labels must be equally many")
        for name in ("features", "labels"):
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                array = array.view()
                array.setflags(write=False)
                object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return "Records(private)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("private records are not pickled or copied to another process; load them where they are used")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.features.shape[1:])

    @property
    def is_table(self) -> bool:
        """Whether the records are rows of features, not images."""
        return self.features.ndim == 2

    def read(self, chosen: Chosen) -> npt.NDArray[np.float32]:
        """Return the features at these positions (or of this slice) as float32; images in [0, 1].

        The array is a fresh copy that the caller may change.
        """
        return as_float(self.features[chosen])

    def batches(self, size: int) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """Yield the records in order, `size` at a time (the last may be fewer), as float32; images in [0, 1].

        The arrays are fresh copies that the caller may change. Where records are read from disk, the next ones are
        read and decoded while the caller works on these; memory holds a few blocks, however many records there are.
        """
        if size < 1:
            raise ValueError(f"a batch has at least 1 record, not {size}")
        block = size * -(-BLOCK // size)
        blocks = [slice(start, min(start + block, len(self))) for start in range(0, len(self), block)]
        in_memory = isinstance(self.features, np.ndarray)
        for part, features in zip(blocks, read_ahead(self.features, blocks, 0 if in_memory else 2), strict=True):
            for start in range(part.start, part.stop, size):
                stop = min(start + size, part.stop)
                yield as_float(features[start - part.start : stop - part.start]), self.labels[start:stop].copy()

    def keeping(self, most: int) -> Records:
        """The same records, of which so many bytes of embeddings may be kept."""
        return replace(self, kept=Kept(most) if most else None)

    def take(self, chosen: npt.ArrayLike) -> Records:
        """Return the records at the given positions, or those for which a boolean mask is true."""
        index = np.asarray(chosen)
        if index.size == 0 and index.dtype != bool:
            index = index.astype(np.int64)
        if index.ndim != 1 or (index.dtype != bool and index.dtype.kind not in "iu"):
            raise ValueError("take needs a list of positions or a boolean mask")
        if isinstance(self.features, np.ndarray):
            return Records(self.features[index], self.labels[index])
        positions = np.arange(len(self))[index]
        return Records(Selected(self.features, positions), self.labels[positions])
