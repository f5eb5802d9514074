"""What is released: every marginal once, in the units that synthesis takes it for, and no more than a release holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps_table.marginals import MOST_NUMBERS, Marginals, marginals
from dpdd.common.methods.sps_table.mixture import noisy_tables
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.synthesis.statistics import of_one_silo
from tests.methods.harness import CLASSES, TABLE, Case, Trial

CASE = Case.of_table("sps-table", settings={"levels": 4, "pairs": 0.5})


def test_without_noise_the_sums_are_the_marginals() -> None:
    """Counted one by one, from codes and from groups of neighbours."""
    trial = Trial.of(CASE)
    rows, labels = CASE.records(300, seed=2)
    answer = trial.answer(rows, labels, range(300), 0, math.inf)
    found = Marginals(TABLE.features, len(CLASSES), MethodSettings(levels=4, pairs=0.5))
    tables = noisy_tables(of_one_silo(answer.arrays, answer.event), found)
    columns, pairs = np.zeros_like(tables.columns), np.zeros((len(CLASSES), found.group_width, found.group_width))
    for row, label in zip(rows.astype(int), labels, strict=True):
        places = [
            part.start + group[code] for part, group, code in zip(found.group_cells, found.groups, row, strict=True)
        ]
        for part, code in zip(found.cells, row, strict=True):
            columns[label, part.start + code] += 1
        pairs[label][np.ix_(places, places)] += 1
    assert tables.pairs is not None
    np.testing.assert_allclose(tables.columns, columns, atol=0.01)
    np.testing.assert_allclose(tables.pairs, pairs, rtol=1e-12)


def test_neighbours_share_a_group_and_a_missing_value_has_its_own() -> None:
    columns = (
        Numeric(name="age", low=0, high=99, bins=10, missing=True),
        Categorical(name="sex", categories=("f", "m")),
    )
    found = Marginals(columns, 2, MethodSettings(levels=3))
    assert found.groups[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3] and found.groups[1].tolist() == [0, 1]
    assert found.group_width == 6


def test_a_record_uses_up_its_norm() -> None:
    """Less would be more noise than is needed; the contract test has the other side."""
    for pairs in (0.0, 0.7):
        found = Marginals(TABLE.features, len(CLASSES), MethodSettings(pairs=pairs))
        count, d = found.settings.count_weight, len(TABLE.features)
        squares = d * found.column_weight**2 + count**2 + ((d * found.pair_weight) ** 2 if pairs else 0.0)
        assert 0.95 < squares <= 1.0


def test_more_numbers_than_a_release_holds_are_refused() -> None:
    wide = tuple(Numeric(name=f"column {at}", low=0, high=1, bins=64) for at in range(50))
    schema = TableSchema(label="sick", columns=(*wide, Categorical(name="sick", categories=("no", "yes"))))
    run = RunDescription(schema.classes, schema.shape, 0, table=schema)
    with pytest.raises(ConfigError, match=r"50 columns.*lower `levels`, or release no pairs"):
        marginals(MethodSettings(), run)
    assert marginals(MethodSettings(levels=8), run).layout.coordinates < MOST_NUMBERS
    assert not marginals(MethodSettings(pairs=0.0), run).has_pairs


def test_a_single_column_has_no_pairs() -> None:
    ward = Categorical(name="ward", categories=("heart", "lung"))
    schema = TableSchema(label="sick", columns=(ward, Categorical(name="sick", categories=("no", "yes"))))
    run = RunDescription(schema.classes, schema.shape, 0, table=schema)
    assert [segment.name for segment in method("sps-table").layout(MethodSettings(), run, 0).segments] == [
        "columns",
        "count",
    ]
