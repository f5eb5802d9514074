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
from dpdd.common.methods.sps_table.releases import SPSTableReleases
from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class SPSTable(SPSTableReleases, Method[MethodSettings, SynthesisSettings], family="sps_table"):
    """Class-conditional marginals of columns and of their pairs."""

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
