"""What real records are worth: who trains on which, how long, and what is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdd.common.data import made_patients
from dpdd.common.models import backbone as backbones
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.baselines import real_records, tables
from dpdd.scenarios.baselines.base import Task, prepare
from dpdd.scenarios.baselines.real_records import JudgeSettings
from dpdd.server.evaluation import convnet_dd
from dpdd.server.evaluation.learner_settings import ConvNetDDSettings, LearnerSettings
from dpdd.server.evaluation.settings import EvaluationSection
from tests.scenarios.small_images import stripes

QUICK = JudgeSettings(convnet_dd=ConvNetDDSettings(runs=1, width=4, steps=2, batch=16), images_per_class=5, epochs=3)


@pytest.fixture
def task(small_world: str) -> Task:
    shares = (np.arange(60), np.arange(60, 150))
    return prepare(backbones.load(small_world), stripes(200, 0), stripes(30, 1), shares=shares)


def test_random_picks_have_as_many_of_each_class(task: Task) -> None:
    picks = [real_records.some_of_each_class(task, 5, seed) for seed in (0, 0, 1)]
    assert picks[0].tolist() == picks[1].tolist() != picks[2].tolist()
    for pick in picks:
        assert np.bincount(task.train.labels[pick]).tolist() == [5, 5, 5] and len(set(pick.tolist())) == 15
    assert len(real_records.some_of_each_class(task, 10**6, 0)) == 200


def test_rows_train_on_the_records_that_they_name(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[LabelledSet, LearnerSettings]] = []
    usual = convnet_dd.dd_convnets

    def watched(dataset: LabelledSet, settings: LearnerSettings, *rest: Any) -> Any:
        seen.append((dataset, settings))
        return usual(dataset, settings, *rest)

    monkeypatch.setattr(convnet_dd, "dd_convnets", watched)
    real_records.all_records(task, QUICK, 0)
    real_records.some_records(task, QUICK, 0)
    alone = real_records.each_silo_alone(task, QUICK, 0)
    assert [len(dataset) for dataset, _ in seen] == [150, 15, 60, 90]
    assert [settings.convnet_dd.steps for _, settings in seen] == [29, 3, 12, 17], "epochs, and not fewer than `steps`"
    for share, (dataset, _) in zip(task.shares, seen[2:], strict=True):
        np.testing.assert_array_equal(dataset.images, task.train.images[share])
    assert alone["worst-silo"] <= alone["accuracy"] <= alone["best-silo"]
    assert alone["accuracy"] == pytest.approx((alone["worst-silo"] + alone["best-silo"]) / 2)


def test_rows_of_tables_are_means_over_classifiers() -> None:
    train, test = made_patients.rows("train").subset(np.arange(400)), made_patients.rows("test").subset(np.arange(300))
    few = EvaluationSection(learners=("logistic-regression", "gaussian-nb"))
    shares = np.array_split(np.arange(300), 2)
    rows = tables.run(train, test, shares, ["real", "real-subset", "alone"], 2, 20, settings=few)
    assert [row.method for row in rows] == ["real", "real-subset", "alone"]
    for row in rows:
        printed = row.as_json()
        assert printed["epsilon"] == float("inf") and printed["releasable"] is False
        assert 0.5 < row.scores["macro-roc-auc"].mean <= 1.0 and len(row.accuracy.runs) == 2
    real, subset, alone = rows
    assert real.accuracy.runs[0] == real.accuracy.runs[1], "neither classifier draws"
    assert subset.accuracy.runs[0] != subset.accuracy.runs[1], "other rows are picked"
    assert alone.scores["worst-silo"].mean <= alone.scores["best-silo"].mean
