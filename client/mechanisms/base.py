"""The only way from records to something that may leave: the contract of a method's private half, and what all share.

A `Mechanism` has two functions: `plan` says from public facts alone what a release will cost, and `run` reads the
records once and privatises. Defining one checks its signatures, as for the public half (`dpdd.common.methods.base`).
Each module of this folder is one family's private half, and ends with ``MECHANISM = ...``; `mechanism` finds it by the
family's name. The privacy argument (event, sensitivity, neighbours, what is public) stands at the top of each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.methods.base import check_overrides, schemas_of
from dpdd.common.methods.registry import AnyQuery
from dpdd.common.privacy.accounting import EXACT, Guarantee, calibrate
from dpdd.common.privacy.clipping import ClippedSum, Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, compose
from dpdd.common.privacy.privatise import Privatised, noise_distance, privatise
from dpdd.common.progress import Progress
from dpdd.common.randomness import uniforms
from dpdd.common.wire.request import ReleaseRequest

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Plan:
    """What a release will cost and weigh, known before any record is read.

    `event` and `distance` are those of this release. If it is one of several stages that are reserved together,
    `whole` and `whole_distance` are those of all of them; `guarantee` is always that of the whole.
    """

    event: Event
    guarantee: Guarantee
    distance: float
    coordinates: int
    size: int | None = None
    whole: Event | None = None
    whole_distance: float | None = None

    @property
    def bytes(self) -> int:
        """Roughly what will be sent; the noisy sums themselves where no `size` is known."""
        return 8 * self.coordinates if self.size is None else self.size


class Mechanism(ABC, Generic[S]):
    """A method's private half; `S` are its method's settings. It keeps nothing: records are arguments only."""

    settings_schema: ClassVar[type[Settings]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.settings_schema,) = schemas_of(cls, Mechanism)
        check_overrides(cls, Mechanism)

    @abstractmethod
    def plan(self, request: ReleaseRequest, settings: S) -> Plan:
        """The cost of answering `request`, whatever the records are; ConfigError where `run` could not answer it."""

    @abstractmethod
    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: S,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """The answer: records are read once, noise is drawn once, and the event is the plan's."""


def mechanism(method: AnyQuery) -> Mechanism[Any]:
    """The private half of a method, or of another query; TypeError where the two halves do not fit."""
    module = import_module(f"{__package__}.{method.family}")
    half = vars(module).get("MECHANISM")
    if not isinstance(half, Mechanism):
        raise TypeError(f"{module.__name__} has no MECHANISM, so there is no private half of {method.name}")
    if half.settings_schema is not method.settings_schema:
        raise TypeError(f"the halves of {method.name} have different settings")
    return half


def gaussian_plan(request: ReleaseRequest, layouts: Sequence[Layout], first_share: float = 1.0) -> Plan:
    """One Gaussian over the whole layout of each stage, with the least noise that meets the request's (ε, δ).

    Gaussians compose by adding 1/σ²: the first stage has `first_share` of that, the others share the rest. This holds
    for stages that were chosen after seeing the answers to earlier ones, as each has sensitivity 1 whatever it asks.
    The sampler's distance to ideal noise, over all stages, comes off δ before σ is chosen.
    """
    layout, later = layouts[request.stage], len(layouts) - 1
    if later and not 0.0 < first_share < 1.0:
        raise ValueError(f"of several stages, the first has a share of the budget between 0 and 1, not {first_share}")
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, layout.coordinates)

    def events(sigma: float) -> list[Gaussian]:
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
        return Plan(event, guarantee, distance, layout.coordinates)
    return Plan(event, guarantee, distance, layout.coordinates, None, whole(sigma), math.fsum(distances(sigma)))


Contribution = tuple[NDArray[np.float32], Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]]
"""A batch's rows, and the factors of its outer products."""

Contributions = Callable[[NDArray[np.float32], NDArray[np.int64]], Contribution]
"""From the records of a batch and their labels to what they add."""

BATCH = 64
"""Records at a time: more would hardly be faster, and each release tries two batches of noise and fills up its last."""


def privatised_sum(
    records: Records,
    layout: Layout,
    contributions: Contributions,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
    *,
    batch: int = BATCH,
) -> Privatised:
    """One streaming pass: every record's contribution, clipped and summed; then noise, once.

    `contributions` gets the records of a batch and their labels. It always gets a batch of the same shape, padded with
    zeros: a record's contribution must not depend, even in its last bit, on which records happen to be its neighbours,
    or removing one would change the others' too. Where the place in a batch matters, records come one by one.
    """
    total = ClippedSum(layout)
    if not independent_of_batch_position(contributions, (batch, *records.shape), layout.classes):
        batch = 1
    done = 0
    for features, labels in records.batches(batch):
        rows, factors = contributions(*padded(features, labels, batch))
        kept = len(features)
        total.add(rows[:kept], labels, {name: _first(pair, kept) for name, pair in factors.items()})
        done += kept
        progress("summing statistics", done, len(records))
    progress("adding noise", 0, 1)
    assert isinstance(plan.event, Gaussian | NonPrivate)
    return privatise(total, plan.event, entropy)


def padded(
    features: NDArray[np.float32], labels: NDArray[np.int64], batch: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The records and labels followed by zeros, so that there are `batch` of them."""
    room = batch - len(features)
    return np.pad(features, [(0, room)] + [(0, 0)] * (features.ndim - 1)), np.pad(labels, (0, room))


def independent_of_batch_position(
    contributions: Contributions,
    shape: tuple[int, ...],
    classes: int,
) -> bool:
    """Whether contributions are the same to the last bit at any place in a batch; tried on noise, which is public.

    Some matrix products round differently at the edges of their tiles; which ones do depends on sizes and processor.
    """
    images = uniforms(0, "records to try", math.prod(shape)).reshape(shape).astype(np.float32)
    labels = np.arange(shape[0], dtype=np.int64) % classes
    rows, factors = contributions(images.copy(), labels.copy())
    moved, others = contributions(np.roll(images, 1, axis=0), np.roll(labels, 1))
    pairs = [(rows, moved), *((a, b) for name in factors for a, b in zip(factors[name], others[name], strict=True))]
    return all(np.array_equal(one, np.roll(other, -1, axis=0), equal_nan=True) for one, other in pairs)


def _first(
    pair: tuple[NDArray[np.float32], NDArray[np.float32]], count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The first rows of both factors; one and the same array stays so, which saves work."""
    left = pair[0][:count]
    return (left, left) if pair[0] is pair[1] else (left, pair[1][:count])
