"""The loss of a support set, from released moments alone.

The kernel ridge regression of a support set with features Φ and targets Y is linear in the features of an input, with
weights W = Yᵀ(ΦΦᵀ + λI)⁻¹Φ. Over private records with second moment Q = mean φφᵀ and S = mean yφᵀ its squared loss is

    mean |Wφ - y|² = tr(W Q Wᵀ) - 2 tr(W Sᵀ) + const = |W - W*|²_Q + const,  where W* = S Q⁻¹ and |V|²_Q = tr(V Q Vᵀ).

So the loss says how far the support set's classifier is from the ridge classifier W*, in the metric Q. Any better
linear classifier on the same features can take the place of W*: the staged teacher is one.

Q comes with noise, and is indefinite: the loss of such a Q has no lower bound. It is projected onto the positive
semidefinite cone, and shrunk, as far as for the teacher (`classifier.shrunk`).

>>> import torch
>>> goal = Goal.of(torch.diag(torch.tensor([2.0, -1.0])), torch.tensor([[1.0, 0.0], [0.0, 3.0]]), amount=0.5)
>>> round(float(goal.squares), 3)                           # two classes, each 2.5 × 0.25 + 0.5 × 2.25
3.5
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STABLE = 1e-6
"""A share of the mean diagonal, so that solving for labels has one answer where images are alike."""


@dataclass(frozen=True, eq=False)
class Goal:
    """The classifier that the support set's should be, and the metric in which it should: Q = RᵀR."""

    root: Tensor  # (D, D), R
    wanted: Tensor  # (classes, D), W* Rᵀ

    @classmethod
    def of(cls, second: Tensor, weights: Tensor, amount: float = 0.0) -> Goal:
        """From a noisy second moment, projected and with `amount` on its diagonal, and the wanted weights.

        What is the same for all classes decides nothing, and is taken off the weights.
        """
        values, vectors = torch.linalg.eigh(second)
        root = (vectors * (values.clamp_min(0.0) + amount).sqrt()).T
        return cls(root, (weights - weights.mean(0)) @ root.T)

    @property
    def squares(self) -> Tensor:
        """|W*|²_Q: the loss of a classifier that says nothing."""
        return self.wanted.square().sum()

    def loss(self, weights: Tensor) -> Tensor:
        """|sW - W*|²_Q for the best s, as a share of |W*|²_Q: the scale of a classifier decides nothing.

        From 1 to 2 where that s would be negative, so that a classifier which says the opposite has somewhere to go.
        """
        given = weights @ self.root.T
        product = (given * self.wanted).sum()
        return 1.0 - product * product.abs() / (given.square().sum() * self.squares).clamp_min(1e-30)

    @torch.no_grad()
    def labels(self, features: Tensor, ridge: float) -> Tensor:
        """Label solve: the probabilities (m, classes) with which kernel ridge regression of the support set is best.

        Weights Aᵀ Φ with A = (K + λI)⁻¹ Y are best at A = (Φ Q Φᵀ)⁻¹ Φ Q W*ᵀ, so Y follows. Its rows add up to 0. A
        common scale of all rows, and a constant on each, change no answer: so the rows can be probabilities.
        """
        gram = (features @ features.T).double()
        seen = features.double() @ self.root.T.double()
        inner = seen @ seen.T
        inner.diagonal().add_(STABLE * inner.diagonal().mean())
        dual = torch.linalg.solve(inner, seen @ self.wanted.T.double())
        targets = gram @ dual + ridge * gram.diagonal().mean() * dual
        targets = targets - targets.mean(1, keepdim=True)
        classes = targets.shape[1]
        lowest = (-targets.min()).clamp_min(1e-30)
        return (1.0 / classes + targets / (classes * lowest)).to(features)
