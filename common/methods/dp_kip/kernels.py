"""Kernels, and kernel ridge regression as pure functions: tensors in, tensors out.

The neural tangent kernel of an infinitely wide fully connected ReLU network has a closed form: with the covariance K of
two units of a layer before the ReLU, and θ the angle in it, the arc-cosine kernels give the covariance after the ReLU
and that of its derivative,

    κ₁ = √(K(x,x) K(z,z)) (sin θ + (π - θ) cos θ) / 2π        κ₀ = (π - θ) / 2π,

and layer by layer K ← σ_w² κ₁ + σ_b², Θ ← K + σ_w² κ₀ Θ, from K = Θ = σ_w² x·z / D + σ_b² (Jacot et al. 2018; Lee et
al. 2019, in the NTK parametrisation). Kernel inducing points take σ_w = √2 and σ_b = 0.1.

>>> import torch
>>> images = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
>>> ntk = FullyConnectedNTK(depth=0, bias_std=0.0)              # no hidden layer: a linear model
>>> ntk(images, images).round()
tensor([[1., 0.],
        [0., 1.]], dtype=torch.float64)
>>> predictions(ntk, images, images, torch.tensor([[1.0], [-1.0]], dtype=torch.float64), ridge=1e-9).round()
tensor([[ 1.],
        [-1.]], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

Kernel = Callable[[Tensor, Tensor], Tensor]
"""Inputs (N, ...) and (M, ...) ↦ their kernel matrix (N, M); differentiable."""

FeatureMap = Callable[[Tensor], Tensor]
"""Inputs (N, ...) ↦ features (N, D)."""


class ProductKernel(Protocol):
    """A kernel that is a function of inner products alone, elementwise."""

    def of_products(self, products: Tensor, of_x: Tensor, of_z: Tensor, size: int) -> Tensor:
        """The kernel of inputs of `size` numbers with these x·z, |x|² and |z|²."""
        ...

    def of_itself(self, of_x: Tensor, size: int) -> Tensor:
        """The kernel of an input and itself, from |x|²."""
        ...


@dataclass(frozen=True)
class InnerProduct:
    """x·z: with features for inputs, the kernel of these features."""

    def of_products(self, products: Tensor, of_x: Tensor, of_z: Tensor, size: int) -> Tensor:
        """The products as they are."""
        return products * 1.0

    def of_itself(self, of_x: Tensor, size: int) -> Tensor:
        """|x|²."""
        return of_x * 1.0


@dataclass(frozen=True)
class FullyConnectedNTK:
    """The NTK of an infinitely wide fully connected network with `depth` hidden layers of ReLUs; inputs are flattened.

    Where inputs point the same way, θ = 0, the derivative of κ₀ is unbounded; there it is taken to be 0, which is what
    it is for an input and itself.
    """

    depth: int = 3
    weight_std: float = math.sqrt(2.0)
    bias_std: float = 0.1

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """The kernel matrix (N, M)."""
        x, z = x.flatten(1), z.flatten(1)
        return self.of_products(x @ z.T, x.square().sum(1)[:, None], z.square().sum(1), x.shape[1])

    def of_products(self, products: Tensor, of_x: Tensor, of_z: Tensor, size: int) -> Tensor:
        """The kernel of inputs of `size` numbers with these x·z, |x|² and |z|²; elementwise."""
        weight, bias = self.weight_std**2, self.bias_std**2
        covariance, of_x, of_z = (weight / size * each + bias for each in (products, of_x, of_z))
        tangent, nearly_one = covariance, 1.0 - 2.0 * torch.finfo(products.dtype).eps
        for _ in range(self.depth):
            norms = (of_x * of_z).clamp_min(torch.finfo(products.dtype).tiny).sqrt()
            cosine = (covariance / norms).clamp(-nearly_one, nearly_one)
            rest = math.pi - torch.arccos(cosine)
            after = norms * ((1.0 - cosine.square()).sqrt() + rest * cosine) / (2.0 * math.pi)
            covariance = weight * after + bias
            tangent = covariance + weight * tangent * rest / (2.0 * math.pi)
            of_x, of_z = (weight * each / 2.0 + bias for each in (of_x, of_z))
        return tangent

    def of_itself(self, of_x: Tensor, size: int) -> Tensor:
        """The kernel of an input and itself, from |x|²: θ is 0, so it is linear in that."""
        weight, bias = self.weight_std**2, self.bias_std**2
        covariance = weight / size * of_x + bias
        tangent = covariance
        for _ in range(self.depth):
            covariance = weight * covariance / 2.0 + bias
            tangent = covariance + weight * tangent / 2.0
        return tangent


@dataclass(frozen=True, eq=False)
class FeatureKernel:
    """The inner product of features."""

    features: FeatureMap

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """The kernel matrix (N, M)."""
        of_x = self.features(x)
        return of_x @ (of_x if z is x else self.features(z)).T


def centred(labels: Tensor, classes: int) -> Tensor:
    """Targets (N, classes) that add up to 0: of hard labels (N), or of soft ones.

    >>> centred(torch.tensor([1, 0]), 2)
    tensor([[-0.5000,  0.5000],
            [ 0.5000, -0.5000]])
    """
    soft = labels if labels.ndim == 2 else functional.one_hot(labels, classes).float()
    return soft - soft.mean(1, keepdim=True)


def coefficients(gram: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """(K + λI)⁻¹ Y, with λ = `ridge` × tr(K)/m, so that its meaning does not depend on the kernel's scale."""
    amount = ridge * gram.diagonal().mean()
    return torch.linalg.solve(gram + amount * torch.eye(len(gram)).to(gram), targets)


def linear_weights(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """The same classifier for a kernel of features (m, D), as weights (classes, D) on them: Yᵀ (K + λI)⁻¹ Φ."""
    return coefficients(features @ features.T, targets, ridge).T @ features


def predictions(kernel: Kernel, inputs: Tensor, support: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """What kernel ridge regression on the support set says of inputs: (N, classes)."""
    return kernel(inputs, support) @ coefficients(kernel(support, support), targets, ridge)
