"""Means over learners against NumPy; classifiers that a product brings are no learners."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.server.evaluation.base import Score
from dpdd.server.evaluation.over_learners import over_learners


def test_means_are_taken_run_by_run() -> None:
    runs = {"lda": (0.5, 0.7), "mlp": (0.9, 0.5), "xgboost": (0.4, 0.3)}
    found = {name: {"accuracy": Score(values), "f1": Score(values)} for name, values in runs.items()}
    del found["mlp"]["f1"]
    about = over_learners({**found, "teacher": {"accuracy": Score((1.0,))}})
    accuracy, f1 = (about["mean_over_learners"][name] for name in ("accuracy", "f1"))
    assert accuracy["runs"] == pytest.approx([0.6, 0.5]) and accuracy["learners"] == 3
    assert accuracy["mean"] == pytest.approx(np.mean(list(runs.values())))
    assert f1["runs"] == pytest.approx([0.45, 0.5]) and f1["learners"] == 2
    assert about["best_learner"] == {
        "accuracy": {"learner": "mlp", "mean": pytest.approx(0.7)},
        "f1": {"learner": "lda", "mean": pytest.approx(0.6)},
    }


def test_one_learner_has_no_mean() -> None:
    assert over_learners({"lda": {"accuracy": Score((0.5,))}, "teacher": {"accuracy": Score((0.5,))}}) == {}
