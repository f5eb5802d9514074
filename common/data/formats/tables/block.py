"""What every source of a table gives: blocks of raw columns; and what becomes of the records in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown

if TYPE_CHECKING:
    import pyarrow as pa

MOST_NAMED = 8


@dataclass(frozen=True)
class Block:
    """Some records, column by column: Arrow arrays or sequences of Python values, in the order that was asked for.

    `unreadable` are records beside them that could not be told apart into cells.
    """

    columns: Sequence[pa.Array | Sequence[Any]]
    rows: int
    unreadable: int = 0


@dataclass
class Intake:
    """How many records there were, and what became of them; private, for the operator's own screen."""

    kept: int = 0
    unreadable: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Records that were left out, by the first column whose cell they lack."""


def positions_of(names: Sequence[str], wanted: Sequence[str], where: Path | str) -> list[int]:
    """Where the wanted columns stand among those that a source has; DataError names the first that is missing."""
    for name in wanted:
        if names.count(name) > 1:
            raise DataError(f"{shown(where)} has the column {_quoted(name)} more than once; give each its own name")
        if name not in names:
            few = ", ".join(map(_quoted, names[:MOST_NAMED])) or "none"
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            raise DataError(f"{shown(where)} has no column {_quoted(name)}; its columns are: {few}{more}")
    return [names.index(name) for name in wanted]


def _quoted(name: str) -> str:
    return repr(shown(name, 40))
