"""Who may connect: silos, their one-time tokens (hashed), the certificates that were issued, and who is revoked.

SQLite, so that `enrol`, `revoke` and `status` work beside a running server, which asks here at every call.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from dpdd.common.errors import ConfigError, DpddError, IntegrityError
from dpdd.common.files.certificates import life
from dpdd.common.files.database import make_database, open_database
from dpdd.server.run.roster import Roster

_SCHEMA = """
CREATE TABLE IF NOT EXISTS silos (
    name TEXT PRIMARY KEY, release_key BLOB, enrolled TEXT NOT NULL, joined TEXT, revoked TEXT,
    last_seen TEXT, doing TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE IF NOT EXISTS tokens (
    hash TEXT PRIMARY KEY, silo TEXT NOT NULL, expires TEXT NOT NULL, certificate TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS certificates (
    fingerprint TEXT PRIMARY KEY, silo TEXT NOT NULL, der BLOB NOT NULL, expires TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS paid (
    silo TEXT NOT NULL, request_id TEXT NOT NULL, sha256 TEXT NOT NULL, sequence INTEGER NOT NULL, entry BLOB NOT NULL,
    folder TEXT NOT NULL, PRIMARY KEY (silo, sha256)
) STRICT;
CREATE INDEX IF NOT EXISTS paid_in_order ON paid (silo, sequence);
CREATE INDEX IF NOT EXISTS paid_for ON paid (silo, request_id);
CREATE TABLE IF NOT EXISTS asked_at (
    silo TEXT NOT NULL, request_id TEXT NOT NULL, after INTEGER NOT NULL, PRIMARY KEY (silo, request_id)
) STRICT;
CREATE TABLE IF NOT EXISTS forks (silo TEXT NOT NULL, sentence TEXT NOT NULL, PRIMARY KEY (silo, sentence)) STRICT;
"""
_RENEWALS = """
CREATE TABLE IF NOT EXISTS renewals (
    fingerprint TEXT PRIMARY KEY, silo TEXT NOT NULL, key BLOB NOT NULL, issued TEXT NOT NULL, used TEXT
) STRICT;
"""
_UNUSED = "SELECT fingerprint FROM renewals WHERE used IS NULL"

RENEWALS_A_DAY = 5
"""Of one silo. One a year is usual; the same key again gets the same certificate, and does not count."""

UNUSED_DAYS = 30


@dataclass(frozen=True)
class SiloEntry:
    """One silo as the coordinator knows it."""

    name: str
    release_key: bytes | None
    joined: str | None
    revoked: str | None
    last_seen: str | None
    doing: str
    certificate: bytes | None  # DER

    @property
    def certificate_life(self) -> tuple[datetime, datetime] | None:
        """When its certificate begins and ends."""
        return None if self.certificate is None else life(x509.load_der_x509_certificate(self.certificate))

    @property
    def state(self) -> str:
        """For people."""
        if self.revoked:
            return "revoked"
        if self.joined:
            return "joined" if self.certificate else "by file"
        return "enrolled"


class Unknown(IntegrityError):
    """A certificate that our authority may have signed, but that is not in the registry (any more)."""


class Revoked(IntegrityError):
    """A silo that was shut out."""


class Expired(IntegrityError):
    """A certificate or a token whose time is over."""


class TooOften(DpddError):
    """A silo that wants more certificates than anybody needs."""


class Registry:
    """The coordinator's silos; safe to use from many threads."""

    def __init__(self, path: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._clock, self._lock = path, clock, threading.RLock()
        self._seen: dict[str, tuple[str, str, str]] = {}
        self._seen_lock = threading.Lock()
        try:
            make_database(path, _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise DpddError(f"{path}: the registry of silos cannot be made ({error})") from None
        self._db = open_database(path, "the registry of silos", ("silos", "tokens", "certificates"))
        try:
            self._db.executescript(_SCHEMA + _RENEWALS)  # an older one has fewer tables
        except sqlite3.Error as error:
            self._db.close()
            raise DpddError(f"{path}: the registry of silos cannot be written ({error})") from None

    def close(self) -> None:
        """Let go of the file; not while another thread reads it, which would be the end of the process."""
        with self._lock:
            with suppress(sqlite3.Error):
                self.write_seen()
            self._db.close()

    def enrol(self, silo: str, token_hash: str, lifetime: timedelta) -> None:
        """Expect `silo` to join with a token. A silo that joined before gets a new certificate that way."""
        with self._writing() as db:
            row = db.execute("SELECT revoked FROM silos WHERE name = ?", (silo,)).fetchone()
            if row is not None and row[0] is not None:
                raise ConfigError(f"silo {silo} was revoked; a revoked name is not used again, enrol it under another")
            db.execute("INSERT OR IGNORE INTO silos (name, enrolled) VALUES (?, ?)", (silo, self._now()))
            db.execute("DELETE FROM tokens WHERE silo = ? AND certificate IS NULL", (silo,))
            db.execute(
                "INSERT INTO tokens (hash, silo, expires) VALUES (?, ?, ?)",
                (token_hash, silo, _stamp(self._clock() + lifetime)),
            )

    def redeem(
        self, token_hash: str, release_key: bytes, certify: Callable[[str], tuple[str, bytes, str]], key: bytes
    ) -> tuple[str, bytes]:
        """Spend a token; the silo's name and its certificate.

        `certify(silo)` makes (fingerprint, DER, expiry). The same token with the same `key` (of the certificate) and
        release key gets the same certificate again, so that a lost reply locks nobody out.
        """
        with self._writing() as db:
            row = db.execute("SELECT silo, expires, certificate FROM tokens WHERE hash = ?", (token_hash,)).fetchone()
            if row is None:
                raise Unknown("this join token is not known here; ask the coordinator for a new one")
            silo, expires, spent = row
            known, revoked = db.execute("SELECT release_key, revoked FROM silos WHERE name = ?", (silo,)).fetchone()
            if revoked is not None:
                raise Revoked(f"silo {silo} is revoked")
            if known is not None and known != release_key:
                raise IntegrityError(
                    f"silo {silo} joined with another release key before; a new key joins under a new name"
                )
            if spent is not None:
                der = db.execute("SELECT der FROM certificates WHERE fingerprint = ?", (spent,)).fetchone()
                if der is not None and key in der[0] and known == release_key:
                    return silo, der[0]
                raise IntegrityError("this join token was used already; ask the coordinator for a new one")
            if expires < self._now():
                raise Expired("this join token has expired; ask the coordinator for a new one")
            fingerprint, certificate, until = certify(silo)
            db.execute("DELETE FROM certificates WHERE silo = ?", (silo,))
            db.execute(f"DELETE FROM renewals WHERE fingerprint IN ({_UNUSED} AND silo = ?)", (silo,))
            db.execute("INSERT INTO certificates VALUES (?, ?, ?, ?)", (fingerprint, silo, certificate, until))
            db.execute("UPDATE tokens SET certificate = ? WHERE hash = ?", (fingerprint, token_hash))
            db.execute("UPDATE silos SET release_key = ?, joined = ? WHERE name = ?", (release_key, self._now(), silo))
            return silo, certificate

    def add_key(self, silo: str, release_key: bytes) -> None:
        """Know the key of a silo that sends its releases as files; it needs no certificate for that."""
        with self._writing() as db:
            known, revoked = db.execute(
                "SELECT release_key, revoked FROM silos WHERE name = ?", (silo,)
            ).fetchone() or (None, None)
            if revoked is not None:
                raise Revoked(f"silo {silo} is revoked")
            if known is not None and known != release_key:
                raise IntegrityError(f"silo {silo} has another release key here already; a new key has a new name")
            db.execute("INSERT OR IGNORE INTO silos (name, enrolled) VALUES (?, ?)", (silo, self._now()))
            db.execute(
                "UPDATE silos SET release_key = ?, joined = coalesce(joined, ?) WHERE name = ?",
                (release_key, self._now(), silo),
            )

    def revoke(self, silo: str) -> None:
        """Shut a silo out, now and for ever; its releases stay."""
        with self._writing() as db:
            changed = db.execute("UPDATE silos SET revoked = ? WHERE name = ?", (self._now(), silo)).rowcount
            if not changed:
                names = ", ".join(row[0] for row in db.execute("SELECT name FROM silos ORDER BY name"))
                raise ConfigError(f"no silo {silo!r} is enrolled (enrolled are: {names or 'none'})")
            db.execute("DELETE FROM tokens WHERE silo = ?", (silo,))

    def renew(self, fingerprint: str, key: bytes, certify: Callable[[str], tuple[str, bytes, str]]) -> bytes:
        """A new certificate (DER) for the holder of a good one, which stays good until the new one is used.

        The same `key` gets the same unused certificate again: neither a lost reply nor a crash locks anybody out.
        """
        with self._writing() as db:
            silo, _ = self._find(fingerprint)
            pending = db.execute(
                f"SELECT der FROM certificates WHERE fingerprint IN ({_UNUSED} AND silo = ? AND key = ?)", (silo, key)
            ).fetchone()
            if pending is not None:
                return bytes(pending[0])
            day, unused = (_stamp(self._clock() - timedelta(days=days)) for days in (1, UNUSED_DAYS))
            db.execute("DELETE FROM renewals WHERE used IS NOT NULL AND issued < ? AND silo = ?", (day, silo))
            old = f"{_UNUSED} AND silo = ? AND issued < ?"
            db.execute(f"DELETE FROM certificates WHERE fingerprint IN ({old})", (silo, unused))
            db.execute(f"DELETE FROM renewals WHERE fingerprint IN ({old})", (silo, unused))
            issued = db.execute("SELECT count(*) FROM renewals WHERE silo = ? AND issued >= ?", (silo, day)).fetchone()
            if issued[0] >= RENEWALS_A_DAY:
                raise TooOften(f"silo {silo} had {RENEWALS_A_DAY} certificates within a day, which is the most")
            new, der, until = certify(silo)
            db.execute("INSERT INTO certificates VALUES (?, ?, ?, ?)", (new, silo, der, until))
            db.execute("INSERT INTO renewals VALUES (?, ?, ?, ?, NULL)", (new, silo, key, self._now()))
            return der

    def holder(self, fingerprint: str) -> str:
        """The silo whose certificate this is; Unknown, Revoked or Expired. A renewed certificate that is used for the
        first time ends those before it."""
        with self._lock:
            silo, unused = self._find(fingerprint)
        if unused:
            with self._writing() as db:
                silo, unused = self._find(fingerprint)
                db.execute("UPDATE renewals SET used = ? WHERE fingerprint = ?", (self._now(), fingerprint))
                db.execute("DELETE FROM certificates WHERE silo = ? AND fingerprint <> ?", (silo, fingerprint))
                db.execute(f"DELETE FROM renewals WHERE fingerprint IN ({_UNUSED} AND silo = ?)", (silo,))
        return silo

    def _find(self, fingerprint: str) -> tuple[str, bool]:
        """The holder of a good certificate, and whether it is one that was never used."""
        row = self._db.execute(
            "SELECT c.silo, c.expires, s.revoked, r.fingerprint IS NOT NULL AND r.used IS NULL FROM certificates c "
            "JOIN silos s ON s.name = c.silo LEFT JOIN renewals r ON r.fingerprint = c.fingerprint "
            "WHERE c.fingerprint = ?",
            (fingerprint,),
        ).fetchone()
        if row is None:
            raise Unknown("this certificate is not in the coordinator's registry; join again with a new token")
        silo, expires, revoked, unused = row
        if revoked is not None:
            raise Revoked(f"silo {silo} is revoked")
        if expires < self._now():
            raise Expired(f"the certificate of silo {silo} has expired; join again with a new token")
        return str(silo), bool(unused)

    def valid(self) -> set[str]:
        """The certificates, by fingerprint, whose silo may call now."""
        with self._lock:
            rows = self._db.execute(
                "SELECT c.fingerprint FROM certificates c JOIN silos s ON s.name = c.silo "
                "WHERE s.revoked IS NULL AND c.expires >= ?",
                (self._now(),),
            )
            return {row[0] for row in rows}

    def seen(self, silo: str, doing: str) -> None:
        """Note that a silo was here; on disk with the next `write_seen`, since each write waits for the disk."""
        with self._seen_lock:
            self._seen[silo] = (self._now(), doing, silo)

    def write_seen(self) -> None:
        """Write down who was here since the last time."""
        with self._seen_lock:
            seen, self._seen = self._seen, {}
        if seen:
            with self._writing() as db:
                db.executemany("UPDATE silos SET last_seen = ?, doing = ? WHERE name = ?", seen.values())

    def silos(self) -> list[SiloEntry]:
        """All silos, by name."""
        self.write_seen()
        with self._lock:
            rows = self._db.execute(
                "SELECT name, release_key, joined, revoked, last_seen, doing, "
                "(SELECT der FROM certificates c WHERE c.silo = name ORDER BY fingerprint IN "
                f"({_UNUSED}), expires DESC LIMIT 1) FROM silos ORDER BY name"
            ).fetchall()
        return [SiloEntry(*row) for row in rows]

    def revoked(self) -> set[str]:
        """The silos that were shut out."""
        with self._lock:
            return {row[0] for row in self._db.execute("SELECT name FROM silos WHERE revoked IS NOT NULL")}

    def release_key(self, silo: str) -> bytes:
        """The key that verifies the silo's releases."""
        return self.roster().key_of(silo)

    def roster(self) -> Roster:
        """The silos that joined and are not revoked."""
        return Roster({s.name: s.release_key for s in self.silos() if s.release_key is not None and not s.revoked})

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """For who keeps more about silos in here: all that is read and written inside is of one moment."""
        return self._writing()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _now(self) -> str:
        return _stamp(self._clock())


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
