"""The classifier that a run's releases contain, as a teacher: fitted, and for declared class priors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps import classifier
from dpdd.common.methods.sps.calibration import calibrated
from dpdd.common.methods.sps.classifier import Moments
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import backbone, specifications
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.priors import EQUAL, Priors, released_counts, shares
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.teacher import Teacher


def teacher_with(weights: NDArray[np.float32], settings: MethodSettings, spec: FeatureStatistics) -> Teacher:
    """The classifier with these weights on the embedding of `spec`; ValueError where they do not fit."""
    if spec.embedding is None or weights.shape[1] != spec.embedding.dimensions:
        raise ValueError("they fit no classifier that was asked for")
    return Teacher(weights, settings.backbone, backbone(settings.backbone).card.sha256, spec.embedding)


@dataclass(frozen=True, eq=False)
class ReleasedClassifier:
    """What follows from the statistics of all stages so far; `method` names its backbone."""

    statistics: Sequence[Statistics]
    method: MethodSettings
    run: RunDescription
    average_last_stages: int = 1

    @cached_property
    def specs(self) -> list[FeatureStatistics]:
        """Of the stages."""
        return specifications(self.method, self.run, len(self.statistics))

    @property
    def facts(self) -> dict[str, object]:
        """What decides it beside the released `arrays`, as JSON: for a fingerprint of what is made of both."""
        facts: dict[str, object] = {
            "method": self.method.model_dump(mode="json"),
            "backbones": [backbone(*named).card.sha256 for named in self.method.backbones],
            "classes": len(self.run.classes),
            "shape": self.run.shape,
            "seed": self.run.public_seed,
            "noise": [stage.noise for stage in self.statistics],
        }
        # Images are made with equal priors, whichever are declared.
        return facts if self.run.priors is None else {**facts, "priors": EQUAL}

    @property
    def arrays(self) -> dict[str, NDArray]:
        """The released sums, and what later stages were asked with."""
        return {
            f"{number} {kind} {name}": array
            for number, stage in enumerate(self.statistics)
            for kind, group in (("sum", stage.sums), ("input", stage.stage_input))
            for name, array in group.items()
        }

    @property
    def embedding(self) -> ImageEmbedding | None:
        """What it stands on; None where no embedding is released, and so no classifier."""
        return self.specs[0].embedding

    @cached_property
    def moments(self) -> Moments:
        """The embedding's moments, from the first stage."""
        return classifier.moments_of(self.statistics[0], self.specs[0])

    @cached_property
    def fitted(self) -> NDArray[np.float32]:
        """Its weights, as fitted."""
        return classifier.learn(self.statistics, self.specs, self.average_last_stages)

    def weights_for(self, priors: Priors) -> NDArray[np.float32]:
        """Its weights for these class priors."""
        assert self.embedding is not None
        counts = released_counts(self.statistics, [spec.count_weight for spec in self.specs])
        assert counts is not None
        moments = classifier.recounted(self.moments, torch.from_numpy(counts.counts), torch.from_numpy(counts.known))
        wanted = shares(priors, self.run.classes, counts)
        return calibrated(self.fitted, moments, wanted, self.embedding.constant)

    @cached_property
    def teacher(self) -> Teacher | None:
        """The teacher that images are made with, for equal priors where some are declared; None without embedding."""
        if self.embedding is None:
            return None
        weights = self.fitted if self.run.priors is None else self.weights_for(EQUAL)
        return teacher_with(weights, self.method, self.specs[0])

    @property
    def declared(self) -> Teacher | None:
        """The teacher for the declared priors: the same where none are."""
        if self.teacher is None or self.run.priors is None:
            return self.teacher
        return teacher_with(self.weights_for(self.run.priors), self.method, self.specs[0])
