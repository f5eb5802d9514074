"""DP-KIP (Vinaroz and Park, TMLR 2024) with the tangent kernel of a fully connected network: the public half.

A small labelled set, the support set, is optimised until its kernel ridge regression classifies the records. Released,
in each of `steps` stages: the sum, over a Poisson sample of the records, of the gradients of their losses with respect
to the support set, each clipped. The next stage is asked with the support set that the noisy gradients so far lead to.
So all of it works in both modes: a silo that makes a set of its own goes through all stages by itself, and a
coordinator that holds the set asks for one noisy gradient after the other. All stages are reserved together.

Where we differ from the paper: samples are Poisson samples, as its accounting assumes, and accounted for by privacy
loss distributions; sums are never divided by private sizes (Adam takes no notice of scale); the set starts from noise,
never from records; pixels stay in [0, 1], in which form they are stored; labels are balanced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_kip.settings import GradientSettings, GradientSynthesisSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class DPKIP(Method[GradientSettings, GradientSynthesisSettings], family="dp_kip"):
    """Kernel inducing points by noisy gradients."""

    def stages(self, settings: GradientSettings) -> int:
        """A gradient each."""
        return settings.steps

    def layout(self, settings: GradientSettings, run: RunDescription, stage: int) -> Layout:
        """One number for every free pixel of the support set, over all records."""
        from dpdd.common.methods.dp_kip import planning

        return planning.layout(settings, run)

    def plan(self, request: ReleaseRequest, settings: GradientSettings) -> Plan:
        """One Gaussian on a Poisson sample, of as many as there are stages."""
        from dpdd.common.methods.dp_kip import planning

        return planning.plan(request, settings)

    def stage_input(
        self, statistics: Sequence[Statistics], settings: GradientSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        """The support set that the gradients so far lead to."""
        from dpdd.common.methods.dp_kip import planning

        return planning.stage_input(statistics, settings, run)

    def working_memory(self, settings: GradientSettings, run: RunDescription, stage: int) -> int:
        """A batch of gradients, and what goes into them."""
        from dpdd.common.methods.dp_kip import planning

        return planning.working_memory(settings, run)

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: GradientSettings,
        synthesis: GradientSynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """The support set at the end; at most `support_per_class` images of every class, however many are asked for."""
        from dpdd.common.methods.dp_kip import planning

        return planning.synthesise(statistics, settings, synthesis, run)
