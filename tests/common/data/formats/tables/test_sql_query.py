"""Queries: SQLite always, PostgreSQL where its programs are installed; read only, and no password in any text."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpdd.common.data.formats.spec import DataSpec, SourceSpec
from dpdd.common.data.formats.tables import sql_query
from dpdd.common.data.table.arrow_cells import LONGEST_BYTES
from dpdd.common.errors import ConfigError, DataError
from tests.common.data.formats.tables.sources import NAMES, RECORDS, codes, expected, spec, write_sqlite

pytest.importorskip("sqlalchemy", reason="queries need SQLAlchemy (dpdd[sql])")
QUERY = "SELECT * FROM patients"


def of_sqlite(query: str = QUERY, **more: Any) -> DataSpec:
    return spec("sql", url="sqlite:///records.db", query=query, **more)


@pytest.mark.parametrize("query", [QUERY, f"{QUERY};\n", "WITH p AS (SELECT * FROM patients) SELECT * FROM p -- all"])
def test_sqlite(tmp_path: Path, query: str) -> None:
    write_sqlite(tmp_path / "records.db", RECORDS)
    assert codes(tmp_path, of_sqlite(query)) == expected(RECORDS)


def test_many_blocks_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sqlite(tmp_path / "records.db", RECORDS * 5)
    monkeypatch.setattr(sql_query, "ROWS", 3)
    assert codes(tmp_path, of_sqlite()) == expected(RECORDS * 5)


def test_cells_of_sqlite_may_be_anything(tmp_path: Path) -> None:
    odd = [
        ("old", b"\xff", "lung", 20010517, 1.0, None),
        (10**18, "1e999", "heart", "2001-05-17 10:00", 2, "x" * 100_000),
        (1, 2, None, None, None, None),
    ]
    write_sqlite(tmp_path / "records.db", odd)
    connection = sqlite3.connect(tmp_path / "records.db")
    connection.execute("INSERT INTO patients VALUES (1, 2, 'heart', '2001-05-17', CAST(X'FF41' AS TEXT), 'none')")
    connection.commit()
    connection.close()
    broken = (1, 2, "heart", "2001-05-17", "?", "none")
    assert codes(tmp_path, of_sqlite()) == expected([*odd, broken])


def test_sqlite_sends_no_cell_that_is_too_long_whatever_its_column_is_declared_as(tmp_path: Path) -> None:
    declared = ["c0 INTEGER", "c1 REAL", "c2 NUMERIC", "c3 TEXT", "c4 BLOB", "c5", "c6 TEXT COLLATE RTRIM"]
    names = [each.split()[0] for each in declared]
    fine = [7, 2.5, "", b"", "0" * LONGEST_BYTES, b"\x00" * LONGEST_BYTES, None, -1, 10**18, "12", " ", "\x00"]
    long = ["9" * (LONGEST_BYTES + 1), "ü" * (LONGEST_BYTES // 2 + 1), "\x00" * (LONGEST_BYTES + 1),
            b"\xff" * (LONGEST_BYTES + 1), " " * (LONGEST_BYTES + 1)]  # fmt: skip
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.execute(f"CREATE TABLE patients ({', '.join(declared)})")
        marks = ", ".join("?" * len(declared))
        connection.executemany(
            f"INSERT INTO patients VALUES ({marks})", ([cell] * len(declared) for cell in [*fine, *long])
        )
        connection.text_factory = bytes
        stored = connection.execute(QUERY).fetchall()
    [block] = sql_query.blocks(of_sqlite(), tmp_path, names)
    columns = [each.to_pylist() if isinstance(each, pa.Array) else list(each) for each in block.columns]
    sent = [[_as_bytes(cell) for cell in row] for row in zip(*columns, strict=True)]
    assert sent[: len(fine)] == [[_as_bytes(cell) for cell in row] for row in stored[: len(fine)]]
    for row, kept in zip(sent[len(fine) :], stored[len(fine) :], strict=True):
        # long digits are a number in a column of numbers, and short there
        assert row == [None if isinstance(cell, bytes) else cell for cell in kept]


def _as_bytes(cell: object) -> object:
    return cell.encode() if isinstance(cell, str) else cell


def test_nothing_is_written(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "records.db", RECORDS)
    before = (tmp_path / "records.db").read_bytes()
    for query in ("DELETE FROM patients RETURNING *", "DROP TABLE patients", "SELECT 1; DROP TABLE patients"):
        with pytest.raises(DataError, match="the query failed"):
            codes(tmp_path, of_sqlite(query))
    assert (tmp_path / "records.db").read_bytes() == before


def test_what_is_wrong_is_one_sentence_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"records\.db does not exist"):
        codes(tmp_path, of_sqlite())
    write_sqlite(tmp_path / "records.db", RECORDS)
    with pytest.raises(DataError, match="has no column 'day'; its columns are: 'age', 'dose', 'ward'"):
        codes(tmp_path, of_sqlite("SELECT age, dose, ward FROM patients"))
    with pytest.raises(DataError) as error:
        codes(tmp_path, of_sqlite("SELECT secret FROM patients"))
    assert "secret" not in str(error.value) and "sqlite:///records.db" in str(error.value)
    monkeypatch.setenv("WARD_PASSWORD", "hunter2")
    away = spec("sql", url="postgresql://reader@127.0.0.1:1/ward", query=QUERY, password_env="WARD_PASSWORD")
    with pytest.raises(DataError) as error:
        codes(tmp_path, away)
    assert "hunter2" not in str(error.value) + repr(error.value.__cause__) and "127.0.0.1:1/ward" in str(error.value)
    assert error.value.__suppress_context__
    monkeypatch.delenv("WARD_PASSWORD")
    with pytest.raises(ConfigError, match="no variable WARD_PASSWORD"):
        codes(tmp_path, away)
    with pytest.raises(ConfigError, match="is its driver there"):
        codes(tmp_path, spec("sql", url="cobol://x/y", query=QUERY))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"query": QUERY}, "needs url"),
        ({"url": "sqlite:///a.db"}, "needs query"),
        ({"url": "sqlite:///a.db", "query": QUERY, "path": "a.db"}, "has a url, not a path"),
        ({"url": "postgresql://me:secret@host/ward", "query": QUERY}, "url holds a password"),
        ({"url": "postgresql://host/ward?password=secret", "query": QUERY}, "url holds a password"),
        ({"url": "a.db", "query": QUERY}, "no address of a database"),
        ({"url": "sqlite:///a.db", "query": QUERY, "password_env": "A", "password_file": "b"}, "leave one out"),
        ({"url": "sqlite:///a.db", "query": QUERY, "separator": ";"}, "separator is for format 'csv'"),
    ],
)
def test_what_is_declared_is_checked(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SourceSpec.model_validate({"format": "sql", **values})
    with pytest.raises(ValueError, match=r"url is for format 'sql'|path"):
        SourceSpec.model_validate({"format": "csv", **values})


# PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The port of a server with a password, on loopback, that this test started and stops."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs its driver (dpdd[sql])")
    programs = [shutil.which(name) for name in ("initdb", "pg_ctl", "postgres")]
    if None in programs:
        pytest.skip("PostgreSQL's initdb, pg_ctl and postgres are not on the path")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    (folder / "password").write_text("hunter2\n")
    user: list[str] = []
    if os.geteuid() == 0:  # which the server refuses to run as
        if shutil.which("setpriv") is None:
            pytest.skip("PostgreSQL does not run as root, and setpriv is not there to be somebody else")
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        for path in (folder, folder / "password"):
            os.chown(path, 65534, 65534)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*arguments: str) -> None:
        quiet = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(folder)}
        subprocess.run([*user, *arguments], check=True, timeout=120, cwd=folder, env=quiet, stdout=subprocess.DEVNULL)

    data = str(folder / "data")
    run("initdb", "-D", data, "-U", "reader", "-A", "scram-sha-256", "--pwfile", str(folder / "password"), "-N")
    options = f"-h 127.0.0.1 -p {port} -k '' -F"
    run("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "-t", "100", "start")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def test_postgresql(postgres: str, tmp_path: Path) -> None:
    import psycopg

    host, _, port = postgres.partition(":")
    address = f"host={host} port={port} user=reader password=hunter2 dbname=postgres"
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TABLE patients (age integer, dose numeric, ward text, day date, code text, pain text, "
            "born timestamptz)"
        )
        for record in RECORDS:
            connection.execute(
                "INSERT INTO patients VALUES (%s, %s, %s, %s, %s, %s, now())", [value or None for value in record]
            )
        connection.execute("INSERT INTO patients VALUES (1, 'NaN', 'lung', 'infinity', '100%%', 'some', 'infinity')")
        connection.execute("INSERT INTO patients VALUES (1, 2, 'lung', '20000-01-01', E'a:b', 'some', now())")
        connection.execute("INSERT INTO patients VALUES (1, 2, 'lung', '0044-03-15 BC', ' 1 ', 'some', now())")
    (tmp_path / "password.txt").write_text("hunter2\n")
    odd = [
        (1, "", "lung", "", "?", "some"),
        (1, 2, "lung", "", "?", "some"),
        (1, 2, "lung", "0044-03-15", "1", "some"),  # before the first day in either era
    ]
    known = [tuple(value or None for value in record) for record in RECORDS]
    url = f"postgresql://reader@{postgres}/postgres"
    asked = spec("sql", url=url, query=QUERY, password_file="password.txt")
    assert codes(tmp_path, asked) == expected([*known, *odd])
    some = spec("sql", url=url, query=f"{QUERY} WHERE code LIKE '1%' AND ward <> ' :x'", password_file="password.txt")
    assert len(codes(tmp_path, some)) == 3
    assert list(sql_query.header(asked, tmp_path)) == [*NAMES, "born"]
    for query in ("DELETE FROM patients RETURNING *", "WITH d AS (DELETE FROM patients RETURNING *) SELECT * FROM d"):
        with pytest.raises(DataError, match="the query failed"):
            codes(tmp_path, spec("sql", url=url, query=query, password_file="password.txt"))
    (tmp_path / "password.txt").write_text("wrong\n")
    with pytest.raises(DataError) as error:
        codes(tmp_path, asked)
    assert "wrong" not in str(error.value)
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*) FROM patients").fetchone() == (len(RECORDS) + 3,)
