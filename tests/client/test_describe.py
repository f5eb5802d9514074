"""`dpdd-client describe`: a schema from names and types alone, or from values, under a warning."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.client.cli import main
from dpdd.common.data import made_patients
from dpdd.common.data.formats import DataSpec
from tests.common.data.formats.tables.sources import RECORDS, as_csv, write_sqlite

SECRET = "Wolfeschlegel"


def described(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict, str, str]:
    assert main(["describe", *options]) == 0
    out, err = capsys.readouterr()
    return tomllib.loads(out)["data"], out, err


def write_csv(folder: Path, separator: str = ";") -> str:
    rows = [(31, SECRET, "heart", "2010-05-17", "1", "none"), *RECORDS]
    path = folder / "records.csv"
    path.write_text(as_csv(rows, separator), encoding="utf-8")
    return str(path)


def test_names_and_types_are_all_that_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.parquet"
    columns = {
        "age": [31],
        "name": [SECRET],
        "dose": [0.731],
        "day": [datetime.date(2010, 5, 17)],
        "smoker": [True],
        "ward": pa.array(["heart"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), path)
    data, out, err = described(capsys, str(path), "--label", "ward")
    assert not err and not any(value in out for value in (SECRET, "31", "0.731", "2010", "heart"))
    assert data["label"] == "ward" and data["kind"] == "table" and data["format"] == "parquet"
    assert [(column["name"], column["type"]) for column in data["columns"]] == [
        ("age", "numeric"),
        ("name", "categorical"),
        ("dose", "numeric"),
        ("day", "date"),
        ("smoker", "categorical"),
        ("ward", "categorical"),
    ]
    assert data["columns"][0] == {"name": "age", "type": "numeric", "low": "?", "high": "?", "integer": True}
    with pytest.raises(ValueError, match="low"):  # what is not filled in is refused
        DataSpec.model_validate(data)


def test_a_separator_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out, _ = described(capsys, write_csv(tmp_path))
    assert data["separator"] == ";" and SECRET not in out
    assert [column["name"] for column in data["columns"]] == ["age", "dose", "ward", "day", "code", "pain"]


def test_looking_at_values_says_that_they_become_public(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out, err = described(capsys, write_csv(tmp_path), "--look", "--label", "ward")
    assert "becomes public" in err and "becomes PUBLIC" in out
    columns = {column["name"]: column for column in data["columns"]}
    assert columns["age"] == {"name": "age", "type": "numeric", "low": -5, "high": 99, "integer": True, "missing": True}
    assert columns["ward"] == {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]}
    assert columns["day"]["first"] == datetime.date(1999, 1, 1) and columns["day"]["missing"] is True
    assert SECRET in out  # which is what the warning is about


def test_what_is_seen_of_a_database_and_of_many_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sqlite(tmp_path / "a.db", [(at, at / 3, f"w{at}", "2001-01-01", "1", "none") for at in range(200)])
    query = ["--url", f"sqlite:///{tmp_path / 'a.db'}", "--query", "SELECT * FROM patients"]
    data, _, _ = described(capsys, *query)
    assert {column["type"] for column in data["columns"]} == {"?"}
    data, out, _ = described(capsys, *query, "--look")
    assert [column["type"] for column in data["columns"]] == [
        "numeric",
        "numeric",
        "?",
        "date",
        "categorical",
        "categorical",
    ]
    assert "w199" not in out


def test_what_cannot_be_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, sentence in (
        ([], "name a file, or a database"),
        ([write_csv(tmp_path), "--url", "sqlite:///a.db"], "name a file, or a database"),
        ([write_csv(tmp_path), "--label", "x"], "there is no column 'x'"),
        ([str(tmp_path / "x.npz")], "a table is a CSV file"),
        ([str(tmp_path / "x.csv")], "does not exist"),
        ([write_csv(tmp_path), "--separator", "ab"], "separator is one ASCII character"),
    ):
        assert main(["describe", *options]) != 0
        assert sentence in capsys.readouterr().err


def test_a_proposal_that_was_looked_at_reads_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {name: column[:500] for name, column in made_patients.raw("test").items()}
    pq.write_table(pa.table(table), tmp_path / "patients.parquet")
    data, _, _ = described(capsys, str(tmp_path / "patients.parquet"), "--look", "--label", "readmitted")
    spec = DataSpec.model_validate(data)
    assert spec.table is not None and spec.table.names == made_patients.SCHEMA.names
    assert [column.type for column in spec.table.columns] == [column.type for column in made_patients.SCHEMA.columns]
