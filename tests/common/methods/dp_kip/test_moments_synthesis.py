"""Support sets from released sums: their kernel regression is the classifier in the releases, whatever the noise."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.kernels import centred, linear_weights
from dpdd.common.methods.dp_kip.moments_synthesis import SupportSetTask, synthesise
from dpdd.common.methods.dp_kip.settings import MomentsSettings
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.common.synthesis.statistics import Statistics
from tests.common.methods.sps import bars as world
from tests.common.methods.sps.bars import CLASSES, SHAPE, bars, embeddings_of, spec_for
from tests.common.methods.sps.released import statistics_of

backbone = world.backbone
RUN = RunDescription(("left", "middle", "right"), SHAPE, 1, images_per_class=6)
QUICK = MomentsSettings(steps=80, moment_weight=0.0, smoothness=0.0)


def settings_for(backbone: str) -> MethodSettings:
    return MethodSettings(backbone=backbone, features=6, picture=4, stages=2)


def released(backbone: str, noise: float = 0.0) -> list[Statistics]:
    """Both stages, the second asked with nothing known."""
    images, labels = bars(300)
    start = np.zeros((CLASSES, spec_for(backbone).embedding.dimensions), np.float32)  # type: ignore[union-attr]
    first = statistics_of(spec_for(backbone), images, labels, noise)
    return [first, statistics_of(spec_for(backbone, 1), images, labels, noise, {"teacher": start})]


def weights_of(backbone: str, dataset: LabelledSet, ridge: float = QUICK.ridge) -> Tensor:
    features = embeddings_of(spec_for(backbone), torch.from_numpy(dataset.images).float() / 255.0)
    labels = torch.from_numpy(dataset.labels if dataset.soft is None else dataset.soft)
    return linear_weights(features, centred(labels, CLASSES), ridge)


def accuracy(backbone: str, weights: Tensor) -> float:
    images, labels = bars(300, seed=3)
    return float(((embeddings_of(spec_for(backbone), images) @ weights.T).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("changes", [{}, {"target": "ridge"}, {"labels": "solved"}], ids=str)
def test_the_set_s_regression_is_the_classifier_in_the_releases(backbone: str, changes: dict[str, str]) -> None:
    settings = MomentsSettings(**{**QUICK.model_dump(), **changes})
    statistics = released(backbone)
    dataset = synthesise(statistics, settings_for(backbone), settings, RUN)
    assert dataset.images.shape == (18, *SHAPE) and dataset.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert (dataset.soft is not None) == (settings.labels == "solved")
    assert dataset.teacher is not None
    task = SupportSetTask(statistics, settings_for(backbone), settings, RUN)
    assert float(task.goal.loss(weights_of(backbone, dataset))) < 0.1
    assert accuracy(backbone, weights_of(backbone, dataset)) > 0.9


def test_images_are_made_for_the_labels_that_are_solved_for(backbone: str) -> None:
    """Not for hard ones, which would only be solved for when the images are finished."""
    few = MomentsSettings(steps=3)
    hard, solved = (
        synthesise(released(backbone), settings_for(backbone), few.model_copy(update={"labels": labels}), RUN)
        for labels in ("hard", "solved")
    )
    assert not np.array_equal(hard.images, solved.images)


def test_noise_that_makes_the_second_moment_indefinite_is_survived(backbone: str) -> None:
    statistics = released(backbone, noise=6.0)
    task = SupportSetTask(statistics, settings_for(backbone), QUICK, RUN)
    assert float(torch.linalg.eigvalsh(task.released.moments.second)[0]) < -1e-3
    dataset = synthesise(statistics, settings_for(backbone), QUICK, RUN)
    assert 0.0 <= float(task.goal.loss(weights_of(backbone, dataset))) < 0.2
    assert 20 < dataset.images.mean() < 235  # pictures still, none black or white


def test_the_goal_is_as_shrunk_as_the_teacher(backbone: str) -> None:
    """So that the ridge classifier is where the loss from moments is least."""
    settings = QUICK.model_copy(update={"target": "ridge"})
    task = SupportSetTask(released(backbone, noise=2.0), settings_for(backbone), settings, RUN)
    moments, goal = task.released.moments, task.goal
    joint = moments.means * moments.shares[:, None]
    joint = joint - joint.mean(0)
    weights = torch.linalg.solve((goal.root.T @ goal.root).double(), joint.T).T
    assert float(goal.loss(weights.float())) < 1e-4


def test_a_set_is_a_function_of_sums_and_settings(backbone: str, tmp_path: Path) -> None:
    quick = QUICK.model_copy(update={"steps": 3})
    runner = SynthesisRunner(folder=tmp_path)
    run = replace(RUN, runner=runner)
    first, again = (synthesise(released(backbone), settings_for(backbone), quick, run) for _ in range(2))
    np.testing.assert_array_equal(first.images, again.images)
    assert len(list(tmp_path.glob("*/batch-0000.safetensors"))) == 1
    others = (
        (released(backbone, 0.1), quick, run),
        (released(backbone), quick.model_copy(update={"ridge": 1e-2}), run),
        (released(backbone), quick, replace(run, public_seed=2)),
        (released(backbone), quick, replace(run, images_per_class=3)),
    )
    for statistics, settings, other in others:
        assert not np.array_equal(synthesise(statistics, settings_for(backbone), settings, other).images, first.images)
    assert len(list(tmp_path.glob("*/batch-0000.safetensors"))) == 1 + len(others)


def test_a_task_can_be_sent_to_another_process(backbone: str) -> None:
    task = SupportSetTask(released(backbone), settings_for(backbone), QUICK.model_copy(update={"steps": 2}), RUN)
    expected = task.goal.wanted
    sent = pickle.loads(pickle.dumps(task))
    torch.testing.assert_close(sent.goal.wanted, expected)


def test_priors_change_the_teacher_and_not_the_images(backbone: str) -> None:
    quick = QUICK.model_copy(update={"steps": 2})
    equal, skewed = (
        synthesise(released(backbone), settings_for(backbone), quick, replace(RUN, priors=priors))
        for priors in ("equal", {"left": 0.8, "middle": 0.1, "right": 0.1})
    )
    np.testing.assert_array_equal(equal.images, skewed.images)
    assert equal.teacher is not None and skewed.teacher is not None
    assert not np.array_equal(equal.teacher.weights, skewed.teacher.weights)


def test_it_asks_for_what_sps_asks_for() -> None:
    """Same settings, same layouts and costs; and something of the embedding must be released."""
    sps, kip = method("sps"), method("kip-moments")
    run = RunDescription(("a", "b"), (1, 28, 28), 1)
    settings = sps.settings({"stages": 3, "features": 40})
    assert kip.settings({"stages": 3, "features": 40}) == settings
    assert kip.stages(settings) == sps.stages(settings) == 3
    for stage in range(3):
        assert kip.layout(settings, run, stage) == sps.layout(settings, run, stage)
    assert kip.family == sps.family
    with pytest.raises(ConfigError, match="kip-moments needs moments of the image embedding"):
        kip.settings({"features": 0, "picture": 0, "thumbnail": 3})


def test_a_moment_weight_keeps_images_like_their_classes(backbone: str) -> None:
    """Without it, nothing but the classifier counts; with it, embeddings have the released class means, nearly."""
    statistics, distances, losses = released(backbone), [], []
    for weight in (0.0, 1.0):
        settings = QUICK.model_copy(update={"moment_weight": weight})
        dataset = synthesise(statistics, settings_for(backbone), settings, RUN)
        task = SupportSetTask(statistics, settings_for(backbone), settings, RUN)
        features = embeddings_of(spec_for(backbone), torch.from_numpy(dataset.images).float() / 255.0)
        means = features.unflatten(0, (CLASSES, -1)).mean(1)
        distances.append(float((means - task.released.moments.means).norm()))
        losses.append(float(task.goal.loss(weights_of(backbone, dataset))))
    assert distances[1] < 0.5 * distances[0]
    assert losses[1] < 0.2
