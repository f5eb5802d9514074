"""Per-example gradients of the kernel ridge regression loss with respect to the support set, all at once.

For a record (x, y) and a support set (S, Y) with A = (K + λI)⁻¹ Y and λ = ridge × tr(K)/m the loss is |Aᵀk - y|², where
k is the kernel of x with S. With the residual r = Aᵀk - y, u = A r and b = (K + λI)⁻¹ k, its differential is

    2 (u · dk - uᵀ dK b - (u · b) dλ).

So all records share one factorisation, and none needs a backward pass of its own. For a kernel f(x·s, |x|², |s|²), such
as the tangent kernel or the inner product, both dk and dK are elementwise: a gradient with respect to s_j is
p_j x + Σ_l q_jl s_l. These factors are all that has to be found for each record.

>>> from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK
>>> support = SupportSet.of(torch.eye(2, 3), torch.tensor([[0.5, -0.5], [-0.5, 0.5]]), FullyConnectedNTK(), ridge=1e-3)
>>> tuple(support.gradients(torch.rand(5, 3), torch.zeros(5, 2)).shape)
(5, 2, 3)
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dpdd.common.methods.dp_kip.kernels import ProductKernel
from dpdd.common.row_products import row_products


@dataclass(frozen=True, eq=False)
class SupportSet:
    """A support set, and all that its records share: nothing here depends on any."""

    inputs: Tensor  # (m, P), flat: images, or features of them
    kernel: ProductKernel
    squares: Tensor  # (m), |s|²
    inverse: Tensor  # (m, m), (K + λI)⁻¹
    dual: Tensor  # (m, classes), A
    across: Tensor  # (m, m), ∂K_jl / ∂(s_j·s_l), 0 on the diagonal
    along: Tensor  # (m, m), ∂K_jl / ∂|s_j|², 0 on the diagonal
    own: Tensor  # (m), ∂K_jj / ∂|s_j|²
    ridge: float

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor, kernel: ProductKernel, ridge: float) -> SupportSet:
        """Of these inputs (m, ...) and their targets (m, classes)."""
        s = inputs.flatten(1)
        count, size = s.shape
        squares = s.square().sum(1)
        off = 1.0 - torch.eye(count).to(s)
        with torch.enable_grad():
            products, rows, diagonal = (
                each.detach().requires_grad_() for each in (s @ s.T, squares[:, None].repeat(1, count), squares)
            )
            gram, itself = kernel.of_products(products, rows, squares, size), kernel.of_itself(diagonal, size)
            across, along = torch.autograd.grad((gram * off).sum(), (products, rows), materialize_grads=True)
            (own,) = torch.autograd.grad(itself.sum(), diagonal)
        gram = (gram * off + torch.diag(itself)).detach()
        inverse = torch.linalg.inv(gram + ridge * gram.diagonal().mean() * torch.eye(count).to(s))
        return cls(s, kernel, squares, inverse, inverse @ targets, across, along, own, ridge)

    def single(self) -> SupportSet:
        """The same in single precision, in which gradients are a few times as fast; the inverse was made in double."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        changes: dict[str, Any] = {name: v.float() for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changes)

    def factors(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of the loss of each record (B, ...) with its target (B, classes): p (B, m) and Q (B, m, m).

        The gradient with respect to s_j is p_j x + Σ_l Q_jl s_l.
        """
        x, s = x.flatten(1), self.inputs
        count, size = s.shape
        with torch.enable_grad():
            products, columns = (
                each.detach().requires_grad_() for each in (row_products(x, s.T), self.squares.repeat(len(x), 1))
            )
            k = self.kernel.of_products(products, x.square().sum(1)[:, None], columns, size)
            toward, outward = torch.autograd.grad(k.sum(), (products, columns), materialize_grads=True)
        k = k.detach()
        u, b = row_products(row_products(k, self.dual) - y, self.dual.T), row_products(k, self.inverse)
        # -2 (u_j b_l + b_j u_l) ∂K_jl / ∂(s_j·s_l), how much of s_l; then what changes with |s_j|² alone, of s_j itself
        on_others = torch.bmm(torch.stack([u, b], 2), torch.stack([b, u], 1)).mul_(-2.0 * self.across)
        of_lengths = u * row_products(b, self.along.T) + b * row_products(u, self.along.T)
        on_itself = u * outward - of_lengths - u * b * self.own
        on_itself = on_itself - self.ridge / count * (u * b).sum(1, keepdim=True) * self.own
        on_others.diagonal(dim1=1, dim2=2).add_(4.0 * on_itself)
        return 2.0 * u * toward, on_others

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradients themselves: (B, m, P)."""
        left, mixing = self.factors(x, y)
        gradients = torch.bmm(mixing, self.inputs.expand(len(x), *self.inputs.shape))
        return torch.addcmul(gradients, left[:, :, None], x.flatten(1)[:, None, :])
