"""Poisson samples have the stated rate, are independent, and may be empty."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.privacy.clipping import GRID, ClippedSum, Layout, class_segment
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from dpdd.common.privacy.events import Gaussian
from dpdd.common.privacy.privatise import privatise
from dpdd.common.privacy.sampling import poisson_sample


def rate_matches(found: int, trials: int, rate: float) -> bool:
    """Within five standard deviations: a false alarm in less than one of a million."""
    return abs(found - trials * rate) < 5.0 * (trials * rate * (1.0 - rate)) ** 0.5


@pytest.mark.parametrize("rate", [50 / 6000, 0.1, 0.5, 0.9])
def test_the_rate_is_right_and_others_are_rejected(rate: float) -> None:
    found = len(poisson_sample(1_000_000, rate, SystemEntropy()))
    assert rate_matches(found, 1_000_000, rate)
    assert not rate_matches(found, 1_000_000, 0.9 * rate)
    assert not rate_matches(found, 1_000_000, min(1.1 * rate, 0.999))


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
    assert 0.0 < np.abs(noisy.arrays["sums"]).max() < 20 * GRID
