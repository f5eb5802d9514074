"""What the operator of a silo sees about the silo's own records before any of them is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdd.client.records.records import Records
from dpdd.common.data.features import Originals
from dpdd.common.data.formats import DataSpec
from dpdd.common.progress import Progress, silent

EXAMPLES = 5

_ROWS = 256


@dataclass(frozen=True)
class Description:
    """Exact facts about private records, for the local operator only: never sent, logged or released."""

    count: int
    per_class: dict[str, int]
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    non_finite: int


def describe(records: Records, spec: DataSpec, progress: Progress = silent) -> Description:
    """Return exact counts and extremes, for `preflight` on the silo's own screen; never sent anywhere.

    Images are described on the scale [0, 1] that mechanisms see, tables as they are. `minimum` and `maximum`
    are over finite values, None where there are none; `non_finite` counts records with any value that is not
    finite. All records are read, a few at a time.
    """
    low, high, non_finite, done = np.inf, -np.inf, 0, 0
    for batch, _ in records.batches(_ROWS):
        finite = np.isfinite(batch)
        non_finite += int((~finite.reshape(len(batch), -1).all(axis=1)).sum())
        low = min(low, float(batch.min(where=finite, initial=np.inf)))
        high = max(high, float(batch.max(where=finite, initial=-np.inf)))
        done += len(batch)
        progress("reading records", done, len(records))
    counts = np.bincount(records.labels, minlength=len(spec.classes))
    return Description(
        count=len(records),
        per_class={name: int(count) for name, count in zip(spec.classes, counts, strict=True)},
        shape=records.shape,
        minimum=None if low > high else low,
        maximum=None if low > high else high,
        non_finite=non_finite,
    )


def examples(records: Records, count: int = EXAMPLES) -> list[str]:
    """Where a few records come from, their size and type, and how they are fitted; for the operator's screen only."""
    if not isinstance(records.features, Originals) or not len(records):
        return []
    positions = np.unique(np.linspace(0, len(records) - 1, count).astype(np.int64))
    return [records.features.original(int(position)) for position in positions]
