"""The learners: who may train on a synthetic set. A learner is a class here and an entry in `LEARNERS`.

What trains is in a module of its own, which needs torch and is loaded when it is used.

>>> learner("probe").title.format(backbone="gray28")
'linear probe of gray28'
>>> learner("oracle")  # doctest: +ELLIPSIS
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no learner 'oracle'; known are convnet, probe, fine-tune, ensemble, krr, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from dpdd.common.errors import ConfigError
from dpdd.common.progress import Progress, silent
from dpdd.server.evaluation.base import Classifier, Learner
from dpdd.server.evaluation.learner_settings import LearnerSettings

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.server.evaluation.kernel_regression import KernelName


class ConvNetLearner(Learner):
    """A small network that has seen nothing else."""

    name: ClassVar[str] = "convnet"
    title: ClassVar[str] = "ConvNet from scratch"

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """ConvNets of random first weights."""
        from dpdd.server.evaluation.convnet import convnets

        return convnets(dataset, settings, seed, progress)


class ProbeLearner(Learner):
    """A linear classifier on frozen features of a public backbone."""

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "linear probe of {backbone}"
    needs_backbone: ClassVar[bool] = True

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """The backbone with a logistic regression for its head."""
        from dpdd.server.evaluation.probe import probes

        return probes(dataset, _given(public, self).network, settings, seed, progress)


class FineTuneLearner(Learner):
    """All weights of a public backbone, trained further."""

    name: ClassVar[str] = "fine-tune"
    title: ClassVar[str] = "fine-tuned {backbone}"
    needs_backbone: ClassVar[bool] = True
    tunes_backbone: ClassVar[bool] = True

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """Copies of the backbone, fine-tuned."""
        from dpdd.server.evaluation.fine_tune import fine_tuned

        return [*fine_tuned(dataset, _given(public, self).network, settings, seed, progress)]


class EnsembleLearner(FineTuneLearner):
    """The fine-tuned networks, which answer together: one classifier."""

    name: ClassVar[str] = "ensemble"
    title: ClassVar[str] = "fine-tuned {backbone}, together"
    least_runs: ClassVar[int] = 2

    @property
    def networks(self) -> str:
        """Those that are scored one by one as `fine-tune`."""
        return FineTuneLearner.name

    def classifiers(self, networks: Sequence[Classifier]) -> list[Classifier]:
        """All of them as one."""
        from dpdd.server.evaluation.fine_tune import together

        return [together(networks)]


class KernelRegressionLearner(Learner):
    """Kernel ridge regression with the image embedding of a public backbone."""

    name: ClassVar[str] = "krr"
    title: ClassVar[str] = "kernel regression, embedding of {backbone}"
    needs_backbone: ClassVar[bool] = True
    kernel: ClassVar[KernelName] = "embedding"

    def own(self, settings: LearnerSettings) -> LearnerSettings:
        """It learns from the images as they are, so augmentations are not for it."""
        return settings.model_copy(update={"labels": "soft"}) if settings.labels == "teacher" else settings

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """One classifier: nothing in it is random."""
        from dpdd.server.evaluation.kernel_regression import kernel_regression

        backbone = _given(public, self) if self.needs_backbone else None
        return [kernel_regression(dataset, self.kernel, settings, backbone)]


class FeatureRegressionLearner(KernelRegressionLearner):
    """Kernel ridge regression with all features of a public backbone."""

    name: ClassVar[str] = "krr-features"
    title: ClassVar[str] = "kernel regression, features of {backbone}"
    kernel: ClassVar[KernelName] = "features"


class TangentRegressionLearner(KernelRegressionLearner):
    """Kernel ridge regression with the neural tangent kernel of a fully connected network."""

    name: ClassVar[str] = "krr-ntk"
    title: ClassVar[str] = "kernel regression, FC-NTK"
    needs_backbone: ClassVar[bool] = False
    kernel: ClassVar[KernelName] = "ntk"


LEARNERS: Mapping[str, Learner] = {
    each.name: each
    for each in (
        ConvNetLearner(),
        ProbeLearner(),
        FineTuneLearner(),
        EnsembleLearner(),
        KernelRegressionLearner(),
        FeatureRegressionLearner(),
        TangentRegressionLearner(),
    )
}
"""By name, in the order in which they train and are shown."""


def learner(name: str) -> Learner:
    """The learner called `name`."""
    if name not in LEARNERS:
        raise ConfigError(f"there is no learner {name!r}; known are {', '.join(LEARNERS)}")
    return LEARNERS[name]


def _given(public: Backbone | None, who: Learner) -> Backbone:
    if public is None:
        raise ConfigError(f"learner {who.name} starts from a public backbone, and there is none")
    return public
