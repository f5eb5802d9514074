"""Features of public backbones: whitened by the backbone's own map, and described as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dpdd.common.models import backbone as backbones
from dpdd.scenarios.baselines import public_features
from tests.scenarios.small_images import stripes, tiny_network


def test_features_are_whitened_by_the_backbone_s_own_map(small_world: str) -> None:
    loaded = backbones.load(small_world)
    images = stripes(300, 9).images
    features = public_features.extracted(loaded.network, images, "features")
    with torch.no_grad():
        plain = loaded.network.features(torch.from_numpy(images).float() / 255)
        expected = loaded.network.whitening(plain, loaded.network.whitening.dimensions)
    np.testing.assert_allclose(features, expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(features.mean(0), 0, atol=0.3)
    assert 0.5 < features[:, 0].std() < 1.5
    assert public_features.described(loaded) == "whitened by its own map (public data: stripes)"


def test_a_scattering_transform_gives_its_strongest_directions() -> None:
    loaded = backbones.load("scatter28")
    images = np.zeros((3, 1, 28, 28), np.uint8)
    assert public_features.extracted(loaded.network, images, "features").shape == (3, public_features.MOST)
    assert "512 strongest" in public_features.described(loaded) and "none" in public_features.described(loaded)


def test_features_without_a_map_are_said_to_be_as_they_are(tmp_path: Path) -> None:
    backbones.save(tmp_path / "raw", tiny_network("convnet"), backbones.Provenance("noise", "none", 0.0, "none", 0))
    assert "never fitted" in public_features.described(backbones.load(tmp_path / "raw"))
