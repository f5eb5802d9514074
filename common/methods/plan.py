"""What a release will cost and contain, from its request alone: no record is needed to plan, so anybody can.

A silo plans before it spends, a coordinator before it believes a release, and a consumer whenever they like
(`dpdd.common.methods.verification`). All derive the same `Plan`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpdd.common.privacy.accounting import EXACT, Guarantee, calibrate, guarantee
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, compose
from dpdd.common.privacy.privatise import noise_distance
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.wire.request import ReleaseRequest

LEAST_NOISE = 0.25
"""The least σ on a sample. If samples are so rare that δ alone covers them, no noise at all would be (ε, δ)-private."""
ENVELOPE = 1 << 16
"""Bytes of a release beside its payload: names, layout, guarantee, signature."""


@dataclass(frozen=True)
class ArrayType:
    """Dtype and shape of a released array. With `at_most`, there may be fewer rows than the shape says.

    >>> ArrayType("int64", (10, 3)).bytes
    240
    """

    dtype: str
    shape: tuple[int, ...]
    at_most: bool = False

    @property
    def bytes(self) -> int:
        """What its entries take, at most."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {'of at most ' if self.at_most else ''}{self.shape}"


def sums_of(layout: Layout) -> dict[str, ArrayType]:
    """The arrays of noisy sums in `layout`, as `privatise` gives them."""
    return {segment.name: ArrayType("int64", (segment.rows, segment.width)) for segment in layout.segments}


@dataclass(frozen=True)
class Plan:
    """What a release will cost and weigh, known before any record is read.

    `event` and `distance` are those of this release. If it is one of several stages that are reserved together,
    `whole` and `whole_distance` are those of all of them; `guarantee` is always that of the whole. `array_types` are
    the names, dtypes and shapes of all that is sent.
    """

    event: Event
    guarantee: Guarantee
    distance: float
    coordinates: int
    array_types: Mapping[str, ArrayType] = field(default_factory=dict)
    whole: Event | None = None
    whole_distance: float | None = None

    @property
    def bytes(self) -> int:
        """What the arrays of the release take, at most; names and signature come on top."""
        return sum(each.bytes for each in self.array_types.values())


def gaussian_plan(request: ReleaseRequest, layouts: Sequence[Layout], first_share: float | None = None) -> Plan:
    """One Gaussian over the whole layout of each stage, with the least noise that meets the request's (ε, δ).

    Gaussians compose by adding 1/σ²: the first stage has `first_share` of that, the others share the rest; without it
    all have the same share, and the same noise. This holds for stages that were chosen after seeing the answers to
    earlier ones, as each has sensitivity 1 whatever it asks.
    The sampler's distance to ideal noise, over all stages, comes off δ before σ is chosen.
    """
    layout, later = layouts[request.stage], len(layouts) - 1
    if later and first_share is not None and not 0.0 < first_share < 1.0:
        raise ValueError(f"of several stages, the first has a share of the budget between 0 and 1, not {first_share}")
    released = sums_of(layout)
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, layout.coordinates, released)

    def events(sigma: float) -> list[Gaussian]:
        if first_share is None:
            return [Gaussian(sigma)] * len(layouts)
        if not later:
            return [Gaussian(sigma)]
        other = Gaussian(sigma / math.sqrt((1.0 - first_share) / later))
        return [Gaussian(sigma / math.sqrt(first_share)), *[other] * later]

    def whole(sigma: float) -> Event:
        return compose(*events(sigma))

    def distances(sigma: float) -> list[float]:
        return [noise_distance(event, each) for event, each in zip(events(sigma), layouts, strict=True)]

    first = calibrate(whole, request.epsilon, request.delta)
    slack = (1.0 + math.exp(request.epsilon)) * math.fsum(distances(first))
    if slack >= request.delta:
        raise ValueError(
            f"at epsilon {request.epsilon:g} the distance of so much noise to ideal noise costs {slack:.2g}, which is "
            f"more than delta, {request.delta:g}; ask for a smaller epsilon or a larger delta"
        )
    sigma = calibrate(whole, request.epsilon, request.delta - slack)
    guarantee = Guarantee(request.epsilon, request.delta, EXACT)
    event, distance = events(sigma)[request.stage], distances(sigma)[request.stage]
    if not later:
        return Plan(event, guarantee, distance, layout.coordinates, released)
    return Plan(event, guarantee, distance, layout.coordinates, released, whole(sigma), math.fsum(distances(sigma)))


def sampled_plan(
    request: ReleaseRequest, step: Layout, rate: float, steps: int, array_types: Mapping[str, ArrayType]
) -> Plan:
    """One release of `steps` sums with the layout `step`, each over a fresh Poisson sample at `rate`, with the least
    noise that meets the request's (ε, δ); the sampler's distance to ideal noise comes off δ before σ is chosen.
    """
    coordinates = steps * step.coordinates
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, coordinates, array_types)

    def event(sigma: float) -> Event:
        return sampled_event(max(sigma, LEAST_NOISE), rate, steps)

    def distance(sigma: float) -> float:
        return steps * noise_distance(sampled_event(max(sigma, LEAST_NOISE), rate, 1), step)

    sigma = calibrate(event, request.epsilon, request.delta)
    slack = (1.0 + math.exp(request.epsilon)) * distance(sigma)
    if slack >= request.delta:
        raise ValueError(
            f"at epsilon {request.epsilon:g} the distance of so much noise to ideal noise costs {slack:.2g}, which is "
            f"more than delta, {request.delta:g}; ask for fewer sums, a smaller epsilon or a larger delta"
        )
    found = guarantee(event(sigma), request.delta - slack)
    if found.epsilon > request.epsilon:  # most often the slack is so little that it is not
        sigma = calibrate(event, request.epsilon, request.delta - slack)
    promised = Guarantee(request.epsilon, request.delta, found.accountant)
    return Plan(event(sigma), promised, distance(sigma), coordinates, array_types)
