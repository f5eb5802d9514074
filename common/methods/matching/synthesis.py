"""Matching: images are optimised until the mean signals of each class match the released ones.

*Decoupled* (Dosser, DM): the draws are used over and over, for as many steps as one likes. *Coupled* (NDPDC, PSG): a
step per draw, each used once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.pieces import expand, expanded_set
from dpdd.common.methods.matching.schedule import draw_order, fingerprint_of, grid_of
from dpdd.common.methods.matching.settings import COUNT, SIGNAL, MethodSettings, SynthesisSettings
from dpdd.common.methods.matching.signals import Signals
from dpdd.common.methods.matching.specification import auxiliary, signal_count_weight, signals
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside, roughness
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise

IMAGES_TOGETHER = 50
"""In one forward pass, where settings leave it open: activations of twice as many no longer fit into a cache, and take
1.4 times as long for each (width 64)."""


def targets(statistics: Statistics, settings: MethodSettings, classes: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """Mean signals (draws, classes, length), and which classes stand out of the noise.

    Sums are divided by the expected number of records in a draw, from the noisy counts.
    """
    weight = signal_count_weight(settings)
    counts = statistics.sums[COUNT][:, 0]
    known = ~lost_in_noise(counts, statistics.noise)
    per_draw = np.maximum(counts / weight, 1.0) * settings.rate
    sums = statistics.sums[SIGNAL].reshape(settings.draws, classes, -1) / math.sqrt(1.0 - settings.count_share**2)
    return torch.from_numpy((sums / per_draw[None, :, None]).astype(np.float32)), known


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: SynthesisSettings, run: RunDescription
) -> LabelledSet:
    """Optimise all images of a few classes at a time, until their mean signals match."""
    task = MatchTask(statistics[-1], method, settings, run.public)
    numbers = range(task.batches)
    images = np.concatenate((run.runner or SynthesisRunner()).make(task, numbers, run.progress))
    return expanded_set(images, settings.parts, run)


@dataclass(frozen=True, eq=False)
class MatchTask:
    """What batches are made from; batch n holds the images of the n-th few classes."""

    statistics: Statistics
    method: MethodSettings
    settings: SynthesisSettings
    run: RunDescription

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def steps(self) -> int:
        """Of one batch."""
        return self.method.draws if self.method.schedule == "coupled" else self.settings.steps

    @cached_property
    def _signals(self) -> Signals:
        return signals(self.method, auxiliary(self.method, self.statistics.stage_input, self.run), self.run)

    def fingerprint(self, device: str) -> str:
        """Of everything that decides a batch."""
        return fingerprint_of(self, self.statistics, self.run, device, {})

    @property
    def batches(self) -> int:
        """How many batches make the set."""
        return math.ceil(len(self.run.classes) / self._classes_together)

    @property
    def _classes_together(self) -> int:
        images = self.run.images_per_class * self.settings.parts**2
        return self.settings.classes_per_batch or max(IMAGES_TOGETHER // images, 1)

    def members(self, number: int) -> range:
        """The labels of batch `number`."""
        first = number * self._classes_together
        return range(first, min(first + self._classes_together, len(self.run.classes)))

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of batch `number`, after each step."""
        generator = torch.Generator().manual_seed(subseed(self.run.public_seed, f"matching batch {number}"))
        members = self.members(number)
        pyramid = ImagePyramid(len(members) * self.run.images_per_class, self.run.image_shape, generator, device=device)
        if self.settings.start == "auxiliary" and "images" in self.statistics.stage_input:
            pyramid.start_from(self._drawn(members, generator).to(device))
        wanted, known = targets(self.statistics, self.method, len(self.run.classes))
        wanted = wanted[:, list(members)].to(device)
        weight = torch.from_numpy(known[list(members)]).to(wanted)
        return self._optimise(pyramid, members, wanted, weight, generator)

    def _drawn(self, members: range, generator: torch.Generator) -> Tensor:
        """Some of the generated images of each class."""
        images, labels = self.statistics.stage_input["images"], self.statistics.stage_input["labels"]
        picks = []
        for label in members:
            own = np.flatnonzero(labels == label)
            picks.append(own[torch.randint(len(own), (self.run.images_per_class,), generator=generator).numpy()])
        return torch.from_numpy(images[np.concatenate(picks)]).float() / 255.0

    def _optimise(
        self, pyramid: ImagePyramid, members: range, wanted: Tensor, weight: Tensor, generator: torch.Generator
    ) -> Iterator[ImagePyramid]:
        settings = self.settings
        labels = torch.tensor(members, device=wanted.device).repeat_interleave(self.run.images_per_class)
        labels = labels.repeat(settings.parts**2)
        optimiser = torch.optim.Adam(pyramid.levels, lr=settings.learning_rate, betas=(0.5, 0.9))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for draws in self._order(generator):
            images = pyramid.images()
            seen = expand(images, settings.parts)
            loss = settings.range_weight * outside(images) + settings.smoothness * roughness(images)
            for number in draws:
                draw = self._signals.draw(number)
                distances = self._distances(draw.of_class_means(seen, labels, members), wanted[number])
                loss = loss + (weight * distances).sum() / len(draws)
            optimiser.zero_grad(set_to_none=True)
            loss.backward(inputs=pyramid.levels)
            optimiser.step()
            schedule.step()
            yield pyramid

    def _distances(self, signals: Tensor, wanted: Tensor) -> Tensor:
        """How far each class is off: squared distance of features, angle of gradients (whose norm says little)."""
        if self.method.signal == "features":
            return (signals - wanted).square().sum(dim=1)
        return 1.0 - functional.cosine_similarity(signals, wanted, dim=1)

    def _order(self, generator: torch.Generator) -> Iterator[list[int]]:
        """The draws of each step."""
        of, made = self.method, self.settings
        return draw_order(of.schedule, of.draws, made.steps, made.draws_per_step, generator)

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class."""
        return grid_of(batches, self.run)
