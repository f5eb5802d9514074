"""What the coordinator remembers of silos' ledgers: which entry paid for which release, over all its runs.

Every release names the hash of its ledger entry and, unless the silo keeps it to itself, the entry's number. The
highest is told to the silo, whose ledger must hold it: one that does not is an old copy. And what does not fit together
is a fork: two entries of one number, two releases for one request, or an entry of a lower number for a request that was
put to the silo when a higher one was known. A fork means that a silo may have spent its budget twice; it is logged, and
never forgotten. A second release is not taken where there is a first, but that there is one is remembered (`second`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.files.database import open_database
from dpdd.common.wire.exchange import Manifest
from dpdd.common.wire.release import ReleaseHeader, stated
from dpdd.server.run.folder import STORE
from dpdd.server.transport.registry import Registry

log = logging.getLogger("dpdd.exchange")

PAGE = 1000


@dataclass(frozen=True)
class KnownEntry:
    """An entry of a silo's ledger, by number and hash."""

    sequence: int
    entry: bytes


class LedgerPositions:
    """The entries and the stored releases of all silos; safe to use from many threads."""

    def __init__(self, registry: Registry, runs: Path) -> None:
        self._registry, self._runs = registry, runs

    def put(self, request_id: str, silos: Iterable[str]) -> None:
        """A request is put to these silos, for the first time or again."""
        with self._registry.transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO asked_at SELECT ?, ?, coalesce(max(sequence), 0) FROM paid WHERE silo = ?",
                [(silo, request_id, silo) for silo in silos],
            )

    def note(self, folder: Path, sha256: str, release: ReleaseHeader) -> Sequence[str]:
        """A release lies in the store in `folder`, checked; all that is known now against this silo's ledger."""
        payment, silo = release.payment, release.silo
        sequence = payment.position if payment is not None else 0
        with self._registry.transaction() as db:
            found = []
            known = db.execute("SELECT 1 FROM paid WHERE silo = ? AND sha256 = ?", (silo, sha256)).fetchone()
            if known is None:
                row = (silo, release.request_id, sha256, sequence, bytes.fromhex(release.ledger_entry))
                asked, twins = (
                    "SELECT after FROM asked_at WHERE silo = ? AND request_id = ?",
                    "SELECT request_id FROM paid WHERE silo = ? AND (request_id = ? OR (sequence = ? AND entry <> ?))",
                )
                after = (db.execute(asked, row[:2]).fetchone() or (0,))[0]
                for (twin,) in db.execute(twins, (silo, row[1], sequence or -1, row[4])).fetchall():
                    found.append(_twin(silo, release.request_id, twin, sequence))
                if 0 < sequence <= after and not found:
                    found.append(
                        f"silo {silo} paid for request {release.request_id[:12]} with entry {sequence} of its ledger, "
                        f"although it had entry {after} when the request was put to it"
                    )
                db.execute("INSERT INTO paid VALUES (?, ?, ?, ?, ?, ?)", (*row, str(folder.resolve())))
                db.executemany("INSERT OR IGNORE INTO forks VALUES (?, ?)", [(silo, sentence) for sentence in found])
        _log(found)
        return self.forks(silo)

    def second(self, silo: str, request_id: str) -> Sequence[str]:
        """The silo has another release for a request than the one that is here; all that is known now against it."""
        found = _twin(silo, request_id, request_id, 0)
        with self._registry.transaction() as db:
            new = db.execute("INSERT OR IGNORE INTO forks VALUES (?, ?)", (silo, found)).rowcount
        _log([found] if new else [])
        return self.forks(silo)

    def forks(self, silo: str) -> list[str]:
        """What is known against a silo's ledger."""
        with self._registry.transaction() as db:
            rows = db.execute("SELECT sentence FROM forks WHERE silo = ? ORDER BY rowid", (silo,)).fetchall()
        return [row[0] for row in rows]

    def highest(self, silo: str) -> KnownEntry | None:
        """The newest entry of a silo's ledger that a release named."""
        with self._registry.transaction() as db:
            row = db.execute(
                "SELECT sequence, entry FROM paid WHERE silo = ? AND sequence > 0 ORDER BY sequence DESC LIMIT 1",
                (silo,),
            ).fetchone()
        return None if row is None else KnownEntry(row[0], bytes(row[1]))

    def stored(self, silo: str, after: bytes) -> list[Manifest]:
        """A page of the silo's releases that are here, by hash; those that were stored by earlier versions are found
        with the first page."""
        if not after:
            for index in sorted(self._runs.glob(f"*/{STORE}/index.sqlite")):
                with suppress(DpddError):
                    self.learn(index.parent, silo)
        with self._registry.transaction() as db:
            rows = db.execute(
                "SELECT sha256, request_id, folder FROM paid WHERE silo = ? AND sha256 > ? ORDER BY sha256",
                (silo, after.hex()),
            )
            found = list[Manifest]()
            for sha256, request_id, folder in rows:
                with suppress(OSError):  # a run's folder may be gone
                    found.append(Manifest(sha256, (Path(folder) / sha256).stat().st_size, request_id))
                if len(found) == PAGE:
                    break
        return found

    def piece(self, silo: str, sha256: bytes, offset: int, size: int) -> bytes:
        """Some bytes of one of the silo's own releases."""
        with self._registry.transaction() as db:
            row = db.execute("SELECT folder FROM paid WHERE silo = ? AND sha256 = ?", (silo, sha256.hex())).fetchone()
        if row is None:
            raise IntegrityError(f"no release of silo {silo} is stored under that name")
        with (Path(row[0]) / sha256.hex()).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def learn(self, folder: Path, silo: str | None = None) -> None:
        """Note the releases in a run's store that are not known yet: a crash came between, or an earlier version."""
        with closing(open_database(folder / "index.sqlite", "the store's index", ("releases",), thorough=False)) as db:
            rows = db.execute("SELECT silo, sha256 FROM releases WHERE silo = coalesce(?, silo)", (silo,)).fetchall()
        with self._registry.transaction() as db:
            known = set(db.execute("SELECT silo, sha256 FROM paid WHERE silo = coalesce(?, silo)", (silo,)).fetchall())
        for each in rows:
            if each not in known:
                with suppress(DpddError):
                    self.note(folder, each[1], stated(folder / each[1]))


def _log(found: Sequence[str]) -> None:
    for sentence in found:
        log.warning("a fork: %s; its ledger was replaced by an older copy, and it may have spent twice", sentence)


def _twin(silo: str, request_id: str, twin: str, sequence: int) -> str:
    if twin == request_id:
        return f"silo {silo} made two different releases for request {request_id[:12]}"
    names = " and ".join(sorted((request_id[:12], twin[:12])))
    return f"silo {silo} has two ledgers with an entry {sequence}: they paid for requests {names}"
