"""From noisy sums to one number per canary: the log of how much likelier its coin is heads than tails.

Every record that is not a canary is known, as the strongest attacker knows it. A sum over everybody is linear in the
coins: they have mean 1/2 and variance 1/4, so the best linear guess of all of them together is a ridge regression of
the release on the contributions, (¼ G + σ² I)⁻¹ applied to the matched filter, where G are the inner products of
contributions. It is solved by conjugate gradients, which never make G. Generalised least squares is its limit where σ
is small; where σ is large, as it is at ε = 1, it is the matched filter.

In a sum over a Poisson sample at rate q a canary whose coin is heads is present with probability q. So its score is the
likelihood ratio of that mixture, log(1 - q + q e^λ), where λ is the matched filter's log ratio of present to absent, in
which the other canaries count as noise; the scores of all draws add up.

>>> import numpy as np
>>> mixture(np.array([0.0, 3.0]), 1.0).tolist()
[0.0, 3.0]
>>> mixture(np.array([-50.0]), 0.25).round(4).tolist() == np.log([0.75]).round(4).tolist()
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.client.auditing.contributions import Contributions

STEPS = 60
"""Of conjugate gradients, at most."""


@dataclass(frozen=True, eq=False)
class Observation:
    """One noisy sum as the attacker sees it, less what is known, and what each canary would add to it.

    All in units of the sensitivity; `sigma` is the noise's, `rate` that of the sample.
    """

    contributions: Contributions
    sums: Mapping[str, NDArray[Any]]
    sigma: float
    rate: float = 1.0


def scores(observations: Sequence[Observation]) -> NDArray[np.float64]:
    """How much evidence there is for each canary's coin: above 0 for heads."""
    whole = [each for each in observations if each.rate == 1.0]
    parts = [_linear(whole)] if whole else []
    parts += [_of_sample(each) for each in observations if each.rate < 1.0]
    return np.sum(parts, axis=0)


def mixture(ratio: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """log(1 - q + q e^λ), without overflow."""
    if rate == 1.0:
        return ratio
    return np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)


def _linear(observations: Sequence[Observation]) -> NDArray[np.float64]:
    """The best linear guess of all coins, as four times its distance from 1/2: the log ratio where it is weak."""

    def products(coins: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sum(
            [o.contributions.matched(o.contributions.total(coins)) / o.sigma**2 for o in observations], axis=0
        )

    count = len(observations[0].contributions)
    seen = np.sum([o.contributions.matched(o.sums) / o.sigma**2 for o in observations], axis=0)
    left = seen - products(np.full(count, 0.5))
    found, residual = np.zeros(count), left.copy()
    direction, size = residual.copy(), float(residual @ residual)
    start = size
    for _ in range(STEPS):
        if size <= 1e-10 * start:
            break
        image = 0.25 * products(direction) + direction
        step = size / float(direction @ image)
        found += step * direction
        residual -= step * image
        size, before = float(residual @ residual), size
        direction = residual + size / before * direction
    return found


def _of_sample(each: Observation) -> NDArray[np.float64]:
    """The log ratio under the mixture, where other canaries are noise of the size that is seen."""
    norms = each.contributions.squared_norms()
    there = norms > 1e-9
    absent = each.contributions.matched(each.contributions.total(np.full(len(norms), -0.5 * each.rate)))
    seen = each.contributions.matched(each.sums) + absent + 0.5 * each.rate * norms
    scaled = seen[there] / np.sqrt(norms[there])
    variance = max(each.sigma**2, float(scaled.var())) if there.any() else each.sigma**2
    return np.where(there, mixture((seen - 0.5 * norms) / variance, each.rate), 0.0)
