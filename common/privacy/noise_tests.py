"""Is this the noise that was stated? A two-sided test of residuals: release less clean sum, in units of the stated σ.

Three tests share the error: the sum of squares is chi-square distributed (a wrong scale), the sum is Gaussian (a
shift), and the largest distance from the Gaussian's distribution function is Kolmogorov's (a wrong shape). `ALARM` is
the probability that true noise fails. How far off a scale must be to be found depends on how many numbers there are:
`numbers_needed` for a scale that is wrong by a twentieth, either way.

>>> import numpy as np
>>> noise = np.random.Generator(np.random.PCG64(1)).standard_normal(20_000)
>>> noise_test(noise).passes, noise_test(0.95 * noise).passes, noise_test(1.05 * noise).passes
(True, False, False)
>>> numbers_needed(0.05) < 20_000
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALARM = 1e-6
"""The probability that noise of the stated kind fails."""
MISS = 1e-3
"""The probability that a scale which is off by what a test is said to find passes."""


@dataclass(frozen=True)
class NoiseTest:
    """How many residuals there were, their root mean square in units of σ, and what the three tests say together."""

    numbers: int
    scale: float
    p_value: float

    @property
    def passes(self) -> bool:
        """Whether this may be the stated noise."""
        return self.p_value > ALARM

    @property
    def finds(self) -> float:
        """The relative error of the scale, upwards or downwards, that this many numbers find."""
        return smallest_error(self.numbers)


def noise_test(residuals: NDArray[np.floating]) -> NoiseTest:
    """The three tests; residuals are in units of the stated σ."""
    from scipy import stats

    values = np.asarray(residuals, dtype=np.float64).ravel()
    if not len(values):
        raise ValueError("there are no residuals to test")
    if not np.isfinite(values).all():
        return NoiseTest(len(values), math.nan, 0.0)
    squares, count = float(np.square(values).sum()), len(values)
    scale = 2.0 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count))
    shift = 2.0 * stats.norm.sf(abs(float(values.sum())) / math.sqrt(count))
    shape = stats.kstest(values, "norm").pvalue
    return NoiseTest(count, math.sqrt(squares / count), float(min(1.0, 3.0 * min(scale, shift, shape))))


def smallest_error(numbers: int) -> float:
    """The relative error of a scale that this many numbers find, with probability 1 - `MISS`; ∞ for hardly any."""
    from scipy import stats

    low, high = (stats.chi2.ppf(ALARM / 6.0, numbers), stats.chi2.isf(ALARM / 6.0, numbers))
    below = 1.0 - math.sqrt(low / stats.chi2.isf(MISS, numbers))
    above = math.sqrt(high / stats.chi2.ppf(MISS, numbers)) - 1.0
    return float(max(below, above))


def numbers_needed(error: float) -> int:
    """How many numbers find a scale that is off by this share, either way."""
    count = 2
    while smallest_error(count) > error:
        count *= 2
    low = count // 2
    while count - low > 1:
        middle = (low + count) // 2
        low, count = (low, middle) if smallest_error(middle) <= error else (middle, count)
    return count
