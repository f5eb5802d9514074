"""DP-KIP (Vinaroz and Park, TMLR 2024), by noisy gradients: the public half of `dp-kip` and `dp-kip-features`.

A small labelled set, the support set, is optimised until its kernel ridge regression classifies the records. Released,
in each of `steps` stages: the sum, over a Poisson sample of the records, of the gradients of their losses with respect
to the support set, each clipped. The next stage is asked with the support set that the noisy gradients so far lead to.
So all of it works in both modes: a silo that makes a set of its own goes through all stages by itself, and a
coordinator that holds the set asks for one noisy gradient after the other. All stages are reserved together.

Where we differ from the paper: samples are Poisson samples, as its accounting assumes, and accounted for by privacy
loss distributions; sums are never divided by private sizes (Adam takes no notice of scale); the set starts from noise,
never from records; pixels stay in [0, 1], in which form they are stored; labels are balanced.

`dp-kip-features` is a variant, and not the published algorithm: gradients are taken, clipped and summed with respect to
the features of the support images, and the noisy sum is led back to pixels through the public Jacobian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_kip.settings import LEARNERS, GradientSettings, GradientSynthesisSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class DPKIP(Method[GradientSettings, GradientSynthesisSettings], family="dp_kip"):
    """Kernel inducing points by noisy gradients."""

    learners: ClassVar[tuple[str, ...]] = LEARNERS

    def settings(self, values: Mapping[str, Any]) -> GradientSettings:
        """Checked: the published algorithm clips with respect to pixels, and its variant with respect to features."""
        settings = super().settings(values)
        if settings.clip_in != ("features" if self.preset else "pixels"):
            raise ConfigError(
                f"settings of {self.name} have clip_in = {settings.clip_in!r}: dp-kip clips gradients with respect to "
                "pixels, as published, and dp-kip-features with respect to features"
            )
        return settings

    def resolve(
        self, settings: GradientSettings, run: RunDescription, epsilon: float, delta: float
    ) -> GradientSettings:
        """Settings that name the network of the kernel's features."""
        from dpdd.common.methods.dp_kip.features import with_backbone

        return with_backbone(settings, run.shape)

    def backbones(self, settings: GradientSettings) -> tuple[str, ...]:
        """The network of the kernel's features, where it has any."""
        return (settings.backbone,) if settings.kernel == "scattering" else ()

    rounds = True

    def stages(self, settings: GradientSettings) -> int:
        """A gradient each."""
        return settings.steps

    def layout(self, settings: GradientSettings, run: RunDescription, stage: int) -> Layout:
        """One number for every free pixel of the support set, or for every feature, over all records."""
        from dpdd.common.methods.dp_kip import planning

        return planning.layout(settings, run)

    def plan(self, request: ReleaseRequest, settings: GradientSettings) -> Plan:
        """One Gaussian on a Poisson sample, of as many as there are stages."""
        from dpdd.common.methods.dp_kip import planning

        return planning.plan(request, settings)

    def check_round(self, request: ReleaseRequest, settings: GradientSettings) -> None:
        """The support set has to be one."""
        from dpdd.common.methods.dp_kip import planning

        planning.check_input(request, settings, RunDescription.of(request))

    def stage_input(
        self, statistics: Sequence[Statistics], settings: GradientSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        """The support set that the gradients so far lead to."""
        from dpdd.common.methods.dp_kip import planning

        return planning.stage_input(statistics, settings, run)

    def advance(
        self, state: Any, statistics: Statistics, settings: GradientSettings, run: RunDescription
    ) -> tuple[Any, Mapping[str, NDArray]]:
        """One step of Adam more."""
        from dpdd.common.methods.dp_kip import planning

        return planning.advance(state, statistics, settings, run)

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
