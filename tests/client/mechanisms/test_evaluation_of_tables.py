"""Evaluation of rows: one cell each, whoever chose the weights and whatever a row holds; nothing hostile gets in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client import answering
from dpdd.client.mechanisms.evaluation import MECHANISM
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.common.data.table.columns import Categorical
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.evaluation import models as models_module
from dpdd.common.methods.evaluation.models import SentModel, in_request, linear_model
from dpdd.common.methods.evaluation.settings import EvaluationSettings
from dpdd.common.methods.registry import query
from dpdd.common.models.table_logistic import weights_shape
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from tests.client.evaluations import network
from tests.methods.harness import TABLE, Case, hostile_rows, make_silo, rows

COUNT = len(TABLE.features)
PAIR = TABLE.model_copy(
    update={
        "columns": tuple(
            Categorical(name="kind", categories=("ant", "bee")) if column.name == "kind" else column
            for column in TABLE.columns
        )
    }
)
"""The same table with two classes."""


def linear(seed: int = 0, table: TableSchema = TABLE, gain: float = 1.0) -> SentModel:
    weights = gain * np.random.default_rng(seed).normal(size=weights_shape(table))
    weights[:, -1] -= weights[:, :-1].sum(1) * COUNT / (weights.shape[1] - 1)
    return linear_model(weights.astype(np.float32))


def ask(*models: SentModel, table: TableSchema | None = TABLE, bins: int = 0, **changes: Any) -> ReleaseRequest:
    models = models or (linear(table=table or TABLE),)
    values: dict[str, Any] = {
        "run": "test",
        "method": "evaluation",
        "kind": Kind.EVALUATION,
        "settings": {"models": [model.settings.model_dump() for model in models], "bins": bins},
        "stage_input": in_request(models),
        "epsilon": 1.0,
        "delta": 1e-5,
        "classes": (table or TABLE).classes,
        "shape": (table or TABLE).shape,
        "public_seed": 3,
        "table": table,
    }
    return ReleaseRequest(**(values | changes))


def clean(request: ReleaseRequest, features: NDArray[np.float32], labels: NDArray[np.int64]) -> list[NDArray]:
    """The counts without noise, in grid steps, through the encoding of the request."""
    request = decode_request(replace(request, epsilon=math.inf).encode())
    settings = EvaluationSettings.model_validate(dict(request.settings))
    plan = query("evaluation").plan(request, settings)
    answer = MECHANISM.run(Records(features, labels), request, settings, plan, SeededEntropy(0), silent)
    return list(answer.arrays.values())


def some(count: int, table: TableSchema = TABLE, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    codes, _ = rows(count, table, seed)
    return codes, np.random.default_rng(seed).integers(0, len(table.classes), count)


def said(model: SentModel, features: NDArray[np.float32], table: TableSchema = TABLE) -> NDArray[np.float64]:
    """Logits added up by hand."""
    weights, starts = model.arrays["weights"].astype(np.float64), np.cumsum([0, *(c.size for c in table.features)])
    logits = [
        weights[:, -1] + sum(weights[:, start + int(code)] for start, code in zip(starts, row, strict=False))
        for row in features
    ]
    return np.stack(logits)


# What is counted


@pytest.mark.parametrize("count", [1, 3])
def test_counts_are_those_of_a_twin_that_counts_by_hand(count: int) -> None:
    models = [linear(seed) for seed in range(count)]
    features, labels = some(120)
    step = math.floor(FIXED_POINT_ONE / math.sqrt(count) * (1.0 - 1e-9))
    for counts, model in zip(clean(ask(*models), features, labels), models, strict=True):
        expected = np.zeros((4, 2), np.int64)
        for label, answer in zip(labels, said(model, features).argmax(axis=1), strict=True):
            expected[label, 0 if answer == label else 1] += 1
        assert np.count_nonzero(expected) > 5 and np.abs(counts - step * expected).max() <= 120


def test_bins_are_those_of_a_twin() -> None:
    model = linear(1, PAIR)
    features, labels = some(150, PAIR)
    (counts,) = clean(ask(model, table=PAIR, bins=10), features, labels)
    logits = said(model, features, PAIR)
    scores = 1.0 / (1.0 + np.exp(logits[:, 0] - logits[:, 1]))
    expected = np.stack([np.histogram(scores[labels == label], 10, (0.0, 1.0))[0] for label in (0, 1)])
    assert np.count_nonzero(expected) > 8
    assert np.array_equal(np.rint(counts / FIXED_POINT_ONE).astype(np.int64), expected)


# Privacy


@pytest.mark.parametrize("bins", [0, 2, 20])
@pytest.mark.parametrize("count", [1, 3])
def test_one_row_moves_everything_together_by_at_most_1(bins: int, count: int) -> None:
    table = PAIR if bins else TABLE
    request = ask(*(linear(seed, table, gain=9.0) for seed in range(count)), table=table, bins=bins)
    features, labels = some(7, table, seed=3)
    without, moved = clean(request, features, labels), []
    for number, row in enumerate([*some(5, table, seed=4)[0], *hostile_rows(table), *odd_rows_of(table)]):
        place, label = number % 8, number % len(table.classes)
        with_it = clean(request, np.insert(features, place, row, axis=0), np.insert(labels, place, label))
        squares = sum(float(((a - b) ** 2).sum()) for a, b in zip(with_it, without, strict=True))
        moved.append(math.sqrt(squares) / FIXED_POINT_ONE)
    assert 0.999 < max(moved) <= 1.0
    assert all(distance > 0.999 or distance == 0.0 for distance in moved)


def odd_rows_of(table: TableSchema) -> list[NDArray[np.float32]]:
    """Rows with a single cell that is no code of its column."""
    last = np.array([column.size - 1 for column in table.features], np.float32)
    found = []
    for at in range(COUNT):
        for code in (last[at] + 1, -1.0, 0.5, 1e20, -1e-30, np.nan, np.inf, -np.inf):
            row = last.copy()
            row[at] = code
            found.append(row)
    return found


@pytest.mark.parametrize("models", [1, 2])
def test_a_row_with_a_cell_that_is_no_code_adds_nothing(models: int) -> None:
    request = ask(*(linear(seed, gain=1e36 if seed else 1.0) for seed in range(models)))
    features, labels = some(6)
    without = clean(request, features, labels)
    for number, row in enumerate(odd_rows_of(TABLE)):
        more = clean(request, np.insert(features, number % 7, row, axis=0), np.insert(labels, number % 7, 1))
        assert all(np.array_equal(one, other) for one, other in zip(more, without, strict=True)), row


def test_rows_split_over_silos_are_counted_the_same_to_the_last_bit_whatever_the_weights() -> None:
    """Logits of the two classes differ in their last bits only: rounding decides what the model says."""
    weights = np.random.default_rng(4).normal(size=weights_shape(PAIR)).astype(np.float32)
    weights[1, :-1] = np.nextafter(weights[0, :-1], np.where(np.arange(weights.shape[1] - 1) % 2, 2, -2), dtype="f4")
    weights[1, -1] = weights[0, -1]
    request = ask(linear_model(weights), table=PAIR)
    features, labels = some(60, PAIR, seed=6)
    whole = clean(request, features, labels)
    assert np.count_nonzero(whole[0]) == 4
    single = [clean(request, features[at : at + 1], labels[at : at + 1])[0] for at in range(60)]
    generator = np.random.default_rng(7)
    for size in (60, 59, 17):
        chosen = generator.permutation(60)[:size]
        together = clean(request, features[chosen], labels[chosen])[0]
        assert np.array_equal(together, np.sum([single[at] for at in chosen], axis=0))
    cuts: Sequence[slice] = (slice(0), slice(0, 1), slice(1, 40), slice(40, 60))
    assert np.array_equal(whole[0], np.sum([clean(request, features[c], labels[c])[0] for c in cuts], axis=0))


def test_weights_as_large_as_they_come_make_a_row_no_louder() -> None:
    features, labels = some(40, PAIR)
    for sign in (1, -1):
        huge = linear_model(np.full(weights_shape(PAIR), sign * np.finfo(np.float32).max, np.float32))
        opposite = linear_model(np.stack([huge.arrays["weights"][0], -huge.arrays["weights"][0]]))
        for bins in (0, 4):
            for counts in clean(ask(huge, opposite, table=PAIR, bins=bins), features, labels):
                assert round(counts.sum() / FIXED_POINT_ONE * math.sqrt(2.0), 3) == 40.0


# What may be asked


def with_weights(weights: NDArray[Any]) -> ReleaseRequest:
    return replace(ask(), stage_input={"model0.weights": weights})


def other_models(**model: Any) -> ReleaseRequest:
    return replace(ask(), settings={"models": [model], "bins": 0})


SHAPE = weights_shape(TABLE)
HOSTILE = {
    "no array": lambda: replace(ask(), stage_input={}),
    "an array too many": lambda: replace(ask(), stage_input={**ask().stage_input, "more": np.zeros(3, np.float32)}),
    "a cell too few": lambda: with_weights(np.zeros((SHAPE[0], SHAPE[1] - 1), np.float32)),
    "a class too many": lambda: with_weights(np.zeros((SHAPE[0] + 1, SHAPE[1]), np.float32)),
    "transposed": lambda: with_weights(np.zeros(SHAPE[::-1], np.float32)),
    "double precision": lambda: with_weights(np.zeros(SHAPE)),
    "whole numbers": lambda: with_weights(np.zeros(SHAPE, np.int64)),
    "a NaN": lambda: with_weights(np.full(SHAPE, np.nan, np.float32)),
    "an infinity": lambda: with_weights(np.full(SHAPE, np.inf, np.float32)),
    "a key too many": lambda: other_models(kind="linear", columns=9),
    "a model of images": lambda: ask(network(classes=4)),
    "a teacher of images": lambda: other_models(
        kind="teacher", backbone="scatter28", sha256="ab" * 32, features=4, picture=0
    ),
    "no model": lambda: replace(ask(), settings={"models": [], "bins": 0}),
    "too many models": lambda: ask(*[linear()] * 17),
    "bins for four classes": lambda: ask(bins=4),
    "a later stage": lambda: replace(ask(), stage=1),
    "no schema": lambda: ask(table=None),
}


def evaluating_silo(folder: Path, table: TableSchema = TABLE, holdout: float = 0.0) -> Silo:
    make_silo(folder, Case("evaluation", shape=table.shape, table=table))
    if holdout:
        with (folder / "silo.toml").open("a") as file:
            file.write(f"[evaluation]\nholdout = {holdout}\n")
    return Silo(folder)


@pytest.fixture(scope="module")
def silo(tmp_path_factory: pytest.TempPathFactory) -> Silo:
    return evaluating_silo(tmp_path_factory.mktemp("silos") / "north")


def refused(silo: Silo, request: ReleaseRequest) -> Refusal:
    answer = silo.answer(request.encode())
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_requests_are_refused_before_anything_is_reserved_or_read(
    what: str, silo: Silo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_records(*_: object) -> None:
        raise AssertionError("records are read for a request that is refused")

    monkeypatch.setattr(answering, "load_records", no_records)
    refusal = refused(silo, HOSTILE[what]())
    expected = {Reason.MALFORMED, Reason.NOT_ALLOWED} if what == "no schema" else {Reason.MALFORMED}
    assert refusal.reason in expected and "\n" not in refusal.message
    ledger = silo.ledger()
    assert [entry.kind for entry in ledger.entries()] == ["open"] and silo.outbox.ids() == []
    ledger.close()


def test_another_schema_than_the_silos_is_refused(silo: Silo) -> None:
    assert refused(silo, ask(linear(table=PAIR), table=PAIR)).reason is Reason.NOT_ALLOWED


def test_more_weights_than_a_silo_takes_are_refused(silo: Silo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_module, "MOST_WEIGHTS", 10)
    assert "10 is the most" in refused(silo, ask()).message


def test_what_leaves_is_the_histogram_of_rows_that_were_held_out(tmp_path: Path) -> None:
    made = evaluating_silo(tmp_path / "north", holdout=0.5)
    answer = made.answer(ask().encode())
    assert isinstance(answer, SignedReleaseBytes)
    release = open_signed(answer.data, made.public_key)
    assert {name: array.shape for name, array in release.arrays.items()} == {"model0": (4, 2)}
    assert release.kind is Kind.EVALUATION and release.held_out
