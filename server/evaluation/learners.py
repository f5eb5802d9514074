"""The learners: who may train on a synthetic set. A learner is an entry in `LEARNERS`; those of images are here.

What trains is in a module of its own, which needs torch or scikit-learn and is loaded when it is used.

>>> learner("probe").title.format(backbone="gray28")
'linear probe of gray28'
>>> learner("oracle")  # doctest: +ELLIPSIS
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no learner 'oracle'; known are convnet-dd, ... for images, ... for tables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.progress import Progress, silent
from dpdd.server.evaluation.base import POOL, Classifier, Learner
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.table_learners import TABLE_LEARNERS

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.server.evaluation.kernel_regression import KernelName


class ConvNetDDLearner(Learner):
    """A ConvNet from scratch on hard labels, as the literature of dataset distillation judges sets."""

    name = "convnet-dd"
    title = "ConvNet, literature's protocol"

    def own(self, settings: LearnerSettings) -> LearnerSettings:
        """Hard labels, always."""
        return settings.model_copy(update={"labels": "hard"})

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """As many as `settings.convnet_dd.runs` says, whatever `settings.runs` is."""
        from dpdd.server.evaluation.convnet_dd import dd_convnets

        return dd_convnets(dataset, settings, seed, progress)


class ResNet18DDLearner(ConvNetDDLearner):
    """A ResNet-18 by the same protocol."""

    name = "resnet18-dd"
    title = "ResNet-18, literature's protocol"

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """As many as `settings.resnet18_dd.runs` says, whatever `settings.runs` is."""
        from dpdd.server.evaluation.deep_dd import dd_resnets

        return dd_resnets(dataset, settings, seed, progress)


class DenseNet121DDLearner(ConvNetDDLearner):
    """A DenseNet-121 by the same protocol."""

    name = "densenet121-dd"
    title = "DenseNet-121, literature's protocol"

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """As many as `settings.densenet121_dd.runs` says, whatever `settings.runs` is."""
        from dpdd.server.evaluation.deep_dd import dd_densenets

        return dd_densenets(dataset, settings, seed, progress)


class ConvNetPoolLearner(Learner):
    """A ConvNet from scratch on a public pool that the set's teacher labelled."""

    name = "convnet-pool"
    title = "ConvNet from scratch"

    def own(self, settings: LearnerSettings) -> LearnerSettings:
        """Soft labels, always."""
        return settings.model_copy(update={"labels": "soft"})

    def learnt_from(self, dataset: LabelledSet, settings: LearnerSettings) -> str:
        """The pool, not the set."""
        return POOL

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """As many as `settings.convnet_pool.runs` says, whatever `settings.runs` is."""
        from dpdd.server.evaluation.convnet_pool import pool_convnets

        return pool_convnets(dataset, settings, seed, progress)


class ConvNetLearner(Learner):
    """A small network that has seen nothing else, trained on the best labels there are."""

    name = "convnet"
    title = "ConvNet from scratch"

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


class Table1Learner(ConvNetDDLearner):
    """The network that DP-CDA's authors judge with."""

    name = "convnet-cda"
    title = "ConvNet of DP-CDA's table 1"

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """As many as `settings.runs` says."""
        from dpdd.server.evaluation.convnet_cda import cda_convnets

        return cda_convnets(dataset, settings, seed, progress)


class ProbeLearner(Learner):
    """A linear classifier on frozen features of a public backbone."""

    name = "probe"
    title = "linear probe of {backbone}"
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

        backbone = _given(public, self)
        return probes(dataset, backbone.network, settings, seed, progress, backbone.card.sha256)


class FineTuneLearner(Learner):
    """All weights of a public backbone, trained further."""

    name = "fine-tune"
    title = "fine-tuned {backbone}"
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

    name = "ensemble"
    title = "fine-tuned {backbone}, together"
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

    name = "krr"
    title = "kernel regression, embedding of {backbone}"
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

    name = "krr-features"
    title = "kernel regression, features of {backbone}"
    kernel: ClassVar[KernelName] = "features"


class TangentRegressionLearner(KernelRegressionLearner):
    """Kernel ridge regression with the neural tangent kernel of a fully connected network."""

    name = "krr-ntk"
    title = "kernel regression, FC-NTK"
    needs_backbone: ClassVar[bool] = False
    kernel: ClassVar[KernelName] = "ntk"


class PerceptualRegressionLearner(TangentRegressionLearner):
    """Kernel ridge regression with all layers of a random ResNet-18."""

    name = "krr-perceptual"
    title = "kernel regression, random ResNet-18"
    kernel: ClassVar[KernelName] = "perceptual"


class EmpiricalTangentLearner(TangentRegressionLearner):
    """Kernel ridge regression with the tangent kernel of a random LeNet."""

    name = "krr-entk"
    title = "kernel regression, e-NTK of LeNet"
    kernel: ClassVar[KernelName] = "entk"


LEARNERS: Mapping[str, Learner] = {
    each.name: each
    for each in (
        ConvNetDDLearner(),
        ConvNetLearner(),
        ConvNetPoolLearner(),
        ProbeLearner(),
        FineTuneLearner(),
        EnsembleLearner(),
        KernelRegressionLearner(),
        FeatureRegressionLearner(),
        TangentRegressionLearner(),
        PerceptualRegressionLearner(),
        EmpiricalTangentLearner(),
        Table1Learner(),
        ResNet18DDLearner(),
        DenseNet121DDLearner(),
        *TABLE_LEARNERS,
    )
}
"""By name, in the order in which they train and are shown."""

DEFAULT_LEARNERS: Mapping[DataKind, tuple[str, ...]] = {
    DataKind.IMAGE: (ConvNetDDLearner.name, ConvNetLearner.name),
    DataKind.TABLE: tuple(each.name for each in TABLE_LEARNERS),
}
"""Who learns where a scenario does not say it."""


def learners_for(kind: DataKind) -> tuple[str, ...]:
    """The names of those who take such records."""
    return tuple(name for name, each in LEARNERS.items() if each.kind is kind)


def learner(name: str) -> Learner:
    """The learner called `name`."""
    if name not in LEARNERS:
        known = " for images, ".join(", ".join(learners_for(kind)) for kind in (DataKind.IMAGE, DataKind.TABLE))
        raise ConfigError(f"there is no learner {name!r}; known are {known} for tables")
    return LEARNERS[name]


def _given(public: Backbone | None, who: Learner) -> Backbone:
    if public is None:
        raise ConfigError(f"learner {who.name} starts from a public backbone, and there is none")
    return public
