"""What a synthetic set is worth: networks trained on it alone, tested on real test data.

Training gives classifiers, and `accuracy` scores them, on one test set or on several. They learn from the best labels
that the set has and the settings allow (`labels_of`): lessons, which are augmentations, blends and collages of its
images, labelled by its teacher; soft labels; hard ones. `public_network` starts from a public network.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.data.benchmarks import LabelledImages
from dpdd.common.errors import DataError
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import lessons
from dpdd.server.run.scenario import EvaluationSection, Labels

Classifier = Callable[[Tensor], Tensor]
"""Images in [0, 1] ↦ a score for every class, the highest for the one that it takes an image for."""

Augmentation = Callable[[Tensor], Tensor]
"""A batch of images ↦ the same images, altered at random."""

ROTATION, SCALE, SHIFT = 15.0, 1.2, 0.1
"""The most that images are altered by: degrees, a factor, a share of the image."""

TEACHER_AUGMENTATION_STRENGTH = 0.08
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


def accuracy(classifiers: Sequence[Classifier], test: LabelledImages, batch: int = 500) -> Accuracy:
    """How often each classifier is right."""
    scores = []
    for classifier in classifiers:
        correct = 0
        for start in range(0, len(test), batch):
            images = torch.from_numpy(np.ascontiguousarray(test.images[start : start + batch])).float() / 255.0
            with torch.inference_mode():
                answers = classifier(images).argmax(dim=1).numpy()
            correct += int((answers == test.labels[start : start + batch]).sum())
        scores.append(correct / len(test))
    return Accuracy(tuple(scores))


def convnet_accuracy(
    made: LabelledSet,
    test: LabelledImages,
    settings: EvaluationSection,
    seed: int,
    progress: Progress = silent,
    *,
    augmentation: Augmentation | None = None,
    mixup: float = 0.0,
) -> Accuracy:
    """Train ConvNets as `convnets` does, and test each."""
    return accuracy(convnets(made, settings, seed, progress, augmentation=augmentation, mixup=mixup), test)


def convnets(
    made: LabelledSet,
    settings: EvaluationSection,
    seed: int,
    progress: Progress = silent,
    *,
    augmentation: Augmentation | None = None,
    mixup: float = 0.0,
) -> list[Classifier]:
    """`settings.runs` ConvNets, trained on `made` from scratch.

    `augmentation` (`augment`, unless another is given) alters every batch; `mixup` above 0 also mixes pairs of images
    and their labels, in shares from Beta(`mixup`, `mixup`). Lessons are altered and mixed already, and are taken as
    they are.
    """
    altered = augmentation or partial(augment, flips=settings.flips)
    trained: list[Classifier] = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"evaluation {run}"))
            what = f"training ConvNet {run + 1} of {settings.runs}"
            trained.append(_train(made, settings, altered, mixup, what, progress))
    return trained


def labels_of(made: LabelledSet, settings: EvaluationSection) -> Labels:
    """What networks learn from: the best labels that `made` has, of those that `settings` allow."""
    if settings.labels == "lessons" and settings.lessons and made.teacher is not None:
        return "lessons"
    return "soft" if settings.labels != "hard" and made.soft is not None else "hard"


def material(made: LabelledSet, settings: EvaluationSection) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], and what to answer to each; lessons are drawn from torch's generator."""
    images, kind = made.as_torch().tensors[0], labels_of(made, settings)
    if kind == "lessons":
        assert made.teacher is not None
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        images = lessons(images, settings.lessons, TEACHER_AUGMENTATION_STRENGTH, settings.flips, generator)
        return images, made.teacher.probabilities(images)
    return images, targets(made if kind == "soft" else replace(made, soft=None))


def targets(made: LabelledSet) -> Tensor:
    """What a network should answer to each image: probabilities (N, classes) where `made` has some, else labels (N).

    >>> images = np.zeros((2, 1, 8, 8), np.uint8)
    >>> targets(LabelledSet(images, np.array([0, 1]), ("cat", "dog")))
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
    made: LabelledSet,
    settings: EvaluationSection,
    augmentation: Augmentation,
    mixup: float,
    what: str,
    progress: Progress,
) -> Classifier:
    images, labels = material(made, settings)
    kind = labels_of(made, settings)
    smoothing = 0.05 if kind == "hard" else 0.0
    if kind == "lessons":
        augmentation, mixup = _unchanged, 0.0
    mean, std = images.mean(), images.std() + 1e-6
    shape = (images.shape[1], images.shape[2], images.shape[3])
    network = ConvNet(shape, len(made.classes), settings.width)
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
    network.eval()
    return lambda pictures: network((pictures - mean) / std)
