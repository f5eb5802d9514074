"""Wide-ResNet with SiLU: pre-activation residual blocks, three stages, depth 6n + 4, any width.

>>> import torch
>>> architecture = WideResNetArchitecture(channels=3, height=32, width=32, classes=10, depth=10, widen=1)
>>> network = WideResNet(architecture).eval()
>>> images = torch.rand(2, 3, 32, 32)
>>> tuple(network.features(images).shape), tuple(network(images).shape), network.layer_channels
((2, 64), (2, 10), (16, 16, 16, 32, 32, 64, 64))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

from dpdd.common.errors import ConfigError
from dpdd.common.models.feature_network import FeatureNetwork, HookedBatchNorm, LayerHook, Normalisation, silu
from dpdd.common.models.whitening import Whitening


@dataclass(frozen=True)
class WideResNetArchitecture:
    """Shape of a `WideResNet`.

    Parameters
    ----------
    channels, height, width
        Of the images it was made for. It takes larger ones too, at up to one and a half times this size (`reduce`).
    classes
        Outputs of the linear head.
    depth
        6n + 4, for n blocks in each of the three stages.
    widen
        The stages have 16, 32 and 64 times this many channels.
    """

    channels: int
    height: int
    width: int
    classes: int
    depth: int
    widen: int
    kind: Literal["wrn"] = "wrn"

    def __post_init__(self) -> None:
        if self.depth < 10 or (self.depth - 4) % 6:
            raise ConfigError(f"A Wide-ResNet's depth is 6n + 4 (10, 16, 22, 28, ...), not {self.depth}.")
        if min(self.channels, self.height, self.width, self.classes, self.widen) < 1:
            raise ConfigError(f"A Wide-ResNet needs sizes of at least 1, not {self}.")

    @property
    def blocks_per_stage(self) -> int:
        """The n of depth 6n + 4."""
        return (self.depth - 4) // 6


class ResidualBlock(nn.Module):
    """BatchNorm, SiLU, 3x3 convolution, twice, added to the input (projected where the shape changes)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1 = HookedBatchNorm(before)
        self.convolution1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm2 = HookedBatchNorm(after)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        self.projection = None if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Run the block, showing the inputs of both BatchNorm layers to `hook`."""
        active = silu(self.norm1(x, hook))
        shortcut = x if self.projection is None else self.projection(active)
        residual = self.convolution2(silu(self.norm2(self.convolution1(active), hook)))
        return cast(Tensor, shortcut + residual)


class WideResNet(FeatureNetwork):
    """The network of a `WideResNetArchitecture`; its features are the global average after the last SiLU."""

    def __init__(self, architecture: WideResNetArchitecture, normalisation: Normalisation | None = None) -> None:
        super().__init__(architecture.channels, normalisation)
        self.architecture = architecture
        self.stem = nn.Conv2d(architecture.channels, 16, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        channels = 16
        for stage in range(3):
            for block in range(architecture.blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                after = 16 * 2**stage * architecture.widen
                self.blocks.append(ResidualBlock(channels, after, stride))
                channels = after
        self.norm = HookedBatchNorm(channels)
        self.head = nn.Linear(channels, architecture.classes)
        self.whitening = Whitening(channels)

    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Give the global average (N, 64 * widen) of the last layer, showing each layer to `hook`."""
        x = self.stem(self.normalise(self.reduce(images, self.architecture.height, self.architecture.width)))
        for block in self.blocks:
            x = block(x, hook)
        return silu(self.norm(x, hook)).mean((2, 3))
