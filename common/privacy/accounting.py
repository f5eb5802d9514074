"""Privacy accounting: from an event to (ε, δ); and calibration: from (ε, δ) to the smallest noise that meets it.

Plain Gaussians are accounted exactly (Balle and Wang 2018, theorem 8); anything with Poisson sampling goes through
the privacy-loss distributions of `dp_accounting`, which round against us. Rényi accounting is the cross-check: it is
never below the exact figure. Both are upper bounds, so where rounding lifts the first above the second, as it does for
many releases of tiny loss, the smaller one counts. The central-limit formula is not used anywhere.

>>> from dpdd.common.privacy.events import Gaussian
>>> guarantee(Gaussian(sigma=3.7306), delta=1e-5).epsilon < 1.0001
True
>>> round(calibrate(gaussian_releases(1), epsilon=1.0, delta=1e-5), 3)
3.731
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpdd.common.privacy.events import (
    Event,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    compose,
    gaussian_mu,
    parts,
)

if TYPE_CHECKING:
    import dp_accounting

EXACT = "analytic Gaussian"
PLD = "privacy-loss distribution"
RDP = "Rényi"

LARGEST_EPSILON = 32.0
"""Budgets above this protect nobody, and the sampler's distance to the ideal would no longer be negligible."""

_ULPS = 1.0 + 1e-12  # covers the rounding of the special functions, so that a printed ε is never below the true one
_ROUNDING = 1e-10  # bounds the error of a sampled step's log-moment in floating point, at orders up to 4096
_PLD_GRID = 1e-4
_TINY_LOSS = 10.0 * _PLD_GRID
"""Below it a step's loss is of the size of what rounding adds to it; far above it Rényi accounting never wins."""


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) and the accountant that vouches for it."""

    epsilon: float
    delta: float
    accountant: str


def guarantee(event: Event, delta: float) -> Guarantee:
    """The exact (plain Gaussians) or tightest upper-bounded (PLD, or Rényi) ε of `event` at `delta`."""
    _check_delta(delta)
    mu = gaussian_mu(event)
    if mu is not None:
        return Guarantee(gaussian_epsilon(mu, delta), delta, EXACT)
    bounds = [Guarantee(_pld_epsilon(event, delta), delta, PLD)]
    if any(isinstance(part, PoissonGaussian) and part.rate < _TINY_LOSS * part.sigma for part in parts(event)):
        bounds.append(rdp_guarantee(event, delta, whole_orders()))
    return min(bounds, key=lambda bound: bound.epsilon)


def rdp_guarantee(event: Event, delta: float, orders: tuple[float, ...] | None = None) -> Guarantee:
    """The same by Rényi accounting: an upper bound on the true ε whatever the orders, used as the cross-check."""
    _check_delta(delta)
    return Guarantee(_rdp_epsilon(event, delta, orders or rdp_orders()), delta, RDP)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of the Gaussian mechanism with sensitivity/noise ratio `mu` at `epsilon` (Balle and Wang, eq. 6).

    >>> f"{gaussian_delta(1.0, 1.0):.4f}"
    '0.1269'
    """
    from scipy.special import log_ndtr

    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    above = float(log_ndtr(mu / 2 - epsilon / mu))
    below = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if below >= above:
        return 0.0
    return math.exp(above) * -math.expm1(below - above)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with `gaussian_delta(mu, ε)` ≤ δ, rounded up."""
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2.0
        if high > 1e12:
            return math.inf
    low = 0.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high * _ULPS


@lru_cache(maxsize=256)
def largest_mu(epsilon: float, delta: float) -> float:
    """The largest μ whose Gaussian mechanism is (ε, δ)-DP, rounded down."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, high * 2.0
        if high > 1e9:
            return high
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low


def gaussian_releases(releases: int) -> Callable[[float], Event]:
    """σ ↦ the event of `releases` Gaussians; what `calibrate` wants."""
    return lambda sigma: Gaussian(sigma, releases)


def poisson_steps(rate: float, steps: int) -> Callable[[float], Event]:
    """σ ↦ the event of `steps` Poisson-sampled Gaussians."""
    return lambda sigma: PoissonGaussian(sigma, rate, steps)


def calibrate(
    event_of: Callable[[float], Event],
    epsilon: float,
    delta: float,
    account: Callable[[Event, float], Guarantee] = guarantee,
) -> float:
    """The smallest σ for which `event_of(σ)` is (ε, δ)-DP, to a relative 1e-6 (exact for plain Gaussians).

    The returned σ itself passes the check: the search ends on the private side.
    """
    _check_delta(delta)
    if not 0.0 < epsilon <= LARGEST_EPSILON:
        raise ValueError(f"epsilon lies in (0, {LARGEST_EPSILON:g}], not {epsilon!r}")
    unit = gaussian_mu(event_of(1.0))
    if unit is not None and account is guarantee and _proportional(event_of, unit):
        sigma = unit / largest_mu(epsilon, delta)
        while gaussian_delta(gaussian_mu(event_of(sigma)) or 0.0, epsilon) > delta:
            sigma = math.nextafter(sigma, math.inf)
        return sigma

    def loss(sigma: float) -> float:
        return account(event_of(sigma), delta).epsilon

    low, high = 0.0, 1.0 if account is not guarantee else _unsampled(event_of, epsilon, delta)
    while loss(high) > epsilon:
        low, high = high, high * 2.0
        if high > 2.0**40:
            raise ValueError(f"no noise below 2^40 makes this event ({epsilon:g}, {delta:g})-private")
    while low == 0.0 and loss(high / 2.0) <= epsilon and high > 2.0**-20:
        high /= 2.0
    return _bisected(loss, epsilon, max(low, high / 2.0), high)


def _bisected(loss: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """What bisection of [low, high] to a relative 1e-6 ends with, where `loss` falls and is at most ε at `high`.

    A secant finds the place first, as each loss may take seconds; then halving is followed, point by point, and only
    points between the two that the secant has left are tried. So the result does not depend on how it was found.
    """
    above, below = _enclosed(loss, epsilon, low, high)
    for enclosed in (True, False):
        first, last = low, high
        while last - first > 1e-6 * last:
            middle = (first + last) / 2
            if enclosed and not above < middle < below:
                private = middle >= below
            else:
                private = loss(middle) <= epsilon
            first, last = (first, middle) if private else (middle, last)
        if loss(last) <= epsilon:
            break  # always, unless rounding makes a loss rise with the noise somewhere
    return last


def _enclosed(loss: Callable[[float], float], epsilon: float, low: float, high: float) -> tuple[float, float]:
    """A σ with a loss above ε and one without, close to each other, by secants of log ε over log σ."""
    above, below, last = loss(low), loss(high), high
    for _ in range(12):
        if high - low <= 2e-7 * high or not 0.0 < below <= epsilon < above < math.inf:
            break
        slope = math.log(above / below) / math.log(high / low)
        if slope < 1e-9:
            break
        guess = high * (below / epsilon) ** (1.0 / slope)
        near, last = max(min(0.01, 0.5 * abs(guess / last - 1.0)), 5e-8), guess
        for middle in (guess * (1.0 - near), guess * (1.0 + near)):  # one on each side, where the guess is good
            if low < middle < high:
                found = loss(middle)
                low, high, above, below = (
                    (low, middle, above, found) if found <= epsilon else (middle, high, found, below)
                )
    return low, high


def _proportional(event_of: Callable[[float], Event], unit: float) -> bool:
    """Whether all noise grows with σ; a part that does not would have no end in steps of one ulp."""
    return math.isclose((gaussian_mu(event_of(1024.0)) or 0.0) * 1024.0, unit, rel_tol=1e-9)


def _unsampled(event_of: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The σ that would do without sampling, which only helps: a PLD far below it can take hours and gigabytes."""
    unit = compose(
        *(
            Gaussian(part.sigma, part.steps) if isinstance(part, PoissonGaussian) else part
            for part in parts(event_of(1.0))
        )
    )
    return (gaussian_mu(unit) or 1.0) / largest_mu(epsilon, delta)


def rdp_curve(event: Event, orders: tuple[float, ...]) -> np.ndarray:
    """Rényi divergences of `event` at `orders`: α·releases/(2σ²) for Gaussians, `dp_accounting` for the rest.

    Never below the true ones: `_ROUNDING` is added to what `dp_accounting` computes in floating point, which for tiny
    losses would else come out too small, even negative.
    """
    total = np.zeros(len(orders))
    for part in parts(event):
        if isinstance(part, NonPrivate):
            return np.full(len(orders), math.inf)
        if isinstance(part, Gaussian):
            total += np.asarray(orders) * part.releases / (2.0 * part.sigma**2)
        else:
            total += _poisson_rdp(part, orders)
    return total


@lru_cache(maxsize=256)
def _poisson_rdp(part: PoissonGaussian, orders: tuple[float, ...]) -> np.ndarray:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders)
    accountant.compose(_dp_event(part))
    computed = np.asarray(accountant.rdp, dtype=float)
    return computed + part.steps * _ROUNDING / (np.asarray(orders) - 1.0)


@lru_cache(maxsize=1)
def rdp_orders() -> tuple[float, ...]:
    """The orders of the cross-check: fine where small budgets have their optimum."""
    fine = [1.0 + x / 20.0 for x in range(1, 200)]
    return (*fine, *map(float, range(11, 65)), 72.0, 80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0)


@lru_cache(maxsize=1)
def whole_orders() -> tuple[float, ...]:
    """The orders that are integers, where the divergence is a finite sum; tiny losses need no others."""
    return tuple(order for order in (2.0, *rdp_orders(), 2048.0, 4096.0) if order.is_integer())


@lru_cache(maxsize=256)
def _rdp_epsilon(event: Event, delta: float, orders: tuple[float, ...]) -> float:
    from dp_accounting import rdp

    return float(rdp.compute_epsilon(orders, rdp_curve(event, orders).tolist(), delta)[0])


@lru_cache(maxsize=256)
def _pld_epsilon(event: Event, delta: float) -> float:
    return float(_pld_accountant(event).get_epsilon(delta))


@lru_cache(maxsize=1)  # for many δ of one event, as a trade-off curve wants; composing is what takes the time
def _pld_accountant(event: Event) -> dp_accounting.pld.PLDAccountant:
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=_PLD_GRID)
    accountant.compose(_dp_event(event))
    return accountant


def _dp_event(event: Event) -> dp_accounting.DpEvent:
    import dp_accounting

    def one(part: Event) -> dp_accounting.DpEvent:
        if isinstance(part, Gaussian):
            return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(part.sigma), part.releases)
        if isinstance(part, PoissonGaussian):
            sampled = dp_accounting.PoissonSampledDpEvent(part.rate, dp_accounting.GaussianDpEvent(part.sigma))
            return dp_accounting.SelfComposedDpEvent(sampled, part.steps)
        return dp_accounting.NonPrivateDpEvent()

    return dp_accounting.ComposedDpEvent([one(part) for part in parts(event)])


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta lies in (0, 1), not {delta!r}")
