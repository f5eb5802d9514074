"""The classifiers of tables: each is what scikit-learn makes of the same numbers, and no set is too odd for a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, neural_network, svm, tree
from xgboost import XGBClassifier

from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.data.made_patients import SCHEMA, rows
from dpdd.common.data.table.columns import Categorical
from dpdd.common.data.table.feature_matrix import feature_matrix
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import CannotLearn
from dpdd.server.evaluation.classical import TrainedOnRows, subset, trained
from dpdd.server.evaluation.scoring import answers_of, evaluate, scores, train_learners
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.evaluation.table_learners import TABLE_LEARNERS, TableLearner

LEARNERS = {each.name: each for each in TABLE_LEARNERS}
FAST = tuple(name for name in LEARNERS if name not in ("adaboost", "mlp"))
TEST = rows("test").subset(np.arange(500))


def made(count: int = 150, **changes: Any) -> LabelledSet:
    some = rows("train").subset(np.arange(count))
    return replace(LabelledSet(some.rows, some.labels, some.classes, schema=some.schema), **changes)


def of_classes(names: tuple[str, ...], labels: np.ndarray, count: int = 150) -> tuple[LabelledSet, LabelledRows]:
    """The made patients with another label, and test records with the same."""
    label = Categorical(name="readmitted", categories=names)
    schema = TableSchema(label="readmitted", columns=(*SCHEMA.columns[:-1], label))
    data, test = rows("train").subset(np.arange(count)), rows("test").subset(np.arange(60))
    return (
        LabelledSet(data.rows, labels, names, schema=schema),
        LabelledRows(test.rows, np.arange(60) % len(names), schema),
    )


def twin(name: str, classes: int, seed: int) -> Any:
    """The same settings, written down once more."""
    return {
        "logistic-regression": linear_model.LogisticRegression(max_iter=5000),
        "gaussian-nb": naive_bayes.GaussianNB(),
        "bernoulli-nb": naive_bayes.BernoulliNB(binarize=0.5),
        "linear-svc": svm.LinearSVC(max_iter=10000, tol=1e-8, loss="hinge", random_state=seed),
        "decision-tree": tree.DecisionTreeClassifier(class_weight="balanced", random_state=seed),
        "lda": discriminant_analysis.LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.5),
        "adaboost": ensemble.AdaBoostClassifier(n_estimators=1000, learning_rate=0.7, random_state=seed),
        "bagging": ensemble.BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed),
        "random-forest": ensemble.RandomForestClassifier(class_weight="balanced", random_state=seed),
        "gradient-boosting": ensemble.GradientBoostingClassifier(subsample=0.1, n_estimators=50, random_state=seed),
        "mlp": neural_network.MLPClassifier(random_state=seed),
        "xgboost": XGBClassifier(
            colsample_bytree=0.1, n_estimators=50, max_depth=3, learning_rate=0.1, random_state=seed, n_jobs=1
        ),
    }[name]


@pytest.fixture(autouse=True)
def no_warning_escapes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.parametrize("learner", TABLE_LEARNERS, ids=lambda each: each.name)
@pytest.mark.parametrize("classes", [2, 3])
def test_each_is_its_twin(learner: TableLearner, classes: int) -> None:
    dataset, test = made(), TEST
    if classes == 3:
        dataset, test = of_classes(("a", "b", "c"), (rows("train").rows[:150, 0] // 7).clip(0, 2).astype(np.int64))
    [classifier] = trained(learner, dataset, EvaluationSection(), seed=3)
    assert dataset.schema is not None
    model = twin(learner.name, classes, subseed(3, f"{learner.name} 0") % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(feature_matrix(dataset.schema, dataset.rows), dataset.labels)
    features, answers = feature_matrix(dataset.schema, test.rows), classifier.answers(test.rows)
    assert answers.named.tolist() == model.predict(features).tolist()
    if learner.name == "linear-svc":
        margins = model.decision_function(features)
        expected = np.stack([-margins, margins], axis=1) if classes == 2 else margins
    else:
        expected = model.predict_proba(features)
    np.testing.assert_array_equal(answers.scores, expected)
    logits = classifier(torch.from_numpy(test.rows)).numpy()
    assert (logits.argmax(axis=1) == answers.scores.argmax(axis=1)).all()


def test_runs_have_seeds_of_their_own_and_who_draws_nothing_is_trained_once() -> None:
    settings = EvaluationSection(runs=3)
    for name in ("random-forest", "lda"):
        first, second = (trained(LEARNERS[name], made(), settings, seed=5) for _ in range(2))
        answers = [each.answers(TEST.rows).scores.tobytes() for each in first]
        assert answers == [each.answers(TEST.rows).scores.tobytes() for each in second]
        assert len(set(answers)) == (3 if name == "random-forest" else 1) == len({id(each) for each in first})
        other = trained(LEARNERS[name], made(), settings, seed=6)
        assert (other[0].answers(TEST.rows).scores.tobytes() == answers[0]) is (name == "lda")


def test_a_class_that_was_never_met_has_no_score_and_is_never_named() -> None:
    labels = (rows("train").labels[:150] * 2).astype(np.int64)  # of four classes, 0 and 2
    dataset, test = of_classes(("a", "b", "c", "d"), labels)
    shown = evaluate(dataset, test, EvaluationSection(learners=FAST), None, seed=0)
    assert "learners_left_out" not in shown and set(shown["accuracy"]) == set(FAST)
    alone = made(labels=rows("train").labels[:150])
    for name in FAST:
        [classifier], [pair] = (trained(LEARNERS[name], each, EvaluationSection(), seed=0) for each in (dataset, alone))
        answers = answers_of(classifier, test)
        assert set(answers.named.tolist()) <= {0, 2} and not answers.scores[:, [1, 3]].any()
        np.testing.assert_array_equal(answers.scores[:, [0, 2]], pair.answers(test.rows).scores)
        logits = classifier(torch.from_numpy(test.rows)).numpy()
        assert np.isfinite(logits).all() and (logits[:, [1, 3]].max(axis=1) < logits.max(axis=1)).all()


@pytest.mark.parametrize("labels", [[1] * 40, []], ids=["one class", "no row"])
def test_a_set_without_two_classes_trains_nobody_and_says_why(labels: list[int]) -> None:
    dataset = made(len(labels), labels=np.array(labels, dtype=np.int64))
    shown = evaluate(dataset, TEST, EvaluationSection(), None, seed=0)
    assert shown["accuracy"] == {} and list(shown["learners_left_out"]) == list(LEARNERS)
    why = "its rows are all of one class" if labels else "it has no rows"
    assert set(shown["learners_left_out"].values()) == {why} and "mean_over_learners" not in shown


@pytest.mark.parametrize("each", [1, 2, 3, 10])
def test_tiny_sets_work_or_are_left_out_with_a_reason(each: int) -> None:
    whole = rows("train")
    chosen = np.concatenate([np.flatnonzero(whole.labels == label)[:each] for label in (0, 1)])
    dataset = made(len(chosen), records=whole.rows[chosen], labels=whole.labels[chosen])
    shown = evaluate(dataset, TEST, EvaluationSection(), None, seed=0)
    left_out = shown.get("learners_left_out", {})
    assert set(shown["accuracy"]) | set(left_out) == set(LEARNERS) and len(shown["accuracy"]) >= 11
    assert all("\n" not in why and why for why in left_out.values())
    for metric in shown["metrics"].values():
        assert all(0.0 <= score["mean"] <= 1.0 for score in metric.values())


def test_constant_columns_alone_are_no_error() -> None:
    same = np.repeat(rows("train").rows[:1], 40, axis=0)
    dataset = made(40, records=same, labels=np.arange(40) % 2)
    shown = evaluate(dataset, TEST, EvaluationSection(), None, seed=0)
    assert set(shown["accuracy"]) | set(shown["learners_left_out"]) == set(LEARNERS)
    assert "worse than random" in shown["learners_left_out"]["adaboost"]
    means = shown["mean_over_learners"]["macro-roc-auc"]
    assert means["learners"] == len(shown["accuracy"]) and 0.3 < means["mean"] < 0.7


def test_who_fails_is_left_out_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise np.linalg.LinAlgError("singular\nmatrix.")

    monkeypatch.setattr(discriminant_analysis.LinearDiscriminantAnalysis, "fit", fails)
    asked = EvaluationSection(learners=("lda", "gaussian-nb"))
    shown = evaluate(made(), TEST, asked, None, seed=0)
    assert shown["learners_left_out"] == {"lda": "singular matrix"} and list(shown["accuracy"]) == ["gaussian-nb"]
    monkeypatch.setattr(naive_bayes.GaussianNB, "predict_proba", lambda self, x: np.full((len(x), 2), np.nan))
    with pytest.raises(CannotLearn, match="its answers are no numbers"):
        trained(LEARNERS["gaussian-nb"], made(), asked, seed=0)


def test_at_most_so_many_rows_are_trained_on() -> None:
    settings = EvaluationSection(rows=60)
    [few] = trained(LEARNERS["logistic-regression"], made(150), settings, seed=1)
    chosen = subset(made(150).labels, 60, 1)
    [same] = trained(
        LEARNERS["logistic-regression"],
        made(len(chosen), records=made(150).rows[chosen], labels=made(150).labels[chosen]),
        settings,
        seed=2,
    )
    np.testing.assert_array_equal(few.answers(TEST.rows).scores, same.answers(TEST.rows).scores)
    [all_of_them] = trained(LEARNERS["logistic-regression"], made(150), EvaluationSection(rows=150), seed=1)
    assert not np.array_equal(few.answers(TEST.rows).scores, all_of_them.answers(TEST.rows).scores)


def test_a_subset_keeps_shares_and_every_class() -> None:
    labels = np.repeat([0, 1, 2], [700, 299, 1])
    chosen = subset(labels, 100, seed=4)
    assert np.bincount(labels[chosen]).tolist() == [70, 29, 1] and len(set(chosen.tolist())) == 100
    assert chosen.tolist() == sorted(chosen.tolist()) == subset(labels, 100, seed=4).tolist()
    assert chosen.tolist() != subset(labels, 100, seed=5).tolist()
    assert subset(labels, 1000, seed=4).tolist() == list(range(1000))


def test_declared_priors_move_named_classes_and_no_area() -> None:
    asked = EvaluationSection(learners=("logistic-regression",), metrics=("macro-roc-auc", "balanced-accuracy"))
    plain = train_learners(made(), asked, None, 0)["logistic-regression"]
    soft = np.full((150, 2), 0.5, np.float32)  # which nobody here learns from
    moved = train_learners(made(priors=(0.999, 0.001), soft=soft), asked, None, 0)["logistic-regression"]
    assert isinstance(plain[0], TrainedOnRows) and not isinstance(moved[0], TrainedOnRows)
    named = [answers_of(each[0], TEST).named.mean() for each in (plain, moved)]
    assert named[0] > 0.1 > 0.01 > named[1]
    areas = [scores(each, TEST, asked.metrics or ())["macro-roc-auc"].mean for each in (plain, moved)]
    assert areas[0] == pytest.approx(areas[1], abs=1e-9)
