"""Everything that silos sent, kept durably before it is used: a run can stop, resume and be synthesised again.

Files are named by their SHA-256; `index.sqlite` says which one answered which request of which silo.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpdd.common.config import one_line
from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.files.atomic import sync_folder, write_atomically
from dpdd.common.files.database import make_database, open_database
from dpdd.common.methods.verification import Expected, check_release, check_size, expected_of
from dpdd.common.wire.release import Release, inspect_bytes, open_signed
from dpdd.common.wire.request import decode_request
from dpdd.server.run.roster import Roster

_SHA256 = re.compile("[0-9a-f]{64}")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (id TEXT PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS releases (
    request_id TEXT NOT NULL, silo TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (request_id, silo)
) STRICT;
CREATE TABLE IF NOT EXISTS asked (
    request_id TEXT NOT NULL, silo TEXT NOT NULL, state TEXT NOT NULL, refusal BLOB, changed TEXT NOT NULL,
    PRIMARY KEY (request_id, silo)
) STRICT;
CREATE INDEX IF NOT EXISTS asked_of_silo ON asked (silo);
CREATE TABLE IF NOT EXISTS reports (
    request_id TEXT NOT NULL, silo TEXT NOT NULL, report BLOB NOT NULL, changed TEXT NOT NULL,
    PRIMARY KEY (request_id, silo)
) STRICT;
CREATE TABLE IF NOT EXISTS rounds (request_id TEXT PRIMARY KEY, silos TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS warnings (silo TEXT NOT NULL, sentence TEXT NOT NULL, PRIMARY KEY (silo, sentence)) STRICT;
"""
_ASKED = """
SELECT a.request_id, a.silo, iif(r.sha256 IS NULL, a.state, 'released'), a.refusal, a.changed
FROM asked a LEFT JOIN releases r ON r.request_id = a.request_id AND r.silo = a.silo
"""


class SecondRelease(IntegrityError):
    """A silo has two different releases for one request: its noise was drawn twice."""


@dataclass(frozen=True)
class Asked:
    """A request that the exchange put to a silo, and how far that is."""

    request_id: str
    silo: str
    state: str  # "asked", "delivered", "refused", "in trouble", "skipped" or "released"
    refusal: bytes | None
    changed: str


class Store:
    """The coordinator's releases, on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._expected: dict[str, Expected] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
            make_database(folder / "index.sqlite", _SCHEMA)
            self._db = open_database(folder / "index.sqlite", "the store's index", ("requests", "releases"))
            self._db.executescript(_SCHEMA)  # an older one has fewer tables
        except (OSError, sqlite3.Error) as error:
            raise DpddError(f"{folder}: the store cannot be opened ({error})") from None

    def close(self) -> None:
        """Let go of the index."""
        self._db.close()

    def add_request(self, request_id: str, data: bytes) -> None:
        """Keep a request."""
        self._db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", (request_id, data))

    def expected(self, request_id: str) -> Expected:
        """What the answers to a request of this run are; it is planned once, which can take minutes."""
        if request_id not in self._expected:
            asked = self.request(request_id)
            if asked is None:
                raise IntegrityError(f"request {request_id[:12]} is none of this run's")
            self._expected[request_id] = expected_of(decode_request(asked))
        return self._expected[request_id]

    def add(self, data: bytes, request_id: str, roster: Roster) -> Release:
        """Verify a signed release, and keep it. IntegrityError for one that does not belong here, or that is not what
        its request asks for."""
        key = roster.key_of(inspect_bytes(data).silo)
        stated = inspect_bytes(data, key)
        if stated.request_id != request_id:
            raise IntegrityError(f"silo {stated.silo} sent a release for another request")
        expected = self.expected(request_id)
        check_size(len(data), expected)
        check_release(stated, expected)
        release = open_signed(data, key)
        digest = hashlib.sha256(data).hexdigest()
        known = self.digest(request_id, release.silo)
        if known is not None and known != digest:
            raise SecondRelease(f"silo {release.silo} sent a second, different release for one request")
        if known is None:
            write_atomically(self._folder / digest, data)
            self._db.execute("INSERT OR IGNORE INTO releases VALUES (?, ?, ?)", (request_id, release.silo, digest))
        return release

    def adopt(self, path: Path, digest: str, request_id: str, silo: str) -> None:
        """Keep the release in the file at `path`, which was checked and synced, by moving it here."""
        known = self.digest(request_id, silo)
        if known is not None and known != digest:
            raise SecondRelease(f"silo {silo} sent a second, different release for one request")
        path.replace(self._folder / digest)
        sync_folder(self._folder)
        self._db.execute("INSERT OR IGNORE INTO releases VALUES (?, ?, ?)", (request_id, silo, digest))

    def request(self, request_id: str) -> bytes | None:
        """The bytes of a request that was kept."""
        row = self._db.execute("SELECT bytes FROM requests WHERE id = ?", (request_id,)).fetchone()
        return None if row is None else bytes(row[0])

    def requests(self) -> list[bytes]:
        """All requests of this run, the oldest first."""
        return [bytes(row[0]) for row in self._db.execute("SELECT bytes FROM requests ORDER BY rowid").fetchall()]

    def close_round(self, took_part: Mapping[str, Collection[str]]) -> None:
        """Keep, for good, which silos' releases are added up in a round, for each of its requests."""
        rows = [(request_id, json.dumps(sorted(silos))) for request_id, silos in took_part.items()]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT INTO rounds VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def took_part(self, request_id: str) -> list[str] | None:
        """The silos in a round that is closed; None while it is open."""
        row = self._db.execute("SELECT silos FROM rounds WHERE request_id = ?", (request_id,)).fetchone()
        return None if row is None else [str(silo) for silo in json.loads(row[0])]

    def note(self, request_id: str, silo: str, state: str, refusal: bytes | None = None) -> None:
        """How far a silo is with a request."""
        self._db.execute(
            "INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?, ?)",
            (request_id, silo, state, refusal, _now()),
        )

    def add_report(self, request_id: str, silo: str, report: bytes) -> None:
        """Keep what a silo said in a dry round; the latest word counts."""
        self._db.execute("INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?)", (request_id, silo, report, _now()))

    def reports(self) -> dict[tuple[str, str], bytes]:
        """What silos said last in dry rounds, by request and silo."""
        rows = self._db.execute("SELECT request_id, silo, report FROM reports ORDER BY rowid").fetchall()
        return {(request_id, silo): bytes(report) for request_id, silo, report in rows}

    def warn(self, silo: str, sentence: str) -> None:
        """Keep what is known against a silo, for the card."""
        self._db.execute("INSERT OR IGNORE INTO warnings VALUES (?, ?)", (silo, sentence))

    def warnings(self, silos: Collection[str]) -> list[str]:
        """What is known against these silos."""
        rows = self._db.execute("SELECT silo, sentence FROM warnings ORDER BY rowid").fetchall()
        return [sentence for silo, sentence in rows if silo in silos]

    def asked(self, *, request_id: str | None = None, silo: str | None = None) -> list[Asked]:
        """What the exchange asked; a silo whose release is here has released, whatever it said before."""
        wanted = {"a.request_id = ?": request_id, "a.silo = ?": silo}  # only what is given: an index serves these
        given = {where: value for where, value in wanted.items() if value is not None}
        rows = self._db.execute(
            f"{_ASKED} {'WHERE ' + ' AND '.join(given) if given else ''} ORDER BY a.rowid", (*given.values(),)
        )
        return [Asked(*row) for row in rows.fetchall()]

    def releases(self, request_id: str, roster: Roster) -> list[Release]:
        """All releases for a request by silos of this roster, verified again, by silo name.

        A silo that was revoked is in no roster; what it released stays here, and is not used.
        """
        return [
            open_signed(self.read(digest), roster.key_of(silo))
            for silo, digest in self.digests(request_id).items()
            if silo in roster.keys
        ]

    def read(self, digest: str) -> bytes:
        """The file with that SHA-256."""
        return read_stored(self._folder, digest)

    def digests(self, request_id: str) -> dict[str, str]:
        """SHA-256 of the signed release of each silo."""
        rows = self._db.execute("SELECT silo, sha256 FROM releases WHERE request_id = ? ORDER BY silo", (request_id,))
        return dict(rows.fetchall())

    def digest(self, request_id: str, silo: str) -> str | None:
        """SHA-256 of one silo's signed release, if it is here."""
        row = self._db.execute(
            "SELECT sha256 FROM releases WHERE request_id = ? AND silo = ?", (request_id, silo)
        ).fetchone()
        return None if row is None else str(row[0])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_stored(folder: Path, digest: str) -> bytes:
    """The file with that SHA-256 in a store's folder. Opens no index, so a published copy is not written to."""
    if not (isinstance(digest, str) and _SHA256.fullmatch(digest)):  # another name might lead out of the store
        raise IntegrityError(f"{folder}: no release is stored under {reprlib.repr(digest)}")
    path = folder / digest
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path}: a stored release cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise IntegrityError(f"{path}: a stored release is not what its name says")
    return data


def read_request(folder: Path, request_id: str) -> bytes | None:
    """The request with that id in a store's folder, read without a trace; None where there is none, or no index."""
    index = folder / "index.sqlite"
    if not index.exists():
        return None
    try:
        what = "the store's index"  # what is read has to have the id as its hash, so not all of it is checked
        with closing(open_database(index, what, ("requests",), read_only=True, thorough=False)) as db:
            row = db.execute("SELECT bytes FROM requests WHERE id = ?", (request_id,)).fetchone()
    except sqlite3.Error as error:
        raise DpddError(f"{index}: the store's index cannot be read ({one_line(error)})") from None
    return None if row is None else bytes(row[0])
