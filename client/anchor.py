"""The anchor: a small signed file outside `state/` that remembers where the silo's ledger ends.

Whoever puts an old ledger back, with the outbox of its time, leaves the anchor as it was; the ledger then lacks the
entry that the anchor names, and answers nothing. The anchor is written after each entry is durable, and before anything
is released. A crash between the two leaves it one entry behind, which is no harm: the next opening brings it up to
date.

An anchor that is gone does not stop a silo, since a silo may move to another machine. A new one begins then, and says
at which entry, for `dpdd-client preflight` to show.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.durable import exclusive
from dpdd.client.ledger.hash_chain import canonical
from dpdd.client.ledger.ledger_file import Ends
from dpdd.client.ledger.position import Position, behind
from dpdd.common.errors import IntegrityError, LedgerError
from dpdd.common.files.atomic import write_atomically

_PREFIX = b"dpdd ledger anchor v1\0"
_LOCK_TIMEOUT = 60.0
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Anchored:
    """What an anchor says: where the ledger ended, and where and when the anchor began."""

    position: Position
    begun_at: int
    begun: str


class Anchor:
    """The anchor file of the silo with this key."""

    def __init__(self, path: Path, key: Ed25519PrivateKey) -> None:
        self.path, self._key = path, key

    def read(self) -> Anchored | None:
        """What it says; None where there is none. IntegrityError for one that this silo did not write."""
        try:
            data = self.path.read_bytes()[:_MOST_BYTES]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"{self.path}: the ledger's anchor cannot be read ({error.strerror})") from None
        try:
            values = json.loads(data)
            signature, body = bytes.fromhex(values.pop("signature")), canonical(values).encode()
            if values["key"] != self._public.hex():
                raise IntegrityError(
                    f"{self.path}: this is the anchor of another silo; name one for each silo in `[ledger] anchor`"
                )
            self._key.public_key().verify(signature, _PREFIX + body)
            position = Position(int(values["sequence"]), str(values["entry"]), int(values["reservations"]))
            return Anchored(position, int(values["begun_at"]), str(values["begun"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidSignature):
            raise IntegrityError(
                f"{self.path}: the ledger's anchor was damaged or altered; restore it from a backup if there is one. "
                "Only if the ledger is the newest for sure, remove it, and a new one is made"
            ) from None

    def check(self, ledger: Ends) -> None:
        """LedgerBehind when the ledger lacks the entry that the anchor names."""
        known = self.read()
        if known is not None and not ledger.holds(known.position):
            raise behind(ledger.position(), known.position, f"its anchor {self.path}")

    def follow(self, ledger: Ends) -> None:
        """Remember the ledger's end as it is now, durably. What a ledger that is behind says is not remembered."""
        known = self.read()
        if known is not None and known.position == ledger.position():
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(self.path.with_name(f".{self.path.name}.lock"), _LOCK_TIMEOUT):
                known, head = self.read(), ledger.position()  # another process may have written since
                if known is None:
                    known = Anchored(head, head.sequence, datetime.now(UTC).isoformat(timespec="seconds"))
                elif known.position.sequence >= head.sequence or not ledger.holds(known.position):
                    return
                self._write(Anchored(head, known.begun_at, known.begun))
        except OSError as error:
            raise LedgerError(
                f"{self.path}: the ledger's anchor cannot be written ({error.strerror}), so nothing is released; "
                "`[ledger] anchor` in silo.toml names another place"
            ) from None

    @property
    def _public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def _write(self, anchored: Anchored) -> None:
        values: dict[str, str | int] = {
            "key": self._public.hex(),
            "sequence": anchored.position.sequence,
            "entry": anchored.position.entry,
            "reservations": anchored.position.reservations,
            "begun_at": anchored.begun_at,
            "begun": anchored.begun,
        }
        signature = self._key.sign(_PREFIX + canonical(values).encode()).hex()
        write_atomically(self.path, json.dumps({**values, "signature": signature}, indent=2).encode() + b"\n")


def anchor_path(key: bytes) -> Path:
    """Where the anchor of the silo with this public key is, if `silo.toml` names no other place."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():  # as the XDG specification wants it
        folder = Path.home() / ".local" / "state"
    return folder / "dpdd" / f"{key.hex()}.anchor"
