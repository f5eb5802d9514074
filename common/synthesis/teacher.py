"""A classifier that the released statistics already contain: linear discriminants on the backbone's pooled features.

The class sums give class means, the global second moments the total covariance; what the class means explain is taken
off it, and the rest is shrunk towards a multiple of the identity as far as the noise demands. It costs no further
privacy: it is post-processing. Its probabilities are soft labels for synthetic images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpdd.common.synthesis.summary import FEATURES, Row, Summary, unpack

if TYPE_CHECKING:
    from dpdd.common.synthesis.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Teacher:
    """Scores are linear in an image's squashed features."""

    weights: Tensor  # (classes, dimensions)
    offsets: Tensor  # (classes)
    columns: slice
    scale: float

    def judge(self, clipped: Tensor) -> Tensor:
        """Unnormalised log probabilities of the classes for clipped vectors; differentiable."""
        return (clipped[:, self.columns] / self.scale) @ self.weights.T + self.offsets

    def scores(self, table: Summary, images: Tensor, batch: int = 500) -> Tensor:
        """The same for images."""
        with torch.inference_mode():
            return torch.cat([self.judge(table.clipped(table.vectors(part))) for part in images.split(batch)])


def from_statistics(statistics: Statistics, table: Summary) -> Teacher:
    """Linear discriminants from noisy sums."""
    everyone, some = _row(table, "global"), _row(table, "class")
    counts = torch.from_numpy(statistics.sums["count"][:, 0] / table.count_weight).clamp_min(1.0)
    scale = table.weights[everyone.name]
    total = counts.sum()
    mean, second = unpack(torch.from_numpy(statistics.sums[everyone.name]) / scale / total, everyone.dimensions)
    means = torch.from_numpy(statistics.sums[some.name]) / table.weights[some.name] / counts[:, None]
    shares = counts / total
    covariance = second[0] - torch.einsum("c,ci,cj->ij", shares, means, means)
    values, vectors = torch.linalg.eigh(covariance)
    # Noise of standard deviation s in a symmetric D x D matrix has eigenvalues up to 2s√D: below that there is nothing.
    noise = 2.0 * statistics.noise / scale / float(total) * everyone.dimensions**0.5
    floor = max(noise, 0.02 * float(values.clamp_min(0.0).mean()), 1e-8)
    inverse = vectors @ torch.diag(1.0 / values.clamp_min(0.0).add(floor)) @ vectors.T
    weights = (means - mean) @ inverse
    offsets = -0.5 * torch.einsum("ci,ci->c", weights, means + mean) + shares.log()
    return Teacher(weights.float(), offsets.float(), table.columns[some.name], table.weights[some.name])


def soft_labels(found: Teacher, table: Summary, images: Tensor, labels: Tensor) -> Tensor:
    """The teacher's probabilities, at the temperature that makes the intended labels most likely."""
    scores = found.scores(table, images)
    best, chosen = -float("inf"), 1.0
    for temperature in (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0):
        fit = float(torch.log_softmax(scores / temperature, 1).gather(1, labels[:, None]).mean())
        if fit > best:
            best, chosen = fit, temperature
    return torch.softmax(scores / chosen, 1)


def _row(table: Summary, scope: str) -> Row:
    return next(row for row in table.rows if row.place == FEATURES and row.scope == scope)
