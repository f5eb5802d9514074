"""A random network's features in whole numbers: the same bits on every machine, at the speed of single precision.

Floating-point convolutions round by the order in which they add, and that order differs from one processor, thread
count or library to the next. Here kernels and activations are small whole numbers, so that every sum of a convolution
is exact in single precision and every sum of an instance norm in double precision, in whatever order they are added;
what is rounded in between is rounded number by number, as IEEE 754 says. (Only networks of 512 channels on images of
more than 224 pixels would have larger sums.) Images are rounded to bytes. The result is close to `random_net.features`,
and is what a subspace is fitted to: silos and coordinator each do that by themselves, and must find the same.

>>> import torch
>>> kernels = (torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]]),)
>>> image = torch.tensor([[[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]]])
>>> integer_features(image, kernels).tolist()
[[0.0, 1.0]]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.random_net import average_pool

_EXACT_IN_SINGLE, _EXACT_IN_DOUBLE = 2**24, 2**53

_PIXEL_STEPS = 255
_ACTIVATION_STEPS, _LARGEST_ACTIVATION = 16, 127
"""Of an activation, which has a variance of about 1 before the ReLU: steps in 1, and the most steps."""

_WIDEST = 4.0
"""Weights are cut here, in standard deviations of their kernel."""

_FEATURE_STEPS = 2.0**12


@torch.no_grad()
def integer_features(images: Tensor, kernels: tuple[Tensor, ...], batch: int = 16) -> Tensor:
    """One row (float64, multiples of 2^-12) for each image in [0, 1]."""
    return torch.cat([_features(part, kernels) for part in images.split(batch)])


def _features(images: Tensor, kernels: tuple[Tensor, ...]) -> Tensor:
    values, largest = (images.clamp(0.0, 1.0) * _PIXEL_STEPS).round(), _PIXEL_STEPS
    for layer, kernel in enumerate(kernels):
        values = _convolved(values, _whole(kernel, largest, values.shape[2] * values.shape[3]))
        steps = _FEATURE_STEPS if layer == len(kernels) - 1 else _ACTIVATION_STEPS
        values = average_pool(_normed(values, steps).clamp_min_(0.0)).round_()
        if layer < len(kernels) - 1:
            values, largest = values.clamp_max_(_LARGEST_ACTIVATION), _LARGEST_ACTIVATION
    return values.flatten(1).double() / _FEATURE_STEPS


def _whole(kernel: Tensor, largest: int, pixels: int) -> Tensor:
    """The kernel in whole numbers so small that sums of `largest` times them are exact, and sums of squares over all
    `pixels` too. Its scale does not matter: an instance norm comes next.
    """
    most = min(_EXACT_IN_SINGLE, math.isqrt(_EXACT_IN_DOUBLE // pixels))
    steps = max(most // (largest * kernel[0].numel()), 1)
    unit = _WIDEST * math.sqrt(float(kernel.double().square().mean()))
    return (kernel.double() * (min(steps, 127) / max(unit, 1e-12))).round().clamp(-steps, steps).float()


def _convolved(values: Tensor, kernel: Tensor) -> Tensor:
    """A 3 × 3 convolution; as a plain product of matrices where the library's algorithm leaves the whole numbers."""
    sums = functional.conv2d(values, kernel, padding=1)
    if torch.equal(sums[0], sums[0].round()):
        return sums
    columns = functional.unfold(values, 3, padding=1)  # Winograd's algorithm, say, has fractions in between
    return (kernel.flatten(1) @ columns).unflatten(2, values.shape[2:])


def _normed(values: Tensor, steps: float) -> Tensor:
    """Every channel of every image with mean 0 and deviation `steps`; zeros where it is constant."""
    pixels = values.shape[2] * values.shape[3]
    exact = values.flatten(2).double()
    mean = exact.sum(dim=2) / pixels
    variance = exact.square_().sum(dim=2) / pixels - mean.square()
    factor = steps / variance.clamp_min(0.5).sqrt()
    return (values - mean.float()[..., None, None]).mul_(factor.float()[..., None, None])
