"""What the silos of a run measure: signals, their layout, the auxiliary images; all from the request alone.

Stages before it, where a generator makes the auxiliary images, are in `stages`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching.settings import COUNT, SIGNAL, MethodSettings
from dpdd.common.methods.matching.signals import Signals, SignalSettings
from dpdd.common.privacy.accounting import calibrate
from dpdd.common.privacy.clipping import Layout, Segment, class_segment
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.randomness import subseed


def signal_count_weight(settings: MethodSettings) -> float:
    """What a record weighs in the counts of all draws."""
    return settings.count_share * settings.rate * math.sqrt(settings.draws)


def signal_settings(settings: MethodSettings, run: RunDescription) -> SignalSettings:
    """What decides the signals."""
    if settings.dimensions == "auto":
        raise ValueError('dimensions = "auto" is for coordinators: a request names the number they picked')
    return SignalSettings(
        settings.signal,
        settings.networks or settings.draws,
        settings.width,
        settings.depth,
        settings.dimensions,
        settings.moments,
        settings.whitening,
        settings.augment,
        settings.flips,
        run.shape,
        len(run.classes),
        run.public_seed,
        settings.subspace_arithmetic or "float64",
    )


def draw_layout(settings: MethodSettings, run: RunDescription) -> Layout:
    """The sums of one draw."""
    length, classes = signal_settings(settings, run).length, len(run.classes)
    return Layout((class_segment(SIGNAL, length, classes), class_segment(COUNT, 1, classes)))


def signal_layout(settings: MethodSettings, run: RunDescription) -> Layout:
    """The released sums of all draws: a row per draw and class, the classes of a draw one after another."""
    classes = len(run.classes)
    rows = tuple(tuple(range(label, settings.draws * classes, classes)) for label in range(classes))
    length = signal_settings(settings, run).length
    return Layout((Segment(SIGNAL, length, settings.draws * classes, rows), class_segment(COUNT, 1, classes)))


def check_shape(settings: MethodSettings, run: RunDescription) -> None:
    """ConfigError unless the networks can look at records of this shape."""
    if run.kind is not DataKind.IMAGE or min(run.shape[1:]) >> settings.depth < 1:
        raise ConfigError(f"networks of depth {settings.depth} are not for records of shape {run.shape}")


def with_dimensions(settings: MethodSettings, run: RunDescription, epsilon: float, delta: float) -> MethodSettings:
    """The settings with the number of dimensions that has the least predicted error, and the arithmetic of new
    requests; no record is involved.
    """
    if settings.dimensions == "auto" and settings.signal == "gradients":
        return settings.model_copy(update={"dimensions": 0})
    if settings.dimensions and settings.subspace_arithmetic is None:
        settings = settings.model_copy(update={"subspace_arithmetic": "integer"})
    if settings.dimensions != "auto":
        return settings
    noise = 0.0
    if math.isfinite(epsilon):
        noise = calibrate(lambda sigma: sampled_event(sigma, settings.rate, settings.draws), epsilon, delta)
    whole = settings.model_copy(update={"dimensions": 0})
    spectrum = signals(whole, auxiliary(settings, {}, run), run).spectrum(0)
    most = min(settings.auxiliary_images // 2, len(spectrum))
    dimensions = subspace.best(spectrum, noise, settings.rate * settings.records_per_class, most)
    return settings.model_copy(update={"dimensions": dimensions})


def auxiliary(settings: MethodSettings, stage_input: Mapping[str, NDArray], run: RunDescription) -> NDArray[np.float32]:
    """The auxiliary images (N, C, H, W) in [0, 1]: those that the request brings, or dead leaves."""
    if "images" in stage_input:
        return stage_input["images"].astype(np.float32) / np.float32(255.0)
    seed = subseed(run.public_seed, "auxiliary leaves")
    return dead_leaves(settings.auxiliary_images, *run.image_shape, seed)


def signals(settings: MethodSettings, images: NDArray[np.float32], run: RunDescription) -> Signals:
    """The signals of a run with these auxiliary images."""
    return Signals(signal_settings(settings, run), images)


def stage_input_shapes(settings: MethodSettings, run: RunDescription) -> dict[str, tuple[int, ...]]:
    """The arrays that the stage with the signals is asked with."""
    count = len(run.classes) * math.ceil(settings.auxiliary_images / len(run.classes))
    return {"images": (count, *run.shape), "labels": (count,)}
