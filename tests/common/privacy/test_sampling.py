"""Poisson samples have the stated rate, are independent, may be empty; a sampled sum is over its sample, once each."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest

from dpdd.common.privacy.clipping import FIXED_POINT_ONE, ClippedSum, Layout, class_segment
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.privatise import privatise
from dpdd.common.privacy.sampling import SampledSum, poisson_sample, sampled_event
from tests.common.privacy.scripted import Scripted


def rate_matches(sampled: int, trials: int, rate: float) -> bool:
    """Within five standard deviations: a false alarm in less than one of a million."""
    return abs(sampled - trials * rate) < 5.0 * (trials * rate * (1.0 - rate)) ** 0.5


@pytest.mark.parametrize("rate", [50 / 6000, 0.1, 0.5, 0.9])
def test_the_rate_is_right_and_others_are_rejected(rate: float) -> None:
    sampled = len(poisson_sample(1_000_000, rate, SystemEntropy()))
    assert rate_matches(sampled, 1_000_000, rate)
    assert not rate_matches(sampled, 1_000_000, 0.9 * rate)
    assert not rate_matches(sampled, 1_000_000, min(1.1 * rate, 0.999))


@pytest.mark.parametrize("rate", [1e-6, 50 / 6000, 1 / 3, 0.5, 0.999])
def test_the_rate_is_met_to_the_last_bit(rate: float) -> None:
    """As many of the 2^64 words as this share of them make a member, and each word decides for one record."""
    most = int(Fraction(rate) * 2**64)
    words = (most - 1, most, 0, (1 << 64) - 1, most + 1, most - 1)
    assert poisson_sample(6, rate, Scripted(*words)).tolist() == [0, 2, 5]
    total = SampledSum(LAYOUT, rate, 6, Scripted(*words))
    assert total.members.tolist() == [0, 2, 5] and not total.releasable


def test_records_are_sampled_independently_and_anew_each_time() -> None:
    entropy = SystemEntropy()
    draws = np.zeros((400, 500))
    for row in draws:
        row[poisson_sample(500, 0.3, entropy)] = 1.0
    correlations = np.corrcoef(draws.T)
    np.fill_diagonal(correlations, 0.0)
    assert np.abs(correlations).max() < 0.35 and abs(correlations.mean()) < 0.002
    sizes = draws.sum(1)
    assert 0.7 < sizes.var() / (500 * 0.3 * 0.7) < 1.4  # a fixed batch size would have none


def test_rate_one_takes_everybody_and_wrong_rates_are_refused() -> None:
    assert poisson_sample(5, 1.0, SeededEntropy(1)).tolist() == [0, 1, 2, 3, 4]
    for rate in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="sampling rate"):
            poisson_sample(5, rate, SeededEntropy(1))


def test_an_empty_batch_is_released_like_any_other() -> None:
    empty = poisson_sample(1000, 1e-15, SystemEntropy())
    assert len(empty) == 0
    total = ClippedSum(Layout((class_segment("sums", 4, classes=3),)))
    total.add(np.ones((1000, 4))[empty], np.zeros(1000, np.int64)[empty])
    noisy = privatise(total, Gaussian(2.0), SystemEntropy())
    assert noisy.arrays["sums"].shape == (3, 4)
    assert 0.0 < np.abs(noisy.arrays["sums"]).max() < 20 * FIXED_POINT_ONE


LAYOUT = Layout((class_segment("sums", 4, classes=3),))


def sampled(rate: float = 0.5, records: int = 40, seed: int = 2) -> SampledSum:
    return SampledSum(LAYOUT, rate, records, SeededEntropy(seed))


def add(total: SampledSum, members: object, rows: int | None = None) -> None:
    count = len(members) if rows is None else rows  # type: ignore[arg-type]
    total.add_members(np.asarray(members), np.full((count, 4), 0.5), np.zeros(count, np.int64))


def whole(rate: float = 0.5, records: int = 40) -> SampledSum:
    """A sum to which every member was added."""
    total = sampled(rate, records)
    add(total, total.members)
    return total


def test_only_members_are_added_and_each_once() -> None:
    total = sampled()
    inside = total.members
    outside = np.setdiff1d(np.arange(40), inside)
    assert 5 < len(inside) < 35
    for bad in (
        outside[:1],
        np.append(inside, outside[0]),
        np.append(inside[:2], inside[0]),
        np.array([inside[0], inside[0] - 40]),  # the same record, counted from the end
        np.array([outside[0] - 40]),
    ):
        with pytest.raises(ValueError, match="only members of the sample are added to it, each once"):
            add(total, bad)
    with pytest.raises(IndexError):
        add(total, [40])
    assert total.members.tolist() == inside.tolist()  # what was refused left no trace
    add(total, inside[:3])
    assert total.members.tolist() == inside[3:].tolist()
    with pytest.raises(ValueError, match="each once"):
        add(total, inside[:1])
    add(total, inside[3:])
    sums = privatise(total, NonPrivate(), SeededEntropy(1)).arrays["sums"]
    assert sums[0].tolist() == [len(inside) * (sums[0, 0] // len(inside))] * 4
    assert sums[0, 0] / FIXED_POINT_ONE == pytest.approx(0.5 * len(inside), rel=1e-5) and not sums[1:].any()


@pytest.mark.parametrize("rows", [0, 1, 3, 40])
def test_a_member_brings_one_contribution(rows: int) -> None:
    """Five people's contributions under one member's number would be a sensitivity of five."""
    total = sampled()
    with pytest.raises(ValueError):
        add(total, total.members[:2], rows)
    assert len(total.members) == len(sampled().members)


def test_a_sampled_sum_takes_no_anonymous_contributions() -> None:
    with pytest.raises(TypeError, match="add_members"):
        sampled().add(np.ones((1, 4)), np.zeros(1, np.int64))


def test_nobody_is_forgotten() -> None:
    total = sampled()
    add(total, total.members[1:])
    with pytest.raises(ValueError, match="never added"):
        privatise(total, PoissonGaussian(2.0, 0.5, 1), SystemEntropy())
    add(total, total.members)
    privatise(total, PoissonGaussian(2.0, 0.5, 1), SystemEntropy())
    with pytest.raises(RuntimeError, match="noise is drawn once"):
        privatise(total, PoissonGaussian(2.0, 0.5, 1), SystemEntropy())


@pytest.mark.parametrize(
    "event",
    [
        PoissonGaussian(2.0, 0.4, 1),
        PoissonGaussian(2.0, np.nextafter(0.5, 0.0), 1),
        PoissonGaussian(2.0, np.nextafter(0.5, 1.0), 1),
        PoissonGaussian(2.0, 1.0, 1),
        PoissonGaussian(2.0, 0.5, 2),
        Gaussian(2.0),
        Gaussian(2.0, 2),
    ],
)
def test_another_event_than_the_sample_is_refused_and_the_sum_stays(event: Gaussian | PoissonGaussian) -> None:
    total = whole()
    with pytest.raises(ValueError):
        privatise(total, event, SystemEntropy())
    privatise(total, PoissonGaussian(2.0, 0.5, 1), SystemEntropy())


def test_a_sum_that_drew_no_sample_is_not_accounted_as_sampled() -> None:
    total = ClippedSum(LAYOUT)
    for rate in (0.5, 1.0):
        with pytest.raises(ValueError, match="drew its own sample"):
            privatise(total, PoissonGaussian(2.0, rate, 1), SystemEntropy())
    privatise(total, Gaussian(2.0), SystemEntropy())


def test_rate_one_is_a_plain_gaussian_over_everybody() -> None:
    assert sampled_event(2.0, 1.0, 7) == Gaussian(2.0, 7)
    assert sampled_event(2.0, 0.5, 7) == PoissonGaussian(2.0, 0.5, 7)
    total = sampled(1.0)
    assert total.members.tolist() == list(range(40))
    add(total, total.members)
    with pytest.raises(ValueError, match="not what"):
        privatise(total, PoissonGaussian(2.0, 1.0, 1), SystemEntropy())
    assert privatise(total, Gaussian(2.0), SystemEntropy()).event == Gaussian(2.0)


@pytest.mark.parametrize("records", [0, 1000])
def test_an_empty_sample_gets_noise_like_any_other(records: int) -> None:
    total = SampledSum(LAYOUT, 1e-15, records, SystemEntropy())
    assert len(total.members) == 0
    add(total, total.members)
    noisy = privatise(total, PoissonGaussian(2.0, 1e-15, 1), SystemEntropy()).arrays["sums"]
    assert noisy.any() and np.abs(noisy).max() < 20 * 2 * FIXED_POINT_ONE


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_membership_is_bernoulli_and_independent(rate: float) -> None:
    """Over records and over sums: the rate, the variance of sizes, and pairs; five or six standard deviations each."""
    entropy, records, sums = SystemEntropy(), 300, 400
    drawn = np.zeros((sums, records))
    for row in drawn:
        row[SampledSum(LAYOUT, rate, records, entropy).members] = 1.0
    assert rate_matches(int(drawn.sum()), drawn.size, rate)
    expected = records * rate * (1.0 - rate)
    assert abs(drawn.sum(axis=1).var() / expected - 1.0) < 5.0 * (2.0 / sums) ** 0.5 + 0.02
    for first, second in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):  # neighbours in a sum, sums in time
        spread = first.size * (rate**2 * (1.0 - rate**2) + 2.0 * rate**3 * (1.0 - rate))  # pairs share records
        assert abs((first * second).sum() - first.size * rate**2) < 6.0 * spread**0.5
    per_record = drawn.sum(axis=0)
    assert np.abs(per_record - sums * rate).max() < 6.0 * (sums * rate * (1.0 - rate)) ** 0.5


def test_a_sampled_sum_says_nothing() -> None:
    total = whole()
    assert repr(total) == str(total) == "ClippedSum(private)"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="private"):
            leak(total)
