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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
from dpdd.common.privacy.events import Gaussian, NonPrivate, gaussian_mu, parts
from dpdd.common.privacy.spent import Mode, Spending, Spent, sum_up

__all__ = ["Budget", "Composition", "Mode", "Spending", "Spent", "Verdict"]

Composition = Literal["auto", "gaussian", "renyi"]

_SHARE = 0.9
_ORDERS = (1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0)


@dataclass(frozen=True)
class Budget:
    """All that a silo will ever spend on its records."""

    epsilon: float
    delta: float
    composition: Composition = "auto"


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
    if not _renyi(budget, Spent(), first).fits and _single(budget, first).fits:
        return "single"
    return "renyi"


def add(budget: Budget, spent: Spent, new: Spending) -> Spent:
    """What was spent, and `new` too, whether it fits or not."""
    mode = spent.mode or mode_for(budget, new)
    total = replace(
        spent,
        first=spent.first or new,
        mode=mode,
        count=spent.count + 1,
        distance=sum_up(spent.distance, new.distance),
    )
    if mode == "gaussian":
        return _with_gaussians(total, new)
    if mode == "renyi":
        return replace(total, divergences=_summed(spent, budget, new))
    return total


def total(budget: Budget, spendings: Iterable[Spending]) -> Spent:
    """All of these, one after the other."""
    spent = Spent()
    for spending in spendings:
        spent = add(budget, spent, spending)
    return spent


def verdict(budget: Budget, spent: Spent | Sequence[Spending], new: Spending) -> Verdict:
    """May `new` be released after `spent`?"""
    spent = _spent(budget, spent)
    if any(isinstance(part, NonPrivate) for part in parts(new.event)):
        return Verdict(False, math.inf, remaining(budget, spent), "gaussian", "it has no protection at all")
    mode = spent.mode or mode_for(budget, new)
    if spent.closed:
        requested = guarantee(new.event, budget.delta).epsilon
        return Verdict(False, requested, 0.0, mode, "what was left of this budget was written off")
    if mode == "gaussian":
        return _gaussian(budget, spent, new)
    if mode == "renyi":
        return _renyi(budget, spent, new)
    if spent.count:
        requested = guarantee(new.event, budget.delta).epsilon
        return Verdict(False, requested, 0.0, mode, "the first release used this ledger up by its exact accounting")
    return _single(budget, new)


def spent_epsilon(budget: Budget, spent: Spent | Sequence[Spending]) -> float:
    """ε, at the budget's δ, of everything released so far, accounted as if it had been a fixed list of events.

    (What holds for adaptively chosen events is the budget itself: that is what a filter promises.) Of a budget that was
    written off, all of it.
    """
    spent = _spent(budget, spent)
    return max(_accounted(budget, spent), budget.epsilon if spent.closed else 0.0)


def _accounted(budget: Budget, spent: Spent) -> float:
    if not spent.count:
        return 0.0
    delta = _delta_left(budget, spent.distance)
    if delta <= 0.0:
        return math.inf  # the noise's distance to the ideal alone takes more than δ
    if spent.mode == "renyi":
        filter_ = _renyi_filter(budget.epsilon, budget.delta, delta)
        used = np.asarray(spent.divergences)
        if not (used <= filter_.caps).any():
            return math.inf
        return float(min((used + filter_.conversions).min(), budget.epsilon))
    if spent.mode == "gaussian":
        epsilon = gaussian_epsilon(spent.mu, delta)
    else:
        epsilon = guarantee(spent.first.event, delta).epsilon if spent.first and spent.count == 1 else math.inf
    return budget.epsilon if budget.epsilon < epsilon <= budget.epsilon * (1 + 1e-9) else epsilon  # rounding only


def remaining(budget: Budget, spent: Spent | Sequence[Spending]) -> float:
    """The ε (at the budget's δ) that one more plain Gaussian release may have."""
    spent = _spent(budget, spent)
    if spent.closed:
        return 0.0
    if not spent.count:
        return budget.epsilon
    delta = _delta_left(budget, spent.distance)
    if spent.mode == "single" or delta <= 0.0:
        return 0.0
    if spent.mode == "gaussian":
        left = largest_mu(budget.epsilon, delta) ** 2 - spent.mu**2
        return gaussian_epsilon(math.sqrt(left), budget.delta) if left > 0.0 else 0.0
    filter_ = _renyi_filter(budget.epsilon, budget.delta, delta)
    rooms = (filter_.caps - np.asarray(spent.divergences)) / np.asarray(filter_.orders)
    return gaussian_epsilon(math.sqrt(2.0 * max(float(rooms.max()), 0.0)), budget.delta)


def _spent(budget: Budget, spent: Spent | Sequence[Spending]) -> Spent:
    return spent if isinstance(spent, Spent) else total(budget, spent)


def _delta_left(budget: Budget, distance: float) -> float:
    return budget.delta - (1.0 + math.exp(budget.epsilon)) * distance


def _with_gaussians(spent: Spent, new: Spending) -> Spent:
    """With the Gaussians of `new`; anything else, which this filter never admits, is as if without noise."""
    for part in parts(new.event):
        if isinstance(part, Gaussian):
            spent = spent.and_gaussian(part.sigma, part.releases)
        else:
            spent = replace(spent, earlier=math.inf)
    return spent


def _summed(spent: Spent, budget: Budget, new: Spending) -> tuple[float, ...]:
    """The Rényi divergences of everything with `new`, at the filter's orders."""
    orders = _renyi_filter(budget.epsilon, budget.delta, budget.delta).orders
    curve = rdp_curve(new.event, orders)
    used = spent.divergences or [0.0] * len(orders)
    return tuple(sum_up(before, float(more)) for before, more in zip(used, curve, strict=True))


def _gaussian(budget: Budget, spent: Spent, new: Spending) -> Verdict:
    left = remaining(budget, spent)
    mu = gaussian_mu(new.event)
    if mu is None:
        requested = guarantee(new.event, budget.delta).epsilon
        why = "this ledger composes plain Gaussian releases only, by its setting or since its first release"
        return Verdict(False, requested, left, "gaussian", why)
    mu_of_all, distance = _with_gaussians(spent, new).mu, sum_up(spent.distance, new.distance)
    fits = gaussian_delta(mu_of_all, budget.epsilon) <= _delta_left(budget, distance)
    return Verdict(fits, gaussian_epsilon(mu, budget.delta), left, "gaussian")


def _single(budget: Budget, new: Spending) -> Verdict:
    delta = _delta_left(budget, new.distance)
    requested = guarantee(new.event, delta).epsilon if delta > 0.0 else math.inf
    return Verdict(requested <= budget.epsilon, requested, budget.epsilon, "single")


def _renyi(budget: Budget, spent: Spent, new: Spending) -> Verdict:
    """Compare at the order that has most room left; both sides as the ε of a Gaussian with that divergence."""
    delta = _delta_left(budget, sum_up(spent.distance, new.distance))
    if delta <= 0.0:
        return Verdict(False, math.inf, remaining(budget, spent), "renyi")
    filter_ = _renyi_filter(budget.epsilon, budget.delta, delta)
    orders = np.asarray(filter_.orders)
    asked = rdp_curve(new.event, filter_.orders)
    room = filter_.caps - np.asarray(spent.divergences or [0.0] * len(orders))
    deciding = int(np.argmax((room - asked) / orders))
    fits = _summed(spent, budget, new)[deciding] <= filter_.caps[deciding]

    def as_epsilon(divergence: float) -> float:
        return gaussian_epsilon(math.sqrt(2.0 * max(divergence, 0.0) / orders[deciding]), budget.delta)

    return Verdict(bool(fits), as_epsilon(float(asked[deciding])), as_epsilon(float(room[deciding])), "renyi")


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
