"""`dpdd-client recover`: what else remembers a silo's ledger is collected, and the ledger rebuilt from it.

Files go into the outbox first, then all entries into the ledger in one transaction; a ledger that is gone is rebuilt
under another name, and gets its own in the end. So a crash leaves what there was, and the next try begins anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpdd.client.durable import exclusive
from dpdd.client.ledger.ledger import Ledger
from dpdd.client.ledger.position import Position
from dpdd.client.ledger.recovery import Found, Recovery, plan_recovery
from dpdd.client.silo import LOCK_TIMEOUT, Silo
from dpdd.common.errors import IntegrityError, LedgerError
from dpdd.common.files.atomic import sync_folder
from dpdd.common.wire.exchange import Manifest
from dpdd.common.wire.release import ReleaseHeader, inspect_file

_WHY = "the operator wrote off what could not be rebuilt"


class Source(Protocol):
    """A coordinator that stores this silo's releases."""

    def position(self) -> Position | None:
        """The newest entry of this silo's ledger that it saw."""

    def stored(self) -> Iterator[Manifest]:
        """The releases that it has."""

    def fetch(self, manifest: Manifest, path: Path) -> None:
        """The bytes of one, into a new file."""


@dataclass(frozen=True)
class Recovered:
    """What was found and done, for people."""

    releases: Sequence[Found]
    restored: Sequence[str]
    entries: int
    missing: int | None
    lost: bool
    written_off: bool


def recover(
    silo: Silo,
    source: Source | None,
    *,
    write_off: bool = False,
    dry_run: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> Recovered:
    """Rebuild what is missing. What nobody can rebuild is left open, unless `write_off` closes the budget instead.

    `Recovered.missing` says what is left open; the ledger stays as it was then, and the silo answers nothing.
    """
    state = silo.folder / "state"
    with (
        exclusive(state / "lock", LOCK_TIMEOUT, waiting),
        _scratch(state, ".recovering-") as scratch,
        _ledger(silo, scratch) as ledger,
    ):
        entries = ledger.verify()
        silo.check_declared(ledger)
        fetched = [] if source is None else _fetch(silo, source, ledger, scratch)
        found = [*_in_outbox(silo, ledger), *(each.found for each in fetched)]
        lost = not (state / "ledger.sqlite").exists()
        anchored = None if silo.anchor is None else silo.anchor.read()
        recovery = plan_recovery(
            entries,
            found,
            None if anchored is None else anchored.position,
            silo.coordinator_memory.read().shown,
            silo.declared_holdout(),
            new=lost,
        )
        closes = write_off and recovery.missing != 0
        complete = recovery.missing == 0 or closes
        restored = [each for each in fetched if not silo.outbox.path(each.found.release.request_id).exists()]
        if not dry_run:
            for each in restored:
                _restore(silo, each)
            if complete:
                ledger.rebuild(recovery.written_off(_WHY) if closes else [*recovery.drafts, *recovery.ends])
            if lost and complete:
                os.link(scratch / "ledger.sqlite", state / "ledger.sqlite")
                sync_folder(state)
            if source is not None and (complete or not lost):
                position = source.position()
                silo.coordinator_memory.hear(position, ledger, lambda: None)
        known = [each for each in found if _is_new(each, recovery)]
        names = [each.found.release.request_id for each in restored]
        count = (len(recovery.drafts) + len(recovery.ends) + closes) if complete else 0
        return Recovered(known, names, count, recovery.missing, lost, closes)


def unknown_release(silo: Silo, source: Source, ledger: Ledger, most: int = 20) -> Position | None:
    """The place of an entry that paid for a release which a coordinator has and this ledger does not know, if any."""
    with _scratch(silo.folder / "state", ".shown-") as scratch:
        for manifest in source.stored():
            if ledger.committed(manifest.request_id) == manifest.sha256:
                continue
            stated = _fetched(silo, source, manifest, scratch).found.position
            if stated.sequence:
                return stated
            most -= 1
            if not most:
                break
    return None


@dataclass(frozen=True, eq=False)
class _Fetched:
    found: Found
    path: Path


@contextmanager
def _scratch(state: Path, prefix: str) -> Iterator[Path]:
    """A folder on the same disk for what is not whole yet; what an interrupted one left goes first."""
    for left in state.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=state))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ledger(silo: Silo, scratch: Path) -> Iterator[Ledger]:
    """The silo's ledger; where it is gone a new one, which becomes the silo's when it is whole."""
    path = silo.folder / "state" / "ledger.sqlite"
    if path.exists():
        ledger = silo.ledger()
    else:
        path = scratch / path.name
        silo.create_ledger(path)
        ledger = silo.open_ledger(path, anchor=None)
    try:
        yield ledger
    finally:
        ledger.close()


def _in_outbox(silo: Silo, ledger: Ledger) -> Iterator[Found]:
    """The releases in the outbox that the ledger has not committed."""
    for request_id in silo.outbox.ids():
        sha256 = silo.outbox.sha256(request_id)
        if sha256 is not None and ledger.committed(request_id) != sha256:
            release = _own(silo, silo.outbox.path(request_id))
            if release.request_id != request_id:
                raise IntegrityError(f"{silo.outbox.path(request_id)}: this is the release of another request")
            yield Found(release, sha256, "outbox")


def _fetch(silo: Silo, source: Source, ledger: Ledger, scratch: Path) -> list[_Fetched]:
    """The releases that the coordinator has, and the ledger or the outbox has not."""
    return [
        _fetched(silo, source, manifest, scratch)
        for manifest in source.stored()
        if ledger.committed(manifest.request_id) != manifest.sha256 or silo.outbox.sha256(manifest.request_id) is None
    ]


def _fetched(silo: Silo, source: Source, manifest: Manifest, scratch: Path) -> _Fetched:
    path = scratch / manifest.sha256
    source.fetch(manifest, path)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256:
            raise IntegrityError("the coordinator sent other bytes than it announced; nothing was changed")
    return _Fetched(Found(_own(silo, path), manifest.sha256, "coordinator"), path)


def _own(silo: Silo, path: Path) -> ReleaseHeader:
    try:
        return inspect_file(path, silo.public_key)
    except IntegrityError as error:
        raise IntegrityError(f"{path.name}: {error}, so it says nothing about this ledger") from None


def _restore(silo: Silo, fetched: _Fetched) -> None:
    """Into the outbox, durably, where no file of that name is."""
    target = silo.outbox.path(fetched.found.release.request_id)
    try:
        with fetched.path.open("rb") as file:
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fetched.path, target)
        sync_folder(target.parent)
    except OSError as error:
        raise LedgerError(f"{target}: the release cannot be written ({error.strerror})") from None


def _is_new(found: Found, recovery: Recovery) -> bool:
    names = [name for draft in recovery.drafts for name in (draft.request_id, draft.body.get("release_sha256"))]
    return found.sha256 in names
