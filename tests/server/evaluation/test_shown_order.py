"""What the images alone are worth stands first, whatever the order in which learners were trained."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Score
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.scoring import described
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.evaluation.shown_order import shown_order
from dpdd.server.evaluation.table_learners import TABLE_LEARNERS


@pytest.mark.parametrize("labels, place", [("hard", 1), ("soft", 1), ("teacher", 1), ("pool", 1)])
def test_the_literatures_protocol_is_first_then_labels_then_networks_then_backbones(labels: str, place: int) -> None:
    learnt = {"teacher": None, "fine-tune": "soft", "probe": "soft", "krr-ntk": "hard", "convnet-cda": "hard"}
    learnt |= {"convnet": labels, "convnet-dd": "hard"}
    expected = ["convnet-dd", "convnet", "krr-ntk", "convnet-cda", "probe", "fine-tune", "teacher"]
    assert shown_order(learnt) == expected
    assert shown_order(dict(reversed(learnt.items()))) == expected
    assert expected.index("convnet") == place


def test_labels_count_among_networks_from_scratch() -> None:
    kinds = ("hard", "soft", "teacher", "pool")
    for one, other in itertools.pairwise(kinds):
        assert shown_order({"convnet": other, "convnet-pool": one}) == ["convnet-pool", "convnet"]
        assert shown_order({"convnet": one, "convnet-pool": other}) == ["convnet", "convnet-pool"]


def test_learners_of_tables_keep_their_order() -> None:
    names = [each.name for each in TABLE_LEARNERS]
    assert shown_order(dict.fromkeys(names, "hard")) == names == [name for name in LEARNERS if name in names]


def test_metrics_are_written_in_that_order() -> None:
    dataset = LabelledSet(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]), ("a", "b"))
    found = {name: {"accuracy": Score((0.5,))} for name in ("teacher", "probe", "krr-ntk", "convnet", "convnet-dd")}
    shown = described(found, dataset, EvaluationSection(), None)["accuracy"]
    assert list(shown) == ["convnet-dd", "convnet", "krr-ntk", "probe", "teacher"]
    assert "labels" not in shown["teacher"] and shown["convnet-dd"]["labels"] == "hard"
