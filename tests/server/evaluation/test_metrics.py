"""Metrics against cases done by hand, and the area under the curve against counting pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdd.common.errors import ConfigError, DataError
from dpdd.server.evaluation.metrics import METRICS, accuracy, balanced_accuracy, macro_roc_auc, metric


def logits_of(probabilities: object) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, dtype=np.float64))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def counted(logits: np.ndarray, labels: np.ndarray) -> float:
    """The definition: of all pairs of a record of the class and one of another, how many are in order."""
    chances, areas = softmax(logits), []
    for label in sorted(set(labels.tolist())):
        inside, outside = chances[labels == label, label], chances[labels != label, label]
        pairs = [1.0 if one > other else 0.5 if one == other else 0.0 for one in inside for other in outside]
        areas.append(sum(pairs) / len(pairs))
    return sum(areas) / len(areas)


def test_by_hand() -> None:
    # Three of class 0 (two right), one of class 1 (right), two of class 2 (none right).
    answers = [0, 0, 2, 1, 0, 1]
    labels = np.array([0, 0, 0, 1, 2, 2])
    logits = np.eye(3)[answers]
    assert accuracy(logits, labels) == 3 / 6
    assert balanced_accuracy(logits, labels) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_absent_classes_do_not_count() -> None:
    labels = np.array([0, 0, 2])
    logits = np.eye(4)[[0, 1, 2]]  # of four classes, two are in the test
    assert balanced_accuracy(logits, labels) == pytest.approx((0.5 + 1.0) / 2)
    assert macro_roc_auc(logits, labels) == pytest.approx(counted(logits, labels)) == pytest.approx((0.75 + 1.0) / 2)


def test_area_by_hand() -> None:
    # Class 1 against class 0: 0.8 and 0.4 against 0.6 and 0.4: above, above; below, equal.
    second = np.array([0.8, 0.4, 0.6, 0.4])
    logits = logits_of(np.stack([1 - second, second], axis=1))
    labels = np.array([1, 1, 0, 0])
    assert macro_roc_auc(logits, labels) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert macro_roc_auc(-logits, labels) == pytest.approx(1 - 2.5 / 4)
    assert macro_roc_auc(np.zeros((4, 2)), labels) == 0.5, "one who does not know"


def test_probabilities_are_ranked_and_not_logits() -> None:
    """An offset per record changes no probability, so it must not change the area."""
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(60, 4)), generator.integers(0, 4, 60)
    moved = logits + 100.0 * generator.normal(size=(60, 1))
    assert macro_roc_auc(moved, labels) == pytest.approx(macro_roc_auc(logits, labels), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(2, 5), st.sampled_from([1, 3, 1000]))
def test_area_is_the_share_of_ordered_pairs(seed: int, count: int, classes: int, levels: int) -> None:
    generator = np.random.default_rng(seed)
    # Few levels make ties; integers keep equal rows equal after the softmax.
    logits = generator.integers(0, levels, (count, classes)).astype(np.float32)
    labels = generator.integers(0, classes, count)
    labels[:2] = [0, 1]
    assert macro_roc_auc(logits, labels) == pytest.approx(counted(logits, labels), abs=1e-12)


def test_certain_answers_have_an_area() -> None:
    """The logarithm of a probability of 0 is -inf: an ensemble may say so."""
    labels = np.array([0, 1, 1])
    assert macro_roc_auc(logits_of([[1, 0], [0, 1], [0.5, 0.5]]), labels) == 1.0


def test_one_class_has_no_area() -> None:
    with pytest.raises(DataError, match="all of one"):
        macro_roc_auc(np.zeros((3, 2)), np.zeros(3, dtype=np.int64))


def test_the_registry() -> None:
    assert list(METRICS) == ["accuracy", "balanced-accuracy", "macro-roc-auc"]
    assert all(metric(name).name == name and each.title for name, each in METRICS.items())
    assert metric("balanced-accuracy").function is balanced_accuracy
    with pytest.raises(ConfigError, match="no metric 'f1'; known are accuracy, balanced-accuracy, macro-roc-auc"):
        metric("f1")
    assert [each.show(0.12345) for each in METRICS.values()] == ["12.3", "12.3", "0.123"]


def test_perfect_and_reversed_answers() -> None:
    labels = np.arange(30) % 3
    right = 5.0 * np.eye(3)[labels]
    wrong = 5.0 * np.eye(3)[(labels + 1) % 3]
    assert [each.function(right, labels) for each in METRICS.values()] == [1.0, 1.0, 1.0]
    assert [each.function(wrong, labels) for each in METRICS.values()] == [0.0, 0.0, pytest.approx(0.25)]
