"""A plain ConvNet: 3x3 convolution, BatchNorm, SiLU, now and then a 2x2 average pool; cheap on a CPU.

>>> import torch
>>> architecture = ConvNetArchitecture(
...     channels=1, height=28, width=28, classes=10, widths=(8, 16, 32), pool_after=(1, 2)
... )
>>> network = ConvNet(architecture).eval()
>>> tuple(network.features(torch.rand(4, 1, 28, 28)).shape), tuple(network(torch.rand(4, 1, 28, 28)).shape)
((4, 32), (4, 10))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from dpdd.common.errors import ConfigError
from dpdd.common.models.feature_network import FeatureNetwork, HookedBatchNorm, LayerHook, Normalisation, silu
from dpdd.common.models.whitening import Whitening


@dataclass(frozen=True)
class ConvNetArchitecture:
    """Shape of a `ConvNet`.

    Parameters
    ----------
    channels, height, width
        Of the images it was made for. It takes larger ones too, at up to one and a half times this size (`reduce`).
    classes
        Outputs of the linear head.
    widths
        Output channels of each 3x3 convolution.
    pool_after
        Layers, counted from 1, whose output is halved by a 2x2 average pool (odd sizes round up).
    """

    channels: int
    height: int
    width: int
    classes: int
    widths: tuple[int, ...]
    pool_after: tuple[int, ...] = ()
    kind: Literal["convnet"] = "convnet"

    def __post_init__(self) -> None:
        if min(self.channels, self.height, self.width, self.classes, *self.widths, len(self.widths)) < 1:
            raise ConfigError(f"A ConvNet needs at least one layer, and sizes of at least 1, not {self}.")
        if any(not 1 <= layer <= len(self.widths) for layer in self.pool_after):
            raise ConfigError(
                f"pool_after {list(self.pool_after)} must name layers from 1 to {len(self.widths)}, "
                f"as the ConvNet has {len(self.widths)} layers."
            )


class ConvNet(FeatureNetwork):
    """The network of a `ConvNetArchitecture`; its features are the global average of the last layer."""

    def __init__(self, architecture: ConvNetArchitecture, normalisation: Normalisation | None = None) -> None:
        super().__init__(architecture.channels, normalisation)
        self.architecture = architecture
        fan_in = (architecture.channels, *architecture.widths)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
            for before, after in zip(fan_in, architecture.widths, strict=False)
        )
        self.norms = nn.ModuleList(HookedBatchNorm(channels) for channels in architecture.widths)
        self.head = nn.Linear(architecture.widths[-1], architecture.classes)
        self.whitening = Whitening(architecture.widths[-1])

    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Give the global average (N, widths[-1]) of the last layer, showing each layer to `hook`."""
        x = self.normalise(self.reduce(images, self.architecture.height, self.architecture.width))
        for layer, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True), start=1):
            x = silu(norm(convolution(x), hook))
            if layer in self.architecture.pool_after:
                x = F.avg_pool2d(x, kernel_size=2, ceil_mode=True)
        return x.mean((2, 3))
