"""DP-MERF (Harder, Adamczewski and Park, AISTATS 2021): the public half.

Released: for every class, the sum of random Fourier features φ(x) = √(1/D)·[cos ωx, sin ωx] (norm 1) over its records,
and a noisy count. Synthesis trains a conditional generator whose mean features match the released ones: an MMD with a
Gaussian kernel.

Where we differ from the paper: the class counts are released (with a coordinate of their own in the same vector), not
taken as public; the kernel width is a public setting, not a heuristic on private data. Rows of a table are compared by
one kernel over one-hot categories and scaled numbers (`rows`); its width follows from the number of columns, unless it
is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import DataKind, Method, RunDescription
from dpdd.common.methods.dp_merf.settings import MethodSettings, SynthesisSettings
from dpdd.common.privacy.clipping import Layout

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


ROOT_SHARE = 0.4
"""Of that root; found on `made-patients`, whose patients never were."""


class DPMERF(Method[MethodSettings, SynthesisSettings], family="dp_merf"):
    """Random-feature mean embeddings and a generator."""

    def resolve(self, settings: MethodSettings, run: RunDescription, epsilon: float, delta: float) -> MethodSettings:
        """The kernel's width for a table: the distance of rows grows with the root of the number of columns."""
        if run.kind is not DataKind.TABLE or "length_scale" in settings.model_fields_set:
            return settings
        return settings.model_copy(update={"length_scale": ROOT_SHARE * math.sqrt(len(run.columns))})

    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        """An embedding and a count per class."""
        from dpdd.common.methods.dp_merf import specification

        return specification.layout(settings, run)

    def count_weight(self, settings: MethodSettings, stage: int) -> float:
        """A coordinate of its own in the same vector."""
        return settings.count_weight

    def working_memory(self, settings: MethodSettings, run: RunDescription, stage: int) -> int:
        """The frequencies, while they are drawn."""
        from dpdd.common.methods.dp_merf import specification

        return specification.working_memory(settings, run)

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """A balanced set, drawn from a generator whose mean features match."""
        from dpdd.common.methods.dp_merf import synthesis as dp_merf

        return dp_merf.synthesise(statistics, settings, synthesis, run)
