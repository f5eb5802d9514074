"""Learning from a synthetic set with a public backbone: right labels help, BatchNorm stays, soft labels count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpdd.common.datasets import LabelledImages
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
from dpdd.common.models.tapped import FeatureNet
from dpdd.common.scenario import EvaluationSection
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.server import downstream
from dpdd.server.downstream import (
    FineTuneSettings,
    ProbeSettings,
    alone,
    ensemble,
    fine_tune,
    fine_tuned,
    linear_probe,
    probabilities,
    together,
)
from dpdd.server.evaluate import Accuracy, convnet_accuracy, mix, targets

CLASSES = ("top", "bottom", "middle")
PROBE = ProbeSettings(copies=2)
TUNE = FineTuneSettings(steps=25, batch=32, learning_rate=0.01)
CONVNET = EvaluationSection(runs=1, width=8, steps=30, batch=32, learning_rate=0.01)


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
def backbone() -> FeatureNet:
    torch.manual_seed(0)
    shape = ConvNetArchitecture(channels=1, height=12, width=12, classes=7, widths=(8, 12), pool_after=(1,))
    network = ConvNet(shape)
    network.train()
    for seed in range(20):  # so that the running statistics are something to lose
        network(torch.from_numpy(pictures(30, seed)[0]).float() / 255)
    return network.eval().requires_grad_(False)


def made(labels: Callable[[np.ndarray], np.ndarray] = lambda labels: labels, soft: float | None = None) -> SyntheticSet:
    """60 images with `labels`; with `soft`, that much probability is on a right label, and hard labels are wrong."""
    images, right = pictures(60, 1)
    if soft is None:
        return SyntheticSet(images, labels(right), CLASSES)
    rows = np.full((60, 3), (1 - soft) / 2, dtype=np.float32)
    rows[np.arange(60), right] = soft
    return SyntheticSet(images, (right + 1) % 3, CLASSES, rows)


TEST = LabelledImages(*pictures(90, 2), CLASSES)

Judge = Callable[[SyntheticSet, FeatureNet], Accuracy]
JUDGES: dict[str, Judge] = {
    "linear probe": lambda data, network: linear_probe(data, network, TEST, PROBE, seed=0),
    "fine-tuning": lambda data, network: fine_tune(data, network, TEST, TUNE, seed=0),
    "AdamW alone": lambda data, network: fine_tune(data, network, TEST, TUNE.model_copy(update={"rho": 0.0}), seed=0),
    "ensemble": lambda data, network: ensemble(data, network, TEST, TUNE.model_copy(update={"runs": 2}), seed=0),
    "ConvNet": lambda data, network: convnet_accuracy(data, TEST, CONVNET, seed=0),
    "ConvNet, mixup": lambda data, network: convnet_accuracy(data, TEST, CONVNET, seed=0, mixup=0.3),
}


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_right_labels_help_and_wrong_ones_do_not(judge: Judge, backbone: FeatureNet) -> None:
    assert judge(made(), backbone).mean > 0.95
    assert judge(made(lambda labels: (labels + 1) % 3), backbone).mean < 0.05


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_soft_labels_go_before_hard_ones(judge: Judge, backbone: FeatureNet) -> None:
    assert judge(made(soft=0.8), backbone).mean > 0.95, "its hard labels are wrong"
    assert judge(made(soft=0.0), backbone).mean < 0.05


def test_certain_soft_labels_are_hard_labels(backbone: FeatureNet) -> None:
    images, labels = pictures(30, 1)
    hard = SyntheticSet(images, labels, CLASSES)
    soft = SyntheticSet(images, labels, CLASSES, np.eye(3, dtype=np.float32)[labels])
    few = TUNE.model_copy(update={"steps": 4})
    one, two = (probabilities(fine_tuned(data, backbone, few, seed=1)[0], TEST) for data in (hard, soft))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_fine_tuned_networks_are_as_sure_as_their_labels(backbone: FeatureNet) -> None:
    sure = {
        soft: float(probabilities(fine_tuned(made(soft=soft), backbone, TUNE, 0)[0], TEST).amax(1).mean())
        for soft in (0.6, 0.95)
    }
    assert abs(sure[0.6] - 0.6) < 0.1 and sure[0.95] > 0.8


@pytest.mark.parametrize("rho", [0.0, 0.05])
def test_fine_tuning_leaves_batchnorm_statistics_and_the_backbone_alone(rho: float, backbone: FeatureNet) -> None:
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    settings = TUNE.model_copy(update={"steps": 3, "rho": rho})
    after = fine_tuned(made(), backbone, settings, seed=0)[0].state_dict()
    assert all(tensor.equal(before[name]) for name, tensor in backbone.state_dict().items())
    running = [name for name in before if "running" in name or "tracked" in name or name.startswith("whitening")]
    assert len(running) == 12 and all(after[name].equal(before[name]) for name in running)
    learnt = [name for name in before if name not in running and not name.startswith("head")]
    assert learnt and all(not after[name].equal(before[name]) for name in learnt), "all other weights move"


def test_results_repeat_for_a_seed_and_differ_between_runs(backbone: FeatureNet) -> None:
    settings = TUNE.model_copy(update={"steps": 3, "runs": 2})
    state = torch.random.get_rng_state()
    first = [probabilities(network, TEST) for network in fine_tuned(made(), backbone, settings, seed=4)]
    assert torch.random.get_rng_state().equal(state)
    torch.rand(3)
    again = [probabilities(network, TEST) for network in fine_tuned(made(), backbone, settings, seed=4)]
    assert first[0].equal(again[0]) and first[1].equal(again[1]) and not first[0].equal(first[1])
    scores = [linear_probe(made(), backbone, TEST, PROBE, seed=4).runs for _ in range(2)]
    assert scores[0] == scores[1]


def test_an_ensemble_averages_probabilities(backbone: FeatureNet, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = fine_tuned(made(), backbone, TUNE.model_copy(update={"steps": 1, "runs": 3}), seed=0)
    assert torch.allclose(probabilities(networks[0], TEST).sum(1), torch.ones(90))
    # Means say 0, 2; a vote would say 1, 2, and the smallest probability 0, 1.
    answers = {
        id(networks[0]): [[0.98, 0.02, 0.0], [0.9, 0.1, 0.0]],
        id(networks[1]): [[0.06, 0.5, 0.44], [0.05, 0.3, 0.65]],
        id(networks[2]): [[0.06, 0.5, 0.44], [0.05, 0.3, 0.65]],
    }
    monkeypatch.setattr(downstream, "probabilities", lambda network, test: torch.tensor(answers[id(network)]))
    two = LabelledImages(TEST.images[:2], np.array([0, 2]), CLASSES)
    assert alone(networks, two).runs == (0.5, 0.5, 0.5)
    assert together(networks, two).runs == (1.0,)


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
        targets(SyntheticSet(images, labels, CLASSES, soft))


def test_sets_that_do_not_fit_get_one_sentence(backbone: FeatureNet) -> None:
    images, labels = pictures(6, 1)
    with pytest.raises(ConfigError, match=r"3 channels.*made for 1"):
        fine_tune(SyntheticSet(images.repeat(3, 1), labels, CLASSES), backbone, TEST, TUNE, seed=0)
    with pytest.raises(ConfigError, match="4 classes"):
        linear_probe(SyntheticSet(images, labels, (*CLASSES, "more")), backbone, TEST, PROBE, seed=0)
    with pytest.raises(ConfigError, match="no synthetic images"):
        ensemble(SyntheticSet(images[:0], labels[:0], CLASSES), backbone, TEST, TUNE, seed=0)
    with pytest.raises(ValidationError):
        FineTuneSettings(steps=0)
    with pytest.raises(ValidationError):
        ProbeSettings.model_validate({"copys": 2})
