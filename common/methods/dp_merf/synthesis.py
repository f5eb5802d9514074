"""DP-MERF (Harder, Adamczewski and Park, AISTATS 2021): the public half.

Released: for every class, the sum of random Fourier features φ(x) = √(1/D)·[cos ωx, sin ωx] (norm 1) over its records,
and a noisy count. Synthesis trains a conditional generator whose mean features match the released ones: an MMD with a
Gaussian kernel.

Where we differ from the paper: the class counts are released (with a coordinate of their own in the same vector), not
taken as public; the kernel width is a public setting, not a heuristic on private data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from dpdd.common.config import Settings
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import gaussians, subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.common.synthesis.statistics import Statistics

Shape = tuple[int, int, int]


class MethodSettings(Settings):
    """What is released; part of the request."""

    features: Annotated[int, Field(ge=8, le=100_000)] = 1000
    length_scale: Annotated[float, Field(gt=0.0, le=1e6)] = 10.0
    count_weight: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1


class SynthesisSettings(Settings):
    """How the generator is trained; may change without asking the silos again."""

    steps: Annotated[int, Field(ge=1, le=100_000)] = 1000
    batch: Annotated[int, Field(ge=2, le=100_000)] = 200
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.01
    latent: Annotated[int, Field(ge=1)] = 5
    hidden: Annotated[int, Field(ge=1)] = 200


def layout(settings: MethodSettings, classes: int, stage: int = 0, shape: Sequence[int] = ()) -> Layout:
    """The released sums: an embedding and a count per class."""
    return Layout(
        (
            class_segment("embedding", 2 * settings.features, classes),
            class_segment("count", 1, classes),
        )
    )


def frequencies(settings: MethodSettings, dimensions: int, seed: int) -> Tensor:
    """The random frequencies ω, the same for everybody with this public seed."""
    drawn = gaussians(seed, "dp-merf frequencies", (dimensions, settings.features)) / settings.length_scale
    return torch.from_numpy(drawn.astype(np.float32))


def embed(images: Tensor, omega: Tensor) -> Tensor:
    """φ of a batch of images in [0, 1]; every row has norm 1."""
    angles = images.flatten(1) @ omega
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1) / math.sqrt(omega.shape[1])


def class_targets(statistics: Statistics, settings: MethodSettings) -> tuple[Tensor, Tensor]:
    """Mean embedding per class, and the classes' shares, both from noisy sums alone.

    A class whose noisy count is lost in the noise gets share 0: there is nothing to learn about it.
    """
    counts = statistics.sums["count"][:, 0] / settings.count_weight
    sums = statistics.sums["embedding"] / math.sqrt(1.0 - settings.count_weight**2)
    reliable = counts > 2.0 * statistics.noise / settings.count_weight
    counts = np.where(reliable, np.maximum(counts, 1.0), 0.0)
    means = np.where(reliable[:, None], sums / np.maximum(counts, 1.0)[:, None], 0.0)
    shares = counts / max(counts.sum(), 1.0)
    return torch.from_numpy(means.astype(np.float32)), torch.from_numpy(shares.astype(np.float32))


class Generator(nn.Module):
    """Latent noise and a class to an image in [0, 1]; two upsampling convolutions."""

    def __init__(self, settings: SynthesisSettings, classes: int, shape: Shape) -> None:
        super().__init__()
        self.shape, self.classes, self.latent = shape, classes, settings.latent
        self.base = (16, math.ceil(shape[1] / 4), math.ceil(shape[2] / 4))
        self.dense = nn.Sequential(
            nn.Linear(settings.latent + classes, settings.hidden),
            nn.BatchNorm1d(settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, math.prod(self.base)),
            nn.BatchNorm1d(math.prod(self.base)),
            nn.ReLU(),
        )
        self.picture = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(16, 8, 5, padding=2),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(8, shape[0], 5, padding=2),
            nn.Sigmoid(),
        )

    def forward(self, labels: Tensor) -> Tensor:
        """One image per label, from fresh latent noise."""
        noise = torch.randn(len(labels), self.latent, device=labels.device)
        one_hot = nn.functional.one_hot(labels, self.classes).float()
        hidden = self.dense(torch.cat([noise, one_hot], dim=1)).view(-1, *self.base)
        image: Tensor = self.picture(hidden)
        return image[:, :, : self.shape[1], : self.shape[2]]


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
    """Train the generator on the statistics (of the one stage), and draw a balanced dataset from it."""
    device = torch.device(runner.kind if runner else "cpu")
    means, shares = (tensor.to(device) for tensor in class_targets(statistics[0], method))
    omega = frequencies(method, math.prod(shape), public_seed).to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(subseed(public_seed, "dp-merf generator"))
        generator = Generator(settings, len(classes), shape).to(device)
        _fit(generator, means, shares, omega, settings, progress)
        generator.eval()
        labels = torch.arange(len(classes), device=device).repeat_interleave(images_per_class)
        with torch.no_grad():
            images = torch.cat([generator(part) for part in labels.split(1000)])
    pixels = (images.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8).cpu().numpy()
    return LabelledSet(pixels, labels.cpu().numpy(), classes)


def _fit(
    generator: Generator, means: Tensor, shares: Tensor, omega: Tensor, settings: SynthesisSettings, progress: Progress
) -> None:
    classes = len(shares)
    per_class = max(settings.batch // classes, 2)
    labels = torch.arange(classes, device=means.device).repeat_interleave(per_class)
    optimiser = torch.optim.Adam(generator.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for step in range(settings.steps):
        made = embed(generator(labels), omega).view(classes, per_class, -1).mean(dim=1)
        loss = (shares[:, None] * (made - means)).square().sum() * classes**2
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        progress("training the generator", step + 1, settings.steps)
