"""The section `[evaluation]` of a scenario: who learns from the product, how, and what is measured.

>>> EvaluationSection(learners=("convnet", "probe")).metrics
('accuracy', 'balanced-accuracy', 'macro-roc-auc')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.evaluation.settings import MOST_BINS
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.server.evaluation.learner_settings import FineTuneSettings, Labels, LearnerSettings, ProbeSettings
from dpdd.server.evaluation.learners import LEARNERS, learner
from dpdd.server.evaluation.metrics import metric

__all__ = ["AtSilosSection", "EvaluationSection", "FineTuneSettings", "Labels", "LearnerSettings", "ProbeSettings"]


class AtSilosSection(Settings):
    """Evaluation at the silos that released: what it may cost each of them, and which models it is of.

    `models`: `convnet`, the first network of that learner; `teacher`, the classifier of the set; `model`, a product
    that is one. m models have √m times the noise. `bins`, for two classes, asks for the score in so many bins instead
    of right and wrong answers: gives ROC-AUC, and an accuracy with √(bins / 2) times the noise. `holdout` is the share
    that simulated silos set aside; real ones decide for themselves.
    """

    epsilon: Annotated[float, Field(gt=0.0)]
    delta: Annotated[float, Field(gt=0.0, le=0.01)] = 1e-5
    models: Annotated[tuple[Literal["convnet", "teacher", "model"], ...], Field(min_length=1)] = ("convnet",)
    bins: Annotated[int, Field(ge=0, le=MOST_BINS)] = 0
    holdout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2

    @model_validator(mode="after")
    def _sensible(self) -> AtSilosSection:
        if self.epsilon > LARGEST_EPSILON and self.epsilon != float("inf"):
            raise ValueError(f"epsilon is at most {LARGEST_EPSILON:g}, or inf for a simulation without noise")
        if self.bins % 2:
            raise ValueError(f"bins are an even number, not {self.bins}")
        if len(set(self.models)) != len(self.models):
            raise ValueError("models names one twice")
        return self


class EvaluationSection(LearnerSettings):
    """Who learns from the synthetic set, how (`LearnerSettings`), and what is measured on real test data.

    `learners`: `convnet`, from scratch; `probe`, `fine-tune` and `ensemble`, the fine-tuned networks together, from the
    public `backbone` (left out: the method's own); `krr` and `krr-features`, kernel ridge regression on that backbone,
    and `krr-ntk`, on pixels. `metrics`: left out, `balanced-accuracy` and `macro-roc-auc` beside
    `accuracy`, which is always measured. `runs = 0` trains nobody. `at_silos` asks the silos for an evaluation on
    records that nobody else may see.
    """

    renamed: ClassVar[Mapping[str, str]] = {**LearnerSettings.renamed, "downstream": "learners"}

    learners: tuple[str, ...] = ("convnet",)
    metrics: tuple[str, ...] = ("accuracy", "balanced-accuracy", "macro-roc-auc")
    backbone: str | None = None
    at_silos: AtSilosSection | None = None

    @field_validator("learners")
    @classmethod
    def _known_learners(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _all_known(names, learner)

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _all_known(names, metric)

    @model_validator(mode="after")
    def _enough_runs(self) -> EvaluationSection:
        for name in self.learners:
            least = LEARNERS[name].least_runs
            if 0 < self.runs < least:
                raise ValueError(f"learner {name} needs at least {least} networks: ask for runs = {least} or more")
        asked = () if self.at_silos is None else self.at_silos.models
        if "convnet" in asked and not (self.runs and "convnet" in self.learners):
            raise ValueError("at_silos.models names convnet, which must be one of learners, with runs = 1 or more")
        return self


def _all_known(names: tuple[str, ...], look_up: Callable[[str], object]) -> tuple[str, ...]:
    for name in names:
        try:
            look_up(name)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return names
