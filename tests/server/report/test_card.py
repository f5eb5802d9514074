"""The data card: what it says of accuracies, classes and licence beside what it promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from dpdd.common.models import backbone as backbones
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.server.run.store import Store
from tests.server.finished_runs import CLASSES, SCORES, finished_run, images, scenario, table


def text_of(folder: Path) -> str:
    return (folder / "CARD.md").read_text()


def test_it_has_what_learners_reached(tmp_path: Path) -> None:
    evaluation = finished_run(tmp_path, images())["evaluation"]
    assert evaluation["test_data"] == "the test data of fashion-slice"
    convnet, teacher = evaluation["learners"]
    assert (convnet["learner"], convnet["learnt_from"], convnet["runs"]) == ("ConvNet from scratch", "soft labels", 2)
    assert (teacher["learner"], teacher["learnt_from"], teacher["runs"]) == ("teacher", "the releases", 1)
    for name, stated in (("convnet", convnet), ("teacher", teacher)):
        assert stated["metrics"]["accuracy"]["mean"] == SCORES["accuracy"][name]["mean"]
        assert stated["metrics"]["macro-roc-auc"]["std"] == SCORES["metrics"]["macro-roc-auc"][name]["std"]
    expected = """\
learner               learnt from   runs  % right on real test data  macro ROC AUC
--------------------  ------------  ----  -------------------------  -------------
ConvNet from scratch  soft labels      2  80.0 ± 1.0                 0.900 ± 0.020
teacher               the releases     1  75.0                       0.850"""
    assert expected in text_of(tmp_path)
    assert "Test figures are no part of the privacy claim" in text_of(tmp_path)


def test_nothing_evaluated_nothing_said(tmp_path: Path) -> None:
    card = finished_run(tmp_path, images(), scores={"accuracy": {}})
    assert "evaluation" not in card
    assert "learners" not in text_of(tmp_path) and "Test figures" not in text_of(tmp_path)


@pytest.mark.parametrize(
    ("labels", "counts", "words"),
    [
        ([0, 0, 1, 1], [2, 2], "(coat, shoe / boot), 2 of each,"),
        ([0, 1, 1, 1], [1, 3], "of which there are 1 coat, 3 shoe / boot,"),
        ([0, 0, 0, 0], [4, 0], "of which there are 4 coat, 0 shoe / boot,"),
    ],
)
def test_it_says_how_many_of_each_class(tmp_path: Path, labels: list[int], counts: list[int], words: str) -> None:
    dataset = LabelledSet(images().images, np.array(labels), CLASSES)
    assert finished_run(tmp_path, dataset)["records_per_class"] == counts
    assert words in " ".join(text_of(tmp_path).split())


def test_every_kind_of_product_is_described(tmp_path: Path) -> None:
    model = ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), CLASSES, (1, 8, 8), width=4)
    finished_run(tmp_path / "images", images(3))
    finished_run(tmp_path / "table", table())
    assert "records_per_class" not in finished_run(tmp_path / "model", model)
    assert "4 synthetic images (28x28 pixels, 3 channels) in 2 classes" in text_of(tmp_path / "images")
    assert "5 synthetic rows (4 columns) in 2 classes" in text_of(tmp_path / "table")
    assert "A ConvNet of width 4 (8x8 pixels, 1 channel) in 2 classes" in text_of(tmp_path / "model")


def test_the_licence_is_stated_or_said_to_be_missing(tmp_path: Path) -> None:
    assert finished_run(tmp_path / "one", images())["licence"] is None
    assert "## Licence\n\nNot stated" in text_of(tmp_path / "one")
    assert finished_run(tmp_path / "two", images(), licence="CC-BY-4.0")["licence"] == "CC-BY-4.0"
    assert "## Licence\n\nCC-BY-4.0\n" in text_of(tmp_path / "two")
    with pytest.raises(ValidationError):
        scenario(licence="")


def test_the_teachers_backbone_is_named_with_its_hash(tmp_path: Path) -> None:
    card = finished_run(tmp_path, images(teacher=True))
    sha256 = backbones.load("scatter28").card.sha256
    assert card["teacher_backbone"] == {"name": "scatter28", "sha256": sha256}
    assert sha256 in text_of(tmp_path) and card["teacher_sha256"] in text_of(tmp_path)


def test_silos_that_are_missing_are_listed(tmp_path: Path) -> None:
    finished_run(tmp_path, images(), missing={"east": "did not answer"})
    assert "Silos that did not take part, or not in every stage:\n\n- east: did not answer\n" in text_of(tmp_path)


def test_a_fork_of_a_silos_ledger_is_a_warning(tmp_path: Path) -> None:
    fork = "silo south has two ledgers with an entry 2: they paid for requests a and b"
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store")
    store.warn("south", fork)
    store.warn("stranger", "nothing to do with this run")
    store.close()
    card = finished_run(tmp_path, images())
    assert card["warnings"] == [fork]
    assert "**Warning.** What these silos released does not come from one ledger" in text_of(tmp_path)
    assert f"- {fork}." in text_of(tmp_path) and "stranger" not in text_of(tmp_path)
    assert "warnings" not in finished_run(tmp_path / "other", images())
