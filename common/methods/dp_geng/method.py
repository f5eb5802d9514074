"""DP-GENG (Shi et al., AAAI 2026): the public half. Distillation that is guided by generated images.

Three parts share one budget, all reserved together and composed by privacy-loss distributions:

1. A *generator* (DP-MERF, Private Evolution or SPS) releases what images can be generated from.
2. *Feature matching*: the matching family's release, with feature extractors that were trained on generated images.
3. An *expert*, pretrained on generated images, is fine-tuned on records with DP-SGD inside the silo; the release is the
   weighted sum of the noisy gradients of all its steps, from which the weights follow.

Synthesis begins with generated images (k-means, several small ones in each image) and optimises until their mean
features match the released ones and the expert names their class.

Where we differ from the paper: everything is drawn once, before synthesis begins (*decoupled*, which makes the method
federated; *coupled*, a step per draw, is the paper's); samples are Poisson samples of all records at a public rate, not
batches of a fixed size out of a class; counts are released; noise is calibrated to the privacy loss, not to its
central limit, whose ε stands beside it in the card (`published`); and the budget is divided by fixed shares: the
paper's search for targets on private scores would have to be paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_geng.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class DPGENG(Method[MethodSettings, SynthesisSettings], family="dp_geng"):
    """Generated images, matched to records and guided by an expert."""

    def resolve(self, settings: MethodSettings, run: RunDescription, epsilon: float, delta: float) -> MethodSettings:
        """The generator's settings, as its own method resolves them."""
        from dpdd.common.methods.dp_geng.specification import generator_of

        generator = generator_of(settings)
        own = generator.method.resolve(generator.settings, run, epsilon, delta)
        return settings.model_copy(update={"generator_settings": own.on_wire()})

    def images_made(self, synthesis: SynthesisSettings) -> int:
        """Each part of an image is enlarged to one."""
        return synthesis.parts**2

    def stages(self, settings: MethodSettings) -> int:
        """The generator's, and one for every other part."""
        from dpdd.common.methods.dp_geng import specification

        return specification.stages(settings)

    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        """The released sums of a stage."""
        from dpdd.common.methods.dp_geng import specification

        return specification.layout(settings, run, stage)

    def plan(self, request: ReleaseRequest, settings: MethodSettings) -> Plan:
        """All parts, by one common scale of noise."""
        from dpdd.common.methods.dp_geng import planning

        return planning.plan(request, settings)

    def published_epsilon(self, settings: MethodSettings, run: RunDescription, plan: Plan) -> float | None:
        """By the central limit, over all stages."""
        from dpdd.common.methods.dp_geng import published

        return published.epsilon_of(plan)

    def stage_input(
        self, statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        """Extractors and the expert's first weights, trained on generated images."""
        from dpdd.common.methods.dp_geng import synthesis

        return synthesis.stage_input(statistics, settings, run)

    def count_weight(self, settings: MethodSettings, stage: int) -> float | None:
        """Of the part that the stage belongs to."""
        from dpdd.common.methods.dp_geng import specification

        return specification.count_weight(settings, stage)

    def backbones(self, settings: MethodSettings) -> tuple[str, ...]:
        """The generator's."""
        from dpdd.common.methods.dp_geng.specification import generator_of

        generator = generator_of(settings)
        return generator.method.backbones(generator.settings)

    def public_datasets(self, settings: MethodSettings) -> tuple[str, ...]:
        """The generator's: a public pool, where it begins with one."""
        from dpdd.common.methods.dp_geng.specification import generator_of

        generator = generator_of(settings)
        return generator.method.public_datasets(generator.settings)

    def public_models(self, settings: MethodSettings) -> tuple[str, ...]:
        """The generator's."""
        from dpdd.common.methods.dp_geng.specification import generator_of

        generator = generator_of(settings)
        return generator.method.public_models(generator.settings)

    def working_memory(self, settings: MethodSettings, run: RunDescription, stage: int) -> int:
        """The generator's, the matching family's, or that of gradients record by record."""
        from dpdd.common.methods.dp_geng import planning

        return planning.working_memory(settings, run, stage)

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """Images that begin as generated ones."""
        from dpdd.common.methods.dp_geng import synthesis as dp_geng

        return dp_geng.synthesise(statistics, settings, synthesis, run)
