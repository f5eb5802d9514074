"""Confidence intervals for figures that are computed from noisy counts: 95 %, for sampling and noise together.

The records of the silos are a sample of a population, and their counts have Gaussian noise of a known variance. The
intervals are for the population's figure, not for the sample's.

**Accuracy.** R right and W wrong answers, N = R + W, each with noise of variance V. At the population's accuracy p,

    T(p) = (1 - p) R - p W = R - p N

has mean 0, whatever N is. Its variance is N p (1 - p) from sampling (at most that, where silos differ) and
V ((1 - p)² + p²) from noise. The interval is all p in [0, 1] with

    (R - p N)² ≤ z² (N p (1 - p) + V ((1 - p)² + p²)),

which is Wilson's score interval for V = 0, and a quadratic inequality always. Counts below 0 are noise and are taken as
0 before: that brings T(p) nearer to 0 and makes N larger, so no p that was in the interval leaves it. The quadratic's
leading term N² + z² N - 2 z² V is not positive where noise drowns the counts (Fieller's case); then nothing is known,
and the interval is [0, 1].

**Balanced accuracy** is the mean over K classes of p_c = R_c / N_c. Each class has noise of its own, so the errors of
R_c / N_c are independent, with the variance (N p (1 - p) + V ((1 - p)² + p²)) / N² (the one above, to first order; p is
Wilson's midpoint there, which is not 1 when all answers are right). What would be small in one class adds up over many,
so the ratios must have no bias: counts are not cut off at 0; the noise that R_c and N_c share moves their ratio by
V (2 p - 1) / N², which is taken off; and which classes are too small to say anything is not decided by N_c, whose noise
R_c / N_c has too, but by M_c = (q R_c + (1 - q) W_c) / (q² + (1 - q)²), with the accuracy q of all classes: about N_c
again, with noise of its own. A class with M_c below `CLEAR` times the noise of N_c counts as 0 at the lower end and as
1 at the upper.

**ROC-AUC**, two classes, scores in bins. With X_i records of class 1 and Y_j of class 0 in bins i and j, the area A is
the chance that a record of class 1 is in a higher bin than one of class 0, ties for half: with k_ij = 1, 1/2 or 0,

    U(A) = Σ_ij X_i Y_j (k_ij - A)

has mean 0 at the population's area. To first order in X and Y, which vary like Poisson counts with noise on top,

    Var U(A) = Σ_i (X_i + V) g_i² + Σ_j (Y_j + V) h_j²,   g_i = Σ_j Y_j (k_ij - A),   h_j = Σ_i X_i (k_ij - A).

(For V = 0 this is DeLong's variance; noise in the g and h themselves only makes it larger.) As in Agresti and Coull's
interval, z² records more are put in, evenly over the bins of each class, so that classes that happen to be apart do not
have a variance of 0. U(A)² ≤ z² Var U(A) is quadratic in A again. It is the area of the binned score, a little below
that of the score itself.

>>> accuracy_interval(90.0, 10.0, 0.0)
Interval(mean=0.9, low=0.8256..., high=0.9447...)
>>> accuracy_interval(90.0, 10.0, 100.0).low < 0.8
True
>>> accuracy_interval(9.0, 1.0, 100.0)
Interval(mean=0.9, low=0.0, high=1.0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
Z = 1.959963984540054
"""The two-sided normal quantile of `LEVEL`."""
CLEAR = 4.0
"""How many standard deviations of its noise a class's count must be for a share to be made of it."""


@dataclass(frozen=True)
class Interval:
    """A figure in [0, 1] and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def nothing(self) -> bool:
        """Whether nothing is known."""
        return self.low <= 0.0 and self.high >= 1.0

    def as_json(self) -> dict[str, float]:
        """As `metrics.json` shows it."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def accuracy_interval(right: float, wrong: float, variance: float) -> Interval:
    """The share of right answers, from noisy counts with this noise variance each."""
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    count, square = right + wrong, Z * Z
    if not count:
        return Interval(0.5, 0.0, 1.0)
    return _between(
        right / count,
        count * count + square * count - 2.0 * square * variance,
        -2.0 * right * count - square * count + 2.0 * square * variance,
        right * right - square * variance,
    )


def balanced_interval(right: Sequence[float], wrong: Sequence[float], variance: float) -> Interval:
    """The mean over classes of their share of right answers, from noisy counts with this noise variance each.

    >>> balanced_interval([90.0, 5.0], [10.0, 5.0], 0.0)
    Interval(mean=0.7, low=0.54..., high=0.85...)
    """
    square, middle, spread, unknown = Z * Z, 0.0, 0.0, 0
    noise, overall = math.sqrt(2.0 * variance), accuracy_interval(sum(right), sum(wrong), 0.0).mean
    for each, other in zip(right, wrong, strict=True):
        count = each + other
        clear = (overall * each + (1.0 - overall) * other) / (overall**2 + (1.0 - overall) ** 2)
        if clear <= CLEAR * noise or count <= CLEAR / 2 * noise:
            unknown += 1
            continue
        share = min(max((each + 0.5 * square) / (count + square), 0.0), 1.0)
        middle += each / count - variance * (2.0 * share - 1.0) / count**2
        spread += (count * share * (1.0 - share) + variance * ((1.0 - share) ** 2 + share**2)) / count**2
    classes, error = len(right), Z * math.sqrt(spread)
    mean = min(max((middle + 0.5 * unknown) / classes, 0.0), 1.0)
    low, high = (middle - error) / classes, (middle + error + unknown) / classes
    return Interval(mean, min(max(low, 0.0), mean), max(min(high, 1.0), mean))


def area_interval(scores: NDArray[np.float64], variance: float) -> Interval:
    """The area under the ROC curve, from noisy counts (2 classes, bins) with this noise variance each.

    >>> area_interval(np.array([[90.0, 10.0], [20.0, 80.0]]), 0.0)
    Interval(mean=0.85, low=0.79..., high=0.90...)
    """
    negatives, positives = scores
    bins = np.arange(len(positives))
    above = np.where(bins[:, None] == bins, 0.5, (bins[:, None] > bins).astype(np.float64))  # k_ij
    count, others = float(positives.sum()), float(negatives.sum())
    if count <= 0.0 or others <= 0.0:
        return Interval(0.5, 0.0, 1.0)
    total, pairs = float(positives @ above @ negatives), count * others
    more = variance + Z * Z / len(bins)
    spread, other_spread = np.maximum(positives + more, 0.0), np.maximum(negatives + more, 0.0)
    beaten, beating = above @ negatives, positives @ above
    square = Z * Z
    flat = float(spread.sum()) * others**2 + float(other_spread.sum()) * count**2
    slope = float(spread @ beaten) * others + float(other_spread @ beating) * count
    constant = float(spread @ beaten**2) + float(other_spread @ beating**2)
    mean = min(max(total / pairs, 0.0), 1.0)
    return _between(
        mean,
        pairs * pairs - square * flat,
        -2.0 * total * pairs + 2.0 * square * slope,
        total * total - square * constant,
    )


def _between(mean: float, second: float, first: float, constant: float) -> Interval:
    """All p in [0, 1] with second·p² + first·p + constant ≤ 0; everything where that is no interval around `mean`."""
    root = first * first - 4.0 * second * constant
    if second <= 0.0 or root < 0.0:
        return Interval(mean, 0.0, 1.0)
    low, high = ((-first + sign * math.sqrt(root)) / (2.0 * second) for sign in (-1.0, 1.0))
    return Interval(mean, min(max(low, 0.0), mean), max(min(high, 1.0), mean))
