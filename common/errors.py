"""Errors that people read: each is one sentence that says what was wrong, where, and what would be right.

Commands print the sentence and leave with the error's exit code; ``--debug`` adds the traceback.
`docs/exit-codes.md` has a paragraph on each.
"""

from __future__ import annotations


class DpddError(Exception):
    """Any failure that dpdd foresaw; `exit_code` is what a command returns for it."""

    exit_code = 1


class ConfigError(DpddError):
    """A scenario, a `silo.toml` or a command line asks for something that cannot be."""

    exit_code = 3


class DataError(DpddError):
    """A data file is missing, unreadable or not of the declared form."""

    exit_code = 4


class WireError(DpddError):
    """Bytes from outside are not a valid message."""

    exit_code = 5


class PolicyError(DpddError):
    """The silo's policy does not allow a request."""

    exit_code = 6


class BudgetError(DpddError):
    """A request does not fit into what is left of the silo's budget."""

    exit_code = 7


class LedgerError(DpddError):
    """The ledger cannot be read, written or trusted."""

    exit_code = 8


class IntegrityError(DpddError):
    """A signature, a hash or a certificate does not match."""

    exit_code = 9


def sayable(error: BaseException) -> str:
    """What a log may say of `error`: dpdd's own errors name files and positions, a library's may quote a record."""
    if isinstance(error, DpddError | OSError):
        return str(error)
    return f"{type(error).__name__}, whose text is left out because it may quote a record"
