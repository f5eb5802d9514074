"""The stages of a run: those of the generator, where one makes the auxiliary images, and last the one with the signals.

Images are matched without any of this, so another generator makes no difference to them (`dpdd.common.synthesis.code`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.generators import Generator
from dpdd.common.methods.matching.settings import MethodSettings
from dpdd.common.methods.matching.specification import (
    check_shape,
    signal_count_weight,
    signal_layout,
    with_dimensions,
)
from dpdd.common.privacy.clipping import Layout
from dpdd.common.synthesis.statistics import Statistics


def stages(settings: MethodSettings) -> int:
    """One, after those of the generator where auxiliary images are generated."""
    return matching_stage(settings) + 1


def matching_stage(settings: MethodSettings) -> int:
    """The number of the stage with the signals."""
    return generator_of(settings).stages if settings.auxiliary == "generated" else 0


def generator_of(settings: MethodSettings) -> Generator:
    """Who makes the auxiliary images; ConfigError where the settings do not fit."""
    return Generator.of(settings.generator, settings.generator_settings, settings.generator_synthesis)


def count_weight(settings: MethodSettings, stage: int) -> float | None:
    """What a record weighs in the released counts.

    Every draw has counts of its own. What is released is their sum over draws, divided by √draws so that its noise is
    that of a draw; a record is in `rate` × `draws` of them.
    """
    if stage < matching_stage(settings):
        generator = generator_of(settings)
        return generator.method.count_weight(generator.settings, stage)
    return signal_count_weight(settings)


def layout(settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
    """The released sums of a stage."""
    if stage < matching_stage(settings):
        generator = generator_of(settings)
        return generator.method.layout(generator.settings, run, stage)
    return signal_layout(settings, run)


def resolve(settings: MethodSettings, run: RunDescription, epsilon: float, delta: float) -> MethodSettings:
    """The settings with the number of dimensions that has the least predicted error, and the arithmetic of new
    requests; no record is involved.
    """
    check_shape(settings, run)
    if settings.auxiliary == "generated" and settings.generator != "dp-merf":
        generator = generator_of(settings)
        own = generator.method.resolve(generator.settings, run, epsilon, delta)
        settings = settings.model_copy(update={"generator_settings": own.on_wire()})
    return with_dimensions(settings, run, epsilon, delta)


def stage_input(
    statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
) -> Mapping[str, NDArray]:
    """What the next stage is asked with: the generator's own; auxiliary images, made of its noisy sums."""
    generator = generator_of(settings)
    if len(statistics) < matching_stage(settings):
        return generator.stage_input(statistics, run)
    generated = generator.images(statistics, math.ceil(settings.auxiliary_images / len(run.classes)), run)
    return {"images": generated.images, "labels": generated.labels}
