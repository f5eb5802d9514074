"""From sums to a table: how many rows every class has, and that rows tell the classes apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.sps_table.synthesis import rows_per_class
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import ClassCounts
from dpdd.common.synthesis.statistics import of_one_silo
from tests.methods.harness import CLASSES, TABLE, Case, Trial

CASE = Case.of_table("sps-table", settings={"count_weight": 0.3})


def synthesised(records: int, per_class: int, epsilon: float = math.inf, **settings: object) -> LabelledSet:
    rows, labels = CASE.records(records, seed=2)
    answer = Trial.of(CASE).answer(rows, labels, range(records), 0, epsilon)
    statistics = [of_one_silo(answer.arrays, answer.event)]
    run = RunDescription(CLASSES, TABLE.shape, public_seed=5, images_per_class=per_class, table=TABLE)
    chosen = method("sps-table")
    product = chosen.synthesise(
        statistics, CASE.values(), chosen.synthesis_settings({"steps": 200, "fits": 2, **settings}), run
    )
    assert isinstance(product, LabelledSet)
    return product


@pytest.mark.parametrize(
    ("shares", "few", "expected"),
    [
        ("auto", True, [60, 60, 60]),
        ("auto", False, [60, 30, 1]),
        ("equal", False, [60, 60, 60]),
        ("as-released", True, [60, 30, 1]),
    ],
)
def test_rows_of_each_class(shares: str, few: bool, expected: list[int]) -> None:
    counts = ClassCounts(np.array([4000.0, 2000.0, 9.0]), np.array([True, True, False]), noise=30.0)
    run = RunDescription(("a", "b", "c"), (1,), 0, images_per_class=60)
    settings = SynthesisSettings(class_shares=shares)  # type: ignore[arg-type]
    assert rows_per_class(counts, settings, run, equal=few).tolist() == expected


def test_few_rows_are_herded_and_many_are_drawn() -> None:
    few, many = synthesised(600, 5), synthesised(600, 120)
    assert np.bincount(few.labels).tolist() == [5] * 4
    counts = np.bincount(CASE.records(600, seed=2)[1], minlength=4)
    np.testing.assert_allclose(np.bincount(many.labels), np.maximum(120 * counts / counts.max(), 1), atol=2)
    assert few.schema == many.schema == TABLE


def test_rows_of_a_class_look_like_its_records() -> None:
    """In these records every code depends on the class."""
    rows, labels = CASE.records(2000, seed=2)
    product = synthesised(2000, 500)
    for label in range(3):
        for at, column in enumerate(TABLE.features):
            real, made = (
                np.bincount(each[of == label, at].astype(int), minlength=column.size) / (of == label).sum()
                for each, of in ((rows, labels), (product.rows, product.labels))
            )
            assert 0.5 * np.abs(real - made).sum() < 0.05


def test_little_data_at_a_small_epsilon_still_gives_a_table() -> None:
    for records in (0, 1, 30):
        product = synthesised(records, 4, epsilon=0.1)
        assert len(product) == 16 and np.isfinite(product.rows).all()


def test_the_number_of_rows_does_not_change_what_was_asked() -> None:
    assert MethodSettings().on_wire() == {"pairs": 0.7, "levels": 64, "count_weight": 0.1}
