"""DP-MERF (Harder, Adamczewski and Park, AISTATS 2021): the public half.

Released: for every class, the sum of random Fourier features φ(x) = √(1/D)·[cos ωx, sin ωx] (norm 1) over its records,
and a noisy count. Synthesis trains a conditional generator whose mean features match the released ones: an MMD with a
Gaussian kernel.

Where we differ from the paper: the class counts are released (with a coordinate of their own in the same vector), not
taken as public; the kernel width is a public setting, not a heuristic on private data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_merf.settings import MethodSettings, SynthesisSettings
from dpdd.common.privacy.clipping import Layout

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class DPMERF(Method[MethodSettings, SynthesisSettings], family="dp_merf"):
    """Random-feature mean embeddings and a generator."""

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
