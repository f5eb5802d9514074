"""From a product to scores: right labels help, everybody asked for is trained once, and one pass feeds all metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.models.backbone import Backbone
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet import convnets
from dpdd.server.evaluation.fine_tune import fine_tuned, together
from dpdd.server.evaluation.probe import probes
from dpdd.server.evaluation.scoring import described, evaluate, logits_of, scores, train_learners
from dpdd.server.evaluation.settings import EvaluationSection
from tests.server.evaluation.worlds import CLASSES, CONVNET, PROBE, TEST, pictures, synthetic, tiny_teacher, tune

Train = Callable[[LabelledSet, FeatureNetwork], list[Classifier]]
LEARNERS: dict[str, Train] = {
    "linear probe": lambda data, network: probes(data, network, PROBE, seed=0),
    "fine-tuning": lambda data, network: [*fine_tuned(data, network, tune(), seed=0)],
    "AdamW alone": lambda data, network: [*fine_tuned(data, network, tune(rho=0.0), seed=0)],
    "ensemble": lambda data, network: [together(fine_tuned(data, network, tune(runs=2), seed=0))],
    "ConvNet": lambda data, network: convnets(data, CONVNET, seed=0),
    "ConvNet, mixup": lambda data, network: convnets(data, CONVNET, seed=0, mixup=0.3),
}


def accuracy(classifiers: list[Classifier]) -> float:
    return scores(classifiers, TEST)["accuracy"].mean


@pytest.mark.parametrize("train", LEARNERS.values(), ids=LEARNERS)
def test_right_labels_help_and_wrong_ones_do_not(train: Train, backbone: FeatureNetwork) -> None:
    assert accuracy(train(synthetic(), backbone)) > 0.95
    assert accuracy(train(synthetic(lambda labels: (labels + 1) % 3), backbone)) < 0.05


@pytest.mark.parametrize("train", LEARNERS.values(), ids=LEARNERS)
def test_soft_labels_go_before_hard_ones(train: Train, backbone: FeatureNetwork) -> None:
    assert accuracy(train(synthetic(soft=0.8), backbone)) > 0.95, "its hard labels are wrong"
    assert accuracy(train(synthetic(soft=0.0), backbone)) < 0.05


EVERYBODY = ("convnet", "probe", "fine-tune", "ensemble")
ALL = EvaluationSection(
    runs=2,
    learners=EVERYBODY,
    width=8,
    steps=40,
    batch=32,
    learning_rate=0.01,
    probe=PROBE.probe,
    fine_tune=tune().fine_tune,
    augmentations=400,
)
QUICK = ALL.model_copy(update={"steps": 3, "fine_tune": tune(steps=3).fine_tune})


@pytest.mark.parametrize(
    ("changes", "kind", "turn"),
    [
        ({}, "teacher", 2),
        ({"labels": "soft"}, "soft", 0),
        ({"augmentations": 0}, "soft", 0),
        ({"labels": "hard"}, "hard", 1),
    ],
)
def test_everybody_learns_from_the_best_labels_that_are_allowed(
    changes: dict[str, object], kind: str, turn: int, public: Backbone, tmp_path: Path
) -> None:
    """The teacher, the soft labels and the hard ones each call a class another name: answers tell which were learnt."""
    everything = replace(synthetic(soft=0.9), teacher=tiny_teacher(public, tmp_path, turn=2))
    settings = ALL.model_copy(update=changes)
    trained = train_learners(everything, settings, public, seed=0)
    measured = {
        name: scores(each, LabelledImages(TEST.images, (TEST.labels + by) % 3, CLASSES))
        for name, each in trained.items()
        for by in (2 if name == "teacher" else turn,)
    }
    assert list(measured) == [*EVERYBODY, "teacher"]
    assert all(each["accuracy"].mean > 0.6 for each in measured.values()), measured
    shown = described(measured, everything, settings, public)
    assert list(shown) == ["accuracy"]
    shown = shown["accuracy"]
    assert [len(shown[name]["runs"]) for name in measured] == [2, 2, 2, 1, 1]
    assert {shown[name].get("labels") for name in EVERYBODY} == {kind} and "labels" not in shown["teacher"]
    assert [name for name in shown if shown[name].get("backbone") == "tiny"] == ["probe", "fine-tune", "ensemble"]


def test_learners_are_those_asked_for_and_networks_are_trained_once(public: Backbone) -> None:
    steps: list[str] = []
    trained = train_learners(synthetic(), QUICK, public, 0, lambda what, done, of: steps.append(what))
    assert list(trained) == list(EVERYBODY), "this set has no teacher"
    assert [steps.count(f"fine-tuning network {run} of 2") for run in (1, 2)] == [3, 3]
    batch = torch.from_numpy(TEST.images).float() / 255
    apart = torch.stack([network(batch).softmax(1) for network in trained["fine-tune"]])
    torch.testing.assert_close(trained["ensemble"][0](batch).softmax(1).float(), apart.mean(0))
    for few in (("convnet",), ("probe",), ("ensemble",), ()):
        assert tuple(train_learners(synthetic(), QUICK.model_copy(update={"learners": few}), public, 0)) == few
    reverse = QUICK.model_copy(update={"learners": EVERYBODY[::-1]})
    assert tuple(train_learners(synthetic(), reverse, public, 0)) == EVERYBODY


def test_learners_score_as_when_asked_one_by_one(public: Backbone) -> None:
    together_trained = train_learners(synthetic(), QUICK, public, seed=3)
    networks = fine_tuned(synthetic(), public.network, QUICK, 3)
    alone: dict[str, list[Classifier]] = {
        "convnet": convnets(synthetic(), QUICK, 3),
        "probe": probes(synthetic(), public.network, QUICK, 3),
        "fine-tune": [*networks],
        "ensemble": [together(networks)],
    }
    assert {name: scores(each, TEST) for name, each in together_trained.items()} == {
        name: scores(each, TEST) for name, each in alone.items()
    }


def test_one_pass_over_the_test_set_feeds_all_metrics() -> None:
    seen: list[int] = []

    def says_first(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return torch.tensor([[2.0, 1.0, 0.0]]).repeat(len(images), 1)

    large = TEST.subset(np.tile(np.arange(90), 6))
    measured = scores([says_first, says_first], large, ("macro-roc-auc", "balanced-accuracy", "accuracy"))
    assert seen == [500, 40], "the same classifier twice is asked once"
    third = pytest.approx((1 / 3, 1 / 3))
    assert {name: score.runs for name, score in measured.items()} == {
        "accuracy": third,
        "macro-roc-auc": (0.5, 0.5),
        "balanced-accuracy": third,
    }


def test_batches_are_joined_in_order() -> None:
    def brightness(images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(1, 2, 3))[:, None]

    expected = (torch.from_numpy(TEST.images).float() / 255).mean(dim=(1, 2, 3))
    np.testing.assert_allclose(logits_of(brightness, TEST, batch=7)[:, 0], expected, rtol=1e-6)


def test_metrics_json_keeps_accuracy_apart() -> None:
    asked = CONVNET.model_copy(update={"steps": 2, "metrics": ("macro-roc-auc", "balanced-accuracy")})
    shown = evaluate(synthetic(), TEST, asked, None, seed=0)
    assert list(shown) == ["accuracy", "metrics"] and list(shown["metrics"]) == ["macro-roc-auc", "balanced-accuracy"]
    assert shown["accuracy"]["convnet"].keys() == {"mean", "std", "runs", "labels"}
    for scores_by_learner in shown["metrics"].values():
        assert scores_by_learner["convnet"].keys() == {"mean", "std", "runs"}
    # All classes are equally frequent in the test set.
    assert shown["metrics"]["balanced-accuracy"]["convnet"]["mean"] == pytest.approx(
        shown["accuracy"]["convnet"]["mean"]
    )
    plain = evaluate(synthetic(), TEST, asked.model_copy(update={"metrics": ("accuracy",)}), None, seed=0)
    assert plain == {"accuracy": shown["accuracy"]}


def test_classes_without_test_records_are_named_and_left_out() -> None:
    settings = CONVNET.model_copy(update={"steps": 2})
    two = evaluate(synthetic(), TEST.subset(np.flatnonzero(TEST.labels < 2)), settings, None, seed=0)
    assert two["absent_classes"] == ["middle"] and list(two["metrics"]) == ["balanced-accuracy", "macro-roc-auc"]
    one = evaluate(synthetic(), TEST.subset(np.flatnonzero(TEST.labels == 1)), settings, None, seed=0)
    assert one["absent_classes"] == ["top", "middle"] and list(one["metrics"]) == ["balanced-accuracy"]
    assert "absent_classes" not in evaluate(synthetic(), TEST, settings, None, seed=0)


def test_a_model_is_its_only_learner(public: Backbone) -> None:
    network = EvaluationConvNet((1, 12, 12), classes=3, width=4)
    model = ReleasedModel.of(network, CLASSES, (1, 12, 12), width=4)
    assert list(train_learners(model, QUICK, public, seed=0)) == ["model"]
    shown = evaluate(model, TEST, QUICK.model_copy(update={"metrics": ("macro-roc-auc",)}), public, seed=0)
    expected = scores([network], TEST, ("macro-roc-auc",))
    assert shown == {
        "accuracy": {"model": expected["accuracy"].as_json()},
        "metrics": {"macro-roc-auc": {"model": expected["macro-roc-auc"].as_json()}},
    }


def test_a_test_set_that_does_not_fit_gets_one_sentence() -> None:
    images, labels = pictures(6, 1)
    with pytest.raises(ConfigError, match="4 classes, but the test set 3"):
        evaluate(LabelledSet(images, labels, (*CLASSES, "more")), TEST, CONVNET, None, seed=0)
    with pytest.raises(ConfigError, match="no test images"):
        evaluate(synthetic(), TEST.subset(np.arange(0)), CONVNET, None, seed=0)
