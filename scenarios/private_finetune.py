"""DP-SGD over the weights of a network, with per-example gradients by Opacus.

Neighbours: one labelled record added or removed. A record's gradient (averaged over its augmentations) is clipped over
all trained weights together and put on the integer grid of `GRID` steps per unit, rounding towards zero: L2 sensitivity
`GRID`. Batches are Poisson-sampled, an empty one included; sums are divided by the expected size of a batch. The noise
is our discrete Gaussian, and the event, `PoissonGaussian`, goes to our accountant, not to Opacus'. The number of
records is taken as public here, rounded to one digit, as everybody does who runs DP-SGD: in the baseline's favour.

With a limit in minutes, how many steps fit into it is measured on noise images before any record is read, since σ
depends on it. When the clock is slower after all, the run ends early: fewer releases than were paid for.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.config import Settings
from dpdd.common.models.training import augment
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.clipping import GRID
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.sampling import poisson_sample
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.private_linear import LogisticSettings
from dpdd.scenarios.private_networks import ChannelScale, Trained, channel_gradients

_MARGIN = 1.0 - 1e-5  # far more than float32 loses in a product, and float64 in a norm


class SgdSettings(Settings):
    """DP-SGD with momentum, at a rate that falls along a cosine.

    `augmentations` copies of a record, each shifted by up to `shift` pixels and perhaps mirrored, are averaged before
    its gradient is clipped; `at_once` records at a time have their gradients in memory.
    """

    batch: Annotated[int, Field(ge=1)] = 1024
    steps: Annotated[int, Field(ge=1)] = 300
    learning_rate: Annotated[float, Field(gt=0.0)] = 1.0
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    clip: Annotated[float, Field(gt=0.0)] = 1.0
    augmentations: Annotated[int, Field(ge=1)] = 1
    shift: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    at_once: Annotated[int, Field(ge=1)] = 64


class FineTuneSettings(SgdSettings):
    """A classifier of frozen features first (`head`), then DP-SGD over that and the backbone, all in one budget.

    The first phase would cost `head_share` of ε if it were alone. For `trained` and `reach` see `TunedBackbone`.
    """

    head: LogisticSettings = LogisticSettings(steps=100)
    head_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    trained: Trained = "norms"
    reach: Annotated[float, Field(gt=0.0)] = 18.0
    steps: Annotated[int, Field(ge=1)] = 60
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.3


class PrivateSteps:
    """A network with per-example gradients. Records are arguments of `gradient`, and are not kept."""

    def __init__(self, network: nn.Module, settings: SgdSettings) -> None:
        from opacus.grad_sample import GradSampleModule, register_grad_sampler

        register_grad_sampler(ChannelScale)(channel_gradients)
        self.settings = settings
        self.parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._sampled = GradSampleModule(network.train(), loss_reduction="sum")

    def gradient(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """The sum of clipped gradients over uint8 images, in whole steps of clip / `GRID`, as float64."""
        total = [torch.zeros(p.shape, dtype=torch.float64) for p in self.parameters]
        for start in range(0, len(images), self.settings.at_once):
            part = slice(start, start + self.settings.at_once)
            each = self._per_example(images[part], labels[part], generator)
            squares = torch.stack([g.double().flatten(1).square().sum(dim=1) for g in each]).sum(dim=0)
            factor = GRID * _MARGIN / self.settings.clip / (squares.sqrt() / self.settings.clip).clamp_min(1.0)
            odd = ~torch.isfinite(squares)
            factor[odd] = 0.0
            for sums, gradients in zip(total, each, strict=True):
                if odd.any():
                    gradients[odd] = 0.0
                scaled = gradients.mul_(factor.float().view(-1, *[1] * (gradients.ndim - 1)))
                sums += scaled.trunc_().sum(dim=0, dtype=torch.float64)
        return total

    def close(self) -> None:
        """Take Opacus' hooks off the network again."""
        self._sampled.to_standard_module()

    def _per_example(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> list[Tensor]:
        copies = self.settings.augmentations
        batch = augment(images.repeat_interleave(copies, 0), self.settings.shift, self.settings.flip, generator)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            logits = self._sampled(batch.float() / 255)
            functional.cross_entropy(logits, labels.repeat_interleave(copies), reduction="sum").backward()
        found = [parameter.grad_sample for parameter in self.parameters]  # type: ignore[attr-defined]
        self._sampled.zero_grad(set_to_none=True)
        return found if copies == 1 else [g.unflatten(0, (-1, copies)).mean(1) for g in found]


def steps_in(minutes: float, network: nn.Module, shape: tuple[int, int, int], settings: SgdSettings) -> int:
    """How many of the settings' steps should fit into `minutes`, measured on noise images."""
    if math.isinf(minutes):
        return settings.steps
    trial = PrivateSteps(copy.deepcopy(network), settings)
    images = torch.randint(0, 256, (settings.at_once, *shape), dtype=torch.uint8)
    labels, seconds = torch.zeros(settings.at_once, dtype=torch.int64), math.inf
    for _ in range(2):
        started = time.monotonic()
        trial.gradient(images, labels, torch.Generator().manual_seed(0))
        seconds = min(seconds, time.monotonic() - started)
    step = seconds * settings.batch / settings.at_once
    return max(1, min(settings.steps, int(0.9 * 60.0 * minutes / step)))


def sampling_rate(records: int, settings: SgdSettings) -> float:
    """The expected batch over the number of records, which is public to one digit.

    >>> sampling_rate(57_312, SgdSettings(batch=600))
    0.01
    """
    return min(1.0, settings.batch / float(f"{records:.0e}"))


def train(
    network: nn.Module,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    settings: SgdSettings,
    steps: int,
    sigma: float,
    entropy: Entropy,
    *,
    minutes: float = math.inf,
    progress: Progress = silent,
) -> int:
    """Train `network` in place: `PoissonGaussian(sigma, sampling_rate(...), steps)`; gives the steps done.

    At sigma 0 there is no noise and no protection: for comparison only.
    """
    rate = sampling_rate(len(images), settings)
    generator = torch.Generator().manual_seed(int.from_bytes(entropy.take(7), "little"))
    private = PrivateSteps(network, settings)
    optimiser = torch.optim.SGD(private.parameters, lr=settings.learning_rate, momentum=settings.momentum)
    started = time.monotonic()
    for step in range(steps):
        pick = poisson_sample(len(images), rate, entropy)
        sums = private.gradient(torch.from_numpy(images[pick]), torch.from_numpy(labels[pick]), generator)
        for parameter, total in zip(private.parameters, sums, strict=True):
            mean = (total + _noise(total, sigma, entropy)) * (settings.clip / GRID / settings.batch)
            parameter.grad = mean.to(parameter.dtype)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimiser.step()
        progress("DP-SGD over weights", step + 1, steps)
        if time.monotonic() - started > 60.0 * minutes:
            break
    private.close()
    return step + 1


def accuracy(network: nn.Module, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    """The share of uint8 images that the network classifies rightly."""
    network.eval()
    with torch.inference_mode():
        parts = [network(part.float() / 255).argmax(1) for part in torch.from_numpy(images).split(250)]
    return float((torch.cat(parts).numpy() == labels).mean())


def _noise(total: Tensor, sigma: float, entropy: Entropy) -> Tensor:
    if sigma == 0.0:
        return torch.zeros_like(total)
    scale = discrete_gaussian.scale_for(sigma * GRID)
    return torch.from_numpy(discrete_gaussian.sample(scale, total.numel(), entropy)).view(total.shape)
