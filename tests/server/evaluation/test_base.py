"""Scores add runs up rightly; a learner's contract has one hole to fill."""

from __future__ import annotations

import pytest

from dpdd.server.evaluation.base import Learner, Score


def test_mean_and_deviation() -> None:
    assert Score((0.5, 0.7)).mean == 0.6
    assert abs(Score((0.5, 0.7)).std - 0.02**0.5) < 1e-12
    assert Score((0.5,)).std == 0.0
    assert Score((0.5,)).as_json() == {"mean": 0.5, "std": 0.0, "runs": [0.5]}


def test_a_learner_must_train() -> None:
    class Idle(Learner):
        name = title = "idle"

    with pytest.raises(TypeError, match="train_networks"):
        Idle()  # type: ignore[abstract]
