"""Unequal classes: one record in eight of Fashion-MNIST's pullovers and shirts is a shirt.

With nothing declared the majority decides. With declared priors each does what it says: as released has the better
accuracy where records come as they did, equal the better balanced accuracy. For several budgets,
`python -m tests.client.test_unequal_classes` prints a table.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import numpy as np
import pytest

from dpdd.client import distil as module
from dpdd.client.distil import distil
from dpdd.common.cli import table
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.methods.base import DataKind
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import Priors
from dpdd.server.evaluation.metrics import DEFAULT_METRICS, METRICS
from dpdd.server.evaluation.scoring import evaluate
from dpdd.server.evaluation.settings import EvaluationSection

CLASSES = ("Pullover", "Shirt")
DECLARED: dict[str, Priors | None] = {
    "nothing": None,
    "as-released": "as-released",
    "equal": "equal",
    "given": {"Pullover": 0.875, "Shirt": 0.125},
}
MEASURED = DEFAULT_METRICS[DataKind.IMAGE]
EVALUATION = EvaluationSection(learners=("convnet",), width=16, steps=80, batch=64, augmentations=1000)

Figures = dict[str, dict[str, float]]
"""Metrics by learner."""


def seven_to_one(split: benchmarks.Split, rare: int) -> LabelledImages:
    """The first records of both classes."""
    data = benchmarks.load("fashion-slice", split)
    places = [np.flatnonzero(data.labels == data.classes.index(name)) for name in CLASSES]
    kept = [places[0][: 7 * rare], places[1][:rare]]
    return LabelledImages(data.images[np.concatenate(kept)], np.repeat([0, 1], [7 * rare, rare]), CLASSES)


def distilled(priors: Priors | None, epsilon: float, stages: int) -> LabelledSet:
    """One set, always from the same noise."""
    train = seven_to_one("train", 300)
    with patch.object(module, "SystemEntropy", lambda: SeededEntropy(1, "unequal classes")):
        return distil(
            train.images,
            train.labels,
            classes=CLASSES,
            epsilon=epsilon,
            images_per_class=10,
            settings={"stages": stages},
            synthesis={"steps": 30, "batch_per_class": 10},
            priors=priors,
            progress=silent,
        )


def figures_of(dataset: LabelledSet, settings: EvaluationSection = EVALUATION) -> Figures:
    """On 350 pullovers and 50 shirts."""
    shown = evaluate(dataset, seven_to_one("test", 50), settings, None, seed=0)
    by_metric = {"accuracy": shown["accuracy"], **shown["metrics"]}
    return {name: {metric: by_metric[metric][name]["mean"] for metric in MEASURED} for name in shown["accuracy"]}


@pytest.fixture(scope="module")
def sets() -> dict[str, LabelledSet]:
    return {name: distilled(DECLARED[name], epsilon=3.0, stages=1) for name in ("nothing", "as-released", "equal")}


@pytest.fixture(scope="module")
def figures(sets: dict[str, LabelledSet]) -> dict[str, Figures]:
    return {name: figures_of(dataset) for name, dataset in sets.items()}


@pytest.mark.parametrize("learner", ["teacher", "convnet"])
def test_each_prior_does_what_it_says(figures: dict[str, Figures], learner: str) -> None:
    found = {name: each[learner] for name, each in figures.items()}
    assert found["as-released"]["accuracy"] > found["equal"]["accuracy"]
    assert found["equal"]["balanced-accuracy"] > found["as-released"]["balanced-accuracy"]


def test_the_majority_no_longer_decides(figures: dict[str, Figures]) -> None:
    """The teacher ranks well from the start; its answers follow now."""
    before, now = figures["nothing"]["teacher"], figures["equal"]["teacher"]
    assert before["macro-roc-auc"] > 0.85 and before["balanced-accuracy"] < 0.65
    assert now["balanced-accuracy"] > 0.78
    assert now["macro-roc-auc"] == pytest.approx(before["macro-roc-auc"], abs=0.005), "an offset ranks nobody anew"
    assert figures["as-released"]["teacher"]["accuracy"] > max(0.875, before["accuracy"]), "better than one answer"


def test_other_priors_need_no_other_images(sets: dict[str, LabelledSet]) -> None:
    np.testing.assert_array_equal(sets["as-released"].images, sets["equal"].images)
    assert sets["nothing"].priors == () and sets["equal"].priors == (0.5, 0.5)
    assert sets["as-released"].priors == pytest.approx((0.875, 0.125), abs=0.02), "one in eight, by noisy counts"


def main() -> None:
    """The table of docs/sps.md."""
    rows = []
    settings = EVALUATION.model_copy(update={"width": 32, "steps": 250, "augmentations": 5000})
    for epsilon, stages in ((1.0, 1), (1.0, 3), (8.0, 3)):
        for name, priors in DECLARED.items():
            found = figures_of(distilled(priors, epsilon, stages), settings)
            cells = [METRICS[metric].show(found[who][metric]) for who in ("teacher", "convnet") for metric in MEASURED]
            rows.append([f"{epsilon:g}", str(stages), name, *cells])
    header = [f"{who}: {metric}" for who in ("teacher", "ConvNet") for metric in MEASURED]
    sys.stdout.write(table(["ε", "stages", "declared", *header], rows) + "\n")


if __name__ == "__main__":
    main()
