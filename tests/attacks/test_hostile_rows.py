"""Hostile rows, from the file to the clean sums: one moves them by 1 at most, whatever it holds and wherever it stands.

The contract tests (`tests/methods`) do the same to records that are read already. Here they come as a CSV file, as a
Parquet file of text or of numbers, and from a database.
"""

from __future__ import annotations

import gzip
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records import load
from dpdd.common.data.formats import DataSpec
from dpdd.common.methods.registry import QUERIES, query
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.wire.request import ReleaseRequest
from tests.common.data.formats.tables.sources import NAMES, RECORDS, SCHEMA, Record, as_csv, spec, write_sqlite
from tests.methods.harness import Sums, distances, same, watched

pytest.importorskip("sqlalchemy", reason="queries need SQLAlchemy (dpdd[sql])")

LETTERS = 5_000_000
"""More than a line may have, and a thousand times what a cell may; a billion letters are below."""
HOSTILE: dict[str, Record] = {
    "NaN": ("nan", "NaN", "heart", "nan", "nan", "nan"),
    "infinities": ("1e999", "-inf", "lung", "9999-12-31", "inf", "none"),
    "huge numbers": ("9" * 300, "-1e308", "heart", "0001-01-01", "9" * 400, "some"),
    "no category": ("1", "2", "heart", "2010-01-01", "Ω\u202e", "worst"),
    "no label": ("1", "2", "kidney", "2010-01-01", "1", "none"),
    "empty": ("", "", "", "", "", ""),
    "nothing but spaces and zeros": (" ", "\t", "heart", " ", "\0", "\0"),
    "text for numbers": ("old", "DROP TABLE", "lung", "yesterday", "a,b;c", "\ufffd"),
    "a huge cell": ("1", "2", "heart", "2010-01-01", "x" * LETTERS, "none"),
    "a huge number": ("9" * LETTERS, "2", "heart", "2010-01-01", "1", "none"),
    "a huge label": ("1", "2", "heart" * LETTERS, "2010-01-01", "1", "none"),
}
OTHERS: list[Record] = [(*record[:4], record[4] or "1", record[5]) for record in RECORDS * 3]
METHODS = ("column-histograms", "dp-merf", "sps-table", "kip-table", "dp-cda", "dp-kip", "private-evolution")
SETTINGS = {
    "dp-merf": {"features": 16},
    "dp-cda": {"order": 1, "class_size": 1, "mixtures_per_class": 2},
    "dp-kip": {"rate": 1.0, "support_per_class": 2},
    "private-evolution": {"rounds": 1, "population": 5, "generator": "rows", "backbone": ""},
}
"""Small ones; and everybody is in every sample."""


def write_csv(base: Path, records: Sequence[Record]) -> DataSpec:
    (base / "records.csv").write_text(as_csv(records), encoding="utf-8")
    return spec("csv")


def write_parquet(base: Path, records: Sequence[Record]) -> DataSpec:
    columns = {name: pa.array([str(record[at]) for record in records]) for at, name in enumerate(NAMES)}
    pq.write_table(pa.table(columns), base / "records.parquet")
    return spec("parquet")


def write_database(base: Path, records: Sequence[Record]) -> DataSpec:
    (base / "records.db").unlink(missing_ok=True)
    write_sqlite(base / "records.db", records)
    return spec("sql", url="sqlite:///records.db", query="SELECT * FROM patients")


FORMS: dict[str, Callable[[Path, Sequence[Record]], DataSpec]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "sql": write_database,
}


def request(method: str) -> ReleaseRequest:
    named = query(method).settings(SETTINGS.get(method, {})).on_wire()
    return ReleaseRequest("x", method, named, float("inf"), 1e-5, SCHEMA.classes, SCHEMA.shape, 1, table=SCHEMA)


def sums(base: Path, source: DataSpec, method: str) -> Sums:
    """The clean sums of all records of a source."""
    asked, records = request(method), load(source, base)
    settings = query(method).settings(asked.settings)
    plan = query(method).plan(asked, settings)
    with watched(range(len(records))) as taken:
        mechanism(query(method)).run(records, asked, settings, plan, SeededEntropy(1), silent)
    return taken


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[Path, Sequence[Record]], DataSpec]:
    return FORMS[request.param]


def test_every_method_for_tables_is_tried() -> None:
    taking = {name for name, each in QUERIES.items() if "table" in {kind.value for kind in each.data_kinds}}
    assert set(METHODS) <= taking <= {*METHODS, "evaluation"}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_row_moves_the_sums_by_one_at_most(
    form: Callable[[Path, Sequence[Record]], DataSpec], what: str, tmp_path: Path
) -> None:
    """In the first place, in the last and between others; and the others' codes stay what they are."""
    for method in METHODS if what in ("NaN", "no label") else METHODS[:1]:
        without = sums(tmp_path, form(tmp_path, OTHERS), method)
        found = []
        for place in (0, 7, len(OTHERS)):
            records = [*OTHERS[:place], HOSTILE[what], *OTHERS[place:]]
            found.append(sums(tmp_path, form(tmp_path, records), method))
        assert max(distances(found[0], without)) <= 1.0
        assert same(found[0], found[1]) and same(found[1], found[2])


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_rows_leaves_no_trace(
    form: Callable[[Path, Sequence[Record]], DataSpec], method: str, tmp_path: Path
) -> None:
    records = [*OTHERS, *(record for name, record in HOSTILE.items() if "huge" not in name)]
    whole = sums(tmp_path, form(tmp_path, records), method)
    for seed in range(3):
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(records))
        assert same(sums(tmp_path, form(tmp_path, [records[at] for at in order]), method), whole)
    halves = [sums(tmp_path, form(tmp_path, part), method) for part in (records[:11], records[11:])]
    for name, array in whole[0].items():
        np.testing.assert_array_equal(sum(half[0][name] for half in halves), array)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300, None])
def test_a_parquet_file_of_numbers(value: float | None, tmp_path: Path) -> None:
    """Its own NaN and infinities, not text that looks like them."""

    def written(ages: list[float | None]) -> DataSpec:
        count = len(ages)
        days: NDArray[Any] = np.array(["2010-01-01"] * count, "datetime64[D]")
        wards = ["heart", "lung"] * count
        columns = {"age": ages, "dose": ages, "ward": wards[:count], "day": days, "code": [1] * count}
        pq.write_table(pa.table({**columns, "pain": ["none"] * count}), tmp_path / "records.parquet")
        return spec("parquet")

    known: list[float | None] = [1.0, 50.0, 99.0, 3.5]
    for method in METHODS:
        without = sums(tmp_path, written(known), method)
        assert max(distances(sums(tmp_path, written([*known, value]), method), without)) <= 1.0


# Memory


BILLION = 1_000_000_000
LARGE = 50_000_000


def grown(base: Path, source: DataSpec) -> float:
    """By how many MB the peak of a process of its own grows while it reads, and that it keeps the other records."""
    (base / "spec.json").write_text(source.model_dump_json(exclude_unset=True))
    command = [sys.executable, "-m", "tests.attacks.test_hostile_rows", str(base)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert said.returncode == 0, said.stdout + said.stderr
    records, before, after = map(float, said.stdout.split())
    assert records == len(OTHERS)
    return (after - before) / 1024


def test_a_cell_of_a_billion_letters_takes_no_memory_of_a_csv_file(tmp_path: Path) -> None:
    """A line is at most a megabyte, so what is longer passes by; gzipped, since nobody wants to write it."""
    part = 10_000_000
    letters = gzip.compress(b"x" * part, 1)
    text = as_csv(OTHERS).encode()
    head, tail = text[:-1] + b"\n1,2,heart,2010-01-01,1,", b"\n"
    (tmp_path / "records.csv").write_bytes(gzip.compress(head) + letters * (BILLION // part) + gzip.compress(tail))
    assert grown(tmp_path, spec("csv")) < 120.0


def test_a_huge_cell_of_a_database_is_not_sent(tmp_path: Path) -> None:
    """SQLite itself holds the cell once; here it is not copied."""
    source = write_database(tmp_path, OTHERS)
    connection = sqlite3.connect(tmp_path / "records.db")
    cell = f"CAST(zeroblob({LARGE}) AS TEXT)"
    connection.execute(f"INSERT INTO patients VALUES (1, {cell}, 'kidney', '2010-01-01', {cell}, 'none')")
    connection.commit()
    connection.close()
    assert grown(tmp_path, source) < 3 * LARGE / 1e6


def test_a_huge_cell_of_a_parquet_file_takes_a_few_times_itself(tmp_path: Path) -> None:
    """pyarrow reads a page whole, and takes four copies; more than one of ours is not there."""
    huge = (1, 2, "kidney", "2010-01-01", "x" * LARGE, "none")
    assert grown(tmp_path, write_parquet(tmp_path, [*OTHERS, huge])) < 6.8 * LARGE / 1e6


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    home = Path(sys.argv[1])
    declared = DataSpec.model_validate_json((home / "spec.json").read_text())
    small = home / "small"  # what the reader needs anyway: imports and buffers
    small.mkdir(exist_ok=True)
    load(FORMS[declared.format](small, OTHERS), small)
    peak = _status("VmHWM")
    print(len(load(declared, home)), peak, _status("VmHWM"), flush=True)
    os._exit(0)  # it is about memory, not about how libraries' threads end
