"""What a dry round told: the table, both lists where they differ, and when nobody is to be asked."""

from __future__ import annotations

import pytest

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.wire.answer import Reason, Refusal
from dpdd.common.wire.plan import Cost, Declared, PlanReport
from dpdd.server.run.dry_round import RehearsalDeadline
from dpdd.server.run.rehearsal import Schema, Word, differences, plan_table, shortage, unlike_fits
from dpdd.server.run.scenario import ExchangeSection

OURS = Schema(("ant", "bee", "cat"), (1, 8, 8), "crop")


def declared(**changes: object) -> Declared:
    return Declared(
        **({"classes": OURS.classes, "shape": OURS.shape, "value_range": (0.0, 1.0), "fit": "crop"} | changes)
    )  # type: ignore[arg-type]


def word(silo: str, reason: Reason | None = None, **changes: object) -> Word:
    refusal = None if reason is None else Refusal("00" * 32, silo, reason, "because")
    cost = Cost(1.0, 1e-5, 2_000_000)
    return Word(silo, PlanReport("00" * 32, silo, declared(**changes), "dpdd 1", cost, refusal))


def test_nothing_is_said_where_nothing_differs() -> None:
    assert differences("east", declared(), OURS) == []
    assert differences("east", declared(fit="pad", value_range=(0.0, 9.0)), Schema(OURS.classes, OURS.shape)) == []


def test_both_lists_and_the_difference_are_shown() -> None:
    text = "\n".join(differences("east", declared(classes=("ant", "cow", "cat")), OURS))
    assert "ant, cow, cat" in text and "ant, bee, cat" in text
    assert "only east has:       cow" in text and "only the scenario:   bee" in text
    assert "in another order" in "\n".join(differences("east", declared(classes=("bee", "ant", "cat")), OURS))
    assert (
        "1 x 8 x 9" in (text := "\n".join(differences("east", declared(shape=(1, 8, 9)), OURS))) and "1 x 8 x 8" in text
    )
    assert "pad" in (text := "\n".join(differences("east", declared(fit="pad"), OURS))) and "crop" in text


def test_long_class_lists_are_cut_but_the_difference_is_found() -> None:
    names = tuple(f"class {number}" for number in range(1000))
    lines = differences("east", declared(classes=(*names[:-1], "odd")), Schema(names, OURS.shape))
    assert all(len(line) < 300 for line in lines)
    assert any("odd" in line for line in lines) and any("class 999" in line for line in lines)


def test_silos_that_say_the_same_share_a_row() -> None:
    words = [word(f"silo-{number:03d}") for number in range(200)]
    words += [word("west", Reason.OVER_BUDGET), Word("east"), Word("north", released=True)]
    lines = plan_table(words).splitlines()
    assert len(lines) == 2 + 4
    assert "silo-004 and 195 more" in lines[4] and "would answer" in lines[4] and "2.00" in lines[4]
    assert "no report" in lines[2] and "released already" in lines[3] and "would refuse (over budget)" in lines[5]


def test_a_quorum_of_willing_silos_is_enough() -> None:
    words = [word("north"), word("east", Reason.DENIED), Word("south", silence="could not"), Word("west")]
    assert shortage(words, 1, "silent") is None
    why = shortage(words, 2, "silent")
    assert why == (
        "1 of 4 silos would answer, and the quorum is 2 (east: would refuse (denied): because; south: could not; "
        "west: silent); nobody was asked to spend anything"
    )
    assert shortage([*words, Word("up", released=True)], 2, "") is None
    assert shortage(words[:1], 5, "") is None  # all there are
    assert "no silo is connected" in (shortage([], 3, "") or "")


def test_silos_that_fit_images_differently_are_named() -> None:
    alike = [word("north"), word("south", fit="exact")]
    assert unlike_fits(alike) is None
    assert unlike_fits([*alike, word("east", fit="pad")]) == (
        "silos fit images of another size in different ways: north by crop; east by pad"
    )


@pytest.mark.parametrize(
    "minutes, deadline, grace, most",
    [(None, 1440.0, 120.0, 86400.0), (None, 4.0, 60.0, 240.0), (30.0, 10.0, 600.0, 600.0), (0.0, 10.0, 0.0, 600.0)],
)
def test_the_time_of_grace(minutes: float | None, deadline: float, grace: float, most: float) -> None:
    section = ExchangeSection(rehearsal_minutes=minutes, deadline_minutes=deadline)
    assert RehearsalDeadline.of(section) == RehearsalDeadline(grace, most)
    other = RehearsalDeadline.of(section, 1.0)
    assert other.most == 60.0 and other.grace <= 60.0


def test_tables_are_compared_column_by_column() -> None:
    age = {"name": "age", "type": "numeric", "low": 0, "high": 100}
    ward = {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]}
    ours = TableSchema.model_validate({"label": "ward", "columns": [age, ward]})
    theirs = TableSchema.model_validate(
        {"label": "ward", "columns": [{**age, "low": 5}, {**ward, "categories": ["heart", "skin"]}]}
    )
    declared = Declared(theirs.classes, theirs.shape, (0.0, 255.0), "exact", theirs)
    assert differences("east", declared, Schema(ours.classes, ours.shape, "exact", ours)) == [
        "column 'age': low of east:                 5",
        "column 'age': low of the scenario:         0",
        "column 'ward': categories of east:         2 (..., 'skin')",
        "column 'ward': categories of the scenario: 2 (..., 'lung')",
    ]
    images = Declared(("a", "b"), (1, 8, 8), (0.0, 255.0), "exact")
    assert "not declared" in differences("east", images, Schema(ours.classes, ours.shape, None, ours))[0]
