"""Supervised training of a network on public images, epoch by epoch, so that it can be stopped and resumed.

The order and the augmentation of an epoch depend on the seed and the epoch alone, so a state that was written
down after an epoch goes on to exactly the weights of an uninterrupted run:

>>> from dpdd.common.models.convnet import ConvNetArchitecture
>>> from dpdd.common.models.backbone import build
>>> images, labels = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8), torch.arange(40) % 2
>>> settings = TrainingSettings(epochs=2, batch_size=8)
>>> def fresh() -> Training:
...     torch.manual_seed(7)
...     shape = ConvNetArchitecture(channels=1, height=8, width=8, classes=2, widths=(4,))
...     return Training(settings, build(shape), images, labels)
>>> first, second = fresh(), fresh()
>>> loss, steps = first.run_epoch()
>>> second.restore(first.tensors(), first.position())
>>> first.run_epoch() == second.run_epoch(), first.progress, steps
(True, 1.0, 5)
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dpdd.common.errors import ConfigError
from dpdd.common.models import checkpoint
from dpdd.common.models.feature_network import FeatureNetwork


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train.

    Parameters
    ----------
    epochs, batch_size, minutes
        How long: the epochs, or the minutes, whichever end first. With minutes the clock, not the step count,
        moves the learning rate along its schedule: the run ends on time with the rate annealed, and a
        repetition gives slightly different weights.
    optimizer, learning_rate, momentum, weight_decay
        SGD has Nesterov momentum; the rate is the peak of the schedule; norms and biases do not decay.
    schedule, warmup
        "one-cycle" rises linearly for the share `warmup` of the run; both fall to 0 along a cosine.
    label_smoothing
        Helps accuracy on the public classes, and tends to hurt frozen features: 0 by default.
    crop_padding, flip
        Random shifts by up to so many pixels (edges repeated), and random mirror images.
    crop, crop_until
        Side of random cut-outs to train on until that share of the run; the rest sees whole images, as users will. A
        cut-out of 24 of 32 pixels costs about half the time, so that the same time holds more epochs.
    ema
        Decay per step of an average of the weights, which is then the result; 0 for none.
    seed
        Of order and augmentation.
    """

    epochs: int = 10
    batch_size: int = 128
    minutes: float | None = None
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["one-cycle", "cosine"] = "one-cycle"
    warmup: float = 0.2
    label_smoothing: float = 0.0
    crop_padding: int = 3
    flip: bool = True
    crop: int | None = None
    crop_until: float = 0.8
    ema: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or (self.minutes is not None and not self.minutes > 0):
            raise ConfigError("Training needs at least 1 epoch, batches of at least 2, and more than 0 minutes.")
        if (self.crop is not None and self.crop < 1) or not 0 <= self.crop_until <= 1:
            raise ConfigError("Cut-outs have a side of at least 1 pixel, and end at a share of the run from 0 to 1.")
        if not (0 <= self.warmup < 1 and 0 <= self.ema < 1 and 0 <= self.label_smoothing < 1):
            raise ConfigError("Warm-up, EMA decay and label smoothing are shares, from 0 to below 1.")
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise ConfigError("Training needs a learning rate above 0, momentum below 1, weight decay from 0.")
        if self.crop_padding < 0:
            raise ConfigError(f"The crop padding is a number of pixels from 0, not {self.crop_padding}.")
        if self.optimizer == "sgd" and self.momentum == 0:
            raise ConfigError("Nesterov's SGD needs a momentum above 0.")


class Training:
    """The state of a run: network, its average, optimizer, and how far it has come.

    Parameters
    ----------
    settings, network
        The network is trained in place.
    images, labels
        Public images, uint8 (N, C, H, W), and the class of each.
    """

    def __init__(self, settings: TrainingSettings, network: FeatureNetwork, images: Tensor, labels: Tensor) -> None:
        self.settings, self.network = settings, network
        self.images, self.labels = images, labels
        self.batches = len(images) // settings.batch_size
        if self.batches < 1:
            raise ConfigError(
                f"{len(images)} training images do not fill one batch of {settings.batch_size}; "
                "ask for smaller batches."
            )
        self.average = {name: tensor.clone() for name, tensor in self._floats()} if settings.ema else {}
        self.optimizer = _optimizer(settings, network)
        self.epoch, self.seconds, self.progress = 0, 0.0, 0.0

    def run_epoch(self, on_step: Callable[[float], None] = lambda loss: None) -> tuple[float, int]:
        """Train for one epoch, or until the minutes are over; give the mean loss and the number of steps.

        `on_step` is called after each step with the mean loss so far.
        """
        settings = self.settings
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.epoch + 1)
        order = torch.randperm(len(self.images), generator=generator)
        self.network.train()
        started, before, losses, step = time.monotonic(), self.seconds, 0.0, 0
        for step in range(1, self.batches + 1):
            chosen = order[(step - 1) * settings.batch_size : step * settings.batch_size]
            side = settings.crop if self.progress < settings.crop_until else None
            batch = augment(self.images[chosen], settings.crop_padding, settings.flip, generator, side)
            losses += self._step(batch.float() / 255, self.labels[chosen])
            self.seconds = before + time.monotonic() - started
            self.progress = (self.epoch * self.batches + step) / (settings.epochs * self.batches)
            if settings.minutes is not None:
                self.progress = max(self.progress, min(1.0, self.seconds / (60 * settings.minutes)))
            on_step(losses / step)
            if self.progress >= 1:
                break
        self.epoch += 1
        if not math.isfinite(losses):
            raise ConfigError(f"Training diverged in epoch {self.epoch}; ask for a smaller learning rate.")
        return losses / step, step

    def result(self) -> FeatureNetwork:
        """Give the network to evaluate and save: the average if there is one."""
        if not self.average:
            return self.network
        network = copy.deepcopy(self.network)
        network.load_state_dict({**self.network.state_dict(), **self.average})
        return network

    def position(self) -> dict[str, float]:
        """Give how far the run has come."""
        return {"epoch": self.epoch, "seconds": self.seconds, "progress": self.progress}

    def tensors(self) -> dict[str, Tensor]:
        """Give all tensors of the state, by name."""
        state = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        state |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items() if value is not None}
        return state

    def restore(self, tensors: Mapping[str, Tensor], position: Mapping[str, float]) -> None:
        """Take up the state that `tensors` and `position` gave."""
        self.network.load_state_dict(checkpoint.part(tensors, "network."))
        for name, value in checkpoint.part(tensors, "average.").items():
            self.average[name].copy_(value)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in checkpoint.part(tensors, "optimizer.").items():
            index, slot = name.split(".", 1)
            slots.setdefault(int(index), {})[slot] = checkpoint.laid_out_like(value, parameters[int(index)])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        self.epoch = int(position["epoch"])
        self.seconds, self.progress = position["seconds"], position["progress"]

    def _step(self, batch: Tensor, labels: Tensor) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.settings, self.progress)
        loss = F.cross_entropy(self.network(batch), labels, label_smoothing=self.settings.label_smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            for name, tensor in self._floats() if self.average else ():
                self.average[name].lerp_(tensor, 1 - self.settings.ema)
        return loss.item()

    def _floats(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, t) for name, t in self.network.state_dict().items() if t.is_floating_point())


def augment(images: Tensor, padding: int, flip: bool, generator: torch.Generator, side: int | None = None) -> Tensor:
    """Shift each image of (N, C, H, W) by up to `padding` pixels, repeating edges; mirror half of them.

    With `side`, give a random square of that size out of each.
    """
    count, _, *size = images.shape
    rows, columns = (_window(count, length, min(side or length, length), padding, generator) for length in size)
    if flip:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(count)[:, None, None]
    channels_last = images.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    return channels_last.permute(0, 3, 1, 2)


def _window(count: int, length: int, kept: int, padding: int, generator: torch.Generator) -> Tensor:
    """For each of `count` images, `kept` neighbouring rows (or columns) out of `length`, edges repeated."""
    first = torch.randint(-padding, length - kept + padding + 1, (count, 1), generator=generator)
    return (first + torch.arange(kept)).clamp(0, length - 1)


def rate(settings: TrainingSettings, progress: float) -> float:
    """Give the learning rate at a share `progress` of the run.

    >>> settings = TrainingSettings(learning_rate=1.0)
    >>> [round(rate(settings, share), 3) for share in (0, 0.1, 0.2, 0.6, 1)]
    [0.02, 0.51, 1.0, 0.5, 0.0]
    """
    warmup = settings.warmup if settings.schedule == "one-cycle" else 0.0
    if progress < warmup:
        return settings.learning_rate * (0.02 + 0.98 * progress / warmup)
    descent = min(1.0, (progress - warmup) / (1 - warmup))
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * descent))


def _optimizer(settings: TrainingSettings, network: FeatureNetwork) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in network.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate)
    return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum, nesterov=True)
