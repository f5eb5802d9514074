"""A budget that cannot start over: a silo's ledger is made once, and never answers when it is older than its releases.

A first `init` makes the ledger before the key has its final name. So a key without a ledger always means that the
ledger was lost, and an `init` that was interrupted can be told apart from that, and finished.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.ledger.ledger import Ledger
from dpdd.client.outbox import Outbox
from dpdd.common.errors import DpddError, IntegrityError, LedgerError
from dpdd.common.files.atomic import sync_folder
from dpdd.common.wire.release import open_signed

KEY = "key.pem"
LEDGER = "ledger.sqlite"
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
            "backup, and delete nothing: a new one would forget what was spent"
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
    """LedgerError when the ledger knows less than what was released: it was restored from an old copy, or cut short.

    A release is in the outbox before it is committed, but never before its budget is reserved. The outbox is listed
    first: what another process releases meanwhile is then no surprise.
    """
    kept = outbox.ids()
    unpaid = ledger.unpaid(kept)
    if not unpaid:
        return
    own = sum(_signed(outbox, request_id, key) for request_id in unpaid)
    if not own:
        raise IntegrityError(f"the outbox holds a release for {unpaid[0][:12]} that the ledger never paid for")
    entries = "1 entry" if own == 1 else f"{own} entries"
    raise LedgerError(
        f"the ledger is older than what this silo released: at least {entries} for releases in the outbox "
        f"(such as {unpaid[0][:12]}) are missing; restore the newest ledger from a backup; nothing is answered before"
    )


def _signed(outbox: Outbox, request_id: str, key: Ed25519PrivateKey) -> bool:
    data = outbox.get(request_id)
    try:
        open_signed(data or b"", key.public_key().public_bytes_raw())
    except DpddError:
        return False
    return True
