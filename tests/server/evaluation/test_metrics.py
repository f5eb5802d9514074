"""Metrics against cases done by hand, and the area under the curve against counting pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from dpdd.common.errors import ConfigError, DataError
from dpdd.common.methods.base import DataKind
from dpdd.server.evaluation.base import Answers
from dpdd.server.evaluation.metrics import DEFAULT_METRICS, METRICS, accuracy, balanced_accuracy, macro_roc_auc, metric


def logits_of(probabilities: object) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, dtype=np.float64))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def said(logits: np.ndarray) -> Answers:
    return Answers.of_logits(logits)


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
    assert accuracy(said(logits), labels) == 3 / 6
    assert balanced_accuracy(said(logits), labels) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_absent_classes_do_not_count() -> None:
    labels = np.array([0, 0, 2])
    logits = np.eye(4)[[0, 1, 2]]  # of four classes, two are in the test
    assert balanced_accuracy(said(logits), labels) == pytest.approx((0.5 + 1.0) / 2)
    assert (
        macro_roc_auc(said(logits), labels) == pytest.approx(counted(logits, labels)) == pytest.approx((0.75 + 1.0) / 2)
    )


def test_area_by_hand() -> None:
    # Class 1 against class 0: 0.8 and 0.4 against 0.6 and 0.4: above, above; below, equal.
    second = np.array([0.8, 0.4, 0.6, 0.4])
    logits = logits_of(np.stack([1 - second, second], axis=1))
    labels = np.array([1, 1, 0, 0])
    assert macro_roc_auc(said(logits), labels) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert macro_roc_auc(said(-logits), labels) == pytest.approx(1 - 2.5 / 4)
    assert macro_roc_auc(said(np.zeros((4, 2))), labels) == 0.5, "one who does not know"


def test_probabilities_are_ranked_and_not_logits() -> None:
    """An offset per record changes no probability, so it must not change the area."""
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(60, 4)), generator.integers(0, 4, 60)
    moved = logits + 100.0 * generator.normal(size=(60, 1))
    assert macro_roc_auc(said(moved), labels) == pytest.approx(macro_roc_auc(said(logits), labels), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(2, 5), st.sampled_from([1, 3, 1000]))
def test_area_is_the_share_of_ordered_pairs(seed: int, count: int, classes: int, levels: int) -> None:
    generator = np.random.default_rng(seed)
    # Few levels make ties; integers keep equal rows equal after the softmax.
    logits = generator.integers(0, levels, (count, classes)).astype(np.float32)
    labels = generator.integers(0, classes, count)
    labels[:2] = [0, 1]
    assert macro_roc_auc(said(logits), labels) == pytest.approx(counted(logits, labels), abs=1e-12)


def test_certain_answers_have_an_area() -> None:
    """The logarithm of a probability of 0 is -inf: an ensemble may say so."""
    labels = np.array([0, 1, 1])
    assert macro_roc_auc(said(logits_of([[1, 0], [0, 1], [0.5, 0.5]])), labels) == 1.0


def test_one_class_has_no_area() -> None:
    with pytest.raises(DataError, match="all of one"):
        macro_roc_auc(said(np.zeros((3, 2))), np.zeros(3, dtype=np.int64))


def test_the_registry() -> None:
    assert DEFAULT_METRICS[DataKind.IMAGE] == ("accuracy", "balanced-accuracy", "macro-roc-auc")
    more = ("roc-auc-hard", "average-precision", "f1")
    assert tuple(METRICS) == DEFAULT_METRICS[DataKind.TABLE] == (*DEFAULT_METRICS[DataKind.IMAGE], *more)
    assert all(metric(name).name == name and each.title for name, each in METRICS.items())
    assert metric("balanced-accuracy").function is balanced_accuracy
    with pytest.raises(ConfigError, match="no metric 'f2'; known are accuracy, balanced-accuracy, macro-roc-auc, "):
        metric("f2")
    assert [each.show(0.12345) for each in METRICS.values()] == ["12.3", "12.3", *["0.123"] * 4]


def test_perfect_and_reversed_answers() -> None:
    labels = np.arange(30) % 3
    right = 5.0 * np.eye(3)[labels]
    wrong = 5.0 * np.eye(3)[(labels + 1) % 3]
    assert [each.function(said(right), labels) for each in METRICS.values()] == [1.0] * 6
    values = {name: each.function(said(wrong), labels) for name, each in METRICS.items()}
    assert [values[name] for name in ("accuracy", "balanced-accuracy", "macro-roc-auc", "roc-auc-hard", "f1")] == [
        *(0.0, 0.0),
        *(pytest.approx(0.25), pytest.approx(0.25)),
        0.0,
    ]


def drawn(seed: int, count: int, classes: int, levels: int) -> tuple[Answers, np.ndarray]:
    """Scores on few levels, so that there are ties, and named classes that need not have the highest."""
    generator = np.random.default_rng(seed)
    second = generator.integers(0, levels + 1, count) / levels
    scores = generator.integers(0, levels + 1, (count, classes)) / levels
    if classes == 2:
        scores = np.stack([1 - second, second], axis=1)
    labels = generator.integers(0, classes, count)
    labels[:classes] = np.arange(classes)
    return Answers(scores, generator.integers(0, classes, count)), labels


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.integers(2, 5), st.sampled_from([1, 4, 1000]))
def test_metrics_are_those_of_scikit_learn(seed: int, count: int, classes: int, levels: int) -> None:
    answers, labels = drawn(seed, count, classes, levels)
    everybody, hard = np.eye(classes)[labels], np.eye(classes)[answers.named]
    one, average = ([1], "binary") if classes == 2 else (range(classes), "macro")
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(labels, answers.named),
        "balanced-accuracy": sklearn_metrics.balanced_accuracy_score(labels, answers.named),
        "macro-roc-auc": np.mean([sklearn_metrics.roc_auc_score(everybody[:, c], answers.scores[:, c]) for c in one]),
        "roc-auc-hard": np.mean([sklearn_metrics.roc_auc_score(everybody[:, c], hard[:, c]) for c in range(classes)]),
        "average-precision": np.mean(
            [sklearn_metrics.average_precision_score(everybody[:, c], answers.scores[:, c]) for c in one]
        ),
        "f1": sklearn_metrics.f1_score(labels, answers.named, average=average),
    }
    found = {name: each.function(answers, labels) for name, each in METRICS.items()}
    assert found == pytest.approx(expected, abs=1e-12)
    if classes == 2:
        assert found["roc-auc-hard"] == pytest.approx(found["balanced-accuracy"], abs=1e-12)


def test_metrics_of_one_class_alone() -> None:
    answers = Answers(np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([1, 0]))
    with pytest.raises(DataError, match="roc-auc-hard compares classes"):
        METRICS["roc-auc-hard"].function(answers, np.zeros(2, np.int64))
    for name in ("average-precision", "f1"):
        with pytest.raises(DataError, match="no test record is of the positive class"):
            METRICS[name].function(answers, np.zeros(2, np.int64))
    ones = np.ones(2, np.int64)
    assert METRICS["average-precision"].function(answers, ones) == 1.0
    assert METRICS["f1"].function(answers, ones) == pytest.approx(2 / 3)


def test_named_classes_go_before_scores() -> None:
    """A classifier may name a class that has not the highest score: metrics of named classes follow it."""
    answers, labels = Answers(np.array([[0.6, 0.4], [0.6, 0.4]]), np.array([1, 1])), np.array([0, 1])
    assert METRICS["accuracy"].function(answers, labels) == 0.5
    assert METRICS["f1"].function(answers, labels) == pytest.approx(2 / 3)
    assert METRICS["balanced-accuracy"].function(answers, labels) == 0.5
