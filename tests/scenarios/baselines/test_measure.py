"""Rows of baselines: accounted as the event that was run, and honest about it."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone as backbones
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, parts
from dpdd.scenarios.baselines import measure
from dpdd.scenarios.baselines.private_finetune import FineTuneSettings
from dpdd.scenarios.baselines.private_linear import LogisticSettings
from tests.scenarios.small_images import stripes


@pytest.fixture
def task(small_world: str) -> measure.Task:
    return measure.prepare(backbones.load(small_world), stripes(600, 0), stripes(90, 1))


def test_sampled_baselines_are_accounted_as_sampled(task: measure.Task) -> None:
    few = LogisticSettings(steps=5, rate=0.2)
    small = FineTuneSettings(shift=0, batch=120, at_once=120, head=few)
    rows = measure.run(
        task, ["logistic", "finetune"], [(0.3, 1e-5)], seeds=1, logistic=few, finetune=small, minutes=1e-4
    )
    for row in rows:
        sampled = parts(row.event)[0]
        assert isinstance(sampled, PoissonGaussian) and sampled.rate == 0.2
        assert row.guarantee.accountant == "privacy-loss distribution"
        assert guarantee(row.event, 1e-5).epsilon <= row.guarantee.epsilon <= 0.3 < 1.01 * row.guarantee.epsilon
    assert len(parts(rows[0].event)) == 2 and len(parts(rows[1].event)) == 3


def test_what_was_never_trained_cannot_be_fine_tuned() -> None:
    nothing = LabelledImages(np.zeros((30, 1, 28, 28), np.uint8), np.arange(30) % 3, ("a", "b", "c"))
    scattering = measure.prepare(backbones.load("scatter28"), nothing, nothing)
    with pytest.raises(ConfigError, match="nothing to fine-tune"):
        measure.run(scattering, ["finetune"], [(1.0, 1e-5)], seeds=1)


def test_a_generous_budget_is_nearly_as_good_as_none(task: measure.Task) -> None:
    full = LogisticSettings(steps=200, rate=1.0, learning_rate=10.0)
    rows = measure.run(task, ["probe", "logistic", "lda", "ridge"], [(32.0, 1e-3)], seeds=1, logistic=full)
    assert [row.method for row in rows] == ["probe", "logistic", "lda", "ridge"]
    assert min(row.accuracy.mean for row in rows) > 0.85, rows
    repeated = measure.run(task, ["lda"], [(32.0, 1e-3)], seeds=1)
    assert repeated[0].accuracy == rows[2].accuracy


def test_the_vouched_epsilon_is_that_of_the_event(task: measure.Task) -> None:
    (row,) = measure.run(task, ["ridge"], [(0.5, 1e-6)], seeds=1)
    assert isinstance(row.event, Gaussian) and row.guarantee.epsilon == 0.5
    assert 0.499 < guarantee(row.event, 1e-6).epsilon <= 0.5
