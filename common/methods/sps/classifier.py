"""The linear classifier that SPS releases contain: ridge regression, then Newton steps of logistic regression.

The first stage has all that ridge regression needs: class sums S and the second moment Q of embeddings. Later stages
release, summed over records, the outer product of (probabilities - truth) and embedding: the gradient of the logistic
loss at the classifier so far. Each gives one Newton step, with Q (shrunk as far as its noise demands) for a Hessian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.methods.sps.feature_statistics import CLASS_SUMS, COUNT, RESIDUAL, SECOND_MOMENT, FeatureStatistics
from dpdd.common.synthesis.statistics import Statistics

SHARPNESS = 10.0
"""Ridge regression gives scores around 0 to 1; logits are so many times that."""
SHRINKAGE = 0.5
"""Share of the noise's spectral norm that goes onto the diagonal of the second moment."""
CURVATURE = 0.05
"""Mean of p(1 - p) that the Newton steps assume: records that are still undecided."""
RESIDUAL_CLIP = 0.6
"""Norm that a record's (probabilities - truth) is clipped to, so that the surely wrong do not decide it all."""


@dataclass(frozen=True, eq=False)
class Moments:
    """What the first stage says of the embeddings: noisy class means, counts, and the second moment over everybody.

    `noise` is the standard deviation in an entry of the (symmetric) second moment, and `mean_noise` in an entry of each
    class mean; `known` says which classes stand out of the noise.
    """

    means: Tensor  # (classes, D)
    counts: Tensor  # (classes)
    second: Tensor  # (D, D)
    noise: float
    mean_noise: Tensor  # (classes)
    known: Tensor  # (classes)

    @property
    def shares(self) -> Tensor:
        """Of the classes, in all records."""
        return self.counts / self.counts.sum()

    @cached_property
    def within(self) -> Tensor:
        """The covariance around the class means; what their own noise takes off it is put back."""
        shares = torch.where(self.known, self.shares, 0.0)
        around = self.second - (self.means.T * shares) @ self.means
        return around + (shares * self.mean_noise.square()).sum() * torch.eye(len(around), dtype=around.dtype)

    @property
    def spectral_noise(self) -> float:
        """The largest eigenvalue that the noise alone would give the second moment."""
        return 2.0 * self.noise * math.sqrt(len(self.second))


def moments_of(statistics: Statistics, spec: FeatureStatistics) -> Moments:
    """The embedding's moments, from the first stage."""
    assert spec.embedding is not None
    counts = torch.from_numpy(statistics.sums[COUNT][:, 0] / spec.weights[COUNT])
    known, counts = counts > 2.0 * statistics.noise / spec.weights[COUNT], counts.clamp_min(1.0)
    sums = torch.from_numpy(statistics.sums[CLASS_SUMS] / spec.weights[CLASS_SUMS])
    size = spec.embedding.dimensions
    second = torch.from_numpy(statistics.sums[SECOND_MOMENT] / spec.weights[SECOND_MOMENT]).view(size, size)
    total = float(counts.sum())
    noise = statistics.noise / spec.weights[SECOND_MOMENT] / total / math.sqrt(2.0)
    mean_noise = statistics.noise / spec.weights[CLASS_SUMS] / counts
    return Moments(sums / counts[:, None], counts, (second + second.T) / (2.0 * total), noise, mean_noise, known)


def joined(parts: Sequence[Moments]) -> Moments:
    """The moments of several tasks' records together, where no class is in two of them.

    Class sums stand side by side, and second moments, being sums over records of any class, add up: without noise this
    is what one release over all classes would say. Noise adds up in the second moment only.
    """
    totals = torch.stack([part.counts.sum() for part in parts])
    shares = totals / totals.sum()
    return Moments(
        torch.cat([part.means for part in parts]),
        torch.cat([part.counts for part in parts]),
        torch.stack([share * part.second for share, part in zip(shares, parts, strict=True)]).sum(0),
        math.hypot(*(float(share) * part.noise for share, part in zip(shares, parts, strict=True))),
        torch.cat([part.mean_noise for part in parts]),
        torch.cat([part.known for part in parts]),
    )


def recounted(moments: Moments, counts: Tensor, known: Tensor) -> Moments:
    """The same sums with class counts from somewhere better, such as all stages together."""
    counts = counts.to(moments.counts).clamp_min(1.0)
    change = moments.counts / counts
    means, mean_noise = moments.means * change[:, None], moments.mean_noise * change
    return replace(moments, means=means, counts=counts, mean_noise=mean_noise, known=known)


def shrunk(moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the second moment, and the eigenvalues that take the place of the first.

    They are shrunk as far as the noise demands, and so as to have an inverse.
    """
    values, vectors = torch.linalg.eigh(moments.second)
    amount = max(SHRINKAGE * moments.spectral_noise, 1e-3 * float(values.clamp_min(0.0).mean()))
    return values, vectors, values.clamp_min(0.0) + amount


def ridge(moments: Moments) -> tuple[Tensor, Tensor]:
    """The weights of ridge regression, and the inverse of the second moment, shrunk as far as its noise demands."""
    _, vectors, values = shrunk(moments)
    inverse = (vectors / values) @ vectors.T
    joint = moments.means * moments.shares[:, None]
    return SHARPNESS * (joint - joint.mean(0)) @ inverse, inverse


def learn(
    statistics: Sequence[Statistics], specs: Sequence[FeatureStatistics], average_last_stages: int = 1
) -> NDArray[np.float32]:
    """The weights, from all stages so far: the mean of what the last `average_last_stages` Newton steps led to.

    Every step forgets part of the noise before it and brings its own, and may go too far where classes are hard to tell
    apart; their mean has less of both. Where they are easy, the last one alone is best.
    """
    weights, inverse = ridge(moments_of(statistics[0], specs[0]))
    steps = [weights]
    for stage, spec in zip(statistics[1:], specs[1:], strict=True):
        total = float(np.maximum(stage.sums[COUNT] / spec.weights[COUNT], 1.0).sum())
        gradient = torch.from_numpy(stage.sums[RESIDUAL] / spec.weights[RESIDUAL]).view(weights.shape)
        start = torch.from_numpy(np.asarray(stage.stage_input["teacher"], dtype=np.float64))
        steps.append(start - (RESIDUAL_CLIP / CURVATURE / total) * gradient @ inverse)
    last = steps[1:][-average_last_stages:] or steps
    return torch.stack(last).mean(0).float().numpy()


def residuals(embeddings: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """(probabilities - truth) of records, clipped to `RESIDUAL_CLIP`, in units of it.

    Logits are added up record by record: a matrix product rounds differently at the edges of its tiles, and a large
    enough classifier would turn that into answers that depend on a record's place in its batch.
    """
    wrong = torch.softmax(torch.stack([(embeddings * row).sum(1) for row in weights], 1), 1)
    wrong[torch.arange(len(labels)), labels] -= 1.0
    return wrong / wrong.norm(dim=1, keepdim=True).clamp_min(RESIDUAL_CLIP)
