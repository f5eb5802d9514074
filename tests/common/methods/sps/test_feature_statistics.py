"""The spec of statistics, against a plain look at all layers of the network at once."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.sps.feature_statistics import (
    THUMBNAIL,
    FeatureStatistics,
    Statistic,
    make_groups,
    moments,
    unpack,
)
from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
from dpdd.common.models.feature_network import LayerHook
from dpdd.common.randomness import gaussians

ARCHITECTURE = ConvNetArchitecture(channels=1, height=40, width=40, classes=3, widths=(4, 6, 8), pool_after=(1, 2))
ROWS = (
    Statistic(0, 5, "global"),
    Statistic(1, 5, "global"),
    Statistic(2, 5, "global"),
    Statistic(1, 5, "class"),
    Statistic(2, 3, "class"),
    Statistic(THUMBNAIL, 9, "class"),
)


class WatchedNet(ConvNet):
    """Sees to it that every layer is gone before the next one is shown."""

    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        shown: list[weakref.ref[Tensor]] = []

        def watched(layer: Tensor) -> None:
            assert hook is not None and not any(layer() is not None for layer in shown)
            shown.append(weakref.ref(layer))
            hook(layer)

        return super().features(images, watched)


def spec(rows: tuple[Statistic, ...], network: ConvNet) -> FeatureStatistics:
    return FeatureStatistics(rows, network.eval(), classes=3, seed=5, clip=1.0, count_weight=0.1)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(7, 1, 40, 40, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rows", [ROWS, ROWS[::-1], ROWS[2:5], ROWS[5:]], ids=["all", "backwards", "some", "thumbnail"])
def test_rows_are_the_moments_of_their_own_layers(rows: tuple[Statistic, ...], images: Tensor) -> None:
    torch.manual_seed(0)
    measured = spec(rows, ConvNet(ARCHITECTURE))
    with torch.no_grad():
        vectors, _ = measured.measure(images)
        layers = measured.network.layers_of(images)
    assert vectors.shape == (7, sum(statistic.width for statistic in rows))
    for statistic in rows:
        if statistic.place == THUMBNAIL:
            z = functional.adaptive_avg_pool2d(images, 3).flatten(1)[:, :, None].double()
        else:
            layer = layers[statistic.place].double()
            stride = max(1, round(layer.shape[2] / math.sqrt(200)))
            shape = (statistic.dimensions, layer.shape[1])
            drawn = torch.from_numpy(gaussians(5, f"sps projection {statistic.place} {statistic.dimensions}", shape))
            places = layer[:, :, ::stride, ::stride].flatten(2)
            z = 2.0 * torch.sigmoid(drawn / math.sqrt(layer.shape[1]) @ places) - 1.0
        upper = torch.triu(torch.ones(statistic.dimensions, statistic.dimensions, dtype=torch.bool))
        second = torch.einsum("nip,njp->nij", z, z) / z.shape[2]
        expected = torch.cat([z.mean(2), second[:, upper]], 1) * measured.weights[statistic.name]
        torch.testing.assert_close(
            vectors[:, measured.columns[statistic.name]].double(), expected, rtol=1e-4, atol=1e-6
        )


def test_no_layer_is_kept_until_the_next(images: Tensor) -> None:
    """A silo's pass is a walk through memory: kept layers would be most of its time."""
    measured = spec(ROWS, WatchedNet(ARCHITECTURE))
    with torch.inference_mode():
        measured.measure(images)


def test_gradients_reach_the_images(images: Tensor) -> None:
    pixels = images.clone().requires_grad_(True)
    vectors, _ = spec(ROWS, ConvNet(ARCHITECTURE)).measure(pixels)
    vectors.square().sum().backward()
    assert pixels.grad is not None and (pixels.grad.abs().amax((1, 2, 3)) > 0).all()


def test_moments_and_unpack_are_inverse() -> None:
    z = torch.randn(3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    means, second = unpack(moments(z), 5)
    torch.testing.assert_close(means, z.mean(2))
    torch.testing.assert_close(second, torch.einsum("nip,njp->nij", z, z) / 7)


def test_groups_are_balanced_and_impossible_ones_refused() -> None:
    groups = make_groups(10, 20, 5, seed=4)
    assert len(groups.members) == 20 and all(len(set(m)) == 5 for m in groups.members)
    assert {len(g) for g in groups.of_class(10)} == {10}
    with pytest.raises(ValueError, match="balanced"):
        make_groups(10, 3, 4, seed=1)
