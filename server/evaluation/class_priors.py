"""Declared class priors, for learners: the one place where they reach networks.

Soft labels and the teacher's already assume the declared priors, so whoever learns from them does too. A learner on
hard labels assumes the shares that the classes have in the set, which are about equal. Its scores get the logarithm of
the declared share over that one (logit adjustment), which is exact for calibrated scores, and needs no other training.
(The margins of a support vector machine are no such scores, and are taken as if they were.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpdd.common.synthesis.priors import log_shift
from dpdd.server.evaluation.training_data import labels_of

if TYPE_CHECKING:
    from torch import Tensor

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.server.evaluation.base import Classifier
    from dpdd.server.evaluation.learner_settings import LearnerSettings


def adjusted(
    classifiers: Sequence[Classifier], dataset: LabelledSet, settings: LearnerSettings
) -> Sequence[Classifier]:
    """The classifiers, which were trained on `dataset` by `settings`, for the class priors that it declares."""
    if not dataset.priors or not (dataset.is_table or labels_of(dataset, settings) == "hard"):
        return classifiers
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    # A class without an image was never learnt: half of one keeps the logarithm finite.
    shift = torch.from_numpy(log_shift(np.maximum(counts, 0.5) / counts.sum(), np.array(dataset.priors)))
    return [Shifted(classifier, shift) for classifier in classifiers]


@dataclass(frozen=True, eq=False)
class Shifted:
    """A classifier with a constant added to the score of every class."""

    classifier: Classifier
    shift: Tensor

    def __call__(self, records: Tensor) -> Tensor:
        """The shifted scores."""
        return self.shifted(self.classifier(records))

    def shifted(self, scores: Tensor) -> Tensor:
        """Scores of that classifier, shifted."""
        return scores + self.shift.to(scores)
