"""Kernels of networks at their first, random weights: perceptual features of a ResNet-18, and LeNet's tangent kernel.

DP-KIP's paper tries both beside ScatterNet. Weights are drawn from a public seed, so everybody has the same network.
Perceptual features are all layers' outputs, side by side. BatchNorm, which at first weights does nothing but scale, is
left out: each image's layers are scaled to mean square 1, so that each has the same part in the kernel. The
empirical tangent kernel is the inner product of the gradients of one output with respect to all weights (of which
the mean over outputs, or networks, is the same).

>>> import torch
>>> images = torch.rand(3, 1, 12, 12)
>>> features = PerceptualFeatures(channels=1)
>>> tuple(features(images).shape)
(3, 9728)
>>> tuple(EmpiricalNTK(LeNet((1, 12, 12)))(images, images[:2]).shape)
(3, 2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.randomness import gaussians

SEED = 0
"""Of the networks, unless somebody names another."""
_AT_ONCE = 100


def _drawn(seed: int, name: str, *shape: int) -> Tensor:
    """Weights of a layer of ReLUs: of variance 2 / inputs (He et al. 2015)."""
    inputs = math.prod(shape[1:])
    return torch.from_numpy(gaussians(seed, name, shape) * math.sqrt(2.0 / inputs)).float()


class PerceptualFeatures:
    """All layers' outputs of a ResNet-18 (He et al. 2016) with random weights: images to features (N, D)."""

    def __init__(self, channels: int, seed: int = SEED) -> None:
        self.stem = _drawn(seed, "stem", 64, channels, 7, 7)
        self.blocks: list[tuple[int, Tensor, Tensor, Tensor | None]] = []
        before = 64
        for number in range(8):
            width, stride = 64 << (number // 2), 2 if number in (2, 4, 6) else 1
            shortcut = None if stride == 1 else _drawn(seed, f"shortcut {number}", width, before, 1, 1)
            first = _drawn(seed, f"first {number}", width, before, 3, 3)
            self.blocks.append((stride, first, _drawn(seed, f"second {number}", width, width, 3, 3), shortcut))
            before = width

    def __call__(self, images: Tensor) -> Tensor:
        """The features; differentiable."""
        return torch.cat([self._features(part) for part in images.split(_AT_ONCE)])

    def _features(self, images: Tensor) -> Tensor:
        x = _scaled(functional.relu(functional.conv2d(images - 0.5, self.stem.to(images), stride=2, padding=3)))
        layers = [x]
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for stride, first, second, shortcut in self.blocks:
            inner = _scaled(functional.relu(functional.conv2d(x, first.to(x), stride=stride, padding=1)))
            kept = x if shortcut is None else functional.conv2d(x, shortcut.to(x), stride=stride)
            x = _scaled(functional.relu(kept + functional.conv2d(inner, second.to(x), padding=1)))
            layers += [inner, x]
        return torch.cat([each.flatten(1) / math.sqrt(each[0].numel()) for each in layers], dim=1)


def _scaled(layer: Tensor) -> Tensor:
    """The layer with mean square 1 in each image."""
    size = torch.linalg.vector_norm(layer.flatten(1), dim=1) / math.sqrt(layer[0].numel())
    return layer / size.clamp_min(1e-6)[:, None, None, None]


class LeNet:
    """One output of LeNet-5 (LeCun et al. 1998) with ReLUs and random weights, for images of a shape."""

    def __init__(self, shape: tuple[int, int, int], seed: int = SEED) -> None:
        channels, height, width = shape
        flat = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
        if flat <= 0:
            raise ValueError(f"LeNet takes images from 12 x 12 pixels up, not {height} x {width}")
        sizes = {
            "first": (6, channels, 5, 5),
            "second": (16, 6, 5, 5),
            "third": (120, flat),
            "fourth": (84, 120),
            "output": (1, 84),
        }
        self.weights = {name: _drawn(seed, f"LeNet {name}", *size) for name, size in sizes.items()}
        self.weights |= {f"{name} bias": torch.zeros(size[0]) for name, size in sizes.items()}

    def output(self, weights: Mapping[str, Tensor], image: Tensor) -> Tensor:
        """The output for one image, a number."""
        x = image[None] - 0.5
        for name, padding in (("first", 2), ("second", 0)):
            x = functional.relu(functional.conv2d(x, weights[name], weights[f"{name} bias"], padding=padding))
            x = functional.max_pool2d(x, 2)
        x = x.flatten(1)
        for name in ("third", "fourth"):
            x = functional.relu(functional.linear(x, weights[name], weights[f"{name} bias"]))
        return functional.linear(x, weights["output"], weights["output bias"])[0, 0]


class EmpiricalNTK:
    """The tangent kernel of a network as it is, of finite width."""

    def __init__(self, network: LeNet) -> None:
        self.network = network

    def features(self, images: Tensor) -> Tensor:
        """Gradients of the output with respect to all weights: (N, D)."""
        weights = {name: weight.to(images) for name, weight in self.network.weights.items()}
        gradient = torch.func.vmap(torch.func.grad(self.network.output), in_dims=(None, 0))
        rows = []
        with torch.no_grad():
            for part in images.split(_AT_ONCE):
                rows.append(torch.cat([each.flatten(1) for each in gradient(weights, part).values()], dim=1))
        return torch.cat(rows)

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """The kernel matrix (N, M)."""
        of_z = self.features(z)
        return torch.cat([self.features(part) @ of_z.T for part in x.split(_AT_ONCE)])
