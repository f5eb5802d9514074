"""DP-MERF: a conditional generator is trained until its mean features match the released ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_merf.row_generator import RowGenerator
from dpdd.common.methods.dp_merf.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.dp_merf.specification import embed, frequencies
from dpdd.common.progress import Progress
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics


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

    def __init__(self, settings: SynthesisSettings, classes: int, shape: tuple[int, int, int]) -> None:
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
    statistics: Sequence[Statistics], method: MethodSettings, settings: SynthesisSettings, run: RunDescription
) -> LabelledSet:
    """Train the generator on the statistics (of the one stage), and draw a balanced dataset from it."""
    device = torch.device(run.runner.kind if run.runner else "cpu")
    means, shares = (tensor.to(device) for tensor in class_targets(statistics[0], method))
    omega = frequencies(method, run).to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(subseed(run.public_seed, "dp-merf generator"))
        labels = torch.arange(len(run.classes), device=device).repeat_interleave(run.images_per_class)
        if run.kind is DataKind.TABLE:
            rows = RowGenerator(settings, len(run.classes), run.columns).to(device)
            _fit(rows, means, shares, omega, settings, run.progress)
            with torch.no_grad():
                codes = torch.cat([rows.eval().codes(part) for part in labels.split(1000)])
            return LabelledSet(codes.float().cpu().numpy(), labels.cpu().numpy(), run.classes, schema=run.table)
        generator = Generator(settings, len(run.classes), run.image_shape).to(device)
        _fit(generator, means, shares, omega, settings, run.progress)
        generator.eval()
        with torch.no_grad():
            images = torch.cat([generator(part) for part in labels.split(1000)])
    pixels = (images.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8).cpu().numpy()
    return LabelledSet(pixels, labels.cpu().numpy(), run.classes)


def _fit(
    generator: nn.Module, means: Tensor, shares: Tensor, omega: Tensor, settings: SynthesisSettings, progress: Progress
) -> None:
    classes = len(shares)
    per_class = max(settings.batch // classes, 2)
    labels = torch.arange(classes, device=means.device).repeat_interleave(per_class)
    optimiser = torch.optim.Adam(generator.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for step in range(settings.steps):
        embeddings = embed(generator(labels), omega).view(classes, per_class, -1).mean(dim=1)
        loss = (shares[:, None] * (embeddings - means)).square().sum() * classes**2
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        progress("training the generator", step + 1, settings.steps)
