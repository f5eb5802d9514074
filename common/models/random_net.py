"""Randomly initialised ConvNets: untrained, with public weights that follow from a public seed.

A ConvNet of the papers' kind (convolution, instance norm, ReLU, average pooling, three times). Its features, or the
gradients of its loss, are what the matching methods compare real and synthetic images by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.randomness import gaussians

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RandomNet:
    """The kernels of the convolutions, and a linear head; all random."""

    kernels: tuple[Tensor, ...]
    head: Tensor

    @classmethod
    def draw(cls, seed: int, number: int, shape: Shape, width: int, depth: int, classes: int) -> RandomNet:
        """Network `number` of a run (He initialisation)."""
        kernels, channels = [], shape[0]
        for layer in range(depth):
            drawn = gaussians(seed, f"random network {number} layer {layer}", (width, channels, 3, 3))
            kernels.append(torch.from_numpy(drawn * math.sqrt(2.0 / (9 * channels))).float())
            channels = width
        features = feature_count(shape, width, depth)
        drawn = gaussians(seed, f"random network {number} head", (classes, features))
        return cls(tuple(kernels), torch.from_numpy(drawn / math.sqrt(features)).float())

    def to(self, like: Tensor) -> RandomNet:
        """With weights of the same type and on the same device as `like`."""
        return RandomNet(tuple(kernel.to(like) for kernel in self.kernels), self.head.to(like))

    def features(self, images: Tensor) -> Tensor:
        """One row per image in [0, 1]."""
        return features(images, self.kernels)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """All of them, the head last."""
        return (*self.kernels, self.head)


def features(images: Tensor, kernels: tuple[Tensor, ...]) -> Tensor:
    """The features under these kernels, independent of batch position: no image's depend on its neighbours."""
    values = images
    for kernel in kernels:
        values = functional.conv2d(values, kernel, padding=1)
        values = average_pool(functional.relu(functional.group_norm(values, len(kernel))))  # one group a channel
    return values.flatten(1)


def average_pool(values: Tensor) -> Tensor:
    """Means of 2 × 2 squares, a last odd row or column left out: what `avg_pool2d` gives, several times as fast."""
    for side in (2, 3):
        pairs = values.shape[side] // 2
        if values.shape[side] > 2 * pairs:
            values = values.narrow(side, 0, 2 * pairs)
        first, second = values.unflatten(side, (pairs, 2)).unbind(side + 1)
        values = first + second
    return values * 0.25


def feature_count(shape: Shape, width: int, depth: int) -> int:
    """How many features a network has."""
    return width * (shape[1] >> depth) * (shape[2] >> depth)
