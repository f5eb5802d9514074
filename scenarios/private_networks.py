"""Networks that DP-SGD can train: a public backbone with a linear classifier on top, or a small one from scratch.

Nothing here mixes records, or a record's gradient would not be its own: BatchNorm becomes a `FixedNorm`. Opacus (1.6)
unfolds the inputs of convolutions as if they lay channels first, and gives wrong gradients for `channels_last` (which
torch also makes of images with one channel) without a word, so every convolution's input is laid out anew.
"""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.errors import ConfigError
from dpdd.common.models.tapped import FeatureNet, Tap, TappedNorm
from dpdd.scenarios.private_features import Features
from dpdd.scenarios.private_linear import BIAS

Trained = Literal["norms", "all"]
"""Of a backbone: scale and shift of every channel, or these and all convolutions; the classifier always."""

SMALLEST_SIDE = 16
"""Of images for `FreshConvNet`."""


class ChannelScale(nn.Module):
    """A scale and a shift for each channel."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(values.detach().clone()) for values in (scale, shift))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift."""
        return torch.addcmul(self.shift.view(1, -1, 1, 1), x, self.scale.view(1, -1, 1, 1))


def channel_gradients(layer: ChannelScale, inputs: list[Tensor], output_gradients: Tensor) -> dict[Tensor, Tensor]:
    """Per-example gradients of a `ChannelScale`, for Opacus."""
    scale = torch.einsum("nchw,nchw->nc", inputs[0], output_gradients)
    return {layer.scale: scale, layer.shift: output_gradients.sum((2, 3))}


class FixedNorm(nn.Module):
    """What BatchNorm is in eval mode: public statistics, then a `ChannelScale`, which can be trained."""

    mean: Tensor
    steepness: Tensor

    def __init__(self, norm: TappedNorm) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        self.register_buffer("mean", norm.running_mean.view(1, -1, 1, 1).clone())
        self.register_buffer("steepness", (norm.running_var + norm.eps).rsqrt().view(1, -1, 1, 1))
        self.channels = ChannelScale(norm.weight, norm.bias)

    def forward(self, x: Tensor, tap: Tap | None = None) -> Tensor:
        """Standardise, scale and shift; there is nothing to tap while training."""
        assert tap is None
        result: Tensor = self.channels((x - self.mean) * self.steepness)
        return result


class TunedBackbone(nn.Module):
    """A copy of a backbone, and the classifier of `private_linear` on its features: at first it says what that says.

    `weight` (classes, D + 1) is for rows of norm 1. Rows are multiplied by `reach` and the weight is divided by it:
    that decides how large the classifier's own gradient is beside those of the network.
    """

    def __init__(
        self,
        backbone: FeatureNet,
        features: Features,
        weight: Tensor,
        *,
        trained: Trained = "norms",
        reach: float = 1.0,
    ) -> None:
        super().__init__()
        network: FeatureNet = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.network, self.kind, self.reach = network.requires_grad_(False), features, reach
        _replace(network)
        _lay_out_anew(network)
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.requires_grad_(trained == "all")
            elif isinstance(module, ChannelScale):
                module.requires_grad_(True)
        self.classifier = nn.Linear(weight.shape[1], len(weight), bias=False)
        with torch.no_grad():
            self.classifier.weight.copy_(weight / reach)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        found = functional.normalize(self.kind.of(self.network, self.network.features(images)), dim=1)
        rows = torch.cat([found, found.new_full((len(found), 1), BIAS)], dim=1) / math.hypot(1.0, BIAS)
        logits: Tensor = self.classifier(rows * self.reach)
        return logits


class FreshConvNet(nn.Module):
    """Two convolutions and two linear layers with tanh: the small network that is usual for DP-SGD on such images.

    Its shape is that of Papernot et al. (2021, table 1), who found that bounded activations bear clipping better.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, *sides = shape
        if min(sides) < SMALLEST_SIDE:
            raise ConfigError(
                f"the ConvNet that DP-SGD trains from scratch wants images of {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels "
                f"or more, not {sides[0]} x {sides[1]}; leave 'scratch' out of --methods"
            )
        height, width = (((side - 2) // 2 - 4) // 2 for side in sides)  # what 8 / 2, pool, 4 / 2 and pool leave
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, kernel_size=4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(32 * height * width, 32),
            nn.Tanh(),
            nn.Linear(32, classes),
        )
        _lay_out_anew(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        logits: Tensor = self.layers(2.0 * images - 1.0)
        return logits


def has_weights(backbone: FeatureNet) -> bool:
    """Whether there is anything to fine-tune: a scattering transform has no weights."""
    return any(isinstance(module, nn.Conv2d) for module in backbone.modules())


def _lay_out_anew(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(_channels_first)


def _channels_first(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in inputs)


def _replace(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, TappedNorm):
            setattr(module, name, FixedNorm(child))
        else:
            _replace(child)
