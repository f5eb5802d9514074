"""Lower bounds on ε from an attack: what a release gave away, at a stated confidence.

An audit puts canaries among a silo's records, each by a fair coin, looks at the release, and guesses coins. How many
guesses may be right is bounded by the privacy that is claimed; more right ones refute the claim.

One run (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2): of `guesses`
coins guessed, for a number fixed beforehand, at least v are right with probability at most β + 2 m δ α. β is the tail
of a binomial with success probability e^ε / (1 + e^ε), and α = max_i P[v - i ≤ binomial < v] / i. `one_run_bound` is
the largest ε such that all from 0 to it are refuted.

The same run against a whole trade-off curve (as Mahloujifar, Melis and Chaudhuri 2024 do, "Auditing f-Differential
Privacy in One Run"): let C be the number of right guesses, and S the outputs for which the guess of coin i is right and
C ≥ j. With coin i turned these are outputs with a wrong guess and C ≥ j - 1. Averaged over coins, and with F concave,

    E[C; C ≥ j] / m  ≤  F(E[guesses - C; C ≥ j - 1] / m),

where F(x) is the largest probability under one neighbour of an event that has x under the other one. `tail_bound` is
the largest P[C ≥ c] for which some distribution of C fits all these. It sees what one (ε, δ) cannot: that the noise
is half of what it should be, although the claim is still far from refuted at its δ.

Both bounds come from one release, each with a number of guesses of its own that is fixed beforehand (`guess_count`,
`curve_guess_count`), and each holds at its own confidence.

>>> one_run_bound(OneRun(canaries=1000, guesses=100, correct=90), delta=1e-5, confidence=0.95) > 1.5
True
>>> one_run_bound(OneRun(canaries=1000, guesses=100, correct=55), delta=1e-5, confidence=0.95)
0.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpdd.common.privacy.accounting import gaussian_epsilon, guarantee, largest_mu
from dpdd.common.privacy.events import Event, gaussian_mu

LARGEST = 64.0
"""The largest ε or μ that a bound can be."""
_STEP = 1.0 / 32.0

Inverse = Callable[[float], float]
"""From a probability y under one neighbour to the least x under the other with F(x) ≥ y; convex, and 0 at 0."""


@dataclass(frozen=True)
class OneRun:
    """How many canaries there were, how many coins were guessed, and how many guesses were right."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guesses <= self.canaries or self.canaries < 1:
            raise ValueError(f"{self.correct} of {self.guesses} guesses of {self.canaries} coins cannot be right")


def one_run_p_value(run: OneRun, epsilon: float, delta: float) -> float:
    """At most the probability of so many right guesses, if the mechanism is (ε, δ)-private.

    >>> math.isclose(one_run_p_value(OneRun(canaries=10, guesses=10, correct=10), epsilon=0.0, delta=0.0), 2.0**-10)
    True
    """
    if run.correct == 0:
        return 1.0
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(run.correct - 1, run.guesses, rate))
    below = binom.pmf(np.arange(run.correct - 1, -1, -1), run.guesses, rate)
    alpha = float((np.cumsum(below) / np.arange(1, run.correct + 1)).max())
    return min(tail + 2.0 * run.canaries * delta * alpha, 1.0)


def one_run_bound(run: OneRun, delta: float, confidence: float) -> float:
    """The largest ε such that all (ε', δ) with ε' up to it are refuted at this confidence; 0 where none is."""
    return _refuted(lambda epsilon: one_run_p_value(run, epsilon, delta) <= 1.0 - confidence)


def _refuted(refutes: Callable[[float], bool]) -> float:
    """The end of the refuted stretch that begins at 0, rounded down to a thousandth of `_STEP`."""
    if not refutes(0.0):
        return 0.0
    low = 0.0
    while low < LARGEST and refutes(low + _STEP):
        low += _STEP
    high = low + _STEP
    while high - low > _STEP / 1000.0:
        middle = (low + high) / 2.0
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


# Trade-off curves


def gaussian_inverse(mu: float) -> Inverse:
    """Of a Gaussian mechanism with sensitivity over noise `mu`: Φ(Φ⁻¹(y) - μ)."""
    return lambda y: float(ndtr(ndtri(min(y, 1.0)) - mu)) if y > 0.0 else 0.0


def profile_inverse(profile: Sequence[tuple[float, float]]) -> Inverse:
    """Of a mechanism that is (ε, δ)-private for each of these pairs: the curve's lines, in both directions.

    >>> inverse = profile_inverse([(1.0, 0.01)])
    >>> round(inverse(0.01), 3), round(inverse(0.99), 3)
    (0.0, 0.963)
    """
    slopes = np.exp([-epsilon for epsilon, _ in profile])
    deltas = np.array([delta for _, delta in profile])
    # y ≤ e^ε x + δ, and the same of what is left: 1 - x ≤ e^ε (1 - y) + δ.
    slope = np.concatenate([slopes, 1.0 / slopes])
    start = np.concatenate([-deltas * slopes, 1.0 - deltas - 1.0 / slopes])
    return lambda y: max(0.0, float((slope * y + start).max()))


def claimed_inverse(event: Event) -> Inverse:
    """The curve that an event claims: exact for plain Gaussians, else lines through what the accountant says."""
    mu = gaussian_mu(event)
    if mu is not None:
        return gaussian_inverse(mu)
    deltas = [10.0 ** (-exponent / 4.0) for exponent in range(1, 21)]
    return profile_inverse([(guarantee(event, delta).epsilon, delta) for delta in deltas])


def tail_bound(canaries: int, guesses: int, correct: int, inverse: Inverse) -> float:
    """The largest probability of at least `correct` right guesses that the curve allows."""
    low, high = 0.0, 1.0
    if allows(canaries, guesses, correct, 1.0, inverse):
        return 1.0
    while high - low > 1e-6 * high and high > 1e-30:
        middle = math.sqrt(low * high) if low > 0.0 else high / 16.0
        low, high = (middle, high) if allows(canaries, guesses, correct, middle, inverse) else (low, middle)
    return high


def allows(canaries: int, guesses: int, correct: int, tail: float, inverse: Inverse) -> bool:
    """Whether at least `correct` right guesses may have probability `tail`.

    From the tail down: the least mass that each number of right guesses must have. All in the tail at `correct` itself
    is the cheapest way to have it, and more mass than is needed at one number never saves any below.
    """
    right, wrong = tail * correct / canaries, tail * (guesses - correct) / canaries
    whole = guesses / canaries * (1.0 + 1e-12)
    for number in range(correct - 1, -1, -1):
        more = max(inverse(right) - wrong, 0.0)
        wrong += more
        right += more * number / (guesses - number)
        if right + wrong > whole:
            return False
    return True


def curve_bound(run: OneRun, delta: float, confidence: float) -> float:
    """The ε at `delta` of the largest μ such that all Gaussian curves up to it are refuted; 0 where none is."""
    mu = _refuted(lambda mu: not allows(run.canaries, run.guesses, run.correct, 1.0 - confidence, gaussian_inverse(mu)))
    return gaussian_epsilon(mu, delta) / (1.0 + 1e-9) if mu > 0.0 else 0.0


# Guesses, planned from public facts


def expected_share(mu: float, guessed: float) -> float:
    """The share of right guesses that an attacker expects who guesses this share of the coins, the surest ones.

    Scores are N(±μ/2, 1) by the coin, as those of a matched filter on canaries that do not disturb each other.

    >>> round(expected_share(1.0, 1.0), 4) == round(float(ndtr(0.5)), 4)
    True
    """
    low, high = 0.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2.0
        beyond = ndtr(mu / 2.0 - middle) + ndtr(-mu / 2.0 - middle)
        low, high = (middle, high) if beyond > guessed else (low, middle)
    right, wrong = float(ndtr(mu / 2.0 - low)), float(ndtr(-mu / 2.0 - low))
    return right / (right + wrong) if right > 0.0 else 1.0


def guess_count(canaries: int, epsilon: float, delta: float, confidence: float) -> int:
    """How many coins to guess for `one_run_bound`: what has the highest bound to expect where the claim is just true.

    From the claim alone, so that it is fixed before anything is drawn.
    """
    return _best_count(canaries, largest_mu(epsilon, delta), lambda run: one_run_bound(run, delta, confidence))


def curve_guess_count(canaries: int, epsilon: float, delta: float, confidence: float) -> int:
    """The same for `curve_bound`, where half of the noise is missing: that is what this one is to find."""
    return _best_count(canaries, 2.0 * largest_mu(epsilon, delta), lambda run: curve_bound(run, delta, confidence))


def _best_count(canaries: int, mu: float, bound: Callable[[OneRun], float]) -> int:
    counts = sorted({2 * max(round(canaries * share / 2.0), 1) for share in np.geomspace(0.01, 1.0, 25)})

    def expected(guesses: int) -> float:
        return bound(OneRun(canaries, guesses, min(int(guesses * expected_share(mu, guesses / canaries)), guesses)))

    return max((count for count in counts if count <= canaries), key=lambda count: (expected(count), count), default=1)
