"""SPS for tables, the private half: one streaming pass, one clipped sum and one Gaussian.

Event: one Gaussian over all marginals and counts.
Sensitivity: a record of class y, one-hot h with a 1 for each of its d codes, adds w·h and its count a to the rows of
its class, of norm √(w²d + a²), and the outer product of (h at class y) with h, both clipped to norm 1, times √(1 -
w²d - a²). The norm of an outer product is the product of the norms, so that all squares add up to 1 at most, which
`CountedSum` enforces in integers: of all records of a class the numbers are the same, and only their places differ.
Adding or removing a record changes the sums by exactly that. A row with anything in it that is no code of its column
(NaN, a fraction, a number out of range) adds nothing, its count included.
Public: the schema (columns, categories, bins, bounds), classes, and all settings. Private: everything else, the class
counts and the number of records included.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Mechanism, privatised_counts
from dpdd.client.records.records import Records
from dpdd.common.data.table.rows import proper_rows
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.sps_table.marginals import PAIRS, marginals
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.privacy.counting import OneHot
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class SPSTableMechanism(Mechanism[MethodSettings]):
    """Sums of one-hot rows and of their outer products, by class."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Sum up the one-hot rows of all records, and privatise the sum."""
        released = marginals(settings, RunDescription.of(request))
        starts, of_groups = (
            np.array([part.start for part in parts]) for parts in (released.cells, released.group_cells)
        )
        weights = (released.column_weight,) * len(starts) + (settings.count_weight,)
        ones = (1.0,) * len(starts)

        def contributions(
            rows: NDArray[np.float32], labels: NDArray[np.int64]
        ) -> tuple[OneHot, NDArray[np.int64], Mapping[str, OneHot]]:
            proper = proper_rows(rows, released.sizes)
            codes, labels = rows[proper].astype(np.int64), labels[proper]
            counts = np.full((len(codes), 1), released.width)
            columns = OneHot(np.concatenate([codes + starts, counts], axis=1), weights)
            if not released.has_pairs:
                return columns, labels, {}
            grouped = [group[column] for group, column in zip(released.groups, codes.T, strict=True)]
            return columns, labels, {PAIRS: OneHot(np.stack(grouped, axis=1) + of_groups, ones)}

        return privatised_counts(records, released.layout, contributions, plan, entropy, progress)


MECHANISM = SPSTableMechanism()
