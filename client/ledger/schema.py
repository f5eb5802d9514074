"""The ledger's tables in SQLite: entries that can only be appended, and one checkpoint."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dpdd.client.ledger.hash_chain import Entry, canonical
from dpdd.common.files.untrusted import shown

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, request_id TEXT NOT NULL,
    body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, signature BLOB NOT NULL
) STRICT""",
    "CREATE UNIQUE INDEX IF NOT EXISTS one_of_each ON entries (request_id, kind) "
    "WHERE kind IN ('reserve', 'stage', 'commit')",
    "CREATE UNIQUE INDEX IF NOT EXISTS once ON entries (json_extract(body, '$.root'), json_extract(body, '$.stage')) "
    "WHERE kind = 'stage'",
    "CREATE UNIQUE INDEX IF NOT EXISTS recovered_once ON entries (request_id) WHERE kind = 'recovered'",
    "CREATE INDEX IF NOT EXISTS decisions ON entries (request_id, seq) WHERE kind IN ('approve', 'deny')",
    "CREATE INDEX IF NOT EXISTS paid_when ON entries (time) WHERE kind IN ('reserve', 'recovered')",
    "CREATE INDEX IF NOT EXISTS rebuilt ON entries (json_extract(body, '$.entry')) "
    "WHERE kind IN ('recovered', 'stage', 'commit', 'resume')",
    "CREATE TABLE IF NOT EXISTS checkpoint (only INTEGER PRIMARY KEY CHECK (only = 1), body TEXT NOT NULL, "
    "signature BLOB NOT NULL) STRICT",
    "CREATE TRIGGER IF NOT EXISTS append_only BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS keep_all BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
"""The file's schema cookie, which is in the checkpoint, shows that somebody else changed the schema: whoever wants to
alter entries has to drop the triggers first."""


def make_schema(db: sqlite3.Connection) -> None:
    """Make what is missing; within a transaction."""
    for statement in SCHEMA:
        db.execute(statement)


def schema_cookie(db: sqlite3.Connection) -> int:
    """A number that SQLite changes with the schema."""
    return int(db.execute("PRAGMA schema_version").fetchone()[0])


def is_whole(db: sqlite3.Connection, *, thorough: bool) -> bool:
    """Whether the file has the length that it says; `thorough` reads all of it. Within a transaction."""
    file = db.execute("PRAGMA database_list").fetchone()[2]
    pages = [int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size")]
    if Path(file).stat().st_size != pages[0] * pages[1]:
        return False
    return not thorough or db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"


def insert(db: sqlite3.Connection, entry: Entry) -> None:
    """Append an entry."""
    row = (entry.seq, entry.time, entry.kind, entry.request_id, canonical(entry.body))
    db.execute(
        "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, entry.previous, entry.hash, entry.signature)
    )


def explain(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """What is wrong with the file, for people."""
    if isinstance(error, UnicodeDecodeError):
        return "this is not a whole ledger any more (a text in it is damaged)"
    text = shown(error, 200)  # parts of a damaged file may be in it
    if "locked" in text:
        return "another process is writing the ledger and did not finish in time"
    if "full" in text:
        return "the disk is full, so the ledger cannot be written"
    if "readonly" in text or "read-only" in text:
        return "the ledger is read-only for this user"
    if "unable to open" in text:
        return "the ledger cannot be opened (does the folder exist, and may this user write it?)"
    if "malformed" in text or "not a database" in text or "no such table" in text:
        return f"this is not a whole ledger any more ({text})"
    return f"the ledger failed ({text})"
