"""`dpdd-sim bench-table-classifiers`, called the way the command calls it."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.cli import Commands
from dpdd.common.data import made_patients
from dpdd.scenarios.benchmarks import table_classifiers
from dpdd.scenarios.benchmarks.table_classifiers import parts


def run(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    table_classifiers.add_to(commands)
    return commands.main(["bench-table-classifiers", *arguments])


def test_it_compares_classifiers_of_one_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("made-patients", "--silo", "3000", "--judge", "1000", "--seeds", "1", "--epsilon", "8") == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert "3000 training records are the silo, 1000 others judge, mean of 1" in title
    areas = {" ".join(line.split()[:-3]): float(line.split()[-3]) for line in rows[-4:]}
    assert list(areas) == [
        "naive Bayes: the columns' marginals",
        "Bayes: the mixture's densities",
        "logistic regression on the mixture's rows",
        "logistic regression on the records",
    ]
    assert all(0.8 < area < 0.93 for area in areas.values())
    assert areas["logistic regression on the mixture's rows"] > areas["Bayes: the mixture's densities"]


def test_both_parts_are_training_records_and_apart() -> None:
    one, other = parts("made-patients", 20_000, 6_000)
    assert len(one) == round(12_000 * 20 / 26) and len(one) + len(other) == 12_000
    together = np.concatenate([np.column_stack([part.rows, part.labels]) for part in (one, other)])
    train = made_patients.rows("train")
    assert sorted(together.tolist()) == sorted(np.column_stack([train.rows, train.labels]).tolist())


def test_images_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fashion-slice") != 0
    assert "fashion-slice has images" in capsys.readouterr().err
