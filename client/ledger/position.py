"""A place in a ledger: number and hash of an entry. What else remembers it shows whether a ledger is the newest.

Entries are a hash chain, so the hash commits to everything up to there.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpdd.common.errors import LedgerError


@dataclass(frozen=True)
class Position:
    """An entry by number and hash, and how many requests had been paid for by then."""

    sequence: int
    entry: str
    reservations: int = 0


class LedgerBehind(LedgerError):
    """The ledger knows less than what else remembers it: it was restored from an old copy, cut short, or forked."""

    def __init__(self, missing: int, of: str, fork: bool = False) -> None:
        self.missing = missing
        entries = "1 entry" if missing == 1 else f"{missing} entries"
        what = "went on from an older copy" if fork else "is older"
        super().__init__(
            f"the ledger {what} than {of}: at least {entries} {'is' if missing == 1 else 'are'} missing; restore the "
            "newest ledger from a backup, or rebuild it with `dpdd-client recover`; nothing is answered before"
        )


def behind(head: Position, known: Position, of: str) -> LedgerBehind:
    """The error of a ledger that ends at `head` and does not hold what `of`, in words, knows."""
    if known.sequence > head.sequence:
        return LedgerBehind(known.sequence - head.sequence, f"{of}, which names entry {known.sequence}")
    return LedgerBehind(1, f"{of}, which names another entry {known.sequence}", fork=True)
