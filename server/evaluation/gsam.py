"""GSAM: flat minima by two gradients per step (Zhuang et al. 2022, "Surrogate gap minimization", algorithm 1).

Sharpness-aware minimisation climbs by `rho` along the gradient and descends by the gradient found up there. GSAM also
shrinks the surrogate gap, the height of that climb: it takes away `alpha` times that part of the first gradient which
is orthogonal to the second. With `rho = 0` both gradients are the same and the base optimiser is left; with
`alpha = 0` plain SAM is.

>>> import torch
>>> weight = torch.nn.Parameter(torch.tensor([3.0, 1.0]))
>>> optimiser = GSAM(torch.optim.SGD([weight], lr=0.1), rho=0.0, alpha=0.5)
>>> optimiser.step(lambda: (weight**2).sum())
10.0
>>> [round(value, 4) for value in weight.tolist()]
[2.4, 0.8]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

_TINY = 1e-12


class GSAM:
    """Any optimiser, fed with GSAM's direction instead of the gradient.

    Parameters
    ----------
    base
        Takes the step; its parameters are the ones that are perturbed.
    rho
        Length of the climb. May be changed between steps: the paper lets it fall with the learning rate.
    alpha
        Weight of the gap.
    """

    def __init__(self, base: Optimizer, rho: float, alpha: float) -> None:
        if not (rho >= 0.0 and alpha >= 0.0):
            raise ValueError(f"GSAM's rho and alpha are numbers from 0 up, not {rho!r} and {alpha!r}")
        self.base, self.rho, self.alpha = base, rho, alpha

    def step(self, loss_of: Callable[[], Tensor]) -> float:
        """Take one step, and give the loss before it; `loss_of` is called twice, and must use one batch for both."""
        parameters = [p for group in self.base.param_groups for p in group["params"] if p.requires_grad]
        loss, first = _gradient(loss_of, parameters)
        before = [parameter.detach().clone() for parameter in parameters]
        climb = self.rho / (_norm(first) + _TINY)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, first, strict=True):
                parameter.add_(gradient * climb)
        try:
            _, second = _gradient(loss_of, parameters)
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)
        for parameter, direction in zip(parameters, descent(first, second, self.alpha), strict=True):
            parameter.grad = direction
        self.base.step()
        self.base.zero_grad(set_to_none=True)
        return loss


def descent(first: Sequence[Tensor], second: Sequence[Tensor], alpha: float) -> list[Tensor]:
    """The direction to descend: `second` - alpha x the part of `first` orthogonal to `second` (all tensors as one).

    >>> one, two = [torch.tensor([1.0]), torch.tensor([1.0])], [torch.tensor([2.0]), torch.tensor([0.0])]
    >>> descent(one, two, alpha=0.5)
    [tensor([2.]), tensor([-0.5000])]
    """
    share = _inner(first, second) / (_inner(second, second) + _TINY**2)
    return [s - alpha * (f - share * s) for f, s in zip(first, second, strict=True)]


def _gradient(loss_of: Callable[[], Tensor], parameters: list[Tensor]) -> tuple[float, list[Tensor]]:
    with torch.enable_grad():
        loss = loss_of()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss.item(), [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))


def _norm(gradients: Sequence[Tensor]) -> float:
    return float(_inner(gradients, gradients) ** 0.5)
