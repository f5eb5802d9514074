"""KIP from moments: the public half. It asks silos for what SPS asks, and makes a support set of it.

For a finite feature map φ the kernel ridge classifier of a support set is linear in φ, and its squared loss on private
data depends on that data only through the second moment and the class sums of φ: what SPS's first stage releases, of
the image embedding. So the support set is optimised against one release, in one shot, for as long as one likes,
federated by plain sums. The paper takes a noisy gradient of every step instead (Vinaroz and Park, 2024).

Privacy: nothing is released but what SPS releases, by SPS's private half; all else is post-processing. One set of
releases serves both methods (`synthesis.also` in a scenario).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_kip.settings import LEARNERS, MomentsSettings
from dpdd.common.methods.plan import ArrayType
from dpdd.common.methods.sps.releases import SPSReleases
from dpdd.common.methods.sps.settings import MethodSettings

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class KIPMoments(SPSReleases, Method[MethodSettings, MomentsSettings], family="sps"):
    """Kernel inducing points from released moments of the image embedding."""

    learners: ClassVar[tuple[str, ...]] = LEARNERS

    def settings(self, values: Mapping[str, Any]) -> MethodSettings:
        """SPS's settings; ConfigError where nothing of the image embedding is released."""
        settings = super().settings(values)
        if not (settings.features or settings.picture):
            raise ConfigError(f"{self.name} needs moments of the image embedding: ask for features, or a picture")
        return settings

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: MomentsSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """Images whose kernel ridge regression has a small squared loss on the records, as the moments tell it."""
        from dpdd.common.methods.dp_kip import moments_synthesis

        return moments_synthesis.synthesise(statistics, settings, synthesis, run)

    def label_arrays(
        self, settings: MethodSettings, synthesis: MomentsSettings, run: RunDescription
    ) -> Mapping[str, ArrayType]:
        """The classifier on the embedding, and the solved labels, if they are."""
        from dpdd.common.methods.sps.specification import specification

        embedding = specification(settings, run, 0).embedding
        assert embedding is not None
        classes = len(run.classes)
        teacher = {"teacher": ArrayType("float32", (classes, embedding.dimensions))}
        soft = ArrayType("float32", (classes * run.images_per_class, classes), at_most=True)
        return {**teacher, "soft": soft} if synthesis.labels == "solved" else teacher
