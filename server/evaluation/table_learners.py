"""The learners of tables: the twelve classifiers that published figures of synthetic tables are averages of.

They are those of DP-KIP's Table 16, with its settings; `classical` has them, and needs scikit-learn and XGBoost (the
extra `tables`), which are loaded when a classifier is trained.

>>> [each.name for each in TABLE_LEARNERS][:3]
['logistic-regression', 'gaussian-nb', 'bernoulli-nb']
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.progress import Progress, silent
from dpdd.server.evaluation.base import Classifier, Learner
from dpdd.server.evaluation.learner_settings import LearnerSettings

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.labelled_set import LabelledSet


class TableLearner(Learner):
    """A classifier of scikit-learn or XGBoost; one that `draws` no random numbers is trained once."""

    kind: ClassVar[DataKind] = DataKind.TABLE

    def __init__(self, name: str, title: str, *, draws: bool, library: str = "sklearn") -> None:
        self.name, self.title, self.draws, self.library = name, title, draws, library

    def train_networks(
        self,
        dataset: LabelledSet,
        settings: LearnerSettings,
        public: Backbone | None,
        seed: int,
        progress: Progress = silent,
    ) -> list[Classifier]:
        """It knows the classes of `dataset`, from hard labels."""
        check_installed([self])
        from dpdd.server.evaluation.classical import trained

        return [*trained(self, dataset, settings, seed, progress)]


TABLE_LEARNERS = (
    TableLearner("logistic-regression", "logistic regression", draws=False),
    TableLearner("gaussian-nb", "Gaussian naive Bayes", draws=False),
    TableLearner("bernoulli-nb", "Bernoulli naive Bayes", draws=False),
    TableLearner("linear-svc", "linear SVM", draws=True),
    TableLearner("decision-tree", "decision tree", draws=True),
    TableLearner("lda", "linear discriminant analysis", draws=False),
    TableLearner("adaboost", "AdaBoost", draws=True),
    TableLearner("bagging", "bagging", draws=True),
    TableLearner("random-forest", "random forest", draws=True),
    TableLearner("gradient-boosting", "gradient boosting", draws=True),
    TableLearner("mlp", "multilayer perceptron", draws=True),
    TableLearner("xgboost", "XGBoost", draws=True, library="xgboost"),
)
"""In the order of the table that they are from."""


def check_installed(learners: Iterable[object]) -> None:
    """ConfigError unless everything is installed that these need."""
    needed = {library for each in learners if isinstance(each, TableLearner) for library in ("sklearn", each.library)}
    names = {"sklearn": "scikit-learn", "xgboost": "XGBoost"}
    absent = [name for module, name in names.items() if module in needed and find_spec(module) is None]
    if absent:
        raise ConfigError(
            f"evaluating a table needs {' and '.join(absent)}: pip install 'dpdd[tables]', or set evaluation.runs = 0"
        )
