"""Metrics: how good the answers of a classifier are. A metric is one function here, entered by `@metric_called`.

It gets logits (N, classes) and labels (N,) of test records; the classifier passes over the test set once for all of
them.

>>> logits = np.log([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1], [0.2, 0.8]])
>>> labels = np.array([0, 0, 1, 1])
>>> {name: float(each.function(logits, labels)) for name, each in METRICS.items()}
{'accuracy': 0.75, 'balanced-accuracy': 0.75, 'macro-roc-auc': 0.5}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError, DataError

Function = Callable[[NDArray[np.floating], NDArray[np.int64]], float]
"""(logits, labels) ↦ a value; higher is better."""


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
def accuracy(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The share of records whose highest logit is that of their class."""
    return int((logits.argmax(axis=1) == labels).sum()) / len(labels)


@metric_called("balanced-accuracy", "balanced accuracy, %", percent=True)
def balanced_accuracy(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The recall of a class, averaged over the classes of the test records: a rare one counts as much as a common one.

    >>> round(balanced_accuracy(np.array([[1.0, 0.0]] * 4), np.array([0, 0, 0, 1])), 3)
    0.5
    """
    right = logits.argmax(axis=1) == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


@metric_called("macro-roc-auc", "macro ROC AUC", percent=False)
def macro_roc_auc(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The area under the one-vs-rest ROC curve of each class's probability, averaged over the classes of the records.

    It is the chance that a record of the class has a higher probability for it than one of another class, ties for
    half: the Mann-Whitney statistic, from ranks. A class without records has no curve, and is left out.
    """
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError("macro-roc-auc compares classes, and the test records are all of one")
    # Probabilities, not logits: only they compare one record with another (a logit may have any offset per record).
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    areas = []
    for label in present:
        positive = labels == label
        ranks, count = _ranks(probabilities[:, label]), int(positive.sum())
        above = ranks[positive].sum() - count * (count + 1) / 2
        areas.append(above / (count * (len(labels) - count)))
    return float(np.mean(areas))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions in ascending order from 1; equal values share the mean of theirs.

    >>> _ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
