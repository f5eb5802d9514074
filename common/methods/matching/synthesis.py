"""Matching (DM, NDPDC, PSG, Dosser): one engine, the public half.

Released, for each of `draws`: the sums, class by class, of clipped signals (`signals.py`) over a Poisson sample of the
records; and noisy class counts. All draws are one release. Synthesis optimises images until the mean signals of each
class match. Two independent choices make the family:

=========  =====================  ==========================================================================
method     signal                 schedule
=========  =====================  ==========================================================================
Dosser     features, in a         *decoupled*: the draws are used over and over, for as many steps as one likes
           subspace
NDPDC      features               *coupled*: a step per draw, each used once
PSG        gradients              coupled
DM         features               decoupled, without noise (simulations only)
=========  =====================  ==========================================================================

The network and the view of a draw do not depend on the synthetic images, so coupled methods need no conversation
either: a step per draw can be made after all draws have arrived. This is what makes the family federated in one shot.

The subspace comes from auxiliary images: *dead leaves* drawn in code, or images that a first stage, a DP-MERF release
with `auxiliary_share` of the budget, allows to generate; those may also be what synthesis starts from.

Where we differ from the papers: counts are released, not public, and sums are divided by their expected number of
records; the sampling rate is a setting, not L / (private class size); noise is drawn once per draw and never again;
in a subspace, features are centred on the auxiliary mean before clipping, which leaves more of the norm to what
differs; PSG's networks are fresh in every draw, not trained on the synthetic set in between, which would need a
conversation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from dpdd.common.config import Settings
from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_merf import synthesis as dp_merf
from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching.signals import Signals, SignalSettings
from dpdd.common.privacy.accounting import calibrate
from dpdd.common.privacy.clipping import Layout, Segment, class_segment
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside, roughness
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner, fingerprint
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise

Shape = tuple[int, int, int]

SIGNAL, COUNT = "signal", "count"


class MethodSettings(Settings):
    """What is released; part of the request.

    `networks` of 0 means a new one for every draw. `dimensions` of 0 means no subspace; "auto" lets the coordinator
    pick by `subspace.best` before it asks, from `records_per_class`, a public guess of how many there are in all silos.
    `moments` of 2 adds the squares of coordinates in the subspace: how images of a class differ, not only their mean;
    `whitening` above 0 gives more weight to directions in which images differ less.
    `encoding` "short" sends 16 bits per number.
    """

    signal: Literal["features", "gradients"] = "features"
    schedule: Literal["decoupled", "coupled"] = "decoupled"
    draws: Annotated[int, Field(ge=1, le=20_000)] = 200
    networks: Annotated[int, Field(ge=0, le=20_000)] = 50
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    width: Annotated[int, Field(ge=4, le=512)] = 64
    depth: Annotated[int, Field(ge=1, le=4)] = 3
    dimensions: Annotated[int, Field(ge=0, le=2048)] | Literal["auto"] = "auto"
    moments: Literal[1, 2] = 1
    whitening: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    records_per_class: Annotated[int, Field(ge=1)] = 5000
    auxiliary: Literal["leaves", "generated"] = "leaves"
    auxiliary_images: Annotated[int, Field(ge=10, le=5000)] = 400
    auxiliary_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    augment: bool = True
    flips: bool = False
    count_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    encoding: Literal["short", "exact"] = "short"

    @model_validator(mode="after")
    def _fitting(self) -> MethodSettings:
        if self.signal == "gradients" and self.dimensions not in (0, "auto"):
            raise ValueError("a subspace is for features; gradients have dimensions = 0")
        if self.moments == 2 and (self.signal == "gradients" or self.dimensions == 0):
            raise ValueError("moments = 2 is for features in a subspace")
        if self.whitening and (self.signal == "gradients" or self.dimensions == 0):
            raise ValueError("whitening is for features in a subspace")
        if isinstance(self.dimensions, int) and self.dimensions >= self.auxiliary_images:
            raise ValueError(f"{self.auxiliary_images} auxiliary images have fewer than {self.dimensions} dimensions")
        return self


class SynthesisSettings(Settings):
    """How images are made; may change without asking the silos again.

    `steps` is for decoupled schedules: a coupled one has a step per draw. `parts` cuts each image into parts × parts
    pieces that are each enlarged to a full image (partition and expand): the set has parts² times as many images.
    `start` is where the images begin: noise, or the auxiliary images if they were generated.
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    draws_per_step: Annotated[int, Field(ge=1, le=1000)] = 1
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.1
    smoothness: Annotated[float, Field(ge=0.0)] = 0.0
    range_weight: Annotated[float, Field(ge=0.0)] = 10.0
    parts: Annotated[int, Field(ge=1, le=4)] = 1
    start: Literal["noise", "auxiliary"] = "noise"
    classes_per_batch: Annotated[int, Field(ge=1)] = 5


def stages(settings: MethodSettings) -> int:
    """Two where auxiliary images are generated from a release of their own."""
    return 2 if settings.auxiliary == "generated" else 1


def matching_stage(settings: MethodSettings) -> int:
    """The number of the stage with the signals."""
    return stages(settings) - 1


def count_weight(settings: MethodSettings, stage: int) -> float:
    """What a record weighs in the released counts.

    Every draw has counts of its own. What is released is their sum over draws, divided by √draws so that its noise is
    that of a draw; a record is in `rate` × `draws` of them.
    """
    if stage < matching_stage(settings):
        return embedding(settings).count_weight
    return settings.count_share * settings.rate * math.sqrt(settings.draws)


def embedding(settings: MethodSettings) -> dp_merf.MethodSettings:
    """The first stage's DP-MERF."""
    return dp_merf.MethodSettings(features=500)


def signal_settings(settings: MethodSettings, classes: int, shape: Sequence[int], seed: int) -> SignalSettings:
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
        tuple(shape),
        classes,
        seed,
    )


def draw_layout(settings: MethodSettings, classes: int, shape: Sequence[int]) -> Layout:
    """The sums of one draw."""
    length = signal_settings(settings, classes, shape, 0).length
    return Layout((class_segment(SIGNAL, length, classes), class_segment(COUNT, 1, classes)))


def layout(settings: MethodSettings, classes: int, stage: int = 0, shape: Sequence[int] = ()) -> Layout:
    """The released sums of a stage. Signals have a row per draw and class, the classes of a draw one after another."""
    if stage < matching_stage(settings):
        return dp_merf.layout(embedding(settings), classes)
    rows = tuple(tuple(range(label, settings.draws * classes, classes)) for label in range(classes))
    length = signal_settings(settings, classes, shape, 0).length
    return Layout((Segment(SIGNAL, length, settings.draws * classes, rows), class_segment(COUNT, 1, classes)))


def check_shape(settings: MethodSettings, shape: Sequence[int]) -> None:
    """ConfigError unless the networks can look at records of this shape."""
    if len(shape) != 3 or min(shape[1:]) >> settings.depth < 1:
        raise ConfigError(f"networks of depth {settings.depth} are not for records of shape {tuple(shape)}")


def resolve(
    settings: MethodSettings, *, epsilon: float, delta: float, classes: int, shape: Sequence[int], seed: int
) -> MethodSettings:
    """The settings with the number of dimensions that has the least predicted error; no record is involved."""
    check_shape(settings, shape)
    if settings.dimensions != "auto":
        return settings
    if settings.signal == "gradients":
        return settings.model_copy(update={"dimensions": 0})
    noise = 0.0
    if math.isfinite(epsilon):
        noise = calibrate(lambda sigma: sampled_event(sigma, settings.rate, settings.draws), epsilon, delta)
    whole = settings.model_copy(update={"dimensions": 0})
    spectrum = signals(whole, auxiliary(settings, {}, shape, seed), classes, shape, seed).spectrum(0)
    most = min(settings.auxiliary_images // 2, len(spectrum))
    found = subspace.best(spectrum, noise, settings.rate * settings.records_per_class, most)
    return settings.model_copy(update={"dimensions": found})


def auxiliary(
    settings: MethodSettings, stage_input: Mapping[str, NDArray], shape: Sequence[int], seed: int
) -> NDArray[np.float32]:
    """The auxiliary images (N, C, H, W) in [0, 1]: those that the request brings, or dead leaves."""
    if "images" in stage_input:
        return stage_input["images"].astype(np.float32) / np.float32(255.0)
    channels, height, width = shape
    return dead_leaves(settings.auxiliary_images, channels, height, width, subseed(seed, "auxiliary leaves"))


def signals(
    settings: MethodSettings, images: NDArray[np.float32], classes: int, shape: Sequence[int], seed: int
) -> Signals:
    """The signals of a run with these auxiliary images."""
    return Signals(signal_settings(settings, classes, shape, seed), images)


def stage_input(
    statistics: Sequence[Statistics],
    settings: MethodSettings,
    *,
    classes: tuple[str, ...],
    shape: Shape,
    public_seed: int,
) -> dict[str, NDArray]:
    """What the second stage is asked with: auxiliary images, generated from the noisy sums of the first."""
    per_class = math.ceil(settings.auxiliary_images / len(classes))
    made = dp_merf.synthesise(
        statistics[:1],
        embedding(settings),
        dp_merf.SynthesisSettings(),
        classes=classes,
        shape=shape,
        images_per_class=per_class,
        public_seed=public_seed,
    )
    return {"images": made.images, "labels": made.labels}


def stage_input_shapes(settings: MethodSettings, classes: int, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The arrays that `stage_input` gives."""
    count = classes * math.ceil(settings.auxiliary_images / classes)
    return {"images": (count, *shape), "labels": (count,)}


def targets(statistics: Statistics, settings: MethodSettings, classes: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """Mean signals (draws, classes, length), and which classes stand out of the noise.

    Sums are divided by the expected number of records in a draw, from the noisy counts.
    """
    weight = count_weight(settings, matching_stage(settings))
    counts = statistics.sums[COUNT][:, 0]
    known = ~lost_in_noise(counts, statistics.noise)
    per_draw = np.maximum(counts / weight, 1.0) * settings.rate
    sums = statistics.sums[SIGNAL].reshape(settings.draws, classes, -1) / math.sqrt(1.0 - settings.count_share**2)
    return torch.from_numpy((sums / per_draw[None, :, None]).astype(np.float32)), known


def expand(images: Tensor, parts: int) -> Tensor:
    """Each image cut into parts × parts pieces, each piece enlarged: (N, ...) to (parts² N, ...), piece by piece.

    >>> expand(torch.zeros(3, 1, 28, 28), 2).shape
    torch.Size([12, 1, 28, 28])
    """
    if parts == 1:
        return images
    height, width = images.shape[2] // parts, images.shape[3] // parts
    pieces = [
        images[:, :, row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row in range(parts)
        for column in range(parts)
    ]
    return functional.interpolate(torch.cat(pieces), images.shape[2:], mode="bilinear", align_corners=False)


def synthesise(
    statistics: Sequence[Statistics],
    method: MethodSettings,
    settings: SynthesisSettings,
    *,
    classes: tuple[str, ...],
    shape: Shape,
    images_per_class: int,
    public_seed: int,
    runner: SynthesisRunner | None = None,
    progress: Progress = silent,
) -> LabelledSet:
    """Optimise all images of a few classes at a time, until their mean signals match."""
    task = MatchTask(statistics[-1], method, settings, classes, shape, public_seed, images_per_class)
    numbers = range(math.ceil(len(classes) / settings.classes_per_batch))
    made = np.concatenate((runner or SynthesisRunner()).make(task, numbers, progress))
    labels = np.arange(len(classes)).repeat(images_per_class)
    if settings.parts > 1:
        enlarged = expand(torch.from_numpy(made).float(), settings.parts).clamp(0.0, 255.0).round().to(torch.uint8)
        made, labels = enlarged.numpy(), np.tile(labels, settings.parts**2)
        order = np.argsort(labels, kind="stable")
        made, labels = made[order], labels[order]
    return LabelledSet(np.ascontiguousarray(made), labels, classes)


@dataclass(frozen=True, eq=False)
class MatchTask:
    """What batches are made from; batch n holds the images of the n-th few classes."""

    statistics: Statistics
    method: MethodSettings
    settings: SynthesisSettings
    classes: tuple[str, ...]
    shape: Shape
    public_seed: int
    per_class: int

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def steps(self) -> int:
        """Of one batch."""
        return self.method.draws if self.method.schedule == "coupled" else self.settings.steps

    @cached_property
    def _signals(self) -> Signals:
        images = auxiliary(self.method, self.statistics.stage_input, self.shape, self.public_seed)
        return signals(self.method, images, len(self.classes), self.shape, self.public_seed)

    def fingerprint(self, device: str) -> str:
        """Of everything that decides a batch."""
        facts = {
            "method": self.method.model_dump(mode="json"),
            "settings": self.settings.model_dump(mode="json"),
            "classes": len(self.classes),
            "shape": self.shape,
            "seed": self.public_seed,
            "per class": self.per_class,
            "noise": self.statistics.noise,
            "device": device,
        }
        groups = (("sum", self.statistics.sums), ("stage_input", self.statistics.stage_input))
        return fingerprint(facts, {f"{kind} {name}": array for kind, group in groups for name, array in group.items()})

    def members(self, number: int) -> range:
        """The labels of batch `number`."""
        first = number * self.settings.classes_per_batch
        return range(first, min(first + self.settings.classes_per_batch, len(self.classes)))

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of batch `number`, after each step."""
        generator = torch.Generator().manual_seed(subseed(self.public_seed, f"matching batch {number}"))
        members = self.members(number)
        pyramid = ImagePyramid(len(members) * self.per_class, self.shape, generator, device=device)
        if self.settings.start == "auxiliary" and "images" in self.statistics.stage_input:
            pyramid.start_from(self._drawn(members, generator).to(device))
        wanted, known = targets(self.statistics, self.method, len(self.classes))
        wanted = wanted[:, list(members)].to(device)
        weight = torch.from_numpy(known[list(members)]).to(wanted)
        return self._optimise(pyramid, members, wanted, weight, generator)

    def _drawn(self, members: range, generator: torch.Generator) -> Tensor:
        """Some of the generated images of each class."""
        images, labels = self.statistics.stage_input["images"], self.statistics.stage_input["labels"]
        picks = []
        for label in members:
            own = np.flatnonzero(labels == label)
            picks.append(own[torch.randint(len(own), (self.per_class,), generator=generator).numpy()])
        return torch.from_numpy(images[np.concatenate(picks)]).float() / 255.0

    def _optimise(
        self, pyramid: ImagePyramid, members: range, wanted: Tensor, weight: Tensor, generator: torch.Generator
    ) -> Iterator[ImagePyramid]:
        settings = self.settings
        labels = torch.tensor(members, device=wanted.device).repeat_interleave(self.per_class)
        labels = labels.repeat(settings.parts**2)
        optimiser = torch.optim.Adam(pyramid.levels, lr=settings.learning_rate, betas=(0.5, 0.9))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for draws in self._order(generator):
            images = pyramid.images()
            seen = expand(images, settings.parts)
            loss = settings.range_weight * outside(images) + settings.smoothness * roughness(images)
            for number in draws:
                draw = self._signals.draw(number)
                gaps = self._gap(draw.of_class_means(seen, labels, members), wanted[number])
                loss = loss + (weight * gaps).sum() / len(draws)
            optimiser.zero_grad(set_to_none=True)
            loss.backward(inputs=pyramid.levels)
            optimiser.step()
            schedule.step()
            yield pyramid

    def _gap(self, found: Tensor, wanted: Tensor) -> Tensor:
        """How far each class is off: squared distance of features, angle of gradients (whose norm says little)."""
        if self.method.signal == "features":
            return (found - wanted).square().sum(dim=1)
        return 1.0 - functional.cosine_similarity(found, wanted, dim=1)

    def _order(self, generator: torch.Generator) -> Iterator[list[int]]:
        """The draws of each step: all of them once, in order; or random ones, all equally often."""
        if self.method.schedule == "coupled":
            yield from ([number] for number in range(self.method.draws))
            return
        waiting: deque[int] = deque()
        for _ in range(self.settings.steps):
            while len(waiting) < self.settings.draws_per_step:
                waiting += torch.randperm(self.method.draws, generator=generator).tolist()
            yield [waiting.popleft() for _ in range(self.settings.draws_per_step)]

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class."""
        shown = np.concatenate(batches)
        labels = np.arange(len(shown) // self.per_class).repeat(self.per_class)
        return LabelledSet(shown, labels, self.classes).preview(per_class=10)
