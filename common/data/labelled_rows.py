"""Labelled rows of a table in memory, as codes: what public tables are loaded as, and what evaluations are given.

>>> from dpdd.common.data.made_patients import SCHEMA, rows
>>> test = rows("test")
>>> test.classes, test.rows.shape[1] == len(SCHEMA.features), len(test.subset([2, 0]))
(('no', 'yes'), True, 2)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdd.common.data.table.rows import odd_rows
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import DataError


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Codes of all columns but the label (float32; N, columns) with a label each (int64, an index into `classes`)."""

    rows: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    schema: TableSchema

    def __post_init__(self) -> None:
        if self.rows.dtype != np.float32 or self.rows.ndim != 2 or self.rows.shape[1:] != self.schema.shape:
            raise DataError(f"rows must be float32 N, {self.schema.shape[0]}, not {self.rows.dtype} {self.rows.shape}")
        if self.labels.dtype != np.int64 or self.labels.shape != self.rows.shape[:1]:
            raise DataError(
                f"{len(self.rows)} rows need as many int64 labels, not {self.labels.dtype} {self.labels.shape}"
            )
        wrong = odd_rows(self.schema, self.rows) | (self.labels < 0) | (self.labels >= len(self.classes))
        if wrong.any():
            raise DataError(f"row {int(wrong.argmax()) + 1} holds a number that is no code of its column")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """The values of the label."""
        return self.schema.classes

    def subset(self, indices: npt.ArrayLike) -> LabelledRows:
        """Return the records at `indices` (positions, or one boolean per record), in that order."""
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        return LabelledRows(self.rows[chosen], self.labels[chosen], self.schema)
