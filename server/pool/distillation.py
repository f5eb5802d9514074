"""Distilling the labelled pool: images whose features stand for those of the pool's images of their class.

Distribution matching without noise, as the pool and its labels are public. In each step a ConvNet looks at synthetic
images and at a batch of the pool, under one kind of DSA augmentation, and the mean features of each class are to be the
same (Zhao and Bilen 2023). It has random weights, or it learnt from the labelled pool for a while; then its own
cross-entropy on the synthetic images may be added (Zhao et al. 2023). Images start as images of the pool that the
classifier is sure of, spread out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.pieces import apart, expand
from dpdd.common.models.evaluation_convnet import EvaluationConvNet, depth_for
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner, fingerprint
from dpdd.server.evaluation.dsa import augment
from dpdd.server.evaluation.learner_settings import AUGMENTATION_KINDS, AugmentationKind
from dpdd.server.pool.selection import candidates, spread_over_classes

if TYPE_CHECKING:
    from dpdd.server.pool.making import ScoredPool
    from dpdd.server.pool.section import PoolDistillation, PoolSection

MOMENTS_OF_TRAINING = (0.15, 0.4, 1.0)
"""When each network is kept, as shares of its training."""


def distilled(pool: ScoredPool, section: PoolSection, run: RunDescription) -> tuple[Pixels, NDArray[np.int64]]:
    """`run.images_per_class` images of each class, with their labels; with parts, parts² times as many."""
    task = PoolTask.of(pool, section, run)
    (images,) = (run.runner or SynthesisRunner()).make(task, [0], run.progress, "distilling the public pool")
    labels = np.arange(len(run.classes)).repeat(run.images_per_class)
    return apart(images, labels, section.parts)


def selected(pool: ScoredPool, section: PoolSection, run: RunDescription) -> tuple[Pixels, NDArray[np.int64]]:
    """The same, of images of the pool as they are; with parts, each image holds parts² of them, made smaller."""
    images = (starts(pool, section, run) * 255.0).round().to(torch.uint8).numpy()
    return apart(images, np.arange(len(run.classes)).repeat(run.images_per_class), section.parts)


def starts(pool: ScoredPool, section: PoolSection, run: RunDescription) -> Tensor:
    """Images in [0, 1] that are spread out among the surest of each class, class by class."""
    count = run.images_per_class * section.parts**2
    of = section.candidates * count
    chosen = spread_over_classes(pool.soft, pool.vectors, count, run.classes, run.public_seed, of)
    return torch.cat([tiled(pool.images[own], section.parts) for own in np.split(chosen, len(run.classes))])


def tiled(images: NDArray[np.uint8], parts: int) -> Tensor:
    """Images in [0, 1] of which each holds parts x parts of these, made smaller; the reverse of `expand`."""
    whole = torch.from_numpy(images).float() / 255.0
    if parts == 1:
        return whole
    height, width = images.shape[2] // parts, images.shape[3] // parts
    count = len(images) // parts**2
    result = torch.zeros((count, *images.shape[1:]))
    small = functional.interpolate(whole, (height, width), mode="bilinear", antialias=True, align_corners=False)
    for place, piece in enumerate(small.split(count)):
        row, column = divmod(place, parts)
        result[:, :, row * height : (row + 1) * height, column * width : (column + 1) * width] = piece
    return result


@dataclass(frozen=True, eq=False)
class PoolTask:
    """What the images are made from: where they `start`, and images of the pool with labels, class by class."""

    start: Tensor
    material: NDArray[np.uint8]
    soft: NDArray[np.float32]
    members: tuple[int, ...]  # of each class in the material
    settings: PoolDistillation
    run: RunDescription
    parts: int = 1
    flips: bool = True

    @classmethod
    def of(cls, pool: ScoredPool, section: PoolSection, run: RunDescription) -> PoolTask:
        """The task of a run's pool."""
        settings, classes = section.distillation, range(len(run.classes))
        own = [candidates(pool.soft, label, settings.material) for label in classes]
        material = np.concatenate(own)
        members = tuple(len(each) for each in own)
        return cls(
            starts(pool, section, run),
            pool.images[material],
            pool.soft[material],
            members,
            settings,
            run.public,
            section.parts,
        )

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def steps(self) -> int:
        """Of the one batch."""
        return self.settings.steps

    def fingerprint(self, device: str) -> str:
        """Of everything that decides the images."""
        facts = {
            "settings": self.settings.model_dump(mode="json"),
            "members": self.members,
            "parts": self.parts,
            "seed": self.run.public_seed,
            "flips": self.flips,
            "device": device,
        }
        return fingerprint(
            type(self), facts, {"start": self.start.numpy(), "material": self.material, "soft": self.soft}
        )

    @property
    def _kinds(self) -> tuple[AugmentationKind, ...]:
        return tuple(kind for kind in AUGMENTATION_KINDS if self.flips or kind != "flip")

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each channel."""
        pixels = torch.from_numpy(self.material).float() / 255.0
        mean = pixels.mean(dim=(0, 2, 3), keepdim=True)
        return mean, pixels.std(dim=(0, 2, 3), keepdim=True, correction=0) + 1e-6

    def _seen(self, images: Tensor, device: torch.device) -> Tensor:
        """As networks see images in [0, 1]."""
        mean, std = (moment.to(device) for moment in self._moments)
        return (images.to(device) - mean) / std

    def _material(self, places: Tensor, device: torch.device) -> Tensor:
        return self._seen(torch.from_numpy(self.material)[places].float() / 255.0, device)

    def _drawn(self, number: int, device: torch.device) -> EvaluationConvNet:
        """Network `number`, of random weights."""
        shape = self.run.image_shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(self.run.public_seed, f"network of the pool {number}"))
            network = EvaluationConvNet(shape, len(self.members), self.settings.width, depth_for(shape), padded=True)
        return network.to(device)

    def _networks(self, number: int, generator: torch.Generator, device: torch.device) -> list[EvaluationConvNet]:
        """Network `number` as it was at several times of its training on the labelled pool."""
        own, network = self.settings, self._drawn(number, device)
        optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=5e-4)
        soft = torch.from_numpy(self.soft)
        when = {max(1, round(share * own.training_steps)) for share in MOMENTS_OF_TRAINING}
        kept = []
        for step in range(1, own.training_steps + 1):
            pick = torch.randint(len(soft), (min(128, len(soft)),), generator=generator)
            seen = augment(self._material(pick, device), self._kinds, generator)
            loss = functional.cross_entropy(network(seen), soft[pick].to(device))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            if step in when:
                kept.append(copy.deepcopy(network).eval().requires_grad_(False))
        return kept

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The images after each step, as a pyramid of one level."""
        generator = torch.Generator().manual_seed(subseed(self.run.public_seed, f"distilling the pool {number}"))
        count = len(self.start)
        pyramid = ImagePyramid(count, self.run.image_shape, generator, levels=1, device=device)
        pyramid.start_from(self.start.to(device))
        networks = [
            each for which in range(self.settings.networks) for each in self._networks(which, generator, device)
        ]
        return self._optimise(pyramid, networks, generator, device)

    def _optimise(
        self,
        pyramid: ImagePyramid,
        networks: Sequence[EvaluationConvNet],
        generator: torch.Generator,
        device: torch.device,
    ) -> Iterator[ImagePyramid]:
        own, classes = self.settings, len(self.members)
        labels = torch.arange(classes).repeat_interleave(self.run.images_per_class)
        optimiser = torch.optim.Adam(pyramid.levels, lr=own.learning_rate, betas=(0.5, 0.9))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, own.steps)
        for step in range(own.steps):
            if networks:
                network = networks[int(torch.randint(len(networks), (), generator=generator))]
            else:
                network = self._drawn(step, device).requires_grad_(False)
            images = pyramid.images()
            loss = 10.0 * outside(images)
            places = self._some(labels, generator)
            synthetic = expand(images[places], self.parts)
            of = labels[places].repeat(self.parts**2).to(device)
            real, of_real = self._batch(generator, device)
            change = generator.get_state()  # the same kind of change for both
            seen = augment(self._seen(synthetic, device), self._kinds, generator)
            generator.set_state(change)
            with torch.no_grad():
                wanted = class_means(features(network, augment(real, self._kinds, generator)), of_real, classes)
            values = features(network, seen)
            off = (class_means(values, of, classes) - wanted).square().sum() / wanted.square().sum(1).mean()
            loss = loss + off
            if own.label_weight:
                loss = loss + own.label_weight * functional.cross_entropy(network[-1](values), of)
            optimiser.zero_grad(set_to_none=True)
            loss.backward(inputs=pyramid.levels)
            optimiser.step()
            schedule.step()
            yield pyramid

    def _some(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Positions of so many images of each class that their parts fill a batch."""
        each = self.run.images_per_class
        few = max(1, min(each, self.settings.batch // self.parts**2))
        return torch.cat([label * each + torch.randperm(each, generator=generator)[:few] for label in labels.unique()])

    def _batch(self, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images of the pool, as many of each class, and their labels."""
        picks, first = [], 0
        for count in self.members:
            picks.append(first + torch.randint(count, (self.settings.batch,), generator=generator))
            first += count
        labels = torch.arange(len(self.members)).repeat_interleave(self.settings.batch)
        return self._material(torch.cat(picks), device), labels.to(device)

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class."""
        labels = np.arange(len(self.members)).repeat(self.run.images_per_class)
        return LabelledSet(batches[0], labels, self.run.classes).preview(per_class=10)


def features(network: nn.Sequential, images: Tensor) -> Tensor:
    """What the network's classifier looks at."""
    for layer in list(network)[:-1]:
        images = layer(images)
    return images


def class_means(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean row of each class (classes, D).

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), 2).tolist()
    [[2.0], [5.0]]
    """
    member = functional.one_hot(labels, classes).to(values)
    return (member / member.sum(dim=0).clamp_min(1.0)).T @ values
