"""A silo's pass over a table beside reading it alone: ``python -m tests.common.data.formats.tables.bench_tables``.

A pass reads, encodes, and counts all marginals of sps-table, those of columns and of pairs; codes are what it has in
between. Each figure is of a process of its own, so that the peak of its memory is, too. Alone means pyarrow for files,
block by block with the columns that are asked for, and fetching the rows for the database.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records import load as records_of
from dpdd.common.cli import table
from dpdd.common.data.formats import DataSpec, load
from dpdd.common.data.formats.tables.csv_lines import BLOCK
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SystemEntropy
from dpdd.common.progress import silent
from dpdd.common.wire.request import ReleaseRequest

COLUMNS = 30
FORMS = ("csv", "quoted.csv", "parquet", "sqlite")
WHAT = ("alone", "codes", "pass")


def column(number: int, count: int, random: np.random.Generator) -> tuple[dict[str, object], pa.Array]:
    """What the schema says of a column, and its cells: integers, floats with gaps, days, and categories, in turn."""
    name = f"c{number}"
    gone = random.random(count) < 0.05
    if number % 5 == 0:
        cells = pa.array(random.integers(0, 100, count))
        return {"name": name, "type": "numeric", "low": 0, "high": 100, "integer": True}, cells
    if number % 5 == 1:
        cells = pa.array(np.round(random.lognormal(2, 1, count), 3), mask=gone)
        return {"name": name, "type": "numeric", "low": 0, "high": 1000, "scale": "log", "missing": True}, cells
    if number % 5 == 2:
        days = pa.array(random.integers(11_000, 20_000, count).astype("datetime64[D]"), pa.date32(), mask=gone)
        return {"name": name, "type": "date", "first": "2000-01-01", "last": "2024-12-31", "missing": True}, days
    names = [f"category {letter}" for letter in "abcdefgh"]
    texts = pa.DictionaryArray.from_arrays(pa.array(random.integers(0, 8, count), mask=gone), names).cast(pa.string())
    return {"name": name, "type": "categorical", "categories": names, "missing": number != COLUMNS - 1}, texts


def write(folder: Path, rows: int, block: int = 100_000) -> dict[str, object]:
    """All files, and their schema."""
    random = np.random.default_rng(0)
    declared: list[dict[str, object]] = []
    connection = sqlite3.connect(folder / "records.sqlite")
    writers: dict[str, arrow_csv.CSVWriter | pq.ParquetWriter] = {}
    for start in range(0, rows, block):
        made = [column(number, min(block, rows - start), random) for number in range(COLUMNS)]
        declared = [each for each, _ in made]
        data = pa.table({str(each["name"]): cells for each, cells in made})
        if not writers:
            plain = arrow_csv.WriteOptions(quoting_style="needed")
            writers["csv"] = arrow_csv.CSVWriter(folder / "records.csv", data.schema, write_options=plain)
            quoted = arrow_csv.WriteOptions(quoting_style="all_valid")
            writers["quoted.csv"] = arrow_csv.CSVWriter(
                folder / "records.quoted.csv", data.schema, write_options=quoted
            )
            writers["parquet"] = pq.ParquetWriter(folder / "records.parquet", data.schema)
            connection.execute(f"CREATE TABLE records ({', '.join(data.column_names)})")
        for writer in writers.values():
            writer.write_table(data)
        cells = [each.cast(pa.string()) if pa.types.is_date(each.type) else each for each in data.columns]
        marks = ", ".join("?" * COLUMNS)
        connection.executemany(
            f"INSERT INTO records VALUES ({marks})", zip(*(c.to_pylist() for c in cells), strict=True)
        )
    for writer in writers.values():
        writer.close()
    connection.commit()
    connection.close()
    return {"kind": "table", "label": f"c{COLUMNS - 1}", "columns": declared}


def spec(folder: Path, form: str) -> DataSpec:
    """The declaration of one of them."""
    declared = json.loads((folder / "schema.json").read_text())
    where: dict[str, object] = {"format": form.rpartition(".")[2], "path": str(folder / f"records.{form}")}
    if form == "sqlite":
        where = {"format": "sql", "url": f"sqlite:///{folder}/records.sqlite", "query": "SELECT * FROM records"}
    return DataSpec.model_validate({**where, **declared})


def read_alone(folder: Path, form: str) -> int:
    """Read every cell, and do nothing with it; how many rows there are."""
    if form == "sqlite":
        with sqlite3.connect(folder / "records.sqlite") as connection:
            cursor = connection.execute("SELECT * FROM records")
            return sum(len(rows) for rows in iter(lambda: cursor.fetchmany(8192), []))
    if form == "parquet":
        with pq.ParquetFile(folder / "records.parquet") as file:
            return sum(batch.num_rows for batch in file.iter_batches(1 << 16))
    options = arrow_csv.ReadOptions(block_size=BLOCK)
    with arrow_csv.open_csv(folder / f"records.{form}", read_options=options) as reader:
        return sum(batch.num_rows for batch in reader)


def silo_pass(folder: Path, form: str) -> int:
    """Read, encode, count, privatise; how many rows there are."""
    source = spec(folder, form)
    assert source.table is not None
    chosen = method("sps-table")
    settings = chosen.settings({})
    request = ReleaseRequest(
        "bench", "sps-table", settings.on_wire(), 1.0, 1e-5, source.classes, source.shape, 1, table=source.table
    )
    plan = chosen.plan(request, settings)
    records = records_of(source, folder)
    mechanism(chosen).run(records, request, settings, plan, SystemEntropy(), silent)
    return len(records)


def measure(folder: Path, form: str, what: str) -> None:
    """In a process of its own: print rows, seconds, CPU seconds, and the peak of memory before and after in MB."""
    if what != "alone":
        spec(folder, form)  # imports what it needs
    before = peak()
    started, cpu = time.perf_counter(), time.process_time()
    if what == "alone":
        rows = read_alone(folder, form)
    else:
        rows = silo_pass(folder, form) if what == "pass" else len(load(spec(folder, form), folder))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps([rows, seconds, cpu, before, peak()]))


def peak() -> float:
    """The most memory that this process had so far, in MB. (What `getrusage` says begins with the parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def in_own_process(folder: Path, form: str, what: str) -> list[float]:
    """What `measure` says."""
    module = "tests.common.data.formats.tables.bench_tables"
    command = [sys.executable, "-m", module, "--measure", str(folder), form, what]
    found: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--measure", nargs=3)
    options = parser.parse_args()
    if options.measure:
        measure(Path(options.measure[0]), options.measure[1], options.measure[2])
        return
    cells = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "schema.json").write_text(json.dumps(write(folder, rows)))
            for form in FORMS:
                size = (folder / f"records.{form}").stat().st_size / 1e6
                read, codes, whole = (in_own_process(folder, form, what) for what in WHAT)
                assert read[0] == rows and codes[0] == whole[0] >= 0.9 * rows
                speeds = [f"{rows / each[1]:,.0f}" for each in (read, codes, whole)]
                cpu = [f"{each[2]:.1f}" for each in (read, codes, whole)]
                shares = [f"{read[at] / whole[at]:.2f}" for at in (1, 2)]
                memory = [f"{whole[4] - whole[3]:.0f}", f"{whole[4]:.0f}"]
                cells.append([f"{rows:,}", form, f"{size:.0f}", *speeds, shares[0], *cpu, shares[1], *memory])
    header = ["rows", "file", "MB", "alone, rows/s", "codes, rows/s", "pass, rows/s", "pass/alone"]
    print(table([*header, "alone, CPU s", "codes, CPU s", "pass, CPU s", "of CPU", "more MB", "peak MB"], cells))
    print(f"({COLUMNS} columns; {os.cpu_count()} processors, load {', '.join(f'{x:.1f}' for x in os.getloadavg())})")


if __name__ == "__main__":
    main()
