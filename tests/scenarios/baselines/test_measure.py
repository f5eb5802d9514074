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
from dpdd.scenarios.baselines.dp_sgd import DPSGDSettings
from dpdd.scenarios.baselines.federated_heads import FederatedLogisticSettings
from dpdd.scenarios.baselines.names import TITLES
from dpdd.scenarios.baselines.private_finetune import FineTuneSettings
from dpdd.scenarios.baselines.private_linear import LogisticSettings
from dpdd.scenarios.baselines.real_records import JudgeSettings
from dpdd.scenarios.baselines.settings import BaselineSettings
from dpdd.scenarios.baselines.shared_sets import SharedSetsSettings
from dpdd.server.evaluation.learner_settings import ConvNetDDSettings
from tests.scenarios.small_images import stripes


@pytest.fixture
def task(small_world: str) -> measure.Task:
    return measure.prepare(backbones.load(small_world), stripes(600, 0), stripes(90, 1))


def test_sampled_baselines_are_accounted_as_sampled(task: measure.Task) -> None:
    few = LogisticSettings(steps=5, rate=0.2)
    small = FineTuneSettings(shift=0, batch=120, at_once=120, head=few)
    settings = BaselineSettings(logistic=few, finetune=small, minutes=1e-4)
    rows = measure.run(task, ["logistic", "finetune"], [(0.3, 1e-5)], seeds=1, settings=settings)
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
    settings = BaselineSettings(logistic=LogisticSettings(steps=200, rate=1.0, learning_rate=10.0))
    rows = measure.run(task, ["probe", "logistic", "lda", "ridge"], [(32.0, 1e-3)], seeds=1, settings=settings)
    assert [row.method for row in rows] == ["probe", "logistic", "lda", "ridge"]
    assert min(row.accuracy.mean for row in rows) > 0.85, rows
    repeated = measure.run(task, ["lda"], [(32.0, 1e-3)], seeds=1)
    assert repeated[0].accuracy == rows[2].accuracy


def test_the_vouched_epsilon_is_that_of_the_event(task: measure.Task) -> None:
    (row,) = measure.run(task, ["ridge"], [(0.5, 1e-6)], seeds=1)
    assert isinstance(row.event, Gaussian) and row.guarantee.epsilon == 0.5
    assert 0.499 < guarantee(row.event, 1e-6).epsilon <= 0.5


QUICK = BaselineSettings(
    dp_sgd=DPSGDSettings(local_steps=4, rate=0.1, width=4),
    dp_fedavg=DPSGDSettings(rounds=2, local_steps=2, rate=0.1, width=4),
    head=FederatedLogisticSettings(steps=6, local_steps=3, rate=1.0),
    per_class=20,
    feddm=SharedSetsSettings(signal="features", rounds=2, points=2, image_steps=2, train_steps=3, width=4, depth=2),
    fedlap=SharedSetsSettings(
        rounds=2, points=2, image_steps=2, path_steps=1, train_steps=3, rate=0.1, width=4, depth=2
    ),
    judge=JudgeSettings(convnet_dd=ConvNetDDSettings(runs=1, width=4, steps=3), images_per_class=4, epochs=1),
)
RELEASES = {"lda": 1, "ridge": 1, "fedpft": 1, "dp-fedavg-head": 6, "dp-sgd": 4, "dp-fedavg": 4, "fedlap-dp": 4}
"""How often a silo (or, for dp-sgd, the curator) releases noisy sums of its records, in all rounds."""


@pytest.fixture
def silos(small_world: str) -> measure.Task:
    shares = tuple(np.array_split(np.arange(600), 3))
    return measure.prepare(backbones.load(small_world), stripes(600, 0), stripes(90, 1), shares=shares)


def test_private_rows_are_accounted_for_all_rounds(silos: measure.Task) -> None:
    rows = measure.run(silos, RELEASES, [(1.0, 1e-5)], seeds=1, settings=QUICK)
    for row, (name, releases) in zip(rows, RELEASES.items(), strict=True):
        first = parts(row.event)[0]
        times = first.steps if isinstance(first, PoissonGaussian) else first.releases  # type: ignore[union-attr]
        assert (row.method, times) == (name, releases)
        assert guarantee(row.event, 1e-5).epsilon <= row.guarantee.epsilon <= 1.0 < 1.01 * row.guarantee.epsilon
        printed = row.as_json()
        assert printed["releasable"] is False and printed["neighbours"] and printed["delta"] == 1e-5


def test_rows_that_are_not_private_say_so(silos: measure.Task) -> None:
    open_rows = [name for name, baseline in measure.METHODS.items() if not baseline.private]
    assert open_rows == ["real", "real-subset", "alone", "probe", "feddm"]
    for row in measure.run(silos, open_rows, [(1.0, 1e-5), (8.0, 1e-5)], seeds=2, settings=QUICK):
        printed = row.as_json()
        assert printed["epsilon"] == float("inf") and printed["event"] == "no protection", "once, whatever the budgets"
        assert printed["releasable"] is False and printed["neighbours"] is None and not row.private
        assert len(row.accuracy.runs) == (1 if row.method == "probe" else 2)
        if row.method == "alone":
            assert row.scores["worst-silo"].mean <= row.accuracy.mean <= row.scores["best-silo"].mean


def test_every_row_has_a_title() -> None:
    assert list(TITLES) == list(measure.METHODS)


def test_noise_of_more_silos_costs_the_summed_statistics(small_world: str) -> None:
    backbone, seen = backbones.load(small_world), []
    for count in (1, 6):
        shares = tuple(np.array_split(np.arange(600), count))
        task = measure.prepare(backbone, stripes(600, 0), stripes(90, 1), shares=shares)
        seen.append(measure.run(task, ["lda", "fedpft"], [(0.05, 1e-5)], seeds=6))
    for one, six in zip(*seen, strict=True):
        assert one.event == six.event, "each silo has the noise that one alone would need"
        assert one.accuracy.mean > six.accuracy.mean
