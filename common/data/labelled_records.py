"""Labelled records as a format's reader gives them: public or private is for the caller to know.

A silo wraps its own in `dpdd.client.records.records.Records`, which keeps them from being printed or copied away; a
coordinator reads its public test data as they are.

>>> read = LabelledRecords(np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]))
>>> len(read), as_float(read.features[:1]).dtype
(2, dtype('float32'))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data.features import Features


@dataclass(frozen=True, eq=False)
class LabelledRecords:
    """Features and labels, one row each.

    `features` is uint8 N, C, H, W; or float32 N, C, H, W in [0, 1]; or float32 N, d for a table. It is read by position
    (`dpdd.common.data.features`), and most formats leave it on disk. `labels` is int64 N, positions in the class list.
    `groups`, where the source names them, says which records belong together (a patient's, say).
    """

    features: Features
    labels: npt.NDArray[np.int64]
    groups: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, positions: npt.NDArray[np.int64]) -> LabelledRecords:
        """Return the records at these positions, in that order."""
        groups = None if self.groups is None else self.groups[positions]
        return LabelledRecords(self.features[positions], self.labels[positions], groups)


def as_float(features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a float32 copy; 8-bit pixels are mapped onto [0, 1]."""
    values = features.astype(np.float32)
    if features.dtype == np.uint8:
        values /= np.float32(255)
    return values


def as_pixels(features: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return 8-bit pixels: those that are stay as they are, others are rounded; what is not finite becomes 0.

    >>> as_pixels(np.array([0.0, 0.5, 1.0, np.nan]))
    array([  0, 128, 255,   0], dtype=uint8)
    """
    if features.dtype == np.uint8:
        return features
    return np.rint(255.0 * np.clip(np.nan_to_num(features, posinf=0.0, neginf=0.0), 0.0, 1.0)).astype(np.uint8)
