"""Metrics: how good the answers of a classifier are. A metric is one function here, entered by `@metric_called`.

It gets `Answers` to N test records and their labels (N,); the classifier passes over the test set once for all of them.
Of two classes, the second one is the positive one.

>>> logits = np.log([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1], [0.2, 0.8]])
>>> answers, labels = Answers.of_logits(logits), np.array([0, 0, 1, 1])
>>> {name: round(float(each.function(answers, labels)), 3) for name, each in METRICS.items()}
... # doctest: +NORMALIZE_WHITESPACE
{'accuracy': 0.75, 'balanced-accuracy': 0.75, 'macro-roc-auc': 0.5, 'roc-auc-hard': 0.75, 'average-precision': 0.75,
 'f1': 0.667}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError, DataError
from dpdd.common.methods.base import DataKind
from dpdd.server.evaluation.base import Answers

Function = Callable[[Answers, NDArray[np.int64]], float]
"""(answers, labels) ↦ a value; higher is better."""


@dataclass(frozen=True)
class Metric:
    """A metric by name, with the heading of its column and whether people read it in percent."""

    name: str
    title: str
    function: Function
    percent: bool

    def show(self, value: float) -> str:
        """A value for people.

        >>> METRICS["accuracy"].show(0.8125), METRICS["macro-roc-auc"].show(0.8125)
        ('81.2', '0.812')
        """
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}"


METRICS: dict[str, Metric] = {}
"""By name, in the order in which they are shown."""


def metric_called(name: str, title: str, *, percent: bool) -> Callable[[Function], Function]:
    """Enter a function in `METRICS`."""

    def enter(function: Function) -> Function:
        METRICS[name] = Metric(name, title, function, percent)
        return function

    return enter


def metric(name: str) -> Metric:
    """The metric called `name`."""
    if name not in METRICS:
        raise ConfigError(f"there is no metric {name!r}; known are {', '.join(METRICS)}")
    return METRICS[name]


@metric_called("accuracy", "% right on real test data", percent=True)
def accuracy(answers: Answers, labels: NDArray[np.int64]) -> float:
    """The share of records whose own class is named."""
    return int((answers.named == labels).sum()) / len(labels)


@metric_called("balanced-accuracy", "balanced accuracy, %", percent=True)
def balanced_accuracy(answers: Answers, labels: NDArray[np.int64]) -> float:
    """The recall of a class, averaged over the classes of the test records: a rare one counts as much as a common one.

    >>> round(balanced_accuracy(Answers.of_logits(np.array([[1.0, 0.0]] * 4)), np.array([0, 0, 0, 1])), 3)
    0.5
    """
    right = answers.named == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


@metric_called("macro-roc-auc", "macro ROC AUC", percent=False)
def macro_roc_auc(answers: Answers, labels: NDArray[np.int64]) -> float:
    """The area under the one-vs-rest ROC curve of each class's score, averaged over the classes of the records.

    It is the chance that a record of the class has a higher score for it than one of another class, ties for half: the
    Mann-Whitney statistic, from ranks. A class without records has no curve, and is left out. Both areas of two classes
    are equal wherever one class's score falls as the other's rises, as probabilities do.
    """
    present = _compared(labels, "macro-roc-auc")
    return float(np.mean([_area(answers.scores[:, label], labels == label) for label in present]))


@metric_called("roc-auc-hard", "ROC AUC, hard", percent=False)
def roc_auc_hard(answers: Answers, labels: NDArray[np.int64]) -> float:
    """The same area from the named classes alone, as if a score were 1 for the class that is named and 0 for others.

    Published figures of synthetic tables are often of this kind. For two classes it is the balanced accuracy.
    """
    present = _compared(labels, "roc-auc-hard")
    return float(np.mean([_area((answers.named == label).astype(np.float64), labels == label) for label in present]))


@metric_called("average-precision", "average precision", percent=False)
def average_precision(answers: Answers, labels: NDArray[np.int64]) -> float:
    """The area under the precision-recall curve, as a sum of steps: of the positive class, if there are two classes.

    From three classes on it is the mean over the classes of the test records, one class against the rest each.
    """
    found = [
        _precision(answers.scores[:, label], labels == label) for label in _positives(answers, labels, "curve of it")
    ]
    return float(np.mean(found))


@metric_called("f1", "F1", percent=False)
def f1(answers: Answers, labels: NDArray[np.int64]) -> float:
    """The harmonic mean of precision and recall: of the positive class, if there are two classes.

    From three classes on it is the mean over the classes of the test records.
    """
    found = []
    for label in _positives(answers, labels, "F1"):
        named, there = answers.named == label, labels == label
        found.append(2 * int((named & there).sum()) / (int(named.sum()) + int(there.sum())))
    return float(np.mean(found))


DEFAULT_METRICS: Mapping[DataKind, tuple[str, ...]] = {
    DataKind.IMAGE: ("accuracy", "balanced-accuracy", "macro-roc-auc"),
    DataKind.TABLE: tuple(METRICS),
}
"""What is measured where a scenario does not say it."""


def _compared(labels: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """The classes of the records; DataError where there is one alone."""
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError(f"{name} compares classes, and the test records are all of one")
    return present


def _positives(answers: Answers, labels: NDArray[np.int64], what: str) -> NDArray[np.int64]:
    """The second of two classes, or all classes of the records; DataError where no record is of the second."""
    present = np.unique(labels)
    if answers.scores.shape[1] > 2:
        return present
    if 1 not in present:
        raise DataError(f"no test record is of the positive class, so there is no {what}")
    return np.array([1])


def _area(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Under the ROC curve."""
    ranks, count = _ranks(scores), int(positive.sum())
    above = ranks[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(positive) - count)))


def _precision(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """The precision at every threshold, weighted with the share of positive records that it adds.

    >>> round(_precision(np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, False, True, False])), 4)
    0.8333
    """
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of each run of equal scores
    found = np.cumsum(positive[order])[last]
    added = np.diff(found, prepend=0)
    return float((added * found / (last + 1)).sum() / found[-1])


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Positions in ascending order from 1; equal values share the mean of theirs.

    >>> _ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
