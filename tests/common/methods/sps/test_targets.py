"""What a batch should match: the data's own Gaussians from clean sums, over stages, without classes lost in noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.methods.sps.targets import mismatch, targets
from dpdd.common.synthesis.statistics import Statistics
from tests.common.methods.sps import halves as world
from tests.common.methods.sps.halves import class_mean_rows, halves, settings_for, spec_for
from tests.common.methods.sps.released import statistics_of

backbone = world.backbone


def test_targets_from_clean_sums_are_the_data_s_own_gaussians(backbone: str) -> None:
    spec = spec_for(settings_for(backbone))
    images, labels = halves(60)
    wanted = targets([statistics_of(spec, images, labels)], [spec], gamma=2.0)
    vectors, _ = spec.measure(images)
    assert mismatch(vectors, labels, spec, wanted, class_weight=10.0) < 1e-4
    assert mismatch(vectors, 1 - labels, spec, wanted, class_weight=10.0) > 0.1


def test_a_class_lost_in_noise_is_left_out(backbone: str) -> None:
    spec = spec_for(settings_for(backbone))
    images, _ = halves(30)
    statistics = statistics_of(spec, images, torch.zeros(30, dtype=torch.long), noise=0.05)
    wanted = targets([statistics], [spec], gamma=2.0)
    known = {name: gaussians.known.tolist() for name, gaussians in wanted.items()}
    assert known["class-thumbnail"] == [True, False] and known["global-layer-00"] == [True]


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("kind", ["good", "zero", "off"])
def test_re_centred_stages_give_the_same_gaussians(backbone: str, groups: int, kind: str) -> None:
    """Whatever a stage is asked with, as long as nothing is clipped: what was taken off is put back."""
    settings = settings_for(backbone, groups=groups, classes_per_group=1 if groups else 0, features=0, picture=0)
    specs = [spec_for(settings, stage) for stage in (0, 1)]
    images, labels = halves(60)
    stage_input = class_mean_rows(specs[0], images, labels)
    stage_input["rows"] = {
        "good": stage_input["rows"],
        "zero": 0.0 * stage_input["rows"],
        "off": stage_input["rows"] + 0.05,
    }[kind]
    first = statistics_of(specs[0], images, labels)
    later = statistics_of(specs[1], images, labels, stage_input=stage_input)
    assert kind != "good" or all(np.abs(later.sums[statistic.name]).max() < 1e-3 for statistic in specs[0].statistics)
    once, twice = (targets(*pair, gamma=2.0) for pair in (([first], specs[:1]), ([first, later], specs)))
    for name, gaussians in once.items():
        torch.testing.assert_close(twice[name].means, gaussians.means, atol=1e-5, rtol=0)
        torch.testing.assert_close(twice[name].covariances, gaussians.covariances, atol=1e-5, rtol=0)


def test_stages_are_weighed_by_their_precision(backbone: str) -> None:
    settings = settings_for(backbone, features=0, picture=0)
    specs = [spec_for(settings, stage) for stage in (0, 1)]
    images, labels = halves(60)
    stage_input = class_mean_rows(specs[0], images, labels)
    clean = [
        statistics_of(spec, images, labels, stage_input=c) for spec, c in zip(specs, ({}, stage_input), strict=True)
    ]
    for worse in (0, 1):
        noisy = list(clean)
        off = {name: array + (name != "count") for name, array in clean[worse].sums.items()}
        noisy[worse] = Statistics(off, 1e-2, 1, clean[worse].stage_input)
        noisy[1 - worse] = Statistics(clean[1 - worse].sums, 1e-7, 1, clean[1 - worse].stage_input)
        for name, gaussians in targets(noisy, specs, gamma=2.0).items():
            expected = targets(clean, specs, gamma=2.0)[name].means
            torch.testing.assert_close(gaussians.means, expected, atol=1e-4, rtol=0)
