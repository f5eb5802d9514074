"""What a filter has to know of everything it admitted: a few numbers, however many events there were.

Each sum is rounded up at each step. So it is never below the true sum, nor below what rounding to the nearest gives,
and a filter that goes by it errs on the safe side. Equal Gaussians one after the other are counted, not added up, so
that n of them cost exactly what `calibrate` says of n.

>>> spent = Spent().and_gaussian(2.0, 3).and_gaussian(2.0, 1)
>>> spent.mu
1.0
>>> sum_up(1.0, 1e-30) > 1.0
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from dpdd.common.privacy import events
from dpdd.common.privacy.events import Event

Mode = Literal["gaussian", "renyi", "single"]


@dataclass(frozen=True)
class Spending:
    """One admitted event, and the statistical distance of its noise to the ideal."""

    event: Event
    distance: float


@dataclass(frozen=True)
class Spent:
    """Everything that was admitted. `mode` is the filter's, from the first event on.

    Of Gaussians, `earlier` is Σ releases/σ² up to the latest run of equal ones, which is `releases` times `sigma`.
    `divergences` are summed at the filter's orders. A `closed` budget admits nothing more, whatever the sums say.
    """

    first: Spending | None = None
    mode: Mode | None = None
    count: int = 0
    distance: float = 0.0
    earlier: float = 0.0
    sigma: float = 1.0
    releases: int = 0
    divergences: tuple[float, ...] = ()
    closed: bool = False

    def and_gaussian(self, sigma: float, releases: int) -> Spent:
        """With so many more plain Gaussians."""
        if sigma == self.sigma or not self.releases:
            return replace(self, sigma=sigma, releases=self.releases + releases)
        return replace(self, earlier=sum_up(self.earlier, self._run), sigma=sigma, releases=releases)

    @property
    def mu(self) -> float:
        """μ of all Gaussians together, rounded up."""
        if not self.releases:
            return math.sqrt(self.earlier)
        if not self.earlier:
            return math.sqrt(self.releases / self.sigma**2)
        return math.nextafter(math.sqrt(sum_up(self.earlier, self._run)), math.inf)

    @property
    def _run(self) -> float:
        return quotient_up(self.releases, self.sigma)

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same again."""
        values = {**asdict(self), "divergences": list(self.divergences), "first": None}
        if self.first is not None:
            values["first"] = {"event": events.to_json(self.first.event), "distance": self.first.distance}
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spent:
        """The inverse of `as_json`."""
        first = values["first"]
        if first is not None:
            first = Spending(events.from_json(first["event"]), first["distance"])
        return cls(**{**values, "first": first, "divergences": tuple(values["divergences"])})


def sum_up(a: float, b: float) -> float:
    """The least float that is not below a + b (two non-negative numbers)."""
    total = a + b
    if math.isinf(total):
        return total
    part = total - a  # Knuth's exact error of a sum
    error = (a - (total - part)) + (b - part)
    return math.nextafter(total, math.inf) if error > 0.0 else total


def quotient_up(releases: int, sigma: float) -> float:
    """releases/σ², not below the true one, nor below what floats make of it."""
    quotient, exact = releases / sigma**2, Fraction(releases) / Fraction(sigma) ** 2
    while quotient < exact:  # Python compares the two exactly
        quotient = math.nextafter(quotient, math.inf)
    return quotient
