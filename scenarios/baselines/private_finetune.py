"""DP-SGD over the weights of a public backbone, from a private linear classifier on, with Opacus' gradients.

First a head: DP logistic regression on whitened frozen features, as in `private_linear`; its many cheap
steps take most of the budget. Then DP-SGD over head and network with the rest. (`measure` has figures
for other ways: while the head is noise, so are the gradients behind it.)

Neighbours: one labelled record added or removed. A record's gradient (averaged over its augmentations) is clipped over
all weights together and put on the integer grid of `FIXED_POINT_ONE` steps per unit, rounding towards zero: so many
steps are its L2 sensitivity. Batches are Poisson-sampled, an empty one included; sums are divided by the expected
size of a batch. The noise is our discrete Gaussian, and the event, a `PoissonGaussian`, goes to our accountant, not to
Opacus'.

BatchNorm mixes records, so `Tunable` has its public statistics, scale and shift in a `FixedNorm`, and learns a gain and
an offset on top. Opacus (1.6) unfolds the inputs of convolutions as if they lay channels first, and gives wrong
gradients for `channels_last` without a word, so every convolution's input is laid out anew. The number of records is
taken as public here, rounded to one digit, as is usual with DP-SGD: in the baseline's favour.

How many steps fit into the time is measured on noise images before any record is read, since σ depends on it. When the
clock is slower after all, the run ends early: fewer releases than were paid for.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.config import Settings
from dpdd.common.models.feature_network import FeatureNetwork, HookedBatchNorm, LayerHook
from dpdd.common.models.training import augment
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.accounting import calibrate
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, PoissonGaussian, compose
from dpdd.common.privacy.sampling import poisson_sample
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.baselines.private_linear import BIAS, LogisticSettings

_MARGIN = 1.0 - 1e-5  # more than float32 can lose in a sum of 256 squares, whatever the order, and in a product
_EXACTLY = (1 << 24) // FIXED_POINT_ONE  # so many integers of at most that size float32 adds without rounding


class FineTuneSettings(Settings):
    """A linear classifier first, then DP-SGD with momentum over all `weights`, or gains and offsets of norms only.

    `share` of the budget, counted in 1 / σ², is for the second part. `learning_rate` is the network's, `head_rate` the
    head's, per dimension; `augmentations` copies of a record are averaged before its gradient is clipped.
    """

    head: LogisticSettings = LogisticSettings()
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    weights: Literal["all", "norms"] = "norms"
    batch: Annotated[int, Field(ge=1)] = 4000
    most_steps: Annotated[int, Field(ge=1)] = 1000
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.3
    head_rate: Annotated[float, Field(ge=0.0)] = 0.02
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.8
    clip: Annotated[float, Field(gt=0.0)] = 1.0
    augmentations: Annotated[int, Field(ge=1)] = 1
    shift: Annotated[int, Field(ge=0)] = 2
    flip: bool = False
    at_once: Annotated[int, Field(ge=1)] = 32


@dataclass(frozen=True)
class Noise:
    """Noise multipliers of the two parts, and what is sampled in the second."""

    head: float
    network: float
    rate: float
    steps: int

    def event(self, settings: FineTuneSettings) -> Event:
        """What both parts cost."""
        return compose(settings.head.event(self.head), PoissonGaussian(self.network, self.rate, self.steps))


def planned(records: int, steps: int, settings: FineTuneSettings, epsilon: float, delta: float) -> Noise:
    """Noise for both parts that costs (`epsilon`, `delta`) in all."""
    rate = sampling_rate(records, settings)
    head = calibrate(settings.head.event, epsilon, delta) / math.sqrt(1.0 - settings.share)
    network = calibrate(lambda sigma: PoissonGaussian(sigma, rate, steps), epsilon, delta) / math.sqrt(settings.share)

    def both(factor: float) -> Noise:
        return Noise(factor * head, factor * network, rate, steps)

    return both(calibrate(lambda factor: both(factor).event(settings), epsilon, delta))


class Affine(nn.Module):
    """A gain and an offset of each channel, 1 and 0 at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.offset = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Times the gain, plus the offset."""
        return torch.addcmul(self.offset.view(1, -1, 1, 1), x, self.gain.view(1, -1, 1, 1))


def _of_each(layer: Affine, inputs: list[Tensor], backward: Tensor) -> dict[nn.Parameter, Tensor]:
    """Per-example gradients of an `Affine`, as Opacus asks for them."""
    return {layer.gain: (inputs[0] * backward).sum((2, 3)), layer.offset: backward.sum((2, 3))}


class FixedNorm(nn.Module):
    """What BatchNorm is in eval mode, a public scale and shift of each channel, and then an `Affine`."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: HookedBatchNorm) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        self.register_buffer("scale", scale.detach().view(1, -1, 1, 1).clone())
        self.register_buffer("shift", (norm.bias - norm.running_mean * scale).detach().view(1, -1, 1, 1).clone())
        self.affine = Affine(len(scale))

    def forward(self, x: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Scale and shift; there is nothing to hook while training."""
        assert hook is None
        moved: Tensor = self.affine(torch.addcmul(self.shift, x, self.scale))
        return moved


class Tunable(nn.Module):
    """A public network without BatchNorm, and a linear classifier of its whitened features."""

    def __init__(self, backbone: FeatureNetwork, head: NDArray[np.float64], weights: Literal["all", "norms"]) -> None:
        super().__init__()
        self.network: FeatureNetwork = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        _replace(self.network)
        self.network.requires_grad_(False)
        for module in self.network.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(_channels_first)
                module.requires_grad_(weights == "all")
            elif isinstance(module, Affine):
                module.requires_grad_(True)
        self.head = nn.Linear(head.shape[1], head.shape[0], bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(head))
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Logits: what `private_linear.with_bias` makes of whitened features, times the head."""
        features = self.network.whitening(self.network.features(images), self.head.in_features - 1)
        rows = functional.pad(functional.normalize(features, dim=1), (0, 1), value=BIAS) / math.hypot(1.0, BIAS)
        logits: Tensor = self.head(rows)
        return logits

    def trained(self) -> list[nn.Parameter]:
        """All that is trained: the head last."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


class Trainable(Protocol):
    """A network of images in [0, 1], and what of it is trained."""

    def trained(self) -> list[nn.Parameter]:
        """All that is trained."""


class GradientSettings(Protocol):
    """How a record's gradient is taken and clipped, and how many are at a time."""

    @property
    def clip(self) -> float: ...  # noqa: D102
    @property
    def augmentations(self) -> int: ...  # noqa: D102
    @property
    def shift(self) -> int: ...  # noqa: D102
    @property
    def flip(self) -> bool: ...  # noqa: D102
    @property
    def at_once(self) -> int: ...  # noqa: D102


class PrivateSteps:
    """A network with per-example gradients. Records are arguments of `gradient`, and are not kept."""

    def __init__(self, network: Trainable, settings: GradientSettings) -> None:
        from opacus.grad_sample import GradSampleModule, register_grad_sampler

        register_grad_sampler(Affine)(_of_each)
        assert isinstance(network, nn.Module)
        self.network, self.settings = network, settings
        self._sampled = GradSampleModule(network, loss_reduction="sum")

    def gradient(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """The sum of clipped gradients over uint8 images, in whole steps of clip / `FIXED_POINT_ONE`, as float64."""
        total = [torch.zeros(p.shape, dtype=torch.float64) for p in self.network.trained()]
        for start in range(0, len(images), self.settings.at_once):
            part = slice(start, start + self.settings.at_once)
            kept = len(images[part])
            each = self._per_example(*_padded(images[part], labels[part], self.settings.at_once), generator)
            each = [gradients[:kept] for gradients in each]
            norms = torch.stack([_squares(g.flatten(1)) for g in each]).sum(dim=0).sqrt() / self.settings.clip
            factor = (FIXED_POINT_ONE * _MARGIN / self.settings.clip / norms.clamp_min(1.0)).float()
            if not bool(torch.isfinite(norms).all()):  # a record without a usable gradient counts for nothing
                each = [torch.where(torch.isfinite(norms).view(-1, *[1] * (g.ndim - 1)), g, 0.0) for g in each]
                factor = torch.nan_to_num(factor)
            for sums, gradients in zip(total, each, strict=True):
                whole = gradients.mul_(factor.view(-1, *[1] * (gradients.ndim - 1))).trunc_()
                for few in whole.split(_EXACTLY):
                    sums += few.sum(dim=0)
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
        samples: list[Tensor] = [p.grad_sample for p in self.network.trained()]  # type: ignore[attr-defined]
        if copies > 1:
            samples = [gradients.unflatten(0, (-1, copies)).mean(1) for gradients in samples]
        self._sampled.zero_grad(set_to_none=True)
        return samples


def _padded(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` of each, with zeros at the end: another size of batch would change the last bits of others' gradients."""
    room = count - len(images)
    return torch.cat([images, images.new_zeros(room, *images.shape[1:])]), torch.cat([labels, labels.new_zeros(room)])


def steps_in(minutes: float, network: Tunable, shape: tuple[int, int, int], settings: FineTuneSettings) -> int:
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
    network: Tunable,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    settings: FineTuneSettings,
    noise: Noise,
    entropy: Entropy,
    *,
    minutes: float = math.inf,
    progress: Progress = silent,
) -> int:
    """Train `network` in place, which releases the second part of `noise`; give the steps done."""
    scale = discrete_gaussian.scale_for(noise.network * FIXED_POINT_ONE)
    generator = torch.Generator().manual_seed(int.from_bytes(entropy.take(7), "little"))
    private = PrivateSteps(network, settings)
    *body, head = network.trained()
    rates = {"network": settings.learning_rate, "head": settings.head_rate * network.head.in_features}
    groups = [{"params": body, "name": "network"}, {"params": [head], "name": "head"}]
    optimiser = torch.optim.SGD(groups, lr=0.0, momentum=settings.momentum)
    started = time.monotonic()
    for step in range(noise.steps):
        pick = poisson_sample(len(images), noise.rate, entropy)
        sums = private.gradient(torch.from_numpy(images[pick]), torch.from_numpy(labels[pick]), generator)
        for parameter, total in zip(network.trained(), sums, strict=True):
            drawn = torch.from_numpy(discrete_gaussian.sample(scale, total.numel(), entropy)).view(total.shape)
            parameter.grad = ((total + drawn) * (settings.clip / FIXED_POINT_ONE / settings.batch)).to(parameter.dtype)
        for group in optimiser.param_groups:
            group["lr"] = rates[group["name"]] * 0.5 * (1.0 + math.cos(math.pi * step / noise.steps))
        optimiser.step()
        progress("DP-SGD over the network", step + 1, noise.steps)
        if time.monotonic() - started > 60.0 * minutes:
            break
    private.close()
    return step + 1


def _squares(rows: Tensor) -> Tensor:
    """The squared norm of each row, in float64: short sums in float32, which is far faster, then their sum."""
    even = rows.shape[1] // 256 * 256
    short = torch.linalg.vector_norm(rows[:, :even].unflatten(1, (-1, 256)), dim=2) if even else rows[:, :0]
    rest = torch.linalg.vector_norm(rows[:, even:], dim=1, keepdim=True)
    return torch.cat([short, rest], dim=1).double().square().sum(dim=1)


def _channels_first(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in inputs)


def _replace(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, HookedBatchNorm):
            setattr(module, name, FixedNorm(child))
        else:
            _replace(child)
