"""What SPS releases, for every method that makes something of it: stages, layout, plan, and what later stages ask.

A method that takes these members asks silos for the same sums, by the same private half (`client/mechanisms/sps.py`);
only what it makes of them is its own. It is a mixin, so that `Method`'s defaults come after it:

>>> from dpdd.common.methods.registry import method
>>> [method(name).family for name in ("sps", "kip-moments")]
['sps', 'sps']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpdd.common.synthesis.statistics import Statistics
    from dpdd.common.synthesis.teacher import Teacher


class SPSReleases:
    """The members of a `Method` that say what is asked of silos."""

    def resolve(self, settings: MethodSettings, run: RunDescription, epsilon: float, delta: float) -> MethodSettings:
        """Settings that name a backbone for the run's images, and pin all public backbones by their hashes."""
        from dpdd.common.methods.sps.specification import pinned, with_backbone

        return pinned(with_backbone(settings, run.shape))

    def stages(self, settings: MethodSettings) -> int:
        """How many releases belong together."""
        return settings.stages

    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        """The released sums of a stage."""
        from dpdd.common.methods.sps.specification import specification

        return specification(settings, run, stage).layout

    def plan(self, request: ReleaseRequest, settings: MethodSettings) -> Plan:
        """One Gaussian release of all statistics, for each stage."""
        from dpdd.common.methods.sps import planning

        return planning.plan(request, settings)

    def stage_input(
        self, statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        """The classifier so far, and the feature statistics of a small synthetic set."""
        from dpdd.common.methods.sps import synthesis

        return synthesis.stage_input(statistics, settings, run)

    def count_weight(self, settings: MethodSettings, stage: int) -> float:
        """Counts are released in every stage."""
        return settings.count_weight

    def backbones(self, settings: MethodSettings) -> tuple[str, ...]:
        """The one of the embedding, then those that stages take turns with."""
        return settings.backbone, *settings.more_backbones

    def working_memory(self, settings: MethodSettings, run: RunDescription, stage: int) -> int:
        """The backbones of the stage, with a batch on its way through them."""
        from dpdd.common.methods.sps.specification import working_memory

        return working_memory(settings, run, stage)

    def joint_teacher(
        self,
        firsts: Sequence[Statistics],
        settings: MethodSettings,
        tasks: Sequence[tuple[str, ...]],
        run: RunDescription,
    ) -> Teacher | None:
        """The ridge regression that one release over all tasks' classes would give."""
        from dpdd.common.methods.sps import synthesis

        return synthesis.joint_teacher(firsts, settings, tasks, run)

    def teacher_of(self, weights: NDArray[np.float32], settings: MethodSettings, run: RunDescription) -> Teacher:
        """The classifier with these weights on the run's embedding."""
        from dpdd.common.methods.sps.released_classifier import teacher_with
        from dpdd.common.methods.sps.specification import specification, with_backbone

        return teacher_with(weights, with_backbone(settings, run.shape), specification(settings, run, 0))
