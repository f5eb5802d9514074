"""Discrete Gaussian noise: fast, from a cryptographic source, and with a stated distance to the ideal.

The discrete Gaussian D(s) gives the integer k a probability proportional to exp(-k²/2s²).

*Drawing it.* Up to `WIDEST_TABLE` by inversion: the cumulative probabilities are held to 128 bits, a draw compares 64
random bits, and only a tie (probability about 2^-47) needs the other 64. Wider noise is x₁ + k·x₂ with x₁ ~ D(s₁)
and x₂ ~ D(s₂). Completing the square, P(y) is ρ_S(y) · Σ_j ρ_t(j - c·y) with S² = s₁² + k²s₂² and t = s₁s₂/S, and by
Poisson summation the second factor is constant up to the relative error 2·exp(-2π²t²)·(1 + tiny): with t ≥ 2.05 that
is below 2^-117. So D(S) is met to `sampler_distance(S)`, a statistical (total variation) distance.

*What it protects.* A real Gaussian N(0, s² - 1/12) rounded to the nearest integer is the Gaussian mechanism followed
by post-processing, for integer sums of any dimension: it has exactly the Gaussian's privacy curve. D(s) lies within
`rounding_distance(s)` of it: both characteristic functions share the factor exp(-(s²-1/12)t²/2), and
|exp(-t²/24) - sinc(t/2)| ≤ t⁴/2880, so each probability differs by at most 3/(2880·√2π·s⁵), and there are 27s of them
before the tails. Hence noise D(s) is as private as the continuous Gaussian of variance s² - 1/12, with
(1 + e^ε) × `distance(s)` × the number of coordinates added to δ: about 1e-19 in practice, and counted all the same.

>>> from dpdd.common.privacy.entropy import SeededEntropy
>>> sample(2.0**20, 5, SeededEntropy(1)).dtype
dtype('int64')
>>> distance(2.0**20) < 1e-25
True
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.entropy import Entropy

WIDEST_TABLE = 2048.0
WIDEST = 2.0**58
"""Above this scale draws would not fit into 64 bits."""
NARROWEST = 4.0
"""Below this scale the distance to a rounded Gaussian is no longer negligible; mechanisms use 2^17 and more."""

_TAIL = 13.5  # beyond 13.5 s lies less than 2^-130
_SMOOTH = 2.05  # t of the module docstring
_FIXED = 256  # fractional bits while a table is made
_CELL_BITS = 18
_BATCH = 1 << 16


def sample(scale: float, count: int, entropy: Entropy) -> NDArray[np.int64]:
    """`count` independent draws of D(`scale`)."""
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"the scale of a discrete Gaussian is positive and finite, not {scale!r}")
    out = np.empty(count, dtype=np.int64)
    for start in range(0, count, _BATCH):
        part = out[start : start + _BATCH]
        part[:] = _draw(scale, len(part), entropy)
    return out


def sampler_distance(scale: float) -> float:
    """Total variation distance between one draw of `sample(scale)` and D(S), an upper bound.

    S is `scale` for tables; beyond them it is at least `scale`, and above it by rounding errors only.
    """
    if scale <= WIDEST_TABLE:
        return (2.0 * _TAIL * scale + 3.0) * 2.0**-128 + 2.0**-129
    narrow, factor, wide = _split(scale)
    smooth = narrow * wide / math.hypot(narrow, factor * wide)
    return 2.1 * math.exp(-2.0 * math.pi**2 * smooth**2) + sampler_distance(narrow) + sampler_distance(wide)


def rounding_distance(scale: float) -> float:
    """Total variation distance between D(`scale`) and N(0, scale² - 1/12) rounded to integers, an upper bound."""
    if scale < NARROWEST:
        raise ValueError(f"discrete noise of scale {scale:g} is too coarse to account for; use {NARROWEST:g} or more")
    return 0.006 / (scale**2 - 1 / 12) ** 2 + 2.0**-128


def distance(scale: float) -> float:
    """What one coordinate of noise is away from a rounded Gaussian of variance scale² - 1/12."""
    return sampler_distance(scale) + rounding_distance(scale)


def scale_for(sigma: float) -> float:
    """The discrete scale that protects as well as a continuous Gaussian of standard deviation `sigma`."""
    return math.nextafter(math.sqrt(sigma * sigma + 1.0 / 12.0), math.inf)


def delta_cost(scale: float, coordinates: int, epsilon: float) -> float:
    """What `coordinates` draws add to δ at `epsilon`."""
    return (1.0 + math.exp(epsilon)) * coordinates * distance(scale)


def _split(scale: float) -> tuple[float, int, float]:
    """(s₁, k, s₂) with s₁² + k²s₂² ≥ scale², s₁ in the table's range, and t ≥ `_SMOOTH`."""
    if not scale <= WIDEST:
        raise ValueError(f"discrete noise of scale {scale:g} is too wide for 64 bits; {WIDEST:g} is the most")
    balanced = math.sqrt(scale * _SMOOTH * 1.05)  # makes both halves about equally wide
    narrow = min(WIDEST_TABLE, balanced)
    factor = int(narrow / (_SMOOTH * 1.02))
    wide = math.nextafter(math.sqrt(scale * scale - narrow * narrow) / factor, math.inf)
    return narrow, factor, wide * (1 + 4e-16)


def _draw(scale: float, count: int, entropy: Entropy) -> NDArray[np.int64]:
    if scale <= WIDEST_TABLE:
        return _table(scale).draw(count, entropy)
    narrow, factor, wide = _split(scale)
    return _draw(wide, count, entropy) * factor + _draw(narrow, count, entropy)


@dataclass(frozen=True, eq=False)
class _Table:
    """Inversion of a cumulative distribution, with a shortcut for cells of the unit interval without a step."""

    half_width: int
    steps: list[int]  # 128-bit cumulative probabilities
    high: NDArray[np.uint64]  # their upper words
    cells: NDArray[np.int32]  # the draw for the cell, or _MIXED

    def draw(self, count: int, entropy: Entropy) -> NDArray[np.int64]:
        words = np.frombuffer(entropy.take(8 * count), dtype="<u8")
        drawn = self.cells[(words >> np.uint64(64 - _CELL_BITS)).astype(np.intp)].astype(np.int64)
        mixed = np.flatnonzero(drawn == _MIXED)
        if mixed.size:
            hard = words[mixed]
            index = np.searchsorted(self.high, hard, side="right")
            for tie in np.flatnonzero(self.high[np.maximum(index - 1, 0)] == hard):
                low = int.from_bytes(entropy.take(8), "little")
                index[tie] = bisect_right(self.steps, (int(hard[tie]) << 64) | low)
            drawn[mixed] = index - self.half_width
        return drawn


_MIXED = np.iinfo(np.int32).min


@lru_cache(maxsize=16)
def _table(scale: float) -> _Table:
    half_width = math.ceil(_TAIL * scale) + 1
    weights = _weights(scale, half_width)
    total = 2 * sum(weights) - weights[0]
    steps, running = [], 0
    for k in range(-half_width, half_width + 1):
        running += weights[abs(k)]
        steps.append((running << 128) // total)
    steps = [step for step in steps if step >> 128 == 0]  # the last is 1, and no draw reaches it
    high = np.array([step >> 64 for step in steps], dtype=np.uint64)
    edges = np.arange(1 << _CELL_BITS, dtype=np.uint64) << np.uint64(64 - _CELL_BITS)
    first = np.searchsorted(high, edges, side="left")
    after = np.append(first[1:], len(high))
    cells = np.where(first == after, first - half_width, _MIXED).astype(np.int32)
    return _Table(half_width, steps, high, cells)


def _weights(scale: float, half_width: int) -> list[int]:
    """exp(-k²/2s²) for k = 0 … half_width, as integers with `_FIXED` fractional bits."""
    with localcontext() as context:
        context.prec = 100
        variance = Decimal(scale) * Decimal(scale)
        unit = Decimal(2) ** _FIXED
        step = int((Decimal(-1) / (2 * variance)).exp() * unit)
        shrink = int((Decimal(-1) / variance).exp() * unit)
    weights = [1 << _FIXED]
    for _ in range(half_width):
        weights.append(weights[-1] * step >> _FIXED)  # exp(-(k+1)²/2s²) = exp(-k²/2s²) · exp(-(2k+1)/2s²)
        step = step * shrink >> _FIXED
    return weights
