"""Privacy events: what a mechanism does, as the accountant sees it.

An event is public data: it is planned before any record is read, written to the silo's ledger, and travels with the
release. Neighbours everywhere: one labelled record added to or removed from one silo.

>>> once = Gaussian(sigma=4.0)
>>> compose(once, once, PoissonGaussian(sigma=2.0, rate=0.01, steps=500))
Composed(parts=(Gaussian(sigma=4.0, releases=2), PoissonGaussian(sigma=2.0, rate=0.01, steps=500)))
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from typing import Any

NEIGHBOURS = "add or remove one labelled record in one silo"


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise of standard deviation `sigma` × the L2 sensitivity, `releases` times."""

    sigma: float
    releases: int = 1

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        _check_count("releases", self.releases)


@dataclass(frozen=True)
class PoissonGaussian:
    """`steps` times: sample every record with probability `rate`, then add Gaussian noise."""

    sigma: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if not (isinstance(self.rate, int | float) and 0.0 < self.rate <= 1.0):
            raise ValueError(f"a sampling rate lies in (0, 1], not {reprlib.repr(self.rate)}")
        _check_count("steps", self.steps)


@dataclass(frozen=True)
class NonPrivate:
    """No protection at all (ε = ∞): only simulations may use it, and no release made with it is releasable."""


@dataclass(frozen=True)
class Composed:
    """Several events over the same records, in any order; build it with `compose`."""

    parts: tuple[Gaussian | PoissonGaussian | NonPrivate, ...]


Event = Gaussian | PoissonGaussian | NonPrivate | Composed


def compose(*events: Event) -> Event:
    """Join events on the same records into one, flat, with equal neighbours merged."""
    flat: list[Gaussian | PoissonGaussian | NonPrivate] = []
    for event in events:
        for part in parts(event):
            last = flat[-1] if flat else None
            if isinstance(last, Gaussian) and isinstance(part, Gaussian) and last.sigma == part.sigma:
                flat[-1] = Gaussian(part.sigma, last.releases + part.releases)
            elif (
                isinstance(last, PoissonGaussian)
                and isinstance(part, PoissonGaussian)
                and (last.sigma, last.rate) == (part.sigma, part.rate)
            ):
                flat[-1] = PoissonGaussian(part.sigma, part.rate, last.steps + part.steps)
            elif isinstance(last, NonPrivate) and isinstance(part, NonPrivate):
                continue
            else:
                flat.append(part)
    if len(flat) == 1:
        return flat[0]
    return Composed(tuple(flat))


def parts(event: Event) -> tuple[Gaussian | PoissonGaussian | NonPrivate, ...]:
    """The simple events inside `event`."""
    return event.parts if isinstance(event, Composed) else (event,)


def gaussian_mu(event: Event) -> float | None:
    """μ of the Gaussian mechanism that `event` equals, or None when it is not made of plain Gaussians only.

    >>> gaussian_mu(Gaussian(sigma=2.0, releases=4))
    1.0
    """
    total = 0.0
    for part in parts(event):
        if isinstance(part, NonPrivate):
            return math.inf
        if not isinstance(part, Gaussian):
            return None
        total += part.releases / part.sigma**2
    return math.sqrt(total)


def describe(event: Event) -> str:
    """The event in words, for ledgers and data cards.

    >>> describe(Gaussian(sigma=3.73, releases=1))
    'Gaussian, σ = 3.73'
    """
    words = []
    for part in parts(event):
        if isinstance(part, Gaussian):
            times = f", {part.releases} times" if part.releases > 1 else ""
            words.append(f"Gaussian, σ = {part.sigma:.6g}{times}")
        elif isinstance(part, PoissonGaussian):
            words.append(f"Poisson-sampled Gaussian, rate {part.rate:.6g}, σ = {part.sigma:.6g}, {part.steps} steps")
        else:
            words.append("no protection")
    return "; ".join(words) if words else "nothing"


def to_json(event: Event) -> list[dict[str, Any]]:
    """The event as plain JSON values, for the ledger and `card.json`."""
    rows: list[dict[str, Any]] = []
    for part in parts(event):
        if isinstance(part, Gaussian):
            rows.append({"kind": "gaussian", "sigma": part.sigma, "releases": part.releases})
        elif isinstance(part, PoissonGaussian):
            rows.append({"kind": "poisson-gaussian", "sigma": part.sigma, "rate": part.rate, "steps": part.steps})
        else:
            rows.append({"kind": "non-private"})
    return rows


def from_json(rows: list[dict[str, Any]]) -> Event:
    """The inverse of `to_json`; ValueError when a row is not an event."""
    if not isinstance(rows, list):
        raise ValueError(f"not a list of privacy events: {reprlib.repr(rows)}")
    events: list[Event] = []
    for row in rows:
        match row:
            case {"kind": "gaussian", "sigma": sigma, "releases": releases}:
                events.append(Gaussian(sigma, releases))
            case {"kind": "poisson-gaussian", "sigma": sigma, "rate": rate, "steps": steps}:
                events.append(PoissonGaussian(sigma, rate, steps))
            case {"kind": "non-private"}:
                events.append(NonPrivate())
            case _:
                raise ValueError(f"not a privacy event: {reprlib.repr(row)}")
    return compose(*events)


def _check_sigma(sigma: float) -> None:
    if not (isinstance(sigma, int | float) and 1e-15 <= sigma <= 1e15):  # so that its square is a number, too
        raise ValueError(f"a noise multiplier is a positive number between 1e-15 and 1e15, not {reprlib.repr(sigma)}")


def _check_count(name: str, count: int) -> None:
    if not (isinstance(count, int) and 1 <= count < 2**31):
        raise ValueError(f"{name} is a whole number from 1 up, not {reprlib.repr(count)}")
