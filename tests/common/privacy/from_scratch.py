"""The privacy filter as plainly as it can be written: every question adds everything up again. An oracle for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpdd.common.privacy import filters
from dpdd.common.privacy.accounting import gaussian_delta, guarantee, rdp_curve
from dpdd.common.privacy.events import Gaussian, NonPrivate, compose, gaussian_mu, parts
from dpdd.common.privacy.filters import Budget, Spending, mode_for


def admits(budget: Budget, spent: Sequence[Spending], new: Spending) -> bool:
    """Whether `new` may be released after `spent`."""
    everything = [*spent, new]
    if any(isinstance(part, NonPrivate) for part in parts(new.event)):
        return False
    mode = mode_for(budget, everything[0])
    delta = budget.delta - (1.0 + math.exp(budget.epsilon)) * math.fsum(each.distance for each in everything)
    if mode == "gaussian":
        mu = gaussian_mu(compose(*(each.event for each in everything)))
        return mu is not None and gaussian_delta(mu, budget.epsilon) <= delta
    if delta <= 0.0 or (mode == "single" and spent):
        return False
    if mode == "single":
        return guarantee(new.event, delta).epsilon <= budget.epsilon
    filter_ = filters._renyi_filter(budget.epsilon, budget.delta, delta)
    asked = rdp_curve(new.event, filter_.orders)
    room = filter_.caps - sum((rdp_curve(each.event, filter_.orders) for each in spent), np.zeros(len(asked)))
    deciding = int(np.argmax((room - asked) / np.asarray(filter_.orders)))
    return bool(asked[deciding] <= room[deciding])


def squared_mu(spent: Sequence[Spending]) -> Fraction:
    """Σ releases/σ² of plain Gaussians, exactly."""
    each = [part for spending in spent for part in parts(spending.event)]
    return sum((Fraction(g.releases) / Fraction(g.sigma) ** 2 for g in each if isinstance(g, Gaussian)), Fraction(0))
