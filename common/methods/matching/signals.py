"""What the matching methods compare images by: features of random networks, or gradients of their loss.

A run has `draws`. Draw i means: network i (modulo `networks`), view i, and, for features, the subspace of that network.
All of it follows from the request alone, so silos and coordinator build the same.

A signal is scaled so that a typical image has norm 1 (typical among auxiliary images), and is clipped there: by the
silo's sum for records, and by `clipped` for synthetic images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching.subspace import Subspace
from dpdd.common.models.integer_net import integer_features
from dpdd.common.models.random_net import RandomNet, feature_count, features
from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation

Shape = tuple[int, ...]

_FEATURE_STEPS, _BASIS_STEPS = 2.0**12, 2.0**24
_LARGEST_FEATURE = 2.0**18
FOR_A_NORM = 64  # auxiliary images are enough to know a typical norm

MOST_FEATURES = 1 << 20
"""Of a network: with more, sums over them in a subspace would not be exact."""


@dataclass(frozen=True)
class SignalSettings:
    """What decides the signals of a run; `dimensions` 0 means the whole signal, without a subspace."""

    kind: Literal["features", "gradients"]
    networks: int
    width: int
    depth: int
    dimensions: int
    moments: Literal[1, 2]
    whitening: float
    augment: bool
    flips: bool
    shape: Shape
    classes: int
    seed: int
    subspace_arithmetic: Literal["integer", "float64"] = "float64"

    @property
    def length(self) -> int:
        """Numbers in one signal."""
        if self.dimensions:
            return self.dimensions * self.moments
        count = feature_count(self.shape, self.width, self.depth)
        if self.kind == "features":
            return count
        kernels = self.width * 9 * (self.shape[0] + (self.depth - 1) * self.width)
        return kernels + self.classes * count


class Signals:
    """The signals of a run. `auxiliary` are public images (N, C, H, W) in [0, 1]."""

    def __init__(self, settings: SignalSettings, auxiliary: NDArray[np.float32]) -> None:
        self.settings = settings
        self._auxiliary = torch.from_numpy(auxiliary)
        self._lens = lru_cache(maxsize=kept_networks(settings))(self._make_lens)

    def draw(self, number: int) -> Draw:
        """Everything about draw `number`."""
        settings = self.settings
        augmentation = (
            SiameseAugmentation.draw(settings.seed, number, settings.flips)
            if settings.augment
            else SiameseAugmentation()
        )
        network, space, scale = self._lens(number % settings.networks)
        return Draw(settings, network, augmentation, space, scale)

    def _make_lens(self, number: int) -> tuple[RandomNet, Subspace | None, float]:
        """A network, its subspace, and what signals are divided by."""
        settings = self.settings
        network = RandomNet.draw(
            settings.seed, number, settings.shape, settings.width, settings.depth, settings.classes
        )
        few = self._auxiliary[:FOR_A_NORM]
        if settings.kind == "features" and settings.dimensions:
            values = self._of_auxiliary(network)
            space = subspace.fit(values, settings.dimensions, settings.seed, settings.whitening)
            signals = _moments(space(values), space, settings.moments)
            return (
                network,
                space,
                max(float(signals.norm(dim=1).median()), 0.5),
            )  # less if auxiliary images are all alike
        with torch.no_grad():
            if settings.kind == "features":
                signals = network.features(few)
            else:
                signals = gradients(network, few, torch.arange(len(few)) % settings.classes)
        return network, None, float(signals.norm(dim=1).median().clamp_min(1e-12))

    def _of_auxiliary(self, network: RandomNet) -> Tensor:
        """Features of the auxiliary images in double precision: what a subspace is fitted to."""
        if self.settings.subspace_arithmetic == "integer":
            return integer_features(self._auxiliary, network.kernels)
        return _in_double(network, self._auxiliary)

    def spectrum(self, number: int) -> Tensor:
        """The variances of a network's features over the auxiliary images, largest first."""
        values = self._of_auxiliary(self._lens(number)[0])
        variances = torch.linalg.svdvals(values - values.mean(dim=0)).square() / len(values)
        return variances


def network_bytes(settings: SignalSettings) -> int:
    """What a network with its subspace takes."""
    count = feature_count(settings.shape, settings.width, settings.depth)
    return 4 * settings.depth * 9 * settings.width**2 + 8 * count * max(settings.dimensions, settings.classes)


def kept_networks(settings: SignalSettings, most_bytes: int = 1 << 29) -> int:
    """How many networks with their subspaces are kept."""
    return max(2, min(settings.networks, most_bytes // network_bytes(settings)))


@torch.no_grad()
def _in_double(network: RandomNet, images: Tensor, batch: int = 16) -> Tensor:
    exact = network.to(torch.zeros((), dtype=torch.float64))
    return torch.cat([exact.features(part.double()) for part in images.split(batch)])


@dataclass(frozen=True, eq=False)
class Draw:
    """One network, one view, one subspace: from images to signals."""

    settings: SignalSettings
    network: RandomNet
    augmentation: SiameseAugmentation
    space: Subspace | None
    scale: float

    @torch.inference_mode()
    def of_records(self, images: Tensor, labels: Tensor) -> NDArray[np.float32]:
        """Signals (N, length), not yet clipped. A record's is the same to the last bit at any place in a batch."""
        seen = self.augmentation(images)
        if self.settings.kind == "gradients":
            return (gradients(self.network, seen, labels) / self.scale).numpy()
        values = self.network.features(seen)
        if self.space is None:
            return (values / self.scale).numpy()
        inside = torch.from_numpy(_exact_coordinates(values, self.space))
        return (_moments(inside, self.space, self.settings.moments) / self.scale).numpy().astype(np.float32)

    def of_class_means(self, images: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
        """Mean signal of the images of each of these `classes` (len(classes), length); differentiable."""
        network, seen = self.network.to(images), self.augmentation(images)
        if self.settings.kind == "gradients":
            return torch.stack([self._class_gradient(network, seen[labels == label], label) for label in classes])
        values = network.features(seen)
        if self.space is not None:
            values = _moments(self.space(values), self.space, self.settings.moments)
        values = clipped(values / self.scale)
        member = (labels[:, None] == torch.tensor(classes, device=labels.device)).to(values)
        mean: Tensor = (member / member.sum(dim=0).clamp_min(1.0)).T @ values
        return mean

    def _class_gradient(self, network: RandomNet, images: Tensor, label: int) -> Tensor:
        if not len(images):
            return torch.zeros(self.settings.length, device=images.device)
        weights = [weight.detach().requires_grad_(True) for weight in network.weights]
        wanted = torch.full((len(images),), label, device=images.device)
        loss = functional.cross_entropy(features(images, tuple(weights[:-1])) @ weights[-1].T, wanted)
        gradients_of_weights = torch.autograd.grad(loss, weights, create_graph=True)
        return torch.cat([part.flatten() for part in gradients_of_weights]) / self.scale


def _moments(inside: Tensor, space: Subspace, moments: int) -> Tensor:
    """Coordinates in a subspace, and with two moments their squares beside them."""
    return inside if moments == 1 else torch.cat([inside, space.squares(inside)], dim=1)


def clipped(signals: Tensor) -> Tensor:
    """Rows of norm at most 1."""
    return signals / signals.norm(dim=1, keepdim=True).clamp_min(1.0)


def gradients(network: RandomNet, images: Tensor, labels: Tensor) -> Tensor:
    """Every image's own gradient of the cross-entropy, all weights in a row (N, length).

    The scores are not a matrix product: those of some sizes round differently at the edges of their tiles.
    """

    def loss(weights: tuple[Tensor, ...], image: Tensor, label: Tensor) -> Tensor:
        scores = (features(image[None], weights[:-1]) * weights[-1]).sum(dim=1)
        return functional.cross_entropy(scores[None], label[None])

    each: Callable[..., tuple[Tensor, ...]] = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return torch.cat([part.flatten(1) for part in each(network.weights, images, labels)], dim=1)


def _exact_coordinates(values: Tensor, space: Subspace) -> NDArray[np.float64]:
    """Coordinates in the subspace by a product of whole numbers, so that the order of summation leaves no trace.

    Exact: a feature is at most 2^18 steps, and a direction has norm 2^24 or less over at most `MOST_FEATURES`
    entries, so no partial sum passes 2^18 · 2^24 · 2^10 = 2^52, nor 2^53 with the rounding of its entries.
    """
    steps = torch.round((values.double() - space.mean) * _FEATURE_STEPS).clamp(-_LARGEST_FEATURE, _LARGEST_FEATURE)
    basis = torch.round(space.basis * _BASIS_STEPS)
    coordinates: NDArray[np.float64] = (steps @ basis).numpy() / (_FEATURE_STEPS * _BASIS_STEPS * space.clip)
    return coordinates
