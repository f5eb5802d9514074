"""Final columns from noisy histograms: bounds outwards to round numbers, rare categories counted into another."""

from __future__ import annotations

import datetime
import tomllib

import numpy as np
import pytest

from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric, Ordinal
from dpdd.common.data.table.encoding import encode_column
from dpdd.common.data.table.schema import TableSchema, table_schema
from dpdd.common.methods.column_histograms.description import TableDescription
from dpdd.common.methods.column_histograms.query import CELLS, record_weight
from dpdd.common.synthesis.statistics import Statistics

GRID = {"low": -1e9, "high": 1e9, "bins": 256, "scale": "symlog", "missing": True}
LABEL = Categorical(name="sick", categories=("no", "yes", "perhaps"))
RANDOM = np.random.Generator(np.random.PCG64(7))
N = 5000


def described(column: Column, values: object, noise: float = 0.0) -> tuple[Column, TableDescription]:
    """The column as it is proposed, of these cells."""
    schema = TableSchema(label="sick", columns=(column, LABEL))
    sick = np.array(["no", "yes"])[np.arange(len(values)) % 2].astype(object)  # type: ignore[arg-type]
    counts = np.concatenate(
        [
            np.bincount(encode_column(each, cells), minlength=each.size)
            for each, cells in ((column, values), (LABEL, sick))  # type: ignore[list-item]
        ]
    ).astype(float)
    counts += noise * np.random.Generator(np.random.PCG64(1)).standard_normal(len(counts))
    weight = record_weight(schema)
    description = TableDescription.of(schema, Statistics({CELLS: counts[None] * weight}, noise * weight, 3))
    final = table_schema(tomllib.loads(f"[data]\n{description.text}")["data"], "columns.toml")
    assert final.columns == tuple(each.column for each in description.columns) and final.label == "sick"
    assert final.columns[1] == LABEL, "the classes of the label are as in the draft, empty ones too"
    return final.columns[0], description


@pytest.mark.parametrize("noise", [0.0, 8.0])
@pytest.mark.parametrize(
    ("values", "low", "high", "scale"),
    [
        (RANDOM.normal(60, 15, N).round(), (0, 25), (90, 130), "linear"),
        (RANDOM.lognormal(7, 1.2, N), (0, 100), (12_000, 40_000), "log"),
        (RANDOM.uniform(-3, 8, N), (-4, -2), (7, 10), "linear"),
        (RANDOM.uniform(2e6, 3e6, N), (1.6e6, 2.1e6), (2.9e6, 3.6e6), "linear"),
    ],
)
def test_bounds_hold_nearly_all_values(
    values: np.ndarray, low: tuple[float, float], high: tuple[float, float], scale: str, noise: float
) -> None:
    column, _ = described(Numeric(name="x", **GRID), values, noise)  # type: ignore[arg-type]
    assert isinstance(column, Numeric) and column.scale == scale
    assert low[0] <= column.low <= low[1] and high[0] <= column.high <= high[1]
    inside = (column.low <= values) & (values <= column.high)
    assert inside.mean() >= (0.97 if noise else 0.98) and column.bins == 16


def test_integers_stay_integers_and_missing_cells_are_allowed_where_there_are_some() -> None:
    draft = Numeric(name="x", **GRID, integer=True)  # type: ignore[arg-type]
    values = RANDOM.integers(3, 40, N).astype(float)
    column, description = described(draft, values)
    assert isinstance(column, Numeric) and column.integer and not column.missing
    assert 0 <= column.low <= 3 and 39 <= column.high <= 50
    column, _ = described(draft, np.where(RANDOM.random(N) < 0.1, np.nan, values))
    assert column.missing
    _, description = described(draft, values, noise=8.0)
    assert "have no value" in description.text
    assert description.records == pytest.approx(N, abs=5 * description.within)


def test_one_bin_of_the_draft_is_said() -> None:
    column, description = described(Numeric(name="x", **GRID), RANDOM.uniform(0.001, 0.002, N))  # type: ignore[arg-type]
    assert isinstance(column, Numeric) and column.low == 0.0 and column.high <= 0.2
    assert "all in 1 bin of the draft, so a narrower draft would show more" in " ".join(
        description.text.replace("\n# ", " ").split()
    )


def test_days_go_outwards_to_months_or_years() -> None:
    draft = Date(name="x", first=datetime.date(1900, 1, 1), last=datetime.date(2099, 12, 31), bins=200)
    days = np.arange("1995-03-04", "2020-05-06", dtype="datetime64[D]")
    column, _ = described(draft, days)
    assert isinstance(column, Date)
    assert (column.first.month, column.first.day, column.last.month, column.last.day) == (1, 1, 12, 31)
    assert 1994 <= column.first.year <= 1996 and 2019 <= column.last.year <= 2021
    column, _ = described(draft.model_copy(update={"bins": 2400}), days[:400])
    assert isinstance(column, Date)
    assert column.first in (datetime.date(1995, 2, 1), datetime.date(1995, 3, 1)) and column.last.day >= 28


def test_rare_categories_are_counted_into_another() -> None:
    names = ["heart"] * 3000 + ["lung"] * 1900 + ["skin"] * 3 + ["plague"] * 97
    values = np.array(names, dtype=object)
    for other, categories in (("rest", ("heart", "lung", "skin", "rest")), (None, ("heart", "lung", "skin"))):
        draft = Categorical(name="ward", categories=categories, other=other, missing=True)
        column, description = described(draft, values, noise=5.0)
        name = other or "other"
        assert isinstance(column, Categorical)
        assert (column.categories, column.other) == (("heart", "lung", name), name)
        assert f"counted into {name!r}: 'skin'" in description.text.replace("\n# ", " ")
        assert "plague" not in description.text  # it has no cell, so nobody learns its name


def test_levels_stay() -> None:
    draft = Ordinal(name="pain", categories=("none", "some", "much"))
    column, _ = described(draft, np.array(["none"] * 50 + ["much"] * 50, dtype=object))
    assert column == draft


def test_where_nothing_stands_out_the_draft_stays() -> None:
    for draft in (Numeric(name="x", **GRID), Categorical(name="x", categories=("a", "b"), missing=True)):  # type: ignore[arg-type]
        column, description = described(draft, np.zeros(0, dtype=object), noise=30.0)
        assert column == draft and "this is the draft" in description.text


def test_a_comment_holds_no_line_end() -> None:
    draft = Categorical(name="x", categories=("a\nb = 1", "c"), missing=True)
    _, description = described(draft, np.array(["c"] * 50, dtype=object))
    assert all(not line.startswith("b = 1") for line in description.text.splitlines())
