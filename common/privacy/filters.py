"""Privacy filters: one budget over adaptively chosen events, each picked by somebody who saw the earlier answers.

Composition theorems for fixed lists of events do not cover that (fully adaptive composition); filters do. Two are used:

- **gaussian** — while every event is plain Gaussian, Σμ² ≤ μ_B² keeps the whole interaction μ_B-GDP, however the
  events were chosen (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). It is exact: nothing is lost.
- **renyi** — for any events: at each order α of a fixed set the Rényi divergences may add up to a cap B_α, and an event
  is admitted while some order still has room (Feldman and Zrnic 2021; Lécuyer 2021). Which order that will be depends
  on the interaction, so δ is split between the orders (`_SHARE` of it to the one that suits Gaussians best) and each
  cap uses its own share: B_α is the largest b with exp((α-1)(b-ε)) · (1/α)(1-1/α)^(α-1) ≤ δ_α. The supermartingale
  exp((α-1)(L - Σ divergences)) then gives δ_α on the part of the outcomes where α decides, and the parts add up to δ.

Which filter a ledger uses is fixed before its first release, when no answer exists that the choice could depend on:
`auto` takes `gaussian` if the first event is a plain Gaussian and `renyi` otherwise. A first event that fits the budget
by its own exact accounting, but not the Rényi filter, is admitted as a **single** release that closes the ledger.

The statistical distance of the noise to its ideal is counted too: (1 + e^ε)·Σ distances is taken off δ first.

>>> from dpdd.common.privacy.events import Gaussian
>>> budget = Budget(epsilon=1.0, delta=1e-5)
>>> first = Spending(Gaussian(sigma=7.5), distance=0.0)
>>> verdict(budget, [first], first).fits, verdict(budget, [first] * 4, first).fits
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from dpdd.common.privacy.accounting import (
    gaussian_delta,
    gaussian_epsilon,
    guarantee,
    largest_mu,
    rdp_curve,
)
from dpdd.common.privacy.events import Event, NonPrivate, compose, gaussian_mu, parts

Composition = Literal["auto", "gaussian", "renyi"]
Mode = Literal["gaussian", "renyi", "single"]

_SHARE = 0.9
_ORDERS = (1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0)


@dataclass(frozen=True)
class Budget:
    """All that a silo will ever spend on its records."""

    epsilon: float
    delta: float
    composition: Composition = "auto"


@dataclass(frozen=True)
class Spending:
    """One admitted event, and the statistical distance of its noise to the ideal."""

    event: Event
    distance: float


@dataclass(frozen=True)
class Verdict:
    """Whether a request fits, in ε at the budget's δ: what it asks, what is left, and under which filter."""

    fits: bool
    requested: float
    remaining: float
    mode: Mode
    why: str = ""

    @property
    def difference(self) -> float:
        """How much too large the request is (not positive when it fits)."""
        return self.requested - self.remaining


def mode_for(budget: Budget, first: Spending) -> Mode:
    """The filter of a ledger whose first admitted event is `first`."""
    plain = gaussian_mu(first.event) is not None
    if budget.composition == "gaussian" or (budget.composition == "auto" and plain):
        return "gaussian"
    if not _renyi(budget, [], first).fits and _single(budget, first).fits:
        return "single"
    return "renyi"


def verdict(budget: Budget, spent: Sequence[Spending], new: Spending) -> Verdict:
    """May `new` be released after `spent`?"""
    if any(isinstance(part, NonPrivate) for part in parts(new.event)):
        return Verdict(False, math.inf, remaining(budget, spent), "gaussian", "it has no protection at all")
    mode = mode_for(budget, spent[0] if spent else new)
    if mode == "gaussian":
        return _gaussian(budget, spent, new)
    if mode == "renyi":
        return _renyi(budget, spent, new)
    if spent:
        requested = guarantee(new.event, budget.delta).epsilon
        return Verdict(False, requested, 0.0, mode, "the first release used this ledger up by its exact accounting")
    return _single(budget, new)


def spent_epsilon(budget: Budget, spent: Sequence[Spending]) -> float:
    """ε, at the budget's δ, of everything released so far, accounted as if it had been a fixed list of events.

    (What holds for adaptively chosen events is the budget itself: that is what a filter promises.)
    """
    if not spent:
        return 0.0
    delta = _delta_left(budget, spent)
    if delta <= 0.0:
        return math.inf  # the noise's distance to the ideal alone takes more than δ
    mode = mode_for(budget, spent[0])
    event = compose(*(spending.event for spending in spent))
    if mode != "renyi":
        epsilon = guarantee(event, delta).epsilon
        return budget.epsilon if budget.epsilon < epsilon <= budget.epsilon * (1 + 1e-9) else epsilon  # rounding only
    filter_ = _renyi_filter(budget.epsilon, budget.delta, delta)
    used = rdp_curve(event, filter_.orders)
    return float(min((used + filter_.conversions).min(), budget.epsilon)) if (used <= filter_.caps).any() else math.inf


def remaining(budget: Budget, spent: Sequence[Spending]) -> float:
    """The ε (at the budget's δ) that one more plain Gaussian release may have."""
    if not spent:
        return budget.epsilon
    mode = mode_for(budget, spent[0])
    delta = _delta_left(budget, spent)
    if mode == "single" or delta <= 0.0:
        return 0.0
    if mode == "gaussian":
        used = gaussian_mu(compose(*(spending.event for spending in spent))) or 0.0
        left = largest_mu(budget.epsilon, delta) ** 2 - used**2
        return gaussian_epsilon(math.sqrt(left), budget.delta) if left > 0.0 else 0.0
    filter_ = _renyi_filter(budget.epsilon, budget.delta, delta)
    used_curve = rdp_curve(compose(*(spending.event for spending in spent)), filter_.orders)
    rooms = (filter_.caps - used_curve) / np.asarray(filter_.orders)
    return gaussian_epsilon(math.sqrt(2.0 * max(float(rooms.max()), 0.0)), budget.delta)


def _delta_left(budget: Budget, spent: Sequence[Spending]) -> float:
    return budget.delta - (1.0 + math.exp(budget.epsilon)) * math.fsum(s.distance for s in spent)


def _gaussian(budget: Budget, spent: Sequence[Spending], new: Spending) -> Verdict:
    left = remaining(budget, spent)
    mu = gaussian_mu(new.event)
    if mu is None:
        requested = guarantee(new.event, budget.delta).epsilon
        why = "this ledger composes plain Gaussian releases only, by its setting or since its first release"
        return Verdict(False, requested, left, "gaussian", why)
    everything = [*spent, new]
    total = gaussian_mu(compose(*(spending.event for spending in everything)))
    assert total is not None
    fits = gaussian_delta(total, budget.epsilon) <= _delta_left(budget, everything)
    return Verdict(fits, gaussian_epsilon(mu, budget.delta), left, "gaussian")


def _single(budget: Budget, new: Spending) -> Verdict:
    delta = _delta_left(budget, [new])
    requested = guarantee(new.event, delta).epsilon if delta > 0.0 else math.inf
    return Verdict(requested <= budget.epsilon, requested, budget.epsilon, "single")


def _renyi(budget: Budget, spent: Sequence[Spending], new: Spending) -> Verdict:
    """Compare at the order that has most room left; both sides as the ε of a Gaussian with that divergence."""
    delta = _delta_left(budget, [*spent, new])
    if delta <= 0.0:
        return Verdict(False, math.inf, remaining(budget, spent), "renyi")
    filter_ = _renyi_filter(budget.epsilon, budget.delta, delta)
    orders = np.asarray(filter_.orders)
    asked = rdp_curve(new.event, filter_.orders)
    room = filter_.caps - sum((rdp_curve(s.event, filter_.orders) for s in spent), np.zeros(len(orders)))
    deciding = int(np.argmax((room - asked) / orders))
    fits = bool(asked[deciding] <= room[deciding])

    def as_epsilon(divergence: float) -> float:
        return gaussian_epsilon(math.sqrt(2.0 * max(divergence, 0.0) / orders[deciding]), budget.delta)

    return Verdict(fits, as_epsilon(float(asked[deciding])), as_epsilon(float(room[deciding])), "renyi")


@dataclass(frozen=True, eq=False)
class _RenyiFilter:
    orders: tuple[float, ...]
    conversions: np.ndarray  # ε - B_α: what turning a divergence at α into ε at δ_α costs
    caps: np.ndarray  # -∞ where an order's share of δ leaves it no room at all


@lru_cache(maxsize=64)
def _renyi_filter(epsilon: float, delta: float, left: float) -> _RenyiFilter:
    """The orders depend on the budget (ε, δ) alone, so that no answer can move them; `left` of δ sets the caps."""
    fine = np.exp(np.linspace(math.log(1.05), math.log(256.0), 400))
    gaussian_room = (epsilon - _conversion(fine, delta * _SHARE)) / fine
    gaussian_order = float(fine[int(np.argmax(gaussian_room))])
    orders = (gaussian_order, *_ORDERS)
    shares = np.array([_SHARE] + [(1.0 - _SHARE) / len(_ORDERS)] * len(_ORDERS))
    conversions = _conversion(np.asarray(orders), left * shares)
    return _RenyiFilter(orders, conversions, np.where(conversions < epsilon, epsilon - conversions, -np.inf))


def _conversion(orders: np.ndarray, deltas: np.ndarray | float) -> np.ndarray:
    """ε minus the Rényi divergence at order α (Canonne, Kamath and Steinke 2020, proposition 12)."""
    return -(np.log(deltas) + np.log(orders)) / (orders - 1.0) + np.log1p(-1.0 / orders)
