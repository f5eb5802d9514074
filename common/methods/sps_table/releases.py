"""What SPS for tables releases, for every method that makes rows of it.

A method that takes these members asks silos for the same sums, by the same private half
(`client/mechanisms/sps_table.py`); only what it makes of them is its own. A mixin, so that `Method`'s defaults come
after it.

>>> from dpdd.common.methods.registry import method
>>> [method(name).family for name in ("sps-table", "kip-table")]
['sps_table', 'sps_table']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.counting import BLOCK, COPIES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpdd.common.synthesis.table_teacher import TableTeacher


class SPSTableReleases:
    """The members of a `Method` that say what is asked of silos."""

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

    def teacher_of(self, weights: NDArray[np.float32], settings: MethodSettings, run: RunDescription) -> TableTeacher:
        """The classifier with these weights on the table's cells."""
        from dpdd.common.synthesis.table_teacher import TableTeacher

        if run.table is None:
            raise ValueError("they are for a table, and the records are none")
        return TableTeacher(weights, run.table)
