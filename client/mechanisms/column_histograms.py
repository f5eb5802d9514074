"""Private histograms of a table's columns, the private half: one streaming pass and one Gaussian.

Event: one Gaussian over the cells of all columns' histograms.
Sensitivity: a record falls into exactly one cell of each of the d columns, the label's among them, and adds 1/√d to it:
its contribution has norm √(d · 1/d) = 1, which `CountedSum` enforces in integers. Adding or removing a record changes
the sums by that contribution. A row with anything in it that is no code of its column adds nothing at all.
Public: the schema that is asked with, and so which cells there are. Which values records have decides only which cell
they fall into: a category that is not listed has no cell of its own, whoever has it. Private: everything else, how many
records there are and how many have no label included.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Mechanism, privatised_counts
from dpdd.client.records.records import Records
from dpdd.common.data.table.rows import proper_rows
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.column_histograms.query import HistogramSettings, column_cells, record_weight
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.registry import query
from dpdd.common.privacy.counting import OneHot
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class ColumnHistogramsMechanism(Mechanism[HistogramSettings]):
    """Counts of codes, column by column."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: HistogramSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Count every record in one cell of each column, and privatise the counts."""
        schema = request.table
        assert schema is not None  # else there is no layout, and no plan
        sizes = [column.size for column in schema.features]
        starts = np.array([cells.start for cells in column_cells(schema)])
        weights = (record_weight(schema),) * len(schema.columns)

        def contributions(
            rows: NDArray[np.float32], labels: NDArray[np.int64]
        ) -> tuple[OneHot, NDArray[np.int64], Mapping[str, OneHot]]:
            proper = proper_rows(rows, sizes)
            codes = np.insert(rows[proper].astype(np.int64), schema.label_position, labels[proper], axis=1)
            return OneHot(codes + starts, weights), labels[proper], {}

        layout = query(request.method).layout(settings, RunDescription.of(request), request.stage)
        return privatised_counts(records, layout, contributions, plan, entropy, progress)


MECHANISM = ColumnHistogramsMechanism()
