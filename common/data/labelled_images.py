"""Labelled images in memory: what public datasets are loaded as, and what evaluations are given.

>>> images = LabelledImages(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1]), ("cat", "dog"))
>>> len(images), images.shape, images.subset([2, 0]).labels.tolist()
(3, (1, 2, 2), [1, 0])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdd.common.errors import DataError


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (uint8; N, C, H, W) with a label each (int64, an index into `classes`)."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise DataError(f"images must be uint8 N, C, H, W, not {self.images.dtype} {self.images.shape}")
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{len(self.images)} images need as many int64 labels, not {self.labels.dtype} {self.labels.shape}"
            )
        wrong = (self.labels < 0) | (self.labels >= len(self.classes))
        if wrong.any():
            raise DataError(
                f"record {int(wrong.argmax()) + 1} has a label outside 0..{len(self.classes) - 1}, "
                f"the positions of its {len(self.classes)} classes"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def subset(self, indices: npt.ArrayLike) -> LabelledImages:
        """Return the records at `indices` (positions, or one boolean per record), in that order."""
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        return LabelledImages(self.images[chosen], self.labels[chosen], self.classes)
