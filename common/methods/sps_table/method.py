"""SPS for tables: the public half.

Released: for every class, the marginals of all columns and of all pairs of columns, and a count, in one clipped vector
with one noise (`marginals`). They are sums, so they federate in one release, and a late silo's are added. Synthesis
fits a mixture of products of columns for every class to all noisy marginals at once, as far as they stand out of their
noise (`mixture`), and draws rows from it; few rows are chosen to have its moments together (`rows`). The statistics
contain a classifier (`classifier`), which labels rows at no further cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.plan import ArrayType
from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.counting import BLOCK, COPIES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics
    from dpdd.common.synthesis.table_teacher import TableTeacher


class SPSTable(Method[MethodSettings, SynthesisSettings], family="sps_table"):
    """Class-conditional marginals of columns and of their pairs."""

    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        """The marginals of columns by class, a count per class, and the marginals of pairs."""
        from dpdd.common.methods.sps_table.marginals import marginals

        return marginals(settings, run).layout

    def count_weight(self, settings: MethodSettings, stage: int) -> float:
        """A coordinate of its own in the same vector."""
        return settings.count_weight

    def working_memory(self, settings: MethodSettings, run: RunDescription, stage: int) -> int:
        """A block of records, and the places that they are counted at."""
        return COPIES * BLOCK * 8 * (len(run.columns) + 1)

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """Rows whose marginals match, labelled by the classifier in the releases."""
        from dpdd.common.methods.sps_table import synthesis as sps_table

        return sps_table.synthesise(statistics, settings, synthesis, run)

    def label_arrays(
        self, settings: MethodSettings, synthesis: SynthesisSettings, run: RunDescription
    ) -> Mapping[str, ArrayType]:
        """The classifier on the cells, and its labels unless nobody wants them."""
        if not synthesis.teacher_rows:
            return {}
        classes = len(run.classes)
        cells = sum(column.size for column in run.columns)
        teacher = {"teacher": ArrayType("float32", (classes, cells + 1))}
        soft = ArrayType("float32", (classes * run.images_per_class, classes), at_most=True)
        return {**teacher, "soft": soft} if synthesis.soft_labels else teacher

    def teacher_of(self, weights: NDArray[np.float32], settings: MethodSettings, run: RunDescription) -> TableTeacher:
        """The classifier with these weights on the table's cells."""
        from dpdd.common.synthesis.table_teacher import TableTeacher

        if run.table is None:
            raise ValueError("they are for a table, and the records are none")
        return TableTeacher(weights, run.table)
