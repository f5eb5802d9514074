"""What DP-GENG releases, stage by stage: the generator's sums, features under the extractors, the expert's gradients.

>>> from dpdd.common.methods.dp_geng.settings import MethodSettings
>>> [part_of(MethodSettings(), stage) for stage in range(stages(MethodSettings()))]
['generator', 'matching', 'expert']
>>> stages(MethodSettings(shares=(1, 0, 1)))
2
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_geng.expert import parameter_count
from dpdd.common.methods.dp_geng.settings import COUNT, EXPERT, GRADIENT, SIZE, MethodSettings
from dpdd.common.methods.generators import Generator
from dpdd.common.methods.matching import settings as matching
from dpdd.common.methods.matching import specification as matching_specification
from dpdd.common.methods.matching.signals import Signals
from dpdd.common.models.random_net import RandomNet
from dpdd.common.privacy.clipping import Layout, class_segment, global_segment

Part = Literal["generator", "matching", "expert"]
ArrayForm = tuple[str, tuple[int, ...]]
"""Dtype and shape of an array that a stage is asked with."""

KERNELS, IMAGES = "kernels-{}", "images"
"""What the matching stage is asked with: the extractors' kernels, layer by layer, and some generated images."""


def generator_of(settings: MethodSettings) -> Generator:
    """Who makes the generated images; ConfigError where the settings do not fit."""
    return Generator.of(settings.generator, settings.generator_settings, settings.generator_synthesis)


def parts_in_order(settings: MethodSettings) -> list[tuple[Part, int]]:
    """The parts that release something, and in how many stages."""
    planned: list[tuple[Part, int]] = [("generator", generator_of(settings).stages)]
    if settings.matches:
        planned.append(("matching", 1))
    if settings.fine_tunes:
        planned.append(("expert", 1))
    return planned


def stages(settings: MethodSettings) -> int:
    """Of all parts together."""
    return sum(count for _, count in parts_in_order(settings))


def part_of(settings: MethodSettings, stage: int) -> Part:
    """Whose stage this is."""
    order: list[Part] = [part for part, count in parts_in_order(settings) for _ in range(count)]
    return order[stage]


def stage_of(settings: MethodSettings, part: Part) -> int:
    """The (first) stage of a part."""
    return next(stage for stage in range(stages(settings)) if part_of(settings, stage) == part)


def matching_settings(settings: MethodSettings) -> matching.MethodSettings:
    """The matching stage, as the matching family has it."""
    return matching.MethodSettings(
        schedule=settings.schedule,
        draws=settings.draws,
        networks=settings.networks,
        rate=settings.rate,
        width=settings.width,
        depth=settings.depth,
        dimensions=settings.dimensions,
        moments=settings.moments,
        whitening=settings.whitening,
        auxiliary_images=settings.auxiliary_images,
        augment=settings.augment,
        flips=settings.flips,
        count_share=settings.count_share,
        encoding=settings.encoding,
    )


def expert_layout(settings: MethodSettings, run: RunDescription) -> Layout:
    """The sums of one step of DP-SGD, and of all of them added up: a gradient over all records, and counts."""
    classes = len(run.classes)
    length = parameter_count(settings, run.image_shape, classes)
    return Layout((global_segment(GRADIENT, length, classes), class_segment(COUNT, 1, classes)))


def layout(settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
    """The released sums of a stage."""
    match part_of(settings, stage):
        case "generator":
            generator = generator_of(settings)
            return generator.method.layout(generator.settings, run, stage)
        case "matching":
            return matching_specification.signal_layout(matching_settings(settings), run)
        case "expert":
            return expert_layout(settings, run)


def count_weight(settings: MethodSettings, stage: int) -> float | None:
    """What a record weighs in the released counts of a stage; those of all draws, or steps, divided by their root."""
    match part_of(settings, stage):
        case "generator":
            generator = generator_of(settings)
            return generator.method.count_weight(generator.settings, stage)
        case "matching":
            return matching_specification.signal_count_weight(matching_settings(settings))
        case "expert":
            return settings.count_share * settings.expert_rate * math.sqrt(settings.expert_steps)


def input_forms(settings: MethodSettings, run: RunDescription, part: Part) -> Mapping[str, ArrayForm]:
    """The arrays that a stage of this part is asked with; those of a generator's stages are its own affair."""
    if part == "matching":
        shapes = kernel_shapes(settings, run)
        kernels = {KERNELS.format(layer): ("float32", (settings.networks, *shape)) for layer, shape in shapes.items()}
        return {**kernels, IMAGES: ("uint8", (settings.auxiliary_images, *run.shape))}
    if part == "expert":
        return {
            EXPERT: ("float32", (parameter_count(settings, run.image_shape, len(run.classes)),)),
            SIZE: ("float64", (1,)),
        }
    return {}


def kernel_shapes(settings: MethodSettings, run: RunDescription) -> dict[int, tuple[int, ...]]:
    """Of an extractor, layer by layer."""
    widths = [run.image_shape[0], *[settings.width] * settings.depth]
    return {layer: (settings.width, widths[layer], 3, 3) for layer in range(settings.depth)}


def extractors(settings: MethodSettings, stage_input: Mapping[str, NDArray]) -> list[RandomNet]:
    """The networks that the matching stage is asked with; their heads are of no use any more."""
    layers = [torch.from_numpy(np.array(stage_input[KERNELS.format(layer)])) for layer in range(settings.depth)]
    return [
        RandomNet(tuple(layer[number] for layer in layers), torch.zeros(1, 1)) for number in range(settings.networks)
    ]


def signals(settings: MethodSettings, stage_input: Mapping[str, NDArray], run: RunDescription) -> Signals:
    """What the matching stage measures: features under the extractors, as the request has them."""
    images = stage_input[IMAGES].astype(np.float32) / np.float32(255.0)
    of = matching_specification.signal_settings(matching_settings(settings), run)
    return Signals(of, images, extractors(settings, stage_input))


@lru_cache(maxsize=16)
def schedule(steps: int) -> NDArray[np.float64]:
    """By how much each step of DP-SGD counts: the learning rate falls along a straight line, to nearly nothing.

    >>> schedule(4).tolist()
    [1.0, 0.75, 0.5, 0.25]
    """
    return 1.0 - np.arange(steps) / steps


def step_length(settings: MethodSettings, size: float) -> float:
    """By what a unit of a step's noisy sum moves a weight, where the learning rate is full.

    Sums are divided by the expected size of a sample, from `size`, the public number of records in a silo.
    """
    gradient_share = math.sqrt(1.0 - settings.count_share**2)
    expected = max(settings.expert_rate * size, 1.0)
    return settings.expert_learning_rate * settings.expert_clip / (gradient_share * expected)
