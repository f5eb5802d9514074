"""Databases are made whole or not at all, and opened only when they are what they should be."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dpdd.common.errors import DpddError, LedgerError
from dpdd.common.files.database import make_database, open_database

SCHEMA = "CREATE TABLE things (name TEXT);"


def test_one_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    make_database(path, SCHEMA)
    db = open_database(path, "the things", ("things",))
    db.execute("INSERT INTO things VALUES ('x')")
    make_database(path, SCHEMA)
    assert db.execute("SELECT name FROM things").fetchall() == [("x",)]
    assert db.execute("PRAGMA synchronous").fetchone() == (3,)
    db.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["things.sqlite"]


def test_one_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        make_database(tmp_path / "things.sqlite", f"{SCHEMA} CREATE NONSENSE;")
    assert list(tmp_path.iterdir()) == []


def test_opening_makes_nothing_and_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    with pytest.raises(LedgerError, match="the things cannot be opened: No such file"):
        open_database(path, "the things", ("things",), error=LedgerError)
    assert not path.exists()
    make_database(path, SCHEMA)
    with pytest.raises(DpddError, match="the things has no table 'others'"):
        open_database(path, "the things", ("others", "things"))


def test_opening_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    make_database(path, SCHEMA)
    before = path.stat().st_mtime_ns, path.read_bytes()
    path.chmod(0o400)
    db = open_database(path, "the things", ("things",))
    assert db.execute("SELECT count(*) FROM things").fetchone() == (0,)
    db.close()
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
