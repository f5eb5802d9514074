"""From the classifier in the releases to one for declared class priors.

Ridge regression of zeros and ones puts the boundary between two Gaussian classes with shares p and q at a log
likelihood ratio of (q - p) / 2pq, whatever their distance; Bayes' rule puts it at log(q / p). With equal shares both
are 0, with 1:7 they are 3.4 and 1.9, and shrinkage moves it further: a rare class is hardly ever answered. Nor are
scores log odds. So adding the logarithm of another prior would not do. Instead we ask what the scores of each class are
like, which the first stage tells, and treat them as Gaussians with one covariance: between two classes the boundary for
equal priors lies midway between the mean scores; log odds are the distance from it times the gap over the variance; and
to these the logarithm of any prior may be added, and taken off again.

What is known of scores is noisy, and the classifier was fitted to that very noise, so plain estimates are far off:
a rare class's own noise makes it look well recognised. Both biases are known and taken off:

- means: weights contain a share of the noise of every class mean, which the product with that mean squares;
- variance: the inverse of the second moment Q is large where noise made Q small. For Gaussian noise N and weights
  w = b f(Q + N), Stein's lemma gives E[w N wᵀ], with the divided differences of f for its derivative.

>>> import torch
>>> scores = ScoreMoments(torch.tensor([[3.0, 1.0], [-3.0, -1.0]]), torch.full((2, 2), 8.0), torch.zeros(2, 2))
>>> scale, offsets = scores.calibration(torch.tensor([True, True]))
>>> scale, offsets.tolist()                                # a gap of 4 over a variance of 8, and the middle at 4
(0.5, [-2.0, 2.0])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.methods.sps.classifier import SHARPNESS, Moments, shrunk

SHARPEST = 1.0
"""Scores are never stretched: records are no Gaussians, and soft labels should not be surer than the classifier was."""


@dataclass(frozen=True, eq=False)
class ScoreMoments:
    """What the scores of a linear classifier are like, class by class."""

    means: Tensor  # (scores, classes)
    variances: Tensor  # (classes, classes), of the difference of two scores within a class
    noise: Tensor  # (classes, classes), the standard deviation that noise alone gives such a variance

    def calibration(self, known: Tensor) -> tuple[float, Tensor]:
        """The scale of the scores, and what is added to each before, so that they are log odds at equal priors.

        With more than two classes the middles of all pairs need not agree. The offsets are least squares to them, where
        a pair counts as much as the two overlap (the Bhattacharyya coefficient): where they do not, any will do.
        """
        ahead = self.means.diagonal()[:, None] - self.means.T  # [c, d]: score c less score d, on class c
        gaps, middles = (ahead + ahead.T).clamp_min(0.0), 0.5 * (ahead - ahead.T)
        variances = torch.maximum(self.variances, self.noise).clamp_min(1e-12)
        pairs = (known[:, None] & known[None, :]).fill_diagonal_(False)
        overlaps = torch.where(pairs, torch.exp(-gaps.square() / variances / 8.0).clamp_min(1e-6), 0.0)
        scale = float((overlaps * gaps).sum() / (overlaps * variances).sum().clamp_min(1e-12))
        laplacian = torch.diag(overlaps.sum(1)) - overlaps
        offsets = -torch.linalg.pinv(laplacian, hermitian=True) @ (overlaps * middles).sum(1)
        return min(scale, SHARPEST), offsets


def score_moments(weights: Tensor, moments: Moments) -> ScoreMoments:
    """Of a classifier that was fitted to these noisy moments, without the biases of that."""
    values, vectors, shrunk_values = shrunk(moments)
    inverse = 1.0 / shrunk_values
    classes = len(weights)
    # weights = SHARPNESS (1 - 1/classes) shares means / Q, and Newton steps hardly change the part that is noise
    fitted = SHARPNESS * (torch.eye(classes, dtype=weights.dtype) - 1.0 / classes) * moments.shares
    means = weights @ moments.means.T - fitted * moments.mean_noise.square() * inverse.sum()
    means = torch.where(moments.known, means, 0.0)
    apart = values[:, None] - values[None, :]
    same = apart.abs() < 1e-12 * float(values.abs().max())
    derivative = torch.where(values > 0.0, -inverse.square(), 0.0)[:, None].expand_as(apart)
    slopes = torch.where(same, derivative, (inverse[:, None] - inverse[None, :]) / torch.where(same, 1.0, apart))
    before = (weights @ vectors) / inverse
    bias = 2.0 * moments.noise**2 * (before * (inverse * (slopes.sum(1) + slopes.diagonal()))) @ before.T
    second = weights @ moments.second @ weights.T - bias
    shares = torch.where(moments.known, moments.shares, 0.0)
    within = second - (means * shares / shares.sum().clamp_min(1e-12)) @ means.T
    spread = within.diagonal()
    noise = math.sqrt(2.0) * moments.noise * (weights[:, None] - weights[None, :]).square().sum(2)
    return ScoreMoments(means, spread[:, None] + spread[None, :] - within - within.T, noise)


def calibrated(
    weights: NDArray[np.float32], moments: Moments, shares: NDArray[np.float64], constant: float
) -> NDArray[np.float32]:
    """The weights for class priors `shares`; `constant` is the last coordinate of embeddings.

    A class that is lost in noise gets the mean score of the others, and its share, which is tiny. Logarithms of priors
    are counted from their mean over the other classes, so equal priors add nothing.
    """
    if not bool(moments.known.any()):
        return weights
    own = torch.from_numpy(weights).double()
    scale, offsets = score_moments(own, moments).calibration(moments.known)
    logarithms = torch.from_numpy(np.log(shares))
    own = scale * own
    own[:, -1] += scale * offsets / constant
    own = torch.where(moments.known[:, None], own, own[moments.known].mean(0))
    own[:, -1] += (logarithms - logarithms[moments.known].mean()) / constant
    return own.float().numpy()
