"""Intervals from noisy counts: the mathematics against twins that search, and how often they cover the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.common.privacy.accounting import calibrate, gaussian_releases
from dpdd.server.evaluation.base import Answers
from dpdd.server.evaluation.intervals import (
    Interval,
    Z,
    accuracy_interval,
    area_interval,
    balanced_interval,
)
from dpdd.server.evaluation.metrics import macro_roc_auc

GRID = np.linspace(0.0, 1.0, 200_001)

# The mathematics


@pytest.mark.parametrize("variance", [0.0, 3.0, 400.0])
@pytest.mark.parametrize(
    ("right", "wrong"), [(90.0, 10.0), (500.0, 500.0), (3.0, 97.0), (1000.0, 0.0), (970.3, 31.2), (800.0, -25.0)]
)
def test_an_accuracy_interval_is_all_that_the_test_accepts(right: float, wrong: float, variance: float) -> None:
    interval = accuracy_interval(right, wrong, variance)
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    count = right + wrong
    spread = count * GRID * (1.0 - GRID) + variance * ((1.0 - GRID) ** 2 + GRID**2)
    accepted = GRID[(right - GRID * count) ** 2 <= Z * Z * spread]
    if not interval.nothing:
        assert (interval.low, interval.high) == pytest.approx((accepted.min(), accepted.max()), abs=1e-5)
        assert len(accepted) == pytest.approx((interval.high - interval.low) * 200_000, abs=3)  # and no hole in it
    assert interval.low <= interval.mean <= interval.high and interval.mean == pytest.approx(right / count)


def test_without_noise_it_is_wilsons() -> None:
    for right, count in ((8, 10), (0, 20), (500, 510)):
        share = right / count
        middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
        half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count**2)) / (1 + Z * Z / count)
        interval = accuracy_interval(right, count - right, 0.0)
        assert (interval.low, interval.high) == pytest.approx((middle - half, middle + half), abs=1e-12)


def test_noise_widens_it_until_nothing_is_known() -> None:
    widths = []
    for sigma in (0.0, 5.0, 20.0, 60.0, 200.0, 1e6):
        interval = accuracy_interval(400.0, 100.0, sigma**2)
        widths.append(interval.high - interval.low)
    assert widths == sorted(widths) and widths[-1] == 1.0 and accuracy_interval(400.0, 100.0, 1e12).nothing
    for right, wrong in ((0.0, 0.0), (-5.0, -1.0), (-1e9, -1e9)):
        assert accuracy_interval(right, wrong, 4.0) == Interval(0.5, 0.0, 1.0)


def test_counts_below_zero_never_make_an_interval_smaller() -> None:
    zero = accuracy_interval(1000.0, 0.0, 900.0)
    for below in (-1.0, -40.0, -200.0):
        assert accuracy_interval(1000.0, below, 900.0) == zero


def test_an_area_is_that_of_the_binned_scores() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 3000)
    scores = np.clip(generator.normal(0.4 + 0.2 * labels, 0.2), 0.0, 0.999)
    bins = (scores * 12).astype(int)
    counts = np.stack([np.bincount(bins[labels == label], minlength=12) for label in (0, 1)]).astype(float)
    logits = np.stack([np.zeros(3000), bins - 6.0], axis=1)
    assert area_interval(counts, 0.0).mean == pytest.approx(macro_roc_auc(Answers.of_logits(logits), labels), abs=1e-12)


@pytest.mark.parametrize("variance", [0.0, 30.0])
def test_an_area_interval_is_all_that_the_test_accepts(variance: float) -> None:
    generator = np.random.default_rng(1)
    counts = np.stack(
        [generator.multinomial(900, [0.4, 0.3, 0.2, 0.1]), generator.multinomial(150, [0.1, 0.2, 0.3, 0.4])]
    )
    counts = counts + generator.normal(0.0, math.sqrt(variance), counts.shape)
    interval = area_interval(counts, variance)
    negatives, positives = counts
    above = np.tril(np.ones((4, 4)), -1) + 0.5 * np.eye(4)
    more = variance + Z * Z / 4
    accepted = []
    for area in np.linspace(0.0, 1.0, 20_001):
        kernel = above - area
        gain, loss = kernel @ negatives, positives @ kernel
        spread = ((positives + more) * gain**2).sum() + ((negatives + more) * loss**2).sum()
        accepted.append((positives @ kernel @ negatives) ** 2 <= Z * Z * spread)
    inside = np.flatnonzero(accepted) / 20_000
    assert (interval.low, interval.high) == pytest.approx((inside.min(), inside.max()), abs=1e-4)


def test_a_class_that_nobody_has_may_be_anything() -> None:
    known = balanced_interval([900.0] * 4, [100.0] * 4, 25.0)
    with_one_more = balanced_interval([900.0] * 4 + [3.0], [100.0] * 4 + [-9.0], 25.0)
    assert with_one_more.low == pytest.approx(known.low * 4 / 5)
    assert with_one_more.high == pytest.approx((known.high * 4 + 1.0) / 5)
    assert balanced_interval([1.0, -3.0], [2.0, 5.0], 100.0) == Interval(0.5, 0.0, 1.0)


# Coverage


@dataclass(frozen=True)
class Population:
    """Silos whose records, all together, are `records` of a population with these classes and accuracies."""

    records: int
    silos: int
    shares: tuple[float, ...]
    accuracies: tuple[float, ...]
    epsilon: float

    @property
    def noise(self) -> float:
        return calibrate(gaussian_releases(1), self.epsilon, 1e-5) * math.sqrt(self.silos)

    def runs(self, count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Noisy right and wrong answers by run and class, all silos together."""
        generator = np.random.default_rng(seed)
        sizes = generator.multinomial(self.records, self.shares, count)
        right = generator.binomial(sizes, self.accuracies)
        noise = generator.normal(0.0, self.noise, (2, *sizes.shape))
        return right + noise[0], sizes - right + noise[1]


def populations() -> list[Population]:
    even, uneven = (0.5, 0.5), (0.12, 0.88)
    ten = tuple(np.linspace(1.0, 3.0, 10) / np.linspace(1.0, 3.0, 10).sum())
    return [
        Population(records, silos, shares, accuracies, epsilon)
        for records in (60, 400, 5000)
        for silos in (1, 3, 10)
        for shares, accuracies in (
            (even, (0.5, 0.52)),
            (uneven, (0.9, 0.98)),
            (ten, tuple(np.linspace(0.4, 0.6, 10))),
            (ten, tuple(np.linspace(0.95, 0.99, 10))),
        )
        for epsilon in (0.5, 3.0)
    ]


def covered(intervals: Sequence[Interval], truth: float) -> float:
    return float(np.mean([each.low <= truth <= each.high for each in intervals]))


@pytest.mark.parametrize("population", populations(), ids=str)
def test_the_intervals_of_accuracy_and_balanced_accuracy_cover_the_population(population: Population) -> None:
    """2,000 runs, so that a coverage of 93 % is told from one of 95 %."""
    right, wrong = population.runs(2000, seed=4)
    classes, variance = len(population.shares), population.noise**2
    truth = float(np.dot(population.shares, population.accuracies))
    intervals = [
        accuracy_interval(float(r), float(w), classes * variance)
        for r, w in zip(right.sum(axis=1), wrong.sum(axis=1), strict=True)
    ]
    assert covered(intervals, truth) >= 0.93
    balanced = [balanced_interval(r, w, variance) for r, w in zip(right.tolist(), wrong.tolist(), strict=True)]
    assert covered(balanced, float(np.mean(population.accuracies))) >= 0.93
    # Not absurdly wide: where the ideal interval of a normal error is well inside [0, 1], these are hardly wider.
    count = population.records
    error = math.sqrt(count * truth * (1 - truth) + classes * variance * ((1 - truth) ** 2 + truth**2)) / count
    if 2.0 * Z * error < 0.2:
        assert np.mean([each.high - each.low for each in intervals]) < 1.15 * 2.0 * Z * error


@pytest.mark.parametrize("accuracy", [0.5, 0.97, 0.999])
@pytest.mark.parametrize("above_noise", [3, 5, 6, 7, 8, 20])
def test_small_errors_do_not_add_up_over_many_small_classes(above_noise: int, accuracy: float) -> None:
    """30 classes, each with so many standard deviations of noise in records: a bias in one would be 30 times that."""
    generator, variance = np.random.default_rng(8), 200.0
    sizes = np.full((2000, 30), round(above_noise * math.sqrt(2 * variance)))
    right = generator.binomial(sizes, accuracy)
    noise = generator.normal(0.0, math.sqrt(variance), (2, *sizes.shape))
    intervals = [
        balanced_interval(r, w, variance)
        for r, w in zip((right + noise[0]).tolist(), (sizes - right + noise[1]).tolist(), strict=True)
    ]
    assert covered(intervals, accuracy) >= 0.93
    if above_noise == 20:
        assert np.mean([each.high - each.low for each in intervals]) < 0.04


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize(("records", "share"), [(300, 0.5), (1000, 0.12), (10_000, 0.12)])
@pytest.mark.parametrize("apart", [0.5, 2.0])
def test_the_interval_of_the_area_covers_the_population(
    records: int, share: float, apart: float, epsilon: float
) -> None:
    generator = np.random.default_rng(6)
    edges = np.linspace(0.0, 1.0, 11)
    low, high = (
        np.histogram(generator.beta(a, b, 1_000_000), edges)[0] / 1e6 for a, b in ((2, 2 + apart), (2 + apart, 2))
    )
    above = np.tril(np.ones((10, 10)), -1) + 0.5 * np.eye(10)
    truth, sigma = float(high @ above @ low), calibrate(gaussian_releases(1), epsilon, 1e-5) * math.sqrt(3)
    intervals = []
    for _ in range(1000):
        positives = generator.binomial(records, share)
        counts = np.stack([generator.multinomial(records - positives, low), generator.multinomial(positives, high)])
        intervals.append(area_interval(counts + generator.normal(0.0, sigma, counts.shape), sigma**2))
    assert covered(intervals, truth) >= 0.93
