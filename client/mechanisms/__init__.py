"""The only way from records to something that may leave.

Each module here is one method's private half, with two functions:

- ``plan(request, settings) -> Plan`` says what the release will cost, from public facts alone;
- ``run(records, request, settings, plan, entropy, progress) -> Privatised`` reads the records once and privatises.

The privacy argument (event, sensitivity, neighbours, what is public) stands at the top of each module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpdd.client.records.records import Records
from dpdd.common.methods import Method
from dpdd.common.privacy.accounting import EXACT, Guarantee, calibrate, gaussian_releases
from dpdd.common.privacy.clipping import ClippedSum, Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate
from dpdd.common.privacy.privatise import Privatised, noise_distance, privatise
from dpdd.common.wire.request import ReleaseRequest

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and of how much."""


@dataclass(frozen=True)
class Plan:
    """What a release will cost and weigh, known before any record is read."""

    event: Event
    guarantee: Guarantee
    distance: float
    coordinates: int
    size: int | None = None

    @property
    def bytes(self) -> int:
        """Roughly what will be sent; the noisy sums themselves where no `size` is known."""
        return 8 * self.coordinates if self.size is None else self.size


class Mechanism(Protocol):
    """What a module in this folder provides."""

    def plan(self, request: ReleaseRequest, settings: Any) -> Plan:
        """The cost of answering `request`."""
        ...

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: Any,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """The answer."""
        ...


def mechanism(method: Method) -> Mechanism:
    """The private half of `method`."""
    module: Any = import_module(f"dpdd.client.mechanisms.{method.module}")
    return module  # type: ignore[no-any-return]


def gaussian_plan(request: ReleaseRequest, layout: Layout) -> Plan:
    """One Gaussian over the whole layout, with the least noise that meets the request's (ε, δ).

    The sampler's distance to ideal noise comes off δ before σ is chosen.
    """
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, layout.coordinates)
    first = calibrate(gaussian_releases(1), request.epsilon, request.delta)
    slack = (1.0 + math.exp(request.epsilon)) * noise_distance(Gaussian(first), layout)
    event = Gaussian(calibrate(gaussian_releases(1), request.epsilon, request.delta - slack))
    guarantee = Guarantee(request.epsilon, request.delta, EXACT)
    return Plan(event, guarantee, noise_distance(event, layout), layout.coordinates)


def privatised_sum(
    records: Records,
    layout: Layout,
    contributions: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
    *,
    batch: int = 250,
) -> Privatised:
    """One streaming pass: every record's contribution, clipped and summed; then noise, once.

    `contributions` always gets a batch of the same shape, padded with zeros: a record's contribution must not depend,
    even in its last bit, on which records happen to be its neighbours.
    """
    total = ClippedSum(layout)
    done = 0
    for features, labels in records.batches(batch):
        padded = np.zeros((batch, *features.shape[1:]), dtype=np.float32)
        padded[: len(features)] = features
        total.add(contributions(padded)[: len(features)], labels)
        done += len(features)
        progress("summing statistics", done, len(records))
    progress("adding noise", 0, 1)
    assert isinstance(plan.event, Gaussian | NonPrivate)
    return privatise(total, plan.event, entropy)
