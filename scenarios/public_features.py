"""Features of a public backbone, and a public map that makes them easier to learn from under noise.

Whitening flattens the spectrum of the features, so that a unit of noise hurts all directions alike. It is fitted to the
public images that the backbone was trained on, where they are on this disk. Else each channel is standardised by what
BatchNorm's public scale and shift say of it. No private record is used for either.

>>> public = np.random.Generator(np.random.PCG64(0)).normal(size=(500, 2)) * [3.0, 1.0] + 7.0
>>> np.round(whitening(public)(public).std(axis=0), 1).tolist()
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.models.tapped import FeatureNet

Features = NDArray[np.floating]
Map = Callable[[Features], Features]

PUBLIC_IMAGES = 10_000
FLOOR = 0.01
"""Share of the mean eigenvalue that is added to the public covariance before its inverse root is taken."""

_CHUNK = 2000


def extracted(network: FeatureNet, images: NDArray[np.uint8], what: str, progress: Progress = silent) -> Features:
    """The features of uint8 images; `what` is what progress says."""
    import torch

    from dpdd.common.models.probe import extract

    parts = []
    for start in range(0, len(images), _CHUNK):
        parts.append(extract(network, torch.from_numpy(np.ascontiguousarray(images[start : start + _CHUNK]))))
        progress(what, min(start + _CHUNK, len(images)), len(images))
    return np.asarray(torch.cat(parts).numpy())


def normalisation(backbone: Backbone, progress: Progress = silent) -> tuple[Map, str]:
    """The best public map of features that this disk allows, and what it is."""
    import torch

    from dpdd.common import datasets
    from dpdd.scenarios import pretrain

    source = backbone.card.provenance.public_data
    if source not in pretrain.PUBLIC_DATA or not datasets.available(pretrain.PUBLIC_DATA[source].source):
        return standardising(backbone.network), "standardised by the backbone's BatchNorm"
    images = pretrain.public_images(source)[0]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:PUBLIC_IMAGES]
    public = extracted(backbone.network, images[order].numpy(), "features of public images", progress)
    return whitening(public), f"whitened by {len(public):,} images of {source}"


def whitening(public: Features) -> Map:
    """The map that gives `public` mean 0 and, small eigenvalues apart, covariance 1."""
    mean = public.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(np.cov(public.T.astype(np.float64)))
    floor = FLOOR * float(values.mean())
    matrix = (vectors / np.sqrt(np.maximum(values, 0.0) + floor)) @ vectors.T
    return lambda features: np.asarray((features - mean) @ matrix)


def standardising(network: FeatureNet) -> Map:
    """By mean and deviation of SiLU(shift + scale · z), z standard normal, for each channel of the last BatchNorm."""
    from dpdd.common.models.tapped import TappedNorm

    last = [module for module in network.modules() if isinstance(module, TappedNorm)][-1]
    scale, shift = (tensor.detach().double().numpy()[:, None] for tensor in (last.weight, last.bias))
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    active = shift + scale * nodes
    active /= 1.0 + np.exp(-active)
    mean = active @ weights / weights.sum()
    deviation = np.sqrt((active - mean[:, None]) ** 2 @ weights / weights.sum()) + 1e-6
    return lambda features: np.asarray((features - mean) / deviation)
