"""SPS and SPS+ (Summarize, Privatize, Synthesize): the public half.

Released in the first stage: class sums and second moment of every image's embedding (`ImageEmbedding`), moments of
projected activations of a public backbone over all records and over each class or group of classes (SPS+), and class
counts, all in one clipped vector with one noise (`FeatureStatistics`). In later stages (SPS+): the same moments,
centred on those of a synthetic set, and the gradient of the classifier so far. Synthesis optimises images until the
Gaussians of their own statistics match the released ones.

Where we differ from the paper: counts are released, not public; activations are taken before BatchNorm and
standardised with its public statistics; the weight of the class part counts how many groups a record sits in; the
jitter has a floor; the statistics contain a classifier (`classifier`), which gives labels at no further cost; the
backbone may be a fixed scattering transform, so that no public data is needed. By default the embedding alone is
released, and none of the paper's layer statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.plan import ArrayType, Plan
from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics
    from dpdd.common.synthesis.teacher import Teacher


class SPS(Method[MethodSettings, SynthesisSettings], family="sps"):
    """Matched moments of a public network's activations."""

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

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """Images whose moments match, labelled by the classifier in the releases."""
        from dpdd.common.methods.sps import synthesis as sps

        return sps.synthesise(statistics, settings, synthesis, run)

    def label_arrays(
        self, settings: MethodSettings, synthesis: SynthesisSettings, run: RunDescription
    ) -> Mapping[str, ArrayType]:
        """The classifier on the embedding, where one is released, and its labels unless nobody wants them."""
        from dpdd.common.methods.sps.specification import specification

        embedding = specification(settings, run, 0).embedding
        if embedding is None:
            return {}
        classes = len(run.classes)
        teacher = {"teacher": ArrayType("float32", (classes, embedding.dimensions))}
        soft = ArrayType("float32", (classes * run.images_per_class, classes), at_most=True)
        return {**teacher, "soft": soft} if synthesis.soft_labels else teacher

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
        from dpdd.common.methods.sps.specification import specification, with_backbone
        from dpdd.common.methods.sps.synthesis import teacher_with

        return teacher_with(weights, with_backbone(settings, run.shape), specification(settings, run, 0))
