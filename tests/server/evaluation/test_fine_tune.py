"""Learning from a synthetic set with a public backbone: right labels help, BatchNorm stays, soft labels count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpdd.common.data.benchmarks import LabelledImages
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.models.backbone import Backbone, Provenance, load, save
from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.evaluation.convnet import Accuracy, accuracy, convnet_accuracy, labels_of, mix, targets
from dpdd.server.evaluation.public_network import (
    described,
    ensemble,
    fine_tune,
    fine_tuned,
    learners,
    linear_probe,
    public_backbone,
    together,
)
from dpdd.server.run.scenario import EvaluationSection, FineTuneSettings, ProbeSettings, Scenario, load_scenario

CLASSES = ("top", "bottom", "middle")
PROBE = EvaluationSection(probe=ProbeSettings(copies=2))


def tune(runs: int = 1, **changes: float) -> EvaluationSection:
    settings = {"steps": 25, "batch": 32, "learning_rate": 0.01} | changes
    return EvaluationSection(runs=runs, fine_tune=FineTuneSettings.model_validate(settings))


TUNE = tune()
CONVNET = EvaluationSection(runs=1, width=8, steps=60, batch=32, learning_rate=0.01)


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that differ in texture, which pooled features can tell apart."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    images = generator.integers(0, 60, (count, 1, 12, 12), dtype=np.uint8)
    images[labels == 0, :, ::2] += 150
    images[labels == 1, :, :, ::2] += 150
    images[labels == 2] += 75
    return images, labels


@pytest.fixture
def backbone() -> FeatureNetwork:
    torch.manual_seed(0)
    shape = ConvNetArchitecture(channels=1, height=12, width=12, classes=7, widths=(8, 12), pool_after=(1,))
    network = ConvNet(shape)
    network.train()
    for seed in range(20):  # so that the running statistics are something to lose
        network(torch.from_numpy(pictures(30, seed)[0]).float() / 255)
    return network.eval().requires_grad_(False)


def made(labels: Callable[[np.ndarray], np.ndarray] = lambda labels: labels, soft: float | None = None) -> LabelledSet:
    """60 images with `labels`; with `soft`, that much probability is on a right label, and hard labels are wrong."""
    images, right = pictures(60, 1)
    if soft is None:
        return LabelledSet(images, labels(right), CLASSES)
    rows = np.full((60, 3), (1 - soft) / 2, dtype=np.float32)
    rows[np.arange(60), right] = soft
    return LabelledSet(images, (right + 1) % 3, CLASSES, rows)


TEST = LabelledImages(*pictures(90, 2), CLASSES)


def probabilities(network: FeatureNetwork) -> torch.Tensor:
    with torch.no_grad():
        return network(torch.from_numpy(TEST.images).float() / 255).softmax(1)


Judge = Callable[[LabelledSet, FeatureNetwork], Accuracy]
JUDGES: dict[str, Judge] = {
    "linear probe": lambda data, network: linear_probe(data, network, TEST, PROBE, seed=0),
    "fine-tuning": lambda data, network: fine_tune(data, network, TEST, TUNE, seed=0),
    "AdamW alone": lambda data, network: fine_tune(data, network, TEST, tune(rho=0.0), seed=0),
    "ensemble": lambda data, network: ensemble(data, network, TEST, tune(runs=2), seed=0),
    "ConvNet": lambda data, network: convnet_accuracy(data, TEST, CONVNET, seed=0),
    "ConvNet, mixup": lambda data, network: convnet_accuracy(data, TEST, CONVNET, seed=0, mixup=0.3),
}


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_right_labels_help_and_wrong_ones_do_not(judge: Judge, backbone: FeatureNetwork) -> None:
    assert judge(made(), backbone).mean > 0.95
    assert judge(made(lambda labels: (labels + 1) % 3), backbone).mean < 0.05


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_soft_labels_go_before_hard_ones(judge: Judge, backbone: FeatureNetwork) -> None:
    assert judge(made(soft=0.8), backbone).mean > 0.95, "its hard labels are wrong"
    assert judge(made(soft=0.0), backbone).mean < 0.05


def test_certain_soft_labels_are_hard_labels(backbone: FeatureNetwork) -> None:
    images, labels = pictures(30, 1)
    hard = LabelledSet(images, labels, CLASSES)
    soft = LabelledSet(images, labels, CLASSES, np.eye(3, dtype=np.float32)[labels])
    one, two = (probabilities(fine_tuned(data, backbone, tune(steps=4), seed=1)[0]) for data in (hard, soft))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_fine_tuned_networks_are_as_sure_as_their_labels(backbone: FeatureNetwork) -> None:
    sure = {
        soft: float(probabilities(fine_tuned(made(soft=soft), backbone, TUNE, 0)[0]).amax(1).mean())
        for soft in (0.6, 0.95)
    }
    assert abs(sure[0.6] - 0.6) < 0.1 and sure[0.95] > 0.8


@pytest.mark.parametrize("rho", [0.0, 0.05])
def test_fine_tuning_leaves_batchnorm_statistics_and_the_backbone_alone(rho: float, backbone: FeatureNetwork) -> None:
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    settings = tune(steps=3, rho=rho)
    after = fine_tuned(made(), backbone, settings, seed=0)[0].state_dict()
    assert all(tensor.equal(before[name]) for name, tensor in backbone.state_dict().items())
    running = [name for name in before if "running" in name or "tracked" in name or name.startswith("whitening")]
    assert len(running) == 12 and all(after[name].equal(before[name]) for name in running)
    learnt = [name for name in before if name not in running and not name.startswith("head")]
    assert learnt and all(not after[name].equal(before[name]) for name in learnt), "all other weights move"


def test_results_repeat_for_a_seed_and_differ_between_runs(backbone: FeatureNetwork) -> None:
    settings = tune(runs=2, steps=3)
    state = torch.random.get_rng_state()
    first = [probabilities(network) for network in fine_tuned(made(), backbone, settings, seed=4)]
    assert torch.random.get_rng_state().equal(state)
    torch.rand(3)
    again = [probabilities(network) for network in fine_tuned(made(), backbone, settings, seed=4)]
    assert first[0].equal(again[0]) and first[1].equal(again[1]) and not first[0].equal(first[1])
    scores = [linear_probe(made(), backbone, TEST, PROBE, seed=4).runs for _ in range(2)]
    assert scores[0] == scores[1]


def test_an_ensemble_averages_probabilities() -> None:
    # Means say 0, 2; a vote would say 1, 2, the smallest probability 0, 1, a mean of logits 1, 1.
    chances = [
        [[0.979, 0.02, 0.001], [0.9, 0.099, 0.001]],
        [[0.06, 0.5, 0.44], [0.05, 0.3, 0.65]],
        [[0.06, 0.5, 0.44], [0.05, 0.3, 0.65]],
    ]
    logits = [torch.tensor(rows).log() + 3.0 for rows in chances]
    members = [lambda images, answer=answer: answer for answer in logits]
    two = LabelledImages(TEST.images[:2], np.array([0, 2]), CLASSES)
    assert accuracy(members, two).runs == (0.5, 0.5, 0.5)
    assert accuracy([together(members)], two).runs == (1.0,)
    torch.testing.assert_close(together(members)(torch.rand(2, 1, 12, 12)), torch.tensor(chances).mean(0))


def test_mixing_keeps_images_and_labels_together() -> None:
    torch.manual_seed(1)
    labels = torch.tensor([0, 1, 2])
    images = torch.eye(3).view(3, 3, 1, 1)
    blended, wanted = mix(images, labels, 3, strength=1.0)
    torch.testing.assert_close(blended.view(3, 3), wanted)
    torch.testing.assert_close(wanted.sum(1), torch.ones(3))
    assert not wanted.equal(torch.eye(3))
    assert mix(images, torch.full((3, 3), 1 / 3), 3, 1.0)[1].allclose(torch.tensor(1 / 3))


def test_an_augmentation_of_ones_own() -> None:
    seen = []

    def watch(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return images

    convnet_accuracy(made(), TEST, CONVNET.model_copy(update={"steps": 3}), seed=0, augmentation=watch)
    assert seen == [32, 32, 32]


@pytest.mark.parametrize(
    "soft, complaint",
    [
        (np.ones((60, 2), np.float32) / 2, r"\(60, 3\)"),
        (np.ones((60, 3), np.float32), "add up to 1"),
        (np.tile(np.float32([2, -1, 0]), (60, 1)), "from 0"),
        (np.full((60, 3), np.nan, np.float32), "not probabilities"),
    ],
)
def test_soft_labels_must_be_probabilities(soft: np.ndarray, complaint: str) -> None:
    images, labels = pictures(60, 1)
    with pytest.raises(DataError, match=complaint):
        targets(LabelledSet(images, labels, CLASSES, soft))


def test_sets_that_do_not_fit_get_one_sentence(backbone: FeatureNetwork) -> None:
    images, labels = pictures(6, 1)
    with pytest.raises(ConfigError, match=r"3 channels.*made for 1"):
        fine_tune(LabelledSet(images.repeat(3, 1), labels, CLASSES), backbone, TEST, TUNE, seed=0)
    with pytest.raises(ConfigError, match="4 classes"):
        linear_probe(LabelledSet(images, labels, (*CLASSES, "more")), backbone, TEST, PROBE, seed=0)
    with pytest.raises(ConfigError, match="no synthetic images"):
        ensemble(LabelledSet(images[:0], labels[:0], CLASSES), backbone, TEST, TUNE, seed=0)
    with pytest.raises(ValidationError):
        FineTuneSettings(steps=0)
    with pytest.raises(ValidationError):
        ProbeSettings.model_validate({"copys": 2})


# All that a scenario asks for


@pytest.fixture
def public(backbone: FeatureNetwork, tmp_path: Path) -> Backbone:
    """The same network as a file, which a teacher can name."""
    with torch.no_grad():
        backbone.whitening.fit(backbone.features(torch.from_numpy(pictures(300, 3)[0]).float() / 255))
    save(tmp_path / "tiny", backbone, Provenance("noise", "none", 0.0, "none", 0))
    return load(tmp_path / "tiny")


def teacher(public: Backbone, folder: Path, turn: int) -> Teacher:
    """Ridge regression on embeddings of real pictures, in which every class is called the one `turn` after it."""
    images, labels = pictures(300, 4)
    inputs = torch.from_numpy(images).float() / 255
    embedding = ImageEmbedding(features=6, side=0, channels=1)
    with torch.no_grad():
        x = embedding.of(public.network, inputs, public.network.features(inputs)).double()
    y = torch.eye(3, dtype=torch.float64)[torch.from_numpy((labels + turn) % 3)]
    weights = torch.linalg.solve(x.T @ x + 1e-3 * torch.eye(7), x.T @ y).T
    return Teacher(20 * weights.float().numpy(), str(folder / "tiny"), public.card.sha256, embedding)


EVERYBODY = ("convnet", "probe", "fine-tune", "ensemble")
ALL = EvaluationSection(
    runs=2,
    downstream=EVERYBODY,
    width=8,
    steps=40,
    batch=32,
    learning_rate=0.01,
    probe=PROBE.probe,
    fine_tune=TUNE.fine_tune,
    lessons=400,
)
QUICK = ALL.model_copy(update={"steps": 3, "fine_tune": tune(steps=3).fine_tune})


@pytest.mark.parametrize(
    ("changes", "kind", "turn"),
    [
        ({}, "lessons", 2),
        ({"labels": "soft"}, "soft", 0),
        ({"lessons": 0}, "soft", 0),
        ({"labels": "hard"}, "hard", 1),
    ],
)
def test_everybody_learns_from_the_best_labels_that_are_allowed(
    changes: dict[str, object], kind: str, turn: int, public: Backbone, tmp_path: Path
) -> None:
    """The teacher, the soft labels and the hard ones each call a class another name: answers tell which were learnt."""
    everything = replace(made(soft=0.9), teacher=teacher(public, tmp_path, turn=2))
    settings = ALL.model_copy(update=changes)
    assert labels_of(everything, settings) == kind
    found = learners(everything, settings, public, seed=0)
    scores = {
        name: accuracy(each, LabelledImages(TEST.images, (TEST.labels + by) % 3, CLASSES))
        for name, each in found.items()
        for by in (2 if name == "teacher" else turn,)
    }
    assert list(scores) == [*EVERYBODY, "teacher"]
    assert all(score.mean > 0.6 for score in scores.values()), scores
    shown = described(scores, everything, settings, public)
    assert [len(shown[name]["runs"]) for name in scores] == [2, 2, 2, 1, 1]
    assert {shown[name].get("labels") for name in EVERYBODY} == {kind} and "labels" not in shown["teacher"]
    assert [name for name in shown if shown[name].get("backbone") == "tiny"] == ["probe", "fine-tune", "ensemble"]


def test_a_set_is_learnt_from_with_what_it_has(public: Backbone, tmp_path: Path) -> None:
    guide = teacher(public, tmp_path, turn=0)
    assert labels_of(made(), ALL) == "hard" == labels_of(made(), ALL.model_copy(update={"labels": "soft"}))
    assert labels_of(made(soft=0.9), ALL) == "soft" and labels_of(replace(made(), teacher=guide), ALL) == "lessons"
    assert labels_of(replace(made(), teacher=guide), ALL.model_copy(update={"labels": "soft"})) == "hard"


def test_learners_are_those_asked_for_and_networks_are_trained_once(public: Backbone) -> None:
    steps: list[str] = []
    found = learners(made(), QUICK, public, 0, lambda what, done, of: steps.append(what))
    assert list(found) == list(EVERYBODY), "this set has no teacher"
    assert [steps.count(f"fine-tuning network {run} of 2") for run in (1, 2)] == [3, 3]
    batch = torch.from_numpy(TEST.images).float() / 255
    apart = torch.stack([network(batch).softmax(1) for network in found["fine-tune"]])
    torch.testing.assert_close(found["ensemble"][0](batch), apart.mean(0))
    for few in (("convnet",), ("probe",), ("ensemble",), ()):
        assert tuple(learners(made(), QUICK.model_copy(update={"downstream": few}), public, 0)) == few


def test_learners_score_as_when_asked_one_by_one(public: Backbone) -> None:
    found = {name: accuracy(each, TEST) for name, each in learners(made(), QUICK, public, seed=3).items()}
    assert found == {
        "convnet": convnet_accuracy(made(), TEST, QUICK, 3),
        "probe": linear_probe(made(), public.network, TEST, QUICK, 3),
        "fine-tune": fine_tune(made(), public.network, TEST, QUICK, 3),
        "ensemble": ensemble(made(), public.network, TEST, QUICK, 3),
    }


def scenario(method: str = "dp-merf", dataset: str = "fashion-slice", **evaluation: object) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "asks",
            "data": {"dataset": dataset},
            "method": {"name": method, "settings": {"backbone": "scatter28"} if method == "sps" else {}},
            "evaluation": evaluation,
        }
    )


def test_where_probe_and_fine_tuning_start_from() -> None:
    def name(**asked: object) -> str | None:
        found = public_backbone(scenario(**asked))
        return None if found is None else found.card.name

    assert name(method="sps", downstream=["convnet", "probe"]) == "scatter28", "the method's own"
    assert name(method="sps", downstream=["fine-tune"], backbone="gray28") == "gray28"
    assert name(method="dp-merf", downstream=["ensemble"], runs=2, backbone="gray28") == "gray28"
    assert name(method="dp-merf") is None and name(method="dp-merf", downstream=["probe"], runs=0) is None
    assert load_scenario("cifar10-5-silos").evaluation.downstream == ("convnet", "probe")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (
            {"method": "dp-merf", "downstream": ["probe"]},
            r"asks for probe.*dp-merf has no.*evaluation\.backbone.*gray28",
        ),
        (
            {"method": "sps", "downstream": ["probe", "fine-tune"]},
            "asks for fine-tune.*scatter28.*nothing to fine-tune",
        ),
        (
            {"method": "sps", "downstream": ["ensemble"], "runs": 2},
            "asks for ensemble.*scatter28.*nothing to fine-tune",
        ),
        ({"method": "sps", "downstream": ["probe"], "backbone": "rgb32"}, "1 channels.*made for 3"),
        ({"method": "sps", "downstream": ["probe"], "backbone": "gray82"}, "no backbone 'gray82'"),
        (
            {"method": "sps", "downstream": ["probe"], "backbone": "rgb32", "dataset": "tinyimagenet32"},
            "rgb32 was trained on tinyimagenet32",
        ),
    ],
)
def test_a_backbone_that_does_not_do_is_named_in_one_sentence(asked: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as error:
        public_backbone(scenario(**asked))
    assert "\n" not in str(error.value)


def test_a_scattering_transform_for_another_size_is_refused(tmp_path: Path) -> None:
    from dpdd.common.models.scattering import ScatteringArchitecture, ScatteringNet

    network = ScatteringNet(ScatteringArchitecture(channels=1, height=16, width=16))
    save(tmp_path / "small", network, Provenance("none", "none", 0.0, "none", 0))
    with pytest.raises(ConfigError, match=r"\[1, 16, 16\]"):
        public_backbone(scenario(method="sps", downstream=["probe"], backbone=str(tmp_path / "small")))


def test_an_ensemble_of_one_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least two networks"):
        EvaluationSection(downstream=("ensemble",), runs=1)
    assert EvaluationSection(downstream=("ensemble",), runs=0).runs == 0
    with pytest.raises(ValidationError):
        EvaluationSection.model_validate({"downstream": ["convnet", "resnet"]})
    with pytest.raises(ValidationError):
        EvaluationSection.model_validate({"labels": "firm"})
