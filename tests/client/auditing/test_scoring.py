"""Scores: against direct linear algebra, and against likelihoods that are written out."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.client.auditing.contributions import Contributions
from dpdd.client.auditing.scoring import Observation, mixture, scores
from dpdd.common.privacy.clipping import class_segment, global_segment

CLASSES = 3


def made(count: int, seed: int = 1) -> Contributions:
    """A plain segment by class, one over all, and an outer product."""
    draws = np.random.Generator(np.random.PCG64(seed))
    segments = (class_segment("own", 5, CLASSES), global_segment("all", 2, CLASSES))
    rows = draws.standard_normal((count, 7)).astype(np.float32) / 4.0
    left, right = (draws.standard_normal((count, 3)).astype(np.float32) / 3.0 for _ in range(2))
    return Contributions(segments, draws.integers(0, CLASSES, count), rows, {"square": (left, right)})


def as_matrix(contributions: Contributions) -> np.ndarray:
    """Every contribution written out, one to a row."""
    units = np.eye(len(contributions))
    flat = [np.concatenate([a.ravel() for _, a in sorted(contributions.total(unit).items())]) for unit in units]
    return np.array(flat)


def sums_of(contributions: Contributions, flat: np.ndarray) -> dict[str, np.ndarray]:
    found, start = {}, 0
    for name, array in sorted(contributions.total(np.zeros(len(contributions))).items()):
        found[name] = flat[start : start + array.size].reshape(array.shape)
        start += array.size
    return found


def test_inner_products_and_norms_are_those_of_the_written_out_vectors() -> None:
    contributions = made(9)
    whole = as_matrix(contributions)
    flat = np.random.Generator(np.random.PCG64(4)).standard_normal(whole.shape[1])
    assert np.allclose(contributions.matched(sums_of(contributions, flat)), whole @ flat, atol=1e-5)
    assert np.allclose(contributions.squared_norms(), np.square(whole).sum(axis=1), rtol=1e-5)


def test_linear_scores_are_the_best_linear_guess() -> None:
    """Four times (¼ CCᵀ + σ²)-regressed coins less 1/2, in the form with one unknown per coordinate."""
    contributions, sigma = made(12), 0.4
    whole, draws = as_matrix(contributions), np.random.Generator(np.random.PCG64(2))
    coins = draws.random(12) < 0.5
    noisy = coins @ whole + sigma * draws.standard_normal(whole.shape[1])
    covariance = 0.25 * whole.T @ whole + sigma**2 * np.eye(whole.shape[1])
    expected = whole @ np.linalg.solve(covariance, noisy - 0.5 * whole.sum(axis=0))
    found = scores([Observation(contributions, sums_of(contributions, noisy), sigma)])
    assert np.allclose(found, expected, atol=1e-3)


def test_two_releases_with_different_noise_are_weighed_by_it() -> None:
    contributions = made(10)
    whole, coins = as_matrix(contributions), np.arange(10) % 2 == 0
    exact = sums_of(contributions, coins @ whole)
    wrong = sums_of(contributions, ~coins @ whole)
    found = scores([Observation(contributions, exact, 0.01), Observation(contributions, wrong, 10.0)])
    assert ((found > 0.0) == coins).all()


def test_the_score_of_a_sampled_sum_is_the_log_ratio_of_the_mixture() -> None:
    """One canary alone, with densities written out."""
    contributions, sigma, rate = made(1), 0.7, 0.3
    vector = as_matrix(contributions)[0]
    for seed in range(5):
        noisy = 0.4 * vector + 0.2 * np.random.Generator(np.random.PCG64(seed)).standard_normal(len(vector))
        there, gone = (np.exp(-np.square(noisy - each).sum() / (2.0 * sigma**2)) for each in (vector, 0.0 * vector))
        found = scores([Observation(contributions, sums_of(contributions, noisy), sigma, rate)])
        assert np.isclose(found[0], np.log((rate * there + (1.0 - rate) * gone) / gone), atol=1e-4)


def test_draws_add_up_and_a_canary_that_adds_nothing_scores_nothing() -> None:
    contributions = made(4)
    nothing = Contributions(contributions.plain, contributions.labels, 0.0 * contributions.rows)
    noisy = {"own": np.ones((CLASSES, 5)), "all": np.ones((1, 2))}
    for rate in (1.0, 0.2):
        assert (scores([Observation(nothing, noisy, 0.5, rate)]) == 0.0).all()
    plain = Contributions(contributions.plain, contributions.labels, contributions.rows)
    one = scores([Observation(plain, noisy, 5.0, 0.2)])
    assert np.allclose(scores([Observation(plain, noisy, 5.0, 0.2)] * 3), 3.0 * one)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_mixtures_rise_and_do_not_overflow(rate: float) -> None:
    found = mixture(np.array([-1e6, -1.0, 0.0, 1.0, 1e6]), rate)
    assert (np.diff(found) >= 0.0).all() and np.isfinite(found).all()
    assert np.isclose(found[2], 0.0, atol=1e-12)


def test_segments_that_were_not_released_are_not_looked_at() -> None:
    contributions = made(6).without(["all"])
    assert np.allclose(contributions.rows[:, 5:], 0.0) and contributions.squared_norms().min() > 0.0
