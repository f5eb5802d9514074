"""Declared priors reach learners once: by their labels where these are soft, by a shift of scores else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.class_priors import adjusted
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.scoring import train_learners
from tests.server.evaluation.worlds import CONVNET, TEST, synthetic

HARD = LearnerSettings(labels="hard")


def of_sizes(*sizes: int, priors: tuple[float, ...] = ()) -> LabelledSet:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple("abc"[: len(sizes)])
    return LabelledSet(np.zeros((len(labels), 1, 8, 8), np.uint8), labels, names, priors=priors)


def test_a_calibrated_score_becomes_bayes_rule_for_the_declared_prior() -> None:
    """Two Gaussians at -1 and 1: from equal images of both, and from unequal ones."""

    def log_densities(x: Tensor) -> Tensor:
        return torch.stack([-0.5 * (x + 1.0) ** 2, -0.5 * (x - 1.0) ** 2], 1)

    def scores(learnt: Tensor, x: Tensor) -> Tensor:
        return log_densities(x) + learnt

    for sizes in ((10, 10), (4, 12)):
        learnt = torch.log(torch.tensor(sizes) / sum(sizes))
        for prior in ((0.5, 0.5), (0.875, 0.125), (1e-9, 1.0 - 1e-9)):
            learner = partial(scores, learnt)
            [found] = adjusted([learner], of_sizes(*sizes, priors=prior), HARD)
            x = torch.linspace(-3.0, 3.0, 50)
            expected = torch.softmax(log_densities(x) + torch.log(torch.tensor(prior)), 1)
            torch.testing.assert_close(torch.softmax(found(x), 1), expected)


def test_who_learns_from_the_teachers_labels_is_left_alone() -> None:
    classifiers = [torch.nn.Identity()]
    hard = of_sizes(3, 3, priors=(0.9, 0.1))
    soft = replace(hard, soft=np.full((6, 2), 0.5, np.float32))
    assert adjusted(classifiers, soft, LearnerSettings()) is classifiers
    assert adjusted(classifiers, replace(hard, priors=()), HARD) is classifiers
    assert adjusted(classifiers, soft, HARD) is not classifiers


def test_a_class_without_images_has_finite_scores() -> None:
    [found] = adjusted([torch.zeros_like], of_sizes(3, 0, 3, priors=(0.5, 1e-6, 0.5 - 1e-6)), HARD)
    assert bool(torch.isfinite(found(torch.zeros(2, 3))).all())


@pytest.mark.parametrize("rare", [0, 2])
def test_learners_get_it_from_the_set(rare: int) -> None:
    """A prior of almost nothing silences a class; equal ones change no answer."""
    dataset, images = synthetic(), torch.from_numpy(TEST.images).float() / 255.0
    settings = CONVNET.model_copy(update={"labels": "hard"})
    shares = np.full(3, 0.5 - 5e-13)
    shares[rare] = 1e-12

    def answers(priors: tuple[float, ...]) -> Tensor:
        [classifier] = train_learners(replace(dataset, priors=priors), settings, None, 0)["convnet"]
        with torch.inference_mode():
            return classifier(images)

    plain, equal = answers(()), answers((1 / 3, 1 / 3, 1 / 3))
    torch.testing.assert_close(equal.softmax(1), plain.softmax(1))
    assert not bool((answers(tuple(shares)).argmax(1) == rare).any()) and bool((plain.argmax(1) == rare).any())
