"""Private histograms of a table's columns, the label's among them: the public half.

Released: for every column how many records have each of its codes, in one clipped vector with one noise. Codes follow
from the schema that is asked with, a draft: where bounds are not public yet, it has a generous public grid. A record
falls into one cell per column and adds 1/√d to it, so that d columns cost √d in noise. What comes of the noisy counts
(quantiles, frequencies, final columns) is post-processing, and no dataset: so this is a query, and no method.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from dpdd.common.config import Settings
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Query, RunDescription
from dpdd.common.privacy.clipping import Layout, global_segment
from dpdd.common.privacy.counting import BLOCK, COPIES

NAME = "column-histograms"
CELLS = "cells"
MOST_CELLS = 1 << 20


class HistogramSettings(Settings):
    """There are none: what is counted follows from the schema."""


class ColumnHistograms(Query[HistogramSettings], family="column_histograms"):
    """Noisy one-way marginals of all columns of a draft schema."""

    def layout(self, settings: HistogramSettings, run: RunDescription, stage: int) -> Layout:
        """The histograms of all columns, side by side; ConfigError where they are more than a release may hold."""
        if run.table is None:
            raise ConfigError(f"{self.name} counts columns of a table, and records of shape {run.shape} have none")
        width = sum(run.table.sizes)
        if width > MOST_CELLS:
            raise ConfigError(
                f"the histograms of {len(run.table.columns)} columns are {width:,} cells, and a release holds "
                f"{MOST_CELLS:,}: lower their bins"
            )
        return Layout((global_segment(CELLS, width, len(run.classes)),))

    def working_memory(self, settings: HistogramSettings, run: RunDescription, stage: int) -> int:
        """A block of records, and the places that they are counted at."""
        return COPIES * BLOCK * 8 * (math.prod(run.shape) + 1)


def record_weight(schema: TableSchema) -> float:
    """What a record adds to its cell of each of the d columns: 1/√d, so that its contribution has norm 1."""
    return 1.0 / math.sqrt(len(schema.columns))


def column_cells(schema: TableSchema) -> tuple[slice, ...]:
    """Where each column's cells lie among all.

    >>> from dpdd.common.data.table.columns import Categorical, Numeric
    >>> column_cells(TableSchema(label="sick", columns=(
    ...     Numeric(name="age", low=0, high=100, bins=10), Categorical(name="sick", categories=("no", "yes")))))
    (slice(0, 10, None), slice(10, 12, None))
    """
    stops = np.cumsum([0, *schema.sizes]).tolist()
    return tuple(slice(start, stop) for start, stop in pairwise(stops))
