"""Which statistics a stage has: shares of the norm, and backbones that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps.settings import MethodSettings
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


def test_images_of_another_size_than_the_backbone_s_are_refused_before_anything_is_spent(backbone: str) -> None:
    with pytest.raises(ConfigError, match="takes images from 12 x 12 pixels up, not 11 x 12"):
        specification(settings_for(backbone), replace(RUN, shape=(1, 11, 12)), 0)
    assert specification(settings_for(backbone), replace(RUN, shape=(1, 13, 40)), 0).network is not None
    with pytest.raises(ConfigError, match="scatter28 is for images of 28 x 28 pixels, not 12 x 12"):
        specification(settings_for("scatter28"), RUN, 0)


@pytest.mark.parametrize(
    ("shape", "name", "features"),
    [((1, 28, 28), "scatter28", 512), ((3, 32, 32), "scatter32", 512), ((1, 17, 40), "scattering-1x17x40", 256)],
)
def test_a_backbone_and_features_are_chosen_for_images_where_nobody_named_them(
    shape: tuple[int, ...], name: str, features: int
) -> None:
    run = replace(RUN, shape=shape)
    resolved = method("sps").resolve(method("sps").settings({}), run, 1.0, 1e-5)
    assert (resolved.backbone, resolved.features) == (name, features)
    decoded = method("sps").settings(resolved.on_wire())
    assert method("sps").layout(decoded, run, 0) == method("sps").layout(MethodSettings(), run, 0)
    fewer = method("sps").resolve(MethodSettings(features=7), run, 1.0, 1e-5)
    assert (fewer.backbone, fewer.features) == (name, 7)


def test_a_network_with_fewer_features_gives_all_that_it_has(backbone: str) -> None:
    chosen = method("sps").resolve(MethodSettings(backbone=backbone), RUN, 1.0, 1e-5)
    assert (chosen.backbone, chosen.features) == (backbone, 16)
    small = method("sps").resolve(MethodSettings(), replace(RUN, shape=(1, 9, 40)), 1.0, 1e-5)
    assert small.features == 250 < 256


def test_records_that_are_no_images_have_no_backbone() -> None:
    with pytest.raises(ConfigError, match="records of shape"):
        method("sps").resolve(MethodSettings(), replace(RUN, shape=(14,)), 1.0, 1e-5)


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
