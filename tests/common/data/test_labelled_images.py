"""Labelled images: subsets, and parts that do not fit together."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import DataError


def three_images() -> LabelledImages:
    images = np.arange(3, dtype=np.uint8).repeat(4).reshape(3, 1, 2, 2)
    return LabelledImages(images, np.array([1, 0, 1]), ("a", "b"))


def test_labelled_images() -> None:
    assert len(three_images()) == 3 and three_images().shape == (1, 2, 2)
    assert three_images().subset([2, 0]).images[:, 0, 0, 0].tolist() == [2, 0]
    assert three_images().subset(np.array([True, False, True])).labels.tolist() == [1, 1]
    assert len(three_images().subset([])) == 0


@pytest.mark.parametrize(
    ("images", "labels", "fragment"),
    [
        (np.zeros((1, 1, 2, 2)), np.zeros(1, dtype=np.int64), "uint8 N, C, H, W"),
        (np.zeros((1, 2, 2), dtype=np.uint8), np.zeros(1, dtype=np.int64), "uint8 N, C, H, W"),
        (np.zeros((2, 1, 2, 2), dtype=np.uint8), np.zeros(1, dtype=np.int64), "as many int64 labels"),
        (np.zeros((1, 1, 2, 2), dtype=np.uint8), np.zeros(1, dtype=np.uint8), "as many int64 labels"),
        (np.zeros((1, 1, 2, 2), dtype=np.uint8), np.array([2]), "record 1 has a label outside 0..1"),
    ],
)
def test_labelled_images_checks_its_parts(images: np.ndarray, labels: np.ndarray, fragment: str) -> None:
    with pytest.raises(DataError, match=fragment):
        LabelledImages(images, labels, ("a", "b"))
