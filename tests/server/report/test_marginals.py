"""Panels of marginals, against counts by hand; and the picture of them, by its pixels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from PIL import ImageColor

from dpdd.common.data import made_patients
from dpdd.common.data.table.columns import Categorical, Date, Numeric, Ordinal
from dpdd.common.data.table.rows import codes_of
from dpdd.common.data.table.schema import TableSchema
from dpdd.server.report import marginals, marginals_picture
from dpdd.server.report.marginals import MISSING, Bar, cut_at, panels, shown_classes
from dpdd.server.report.marginals_picture import picture

WARDS = tuple(f"ward {letter}" for letter in "abcdefghijklmnopqrst")
SCHEMA = TableSchema.model_validate(
    {
        "label": "sick",
        "columns": [
            {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 40, "missing": True},
            {"name": "ward", "type": "categorical", "categories": WARDS, "missing": True},
            {"name": "pain", "type": "ordinal", "categories": ["none", "some", "much"]},
            {"name": "came", "type": "date", "first": "2001-01-01", "last": "2004-12-31", "bins": 4},
            {"name": "sick", "type": "categorical", "categories": ["no", "yes"]},
        ],
    }
)


def random_codes(schema: TableSchema, rows: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack([np.floor(size * generator.random(rows) ** 2).astype(np.int64) for size in schema.sizes], axis=1)


def test_bars_are_shares_of_all_rows_by_class() -> None:
    first, second = random_codes(SCHEMA, 500), random_codes(SCHEMA, 300, seed=1)
    age, ward, pain, came, sick = panels(SCHEMA, first, second)
    for panel in (age, ward, pain, came, sick):
        assert math.fsum(math.fsum(bar.synthetic) for bar in panel.bars) == pytest.approx(1.0)
        assert math.fsum(math.fsum(bar.real or ()) for bar in panel.bars) == pytest.approx(1.0)
    assert len(age.bars) == marginals.MOST_BINS + 1 and age.bars[-1].name == MISSING and len(age.ends) == 25
    missing = [
        [float(((table[:, 0] == 40) & (table[:, 4] == label)).mean()) for label in (0, 1)] for table in (first, second)
    ]
    assert age.bars[-1] == Bar(MISSING, *map(tuple, missing))
    assert [bar.name for bar in pain.bars] == ["none", "some", "much"]
    assert came.ends[0] == "2001-01-01" and not ward.ends
    shown = {bar.name: math.fsum(bar.real or ()) for bar in ward.bars}
    assert len(shown) == marginals.MOST_CATEGORIES and "11 others" in shown
    assert list(shown.values())[:-1] == sorted(list(shown.values())[:-1], reverse=True)
    assert sick.distance == pytest.approx(abs((first[:, 4] == 1).mean() - (second[:, 4] == 1).mean()))
    alone = panels(SCHEMA, first, None)
    assert all(panel.distance is None and panel.bars[0].real is None for panel in alone)


@pytest.mark.parametrize(
    ("label", "shown", "which"),
    [
        (Categorical(name="y", categories=WARDS[:6]), WARDS[:6], range(6)),
        (Categorical(name="y", categories=WARDS[:8]), (*WARDS[:5], "3 others"), [0, 1, 2, 3, 4, 5, 5, 5]),
        (
            Ordinal(name="y", categories=tuple("abcdefg")),
            ("a", "b", "c", "d", "e", "f to g"),
            [0, 1, 2, 3, 4, 5, 5],
        ),
        (
            Numeric(name="y", low=0, high=120, bins=12),
            ("0 to 20", "20 to 40", "40 to 60", "60 to 80", "80 to 100", "100 to 120"),
            np.arange(12) // 2,
        ),
    ],
)
def test_many_classes_are_shown_together(label: Any, shown: tuple[str, ...], which: Any) -> None:
    schema = TableSchema(label="y", columns=(Numeric(name="x", low=0, high=1, bins=2), label))
    names, found = shown_classes(schema)
    assert names == shown and found.tolist() == list(which)


def test_a_bar_far_longer_than_the_others_is_cut() -> None:
    def bars(*totals: float) -> list[Bar]:
        return [Bar("", (total,)) for total in totals]

    assert cut_at(bars(0.9, 0.06, 0.04)) == 0.12
    assert cut_at(bars(0.5, 0.3, 0.2)) == 0.5
    assert cut_at(bars(0.9, 0.1)) == 0.9  # two can be read as they are
    assert cut_at(bars(1.0, 0.0, 0.0)) == 1.0 and cut_at(bars(0.0)) > 0.0


def pixels(image: Any, colour: str) -> np.ndarray:
    return (np.asarray(image) == np.array(ImageColor.getrgb(colour))).all(axis=2)


def test_lengths_of_bars_are_the_shares() -> None:
    schema = TableSchema(
        label="sick",
        columns=(
            Categorical(name="sex", categories=("f", "m")),
            Categorical(name="sick", categories=("no", "yes")),
        ),
    )
    codes = np.repeat([[0, 0], [0, 1], [1, 0]], [60, 20, 20], axis=0)
    image = picture(schema, codes, None)
    width = round((marginals_picture.MARGIN + marginals_picture.WIDTH) * marginals_picture.SCALE)
    head = pixels(image, "#dddddd")[:, :width].sum(axis=1).argmax()  # the line under the first panel's title
    areas = [pixels(image, colour)[head:, :width].sum() for colour in marginals_picture._COLOURS[:2]]
    assert areas[0] / areas[1] == pytest.approx(80 / 20, rel=0.02)
    rows = pixels(image, marginals_picture._COLOURS[0])[head:, :width].sum(axis=1)
    lengths = sorted(set(rows[rows > 0].tolist()))
    assert lengths[-1] / lengths[0] == pytest.approx(3.0, rel=0.02)


def test_the_picture_is_the_same_for_the_same_table_and_shows_both() -> None:
    first, second = random_codes(SCHEMA, 200), random_codes(SCHEMA, 100, seed=1)
    image = picture(SCHEMA, first, second, "study")
    again = picture(SCHEMA, first, second, "study")
    assert image.tobytes() == again.tobytes()
    for colour in marginals_picture._COLOURS[:2]:
        assert pixels(image, colour).sum() > 1000 and pixels(image, marginals_picture._pale(colour)).sum() > 1000
    alone = picture(SCHEMA, first, None)
    assert not pixels(alone, marginals_picture._pale(marginals_picture._COLOURS[0])).any()


def test_odd_tables_can_be_drawn() -> None:
    long = TableSchema(
        label="y" * 300,
        columns=(
            Numeric(name="größe, 体重 und mehr" * 9, low=-1e15, high=1e15, bins=1, missing=True),
            Date(name="d", first="1000-01-01", last="9999-12-31", bins=4096),
            *(Categorical(name=f"c{at}", categories=("長い名前 " * 40 + "x",)) for at in range(70)),
            Categorical(name="y" * 300, categories=tuple(f"{at}" * 30 for at in range(30))),
        ),
    )  # type: ignore[arg-type]
    codes = random_codes(long, 3)
    image = picture(long, codes, codes[:1], "n" * 500)
    assert image.width < 2200 and image.height < 10_000
    assert len(panels(long, codes, None)) == marginals.MOST_PANELS + 1
    assert panels(long, codes, None)[-1].title == long.label


def test_made_patients_fit_a_page() -> None:
    test = made_patients.rows("test")
    image = picture(test.schema, codes_of(test.schema, test.rows, test.labels), None)
    assert image.width < 2000 and image.height < 2 * image.width
