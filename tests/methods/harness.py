"""What the contract test does to a method: clean sums of any records, and the checks that every method must pass.

Checks take a `Case` and raise AssertionError. `ClippedSum._take`, the only exit of clean sums, is watched, and who is
in a Poisson sample is decided by the number of a record and of the draw, so that neighbours get the same sample.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client import answering
from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.common.config import Settings
from dpdd.common.data.table.columns import Categorical, Date, Numeric, Ordinal
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.methods.base import DataKind, Method, RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.registry import AnyMethod, AnyQuery, query
from dpdd.common.methods.request_plan import images_made, plan_of
from dpdd.common.privacy import discrete_gaussian, sampling
from dpdd.common.privacy.accounting import guarantee, rdp_guarantee
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, ClippedSum
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from dpdd.common.privacy.events import NonPrivate, compose, gaussian_mu, parts
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import silent
from dpdd.common.synthesis.arrow_table import arrow_table
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import Product, ReleasedModel
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.wire.answer import Answer, Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.aggregation.plausibility import Design, implausible, noisy_counts
from dpdd.server.aggregation.rules import aggregate
from dpdd.server.aggregation.union import opened, union
from tests.server.releases import as_asked

CLASSES = ("ant", "bee", "cat", "dog")
DELTA = 1e-5
TABLE = TableSchema(
    label="kind",
    columns=(
        Numeric(name="age", low=0, high=99, bins=10, integer=True, missing=True),
        Categorical(name="sex", categories=("f", "m")),
        Categorical(name="kind", categories=CLASSES),
        Numeric(name="dose", low=0.1, high=100, bins=6, scale="log"),
        Date(name="day", first=datetime.date(2001, 1, 1), last=datetime.date(2024, 12, 31), bins=8),
        Ordinal(name="pain", categories=("none", "some", "much"), missing=True),
        Categorical(name="ward", categories=("heart", "lung", "rest"), other="rest", missing=True),
    ),
)
"""A column of every type, and a label among them."""
Sums = list[dict[str, NDArray[np.int64]]]
"""What was taken out of every clean sum, one after the other."""


@dataclass(frozen=True, eq=False)
class Case:
    """A method at settings that take seconds."""

    method: str
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    synthesis: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 28, 28)
    private: bool = True  # False for a method that is not
    first_input: Mapping[str, NDArray] = field(default_factory=dict)  # arrays of the first request, where it has some
    table: TableSchema | None = None  # of a table, whose label has the classes; then `shape` is its own
    adaptive: bool = False  # a later sum of one answer depends on earlier noisy ones, as the steps of DP-SGD do

    def __str__(self) -> str:
        return f"{self.method}-{self.variant}" if self.variant else self.method

    @property
    def entry(self) -> Any:
        """A method, or another query: what is asked of both is here, what is asked of methods says so."""
        entry: AnyMethod | AnyQuery = query(self.method)
        return entry

    @property
    def epsilon(self) -> float:
        return 1.0 if self.private else math.inf

    @classmethod
    def of_table(cls, method: str, variant: str = "table", **values: Any) -> Case:
        """A method at records of `TABLE`."""
        return cls(method, variant, shape=TABLE.shape, table=TABLE, **values)

    @property
    def run(self) -> RunDescription:
        return RunDescription(CLASSES, self.shape, public_seed=5, images_per_class=2, table=self.table)

    def records(self, count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """So many of them, with their labels."""
        return images(count, self.shape, seed) if self.table is None else rows(count, self.table, seed)

    def hostile(self) -> list[NDArray[np.float32]]:
        """Records that somebody would choose who wants to be seen."""
        return hostile(self.shape) + ([] if self.table is None else hostile_rows(self.table))

    def values(self) -> Settings:
        """The settings as a coordinator would ask with them."""
        chosen = self.entry
        settings = chosen.settings(self.settings)
        if not isinstance(chosen, Method):
            return settings
        return chosen.resolve(settings, self.run, self.epsilon, DELTA)

    def request(self, epsilon: float, kind: Kind | None = None) -> ReleaseRequest:
        if kind is None:
            kinds = self.entry.release_kinds
            kind = Kind.STATISTICS if Kind.STATISTICS in kinds else next(iter(kinds))
        own: dict[str, Any] = self.values().on_wire()
        if kind is Kind.DISTILLED_SET:
            synthesis = self.entry.synthesis_settings(self.synthesis).on_wire()
            own = {"method": own, "synthesis": synthesis, "images_per_class": 2}
        return ReleaseRequest(
            run="contract",
            method=self.method,
            settings=own,
            epsilon=epsilon,
            delta=DELTA,
            classes=CLASSES,
            shape=self.shape,
            public_seed=5,
            kind=kind,
            stage_input=self.first_input,
            table=self.table,
        )


# Records, and their neighbours


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Smooth blobs by class, so that classes differ; or rows for a table."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = generator.integers(0, len(CLASSES) - 1, count)  # nobody has the last class
    features = 0.3 * generator.random((count, *shape))
    features[np.arange(count), ..., labels % shape[-1]] += 0.6
    return features.astype(np.float32), labels.astype(np.int64)


def rows(count: int, table: TableSchema, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of codes that depend on the class; some cells are missing."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = generator.integers(0, len(CLASSES) - 1, count)  # nobody has the last class
    codes = [(generator.integers(0, column.size, count) + labels) % column.size for column in table.features]
    return np.stack(codes, axis=1).astype(np.float32), labels.astype(np.int64)


def hostile_rows(table: TableSchema) -> list[NDArray[np.float32]]:
    """Rows of codes at the ends of what there is, and of codes that there are not."""
    last = np.array([column.size - 1 for column in table.features], np.float32)
    return [0 * last, last, last + 1, -last - 1, last / 2 + 0.25, 1e9 * last]


def hostile(shape: tuple[int, ...]) -> list[NDArray[np.float32]]:
    """Records that somebody would choose who wants to be seen."""
    board = np.indices(shape).sum(axis=0) % 2
    spike = np.zeros(shape)
    spike.flat[0] = 1.0
    values = [np.zeros(shape), np.ones(shape), board, spike, 1e4 * board - 5e3, np.full(shape, 3e38), -1e30 * spike]
    return [value.astype(np.float32) for value in [*values, np.full(shape, 1e-40)]]


@contextmanager
def watched(ids: Sequence[int], *, empty: bool = False) -> Iterator[Sums]:
    """Collects what leaves clean sums; with `empty` they leave as zeros, whoever is in them."""
    taken: Sums = []
    draws = iter(range(1 << 30))

    def take(total: ClippedSum) -> dict[str, NDArray[np.int64]]:
        sums = original(total)
        taken.append({name: array.copy() for name, array in sums.items()})
        return {name: np.zeros_like(array) for name, array in sums.items()} if empty else sums

    def sample(records: int, rate: float, _entropy: object) -> NDArray[np.int64]:
        assert records == len(ids), "the sample is over all records of the silo"
        draw = next(draws)
        words = [hashlib.sha256(f"{draw} {number}".encode()).digest() for number in ids]
        member = [int.from_bytes(word[:8], "little") < rate * 2.0**64 for word in words]
        return np.flatnonzero(np.array(member, dtype=bool)).astype(np.int64)

    original = ClippedSum._take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClippedSum, "_take", take)
        patch.setattr(sampling, "poisson_sample", sample)
        yield taken


@dataclass(frozen=True, eq=False)
class Trial:
    """A case with the inputs of all its stages, which are public, so that they are the same for all neighbours."""

    case: Case
    inputs: tuple[Mapping[str, NDArray], ...]

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, case: Case) -> Trial:
        features, labels = case.records(24)
        chosen, settings, inputs = case.entry, case.values(), [dict(case.first_input)]
        statistics: list[Statistics] = []
        for stage in range(1, chosen.stages(settings)):
            answer = cls(case, tuple(inputs)).answer(features, labels, range(24), stage - 1, math.inf)
            statistics.append(of_one_silo(answer.arrays, answer.event, inputs[-1]))
            inputs.append(dict(chosen.stage_input(statistics, settings, case.run)))
        return cls(case, tuple(inputs))

    @property
    def stages(self) -> range:
        return range(len(self.inputs))

    def request(self, stage: int, epsilon: float) -> ReleaseRequest:
        return replace(self.case.request(epsilon), stage=stage, stage_input=self.inputs[stage])

    def plan(self, stage: int, epsilon: float) -> Plan:
        return self.case.entry.plan(self.request(stage, epsilon), self.case.values())

    def answer(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int64],
        ids: Sequence[int],
        stage: int,
        epsilon: float,
        entropy: SeededEntropy | SystemEntropy | None = None,
    ) -> Privatised:
        request, settings = self.request(stage, epsilon), self.case.values()
        half, plan = mechanism(self.case.entry), self.plan(stage, epsilon)
        return half.run(
            Records(features.copy(), labels.copy()), request, settings, plan, entropy or SeededEntropy(1), silent
        )

    def sums(self, features: NDArray[np.float32], labels: NDArray[np.int64], ids: Sequence[int], stage: int) -> Sums:
        """The clean sums of a stage over these records; of an adaptive one at the same earlier answers for everybody.

        That is what adaptive composition asks for: each sum has its sensitivity given what came out before it.
        """
        with watched(ids, empty=self.case.adaptive) as taken:
            self.answer(features, labels, ids, stage, math.inf)
        return taken


def distances(one: Sums, other: Sums) -> list[float]:
    """How far apart the clean sums are, each in units of the stated sensitivity."""
    assert len(one) == len(other), "neighbours have as many sums"
    return [
        math.sqrt(sum(float(np.square((a[name] - b[name]).astype(np.float64)).sum()) for name in a)) / FIXED_POINT_ONE
        for a, b in zip(one, other, strict=True)
    ]


def same(one: Sums, other: Sums) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def added(parts_: Sequence[Sums]) -> Sums:
    """Sums of several silos, added up."""
    return [
        {name: np.sum([part[number][name] for part in parts_], axis=0) for name in parts_[0][number]}
        for number in range(len(parts_[0]))
    ]


# The checks


def check_neighbours(case: Case) -> None:
    """One record more, random or chosen to be seen, moves every clean sum by at most the stated sensitivity."""
    trial = Trial.of(case)
    features, labels = case.records(9, seed=3)
    for stage in trial.stages:
        without = trial.sums(features, labels, range(9), stage)
        extra, _ = case.records(2, seed=4)
        for number, record in enumerate([*extra, *case.hostile()]):
            label = np.int64(number % len(CLASSES))
            place = number % 10  # first, last, and in between
            more = np.insert(features, place, record, axis=0)
            ids = [*range(9)]
            ids.insert(place, 99)
            with_it = trial.sums(more, np.insert(labels, place, label), ids, stage)
            worst = max(distances(with_it, without))
            assert worst <= 1.0, (
                f"record {number} at place {place} moves stage {stage} by {worst} times the sensitivity"
            )


def check_split_and_order(case: Case) -> None:
    """Records split over silos, or in another order, give the same sums to the last bit."""
    trial = Trial.of(case)
    features, labels = case.records(21, seed=5)
    for stage in trial.stages:
        whole = trial.sums(features, labels, range(21), stage)
        cuts = [range(0), range(4), range(4, 5), range(5, 21)]  # a silo may be empty, or have one record
        silos = [trial.sums(features[list(part)], labels[list(part)], part, stage) for part in cuts]
        assert same(added(silos), whole), f"stage {stage}: the sums of silos are not the sum over all records"
        order = np.random.Generator(np.random.PCG64(1)).permutation(21)
        assert same(trial.sums(features[order], labels[order], order.tolist(), stage), whole), "order matters"


def check_not_finite(case: Case) -> None:
    """A record with NaN or infinity in it contributes exactly nothing."""
    trial = Trial.of(case)
    features, labels = case.records(6, seed=6)
    for stage in trial.stages:
        without = trial.sums(features, labels, range(6), stage)
        for value in (np.nan, np.inf, -np.inf):
            for everywhere in (False, True):
                record = np.full(case.shape, value, np.float32) if everywhere else features[0].copy()
                record.flat[7 % record.size] = value
                more = np.concatenate([features, record[None]])
                with_it = trial.sums(more, np.append(labels, 1), [*range(6), 77], stage)
                assert same(with_it, without), f"a record with {value} contributes to stage {stage}"


def check_small_silos(case: Case) -> None:
    """No record, one record, and classes without any: all are answered, with noise, and finite."""
    trial = Trial.of(case)
    for count in (0, 1, 5):
        features, labels = case.records(count, seed=7)
        for stage in trial.stages:
            answer = trial.answer(features, labels, range(count), stage, case.epsilon)
            assert all(np.isfinite(array).all() for array in answer.arrays.values())


def check_plan(case: Case) -> None:
    """What is planned has the promised guarantee, by two accountants, and stages add up to what is reserved."""
    trial = Trial.of(case)
    plans = [trial.plan(stage, case.epsilon) for stage in trial.stages]
    if not case.private:
        assert all(plan.event == NonPrivate() for plan in plans)
        return
    events = compose(*(plan.event for plan in plans))
    distance = math.fsum(plan.distance for plan in plans)
    for plan in plans:
        assert plan.guarantee.epsilon == case.epsilon and plan.guarantee.delta == DELTA
        assert (plan.whole or plan.event) == events, "the stages' events are not what is reserved for all of them"
        assert (plan.distance if plan.whole_distance is None else plan.whole_distance) >= distance * (1.0 - 1e-12)
    left = DELTA - (1.0 + math.exp(case.epsilon)) * distance
    assert left > 0.0 and guarantee(events, left).epsilon <= case.epsilon * (1.0 + 1e-9)
    assert guarantee(events, left).epsilon > 0.9 * case.epsilon, "far more noise than was asked for"
    if gaussian_mu(events) is not None:  # sampled events take the Rényi accountant minutes
        assert case.epsilon <= rdp_guarantee(events, DELTA).epsilon < 1.3 * case.epsilon, "two accountants disagree"


def check_event(case: Case) -> None:
    """The event that ran is the planned one, and each number of each sum got that event's noise exactly once."""
    trial = Trial.of(case)
    features, labels = case.records(8, seed=8)
    for stage in trial.stages:
        plan = trial.plan(stage, case.epsilon)
        drawn: list[tuple[Any, int]] = []
        entropy = SystemEntropy() if case.private else SeededEntropy(2)
        with watched(range(8)) as taken, pytest.MonkeyPatch.context() as patch:
            patch.setattr(discrete_gaussian, "sample", partial(_noted, discrete_gaussian.sample, drawn))
            answer = trial.answer(features, labels, range(8), stage, case.epsilon, entropy)
        assert answer.event == plan.event and answer.distance <= plan.distance, "another event ran than was planned"
        assert answer.releasable == case.private, "noise came from another source than the silo's entropy"
        numbers = sum(array.size for sums in taken for array in sums.values())
        assert sum(count for _, count in drawn) == (numbers if case.private else 0), "noise is not drawn once"
        sigmas = {part.sigma for part in parts(plan.event) if not isinstance(part, NonPrivate)}
        scales = {discrete_gaussian.scale_for(sigma * FIXED_POINT_ONE) for sigma in sigmas}
        assert {scale for scale, _ in drawn} == (scales if case.private else set()), "the noise has another width"


def _noted(sample: Any, drawn: list[tuple[Any, int]], scale: Any, count: int, entropy: Any) -> Any:
    drawn.append((scale, count))
    return sample(scale, count, entropy)


def check_fresh_noise(case: Case) -> None:
    """Two runs over the same records have different noise, and a repeatable source repeats."""
    if not case.private:
        return
    trial = Trial.of(case)
    features, labels = case.records(8, seed=8)

    def bytes_of(entropy: SeededEntropy | SystemEntropy) -> bytes:
        arrays = trial.answer(features, labels, range(8), 0, case.epsilon, entropy).arrays
        return b"".join(arrays[name].tobytes() for name in sorted(arrays))

    assert bytes_of(SystemEntropy()) != bytes_of(SystemEntropy()), "noise repeats itself"
    assert bytes_of(SeededEntropy(3)) == bytes_of(SeededEntropy(3)), "noise does not come from the silo's entropy"


def check_no_side_channel(case: Case) -> None:
    """With clean sums replaced by zeros, what comes out is the same whoever the records are: sums are the only exit."""
    trial = Trial.of(case)
    for stage in trial.stages:
        answers = []
        for count, seed in ((12, 1), (5, 2), (0, 0)):
            features, labels = case.records(count, seed)
            with watched(range(count), empty=True):
                answers.append(trial.answer(features, labels, range(count), stage, case.epsilon, SeededEntropy(4)))
        first = answers[0]
        for answer in answers[1:]:
            assert answer.arrays.keys() == first.arrays.keys() and answer.distance == first.distance
            for name, array in answer.arrays.items():
                assert np.array_equal(array, first.arrays[name]), f"{name!r} knows more of records than the noisy sums"


def check_layout(case: Case) -> None:
    """What is released is laid out as the public half says, and counts weigh what it says."""
    trial, chosen, settings = Trial.of(case), case.entry, case.values()
    features, labels = case.records(60, seed=9)
    for stage in trial.stages:
        with watched(range(60)):
            answer = trial.answer(features, labels, range(60), stage, math.inf)
        statistics = of_one_silo(answer.arrays, answer.event)
        layout = chosen.layout(settings, case.run, stage)
        shapes = {segment.name: (segment.rows, segment.width) for segment in layout.segments}
        assert {name: array.shape for name, array in statistics.sums.items()} == shapes, "another layout than stated"
        weight = chosen.count_weight(settings, stage)
        assert (weight is not None) == ("count" in shapes), "counts are stated but not released, or released unstated"
        if weight is not None:
            counts, true = statistics.sums["count"][:, 0] / weight, np.bincount(labels, minlength=len(CLASSES))
            rates = {part.rate for part in parts(trial.plan(stage, 1.0).event) if hasattr(part, "rate")} or {1.0}
            draws = sum(getattr(part, "steps", 1) for part in parts(trial.plan(stage, 1.0).event))
            spread = np.sqrt(true * (1.0 / min(rates) - 1.0) / draws)
            assert (np.abs(counts - true) <= 0.02 * true + 5.0 * spread + 1e-3).all(), f"{counts} records, not {true}"


def check_keeps_nothing(case: Case) -> None:
    """A mechanism is the same object before and after: private records are arguments, never attributes."""
    trial, half = Trial.of(case), mechanism(case.entry)
    before = dict(vars(half))
    features, labels = case.records(4)
    for stage in trial.stages:
        trial.answer(features, labels, range(4), stage, case.epsilon)
    assert vars(half) == before == {}, "a mechanism has no attributes"


# Through a silo


def make_silo(
    folder: Path, case: Case, count: int = 60, *, kind: DataKind | None = None, epsilon: float | None = None
) -> Silo:
    """A silo whose records are of the case's shape, or of another kind of data."""
    folder.mkdir(parents=True)
    if kind is not None and kind is not case.run.kind:
        case = replace(case, shape=(7,) if kind is DataKind.TABLE else (1, 28, 28), table=None)
    data = _data_files(folder, case, count)
    noise = "" if case.private else "[simulation]\nallow_no_noise = true\n"
    backbones = list(case.entry.backbones(case.values())) if kind is None else []
    (folder / "silo.toml").write_text(
        f"""
name = "{folder.name}"
[data]
{data}
[budget]
epsilon = {epsilon or 1.0}
delta = {DELTA}
[policy]
methods = ["{case.method}"]
epsilon_per_request = {epsilon or 1.0}
approval = "auto"
backbones = {backbones}
{noise}
"""
    )
    return Silo.initialise(folder)


def _data_files(folder: Path, case: Case, count: int) -> str:
    """The section `[data]` of a silo with so many records, whose files are written."""
    features, labels = case.records(count, seed=10)
    if case.table is None:
        np.savez(folder / "records.npz", images=features, labels=labels)
        shape = json.dumps(list(case.shape))
        classes = json.dumps(list(CLASSES))
        return f'format = "npz"\npath = "records.npz"\nclasses = {classes}\nshape = {shape}\nvalue_range = [0, 1]'
    table = LabelledSet(features, labels, CLASSES, schema=case.table)
    pq.write_table(arrow_table(table), folder / "records.parquet")
    return f'format = "parquet"\npath = "records.parquet"\n{toml_of(case.table)}'


def answers(silo: Silo, case: Case) -> list[tuple[ReleaseRequest, bytes]]:
    """All stages of a release of statistics, asked as a coordinator would with this silo alone."""
    chosen, settings = case.entry, case.values()
    statistics: list[Statistics] = []
    signed: list[tuple[ReleaseRequest, bytes]] = []
    for stage in range(chosen.stages(settings)):
        stage_input = dict(chosen.stage_input(statistics, settings, case.run)) if stage else case.first_input
        request = replace(case.request(case.epsilon), stage=stage, stage_input=stage_input)
        release_bytes = _bytes(silo.answer(request.encode()))
        release = as_asked(open_signed(release_bytes, silo.public_key), request)
        total = aggregate([release], chosen.layout(settings, case.run, stage), "sum", None)
        statistics.append(replace(total, stage_input=stage_input))
        signed.append((request, release_bytes))
    return signed


def _bytes(answer: Answer) -> bytes:
    assert isinstance(answer, SignedReleaseBytes), answer
    return answer.data


def check_same_bytes(case: Case, folder: Path) -> None:
    """The same request gets the same bytes again, and pays once."""
    silo = make_silo(folder / "north", case)
    signed = answers(silo, case)
    entries = _entries(silo)
    for request, data in signed:
        assert _bytes(silo.answer(request.encode())) == data, "asked again, a silo says something else"
    assert _entries(silo) == entries, "asked again, it costs again"


def check_refusals(case: Case, folder: Path) -> None:
    """A refusal is decided before records are read and before budget is reserved."""
    silo = make_silo(folder / "north", case, epsilon=0.5)
    plain = case.request(case.epsilon)
    odd: list[tuple[ReleaseRequest, Reason]] = [
        (replace(plain, settings={**plain.settings, "no such setting": 1}), Reason.MALFORMED),
        (replace(plain, classes=CLASSES[:2]), Reason.NOT_ALLOWED if case.table is None else Reason.MALFORMED),
        (replace(plain, stage=40, stage_input={"x": np.zeros(1)}), Reason.MALFORMED),
        (replace(plain, stage_input={"x": np.zeros(1)}), Reason.MALFORMED),
    ]
    if case.table is not None:
        other = case.table.model_copy(update={"columns": case.table.columns[::-1]})
        odd.insert(0, (replace(plain, table=other), Reason.NOT_ALLOWED))
    if case.private:
        odd += [(plain, Reason.NOT_ALLOWED), (replace(plain, epsilon=math.inf), Reason.NOT_ALLOWED)]
        odd = [(replace(each, epsilon=min(each.epsilon, 0.5)), why) for each, why in odd[:-2]] + odd[-2:]
    else:
        odd.append((replace(plain, epsilon=0.4), Reason.MALFORMED))
    _refused(silo, odd)


def check_wrong_kind_of_data(case: Case, folder: Path) -> None:
    """A silo with another kind of data refuses before budget is reserved."""
    for kind in set(DataKind) - case.entry.data_kinds:
        silo = make_silo(folder / kind.value, case, kind=kind)
        request = replace(case.request(case.epsilon), shape=silo.settings.data.shape, table=None)
        _refused(silo, [(request, Reason.NOT_ALLOWED)])


def _refused(silo: Silo, requests: Sequence[tuple[ReleaseRequest, Reason]]) -> None:
    def no_records(*_: object) -> None:
        raise AssertionError("records are read for a request that is refused")

    before = _entries(silo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "load_records", no_records)
        for request, reason in requests:
            answer = silo.answer(request.encode())
            assert isinstance(answer, Refusal) and answer.reason is reason, (request, answer)
    assert _entries(silo) == before, "a refusal left something in the ledger"


def _entries(silo: Silo) -> int:
    ledger = silo.ledger()
    try:
        return len(ledger.entries())
    finally:
        ledger.close()


def check_statistics_finish(case: Case, folder: Path) -> None:
    """From plausible releases to a product that can be kept and read again, the same from the same statistics."""
    if not isinstance(case.entry, Method) or Kind.STATISTICS not in case.entry.release_kinds:
        return
    silo, chosen, settings = make_silo(folder / "north", case), case.entry, case.values()
    statistics, first = [], None
    for request, data in answers(silo, case):
        release = as_asked(open_signed(data, silo.public_key), request)
        layout = chosen.layout(settings, case.run, request.stage)
        weight = chosen.count_weight(settings, request.stage)
        design = Design.of(layout, weight, plan_of(request).event, CLASSES)
        if design is not None:
            assert implausible(release.arrays, design, (), first) == [], "an honest silo is taken for a liar"
            first = first or noisy_counts(release.arrays, design)
        for rule in ("sum", "precision") if weight else ("sum",):
            total = aggregate([release, release], layout, rule, weight)
        statistics.append(replace(total, stage_input=request.stage_input))
    products = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # which nobody may notice
        products.append(chosen.synthesise(statistics, settings, chosen.synthesis_settings(case.synthesis), case.run))
        after = torch.rand(())
        torch.manual_seed(seed)
        assert torch.equal(after, torch.rand(())), "synthesis draws from torch's own generator"
    digests = {_kept(product, folder / f"product-{number}") for number, product in enumerate(products)}
    assert len(digests) == 1, "synthesis depends on more than statistics, settings and run"


def check_distilled_set_finishes(case: Case, folder: Path) -> None:
    """Silos ship finished sets, and a coordinator unites them."""
    if Kind.DISTILLED_SET not in case.entry.release_kinds:
        return
    request = case.request(case.epsilon, Kind.DISTILLED_SET)
    silos = [make_silo(folder / name, case, 400) for name in ("north", "south")]
    releases = [open_signed(_bytes(silo.answer(request.encode())), silo.public_key) for silo in silos]
    sets = [opened(as_asked(release, request), request) for release in releases]
    weight = case.entry.count_weight(case.values(), 0)
    assert all((each.counts is None) == (weight is None) for each in sets), "counts go with a set where there are any"
    if sum(len(each.dataset) for each in sets):  # else every class was lost in noise, which is said
        product = union(sets, 2 * images_made(request))
        assert np.bincount(product.labels).max() == 2 * images_made(request), "images of a set are missing"
        _kept(product, folder / "union")


def _kept(product: Product, folder: Path) -> str:
    """The hash of a product that was saved and read again."""
    digest = product.save(folder)
    assert product.classes == CLASSES
    if isinstance(product, ReleasedModel):
        assert ReleasedModel.load(folder).classes == CLASSES
        return digest
    read = LabelledSet.load(folder)
    assert len(read) == len(product) and read.classes == CLASSES and (read.labels < len(CLASSES)).all()
    assert np.bincount(read.labels).max() <= 8, "asked for two images of a class"
    return digest


CHECKS = (
    check_neighbours,
    check_split_and_order,
    check_not_finite,
    check_small_silos,
    check_plan,
    check_event,
    check_fresh_noise,
    check_no_side_channel,
    check_layout,
    check_keeps_nothing,
)
"""Of the mechanism and its plan."""

SILO_CHECKS = (
    check_same_bytes,
    check_refusals,
    check_wrong_kind_of_data,
    check_statistics_finish,
    check_distilled_set_finishes,
)
"""Of the method in a silo, with a ledger and files."""
