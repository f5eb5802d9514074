"""Distances between tables, against twins that count with dictionaries and loops."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats.contingency import association

from dpdd.common.data import made_patients
from dpdd.common.data.table.columns import Categorical
from dpdd.common.data.table.rows import codes_of
from dpdd.common.data.table.schema import TableSchema
from dpdd.server.evaluation import fidelity as module
from dpdd.server.evaluation.fidelity import cramers_v, fidelity, marginal_distance, sample_of_columns

SIZES = (3, 2, 5, 4)
SCHEMA = TableSchema(
    label="b",
    columns=tuple(
        Categorical(name=name, categories=tuple(f"{name}{at}" for at in range(size)))
        for name, size in zip("abcd", SIZES, strict=True)
    ),
)


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    rows = draw(st.lists(st.tuples(*(st.integers(0, size - 1) for size in SIZES)), min_size=1, max_size=30))
    return np.array(rows, dtype=np.int32)


def slow_distance(first: np.ndarray, second: np.ndarray, group: tuple[int, ...]) -> float:
    counts = [Counter(tuple(row[at] for at in group) for row in table.tolist()) for table in (first, second)]
    cells = itertools.product(*(range(SIZES[at]) for at in group))
    return sum(abs(counts[0][cell] / len(first) - counts[1][cell] / len(second)) for cell in cells) / 2


def slow_coverage(synthetic: np.ndarray, real: np.ndarray) -> float:
    there = [(at, value) for at in range(len(SIZES)) for value in set(real[:, at].tolist())]
    return sum(value in set(synthetic[:, at].tolist()) for at, value in there) / len(there)


def slow_v(table: np.ndarray, pair: tuple[int, int]) -> float:
    """Bergsma (2013): phi² and the numbers of values, each minus what independent columns have by chance."""
    n, (a, b) = len(table), pair
    lefts, rights = (sorted(set(table[:, at].tolist())) for at in pair)
    r, k = len(lefts), len(rights)
    if n < 2 or min(r, k) < 2:
        return 0.0
    phi = 0.0
    for left, right in itertools.product(lefts, rights):
        expected = sum(table[:, a] == left) * sum(table[:, b] == right) / n
        phi += (sum((table[:, a] == left) & (table[:, b] == right)) - expected) ** 2 / expected / n
    phi = max(0.0, phi - (k - 1) * (r - 1) / (n - 1))
    least = min(k - (k - 1) ** 2 / (n - 1), r - (r - 1) ** 2 / (n - 1))
    return float(min(1.0, phi / (least - 1)) ** 0.5) if least > 1 else 0.0


@given(tables(), tables())
def test_all_figures_are_those_of_the_twins(synthetic: np.ndarray, real: np.ndarray) -> None:
    facts = fidelity(SCHEMA, synthetic, real)
    ways = {
        key: [slow_distance(synthetic, real, group) for group in itertools.combinations(range(4), size)]
        for size, key in enumerate(("one_way", "two_way", "three_way"), start=1)
    }
    for key, distances in ways.items():
        assert facts[key] == pytest.approx(sum(distances) / len(distances), abs=1e-12)
    assert list(facts["columns"].values()) == pytest.approx(ways["one_way"])
    assert facts["coverage"] == pytest.approx(slow_coverage(synthetic, real))
    gaps = [abs(slow_v(synthetic, pair) - slow_v(real, pair)) for pair in itertools.combinations(range(4), 2)]
    assert facts["correlation_difference"] == pytest.approx(sum(gaps) / 6, abs=1e-7)
    assert (facts["rows"], facts["real_rows"], facts["pairs"], facts["triples"]) == (len(synthetic), len(real), 6, 4)


@given(tables(), tables())
def test_a_table_is_at_no_distance_from_itself_and_more_columns_are_further_apart(
    first: np.ndarray, second: np.ndarray
) -> None:
    same = fidelity(SCHEMA, first, first[::-1])
    assert max(same["one_way"], same["two_way"], same["three_way"], same["correlation_difference"]) < 1e-12
    assert same["coverage"] == 1.0
    for pair in itertools.combinations(range(4), 2):
        apart = marginal_distance(SIZES, first, second, [pair])
        assert apart >= max(marginal_distance(SIZES, first, second, [(at,)]) for at in pair) - 1e-12


def test_correlation_without_the_correction_is_scipys() -> None:
    generator = np.random.default_rng(0)
    first = generator.integers(0, 3, 100_000)
    table = np.stack([first, np.where(generator.random(100_000) < 0.4, first, generator.integers(0, 3, 100_000))], 1)
    observed = np.bincount(table[:, 0] * 3 + table[:, 1], minlength=9).reshape(3, 3)
    assert cramers_v((3, 3), table, (0, 1)) == pytest.approx(association(observed, method="cramer"), abs=1e-3)
    independent = generator.integers(0, 5, (200, 2))  # the plain V would be about 0.14 here
    assert cramers_v((5, 5), independent, (0, 1)) < 0.12


def test_large_tables_of_cells_are_counted_sparsely_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    first, second = (np.stack([generator.integers(0, size, 300) for size in SIZES], 1) for _ in range(2))
    dense = fidelity(SCHEMA, first, second)
    monkeypatch.setattr(module, "_DENSE", 0)
    assert fidelity(SCHEMA, first, second) == dense
    wide = np.array([[4095, 4095, 4095], [0, 1, 2]])
    assert marginal_distance((4096,) * 3, wide, wide[:1], [(0, 1, 2)]) == 0.5


def test_many_columns_are_sampled_by_a_public_seed() -> None:
    groups = sample_of_columns(100, 3, 200)
    assert groups == sample_of_columns(100, 3, 200) and len(groups) == len(set(groups)) == 200
    assert all(len(set(group)) == 3 and group == tuple(sorted(group)) for group in groups)
    assert len({at for group in groups for at in group}) > 95
    assert len(sample_of_columns(15, 3, 200)) == 200
    assert sample_of_columns(5, 2, 10) == list(itertools.combinations(range(5), 2))
    assert not sample_of_columns(2, 3, 200)


def test_memory_is_that_of_a_few_columns() -> None:
    rows = np.random.default_rng(2).integers(0, 16, (100_000, 10)).astype(np.int32)
    schema = TableSchema(
        label="0",
        columns=tuple(Categorical(name=str(at), categories=tuple(map(str, range(16)))) for at in range(10)),
    )
    tracemalloc.start()
    fidelity(schema, rows, rows[:1000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 8 * len(rows)


def test_made_patients_are_close_to_themselves_and_not_to_shuffled_columns() -> None:
    def codes(split: Any) -> np.ndarray:
        table = made_patients.rows(split)
        return codes_of(table.schema, table.rows, table.labels)

    train, test = codes("train"), codes("test")
    shuffled = np.random.default_rng(3).permuted(train, axis=0)
    close, apart = (fidelity(made_patients.SCHEMA, table, test) for table in (train, shuffled))
    assert close["one_way"] == pytest.approx(apart["one_way"]) and close["one_way"] < 0.02
    assert close["two_way"] < 0.045 < 0.05 < apart["two_way"]
    assert 4 * close["correlation_difference"] < apart["correlation_difference"]
