"""What each canary adds to each clean sum of a release, as an attacker computes it: from public seeds and the canary.

A mechanism is run on the canaries alone, as it is, and what it hands to clean sums is kept, record by record, after the
clip. So an audit knows no method: one that clips, sums up and privatises is attacked by the contributions that it
makes. Samples are of everybody here, since an attacker does not know who is sampled, only what each would add.

That is for canaries, which an audit made itself, in a process that does nothing else: `recorded` takes no release, and
the noise of a release is none of its business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records.records import Records
from dpdd.common.methods.registry import query
from dpdd.common.methods.request_plan import settings_of
from dpdd.common.privacy import sampling
from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    ClippedSum,
    Layout,
    Segment,
    clip_to_grid,
    factor_to_grid,
)
from dpdd.common.privacy.counting import CountedSum, OneHot
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.factored import FactoredSum, Factors
from dpdd.common.progress import silent
from dpdd.common.wire.request import ReleaseRequest

Sums = Mapping[str, NDArray[Any]]
Pair = tuple[NDArray[np.floating], NDArray[np.floating]]


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each of some records adds to one clean sum, in units of the sensitivity.

    `rows` are those of the `plain` segments side by side, `products` the factors of the outer products, `dense` the
    numbers of other segments.
    """

    plain: tuple[Segment, ...]
    labels: NDArray[np.int64]
    rows: NDArray[np.float32]
    products: Mapping[str, Pair] = field(default_factory=dict)
    dense: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def without(self, names: Sequence[str]) -> Contributions:
        """The same but for some plain segments, which are not looked at."""
        rows = self.rows.copy()
        for segment, columns in self._segments():
            if segment.name in names:
                rows[:, columns] = 0.0
        return replace(self, rows=rows)

    def _segments(self) -> Iterator[tuple[Segment, slice]]:
        """The plain segments, and where they lie in a row."""
        start = 0
        for segment in self.plain:
            yield segment, slice(start, start + segment.width)
            start += segment.width

    def matched(self, sums: Sums) -> NDArray[np.float64]:
        """The inner product of `sums` with each record's contribution."""
        found = np.zeros(len(self))
        for segment, columns in self._segments():
            if segment.name not in sums:
                continue
            whole = np.asarray(sums[segment.name], np.float32)
            for label in np.unique(self.labels):
                own = self.labels == label
                found[own] += self.rows[own, columns] @ whole[list(segment.rows_of[label])].sum(axis=0)
        for name, (left, right) in self.products.items():
            whole = np.asarray(sums[name], np.float32).reshape(left.shape[1], right.shape[1])
            found += np.einsum("ij,ij->i", left @ whole, right)
        for name, values in self.dense.items():
            found += values @ np.asarray(sums[name], np.float32).ravel()
        return found

    def total(self, weights: NDArray[np.floating]) -> dict[str, NDArray[np.float64]]:
        """The sum of all contributions, each times its weight."""
        weighted = np.asarray(weights, np.float32)
        sums: dict[str, NDArray[np.float64]] = {}
        for segment, columns in self._segments():
            whole = np.zeros((segment.rows, segment.width))
            for label in np.unique(self.labels):
                own = self.labels == label
                whole[list(segment.rows_of[label])] += weighted[own] @ self.rows[own, columns]
            sums[segment.name] = whole
        for name, (left, right) in self.products.items():
            sums[name] = (np.float64(1.0) * ((left * weighted[:, None]).T @ right)).reshape(1, -1)
        for name, values in self.dense.items():
            sums[name] = np.float64(1.0) * (weighted @ values)[None]
        return sums

    def squared_norms(self) -> NDArray[np.float64]:
        """Of each contribution: at most 1."""
        found = np.zeros(len(self))
        for segment, columns in self._segments():
            copies = np.array([len(rows) for rows in segment.rows_of])[self.labels]
            found += copies * np.square(self.rows[:, columns], dtype=np.float64).sum(axis=1)
        for left, right in self.products.values():
            found += np.square(left, dtype=np.float64).sum(axis=1) * np.square(right, dtype=np.float64).sum(axis=1)
        for values in self.dense.values():
            found += np.square(values, dtype=np.float64).sum(axis=1)
        return found


def recorded(records: Records, request: ReleaseRequest) -> list[Contributions]:
    """The contributions of `records` to each clean sum that answering `request` makes, in their order."""
    with _recording() as made:
        _run(records, request)
    return made


def clean_sums(records: Records, request: ReleaseRequest) -> list[dict[str, NDArray[np.float64]]]:
    """The clean sums over all of `records`, in units of the sensitivity: what an auditor knows who knows them."""
    taken: list[dict[str, NDArray[np.float64]]] = []

    def take(total: ClippedSum) -> dict[str, NDArray[np.int64]]:
        sums = original(total)
        taken.append({name: array / FIXED_POINT_ONE for name, array in sums.items()})
        return sums

    original = ClippedSum._take
    with mock.patch.object(ClippedSum, "_take", take), mock.patch.object(sampling, "poisson_sample", _everybody):
        _run(records, request)
    return taken


def _run(records: Records, request: ReleaseRequest) -> None:
    """The mechanism as it is, without noise and as a simulation: what it makes is thrown away."""
    clean = replace(request, epsilon=math.inf)
    settings = settings_of(clean)
    asked = query(request.method)
    mechanism(asked).run(records, clean, settings, asked.plan(clean, settings), SeededEntropy(0), silent)


def _everybody(records: int, _rate: float, _entropy: object) -> NDArray[np.int64]:
    return np.arange(records, dtype=np.int64)


@contextmanager
def _recording() -> Iterator[list[Contributions]]:
    """Notes what clean sums are given while it lasts, and lists it in the order in which they are privatised."""
    made: list[Contributions] = []
    parts: dict[int, list[Contributions]] = {}

    def note(total: ClippedSum, part: Contributions) -> None:
        parts.setdefault(id(total), []).append(part)

    def add(total: ClippedSum, rows: Any, labels: Any, factors: Mapping[str, Pair] | None = None) -> None:
        note(total, _clipped(total.layout, rows, labels, factors or {}))
        originals["add"](total, rows, labels, factors)

    def count(total: CountedSum, rows: OneHot, labels: Any, factors: Mapping[str, OneHot] | None = None) -> None:
        wide = {}
        for segment in total.layout.products:
            own, (left, right) = (factors or {})[segment.name], segment.factors or (0, 0)
            wide[segment.name] = (_wide(_at_class(own, labels, right), left), _wide(own, right))
        note(total, _clipped(total.layout, _wide(rows, total.layout.width), labels, wide))
        originals["count"](total, rows, labels, factors)

    def add_factors(total: FactoredSum, members: Any, factors: Factors, beside: Any = None) -> None:
        note(total, _of_factors(total, len(members), factors, beside))
        originals["add_factors"](total, members, factors, beside)

    def take(total: ClippedSum) -> dict[str, NDArray[np.int64]]:
        made.append(_joined(parts.pop(id(total))))
        return originals["_take"](total)

    originals: dict[str, Any] = {
        "add": ClippedSum.add,
        "count": CountedSum.count,
        "add_factors": FactoredSum.add_factors,
        "_take": ClippedSum._take,
    }
    with (
        mock.patch.object(ClippedSum, "add", add),
        mock.patch.object(ClippedSum, "_take", take),
        mock.patch.object(CountedSum, "count", count),
        mock.patch.object(FactoredSum, "add_factors", add_factors),
        mock.patch.object(sampling, "poisson_sample", _everybody),
    ):
        yield made


def _clipped(layout: Layout, rows: Any, labels: Any, factors: Mapping[str, Pair]) -> Contributions:
    """As `ClippedSum.add` clips them."""
    rows, labels = np.asarray(rows), np.asarray(labels, np.int64)
    odd = ~np.all([np.isfinite(each).all(axis=1) for pair in [(rows,), *factors.values()] for each in pair], axis=0)
    plain = (clip_to_grid(rows, labels, layout) / FIXED_POINT_ONE).astype(np.float32)
    plain[odd] = 0.0
    products = {}
    for segment in layout.products:
        pair = [factor_to_grid(np.asarray(each), segment, side) for side, each in enumerate(factors[segment.name])]
        for each in pair:
            each[odd] = 0.0
        unit = math.sqrt(FIXED_POINT_ONE)
        products[segment.name] = ((pair[0] / unit).astype(np.float32), (pair[1] / unit).astype(np.float32))
    return Contributions(layout.plain, labels, plain, products)


def _wide(rows: OneHot, width: int) -> NDArray[np.float64]:
    """One-hot rows with their zeros."""
    wide = np.zeros((len(rows.places), width))
    np.put_along_axis(wide, rows.places, np.array(rows.values)[None], axis=1)
    return wide


def _at_class(rows: OneHot, labels: NDArray[np.int64], width: int) -> OneHot:
    """The same row at the record's class."""
    return OneHot(rows.places + (np.asarray(labels) * width)[:, None], rows.values)


def _of_factors(total: FactoredSum, count: int, factors: Factors, beside: Any) -> Contributions:
    """p ⊗ x + M V, of the whole numbers that are added."""
    basis, first = total._basis, total.layout.segments[0]
    grid = basis.to_grid(factors, total._bound)
    p, mixing, x = (each[:count].double() for each in (grid.left, grid.mixing, grid.right))
    whole = (p[:, :, None] * x[:, None, :] + mixing @ basis.rows.double()).flatten(1) / FIXED_POINT_ONE
    dense = {first.name: whole.numpy().astype(np.float32)}
    if beside is None:
        rows, labels = np.zeros((count, 0), np.float32), np.zeros(count, np.int64)
    else:
        labels = np.asarray(beside[1][:count], np.int64)
        rows = (clip_to_grid(beside[0][:count], labels, total.layout) / FIXED_POINT_ONE).astype(np.float32)
    plain = tuple(segment for segment in total.layout.plain if segment.name != first.name)
    return Contributions(plain, labels, rows, {}, dense)


def _joined(parts: Sequence[Contributions]) -> Contributions:
    first = parts[0]
    return Contributions(
        first.plain,
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.rows for part in parts]),
        {
            name: tuple(np.concatenate([part.products[name][side] for part in parts]) for side in (0, 1))  # type: ignore[misc]
            for name in first.products
        },
        {name: np.concatenate([part.dense[name] for part in parts]) for name in first.dense},
    )
