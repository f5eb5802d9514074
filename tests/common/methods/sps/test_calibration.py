"""Calibration: near Bayes' rule for Gaussian classes at any prior, unbiased under noise, and shifts that add up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpdd.common.methods.sps import classifier
from dpdd.common.methods.sps.calibration import calibrated, score_moments
from dpdd.common.methods.sps.classifier import Moments

CONSTANT, SPREAD = 0.25, 0.2
Array = NDArray[np.float64]


class World:
    """Gaussian classes of one covariance, `distance` standard deviations apart, with the embeddings' constant."""

    def __init__(self, counts: tuple[int, ...], distance: float, dimensions: int = 20, seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        axes = np.linalg.qr(self.generator.normal(size=(dimensions, len(counts))))[0].T
        self.means = axes * distance * SPREAD / math.sqrt(2.0) + 0.1 * self.generator.normal(size=dimensions)
        self.counts = counts
        self.shares = np.array(counts) / sum(counts)
        self.records, self.labels = self.draw(counts)

    def draw(self, counts: tuple[int, ...]) -> tuple[Array, NDArray[np.int64]]:
        labels = np.repeat(np.arange(len(counts)), counts)
        records = self.means[labels] + SPREAD * self.generator.normal(size=(len(labels), self.means.shape[1]))
        return np.hstack([records, np.full((len(labels), 1), CONSTANT)]), labels

    def moments(self, noise: float = 0.0) -> Moments:
        """What a first stage would say."""
        size, counts = self.records.shape[1], np.array(self.counts, dtype=np.float64)
        sums = np.eye(len(counts))[self.labels].T @ self.records
        sums = sums + noise * self.generator.normal(size=sums.shape)
        second = self.records.T @ self.records + noise * self.generator.normal(size=(size, size))
        total = counts.sum()
        return Moments(
            torch.from_numpy(sums / counts[:, None]),
            torch.from_numpy(counts),
            torch.from_numpy((second + second.T) / (2.0 * total)),
            noise / total / math.sqrt(2.0),
            torch.from_numpy(noise / counts),
            torch.ones(len(counts), dtype=torch.bool),
        )

    def recalls(self, scores: Array, labels: NDArray[np.int64]) -> Array:
        right = scores.argmax(1) == labels
        return np.array([right[labels == label].mean() for label in range(len(self.counts))])

    def bayes(self, records: Array, shares: Array) -> Array:
        square = ((records[:, None, :-1] - self.means) ** 2).sum(2)
        return -square / (2.0 * SPREAD**2) + np.log(shares)


def ridge(moments: Moments) -> NDArray[np.float32]:
    return classifier.ridge(moments)[0].float().numpy()


@pytest.mark.parametrize(("noise", "margin"), [(0.0, 0.006), (5.0, 0.015)])
@pytest.mark.parametrize("distance", [1.0, 2.0, 3.0, 4.0])
def test_two_classes_at_seven_to_one_are_told_apart_as_by_bayes(distance: float, noise: float, margin: float) -> None:
    """Accuracy at the released shares, balanced accuracy at equal ones; the plain ridge is far off in the second."""
    world = World((7000, 1000), distance)
    moments = world.moments(noise)
    weights, equal = ridge(moments), np.full(2, 0.5)
    records, labels = world.draw((8000, 8000))
    for shares in (world.shares, equal, world.shares[::-1]):
        best = world.recalls(world.bayes(records, shares), labels) @ shares
        ours = world.recalls(records @ calibrated(weights, moments, shares, CONSTANT).T, labels) @ shares
        assert best - ours < margin, (shares, best, ours)
    plain = world.recalls(records @ weights.T, labels)
    assert world.recalls(world.bayes(records, equal), labels).mean() - plain.mean() > 2 * margin


def test_the_ridge_alone_has_its_boundary_where_we_say() -> None:
    """At a log likelihood ratio of (q - p) / 2pq; Bayes has it at log(q / p)."""
    world = World((70_000, 10_000), 2.5, dimensions=5)
    weights = ridge(world.moments()).astype(np.float64)
    p, q = world.shares[1], world.shares[0]
    way = (world.means[1] - world.means[0]) / SPREAD**2
    # along the line through both means the log likelihood ratio grows with the square of the way's length
    middle = np.append(world.means.mean(0), CONSTANT)
    step = np.append((world.means[1] - world.means[0]) / (way @ (world.means[1] - world.means[0])), 0.0)
    ahead = weights[1] - weights[0]
    boundary = -(ahead @ middle) / (ahead @ step)
    assert boundary == pytest.approx((q - p) / (2.0 * p * q), rel=0.05)
    assert boundary > 1.6 * math.log(q / p)


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_four_unequal_classes(noise: float) -> None:
    """One scale and one offset per class cannot do all that Bayes does, but most of it."""
    world = World((4000, 2000, 1000, 500), 3.0)
    moments = world.moments(noise)
    records, labels = world.draw((4000,) * 4)
    for shares in (world.shares, np.full(4, 0.25)):
        best = world.recalls(world.bayes(records, shares), labels) @ shares
        ours = world.recalls(records @ calibrated(ridge(moments), moments, shares, CONSTANT).T, labels) @ shares
        assert best - ours < 0.025, (shares, best, ours)


def test_scores_are_known_without_the_bias_of_the_noise_they_were_fitted_to() -> None:
    """Over many draws of noise, mean and variance of the records' scores; plain estimates are far from them."""
    world = World((2100, 300), 2.0, dimensions=40)
    records, labels = world.records, world.labels
    errors, plain, sizes = [], [], []
    for _ in range(60):
        moments = world.moments(6.0)
        weights = torch.from_numpy(ridge(moments)).double()
        scores = records @ weights.numpy().T
        ahead = scores[:, 1] - scores[:, 0]
        gap = ahead[labels == 1].mean() - ahead[labels == 0].mean()
        variance = float(world.shares @ [ahead[labels == 0].var(), ahead[labels == 1].var()])
        found, naive = score_moments(weights, moments), weights @ moments.means.T
        apart = found.means[1] - found.means[0]
        errors.append([float(apart[1] - apart[0]) - gap, float(found.variances[0, 1]) - variance])
        within = moments.second - (moments.means.T * moments.shares) @ moments.means
        way = weights[1] - weights[0]
        plain.append(
            [float((naive[1] - naive[0])[1] - (naive[1] - naive[0])[0]) - gap, float(way @ within @ way) - variance]
        )
        sizes.append([gap, variance])
    bias, naive_bias, size = np.mean(errors, 0), np.mean(plain, 0), np.mean(sizes, 0)
    standard_error = np.std(errors, 0) / math.sqrt(60)
    assert (np.abs(bias) < 4.0 * standard_error + 0.05 * size).all(), (bias, standard_error, size)
    assert (np.abs(naive_bias) > 4.0 * np.abs(bias)).all(), (naive_bias, bias)


def small_world(seed: int, classes: int) -> tuple[NDArray[np.float32], Moments]:
    generator = np.random.default_rng(seed)
    moments = World(tuple(generator.integers(50, 500, classes).tolist()), 2.0, 8, seed).moments(2.0)
    return ridge(moments), moments


@given(st.integers(0, 10_000), st.integers(2, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_priors_are_shifts_and_shifts_add_up(seed: int, classes: int, data: st.DataObject) -> None:
    """From any prior to any other is the difference of logarithms, whatever the classifier."""
    weights, moments = small_world(seed, classes)
    raw = data.draw(st.lists(st.floats(1e-6, 1.0), min_size=classes, max_size=classes))
    shares = np.array(raw) / sum(raw)
    there = calibrated(weights, moments, shares, CONSTANT).astype(np.float64)
    equal = calibrated(weights, moments, np.full(classes, 1.0 / classes), CONSTANT).astype(np.float64)
    np.testing.assert_array_equal(there[:, :-1], equal[:, :-1])
    shift = CONSTANT * (there - equal)[:, -1]
    np.testing.assert_allclose(shift - shift.mean(), np.log(shares) - np.log(shares).mean(), atol=1e-3)


@given(st.integers(0, 10_000), st.integers(2, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_of_classes_is_irrelevant(seed: int, classes: int, data: st.DataObject) -> None:
    weights, moments = small_world(seed, classes)
    order = data.draw(st.permutations(range(classes)))
    shares = np.random.default_rng(seed).dirichlet(np.ones(classes))
    turned = replace(
        moments,
        means=moments.means[order],
        counts=moments.counts[order],
        mean_noise=moments.mean_noise[order],
        known=moments.known[order],
    )
    expected = calibrated(weights, moments, shares, CONSTANT)[order]
    np.testing.assert_allclose(
        calibrated(weights[order], turned, shares[order], CONSTANT), expected, atol=1e-4 * np.abs(expected).max()
    )


@pytest.mark.parametrize("tiny", [1e-12, 1e-300])
def test_extreme_priors_stay_finite(tiny: float) -> None:
    weights, moments = small_world(1, 3)
    found = calibrated(weights, moments, np.array([tiny, 0.5, 0.5 - tiny]), CONSTANT)
    assert found.dtype == np.float32 and np.isfinite(found).all()


@pytest.mark.parametrize("lost", [(0,), (0, 2), (0, 1, 2)])
def test_classes_lost_in_noise_take_no_part(lost: tuple[int, ...]) -> None:
    """Whatever is in their sums: the others are told apart as if they were alone, and nobody is answered with them."""
    world = World((600, 500, 400), 3.0)
    moments = world.moments(1.0)
    known = torch.tensor([label not in lost for label in range(3)])
    spoilt = replace(moments, known=known, means=torch.where(known[:, None], moments.means, 1e6 * moments.means))
    weights, shares = ridge(moments), np.where(known.numpy(), 0.5, 1e-4)
    found = calibrated(weights, spoilt, shares, CONSTANT)
    assert np.isfinite(found).all()
    if len(lost) == 3:
        np.testing.assert_array_equal(found, weights)
        return
    answers = (world.records @ found.T).argmax(1)
    assert not np.isin(answers, lost).any()
    kept = np.isin(world.labels, lost, invert=True)
    assert (answers == world.labels)[kept].mean() > 0.9
