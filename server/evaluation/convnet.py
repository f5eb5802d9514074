"""The learner `convnet`: small ConvNets, trained on a synthetic set from scratch.

>>> import numpy as np
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> dataset = LabelledSet(images, np.repeat([0, 1], 10), ("dark", "light"))
>>> [classifier] = convnets(dataset, LearnerSettings(width=4, steps=3), seed=0)
>>> classifier(torch.rand(5, 1, 8, 8)).shape
torch.Size([5, 2])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.training_data import labels_of, training_data

NetworkT = TypeVar("NetworkT", bound=nn.Module)
Augmentation = Callable[[Tensor], Tensor]
"""A batch of images ↦ the same images, altered at random."""

ROTATION, SCALE, SHIFT = 15.0, 1.2, 0.1
"""The most that images are altered by: degrees, a factor, a share of the image."""


@dataclass(frozen=True, eq=False)
class TrainedNetwork(Generic[NetworkT]):
    """A network, and what it takes from images before it looks at them."""

    network: NetworkT
    mean: Tensor
    std: Tensor

    def __call__(self, pictures: Tensor) -> Tensor:
        """The logits of images in [0, 1]."""
        logits: Tensor = self.network((pictures - self.mean) / self.std)
        return logits


@dataclass(frozen=True, eq=False)
class TrainedConvNet(TrainedNetwork[EvaluationConvNet]):
    """The literature's ConvNet, of this width."""

    width: int


def augment(images: Tensor, flips: bool = True) -> Tensor:
    """Random rotations, scalings along either axis and shifts, the border repeated; and, with `flips`, mirror images.

    On ten images per class this is worth points: MNIST (a public proxy), 93.7 % with shifts alone and 95.6 % so.
    """
    count = len(images)
    angle, tall, wide, down, right, mirror = (torch.rand(count, device=images.device) * 2.0 - 1.0 for _ in range(6))
    sine, cosine = torch.sin(math.radians(ROTATION) * angle), torch.cos(math.radians(ROTATION) * angle)
    sign = torch.sign(mirror) if flips else torch.ones_like(mirror)
    affine = torch.zeros(count, 2, 3, device=images.device)
    affine[:, 0, 0], affine[:, 0, 1] = cosine * SCALE**wide * sign, -sine * SCALE**tall
    affine[:, 1, 0], affine[:, 1, 1] = sine * SCALE**wide * sign, cosine * SCALE**tall
    affine[:, 0, 2], affine[:, 1, 2] = 2.0 * SHIFT * right, 2.0 * SHIFT * down
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def convnets(
    dataset: LabelledSet,
    settings: LearnerSettings,
    seed: int,
    progress: Progress = silent,
    *,
    augmentation: Augmentation | None = None,
    mixup: float = 0.0,
) -> list[Classifier]:
    """`settings.runs` ConvNets, trained on `dataset` from scratch.

    `augmentation` (`augment`, unless another is given) alters every batch; `mixup` above 0 also mixes pairs of images
    and their labels, in shares from Beta(`mixup`, `mixup`). Teacher-labelled augmentations are altered and mixed
    already, and are taken as they are.
    """
    altered = augmentation or partial(augment, flips=settings.flips)
    trained: list[Classifier] = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"evaluation {run}"))
            what = f"training ConvNet {run + 1} of {settings.runs}"
            trained.append(_train(dataset, settings, altered, mixup, what, progress))
    return trained


def mix(images: Tensor, wanted: Tensor, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Blend every image, and its label, with another one of the batch (Zhang et al. 2018)."""
    probabilities = wanted if wanted.ndim == 2 else functional.one_hot(wanted, classes).float()
    share = float(torch.distributions.Beta(strength, strength).sample())
    other = torch.randperm(len(images), device=images.device)
    return images.lerp(images[other], 1.0 - share), probabilities.lerp(probabilities[other], 1.0 - share)


def _unchanged(images: Tensor) -> Tensor:
    return images


def _train(
    dataset: LabelledSet,
    settings: LearnerSettings,
    augmentation: Augmentation,
    mixup: float,
    what: str,
    progress: Progress,
) -> Classifier:
    images, labels = training_data(dataset, settings)
    kind = labels_of(dataset, settings)
    smoothing = 0.05 if kind == "hard" else 0.0
    if kind == "teacher":
        augmentation, mixup = _unchanged, 0.0
    mean, std = images.mean(), images.std() + 1e-6
    shape = (images.shape[1], images.shape[2], images.shape[3])
    network = EvaluationConvNet(shape, len(dataset.classes), settings.width)
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, total_steps=settings.steps + 1)
    network.train()
    for step in range(settings.steps):
        pick = torch.randint(len(labels), (min(settings.batch, len(labels)),))
        batch, wanted = augmentation((images[pick] - mean) / std), labels[pick]
        if mixup > 0.0:
            batch, wanted = mix(batch, wanted, len(dataset.classes), mixup)
        loss = functional.cross_entropy(network(batch), wanted, label_smoothing=smoothing)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        progress(what, step + 1, settings.steps)
    network.eval()
    return TrainedConvNet(network, mean, std, settings.width)
