"""What the operator of a silo sees of each column of the silo's own table: exact facts, for the local screen only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdd.client.records.records import Records
from dpdd.common.data.table.columns import Categorical, Column, Ordinal

_ROWS = 1 << 14
MOST_MISSING = 0.5
"""Above this share, a column is worth a look."""
MOST_AT_ONE = 0.99


@dataclass(frozen=True)
class ColumnFacts:
    """How the records of a silo fill a declared column; never sent, logged or released."""

    name: str
    missing: float
    empty: tuple[str, ...]
    """Values that no record has."""
    largest: str
    share: float
    """Of the records with the most frequent value."""

    @property
    def finding(self) -> str | None:
        """What an operator should look at."""
        if self.missing > MOST_MISSING:
            return f"column {self.name!r}: {self.missing:.0%} of the records have no value that it declares"
        if self.share > MOST_AT_ONE:
            return f"column {self.name!r}: {self.share:.1%} of the records are {self.largest!r}; are its bounds right?"
        return None


def column_facts(records: Records, columns: Sequence[Column]) -> list[ColumnFacts]:
    """Facts of every column of a record, from its codes; records are read a few thousand at a time."""
    counts = [np.zeros(column.size, np.int64) for column in columns]
    for batch, _ in records.batches(_ROWS):
        for at, column in enumerate(columns):
            counts[at] += np.bincount(batch[:, at].astype(np.int64), minlength=column.size)
    return [_facts(column, each) for column, each in zip(columns, counts, strict=True)]


def _facts(column: Column, counts: np.ndarray) -> ColumnFacts:
    names, total = column.value_names, max(1, int(counts.sum()))
    largest = int(counts[: column.values].argmax())
    empty = [name for name, count in zip(names, counts, strict=False) if count == 0]
    listed = isinstance(column, Categorical | Ordinal)
    return ColumnFacts(
        name=column.name,
        missing=int(counts[column.values :].sum()) / total,
        empty=tuple(empty) if listed else (),
        largest=names[largest],
        share=int(counts[largest]) / total,
    )
