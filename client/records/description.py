"""What the operator of a silo sees about the silo's own records before any of them is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdd.client.records.records import Records
from dpdd.common.data.formats import DataSpec
from dpdd.common.data.labelled_records import as_float

_ROWS = 4096


@dataclass(frozen=True)
class Description:
    """Exact facts about private records, for the local operator only: never sent, logged or released."""

    count: int
    per_class: dict[str, int]
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    non_finite: int


def describe(records: Records, spec: DataSpec) -> Description:
    """Return exact counts and extremes, for `preflight` on the silo's own screen; never sent anywhere.

    Images are described on the scale [0, 1] that mechanisms see, tables as they are. `minimum` and `maximum`
    are over finite values, None where there are none; `non_finite` counts records with any value that is not
    finite.
    """
    lows, highs, non_finite = [], [], 0
    for start in range(0, len(records), _ROWS):
        values = as_float(records.features[start : start + _ROWS]).reshape(-1, int(np.prod(spec.shape)))
        finite = np.isfinite(values)
        non_finite += int((~finite.all(axis=1)).sum())
        if finite.any():
            lows.append(float(values[finite].min()))
            highs.append(float(values[finite].max()))
    counts = np.bincount(records.labels, minlength=len(spec.classes))
    return Description(
        count=len(records),
        per_class={name: int(count) for name, count in zip(spec.classes, counts, strict=True)},
        shape=tuple(records.features.shape[1:]),
        minimum=min(lows, default=None),
        maximum=max(highs, default=None),
        non_finite=non_finite,
    )
