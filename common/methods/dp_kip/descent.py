"""The support set of DP-KIP, from noisy gradients: where it starts, and where they lead; all is post-processing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.features import network_of, pulled_back
from dpdd.common.methods.dp_kip.row_marginals import started_anew
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.dp_kip.table_inputs import support_shape
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.randomness import gaussians, uniforms

MEAN, SPREAD = 0.5, 0.25
"""Of the pixels that the set starts from: noise, never records."""
_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-12
"""Adam's."""


def size_of(settings: GradientSettings, run: RunDescription) -> int:
    """Pixels of the support set."""
    return settings.support_per_class * len(run.classes) * int(np.prod(support_shape(run)))


def start(settings: GradientSettings, run: RunDescription) -> NDArray[np.float32]:
    """The first support set: (images, C, H, W), or (rows, cells), in [0, 1]."""
    shape = (settings.support_per_class * len(run.classes), *support_shape(run))
    pixels = MEAN + SPREAD * gaussians(run.public_seed, "kip support", shape)
    return np.clip(pixels, 0.0, 1.0).astype(np.float32)


def labels_of(settings: GradientSettings, run: RunDescription) -> NDArray[np.int64]:
    """Fixed and balanced, as in the paper: class after class."""
    return np.arange(len(run.classes)).repeat(settings.support_per_class)


def free_pixels(settings: GradientSettings, run: RunDescription) -> NDArray[np.bool_]:
    """Which pixels of the support set may change: (images, C × H × W)."""
    count = size_of(settings, run)
    free = np.ones(count, np.bool_)
    if settings.frozen:
        order = np.argsort(uniforms(run.public_seed, "kip frozen pixels", count), kind="stable")
        free[order[: min(round(settings.frozen * count), count - 1)]] = False
    return free.reshape(settings.support_per_class * len(run.classes), -1)


@dataclass(frozen=True, eq=False)
class Descent:
    """A support set on its way along noisy gradients, with Adam's moments; pixels stay in [0, 1]."""

    settings: GradientSettings
    run: RunDescription
    pixels: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    step: int
    shape: tuple[int, ...]
    free: NDArray[np.bool_]
    network: FeatureNetwork | None
    marginals: NDArray[np.float64] | None = None
    """The sums of one-hot rows so far, where they are released beside."""
    anew: bool = False

    @classmethod
    def begin(cls, settings: GradientSettings, run: RunDescription) -> Descent:
        """Before the first step."""
        support, free = start(settings, run), free_pixels(settings, run).ravel()
        nothing = np.zeros(int(free.sum()))
        network = network_of(settings, run) if settings.clip_in == "features" else None
        pixels = support.astype(np.float64).ravel()
        return cls(settings, run, pixels, nothing, nothing, 0, support.shape, free, network)

    @property
    def support(self) -> NDArray[np.float32]:
        """The support set (images, C, H, W)."""
        return self.pixels.reshape(self.shape).astype(np.float32)

    def along(self, gradient: NDArray[np.floating]) -> Descent:
        """One step of Adam along a gradient of free pixels; one of features is led back to pixels first."""
        flat = np.asarray(gradient, np.float64).ravel()
        if self.network is not None:
            scale = max(float(np.abs(flat).max()), 1e-30)  # Adam takes no notice, and single precision does
            flat = pulled_back(self.network, self.support, flat / scale).astype(np.float64).ravel()[self.free] * scale
        first = _FIRST * self.first + (1.0 - _FIRST) * flat
        second = _SECOND * self.second + (1.0 - _SECOND) * flat**2
        step, pixels = self.step + 1, self.pixels.copy()
        mean, variance = first / (1.0 - _FIRST**step), second / (1.0 - _SECOND**step)
        change = self.settings.learning_rate * mean / (np.sqrt(variance) + _TINY)
        pixels[self.free] = np.clip(pixels[self.free] - change, 0.0, 1.0)
        return replace(self, pixels=pixels, first=first, second=second, step=step)

    def with_marginals(self, marginals: NDArray[np.float64]) -> Descent:
        """With those of the step that was just made: after the first `start_steps` the set starts anew, and Adam."""
        total = marginals if self.marginals is None else self.marginals + marginals
        if self.anew or self.step < self.settings.start_steps:
            return replace(self, marginals=total)
        support, nothing = started_anew(total, self.settings, self.run), np.zeros_like(self.first)
        pixels = support.astype(np.float64).ravel()
        return replace(self, pixels=pixels, first=nothing, second=nothing, step=0, marginals=total, anew=True)


def descend(
    gradients: Iterable[NDArray[np.floating]], settings: GradientSettings, run: RunDescription
) -> Iterator[NDArray[np.float32]]:
    """The support set after each step along these gradients."""
    descent = Descent.begin(settings, run)
    for gradient in gradients:
        descent = descent.along(gradient)
        yield descent.support
