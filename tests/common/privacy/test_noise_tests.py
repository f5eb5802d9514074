"""The test of noise: right scales pass, wrong ones fail, as often as is said."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.noise_tests import ALARM, noise_test, numbers_needed, smallest_error


def draws(seed: int, count: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(count)


def sampled(count: int, sigma: float = 3.7) -> np.ndarray:
    """What `privatise` adds, in units of its σ."""
    scale = discrete_gaussian.scale_for(sigma * FIXED_POINT_ONE)
    return discrete_gaussian.sample(scale, count, SeededEntropy(5)) / (sigma * FIXED_POINT_ONE)


def test_the_noise_of_releases_passes() -> None:
    test = noise_test(sampled(numbers_needed(0.05)))
    assert test.passes and test.finds <= 0.05 and abs(test.scale - 1.0) < 0.02


@pytest.mark.parametrize("factor", [0.95, 1.05, 0.5, 2.0])
def test_a_wrong_scale_fails_in_each_of_twenty_trials(factor: float) -> None:
    count = numbers_needed(0.05)
    assert not any(noise_test(factor * draws(seed, count)).passes for seed in range(20))


def test_true_noise_passes_in_each_of_sixty_trials() -> None:
    for count in (4, 100, 12_000):
        assert all(noise_test(draws(seed, count)).passes for seed in range(20))


def test_p_values_of_true_noise_are_not_too_small() -> None:
    found = np.array([noise_test(draws(seed, 40)).p_value for seed in range(400)])
    for level in (0.05, 0.2):
        assert (found <= level).mean() <= level + 4.0 * (level / 400) ** 0.5


@pytest.mark.parametrize(
    "residuals",
    [
        np.zeros(30),
        draws(1, 13_000) + 0.06,
        np.sign(draws(1, 500)),
        np.random.Generator(np.random.PCG64(1)).laplace(0.0, 0.5**0.5, 3_000),
        np.concatenate([1.3 * draws(1, 9_000), 0.55 * draws(2, 9_000)]),
        np.array([0.1, np.nan]),
        np.array([0.1, np.inf]),
    ],
    ids=["none", "shifted", "two-valued", "laplace", "half-of-it", "nan", "infinite"],
)
def test_other_noise_fails(residuals: np.ndarray) -> None:
    assert not noise_test(residuals).passes


def test_more_numbers_find_smaller_errors() -> None:
    found = [smallest_error(count) for count in (10, 100, 1000, 10_000, 100_000)]
    assert found == sorted(found, reverse=True) and smallest_error(numbers_needed(0.1)) <= 0.1 < found[1]
    assert smallest_error(numbers_needed(0.1) - 1) > 0.1 and ALARM < 1e-5


def test_no_numbers_are_an_error() -> None:
    with pytest.raises(ValueError, match="no residuals"):
        noise_test(np.zeros(0))
