"""What a synthetic set is worth: networks trained on it alone, tested on real test data.

Where the set has soft labels, the networks learn those. Where it has a teacher, they get lessons: augmentations, blends
and collages of the set's images, labelled by the teacher. `dpdd.server.downstream` starts from a public network.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.datasets import LabelledImages
from dpdd.common.errors import DataError
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.scenario import EvaluationSection
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.teacher import Teacher, lessons

Augmentation = Callable[[Tensor], Tensor]
"""A batch of images ↦ the same images, altered at random."""

LESSON_JOSTLING = 0.08
"""Shifts and zooms in lessons, as a share of the image."""


@dataclass(frozen=True)
class Accuracy:
    """Shares of correct answers over independent runs."""

    runs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.runs)

    @property
    def std(self) -> float:
        """Their standard deviation; 0 for one run."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else 0.0


class ConvNet(nn.Sequential):
    """The papers' evaluation network: three blocks of convolution, instance norm, ReLU and average pooling."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        blocks: list[nn.Module] = []
        channels, size = shape[0], shape[1:]
        for _ in range(3):
            blocks += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.GroupNorm(width, width, affine=True),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
            channels, size = width, (size[0] // 2, size[1] // 2)
        super().__init__(*blocks, nn.Flatten(), nn.Linear(width * size[0] * size[1], classes))


def augment(images: Tensor, most: int = 2) -> Tensor:
    """Random shifts of up to `most` pixels, the same border repeated, and horizontal flips."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (most, most, most, most), mode="replicate")
    down = torch.randint(2 * most + 1, (count, 1, 1, 1), device=images.device)
    right = torch.randint(2 * most + 1, (count, 1, 1, 1), device=images.device)
    rows = (torch.arange(height, device=images.device).view(1, 1, -1, 1) + down).expand(
        -1, images.shape[1], -1, padded.shape[3]
    )
    columns = (torch.arange(width, device=images.device).view(1, 1, 1, -1) + right).expand(
        -1, images.shape[1], height, -1
    )
    shifted = padded.gather(2, rows).gather(3, columns)
    flip = torch.rand(count, 1, 1, 1, device=images.device) < 0.5
    return torch.where(flip, shifted.flip(3), shifted)


def convnet_accuracy(
    made: SyntheticSet,
    test: LabelledImages,
    settings: EvaluationSection,
    seed: int,
    progress: Progress = silent,
    *,
    augmentation: Augmentation = augment,
    mixup: float = 0.0,
) -> Accuracy:
    """Train `settings.runs` ConvNets on `made`, and test each.

    `augmentation` (shifts and flips) alters every batch; `mixup` above 0 also mixes pairs of images and their labels,
    in shares from Beta(`mixup`, `mixup`).
    """
    scores = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"evaluation {run}"))
            what = f"training ConvNet {run + 1} of {settings.runs}"
            network = _train(made, settings, augmentation, mixup, what, progress)
        scores.append(_score(network, test))
    return Accuracy(tuple(scores))


def teacher_accuracy(teacher: Teacher, test: LabelledImages, batch: int = 500) -> Accuracy:
    """How often the classifier in the releases is right; there is nothing to train."""
    correct = 0
    for start in range(0, len(test), batch):
        images = torch.from_numpy(np.ascontiguousarray(test.images[start : start + batch])).float() / 255.0
        answers = teacher.probabilities(images).argmax(dim=1).numpy()
        correct += int((answers == test.labels[start : start + batch]).sum())
    return Accuracy((correct / len(test),))


def targets(made: SyntheticSet) -> Tensor:
    """What a network should answer to each image: probabilities (N, classes) where `made` has some, else labels (N).

    >>> images = np.zeros((2, 1, 8, 8), np.uint8)
    >>> targets(SyntheticSet(images, np.array([0, 1]), ("cat", "dog")))
    tensor([0, 1])
    """
    if made.soft is None:
        return torch.from_numpy(made.labels.copy())
    soft = torch.from_numpy(np.array(made.soft, dtype=np.float32))
    if soft.shape != (len(made), len(made.classes)):
        raise DataError(
            f"the soft labels are of shape {tuple(soft.shape)}, but {len(made)} images of {len(made.classes)} classes "
            f"need {(len(made), len(made.classes))}"
        )
    if not bool((soft >= 0).all()) or not bool(((soft.sum(dim=1) - 1.0).abs() < 1e-3).all()):
        raise DataError("the soft labels are not probabilities: each row needs numbers from 0 that add up to 1")
    return soft


def mix(images: Tensor, wanted: Tensor, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Blend every image, and its label, with another one of the batch (Zhang et al. 2018)."""
    probabilities = wanted if wanted.ndim == 2 else functional.one_hot(wanted, classes).float()
    share = float(torch.distributions.Beta(strength, strength).sample())
    other = torch.randperm(len(images), device=images.device)
    return images.lerp(images[other], 1.0 - share), probabilities.lerp(probabilities[other], 1.0 - share)


def _unchanged(images: Tensor) -> Tensor:
    return images


def _train(
    made: SyntheticSet,
    settings: EvaluationSection,
    augmentation: Augmentation,
    mixup: float,
    what: str,
    progress: Progress,
) -> nn.Module:
    images, labels = made.as_torch().tensors[0], targets(made)
    smoothing = 0.05 if made.soft is None else 0.0
    if made.teacher is not None and settings.lessons:
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        images = lessons(images, settings.lessons, LESSON_JOSTLING, generator)
        labels = made.teacher.probabilities(images)
        augmentation, mixup = _unchanged, 0.0
    mean, std = images.mean(), images.std() + 1e-6
    shape = (images.shape[1], images.shape[2], images.shape[3])
    network = ConvNet(shape, len(made.classes), settings.width)
    network.register_buffer("mean", mean)
    network.register_buffer("std", std)
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, total_steps=settings.steps + 1)
    network.train()
    for step in range(settings.steps):
        pick = torch.randint(len(labels), (min(settings.batch, len(labels)),))
        batch, wanted = augmentation((images[pick] - mean) / std), labels[pick]
        if mixup > 0.0:
            batch, wanted = mix(batch, wanted, len(made.classes), mixup)
        loss = functional.cross_entropy(network(batch), wanted, label_smoothing=smoothing)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        progress(what, step + 1, settings.steps)
    return network.eval()


def _score(network: nn.Module, test: LabelledImages) -> float:
    correct = 0
    mean, std = network.get_buffer("mean"), network.get_buffer("std")
    with torch.inference_mode():
        for start in range(0, len(test), 500):
            batch = torch.from_numpy(np.ascontiguousarray(test.images[start : start + 500])).float() / 255.0
            answers = network((batch - mean) / std).argmax(dim=1).numpy()
            correct += int((answers == test.labels[start : start + 500]).sum())
    return correct / len(test)
