"""What the learners of tables train: classifiers of scikit-learn and XGBoost, on numbers that the schema alone gives.

Settings are those of DP-KIP's Table 16, for scikit-learn 0.24 and XGBoost 0.90, with the nearest that today's versions
take; docs/tables.md lists the replacements. One thread trains each.

>>> from dpdd.common.data.made_patients import rows
>>> from dpdd.server.evaluation.table_learners import TABLE_LEARNERS
>>> some = rows("train").subset(np.arange(300))
>>> dataset = LabelledSet(some.rows, some.labels, some.classes, schema=some.schema)
>>> [classifier] = trained(TABLE_LEARNERS[0], dataset, LearnerSettings(), seed=0)
>>> answers = classifier.answers(rows("test").rows)
>>> answers.scores.shape, bool((answers.named == rows("test").labels).mean() > 0.8)
((4000, 2), True)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.config import one_line
from dpdd.common.data.table.feature_matrix import feature_matrix
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed, uniforms
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Answers, CannotLearn
from dpdd.server.evaluation.learner_settings import LearnerSettings

if TYPE_CHECKING:
    from dpdd.server.evaluation.table_learners import TableLearner

_LEAST = 1e-12
"""The least probability of which a logarithm is taken."""


def trained(
    learner: TableLearner, dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[TrainedOnRows]:
    """`settings.runs` classifiers, each with a seed of its own; the same one so often where none is drawn."""
    assert dataset.schema is not None
    chosen = subset(dataset.labels, settings.rows, seed)
    features, labels = feature_matrix(dataset.schema, dataset.rows[chosen]), dataset.labels[chosen]
    present, numbered = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise CannotLearn("its rows are all of one class" if len(present) else "it has no rows")
    found: list[TrainedOnRows] = []
    runs = settings.runs if learner.draws else min(settings.runs, 1)
    for run in range(runs):
        progress(f"training {learner.title}, {run + 1} of {runs}", run, runs)
        model = estimator(learner.name, len(present), subseed(seed, f"{learner.name} {run}") % 2**32)
        found.append(TrainedOnRows(_fitted(model, features, numbered), dataset.schema, present))
        progress(f"training {learner.title}, {run + 1} of {runs}", run + 1, runs)
    return found if learner.draws else found * settings.runs


def subset(labels: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Positions of at most so many rows, in their order: of every class the same share, and one row at least.

    >>> subset(np.array([0] * 8 + [1] * 2), 5, seed=0).tolist()
    [1, 3, 4, 6, 8]
    """
    if len(labels) <= most:
        return np.arange(len(labels))
    order = np.argsort(uniforms(seed, "rows that classifiers are trained on", len(labels)), kind="stable")
    taken = []
    for label in np.unique(labels):
        own = order[labels[order] == label]
        taken.append(own[: max(1, most * len(own) // len(labels))])
    return np.sort(np.concatenate(taken))


def estimator(name: str, classes: int, seed: int) -> Any:
    """The untrained classifier called `name`, for so many classes."""
    return _ESTIMATORS[name](classes, seed)


def _logistic_regression(classes: int, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver="lbfgs", max_iter=5000)


def _gaussian_nb(classes: int, seed: int) -> Any:
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB()


def _bernoulli_nb(classes: int, seed: int) -> Any:
    from sklearn.naive_bayes import BernoulliNB

    return BernoulliNB(binarize=0.5)


def _linear_svc(classes: int, seed: int) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(max_iter=10000, tol=1e-8, loss="hinge", random_state=seed)


def _decision_tree(classes: int, seed: int) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(class_weight="balanced", random_state=seed)


def _lda(classes: int, seed: int) -> Any:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    # There are at most classes - 1 directions; predictions use all of them anyway.
    return LinearDiscriminantAnalysis(solver="eigen", n_components=min(9, classes - 1), tol=1e-8, shrinkage=0.5)


def _adaboost(classes: int, seed: int) -> Any:
    from sklearn.ensemble import AdaBoostClassifier

    return AdaBoostClassifier(n_estimators=1000, learning_rate=0.7, random_state=seed)  # SAMME: SAMME.R is no more


def _bagging(classes: int, seed: int) -> Any:
    from sklearn.ensemble import BaggingClassifier

    return BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed)


def _random_forest(classes: int, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=100, class_weight="balanced", random_state=seed)


def _gradient_boosting(classes: int, seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(subsample=0.1, n_estimators=50, random_state=seed)


def _mlp(classes: int, seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(random_state=seed)


def _xgboost(classes: int, seed: int) -> Any:
    from xgboost import XGBClassifier

    # multi:softprob is for three classes and more; depth and rate are what was not listed there: 0.90's defaults.
    return XGBClassifier(
        colsample_bytree=0.1,
        objective="binary:logistic" if classes == 2 else "multi:softprob",
        n_estimators=50,
        max_depth=3,
        learning_rate=0.1,
        n_jobs=1,
        random_state=seed,
    )


_ESTIMATORS: Mapping[str, Callable[[int, int], Any]] = {
    "logistic-regression": _logistic_regression,
    "gaussian-nb": _gaussian_nb,
    "bernoulli-nb": _bernoulli_nb,
    "linear-svc": _linear_svc,
    "decision-tree": _decision_tree,
    "lda": _lda,
    "adaboost": _adaboost,
    "bagging": _bagging,
    "random-forest": _random_forest,
    "gradient-boosting": _gradient_boosting,
    "mlp": _mlp,
    "xgboost": _xgboost,
}


def _fitted(model: Any, features: NDArray[np.float64], labels: NDArray[np.int64]) -> Any:
    """The classifier, trained; CannotLearn where the library says no, or where its answers are no numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: iterations are part of the settings
        try:
            model.fit(features, labels)
            finite = bool(np.isfinite(_raw_scores(model, features)).all())
        except (ValueError, ArithmeticError) as error:  # LinAlgError and XGBoostError are ValueErrors
            raise CannotLearn(one_line(error).rstrip(".")) from None
    if not finite:
        raise CannotLearn("its answers are no numbers")
    return model


def _raw_scores(model: Any, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities (N, known classes); or margins, of which those of two classes are a number and its negative."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(features), dtype=np.float64)
    margins = np.asarray(model.decision_function(features), dtype=np.float64)
    return np.stack([-margins, margins], axis=1) if margins.ndim == 1 else margins


@dataclass(frozen=True, eq=False)
class TrainedOnRows:
    """A trained classifier of rows of codes. `present` are the classes that it has met, of those of the schema."""

    model: Any
    schema: TableSchema
    present: NDArray[np.int64]

    def answers(self, rows: NDArray[np.float32]) -> Answers:
        """Its scores, 0 for every record where a class was never met; and the class that it predicts."""
        features = feature_matrix(self.schema, rows)
        scores = np.zeros((len(rows), len(self.schema.classes)))
        scores[:, self.present] = np.nan_to_num(_raw_scores(self.model, features))
        return Answers(scores, self.present[np.asarray(self.model.predict(features), dtype=np.int64)])

    def __call__(self, rows: Tensor) -> Tensor:
        """Log probabilities, or margins; the lowest of all where a class was never met."""
        scores = self.answers(rows.numpy()).scores
        if hasattr(self.model, "predict_proba"):
            return torch.from_numpy(np.log(np.maximum(scores, _LEAST)))
        scores[:, np.setdiff1d(np.arange(scores.shape[1]), self.present)] = scores.min() - 1.0
        return torch.from_numpy(scores)
