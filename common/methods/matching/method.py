"""Matching (DM, NDPDC, PSG, Dosser): one engine, the public half.

Released, for each of `draws`: the sums, class by class, of clipped signals (`signals`) over a Poisson sample of the
records; and noisy class counts. All draws are one release. Synthesis optimises images until the mean signals of each
class match. Two independent choices make the family:

=========  =====================  ==========================================================================
method     signal                 schedule
=========  =====================  ==========================================================================
Dosser     features, in a         *decoupled*: the draws are used over and over, for as many steps as one likes
           subspace
NDPDC      features               *coupled*: a step per draw, each used once
PSG        gradients              coupled
DM         features               decoupled, without noise (simulations only)
=========  =====================  ==========================================================================

The network and the siamese augmentation of a draw do not depend on the synthetic images, so coupled methods need no
conversation either: a step per draw can be made after all draws have arrived. This is what makes the family federated
in one shot.

The subspace comes from auxiliary images: *dead leaves* drawn in code, or images that the releases of a generator
(DP-MERF, Private Evolution or SPS) allow to make, which come first and have `auxiliary_share` of the budget; those may
also be what synthesis starts from.

Where we differ from the papers: counts are released, not public, and sums are divided by their expected number of
records; the sampling rate is a setting, not L / (private class size); noise is drawn once per draw and never again;
in a subspace, features are centred on the auxiliary mean before clipping, which leaves more of the norm to what
differs; PSG's networks are fresh in every draw, not trained on the synthetic set in between, which would need a
conversation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.matching.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class Matching(Method[MethodSettings, SynthesisSettings], family="matching"):
    """Mean signals of random networks, matched."""

    def resolve(self, settings: MethodSettings, run: RunDescription, epsilon: float, delta: float) -> MethodSettings:
        """The settings with the number of dimensions that has the least predicted error."""
        from dpdd.common.methods.matching import stages

        return stages.resolve(settings, run, epsilon, delta)

    def check_budget(self, epsilon: float) -> None:
        """DM has no noise, so it is for simulations."""
        if self.name == "dm" and math.isfinite(epsilon):
            raise ConfigError("dm is matching without privacy: ask for it with epsilon = inf, or for dosser")

    def stages(self, settings: MethodSettings) -> int:
        """One, after those of the generator where auxiliary images are generated."""
        from dpdd.common.methods.matching import stages

        return stages.stages(settings)

    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        """The released sums of a stage."""
        from dpdd.common.methods.matching import stages

        return stages.layout(settings, run, stage)

    def plan(self, request: ReleaseRequest, settings: MethodSettings) -> Plan:
        """All draws as one release, after a generator's where auxiliary images are generated."""
        from dpdd.common.methods.matching import planning

        return planning.plan(request, settings)

    def stage_input(
        self, statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        """What a generator's next stage is asked with; at last, the auxiliary images that it makes."""
        from dpdd.common.methods.matching import stages

        return stages.stage_input(statistics, settings, run)

    def backbones(self, settings: MethodSettings) -> tuple[str, ...]:
        """The generator's."""
        from dpdd.common.methods.matching.stages import generator_of

        if settings.auxiliary == "leaves":
            return ()
        generator = generator_of(settings)
        return generator.method.backbones(generator.settings)

    def public_datasets(self, settings: MethodSettings) -> tuple[str, ...]:
        """The generator's: a public pool, where it begins with one."""
        from dpdd.common.methods.matching.stages import generator_of

        if settings.auxiliary == "leaves":
            return ()
        generator = generator_of(settings)
        return generator.method.public_datasets(generator.settings)

    def public_models(self, settings: MethodSettings) -> tuple[str, ...]:
        """The generator's."""
        from dpdd.common.methods.matching.stages import generator_of

        if settings.auxiliary == "leaves":
            return ()
        generator = generator_of(settings)
        return generator.method.public_models(generator.settings)

    def count_weight(self, settings: MethodSettings, stage: int) -> float | None:
        """Counts of all draws, added up; the generator's, of its stages."""
        from dpdd.common.methods.matching import stages

        return stages.count_weight(settings, stage)

    def working_memory(self, settings: MethodSettings, run: RunDescription, stage: int) -> int:
        """Networks with their subspaces, auxiliary images, a batch of records, and what all draws come to; before that,
        the generator's.
        """
        from dpdd.common.methods.matching import planning

        return planning.working_memory(settings, run, stage)

    def images_made(self, synthesis: SynthesisSettings) -> int:
        """Each piece of an image is enlarged to one."""
        return synthesis.parts**2

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """Images whose mean signals match."""
        from dpdd.common.methods.matching import synthesis as matching

        return matching.synthesise(statistics, settings, synthesis, run)
