"""Feature networks: classifiers with layer hooks, from whose BatchNorm inputs SPS takes its statistics.

A layer hook is a callable that is handed, layer by layer and within one ordinary forward pass, the activations
before BatchNorm standardised by the *public* running statistics, ``(x - running_mean) / sqrt(running_var +
eps)``, without BatchNorm's own scale and shift. It is an argument of `features` (torch's own module hooks are not
used), and a layer that has been consumed can be freed at once:

>>> import torch
>>> from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
>>> network = ConvNet(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6))).eval()
>>> images = torch.rand(5, 1, 8, 8)
>>> [tuple(layer.shape) for layer in network.layers_of(images)]
[(5, 4, 8, 8), (5, 6, 8, 8)]
>>> spatial_means: list[torch.Tensor] = []
>>> features = network.features(images, hook=lambda layer: spatial_means.append(layer.mean((2, 3))))
>>> tuple(features.shape), [tuple(mean.shape) for mean in spatial_means]
((5, 6), [(5, 4), (5, 6)])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdd.common.errors import ConfigError
from dpdd.common.models.resampling import area_resample, smaller
from dpdd.common.models.whitening import TwoPartWhitening, Whitening

LayerHook = Callable[[Tensor], None]
"""Receives the standardised activations before one BatchNorm layer, in the order of the forward pass."""

REACH = 1.5
"""How much larger than the images that it was trained on a network sees images, at most. On blood cells of 64 x 64
pixels, a network for 32 x 32 told classes apart better at 48 x 48 than at 32 or 64, with noise and without."""


@dataclass(frozen=True)
class Normalisation:
    """What the network does to images in [0, 1] first: ``(image - mean) / std``, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ConfigError(
                f"The input normalisation has {len(self.mean)} means and {len(self.std)} deviations; "
                "it needs one of each per channel."
            )
        if not all(0 < deviation < float("inf") for deviation in self.std):
            raise ConfigError(f"The input normalisation's deviations {list(self.std)} must all be positive.")

    @staticmethod
    def neutral(channels: int) -> Normalisation:
        """Map [0, 1] to [-1, 1] in every channel."""
        return Normalisation(mean=(0.5,) * channels, std=(0.5,) * channels)


class HookedBatchNorm(nn.BatchNorm2d):
    """BatchNorm which hands its standardised input to a layer hook, if there is one."""

    def forward(self, input: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Normalise; with a hook (in eval mode only) show it the standardised input."""
        if hook is None:
            return super().forward(input)
        if self.training:
            raise RuntimeError("Layer hooks standardise by the public running statistics: call network.eval() first.")
        standardised = F.batch_norm(input, self.running_mean, self.running_var, eps=self.eps)
        hook(standardised)
        return torch.addcmul(self.bias.view(1, -1, 1, 1), standardised, self.weight.view(1, -1, 1, 1))


def silu(activations: Tensor) -> Tensor:
    """SiLU, in place where autograd does not need its input again."""
    return F.silu(activations, inplace=not torch.is_grad_enabled())


class FeatureNetwork(nn.Module, ABC):
    """A classifier of images in [0, 1] with penultimate `features`, a linear `head`, and `layers_of` in between.

    Input normalisation is part of the network, so that no caller can forget or repeat it.
    """

    default_features = 512
    """Whitened features that suit most runs, where there are so many."""

    head: nn.Linear
    whitening: Whitening | TwoPartWhitening
    mean: Tensor
    std: Tensor

    def __init__(self, channels: int, normalisation: Normalisation | None) -> None:
        super().__init__()
        self.normalisation = normalisation or Normalisation.neutral(channels)
        if len(self.normalisation.mean) != channels:
            raise ConfigError(
                f"The input normalisation is for {len(self.normalisation.mean)} channels, "
                f"the architecture for {channels}."
            )
        shape = (1, channels, 1, 1)
        self.register_buffer("mean", torch.tensor(self.normalisation.mean).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(self.normalisation.std).view(shape), persistent=False)

    @abstractmethod
    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Give the penultimate features (N, D) of images (N, C, H, W) in [0, 1]; show each layer to `hook`."""

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of images in [0, 1]."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def layers_of(self, images: Tensor) -> list[Tensor]:
        """Give, for each BatchNorm layer, its input standardised by the public running statistics.

        For large batches prefer ``features(images, hook=...)``, which need not keep all layers at once.
        """
        layers: list[Tensor] = []
        self.features(images, hook=layers.append)
        return layers

    @property
    def layer_channels(self) -> tuple[int, ...]:
        """Channels of each hooked layer, in the order of `layers_of`."""
        return tuple(module.num_features for module in self.modules() if isinstance(module, HookedBatchNorm))

    def working_memory(self, shape: tuple[int, ...], batch: int) -> int:
        """Bytes that the weights and a forward pass of `batch` images of this shape take, without gradients: a bound.

        Three times all layers' outputs, though few are alive at once, and a dozen copies of the images, which
        scattering transforms pad, transform and take moduli of. Weights were read in half precision first.
        """
        with torch.inference_mode():
            layers = sum(layer.numel() for layer in self.layers_of(torch.zeros(1, *shape)))
        weights = sum(weight.numel() for weight in self.state_dict().values())
        return 12 * weights + 4 * batch * (3 * layers + 12 * math.prod(shape))

    def reduce(self, images: Tensor, height: int, width: int) -> Tensor:
        """Images that are much larger than `height` x `width`, which the network was made for, area-resampled.

        Beyond `REACH` times the longer side, globally pooled features are not what the network was trained to give.
        """
        longest = math.ceil(REACH * max(height, width))
        rows, columns = smaller(images.shape[2], images.shape[3], longest, shortest=min(height, width))
        return area_resample(images, rows, columns)

    def normalise(self, images: Tensor) -> Tensor:
        """Apply the input normalisation, and the memory layout that convolutions on CPUs like best."""
        return ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
