"""Which statistics a stage has: shares of the norm, and backbones that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.sps.specification import specification
from tests.common.methods.sps import halves as world
from tests.common.methods.sps.halves import RUN, SHAPE, settings_for, spec_for

backbone = world.backbone


def test_the_class_part_weighs_as_much_as_the_global_part(backbone: str) -> None:
    for changes in ({}, {"features": 0, "picture": 0}, {"groups": 4, "classes_per_group": 1}, {"row_share": 0.7}):
        spec = spec_for(settings_for(backbone, **changes))
        parts = {True: 0.0, False: 0.0}
        for statistic in spec.statistics:
            parts[statistic.scope == "global"] += (
                spec.copies(statistic) * statistic.width * spec.weights[statistic.name] ** 2
            )
        assert parts[True] == pytest.approx(parts[False])
        share = 1.0 - spec.count_weight**2 if spec.embedding is None else spec.row_share
        assert parts[True] + parts[False] == pytest.approx(share)


def test_a_backbone_for_other_channels_is_refused(backbone: str) -> None:
    with pytest.raises(ConfigError, match="channels"):
        specification(settings_for(backbone), replace(RUN, shape=(3, 12, 12)), 0)


def test_more_features_than_the_backbone_has_are_refused(backbone: str) -> None:
    with pytest.raises(ConfigError, match="16 features, not 17"):
        spec_for(settings_for(backbone, features=17))


def test_a_spec_used_without_gradients_first_still_gives_them_later(backbone: str) -> None:
    spec = specification(settings_for(backbone), replace(RUN, public_seed=99), 0)
    with torch.inference_mode():
        spec.measure(torch.rand(2, *SHAPE))
    images = torch.rand(2, *SHAPE).requires_grad_(True)
    rows, embeddings = spec.measure(images)
    assert embeddings is not None
    (rows.square().sum() + embeddings[:, :3].sum()).backward()
    assert images.grad is not None and images.grad.abs().sum() > 0
