"""Quantiles and ranges from noisy counts: exact where there is no noise, and as sure as they say where there is."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Column, Date, Numeric
from dpdd.common.data.table.encoding import encode_column
from dpdd.common.methods.column_histograms.histogram import (
    ALARM,
    Histogram,
    histograms,
    record_count,
    stands_out,
)
from dpdd.common.methods.column_histograms.query import CELLS
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from tests.methods.harness import CLASSES, TABLE, Case, Trial

CASE = Case.of_table("column-histograms")
WIDE = Numeric(name="pay", low=-1e9, high=1e9, bins=256, scale="symlog")
CELLS_OF_WIDE = stands_out(256 * 9)


def counted(column: Column, values: NDArray, noise: float = 0.0, seed: int = 0) -> Histogram:
    counts = np.bincount(encode_column(column, values), minlength=column.size).astype(float)
    counts += noise * np.random.Generator(np.random.PCG64(seed)).standard_normal(len(counts))
    return Histogram(column, counts, noise, CELLS_OF_WIDE)


def draws(seed: int, count: int = 4000) -> NDArray[np.float64]:
    return np.random.Generator(np.random.PCG64(seed)).lognormal(7.0, 0.8, count)


def test_without_noise_the_counts_are_the_records() -> None:
    """Through the mechanism: every column's codes, the label's among them."""
    rows, labels = CASE.records(300, seed=2)
    answer = Trial.of(CASE).answer(rows, labels, range(300), 0, math.inf)
    found = histograms(TABLE, of_one_silo(answer.arrays, answer.event))
    codes = np.insert(rows.astype(int), TABLE.label_position, labels, axis=1)
    for histogram, column, own in zip(found, TABLE.columns, codes.T, strict=True):
        np.testing.assert_allclose(histogram.counts, np.bincount(own, minlength=column.size), atol=1e-3)
    records, spread = record_count(found)
    assert records == pytest.approx(300, abs=1e-3) and spread == 0.0
    label = found[TABLE.label_position]
    assert label.column.value_names == CLASSES and label.missing == 0.0


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.77, 0.99])
def test_without_noise_quantiles_are_those_of_the_records(share: float) -> None:
    """In the same bin of the grid, and near where the records of that bin would have it if they were spread evenly."""
    values = draws(1)
    found = counted(WIDE, values)
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    quantile = found.quantile(share)
    bin_of = np.searchsorted(WIDE.edges, [exact, quantile.value], side="right")
    assert bin_of[0] == bin_of[1]
    assert quantile.low <= exact <= quantile.high
    assert quantile.high / max(quantile.low, 1e-9) < 1.5
    first, last = (found.range or (0, 0))[0], (found.range or (0, 0))[1]
    assert WIDE.edges[first] <= values.min() < WIDE.edges[first + 1]
    assert WIDE.edges[last - 1] <= values.max() < WIDE.edges[last]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_with_noise_the_quantile_is_where_it_says(share: float) -> None:
    """Of the values in the range: 95 of a hundred times; here at least 88 of 100, with seeds that stay."""
    inside = 0
    for seed in range(100):
        values = draws(100 + seed)
        found = counted(WIDE, values, noise=6.0, seed=seed)
        assert found.range is not None
        first, last = WIDE.edges[list(found.range)]
        quantile, values = found.quantile(share), values[(values >= first) & (values < last)]
        assert quantile.low <= quantile.value <= quantile.high
        inside += quantile.low <= float(np.quantile(values, share, method="inverted_cdf")) < quantile.high
    assert inside >= 88


def test_noise_alone_has_a_range_as_rarely_as_it_says() -> None:
    found = sum(counted(WIDE, np.zeros(0), noise=50.0, seed=seed).range is not None for seed in range(300))
    assert found / 300 <= ALARM + 0.04  # a union bound, so it is rarer; 0.04 is three standard deviations


def test_a_range_never_begins_or_ends_where_nothing_is() -> None:
    """Of 200 noisy histograms, nearly all have ranges within the records' own."""
    low, high, wider = np.log1p(100.0), np.log1p(5000.0), 0
    first, last = np.searchsorted(WIDE.edges, [100.0, 5000.0], side="right") - 1
    for seed in range(200):
        spread = np.random.Generator(np.random.PCG64(seed)).uniform(low, high, 3000)
        found = counted(WIDE, np.expm1(spread), noise=15.0, seed=1000 + seed).range
        assert found is not None
        wider += found[0] < first or found[1] > last + 1
    assert wider / 200 <= ALARM + 0.04


def test_what_is_spread_thin_is_seen_by_long_windows() -> None:
    """Three hundred records in forty cells, none of which stands out."""
    column = Numeric(name="x", low=0, high=256, bins=256)
    values = np.concatenate([np.full(5000, 3.5), np.linspace(100, 139.9, 1200)])
    found = counted(column, values, noise=20.0, seed=4)
    assert (found.values[100:140] < CELLS_OF_WIDE * 20.0).all()
    assert found.range is not None and found.range[0] <= 3 and 120 <= found.range[1] <= 160


def test_what_is_elsewhere_is_known_within_its_noise() -> None:
    inside = 0
    for seed in range(100):
        values = np.concatenate([draws(seed), 1e8 * draws(500 + seed, 8)])  # eight records that nobody can see
        found = counted(WIDE, values, noise=6.0, seed=seed)
        assert found.range is not None and WIDE.edges[found.range[1]] < 1e6
        first, last = WIDE.edges[list(found.range)]
        noisy = len(values) + 9.0 * np.random.Generator(np.random.PCG64(seed)).standard_normal()
        rest, off = found.outside(noisy, 9.0)
        elsewhere = ((values < first) | (values >= last)).sum()
        assert elsewhere >= 8
        inside += abs(rest - elsewhere) <= 1.96 * off
    assert inside >= 88


def test_days_have_quantiles_too() -> None:
    column = Date(name="day", first=datetime.date(1900, 1, 1), last=datetime.date(2099, 12, 31), bins=200)
    days = np.arange("2010-01-01", "2015-01-01", dtype="datetime64[D]")
    quantile = counted(column, days).quantile(0.5)
    middle = datetime.date(1970, 1, 1) + datetime.timedelta(days=int(quantile.value))
    assert abs((middle - datetime.date(2012, 7, 2)).days) < 30


def test_what_has_no_quantiles_says_so() -> None:
    with pytest.raises(ValueError, match="no quantiles"):
        counted(WIDE, np.zeros(0), noise=1.0).quantile(0.5)
    empty = Statistics({CELLS: np.zeros((1, sum(TABLE.sizes)))}, 5.0, 1)
    found = histograms(TABLE, empty)
    assert {each.range for each in found} == {None}
    assert record_count(found)[0] == 0.0
