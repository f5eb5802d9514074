"""The section `[evaluation]` of a scenario: who learns from the product, how, and what is measured.

>>> section = EvaluationSection(learners=("convnet", "probe"))
>>> section.metrics_of(DataKind.IMAGE)
('accuracy', 'balanced-accuracy', 'macro-roc-auc')
>>> len(EvaluationSection().learners_of(DataKind.TABLE))
12
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.methods.evaluation.settings import MOST_BINS
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.server.evaluation.learner_settings import (
    ConvNetDDSettings,
    FineTuneSettings,
    Labels,
    LearnerSettings,
    ProbeSettings,
)
from dpdd.server.evaluation.learners import DEFAULT_LEARNERS, LEARNERS, learner, learners_for
from dpdd.server.evaluation.metrics import DEFAULT_METRICS, metric

__all__ = [
    "AtSilosSection",
    "ConvNetDDSettings",
    "EvaluationSection",
    "FineTuneSettings",
    "Labels",
    "LearnerSettings",
    "ProbeSettings",
]


SentModelName = Literal["convnet", "teacher", "model", "linear"]
SENT_MODELS: Mapping[DataKind, tuple[str, ...]] = {
    DataKind.IMAGE: ("convnet", "teacher", "model"),
    DataKind.TABLE: ("linear", "teacher"),
}
"""What silos with such records can be asked about."""
DEFAULT_MODELS: Mapping[DataKind, tuple[str, ...]] = {kind: names[:1] for kind, names in SENT_MODELS.items()}


class AtSilosSection(Settings):
    """Evaluation at the silos that released: what it may cost each of them, and which models it is of.

    `models` of images: `convnet`, the first network of that learner (left out, it alone); `model`, a product that is
    one. Of tables: `linear`, logistic regression that learnt from the synthetic rows (left out, it alone). Of both:
    `teacher`, the classifier of the set. m models have √m times the noise. `bins`, for two classes, asks for the score
    in so many bins instead of right and wrong answers: gives ROC-AUC, and an accuracy with √(bins / 2) times the noise.
    `holdout` is the share that simulated silos set aside; real ones decide for themselves.
    """

    epsilon: Annotated[float, Field(gt=0.0)]
    delta: Annotated[float, Field(gt=0.0, le=0.01)] = 1e-5
    models: Annotated[tuple[SentModelName, ...], Field(min_length=1)] | None = None
    bins: Annotated[int, Field(ge=0, le=MOST_BINS)] = 0
    holdout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2

    @model_validator(mode="after")
    def _sensible(self) -> AtSilosSection:
        if self.epsilon > LARGEST_EPSILON and self.epsilon != float("inf"):
            raise ValueError(f"epsilon is at most {LARGEST_EPSILON:g}, or inf for a simulation without noise")
        if self.bins % 2:
            raise ValueError(f"bins are an even number, not {self.bins}")
        if self.models is not None and len(set(self.models)) != len(self.models):
            raise ValueError("models names one twice")
        return self

    def models_of(self, kind: DataKind) -> tuple[str, ...]:
        """What silos with such records are asked about, where `check_kind` has nothing to say."""
        return DEFAULT_MODELS[kind] if self.models is None else self.models

    def check_kind(self, kind: DataKind) -> None:
        """ConfigError where a model is named that does not answer such records."""
        for name in self.models_of(kind):
            if name not in SENT_MODELS[kind]:
                what = "a table" if kind is DataKind.TABLE else "images"
                raise ConfigError(
                    f"evaluation.at_silos.models names {name}, and the records are {what}: for {what} there are "
                    f"{', '.join(SENT_MODELS[kind][:-1])} and {SENT_MODELS[kind][-1]}"
                )


class EvaluationSection(LearnerSettings):
    """Who learns from the synthetic set, how (`LearnerSettings`), and what is measured on real test data.

    `learners` of images: `convnet-dd`, the literature's protocol on hard labels, and `convnet`, from scratch on the
    best labels that there are (left out, these two); `resnet18-dd` and `densenet121-dd`, deeper networks by the
    protocol of `convnet-dd`; `probe`, `fine-tune` and `ensemble`, the fine-tuned networks together, from the public
    `backbone` (left out: the method's own); `krr` and `krr-features`, kernel ridge regression on that backbone,
    `krr-ntk`, on pixels, and `krr-perceptual` and `krr-entk`, on random networks. Of tables: twelve classifiers (left
    out, all of them). `metrics`: left out, `balanced-accuracy` and `macro-roc-auc` beside `accuracy`, which is always
    measured; of tables, all that there are. `fidelity` names a public backbone in whose features images are compared
    with test images (left out: they are not; tables always are). `runs = 0` trains nobody. `at_silos` asks the silos
    for an evaluation on records that nobody else may see.
    """

    renamed: ClassVar[Mapping[str, str]] = {**LearnerSettings.renamed, "downstream": "learners"}

    learners: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    backbone: str | None = None
    fidelity: str | None = None
    at_silos: AtSilosSection | None = None

    @field_validator("learners")
    @classmethod
    def _known_learners(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return names and _all_known(names, learner)

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return names and _all_known(names, metric)

    def learners_of(self, kind: DataKind) -> tuple[str, ...]:
        """Who learns from such records, where `check_kind` has nothing to say."""
        return DEFAULT_LEARNERS[kind] if self.learners is None else self.learners

    def metrics_of(self, kind: DataKind) -> tuple[str, ...]:
        """What is measured."""
        return DEFAULT_METRICS[kind] if self.metrics is None else self.metrics

    def check_kind(self, kind: DataKind) -> None:
        """ConfigError where a learner is named that does not take such records, or a model that cannot answer them."""
        if self.at_silos is not None:
            self.at_silos.check_kind(kind)
            if "convnet" in self.at_silos.models_of(kind) and not (self.runs and "convnet" in self.learners_of(kind)):
                raise ConfigError("at_silos.models names convnet, which must be one of learners, with runs = 1 or more")
        for name in self.learners_of(kind):
            if LEARNERS[name].kind is not kind:
                own, other = ("images", "a table") if kind is DataKind.TABLE else ("a table", "images")
                raise ConfigError(
                    f"evaluation.learners: {name} learns from {own}, and the records are {other}; "
                    f"for {other} there are {', '.join(learners_for(kind))}"
                )

    @model_validator(mode="after")
    def _enough_runs(self) -> EvaluationSection:
        for name in self.learners or ():
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
