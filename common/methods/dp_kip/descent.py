"""The support set of DP-KIP, from noisy gradients: where it starts, and where they lead; all is post-processing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.randomness import gaussians, uniforms

MEAN, SPREAD = 0.5, 0.25
"""Of the pixels that the set starts from: noise, never records."""
_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-12
"""Adam's."""


def size_of(settings: GradientSettings, run: RunDescription) -> int:
    """Pixels of the support set."""
    return settings.support_per_class * len(run.classes) * int(np.prod(run.shape))


def start(settings: GradientSettings, run: RunDescription) -> NDArray[np.float32]:
    """The first support set: (images, C, H, W) in [0, 1]."""
    shape = (settings.support_per_class * len(run.classes), *run.shape)
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


def descend(
    gradients: Iterable[NDArray[np.floating]], settings: GradientSettings, run: RunDescription
) -> Iterator[NDArray[np.float32]]:
    """The support set after each step of Adam along these gradients of the free pixels; pixels stay in [0, 1]."""
    support, free = start(settings, run), free_pixels(settings, run).ravel()
    pixels = support.astype(np.float64).ravel()
    first = second = np.zeros(int(free.sum()))
    for step, gradient in enumerate(gradients, start=1):
        flat = np.asarray(gradient, np.float64).ravel()
        first = _FIRST * first + (1.0 - _FIRST) * flat
        second = _SECOND * second + (1.0 - _SECOND) * flat**2
        mean, variance = first / (1.0 - _FIRST**step), second / (1.0 - _SECOND**step)
        pixels[free] = np.clip(pixels[free] - settings.learning_rate * mean / (np.sqrt(variance) + _TINY), 0.0, 1.0)
        yield pixels.reshape(support.shape).astype(np.float32)
