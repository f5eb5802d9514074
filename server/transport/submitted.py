"""The runs that were submitted to a standing server: a durable queue, worked off one after the other.

SQLite, so that `submit` and `status` work beside the server. A run that was going on when the server died is the next
one again; one that brought the server down several times is given up, so that those behind it get their turn.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.files.database import make_database, open_database

MOST_ATTEMPTS = 3
MOST_QUEUED = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, folder TEXT NOT NULL, state TEXT NOT NULL,
    sentence TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0, rehearsal INTEGER NOT NULL,
    deadline_minutes REAL, changed TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS one_at_a_time ON runs (folder) WHERE state IN ('queued', 'running');
"""


@dataclass(frozen=True)
class SubmittedRun:
    """One run; `sentence` says why it failed."""

    number: int
    name: str
    folder: Path
    state: str  # "queued", "running", "done" or "failed"
    sentence: str
    attempts: int
    rehearsal: bool
    deadline_minutes: float | None
    changed: str


class SubmittedRuns:
    """All runs that were submitted, in the order in which they were."""

    def __init__(self, path: Path) -> None:
        try:
            make_database(path, _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise DpddError(f"{path}: the queue of runs cannot be made ({error})") from None
        self._db = open_database(path, "the queue of runs", ("runs",))

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def submit(
        self, name: str, folder: Path, *, rehearsal: bool = True, deadline_minutes: float | None = None
    ) -> SubmittedRun:
        """Put a run at the end of the queue."""
        with self._writing():
            waiting = self._db.execute("SELECT count(*) FROM runs WHERE state = 'queued'").fetchone()[0]
            if waiting >= MOST_QUEUED:
                raise ConfigError(f"{waiting} runs wait already, which is the most")
            try:
                row = self._db.execute(
                    "INSERT INTO runs (name, folder, state, rehearsal, deadline_minutes, changed) "
                    "VALUES (?, ?, 'queued', ?, ?, ?)",
                    (name, str(folder), rehearsal, deadline_minutes, _now()),
                )
            except sqlite3.IntegrityError:
                raise ConfigError(f"{folder}: this run is in the queue already") from None
        return next(run for run in self.runs() if run.number == row.lastrowid)

    def runs(self) -> list[SubmittedRun]:
        """All of them, the oldest first."""
        rows = self._db.execute(
            "SELECT number, name, folder, state, sentence, attempts, rehearsal, deadline_minutes, changed "
            "FROM runs ORDER BY number"
        ).fetchall()
        return [SubmittedRun(r[0], r[1], Path(r[2]), r[3], r[4], r[5], bool(r[6]), r[7], r[8]) for r in rows]

    def take_next(self) -> SubmittedRun | None:
        """The run to work on now, marked as running: the one that a server left off in the middle, or the oldest."""
        with self._writing():
            for run in sorted(self.runs(), key=lambda run: (run.state != "running", run.number)):
                if run.state == "running" and run.attempts >= MOST_ATTEMPTS:
                    self._note(run, "failed", f"the server died {run.attempts} times while it ran")
                elif run.state in ("running", "queued"):
                    self._db.execute("UPDATE runs SET attempts = attempts + 1 WHERE number = ?", (run.number,))
                    self._note(run, "running")
                    return run
        return None

    def done(self, run: SubmittedRun) -> None:
        """It is finished."""
        self._note(run, "done")

    def failed(self, run: SubmittedRun, sentence: str) -> None:
        """It is not going to be finished, and why."""
        self._note(run, "failed", sentence)

    def put_back(self, run: SubmittedRun) -> None:
        """The server stops in good order: the run goes on when it serves again."""
        self._db.execute("UPDATE runs SET attempts = 0 WHERE number = ?", (run.number,))
        self._note(run, "queued")

    def _note(self, run: SubmittedRun, state: str, sentence: str = "") -> None:
        self._db.execute(
            "UPDATE runs SET state = ?, sentence = ?, changed = ? WHERE number = ?",
            (state, sentence[:1000], _now(), run.number),
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
