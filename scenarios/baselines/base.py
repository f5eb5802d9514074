"""What baselines share: the task that all of them have, the plan of a run, and the row that is printed of it.

A silo's records are never pooled by a row that is federated: each silo adds noise of its own to what it releases, and
that noise alone makes it (ε, δ)-private, whoever sees the other silos' releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.events import NEIGHBOURS, Event, NonPrivate, describe
from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from dpdd.common.data.labelled_images import LabelledImages
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.privacy.entropy import Entropy
    from dpdd.server.evaluation.base import Score

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """A backbone, simulated private records, who of the silos has which, and test records.

    The features of both splits, on the way to unit norm, are computed when the first row asks for them.
    """

    backbone: Backbone
    train: LabelledImages
    test: LabelledImages
    shares: tuple[Positions, ...]
    progress: Progress = silent

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.train.classes)

    @cached_property
    def train_features(self) -> NDArray[np.floating]:
        """Of the private records."""
        return self._features(self.train, "features of the private records")

    @cached_property
    def test_features(self) -> NDArray[np.floating]:
        """Of the test records."""
        return self._features(self.test, "features of the test set")

    @property
    def normalisation(self) -> str:
        """What is done to features, in words."""
        from dpdd.scenarios.baselines import public_features

        return public_features.described(self.backbone)

    @cached_property
    def rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Features with a constant, of norm 1: the private records' on the integer grid, test records' as they are."""
        from dpdd.scenarios.baselines.private_linear import on_grid, with_bias

        return on_grid(with_bias(self.train_features)), with_bias(self.test_features)

    def measured(self, scores: NDArray[np.floating]) -> dict[str, float]:
        """Every metric of scores (test records, classes) that the test records allow."""
        from dpdd.server.evaluation import scoring
        from dpdd.server.evaluation.base import Answers
        from dpdd.server.evaluation.metrics import DEFAULT_METRICS

        answers, metrics = Answers.of_logits(scores), DEFAULT_METRICS[DataKind.IMAGE]
        return {name: score.mean for name, score in scoring.measured([answers], self.test.labels, metrics).items()}

    def _features(self, data: LabelledImages, what: str) -> NDArray[np.floating]:
        from dpdd.scenarios.baselines import public_features

        return public_features.extracted(self.backbone.network, data.images, what, self.progress)


def prepare(
    backbone: Backbone,
    train: LabelledImages,
    test: LabelledImages,
    progress: Progress = silent,
    shares: tuple[Positions, ...] | None = None,
) -> Task:
    """The task of these records; one silo has them all unless `shares` says otherwise."""
    channels = backbone.network.mean.shape[1]
    if train.shape[0] != channels:
        raise ConfigError(
            f"the images have {train.shape[0]} channels, but backbone {backbone.card.name} was made for {channels}; "
            "choose another with --backbone"
        )
    return Task(backbone, train, test, shares or (np.arange(len(train)),), progress)


@dataclass(frozen=True)
class Plan:
    """What one run of a baseline releases, how far its noise is from ideal in all, and the run: noise ↦ metrics.

    Where there are several silos, event and distance are those of each.
    """

    event: Event
    distance: float
    score: Callable[[Entropy], Mapping[str, float]]


def not_private(score: Callable[[Entropy], Mapping[str, float]]) -> Plan:
    """The plan of a row that protects nobody."""
    return Plan(NonPrivate(), 0.0, score)


@dataclass(frozen=True)
class Row:
    """One baseline at one budget."""

    method: str
    guarantee: Guarantee
    event: Event
    scores: Mapping[str, Score]
    seconds: float = 0.0

    @property
    def accuracy(self) -> Score:
        """The metric that every row has."""
        return self.scores["accuracy"]

    @property
    def private(self) -> bool:
        """Whether it has noise at all."""
        return not isinstance(self.event, NonPrivate)

    def as_json(self) -> dict[str, Any]:
        """The row in plain values."""
        return {
            "method": self.method,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "accountant": self.guarantee.accountant,
            "event": describe(self.event),
            "neighbours": NEIGHBOURS if self.private else None,
            "releasable": False,
            "accuracy": self.accuracy.as_json(),
            "metrics": {name: score.as_json() for name, score in self.scores.items() if name != "accuracy"},
            "cpu_seconds": round(self.seconds, 1),
        }


def seed_of(entropy: Entropy) -> int:
    """A seed for what is random beside noise and samples: first weights, orders of batches."""
    return int.from_bytes(entropy.take(7), "little")


def noise_distance(noise: float, draws: int) -> float:
    """How far `draws` numbers with noise of so many grid steps are from ideal noise in all."""
    return draws * discrete_gaussian.distance(discrete_gaussian.scale_for(noise))


def public_size(records: int) -> int:
    """The number of records to one digit, which rows that divide by it take as public.

    >>> public_size(57_312), public_size(4)
    (60000, 4)
    """
    return int(float(f"{records:.0e}"))
