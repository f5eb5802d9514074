"""Scattering transforms for any size: against kymatio, record by record, and to the last gradient."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from kymatio.torch import Scattering2D
from torch import Tensor

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone
from dpdd.common.models.backbone import Provenance
from dpdd.common.models.pooled_scattering import (
    CANVAS,
    MOST_POSITIONS,
    PooledScatteringArchitecture,
    PooledScatteringNet,
)
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from tests.common.models.test_resampling import squares

SHAPES = [(1, 17, 40), (3, 64, 64), (3, 96, 96), (3, 300, 200), (1, 8, 8)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


@lru_cache(maxsize=8)
def network_for(shape: tuple[int, int, int], leaves: int = 20) -> PooledScatteringNet:
    network = PooledScatteringNet(PooledScatteringArchitecture(*shape)).eval().requires_grad_(False)
    canvas = network.canvas
    images = torch.from_numpy(dead_leaves(leaves, canvas.channels, canvas.height, canvas.width, seed=3))
    layers = super(PooledScatteringNet, network).raw_layers(images)
    network.set_constants(layers)
    network.whitening.fit(network.pooled(network.standardised(layers, None)))
    return network


def embedded(network: PooledScatteringNet, images: Tensor, features: int = 30) -> Tensor:
    return ImageEmbedding(features, 4, images.shape[1]).of(network, images, network.features(images))


@shapes
def test_equals_kymatio_on_images_made_small(shape: tuple[int, int, int]) -> None:
    """By other people's code from pixels to maps, and by plain NumPy from there on."""
    network = network_for(shape)
    canvas, cells = network.canvas, network.architecture.cells
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
    small = squares(images.double().numpy(), canvas.height, canvas.width)
    theirs = Scattering2D(canvas.scales, (canvas.height, canvas.width), L=canvas.angles)(
        torch.from_numpy(small).float()
    )
    first = 1 + canvas.scales * canvas.angles
    maps = np.concatenate([theirs[:, :, :first].flatten(1, 2).numpy(), theirs[:, :, first:].flatten(1, 2).numpy()], 1)
    mean, variance = (
        np.concatenate([getattr(norm, f"running_{what}").numpy() for norm in network.norms]) for what in ("mean", "var")
    )
    maps = (maps - mean[:, None, None]) / np.sqrt(variance)[:, None, None]

    def edges(size: int, parts: int) -> list[slice]:
        return [slice(part * size // parts, -(-(part + 1) * size // parts)) for part in range(parts)]

    down, across = (edges(size, parts) for size, parts in zip(maps.shape[2:], cells, strict=True))
    layout = np.stack([maps[:, :, row, column].mean((2, 3)) for row in down for column in across], axis=2)
    expected = np.concatenate(
        [maps.mean((2, 3)), np.sqrt(maps.var((2, 3)) + 1e-4), layout.reshape(len(maps), -1)], axis=1
    )
    ours = network.features(images).numpy()
    assert ours.shape == expected.shape == (3, network.whitening.dimensions)
    assert np.linalg.norm(ours - expected) / np.linalg.norm(expected) < 1e-3


@shapes
def test_maps_stay_few_and_small(shape: tuple[int, int, int]) -> None:
    architecture = PooledScatteringArchitecture(*shape)
    canvas = architecture.canvas
    assert max(canvas.height, canvas.width) == min(max(shape[1:]), CANVAS)
    assert canvas.positions <= MOST_POSITIONS and sum(canvas.maps) <= 61 and 2 <= canvas.scales <= 3
    assert abs(canvas.height / canvas.width - shape[1] / shape[2]) < 0.02


@shapes
@pytest.mark.parametrize("features", [30, 37])
def test_a_record_does_not_depend_on_its_neighbours(shape: tuple[int, int, int], features: int) -> None:
    network = network_for(shape)
    batch = torch.rand(64, *shape, generator=torch.Generator().manual_seed(2))
    others = torch.rand_like(batch)
    others[0], others[1], others[2] = torch.nan, torch.inf, 1e30
    kept = [5, 31, 32, 63]
    others[kept] = batch[kept]
    with torch.inference_mode():
        vectors = embedded(network, batch, features)
        assert torch.equal(vectors[kept], embedded(network, others, features)[kept])
        assert torch.equal(vectors, embedded(network, batch.roll(1, 0), features).roll(-1, 0)), "nor on its place"
        assert float(vectors.norm(dim=1).max()) <= 1.0 + 1e-6


def test_gradients_are_those_of_the_function() -> None:
    network = PooledScatteringNet(PooledScatteringArchitecture(1, 8, 70)).eval().double().requires_grad_(False)
    network.standardise(torch.rand(10, 1, 8, 70, dtype=torch.double))
    images = torch.rand(2, 1, 8, 70, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(network.features, (images,), fast_mode=True)


def test_a_flat_image_has_finite_gradients() -> None:
    network = network_for((1, 17, 40))
    images = torch.zeros(2, 1, 17, 40, requires_grad=True)
    embedded(network, images).square().sum().backward()
    assert images.grad is not None and bool(torch.isfinite(images.grad).all())


def test_hooks_see_the_maps() -> None:
    network = network_for((1, 17, 40))
    layers = network.layers_of(torch.rand(2, 1, 17, 40))
    assert [tuple(layer.shape) for layer in layers] == [(2, 9, 4, 10), (2, 16, 4, 10)]
    assert network.layer_channels == (9, 16) and network(torch.rand(2, 1, 17, 40)).shape == (2, 0)


@pytest.mark.parametrize("shape", [(1, 40, 17), (3, 17, 40), (1, 17, 41)])
def test_images_of_another_shape_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"\[1, 17, 40\]"):
        network_for((1, 17, 40)).features(torch.rand(1, *shape))


def test_round_trip(tmp_path: Path) -> None:
    network, images = network_for((1, 17, 40)), torch.rand(5, 1, 17, 40)
    card = backbone.save(tmp_path / "mine", network, Provenance("none", "none", 0.0, "none", 0))
    loaded = backbone.load(tmp_path / "mine", card.sha256)
    assert loaded.card.architecture == PooledScatteringArchitecture(1, 17, 40)
    torch.testing.assert_close(loaded.network.features(images), network.features(images))
    loaded.check_images((1, 17, 40))
    for shape in ((1, 40, 17), (3, 17, 40), (1, 34, 80), (4,)):
        with pytest.raises(ConfigError, match="mine is for images of"):
            loaded.check_images(shape)
