"""Attacks by way of tables: records that want to be noticed, silos that send odd rows, schemas that are traps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.client.silo import Silo
from dpdd.common.data.formats.spec import SourceSpec
from dpdd.common.data.formats.tables import parquet_table
from dpdd.common.data.table.schema import MOST_TEXT, TableSchema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.errors import DataError, IntegrityError, WireError
from dpdd.common.synthesis.distilled_set import from_arrays
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.request import ReleaseRequest, decode_request
from dpdd.v1 import request_pb2

SCHEMA = TableSchema.model_validate(
    {
        "label": "ward",
        "columns": [
            {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10, "missing": True},
            {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]},
            {"name": "day", "type": "date", "first": "2001-01-01", "last": "2024-12-31"},
        ],
    }
)
REQUEST = ReleaseRequest(
    "wards", "dp-merf", {"features": 16}, 1.0, 1e-5, SCHEMA.classes, SCHEMA.shape, public_seed=3, table=SCHEMA
)
HEADER, GOOD = "age,ward,day\n", "42,heart,2010-01-01\n17,lung,2001-02-03\n" * 30
HOSTILE = [
    "1e999,heart,9999-12-31\n",
    f"{'x' * 3_000_000},heart,2010-01-01\n",
    '"never closed,heart,2010-01-01\n',
    "too,many,cells,here\n\n,\n",
    "\0,\0,\0\n",
    "nan,lung,0000-00-00\n",
    "-inf,lung,2010-13-01\n,,\n",
    "42,heart\r,2010-01-01\n",
    "\ufffd\u202e,Heart,2010-01-01\n",
]


def make_silo(folder: Path, rows: str) -> Silo:
    folder.mkdir(parents=True)
    (folder / "records.csv").write_bytes((HEADER + rows).encode())
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
""")
    return Silo.initialise(folder)


@pytest.mark.parametrize("rows", ["", *HOSTILE, "".join(HOSTILE)], ids=lambda rows: repr(rows[:20]))
def test_no_cell_stops_an_answer(tmp_path: Path, rows: str) -> None:
    """A silo that could answer without a record answers with it: otherwise its silence would tell."""
    beside_others, alone = GOOD[:60] + rows + GOOD[60:], rows
    for name, text in (("north", beside_others), ("south", alone)):
        answer = make_silo(tmp_path / name, text).answer(REQUEST.encode())
        assert isinstance(answer, SignedReleaseBytes)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.array([[11.0, 0.0]], np.float32)},
        {"rows": np.array([[0.5, 0.0]], np.float32)},
        {"rows": np.array([[-1.0, 0.0]], np.float32)},
        {"rows": np.array([[np.nan, 0.0]], np.float32)},
        {"rows": np.array([[np.inf, 0.0]], np.float32)},
        {"rows": np.array([[0.0, 0.0]], np.float64)},
        {"rows": np.array([[0.0]], np.float32)},
        {"rows": np.zeros((1, 2, 1), np.float32)},
        {"rows": np.zeros((3, 2), np.float32), "labels": np.zeros(3, np.int64)},
        {"labels": np.array([2])},
        {"images": np.zeros((1, 2), np.float32)},
    ],
    ids=str,
)
def test_a_silo_sends_rows_that_are_none(change: dict[str, np.ndarray]) -> None:
    honest = {"rows": np.array([[10.0, 3.0]], np.float32), "labels": np.array([1])}
    assert len(from_arrays(honest, SCHEMA.classes, SCHEMA.shape, 1, "north", table=SCHEMA).dataset) == 1
    with pytest.raises(IntegrityError, match="silo north sent a set whose"):
        from_arrays({**honest, **change}, SCHEMA.classes, SCHEMA.shape, 1, "north", table=SCHEMA)


def with_table(text: str) -> bytes:
    message = request_pb2.ReleaseRequest.FromString(REQUEST.encode())
    message.table = text
    return message.SerializeToString(deterministic=True)


def column(**values: object) -> str:
    columns = [{"name": "x", **values}, {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]}]
    return json.dumps({"kind": "table", "label": "ward", "columns": columns}, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MOST_TEXT + 1),
        "[" * 100_000,
        '{"columns":' * 10_000,
        column(type="numeric", low=0, high=1, bins=10**9),
        column(type="numeric", low=0, high=1e308, bins=4096, scale="log"),
        column(type="numeric", low="NaN", high=1),
        column(type="numeric", low=-1, high="1e400"),
        column(type="date", first="0001-01-01", last="9999-12-31", bins=5000),
        column(type="ordinal", categories=["a"] * 5000),
        column(type="ordinal", categories=["\ud800"]),
        column(type="pickle"),
        SCHEMA.text.replace("heart", "lung"),
        SCHEMA.text.replace('"age"', '"ward"', 1),
    ],
    ids=lambda text: text[:40],
)
def test_a_schema_that_is_a_trap_is_refused_by_one_error(text: str) -> None:
    with pytest.raises(WireError):
        decode_request(with_table(text))


def test_a_request_cannot_smuggle_another_schema_past_the_policy(tmp_path: Path) -> None:
    """Nothing but the silo's own schema is answered, even where classes and shape are the same."""
    silo = make_silo(tmp_path / "north", GOOD)
    wider = SCHEMA.columns[0].model_copy(update={"bins": 4096})
    finer = SCHEMA.model_copy(update={"columns": (wider, *SCHEMA.columns[1:])})
    assert (finer.classes, finer.shape) == (SCHEMA.classes, SCHEMA.shape)
    answer = silo.answer(replace(REQUEST, table=finer).encode())
    assert not isinstance(answer, SignedReleaseBytes) and "bins is 4096" in answer.message


@pytest.mark.parametrize(
    ("index", "fits"), [(0, True), (1, True), (None, True), (2, False), (-1, False), (2**31 - 1, False)]
)
def test_a_parquet_cell_points_into_its_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int | None, fits: bool
) -> None:
    """Arrow reads a damaged file's indices as they are: the cell of another, or memory of something else."""
    texts = pa.array(["heart", "lung"])
    column = pa.DictionaryArray.from_arrays(pa.array([0, index], pa.int32()), texts, safe=False)
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"ward": ["heart", "lung"]}), path)
    batch = pa.RecordBatch.from_arrays([column], ["ward"])
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_args, **_options: iter([batch]))
    spec = SourceSpec(format="parquet", path=path.name)
    if fits:
        assert [block.rows for block in parquet_table.blocks(spec, tmp_path, ["ward"])] == [2]
    else:
        with pytest.raises(DataError, match="damaged"):
            list(parquet_table.blocks(spec, tmp_path, ["ward"]))
