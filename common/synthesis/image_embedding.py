"""One vector per image that keeps where things are: whitened features of the public backbone and a small picture.

Released are its class sums and its second moment over all records. That is enough for a classifier (`teacher`), for
class means and the covariance around them to match (`sps`), and for first sketches of images, as the small picture
is part of the vector. Its norm is at most 1 by construction, whatever the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.feature_network import FeatureNetwork

CONSTANT = 0.3
"""The last coordinate, before scaling: a classifier's offset, and a count of the class."""
REACH = 1.2
"""What vectors are divided by: features have norm 1, the picture at most 1, typically a third of it."""


@dataclass(frozen=True)
class ImageEmbedding:
    """How an image becomes a vector: so many whitened features, and a picture of `side` x `side` pixels."""

    features: int
    side: int
    channels: int

    @property
    def picture(self) -> slice:
        """Where the small picture lies."""
        return slice(self.features, self.features + self.channels * self.side**2)

    @property
    def dimensions(self) -> int:
        """Of the whole vector."""
        return self.features + self.channels * self.side**2 + 1

    @property
    def constant(self) -> float:
        """What each record adds to the last coordinate of its class, unless it was clipped."""
        return CONSTANT / REACH

    def of(self, network: FeatureNetwork, images: Tensor, features: Tensor) -> Tensor:
        """The vectors of images, from the network's features of them; of norm at most 1, and differentiable."""
        parts = []
        if self.features:
            parts.append(functional.normalize(network.whitening(features, self.features), dim=1, eps=1e-6))
        if self.side:
            small = functional.adaptive_avg_pool2d(images, self.side).flatten(1)
            parts.append(small / math.sqrt(small.shape[1]))
        parts.append(images.new_full((len(images), 1), CONSTANT))
        vectors = torch.cat(parts, 1) / REACH
        return vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1.0)

    def pictures(self, vectors: Tensor) -> Tensor:
        """The small pictures (N, channels, side, side) in vectors, up to what clipping took off."""
        scale = REACH * math.sqrt(self.channels) * self.side
        return (vectors[:, self.picture] * scale).unflatten(1, (self.channels, self.side, self.side))
