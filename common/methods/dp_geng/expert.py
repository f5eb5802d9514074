"""The expert: a ConvNet that is pretrained on generated images, and fine-tuned on records with DP-SGD.

Its weights travel as one vector. It must not have BatchNorm, or anything else through which records of a batch meet:

>>> network = build_expert((1, 12, 12), classes=3, width=4, depth=2, norm="batch")
>>> check_layers(network)
Traceback (most recent call last):
dpdd.common.errors.ConfigError: layer 1 of the expert is a BatchNorm2d, which mixes the records of a batch, so that no \
gradient belongs to one record alone; give it GroupNorm instead, with expert_norm = "group" or "instance"
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_geng.settings import MethodSettings
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation

Norm = Literal["instance", "group", "batch"]
_MIXING = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)


def build_expert(shape: tuple[int, int, int], classes: int, width: int, depth: int, norm: Norm) -> EvaluationConvNet:
    """The literature's ConvNet with another norm; random weights are torch's, so draw them under a seed."""
    network = EvaluationConvNet(shape, classes, width, depth)
    for at, layer in enumerate(network):
        if isinstance(layer, nn.GroupNorm) and norm == "group":
            network[at] = nn.GroupNorm(math.gcd(width, 4), width)
        elif isinstance(layer, nn.GroupNorm) and norm == "batch":
            network[at] = nn.BatchNorm2d(width)
    return network


def fresh(settings: MethodSettings, shape: tuple[int, int, int], classes: int, seed: int) -> EvaluationConvNet:
    """The expert of these settings, untrained; ConfigError where no gradient of it belongs to one record."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subseed(seed, "dp-geng expert"))
        network = build_expert(shape, classes, settings.expert_width, settings.expert_depth, settings.expert_norm)
    check_layers(network)
    return network


def check_layers(network: nn.Module) -> None:
    """ConfigError, which names the layer and the fix, for a layer through which records of a batch meet."""
    for name, layer in network.named_modules():
        if isinstance(layer, _MIXING):
            raise ConfigError(
                f"layer {name or 'itself'} of the expert is a {type(layer).__name__}, which mixes the records of a "
                "batch, so that no gradient belongs to one record alone; give it GroupNorm instead, with expert_norm = "
                '"group" or "instance"'
            )


def parameter_count(settings: MethodSettings, shape: tuple[int, int, int], classes: int) -> int:
    """How many weights an expert has.

    >>> network = build_expert((3, 12, 12), classes=5, width=4, depth=2, norm="group")
    >>> settings = MethodSettings(expert_width=4, expert_depth=2)
    >>> parameter_count(settings, (3, 12, 12), 5) == len(vector_of(network)) == 461
    True
    """
    width, channels, total = settings.expert_width, shape[0], 0
    for _ in range(settings.expert_depth):
        total += width * (9 * channels + 1) + 2 * width
        channels = width
    flat = width * (shape[1] >> settings.expert_depth) * (shape[2] >> settings.expert_depth)
    return total + classes * (flat + 1)


def vector_of(network: nn.Module) -> NDArray[np.float32]:
    """All weights in a row."""
    return torch.cat([weight.detach().flatten() for weight in network.parameters()]).numpy().astype(np.float32)


@torch.no_grad()
def set_vector(network: nn.Module, vector: NDArray[np.floating]) -> None:
    """Replace all weights."""
    values, start = torch.from_numpy(np.array(vector, dtype=np.float32)), 0
    if (wanted := sum(weight.numel() for weight in network.parameters())) != len(values):
        raise ValueError(f"an expert with {wanted} weights was given {len(values)}")
    for weight in network.parameters():
        weight.copy_(values[start : start + weight.numel()].view_as(weight))
        start += weight.numel()


def pretrained(
    settings: MethodSettings, images: Tensor, labels: Tensor, classes: int, seed: int
) -> NDArray[np.float32]:
    """The weights after `expert_epochs` over generated images (N, C, H, W; in [0, 1])."""
    shape = (images.shape[1], images.shape[2], images.shape[3])
    network = fresh(settings, shape, classes, seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(subseed(seed, "dp-geng expert batches"))
    view = 0
    for _ in range(settings.expert_epochs):
        for pick in torch.randperm(len(images), generator=generator).split(128):
            seen = images[pick]
            if settings.augment:
                seen = SiameseAugmentation.draw(subseed(seed, "dp-geng expert views"), view, settings.flips)(seen)
            view += 1
            loss = functional.cross_entropy(network(seen), labels[pick])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return vector_of(network)
