"""Partition and expand: an image holds several small ones, which are each enlarged to a full one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.base import RunDescription
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels


def expand(images: Tensor, parts: int) -> Tensor:
    """Each image cut into parts × parts pieces, each piece enlarged: (N, ...) to (parts² N, ...), piece by piece.

    >>> expand(torch.zeros(3, 1, 28, 28), 2).shape
    torch.Size([12, 1, 28, 28])
    """
    if parts == 1:
        return images
    height, width = images.shape[2] // parts, images.shape[3] // parts
    pieces = [
        images[:, :, row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row in range(parts)
        for column in range(parts)
    ]
    return functional.interpolate(torch.cat(pieces), images.shape[2:], mode="bilinear", align_corners=False)


def apart(images: Pixels, labels: NDArray[np.int64], parts: int) -> tuple[Pixels, NDArray[np.int64]]:
    """Every image as its parts² enlarged pieces, with their labels, class by class."""
    if parts == 1:
        return images, labels
    enlarged = expand(torch.from_numpy(images).float(), parts).clamp(0.0, 255.0).round().to(torch.uint8)
    order = np.argsort(np.tile(labels, parts**2), kind="stable")
    return np.ascontiguousarray(enlarged.numpy()[order]), np.tile(labels, parts**2)[order]


def expanded_set(images: Pixels, parts: int, run: RunDescription) -> LabelledSet:
    """The set of a run's images, class after class, each cut into parts × parts ones."""
    labels = np.arange(len(run.classes)).repeat(run.images_per_class)
    pixels, labels = apart(images, labels, parts)
    return LabelledSet(np.ascontiguousarray(pixels), labels, run.classes)
