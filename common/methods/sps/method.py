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
from dpdd.common.methods.plan import ArrayType
from dpdd.common.methods.sps.releases import SPSReleases
from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics
    from dpdd.common.synthesis.teacher import Teacher


class SPS(SPSReleases, Method[MethodSettings, SynthesisSettings], family="sps"):
    """Matched moments of a public network's activations."""

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

    def released_teacher(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> Teacher | None:
        """The classifier on the embedding, where one is released."""
        from dpdd.common.methods.sps.released_classifier import ReleasedClassifier
        from dpdd.common.methods.sps.specification import with_backbone

        method = with_backbone(settings, run.shape)
        return ReleasedClassifier(statistics, method, run.public, synthesis.average_last_stages).declared

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
