"""DP-SGD over all weights of a public backbone, with per-example gradients by Opacus.

Neighbours: one labelled record added or removed. A record's gradient (averaged over its augmentations) is clipped over
all weights together and put on the integer grid of `GRID` steps per unit, rounding towards zero: L2 sensitivity `GRID`.
Batches are Poisson-sampled, an empty one included; sums are divided by the expected size of a batch. The noise is our
discrete Gaussian, and the event, `PoissonGaussian`, goes to our accountant, not to Opacus'.

BatchNorm mixes records, so `fixed` puts its public statistics, scale and shift into a layer without weights. Opacus
(1.6) unfolds the inputs of convolutions as if they lay channels first, and gives wrong gradients for `channels_last`
without a word, so `fixed` also has every convolution's input laid out anew. The number of records is taken as public
here, rounded to one digit, as everybody does who runs DP-SGD: in the baseline's favour.

How many steps fit into the time is measured on noise images before any record is read, since σ depends on it. When the
clock is slower after all, the run ends early: fewer releases than were paid for.
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
from dpdd.common.models.tapped import FeatureNet, Tap, TappedNorm
from dpdd.common.models.training import augment
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.clipping import GRID
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.sampling import poisson_sample
from dpdd.common.progress import Progress, silent

_MARGIN = 1.0 - 1e-5  # far more than float32 loses in a norm or a product


class FineTuneSettings(Settings):
    """DP-SGD with momentum; `augmentations` copies of a record are averaged before its gradient is clipped."""

    batch: Annotated[int, Field(ge=1)] = 256
    most_steps: Annotated[int, Field(ge=1)] = 1000
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.5
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    clip: Annotated[float, Field(gt=0.0)] = 1.0
    augmentations: Annotated[int, Field(ge=1)] = 1
    shift: Annotated[int, Field(ge=0)] = 2
    flip: bool = False
    at_once: Annotated[int, Field(ge=1)] = 32


class FixedNorm(nn.Module):
    """What BatchNorm is in eval mode: a public scale and shift of each channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: TappedNorm) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        self.register_buffer("scale", scale.detach().view(1, -1, 1, 1).clone())
        self.register_buffer("shift", (norm.bias - norm.running_mean * scale).detach().view(1, -1, 1, 1).clone())

    def forward(self, x: Tensor, tap: Tap | None = None) -> Tensor:
        """Scale and shift; there is nothing to tap while training."""
        assert tap is None
        return x * self.scale + self.shift


def fixed(backbone: FeatureNet, classes: int) -> FeatureNet:
    """A copy of `backbone` with `FixedNorm` for BatchNorm and a head of zeros for `classes`, all weights trainable."""
    network: FeatureNet = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    _replace(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(_channels_first)
    network.head = nn.Linear(backbone.head.in_features, classes)
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    return network.requires_grad_(True).train()


class PrivateSteps:
    """A network with per-example gradients. Records are arguments of `gradient`, and are not kept."""

    def __init__(self, network: FeatureNet, settings: FineTuneSettings) -> None:
        from opacus.grad_sample import GradSampleModule

        self.network, self.settings = network, settings
        self._sampled = GradSampleModule(network, loss_reduction="sum")

    def gradient(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """The sum of clipped gradients over uint8 images, in whole steps of clip / `GRID`, as float64."""
        parameters = list(self.network.parameters())
        total = [torch.zeros(p.shape, dtype=torch.float64) for p in parameters]
        for start in range(0, len(images), self.settings.at_once):
            part = slice(start, start + self.settings.at_once)
            each = self._per_example(images[part], labels[part], generator)
            squares = torch.stack([g.double().flatten(1).square().sum(dim=1) for g in each]).sum(dim=0)
            norms = squares.sqrt() / self.settings.clip
            factor = GRID * _MARGIN / self.settings.clip / norms.clamp_min(1.0)
            factor[~torch.isfinite(factor)] = 0.0
            for sums, gradients in zip(total, each, strict=True):
                scaled = gradients * factor.float().view(-1, *[1] * (gradients.ndim - 1))
                sums += torch.nan_to_num(scaled, 0.0, 0.0, 0.0).trunc_().sum(dim=0, dtype=torch.float64)
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
        found = [p.grad_sample.unflatten(0, (-1, copies)).mean(1) for p in self.network.parameters()]  # type: ignore[attr-defined]
        self._sampled.zero_grad(set_to_none=True)
        return found


def steps_in(minutes: float, network: FeatureNet, shape: tuple[int, int, int], settings: FineTuneSettings) -> int:
    """How many steps should fit into `minutes`, measured on noise images."""
    trial = PrivateSteps(copy.deepcopy(network), settings)
    images = torch.randint(0, 256, (settings.at_once, *shape), dtype=torch.uint8)
    labels, seconds = torch.zeros(settings.at_once, dtype=torch.int64), math.inf
    for _ in range(2):
        started = time.monotonic()
        trial.gradient(images, labels, torch.Generator().manual_seed(0))
        seconds = min(seconds, time.monotonic() - started)
    step = seconds * settings.batch / settings.at_once
    return max(1, min(settings.most_steps, int(0.9 * 60.0 * minutes / step)))


def sampling_rate(records: int, settings: FineTuneSettings) -> float:
    """The expected batch over the number of records, which is public to one digit.

    >>> sampling_rate(57_312, FineTuneSettings(batch=600))
    0.01
    """
    return min(1.0, settings.batch / float(f"{records:.0e}"))


def train(
    network: FeatureNet,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    settings: FineTuneSettings,
    steps: int,
    sigma: float,
    entropy: Entropy,
    *,
    minutes: float = math.inf,
    progress: Progress = silent,
) -> int:
    """Train `network` (of `fixed`) in place: `PoissonGaussian(sigma, sampling_rate(...), steps)`; the steps done."""
    rate = sampling_rate(len(images), settings)
    scale = discrete_gaussian.scale_for(sigma * GRID)
    generator = torch.Generator().manual_seed(int.from_bytes(entropy.take(7), "little"))
    private = PrivateSteps(network, settings)
    optimiser = torch.optim.SGD(network.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    started = time.monotonic()
    for step in range(steps):
        pick = poisson_sample(len(images), rate, entropy)
        sums = private.gradient(torch.from_numpy(images[pick]), torch.from_numpy(labels[pick]), generator)
        for parameter, total in zip(network.parameters(), sums, strict=True):
            noise = torch.from_numpy(discrete_gaussian.sample(scale, total.numel(), entropy)).view(total.shape)
            mean = (total + noise) * (settings.clip / GRID / settings.batch)
            parameter.grad = mean.to(parameter.dtype)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimiser.step()
        progress("DP-SGD over all weights", step + 1, steps)
        if time.monotonic() - started > 60.0 * minutes:
            break
    private.close()
    return step + 1


def _channels_first(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in inputs)


def _replace(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, TappedNorm):
            setattr(module, name, FixedNorm(child))
        else:
            _replace(child)
