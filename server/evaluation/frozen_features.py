"""Classifiers on the frozen features of a public backbone, and the features of test images, which are computed once.

Linear probes, kernel regressions and SPS's teacher look at the same test images through the same network, whatever set
they learnt from. Features are remembered by what determines them: the network's SHA-256, the bytes of a batch of images
and the number of threads. So scores are the same to the last bit, and the second classifier costs a matrix product.
Test images are the coordinator's own; a silo's records never come here.

>>> remembered = FeatureMemory(most=1 << 10)
>>> images = torch.zeros(2, 1, 8, 8)
>>> computed = []
>>> def features(images):
...     computed.append(len(images))
...     return images.flatten(1)[:, :3]
>>> [remembered.of("a network's hash", features, images).tolist() for _ in range(2)] == [[[0.0] * 3] * 2] * 2, computed
(True, [2])
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.class_priors import Shifted

MOST_REMEMBERED = 1 << 28
"""Bytes: the features of a hundred thousand test images, or so. The ones used last stay."""


@dataclass(frozen=True, eq=False)
class OnBackbone:
    """A classifier that looks at images through a public network, which `sha256` names (empty: unknown)."""

    network: FeatureNetwork
    sha256: str
    head: Callable[[Tensor, Tensor], Tensor]
    """From images and the network's features of them to a logit for every class."""

    def __call__(self, images: Tensor) -> Tensor:
        """The logits, features and all."""
        return self.head(images, self.network.features(images))


class FeatureMemory:
    """Features of batches of images, up to so many bytes; those that were used last."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most, self._bytes = most, 0
        self._features: OrderedDict[tuple[str, str], Tensor] = OrderedDict()

    def of(self, sha256: str, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """The network's features of these images: computed, or remembered."""
        key = sha256, _digest(images)
        found = self._features.get(key)
        if found is None:
            found = self._features[key] = network(images)
            self._bytes += found.nbytes
        self._features.move_to_end(key)
        while self._bytes > self._most:
            self._bytes -= self._features.popitem(last=False)[1].nbytes
        return found


MEMORY = FeatureMemory()


def logits(classifier: Classifier, images: Tensor, memory: FeatureMemory | None = None) -> Tensor:
    """What a classifier says of images; features of a known network are remembered, in `MEMORY` by default."""
    memory = MEMORY if memory is None else memory
    if isinstance(classifier, Shifted):
        return classifier.shifted(logits(classifier.classifier, images, memory))
    if isinstance(classifier, OnBackbone) and classifier.sha256:
        return classifier.head(images, memory.of(classifier.sha256, classifier.network.features, images))
    return classifier(images)


def _digest(images: Tensor) -> str:
    about = f"{images.dtype} {tuple(images.shape)} {images.device} {torch.get_num_threads()}"
    pixels = images.detach().cpu().contiguous().numpy()
    return about + hashlib.sha256(pixels.reshape(-1).view("u1").data).hexdigest()
