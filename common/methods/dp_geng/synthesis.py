"""DP-GENG: images begin as generated ones, and are optimised until their mean features match, with an expert's advice.

The loss of a step: the squared distance of each class's mean features from the released ones (eq. 2, whose noise was
drawn once, in the silo), and `expert_weight` times the expert's part (eq. 4). All of it is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_geng import extractors
from dpdd.common.methods.dp_geng.expert import fresh, pretrained, set_vector
from dpdd.common.methods.dp_geng.initialisation import assembled, nearest_to_centres
from dpdd.common.methods.dp_geng.settings import (
    COUNT,
    EXPERT,
    GRADIENT,
    SIZE,
    MethodSettings,
    SynthesisSettings,
)
from dpdd.common.methods.dp_geng.specification import (
    count_weight,
    generator_of,
    matching_settings,
    part_of,
    schedule,
    signals,
    stage_of,
    step_length,
)
from dpdd.common.methods.matching.pieces import expand, expanded_set
from dpdd.common.methods.matching.schedule import draw_order, fingerprint_of, grid_of
from dpdd.common.methods.matching.signals import Signals
from dpdd.common.methods.matching.synthesis import targets
from dpdd.common.models.random_net import RandomNet
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise


def stage_input(
    statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
) -> Mapping[str, NDArray]:
    """What the next stage is asked with: the generator's own, extractors, or the expert's first weights."""
    part = part_of(settings, len(statistics))
    if part == "generator":
        return generator_of(settings).stage_input(statistics, run)
    generated = generator_of(settings).images(statistics, settings.generated_per_class, run)
    if part == "matching":
        return extractors.stage_input(settings, generated, run)
    return {EXPERT: _pretrained(settings, generated, run), SIZE: np.array([silo_size(statistics, settings)])}


def _pretrained(settings: MethodSettings, generated: LabelledSet, run: RunDescription) -> NDArray[np.float32]:
    images, labels = torch.from_numpy(generated.images).float() / 255.0, torch.from_numpy(generated.labels)
    return pretrained(settings, images, labels, len(run.classes), run.public_seed)


def silo_size(statistics: Sequence[Statistics], settings: MethodSettings) -> float:
    """How many records a silo has on average, by the noisy counts of the first stage; 1 at least."""
    records = float(statistics[0].sums[COUNT].sum()) / generator_of(settings).count_weight
    return max(records / statistics[0].silos, 1.0)


def expert_weights(statistics: Statistics, settings: MethodSettings, stage: int) -> NDArray[np.float64]:
    """The expert of all silos: the first weights, and the mean of what silos changed of them.

    Each silo's DP-SGD starts from the same weights and divides by the same expected size, so that the change of one
    with more records is larger; the mean over silos is the sum of changes over how many silos of that size the counts
    are worth. With one silo that is about 1, and its own change is taken as it is.
    """
    size, counts = float(statistics.stage_input[SIZE][0]), statistics.sums[COUNT][:, 0]
    weight = count_weight(settings, stage)
    assert weight is not None
    worth = float(statistics.silos)
    total, noise = float(counts.sum()), statistics.noise * math.sqrt(len(counts))
    if statistics.silos > 1 and not lost_in_noise(np.array([total]), noise)[0]:
        worth = min(max(total / weight / size, 1.0), 2.0 * statistics.silos)
    moved = statistics.sums[GRADIENT][0] * float(np.linalg.norm(schedule(settings.expert_steps)))
    first = statistics.stage_input[EXPERT].astype(np.float64)
    return first - step_length(settings, size) / worth * moved


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: SynthesisSettings, run: RunDescription
) -> LabelledSet:
    """Optimise all images of a few classes at a time, and enlarge their parts."""
    generated = generator_of(method).images(statistics, method.generated_per_class, run)
    task = GuidedTask(
        _matching_statistics(statistics, method, generated, run),
        _expert(statistics, method, generated, run) if settings.expert_weight else None,
        generated,
        method,
        settings,
        run.public,
    )
    numbers = range(math.ceil(len(run.classes) / settings.classes_per_batch))
    images = np.concatenate((run.runner or SynthesisRunner()).make(task, numbers, run.progress))
    return expanded_set(images, settings.parts, run)


def _matching_statistics(
    statistics: Sequence[Statistics], method: MethodSettings, generated: LabelledSet, run: RunDescription
) -> Statistics:
    """Those of the matching stage; without one, extractors alone."""
    if method.matches:
        return statistics[stage_of(method, "matching")]
    return Statistics({}, 0.0, 1, extractors.stage_input(method, generated, run))


def _expert(
    statistics: Sequence[Statistics], method: MethodSettings, generated: LabelledSet, run: RunDescription
) -> NDArray[np.float64]:
    """The weights of the expert: fine-tuned, or, without a stage for that, as generated images made it."""
    if method.fine_tunes:
        stage = stage_of(method, "expert")
        return expert_weights(statistics[stage], method, stage)
    return _pretrained(method, generated, run).astype(np.float64)


@dataclass(frozen=True, eq=False)
class GuidedTask:
    """What batches are made from; batch n holds the images of the n-th few classes."""

    statistics: Statistics
    expert: NDArray[np.float64] | None
    generated: LabelledSet
    method: MethodSettings
    settings: SynthesisSettings
    run: RunDescription

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def steps(self) -> int:
        """Of one batch."""
        if not self.settings.changes:
            return 1
        return self.method.draws if self.method.schedule == "coupled" else self.settings.steps

    @cached_property
    def _signals(self) -> Signals:
        return signals(self.method, self.statistics.stage_input, self.run)

    def fingerprint(self, device: str) -> str:
        """Of everything that decides a batch."""
        further: dict[str, NDArray] = {"generated": self.generated.images, "labels": self.generated.labels}
        if self.expert is not None:
            further["expert"] = self.expert
        return fingerprint_of(self, self.statistics, self.run, device, further)

    def members(self, number: int) -> range:
        """The labels of batch `number`."""
        first = number * self.settings.classes_per_batch
        return range(first, min(first + self.settings.classes_per_batch, len(self.run.classes)))

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of batch `number`, after each step."""
        generator = torch.Generator().manual_seed(subseed(self.run.public_seed, f"dp-geng batch {number}"))
        members = self.members(number)
        pyramid = ImagePyramid(len(members) * self.run.images_per_class, self.run.image_shape, generator, device=device)
        if self.settings.start != "noise":
            pyramid.start_at(self._beginning(members, generator).to(device))
        if not self.settings.changes:
            return iter([pyramid])
        return self._optimise(pyramid, members, generator)

    def _of_class(self, label: int) -> Tensor:
        """The generated images of a class."""
        return torch.from_numpy(self.generated.images[self.generated.labels == label]).float() / 255.0

    def _beginning(self, members: range, generator: torch.Generator) -> Tensor:
        """Generated images of each class, put together."""
        count, network = self.run.images_per_class * self.settings.parts**2, self._signals.draw(0).network
        chosen = []
        for label in members:
            own = self._of_class(label)
            if self.settings.start == "clusters":
                chosen.append(own[nearest_to_centres(_features(network, own), count, generator)])
            else:
                chosen.append(own[torch.randint(len(own), (count,), generator=generator)])
        return assembled(torch.cat(chosen), self.settings.parts, self.run.image_shape[1:])

    def _optimise(self, pyramid: ImagePyramid, members: range, generator: torch.Generator) -> Iterator[ImagePyramid]:
        settings, per_class = self.settings, self.run.images_per_class
        device = pyramid.levels[0].device
        wanted = self._wanted(members, device)
        guide = None if self.expert is None else self._guide(members, device)
        optimiser = torch.optim.Adam(pyramid.levels, lr=settings.learning_rate, betas=(0.5, 0.9))
        schedule_of = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        looked_at = min(per_class, settings.images_per_step)
        labels = torch.tensor(members, device=device).repeat_interleave(looked_at).repeat(settings.parts**2)
        for draws in self._order(generator):
            images = pyramid.images()
            loss = settings.range_weight * outside(images)
            if looked_at < per_class:
                picks = [torch.randperm(per_class, generator=generator)[:looked_at] for _ in members]
                images = images[torch.cat([place * per_class + pick for place, pick in enumerate(picks)]).to(device)]
            seen = expand(images, settings.parts)
            if wanted is not None:
                for number in draws:
                    means = self._signals.draw(number).of_class_means(seen, labels, members)
                    loss = loss + wanted.loss(number, means) / len(draws)
            if guide is not None:
                loss = loss + settings.expert_weight * len(members) * guide.loss(seen, labels, generator)
            optimiser.zero_grad(set_to_none=True)
            loss.backward(inputs=pyramid.levels)
            optimiser.step()
            schedule_of.step()
            yield pyramid

    def _wanted(self, members: range, device: torch.device) -> Wanted | None:
        """Whose mean features are matched."""
        if self.settings.match == "nothing" or not (self.method.matches or self.settings.match == "generated"):
            return None
        if self.settings.match == "generated":
            images = torch.cat([self._of_class(label) for label in members])
            labels = torch.tensor(members).repeat_interleave(len(images) // len(members))
            means = [
                self._signals.draw(number).of_class_means(images, labels, members).detach()
                for number in range(self.method.draws)
            ]
            return Wanted(torch.stack(means).to(device), torch.ones(len(members), device=device))
        means_of_all, known = targets(self.statistics, matching_settings(self.method), len(self.run.classes))
        weight = torch.from_numpy(known[list(members)]).float()
        return Wanted(means_of_all[:, list(members)].to(device), weight.to(device))

    def _guide(self, members: range, device: torch.device) -> Guide:
        assert self.expert is not None
        network = fresh(self.method, self.run.image_shape, len(self.run.classes), self.run.public_seed)
        set_vector(network, self.expert)
        network = network.eval().requires_grad_(False)
        with torch.no_grad():
            logits = {
                label: torch.cat([network(part) for part in self._of_class(label).split(256)]).to(device)
                for label in members
            }
        return Guide(network.to(device), logits, self.settings.references)

    def _order(self, generator: torch.Generator) -> Iterator[list[int]]:
        """The draws of each step."""
        of, made = self.method, self.settings
        return draw_order(of.schedule, of.draws, made.steps, made.draws_per_step, generator)

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class."""
        return grid_of(batches, self.run)


@dataclass(frozen=True, eq=False)
class Wanted:
    """Mean features (draws, classes, length), and which classes stand out of the noise."""

    means: Tensor
    known: Tensor

    def loss(self, number: int, means: Tensor) -> Tensor:
        """Eq. 2, over all classes."""
        distance: Tensor = (self.known * (means - self.means[number]).square().sum(dim=1)).sum()
        return distance


@dataclass(frozen=True, eq=False)
class Guide:
    """The expert, and what it says of generated images: logits (N, classes) by class."""

    network: torch.nn.Module
    logits: Mapping[int, Tensor]
    references: int

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Eq. 4: cross-entropy, and the divergence from the aggregated labels of each image's own references."""
        references = torch.stack([self._aggregated(int(label), generator) for label in labels])
        return expert_loss(self.network(images), labels, references)

    def _aggregated(self, label: int, generator: torch.Generator) -> Tensor:
        """c_y: the mean logits of some references (eq. 3)."""
        own = self.logits[label]
        picks = torch.randint(len(own), (min(self.references, len(own)),), generator=generator).to(own.device)
        mean: Tensor = own[picks].mean(dim=0)
        return mean


def expert_loss(logits: Tensor, labels: Tensor, references: Tensor) -> Tensor:
    """Eq. 4: the mean of cross-entropy with the hard labels and KL(softmax(logits) ‖ softmax(references)).

    >>> logits = torch.tensor([[2.0, 0.0]])
    >>> zero = functional.cross_entropy(logits, torch.tensor([0]))
    >>> bool(torch.isclose(expert_loss(logits, torch.tensor([0]), logits), zero))
    True
    """
    own, theirs = logits.log_softmax(dim=1), references.log_softmax(dim=1)
    divergence = (own.exp() * (own - theirs)).sum(dim=1).mean()
    return functional.cross_entropy(logits, labels) + divergence


@torch.no_grad()
def _features(network: RandomNet, images: Tensor) -> Tensor:
    return torch.cat([network.features(part) for part in images.split(256)])
