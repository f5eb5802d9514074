"""The section `[evaluation]` of a scenario: who learns from the product, how, and what is measured.

>>> EvaluationSection(learners=("convnet", "probe")).metrics
('accuracy', 'balanced-accuracy', 'macro-roc-auc')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from pydantic import field_validator, model_validator

from dpdd.common.errors import ConfigError
from dpdd.server.evaluation.learner_settings import FineTuneSettings, Labels, LearnerSettings, ProbeSettings
from dpdd.server.evaluation.learners import LEARNERS, learner
from dpdd.server.evaluation.metrics import metric

__all__ = ["EvaluationSection", "FineTuneSettings", "Labels", "LearnerSettings", "ProbeSettings"]


class EvaluationSection(LearnerSettings):
    """Who learns from the synthetic set, how (`LearnerSettings`), and what is measured on real test data.

    `learners`: `convnet`, from scratch; `probe`, `fine-tune` and `ensemble`, the fine-tuned networks together, from the
    public `backbone` (left out: the method's own). `metrics`: left out, `balanced-accuracy` and `macro-roc-auc` beside
    `accuracy`, which is always measured. `runs = 0` evaluates nothing.
    """

    renamed: ClassVar[Mapping[str, str]] = {**LearnerSettings.renamed, "downstream": "learners"}

    learners: tuple[str, ...] = ("convnet",)
    metrics: tuple[str, ...] = ("accuracy", "balanced-accuracy", "macro-roc-auc")
    backbone: str | None = None

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
        return self


def _all_known(names: tuple[str, ...], look_up: Callable[[str], object]) -> tuple[str, ...]:
    for name in names:
        try:
            look_up(name)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return names
