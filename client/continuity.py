"""A budget that cannot start over: a silo's ledger is made once, and never answers when it is older than its releases.

A first `init` makes the ledger before the key has its final name. So a key without a ledger always means that the
ledger was lost, and an `init` that was interrupted can be told apart from that, and finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.ledger.hash_chain import canonical
from dpdd.client.ledger.ledger import Ledger
from dpdd.client.ledger.position import LedgerBehind, Position
from dpdd.client.outbox import Outbox
from dpdd.common.errors import IntegrityError, LedgerError, WireError
from dpdd.common.files.atomic import sync_folder
from dpdd.common.wire.release import ReleaseHeader, inspect_file

KEY = "key.pem"
LEDGER = "ledger.sqlite"
COMPARED = "outbox.compared"
_COMPARED = b"dpdd outbox compared v1\0"
_UNFINISHED = ".unfinished"
_TRACES = {  # of a silo that had a ledger; an interrupted first `init` leaves none of them
    "its signing key": KEY,
    "the key of its holdout": "holdout.key",
    "a coordinator that it joined": "coordinator",
    "releases": "outbox/*.release",
    "requests": "requests/*.request",
}


def check_start(state: Path) -> None:
    """LedgerError where a ledger was lost, IntegrityError where its key was: neither is ever made a second time."""
    if (state / LEDGER).exists():
        if not (state / KEY).exists() and not (state / (KEY + _UNFINISHED)).exists():
            raise IntegrityError(f"{state / KEY}: the ledger's signing key is gone; restore it from a backup")
        return
    found = [what for what, pattern in _TRACES.items() if any(state.glob(pattern))]
    if found:
        raise LedgerError(
            f"{state / LEDGER}: the ledger is gone, but this silo has {', '.join(found)}; restore the ledger from a "
            "backup, and delete nothing: a new one would forget what was spent (`dpdd-client recover` rebuilds it)"
        )


def start(state: Path, create_key: Callable[[Path], object], create_ledger: Callable[[Path, Path], None]) -> None:
    """Make key and ledger where there are none, or finish what an interrupted start left.

    `create_key` makes a key at a path; `create_ledger` a ledger at a path, with the key at another.
    """
    check_start(state)
    if (state / KEY).exists():
        return
    key, ledger = state / (KEY + _UNFINISHED), state / (LEDGER + _UNFINISHED)
    if not key.exists():
        create_key(key)
    if not (state / LEDGER).exists():
        for left in (ledger, ledger.with_name(ledger.name + "-journal")):
            left.unlink(missing_ok=True)
        create_ledger(ledger, key)
        ledger.rename(state / LEDGER)
        sync_folder(state)
    key.rename(state / KEY)
    sync_folder(state)


def check_outbox(outbox: Outbox, ledger: Ledger, key: Ed25519PrivateKey) -> None:
    """LedgerBehind when the ledger knows less than what was released: it was restored from an old copy, or cut short.

    A release is in the outbox before it is committed, but never before its budget is reserved. The outbox is listed
    first: what another process releases meanwhile is then no surprise.
    """
    kept = outbox.ids()
    unpaid = ledger.unpaid(kept)
    if not unpaid:
        return
    own = sum(signed_release(outbox, request_id, key) is not None for request_id in unpaid)
    if not own:
        raise IntegrityError(f"the outbox holds a release for {unpaid[0][:12]} that the ledger never paid for")
    raise LedgerBehind(own, f"what this silo released: for the release of {unpaid[0][:12]} in the outbox, say,")


def signed_release(outbox: Outbox, request_id: str, key: Ed25519PrivateKey) -> ReleaseHeader | None:
    """What the release of that name states, without its arrays; None where this silo did not sign it."""
    try:
        release = inspect_file(outbox.path(request_id), key.public_key().public_bytes_raw())
    except (WireError, IntegrityError):
        return None
    return release if release.request_id == request_id else None


class Comparison:
    """That outbox and ledger agreed, and when: while neither was changed since by others, they need no second look.

    Listing an outbox of thousands of releases takes longer than a reservation. The note is signed, so that it cannot
    come from somebody who has an old ledger and not the key.
    """

    def __init__(self, path: Path, outbox: Outbox, key: Ed25519PrivateKey) -> None:
        self._path, self._outbox, self._key = path, outbox, key

    def holds(self, ledger: Ledger) -> bool:
        """Whether the outbox is as it was then, and the ledger goes on from there."""
        try:
            values = json.loads(self._path.read_bytes())
            signature = bytes.fromhex(values.pop("signature"))
            self._key.public_key().verify(signature, _COMPARED + canonical(values).encode())
            known = Position(values["sequence"], values["entry"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidSignature):
            return False
        return bool(values["outbox"] == self._outbox.stamp()) and ledger.holds(known)

    def note(self, ledger: Ledger) -> None:
        """They agree now. Written without haste: if it is lost, they are compared once more."""
        head = ledger.position()
        values = {"outbox": self._outbox.stamp(), "sequence": head.sequence, "entry": head.entry}
        signature = self._key.sign(_COMPARED + canonical(values).encode()).hex()
        partial = self._path.with_name(f".{self._path.name}.partial")
        with suppress(OSError):
            partial.write_text(json.dumps({**values, "signature": signature}))
            partial.replace(self._path)
