"""SQLite files that are checked when they are opened, with one sentence for what is wrong.

SQLite takes an empty file for a new database. A registry that was cut to nothing would come back without its silos, and
without those that were revoked; so a database is made whole under another name, and an empty file is never opened.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from dpdd.common.errors import DpddError
from dpdd.common.files.atomic import sync_folder
from dpdd.common.files.untrusted import shown

VERSION = 1
_RESTORE = "restore it from a backup"


def open_database(
    path: Path,
    what: str,
    tables: Collection[str],
    *,
    error: type[DpddError] = DpddError,
    timeout: float = 30.0,
    thorough: bool = True,
    read_only: bool = False,
) -> sqlite3.Connection:
    """The database at `path`, which must be there and have these tables; `what` it is, for people.

    `thorough` reads all of it (`PRAGMA quick_check`), which costs time in proportion to its size. Nothing is
    written, so that a read-only one opens too; with `read_only` nothing can be, then or later.
    """
    db: sqlite3.Connection | None = None
    try:
        if path.stat().st_size == 0:
            raise error(f"{path}: {what} is an empty file: it was cut short; {_RESTORE}")
        name = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
        db = sqlite3.connect(name, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True)
        db.execute("PRAGMA synchronous = EXTRA")
        _check(db, path, what, tables, error, thorough=thorough)
        return db
    except BaseException as caught:
        if db is not None:
            db.close()
        if isinstance(caught, sqlite3.Error | OSError | UnicodeDecodeError):  # Python cannot read a damaged file's text
            raise error(f"{path}: {what} cannot be opened: {_explain(caught)}") from None
        raise


def make_database(path: Path, schema: str) -> None:
    """A new database at `path`, whole or not at all; one that is there stays."""
    if path.exists():
        return
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with closing(sqlite3.connect(partial, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = EXTRA")
            db.executescript(f"{schema}\nPRAGMA user_version = {VERSION};")
        try:
            os.link(partial, path)  # never replaces what another process made meanwhile
        except FileExistsError:
            return
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _check(
    db: sqlite3.Connection, path: Path, what: str, tables: Collection[str], error: type[DpddError], *, thorough: bool
) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise error(f"{path}: {what} has version {version} and was written by a newer dpdd; this one knows {VERSION}")
    present = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    missing = sorted(set(tables) - present)
    if missing:
        raise error(f"{path}: {what} has no table {missing[0]!r}: it is another database, or a damaged one; {_RESTORE}")
    if thorough:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise error(f"{path}: {what} is damaged ({shown(verdict, 200)}); {_RESTORE}")


def _explain(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError):
        return error.strerror or text
    if isinstance(error, UnicodeDecodeError):
        return f"it is damaged; {_RESTORE}"
    if "not a database" in text:
        return f"it is not an SQLite database (any more); {_RESTORE}"
    if "malformed" in text:
        return f"it is damaged or was cut short; {_RESTORE}"
    return shown(text, 200)  # parts of a damaged file may be in it
