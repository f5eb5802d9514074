"""What the silo's coordinator said about its ledger: the newest entry that it saw in a release.

A coordinator cannot be believed, and need not be: what it names is looked up. An entry that the ledger holds is
remembered for good, as the anchor is (`shown`): a ledger that lacks it later is an old one. One that the ledger does
not hold is a mere claim, until the coordinator shows a release that this silo signed. A claim stops the silo from
answering that coordinator, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpdd.client.ledger.ledger_file import Ends
from dpdd.client.ledger.position import Position, behind
from dpdd.common.errors import IntegrityError, LedgerError
from dpdd.common.files.atomic import write_atomically

_SHOWN = "a release that its coordinator has"


class UnshownClaim(LedgerError):
    """A coordinator speaks of an entry that the ledger does not have, and has nothing to show for it."""


@dataclass(frozen=True)
class Told:
    """The newest entry that is known for sure, and what the coordinator claims now beyond that."""

    shown: Position | None = None
    claimed: Position | None = None


class CoordinatorMemory:
    """The file that keeps it, in the silo's state."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Told:
        """What was said so far."""
        try:
            values: dict[str, Any] = json.loads(self._path.read_bytes())
            return Told(*(_position(values[name]) for name in ("shown", "claimed")))
        except FileNotFoundError:
            return Told()
        except OSError as error:
            raise LedgerError(f"{self._path}: cannot be read ({error.strerror})") from None
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise IntegrityError(
                f"{self._path}: what the coordinator said of this ledger is damaged; if the ledger is the newest for "
                "sure, remove the file, and the coordinator says it again"
            ) from None

    def hear(self, position: Position | None, ledger: Ends, shown: Callable[[], Position | None]) -> None:
        """The coordinator names an entry (or none). Where the ledger lacks it, `shown` asks for a release as a proof.

        It gives the place of an entry that the ledger lacks and that did pay for a release.
        """
        before = self.read()
        told, kept = Told(before.shown), before.shown
        if position is not None and not ledger.holds(position):
            lost = shown()
            if lost is None:
                told = Told(kept, claimed=position)
            elif kept is None or ledger.holds(kept):  # else that one says already that entries are missing
                told = Told(lost)
        elif position is not None and (kept is None or (ledger.holds(kept) and position.sequence > kept.sequence)):
            told = Told(position)
        if told != before:
            self._write(told)

    def check(self, ledger: Ends) -> None:
        """LedgerBehind when the ledger lacks an entry that is known for sure."""
        known = self.read().shown
        if known is not None and not ledger.holds(known):
            raise behind(ledger.position(), known, _SHOWN)

    def check_claim(self, ledger: Ends) -> None:
        """UnshownClaim when the ledger lacks what the coordinator claims."""
        known = self.read().claimed
        if known is not None and not ledger.holds(known):
            raise UnshownClaim(
                f"the coordinator claims to have a release of entry {known.sequence} of this silo's ledger, which ends "
                f"at entry {ledger.position().sequence} and lacks that one, but shows no release with this silo's "
                "signature: either it is wrong, and gets no answer until it takes that back, or this ledger is an old "
                "copy; `dpdd-client recover` asks it once more"
            )

    def _write(self, told: Told) -> None:
        try:
            write_atomically(self._path, json.dumps(asdict(told)).encode() + b"\n")
        except OSError as error:
            raise LedgerError(f"{self._path}: cannot be written ({error.strerror})") from None


def _position(values: dict[str, Any] | None) -> Position | None:
    return None if values is None else Position(int(values["sequence"]), str(values["entry"]))
