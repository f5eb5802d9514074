"""Bounds from attacks: against brute force, linear programmes and simulated mechanisms that are just as private."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpdd.common.privacy.accounting import gaussian_delta, largest_mu
from dpdd.common.privacy.auditing import (
    Inverse,
    OneRun,
    allows,
    claimed_inverse,
    curve_bound,
    curve_guess_count,
    expected_share,
    gaussian_inverse,
    guess_count,
    one_run_bound,
    one_run_p_value,
    profile_inverse,
    tail_bound,
)
from dpdd.common.privacy.events import Gaussian, PoissonGaussian


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_randomised_response_has_exactly_this_p_value(epsilon: float) -> None:
    """Each of six coins is told truly with the probability that ε allows: all outcomes, one by one."""
    rate, count = math.exp(epsilon) / (1.0 + math.exp(epsilon)), 6
    outcomes = [
        (sum(truths), math.prod(rate if truth else 1.0 - rate for truth in truths))
        for truths in itertools.product((0, 1), repeat=count)
    ]
    for correct in range(1, count + 1):
        tail = sum(chance for right, chance in outcomes if right >= correct)
        assert math.isclose(one_run_p_value(OneRun(count, count, correct), epsilon, 0.0), tail, rel_tol=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (1.0, 1e-5), (4.0, 1e-3)])
def test_randomised_response_that_fails_at_times_is_not_refuted(epsilon: float, delta: float) -> None:
    """With probability δ a coin is simply told: that is (ε, δ)-private, and rarely refuted."""
    draws, canaries, trials = generator(7), 400, 2000
    rate = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    told = draws.random((trials, canaries)) < delta
    correct = (told | (draws.random((trials, canaries)) < rate)).sum(axis=1)
    bounds = {c: one_run_bound(OneRun(canaries, canaries, int(c)), delta, 0.9) for c in np.unique(correct)}
    above = sum(bounds[c] > epsilon for c in correct)
    assert above <= 0.1 * trials + 4.0 * math.sqrt(0.09 * trials)
    assert max(bounds.values()) > 0.8 * epsilon, "a bound that never comes near shows nothing"


@pytest.mark.parametrize("delta", [0.02, 0.1])
def test_all_coins_told_at_once_with_probability_delta_is_not_refuted(delta: float) -> None:
    """The worst that (ε, δ) allows: nearly always nothing, and else everything. That is what 2 m δ α is for."""
    canaries = 20
    for correct in range(11, canaries + 1):
        truth = delta + (1.0 - delta) * float(binom.sf(correct - 1, canaries, 0.5))
        assert one_run_p_value(OneRun(canaries, canaries, correct), 0.0, delta) >= min(truth, 1.0) - 1e-12


def test_one_run_bound_grows_with_right_guesses_and_shrinks_with_confidence_and_delta() -> None:
    bounds = [one_run_bound(OneRun(500, 100, correct), 1e-5, 0.95) for correct in range(40, 101, 4)]
    assert bounds == sorted(bounds) and bounds[0] == 0.0 and bounds[-1] > 2.5
    run = OneRun(500, 100, 90)
    assert one_run_bound(run, 1e-5, 0.99) < one_run_bound(run, 1e-5, 0.95)
    assert one_run_bound(run, 1e-3, 0.95) < one_run_bound(run, 1e-5, 0.95) < one_run_bound(run, 0.0, 0.95)
    assert one_run_bound(OneRun(500, 0, 0), 1e-5, 0.95) == 0.0


def test_known_values() -> None:
    """All of 100 right, δ = 0: e^ε/(1 + e^ε) to the 100th is 0.05. And a first prototype's 0.36 of ε = 1."""
    exact = math.log(0.05**0.01 / (1.0 - 0.05**0.01))
    assert exact - 1e-4 < one_run_bound(OneRun(100, 100, 100), 0.0, 0.95) <= exact
    guesses = guess_count(4000, 1.0, 1e-5, 0.95)
    right = int(guesses * expected_share(largest_mu(1.0, 1e-5), guesses / 4000))
    assert 0.34 < one_run_bound(OneRun(4000, guesses, right), 1e-5, 0.95) < 0.42


@pytest.mark.parametrize("values", [(0, 0, 0), (10, 11, 3), (10, 5, 6), (10, 5, -1)])
def test_impossible_counts_are_an_error(values: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be right"):
        OneRun(*values)


# Curves


def lines_of(mu: float) -> list[tuple[float, float]]:
    """Tangents (slope, start) that F(x) = Φ(Φ⁻¹(x) + μ) is the least of."""
    points = ndtri(np.linspace(0.0005, 0.9995, 400))
    slopes = np.exp(-mu * points - mu * mu / 2.0)
    return list(zip(slopes, ndtr(points + mu) - slopes * ndtr(points), strict=True))


def largest_tail(canaries: int, guesses: int, correct: int, lines: list[tuple[float, float]]) -> float:
    """The linear programme: the distribution of right guesses with the largest tail that fits all inequalities."""
    number = np.arange(guesses + 1)
    rows, limits = [], []
    for least in range(1, guesses + 1):
        right = np.where(number >= least, number, 0) / canaries
        wrong = np.where(number >= least - 1, guesses - number, 0) / canaries
        for slope, start in lines:
            rows.append(right - slope * wrong)
            limits.append(start)
    found = linprog(-(number >= correct).astype(float), A_ub=rows, b_ub=limits, A_eq=[np.ones(guesses + 1)], b_eq=[1.0])
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(8, 8, 6), (12, 6, 5), (12, 12, 9), (10, 4, 4)])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_tail_bound_is_the_solution_of_the_linear_programme(
    canaries: int, guesses: int, correct: int, mu: float
) -> None:
    """The tangents lie above the curve, so the programme allows a little more, and never less."""
    programme = largest_tail(canaries, guesses, correct, lines_of(mu))
    assert programme * 0.99 < tail_bound(canaries, guesses, correct, gaussian_inverse(mu)) <= programme * 1.001


def test_tail_bound_of_one_epsilon_is_the_solution_of_the_linear_programme() -> None:
    epsilon, delta = 0.7, 0.01
    lines = [(math.exp(epsilon), delta), (math.exp(-epsilon), 1.0 - math.exp(-epsilon) * (1.0 - delta))]
    for correct in (6, 8, 10):
        programme = largest_tail(10, 10, correct, lines)
        assert math.isclose(tail_bound(10, 10, correct, profile_inverse([(epsilon, delta)])), programme, rel_tol=1e-4)


@pytest.mark.parametrize("mu", [0.25, 1.7])
def test_gaussian_releases_are_refuted_no_more_often_than_is_said(mu: float) -> None:
    """Coins behind noise of exactly μ, surest guessed: above the true ε in no more than one run of ten."""
    draws, canaries, trials = generator(3), 600, 300
    epsilon = next(e for e in np.arange(0.0, 40.0, 0.05) if gaussian_delta(mu, float(e)) <= 1e-5)
    guesses = curve_guess_count(canaries, float(epsilon), 1e-5, 0.9)
    above = []
    for factor in (1.0, 2.0):
        coins = draws.random((trials, canaries)) < 0.5
        scores = factor * mu * (coins - 0.5) + draws.standard_normal((trials, canaries))
        surest = np.argsort(-np.abs(scores), axis=1)[:, :guesses]
        right = (np.take_along_axis(scores, surest, 1) > 0.0) == np.take_along_axis(coins, surest, 1)
        refuted = {
            int(c): not allows(canaries, guesses, int(c), 0.1, gaussian_inverse(mu)) for c in np.unique(right.sum(1))
        }
        above.append(np.mean([refuted[int(c)] for c in right.sum(1)]))
    assert above[0] <= 0.1 and above[1] > 0.3, above


def test_half_of_the_noise_is_out_of_reach_of_one_epsilon_and_within_that_of_the_curve() -> None:
    for epsilon, canaries in ((1.0, 4000), (8.0, 1000)):
        mu = largest_mu(epsilon, 1e-5)
        guesses = curve_guess_count(canaries, epsilon, 1e-5, 0.95)
        half = OneRun(canaries, guesses, int(guesses * expected_share(2.0 * mu, guesses / canaries)))
        full = OneRun(canaries, guesses, int(guesses * expected_share(mu, guesses / canaries)))
        assert one_run_bound(half, 1e-5, 0.95) < epsilon < curve_bound(half, 1e-5, 0.95)
        assert curve_bound(full, 1e-5, 0.95) < 0.75 * epsilon


def test_a_quarter_of_the_noise_is_within_reach_of_one_epsilon() -> None:
    guesses = guess_count(1000, 1.0, 1e-5, 0.95)
    share = expected_share(4.0 * largest_mu(1.0, 1e-5), guesses / 1000)
    assert one_run_bound(OneRun(1000, guesses, int(guesses * share)), 1e-5, 0.95) > 1.0


def test_curves_are_what_their_event_claims() -> None:
    exact, sampled = claimed_inverse(Gaussian(2.0, 4)), claimed_inverse(PoissonGaussian(1.5, 1.0, 1))
    for y in (0.001, 0.2, 0.6, 0.99):
        assert exact(y) == gaussian_inverse(1.0)(y)
        loose, tight = sampled(y), gaussian_inverse(1.0 / 1.5)(y)
        assert loose <= tight * (1.0 + 1e-9), "lines lie below the curve that they belong to"
        assert loose > 0.85 * tight - 0.01


def test_curves_begin_at_zero_rise_and_are_convex() -> None:
    curves: list[Inverse] = [gaussian_inverse(0.7), profile_inverse([(1.0, 0.01), (0.2, 0.1)])]
    for curve in curves:
        values = np.array([curve(float(y)) for y in np.linspace(0.0, 1.0, 101)])
        assert values[0] == 0.0 and (np.diff(values) >= 0.0).all() and (np.diff(values, 2) >= -1e-9).all()
        assert (values <= np.linspace(0.0, 1.0, 101) + 1e-12).all()


@pytest.mark.parametrize("count", [2, 9, 300])
def test_guess_counts_are_between_one_and_all(count: int) -> None:
    for best in (guess_count, curve_guess_count):
        assert 1 <= best(count, 1.0, 1e-5, 0.95) <= count
