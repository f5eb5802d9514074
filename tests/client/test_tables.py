"""A silo with a table: another schema is refused before anything is spent, and no cell stops an answer afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.applicability import obstacles
from dpdd.client.cli import main
from dpdd.client.rehearsal import rehearse
from dpdd.client.silo import Silo
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.plan import decode_report, encode_report
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import ReleaseRequest

AGE = {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10, "missing": True}
WARD = {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]}
DAY = {"name": "day", "type": "date", "first": "2001-01-01", "last": "2024-12-31"}
SCHEMA = TableSchema.model_validate({"label": "ward", "columns": [AGE, WARD, DAY]})
HEADER = "age,ward,day\n"
GOOD = "42,heart,2010-01-01\n17,lung,2001-02-03\n" * 30


def make_silo(folder: Path, rows: str = GOOD, extra: str = "") -> Silo:
    folder.mkdir(parents=True)
    (folder / "records.csv").write_text(HEADER + rows)
    (folder / "silo.toml").write_text(f"""
name = "{folder.name}"
[data]
format = "csv"
path = "records.csv"
{toml_of(SCHEMA)}
[budget]
epsilon = 4.0
delta = 1e-4
[policy]
methods = ["dp-merf"]
epsilon_per_request = 2.0
approval = "auto"
{extra}""")
    return Silo.initialise(folder)


def request(schema: TableSchema | None = SCHEMA, run: str = "wards") -> ReleaseRequest:
    classes, shape = (("heart", "lung"), (2,)) if schema is None else (schema.classes, schema.shape)
    return ReleaseRequest(run, "dp-merf", {"features": 16}, 1.0, 1e-5, classes, shape, public_seed=3, table=schema)


def entries(silo: Silo) -> int:
    ledger = silo.ledger()
    try:
        return len(ledger.entries())
    finally:
        ledger.close()


def test_a_table_is_answered(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    answer = silo.answer(request().encode())
    assert isinstance(answer, SignedReleaseBytes)
    assert set(open_signed(answer.data, silo.public_key).arrays) == {"embedding", "count"}


@pytest.mark.parametrize(
    ("columns", "label", "sentence"),
    [
        ([{**AGE, "high": 90}, WARD, DAY], "ward", "column 'age': high is 90 for the request and 100 for this silo"),
        ([AGE, WARD, {**DAY, "missing": True}], "ward", "column 'day': missing is true for the request and false"),
        ([WARD, AGE, DAY], "ward", "columns are 3 ('ward', 'age', 'day') for the request"),
        ([AGE, WARD, DAY], "day", "label is 'day' for the request and 'ward' for this silo"),
        ([AGE, {**WARD, "categories": ["heart", "lung", "skin"]}, DAY], "ward", "categories are 3 (..., 'skin')"),
    ],
)
def test_another_schema_is_refused_before_anything_is_read(
    tmp_path: Path, columns: list[dict[str, object]], label: str, sentence: str
) -> None:
    silo, before = make_silo(tmp_path / "north"), 0
    (tmp_path / "north" / "records.csv").unlink()
    before = entries(silo)
    other = request(TableSchema.model_validate({"label": label, "columns": columns}))
    answer = silo.answer(other.encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.NOT_ALLOWED and sentence in answer.message
    assert entries(silo) == before
    report = decode_report(encode_report(rehearse(silo, other.encode())))
    assert report.refusal is not None and sentence in report.refusal.message and report.declared.table == SCHEMA


def test_rows_without_a_schema_are_refused(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    answer = silo.answer(request(None).encode())
    assert isinstance(answer, Refusal) and "columns are not declared for the request" in answer.message
    images = replace(request(None), shape=(1, 8, 8))
    answer = silo.answer(images.encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.NOT_ALLOWED


def test_preflight_says_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = GOOD + "1,kidney,2010-01-01\n1,heart,never\n1,2,3,4\n" + ",heart,2010-01-01\n" * 80
    silo = make_silo(tmp_path / "north", rows)
    assert obstacles(silo) == {"dp-merf": None}
    assert main(["preflight", "--silo", str(silo.folder)]) == 0
    said = capsys.readouterr().out
    assert "140 records of 2 columns and a label" in said and "57.1%" in said
    for note in (
        "column 'age': 57% of the records have no value that it declares",
        "1 records are left out: they have no value in 'ward', where none may be missing",
        "1 records are left out: they have no value in 'day'",
        "1 lines of the file are no records",
    ):
        assert note in said
    assert main(["preflight", "--json", "--silo", str(silo.folder)]) == 0
    assert '"left_out": {' in capsys.readouterr().out


def test_records_are_held_out_one_by_one(tmp_path: Path) -> None:
    """The holdout reads the codes of a record, so a table can have one."""
    silo = make_silo(tmp_path / "north", GOOD, "[evaluation]\nholdout = 0.4\n")
    assert isinstance(silo.answer(request().encode()), SignedReleaseBytes)


def test_the_same_table_in_another_order_has_the_same_sums(tmp_path: Path) -> None:
    simulated = "[simulation]\nallow_no_noise = true\nnoise_seed = 1\n"
    lines = GOOD.splitlines(keepends=True)
    sums = []
    for name, rows in (("north", GOOD), ("south", "".join(lines[::-1]))):
        silo = make_silo(tmp_path / name, rows, simulated)
        answer = silo.answer(replace(request(), epsilon=float("inf")).encode())
        assert isinstance(answer, SignedReleaseBytes)
        sums.append(open_signed(answer.data, silo.public_key).arrays)
    for name, array in sums[0].items():
        np.testing.assert_array_equal(array, sums[1][name])
