"""KIP from moments, for tables: the public half. It asks silos for what SPS for tables asks, and chooses a few rows.

One-hot rows have the marginals of all pairs of columns for their second moment and the class-conditional marginals of
columns for their class sums, so one release of SPS for tables has all that the loss of a support set depends on.

Privacy: nothing is released but what `sps-table` releases, by its private half; all else is post-processing. One set
of releases serves both methods (`synthesis.also` in a scenario).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_kip.settings import TableSettings
from dpdd.common.methods.plan import ArrayType
from dpdd.common.methods.sps_table.releases import SPSTableReleases
from dpdd.common.methods.sps_table.settings import MethodSettings

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class KIPTable(SPSTableReleases, Method[MethodSettings, TableSettings], family="sps_table"):
    """Kernel inducing rows from released marginals."""

    def synthesise(
        self, statistics: Sequence[Statistics], settings: MethodSettings, synthesis: TableSettings, run: RunDescription
    ) -> LabelledSet:
        """Rows whose kernel ridge classifier is close to the one that the marginals contain."""
        from dpdd.common.methods.dp_kip import table_synthesis

        return table_synthesis.synthesise(statistics, settings, synthesis, run)

    def label_arrays(
        self, settings: MethodSettings, synthesis: TableSettings, run: RunDescription
    ) -> Mapping[str, ArrayType]:
        """The classifier on the cells."""
        cells = sum(column.size for column in run.columns)
        return {"teacher": ArrayType("float32", (len(run.classes), cells + 1))}
