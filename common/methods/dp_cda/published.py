"""What the paper's Theorem 1 says of a privacy loss. Nothing here is used to choose noise, or to promise anything.

Four things differ from an exact account of a mixture for adding or removing one record, and not all in one direction:

- *Class rate* (too little): a mixture takes l records out of its class's N_k, and the theorem samples l out of all N.
- *Parallel classes* (too much): the theorem composes T mixtures, and a record can only be in those of its class, T / K.
- *Sensitivity* (too much): it takes 2c/l, for replacing a record; adding or removing one gives c/l.
- *Loose bound* (too much): its subsampling bound (Wang, Balle and Kasiviswanathan 2019) holds for any mechanism.

Means and deviations that records are scaled by come for free in the paper (too little): no theorem counts them.
`theorem_1` is the theorem as it is printed; each of the first three can be set right by its own argument.

>>> published = theorem_1(noise=0.5, order=4, records=60_000, mixtures=60_000, delta=1e-5)
>>> by_class = theorem_1(noise=0.5, order=4, records=6_000, mixtures=60_000, delta=1e-5)
>>> in_parallel = theorem_1(noise=0.5, order=4, records=6_000, mixtures=6_000, delta=1e-5)
>>> bool(published < by_class and in_parallel < by_class)
True
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_cda.settings import MixingSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.events import Gaussian, PoissonGaussian

LARGEST_ORDER = 64
"""Of the Rényi divergences that the theorem's minimum is taken over: 3 up to this."""
_MOST_EXPONENT = 3000.0
"""With little noise there are fewer orders: beyond this power of e sums have too many digits, and losses are absurd."""
_DIGITS = 70
"""Beside those before the point: the theorem's alternating sums cancel almost entirely."""
REPLACED, ADDED = 2.0, 1.0
"""By how many clip norms a sum over the records changes if one is replaced, or added."""


def epsilon_of(settings: MixingSettings, run: RunDescription, plan: Plan) -> float | None:
    """By the theorem, for the noise of a plan: N and T over all classes, labels without noise."""
    if not isinstance(plan.event, Gaussian | PoissonGaussian):
        return None
    order, records = max(1, round(settings.order)), settings.class_size * len(run.classes)
    mixtures = settings.mixtures_per_class * len(run.classes)
    return theorem_1(plan.event.sigma / order, order, max(records, order), mixtures, plan.guarantee.delta)


@lru_cache(maxsize=64)
def theorem_1(
    noise: float,
    order: int,
    records: int,
    mixtures: int,
    delta: float,
    label_noise: float = math.inf,
    sensitivity: float = REPLACED,
) -> float:
    """ε of T `mixtures` of `order` records out of N `records`, with noise of deviations σ_x = `noise` × c in the mean
    of a mixture, and σ_y = `label_noise` in that of its one-hot labels.
    """
    if not (0 < order <= records and mixtures > 0 and noise > 0.0):
        raise ValueError(f"there are no {mixtures} mixtures of {order} out of {records} records with noise {noise}")
    slope = ((sensitivity / noise) ** 2 / 2.0 + 1.0 / label_noise**2) / order**2  # ε(α) = α × slope
    losses = _amplified(slope, order / records)
    return min(mixtures * loss + math.log(1.0 / delta) / (alpha - 1) for alpha, loss in losses.items())


def _amplified(slope: float, rate: float) -> dict[int, float]:
    """ε'(α) of the theorem, by α.

    The second factor under its root is B(2⌈j/2⌉), as in the theorem that it quotes; with B(⌈j/2⌉), as it is printed,
    there are roots of negative numbers.
    """
    largest = max(3, min(LARGEST_ORDER, math.isqrt(int(_MOST_EXPONENT / slope))))
    even = 2 * ((largest + 1) // 2)
    with localcontext() as context:
        small = max(0.0, -math.log10(slope)) * even  # differences of almost equal terms are of order slope^(even / 2)
        context.prec = _DIGITS + math.ceil(slope * even**2 / math.log(10.0) + small) + even
        base, ratio = (2 * Decimal(slope)).exp(), Decimal(1)
        powers = [Decimal(1), Decimal(1)]  # e^((i-1) ε(i)), each e^(2 slope i) times the one before
        while len(powers) <= even:
            ratio *= base
            powers.append(powers[-1] * ratio)
        sums = {
            length: sum(((-1) ** i * math.comb(length, i) * powers[i] for i in range(length + 1)), Decimal(0))
            for length in range(2, even + 1, 2)
        }
        context.prec = _DIGITS  # nothing cancels from here on
        p, first = Decimal(rate), min(4 * (powers[2] - 1), 2 * powers[2])
        higher = {j: p**j * (sums[2 * (j // 2)] * sums[2 * ((j + 1) // 2)]).sqrt() for j in range(3, largest + 1)}
        found = {}
        for alpha in range(3, largest + 1):
            rest = sum((math.comb(alpha, j) * higher[j] for j in range(3, alpha + 1)), Decimal(0))
            inside = 1 + p**2 * math.comb(alpha, 2) * first + 4 * rest
            found[alpha] = float(inside.ln() / (alpha - 1))
    return found


def noise_at(epsilon: float, order: int, records: int, mixtures: int, delta: float) -> float:
    """σ_x / c at which the theorem says `epsilon`, to a thousandth, by bisection; labels have no noise.

    >>> 9.9 < theorem_1(noise_at(10.0, 64, 60_000, 60_000, 1e-5), 64, 60_000, 60_000, 1e-5) <= 10.0
    True
    """
    low, high = 1e-3 / math.sqrt(order), 1.0
    while theorem_1(high, order, records, mixtures, delta) > epsilon:
        low, high = high, 2.0 * high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if theorem_1(middle, order, records, mixtures, delta) > epsilon else (low, middle)
    return high
