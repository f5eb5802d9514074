"""What evaluation is made of: learners train classifiers on a product, which give `Answers` to test records; metrics
measure these, and a `Score` is the result.

Nothing here, and nothing in `learners`, loads torch or scikit-learn: a scenario is checked against the learners that
there are.

>>> score = Score((0.5, 0.7))
>>> score.mean, round(score.std, 3)
(0.6, 0.141)
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import DataError
from dpdd.common.methods.base import DataKind
from dpdd.common.progress import Progress, silent
from dpdd.server.evaluation.learner_settings import LearnerSettings

if TYPE_CHECKING:
    from torch import Tensor

    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.labelled_set import LabelledSet

Classifier: TypeAlias = "Callable[[Tensor], Tensor]"
"""Records (images in [0, 1], or rows of codes) ↦ a logit (an unnormalised log probability) for every class."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What a classifier says of N records.

    `scores` (N, classes): a column compares records, so that the likelier one of that class has the higher score. They
    need not be probabilities. `named` (N): the class that it names, an index.

    >>> answers = Answers.of_logits(np.array([[1.0, 1.0], [0.0, np.log(3.0)]]))
    >>> answers.scores.round(2).tolist(), answers.named.tolist()
    ([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    """

    scores: NDArray[np.floating]
    named: NDArray[np.int64]

    @classmethod
    def of_logits(cls, logits: NDArray[np.floating]) -> Answers:
        """Probabilities for scores, since a logit may have any offset per record; the class of the highest is named."""
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        return cls(powers / powers.sum(axis=1, keepdims=True), logits.argmax(axis=1))

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Of all records together."""
        return cls(np.concatenate([each.scores for each in parts]), np.concatenate([each.named for each in parts]))


@runtime_checkable
class Answering(Protocol):
    """A classifier that names classes by a rule of its own, or has scores that are no probabilities."""

    def answers(self, rows: NDArray[np.float32]) -> Answers:
        """What it says of these rows of codes."""


class CannotLearn(DataError):
    """This learner cannot learn from this set: the message says why, and an evaluation goes on without it."""


@dataclass(frozen=True)
class Score:
    """The values of one metric over independent runs of one learner."""

    runs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.runs)

    @property
    def std(self) -> float:
        """Their standard deviation; 0 for one run."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        """As `metrics.json` shows it."""
        return {"mean": self.mean, "std": self.std, "runs": list(self.runs)}


POOL = "pool"
"""What a learner learnt from that takes the set's public pool with its labels, and not the set."""


class Learner(ABC):
    """Somebody who trains on a synthetic set alone, several times over, before real test data is looked at once."""

    name: str
    """In scenarios (`evaluation.learners`) and in `metrics.json`."""
    title: str
    """For people; `{backbone}` stands for the name of the public backbone."""
    kind: ClassVar[DataKind] = DataKind.IMAGE
    """What records it takes."""
    needs_backbone: ClassVar[bool] = False
    """Whether it starts from a public backbone."""
    tunes_backbone: ClassVar[bool] = False
    """Whether it trains that backbone further, so that it must be a trained network."""
    least_runs: ClassVar[int] = 1
    """How many networks it needs to say anything."""

    @property
    def networks(self) -> str:
        """What `train_networks` trains: learners for which this is the same share the networks."""
        return self.name

    def own(self, settings: LearnerSettings) -> LearnerSettings:
        """What it takes of the settings of all learners: all, by default."""
        return settings

    def learnt_from(self, dataset: LabelledSet, settings: LearnerSettings) -> str:
        """What it learns from, for `metrics.json`; `settings` are those of all learners."""
        from dpdd.server.evaluation.training_data import labels_of

        return "hard" if dataset.is_table else labels_of(dataset, self.own(settings))

    @abstractmethod
    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """`settings.runs` networks, each with random numbers of its own from `seed`; `settings` are its `own`.

        `CannotLearn` is an answer too.
        """

    def classifiers(self, networks: Sequence[Classifier]) -> list[Classifier]:
        """What is scored: the networks one by one, unless they are to answer together."""
        return list(networks)

    def train(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """Classifiers trained on `dataset`; `public` is the backbone, for those who need one."""
        return self.classifiers(self.train_networks(dataset, self.own(settings), public, seed, progress))
