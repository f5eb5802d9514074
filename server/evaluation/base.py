"""What evaluation is made of: learners train classifiers on a product, metrics score them, and a `Score` is the result.

Nothing here, and nothing in `learners`, loads torch: a scenario is checked against the learners that there are.

>>> score = Score((0.5, 0.7))
>>> score.mean, round(score.std, 3)
(0.6, 0.141)
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dpdd.common.progress import Progress, silent
from dpdd.server.evaluation.learner_settings import LearnerSettings

if TYPE_CHECKING:
    from torch import Tensor

    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.labelled_set import LabelledSet

Classifier: TypeAlias = "Callable[[Tensor], Tensor]"
"""Images in [0, 1] ↦ a logit (an unnormalised log probability) for every class."""


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


class Learner(ABC):
    """Somebody who trains on a synthetic set alone, several times over, before real test data is looked at once."""

    name: ClassVar[str]
    """In scenarios (`evaluation.learners`) and in `metrics.json`."""
    title: ClassVar[str]
    """For people; `{backbone}` stands for the name of the public backbone."""
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

    @abstractmethod
    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """`settings.runs` networks, each with random numbers of its own from `seed`; `settings` are its `own`."""

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
