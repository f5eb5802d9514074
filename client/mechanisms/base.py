"""The only way from records to something that may leave: the contract of a method's private half, and what all share.

A `Mechanism` has one function: `run` reads the records once and privatises, as the public half planned it (`Query.plan`
in `dpdd.common.methods.base`). Defining one checks its signature, as for the public half.
Each module of this folder is one family's private half, and ends with ``MECHANISM = ...``; `mechanism` finds it by the
family's name. The privacy argument (event, sensitivity, neighbours, what is public) stands at the top of each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.methods.base import check_overrides, schemas_of
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.registry import AnyQuery
from dpdd.common.privacy.clipping import ClippedSum, Layout
from dpdd.common.privacy.counting import BLOCK, CountedSum, OneHot
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate
from dpdd.common.privacy.privatise import Privatised, privatise
from dpdd.common.privacy.sampling import SampledSum
from dpdd.common.progress import Progress
from dpdd.common.randomness import uniforms
from dpdd.common.wire.quantise import quantise
from dpdd.common.wire.request import ReleaseRequest

S = TypeVar("S", bound=Settings)


class Mechanism(ABC, Generic[S]):
    """A method's private half; `S` are its method's settings. It keeps nothing: records are arguments only."""

    settings_schema: ClassVar[type[Settings]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.settings_schema,) = schemas_of(cls, Mechanism)
        check_overrides(cls, Mechanism)

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


Contribution = tuple[NDArray[np.float32], Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]]
"""A batch's rows, and the factors of its outer products."""

Contributions = Callable[[NDArray[np.float32], NDArray[np.int64]], Contribution]
"""From the records of a batch and their labels to what they add."""

BATCH = 64
"""Records at a time: more would hardly be faster, and each release tries two batches of noise and fills up its last."""


@dataclass(frozen=True)
class Embedding:
    """What a public network makes of each record, whatever stage asks: rows that may be kept for the next (`Kept`).

    `of` gives a batch's rows; `key` says all that they depend on beside the records, for as long as the process lives.
    """

    of: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    key: str

    @classmethod
    def asked(
        cls, request: ReleaseRequest, of: Callable[[NDArray[np.float32]], NDArray[np.float32]], *more: object
    ) -> Embedding:
        """That of a request: method, settings, backbone and seed are in the id of its first stage; `more` is the rest.

        Networks round differently on another number of threads.
        """
        import torch

        return cls(of, " ".join(map(str, (request.first_stage().id, torch.get_num_threads(), *more))))


def privatised_sum(
    records: Records,
    layout: Layout,
    contributions: Contributions,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
    *,
    batch: int = BATCH,
    embedding: Embedding | None = None,
) -> Privatised:
    """One streaming pass: every record's contribution, clipped and summed; then noise, once.

    `contributions` gets the records of a batch and their labels. It always gets a batch of the same shape, padded with
    zeros: a record's contribution must not depend, even in its last bit, on which records happen to be its neighbours,
    or removing one would change the others' too. Where the place in a batch matters, records come one by one.

    With an `embedding`, `contributions` gets that in place of the records. It is computed in the first stage and, where
    the records may keep it, read in later ones, which is bit for bit the same and saves the network.
    """
    total = ClippedSum(layout)

    def from_records(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        return contributions(features if embedding is None else embedding.of(features), labels)

    if not independent_of_batch_position(from_records, (batch, *records.shape), layout.classes):
        batch = 1
    batches = records.batches(batch) if embedding is None else embedded_batches(records, embedding, batch)
    done = 0
    for features, labels in batches:
        kept = len(features)
        rows, factors = contributions(*padded(features, labels, batch))
        total.add(rows[:kept], labels, {name: _first(pair, kept) for name, pair in factors.items()})
        done += kept
        progress("summing statistics", done, len(records))
    progress("adding noise", 0, 1)
    assert isinstance(plan.event, Gaussian | NonPrivate)
    return privatise(total, plan.event, entropy)


def embedded_batches(
    records: Records, embedding: Embedding, batch: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """The embedding of all records in order, `batch` at a time, and their labels; what it takes is kept, if it may be.

    Records whose embedding is kept are not read.
    """
    found = None if records.kept is None else records.kept.find(f"{embedding.key} {batch}")
    if found is not None:
        for start in range(0, len(records), batch):
            part = slice(start, min(start + batch, len(records)))
            yield found[part], records.labels[part]
        return
    keeping = None
    for features, labels in records.batches(batch):
        rows = embedding.of(padded(features, labels, batch)[0])[: len(features)]
        if records.kept is not None and keeping is None:
            keeping = records.kept.begin(f"{embedding.key} {batch}", len(records), rows.shape[1])
        if keeping is not None:
            keeping.add(rows)
        yield rows, labels


def add_sample(total: SampledSum, records: Records, contributions: Contributions, batch: int) -> None:
    """Add every member of the sample, in batches of one shape: nobody's contribution depends on who else is in."""
    members = total.members
    for start in range(0, len(members), batch):
        part = members[start : start + batch]
        labels = records.labels[part]
        rows, _ = contributions(*padded(records.read(part), labels, batch))
        total.add_members(part, rows[: len(part)], labels)


def stacked(
    arrays: Mapping[str, NDArray], sums: str, counts: str, pieces: int, *, short: bool
) -> Mapping[str, NDArray]:
    """The `numbered` pieces of one release: their sums one below the other, in 16 bits if `short`, and their counts
    added up and divided by √pieces, so that the noise in them is that of one piece. After the noise: post-processing.
    """
    numbers = range(pieces)
    total = np.sum([arrays[f"{number} {counts}"] for number in numbers], axis=0)
    together = {
        sums: np.concatenate([arrays[f"{number} {sums}"] for number in numbers]),
        counts: np.rint(total / math.sqrt(pieces)).astype(np.int64),
    }
    return quantise(together, sums) if short else together


OneHotContributions = Callable[
    [NDArray[np.float32], NDArray[np.int64]],
    tuple[OneHot, NDArray[np.int64], Mapping[str, OneHot]],
]
"""From the rows of a block and their labels to where they are counted: only of those that are counted at all."""


def privatised_counts(
    records: Records,
    layout: Layout,
    contributions: OneHotContributions,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """The same for one-hot contributions, which are counted: whole numbers, so that no block is padded."""
    total = CountedSum(layout)
    done = 0
    for rows, labels in records.batches(BLOCK):
        total.count(*contributions(rows, labels))
        done += len(rows)
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
    Rows of a table are codes: of noise between them there would be one kind of row, or none that adds anything.
    """
    records = uniforms(0, "records to try", math.prod(shape)).reshape(shape).astype(np.float32)
    if len(shape) == 2:
        records = np.floor(2.0 * records)
    labels = np.arange(shape[0], dtype=np.int64) % classes
    rows, factors = contributions(records.copy(), labels.copy())
    moved, others = contributions(np.roll(records, 1, axis=0), np.roll(labels, 1))
    pairs = [(rows, moved), *((a, b) for name in factors for a, b in zip(factors[name], others[name], strict=True))]
    return all(np.array_equal(one, np.roll(other, -1, axis=0), equal_nan=True) for one, other in pairs)


def _first(
    pair: tuple[NDArray[np.float32], NDArray[np.float32]], count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The first rows of both factors; one and the same array stays so, which saves work."""
    left = pair[0][:count]
    return (left, left) if pair[0] is pair[1] else (left, pair[1][:count])
