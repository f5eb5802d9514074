"""Public tables: schemas are known without files, files are found and read, the split is a record's own."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpdd.common.data import adult, cervical, table_benchmarks
from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.uci_files import UciFile, in_test
from dpdd.common.errors import DataError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, {gain}, 0, 40, "
    "United-States, {label}"
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $DPDD_DATA, and a home without a cache."""
    folder = tmp_path / "data"
    (folder / "tabular").mkdir(parents=True)
    monkeypatch.setenv("DPDD_DATA", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def full_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not os.environ.get("DPDD_DATA") and SHARED.is_dir():
        monkeypatch.setenv("DPDD_DATA", str(SHARED))
    if not all(map(table_benchmarks.available, table_benchmarks.names())):
        pytest.skip("adult and cervical are not on this machine; set DPDD_DATA to a folder with tabular/")
    yield


def adult_lines(count: int) -> list[str]:
    return [ADULT_ROW.format(gain=at, label=">50K" if at % 4 == 0 else "<=50K") for at in range(count)]


def test_schemas_are_known_without_files(data: Path) -> None:
    known = {
        name: (len(table.features), sum(isinstance(column, Numeric) for column in table.features), table.label)
        for name in table_benchmarks.names()
        for table in [table_benchmarks.schema(name)]
    }
    assert known["adult"] == (14, 6, "income")
    assert known["cervical"] == (35, 12, "Biopsy") and known["cervical-risk-factors"] == (32, 12, "Biopsy")
    for name in ("adult", "cervical"):
        assert not table_benchmarks.available(name)
        with pytest.raises(DataError, match=rf"(?s)^{name} was not found: .*data/tabular; .*UCI Machine Learning"):
            table_benchmarks.load(name, "train")
    assert cervical.RISK_FACTORS.columns == tuple(
        column for column in cervical.SCHEMA.columns if column.name not in cervical.EXAMINATIONS
    )


def test_adult_counts_a_zero_amount_by_itself_and_allows_what_is_documented_as_missing() -> None:
    columns = {column.name: column for column in adult.SCHEMA.columns}
    for name in ("capital-gain", "capital-loss"):
        column = columns[name]
        assert isinstance(column, Numeric) and column.edges[:2].tolist() == [0, 1]
    assert {name for name, column in columns.items() if column.missing} == {"workclass", "occupation", "native-country"}
    sizes = [len(column.categories) for column in columns.values() if isinstance(column, Categorical)]
    assert sizes == [8, 16, 7, 14, 6, 5, 2, 41, 2]


@pytest.mark.parametrize("file", ["tabular/adult.data", "adult.data.gz", "tabular/adult.csv"])
@pytest.mark.parametrize("header", [True, False])
def test_a_file_is_found_and_read_with_or_without_a_header(data: Path, file: str, header: bool) -> None:
    lines = [*([", ".join(adult.SCHEMA.names)] if header else []), *adult_lines(300), ""]
    text = ("\n".join(lines) + "\n").encode()
    (data / file).write_bytes(gzip.compress(text) if file.endswith(".gz") else text)
    train, test = (table_benchmarks.load("adult", split) for split in ("train", "test"))
    assert len(train) + len(test) == 300 and 30 < len(test) < 90  # 60 expected, sd 7
    assert train.labels.sum() + test.labels.sum() == 75
    gain = next(at for at, column in enumerate(adult.SCHEMA.features) if column.name == "capital-gain")
    assert set(train.rows[:, gain]) > {0.0, 1.0}


def test_the_split_is_a_records_own(data: Path) -> None:
    lines = adult_lines(400)
    path = data / "tabular" / "adult.data"
    path.write_text("\n".join(lines))
    test = {record for record in adult.FILE.records() if in_test(record, adult.TEST_SHARE)}
    path.write_text("\n".join([*lines[::-1], *lines[:50]]))
    again = [record for record in adult.FILE.records() if in_test(record, adult.TEST_SHARE)]
    assert set(again) == test and len(again) > len(test)


def test_missing_cells_are_missing_and_a_label_with_a_full_stop_is_one() -> None:
    record = ADULT_ROW.format(gain=7, label=">50K.").replace("State-gov", "?").split(", ")
    named = adult.columns([record])
    assert named["workclass"] == [None] and named["income"] == [">50K"] and named["age"] == ["39"]
    answers = ["18", "4.0", "?", *["0.0"] * 32, "1"]
    read = cervical.columns([answers])
    assert read["Biopsy"] == ["yes"] and read["Smokes"] == ["no"]
    assert np.isnan(read["First sexual intercourse"]).all() and read["Number of sexual partners"].tolist() == [4.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"1, 2\n1, 2, 3\n", r"things\.csv, line 2: a record has 2 cells, and this one 3"),
        (b"\xff\xfe1,2\n", r"things\.csv cannot be read as a file of comma-separated values"),
    ],
)
def test_a_damaged_file_is_one_sentence(data: Path, text: bytes, sentence: str) -> None:
    (data / "things.csv").write_bytes(text)
    file = UciFile("things", ("things.csv",), cells=2, first_cell="a", advice="get it")
    with pytest.raises(DataError, match=sentence):
        list(file.records())


@pytest.mark.usefixtures("full_data")
def test_the_real_files_have_the_documented_sizes() -> None:
    for name, sizes in {"adult": [26100, 6461], "cervical": [581, 277]}.items():
        train, test = (table_benchmarks.load(name, split) for split in ("train", "test"))
        assert [len(train), len(test)] == sizes
        missing = [column.values for column in train.schema.features]
        declared = np.array([column.missing for column in train.schema.features])
        assert not ((train.rows == np.array(missing)).any(axis=0) & ~declared).any()
    kept = table_benchmarks.load("adult", "train").labels.mean()
    assert 0.23 < kept < 0.25
