"""Random networks in whole numbers: the same bits however sums are ordered, and close to the usual features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.models import integer_net
from dpdd.common.models.integer_net import integer_features
from dpdd.common.models.random_net import RandomNet, features


def network(shape: tuple[int, int, int], width: int, depth: int = 3) -> tuple[Tensor, ...]:
    return RandomNet.draw(4, 0, shape, width, depth, classes=10).kernels


def leaves(count: int, *shape: int) -> Tensor:
    return (torch.from_numpy(dead_leaves(count, *shape, seed=9)) * 255.0).round() / 255.0


def turned(values: Tensor, kernel: Tensor) -> Tensor:
    """The same convolution, its channels added the other way round and in two parts."""
    half = max(values.shape[1] // 2, 1)
    parts = [(values[:, :half], kernel[:, :half]), (values[:, half:], kernel[:, half:])]
    sums = [
        functional.unfold(images.flip(1), 3, padding=1).transpose(1, 2) @ weights.flip(1).flatten(1).T
        for images, weights in reversed(parts)
        if images.shape[1]
    ]
    return torch.stack(sums).sum(dim=0).transpose(1, 2).unflatten(2, values.shape[2:])


@pytest.mark.parametrize(("shape", "width"), [((1, 28, 28), 16), ((3, 20, 24), 96), ((2, 9, 15), 8)])
def test_the_order_of_sums_and_the_batch_leave_no_trace(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], width: int
) -> None:
    images, kernels = leaves(12, *shape), network(shape, width)
    found = integer_features(images, kernels)
    assert torch.equal(found, integer_features(images, kernels, batch=5))
    assert torch.equal(found, integer_features(images + 1e-6, kernels))  # an image is bytes
    monkeypatch.setattr(integer_net, "_convolved", turned)
    assert torch.equal(found, integer_features(images, kernels))


def test_sums_are_exact_for_the_widest_networks_and_the_worst_images() -> None:
    """If every weight and activation were at its limit; images of 224 pixels have 112 where 512 channels come in."""
    for width, pixels in ((64, 784), (512, 784), (512, 112**2)):
        drawn = torch.randn(50, width, 3, 3, generator=torch.Generator().manual_seed(1))
        kernel = integer_net._whole(drawn, integer_net._LARGEST_ACTIVATION, pixels)
        most = integer_net._LARGEST_ACTIVATION * int(kernel.abs().max()) * kernel[0].numel()
        assert 0 < most <= 2**24 and most**2 * pixels <= 2**53
        assert torch.equal(kernel, kernel.round())


@pytest.mark.parametrize(("shape", "width"), [((1, 28, 28), 32), ((3, 32, 32), 64)])
def test_they_are_close_to_the_usual_features(shape: tuple[int, int, int], width: int) -> None:
    images, kernels = leaves(30, *shape), network(shape, width)
    usual, found = features(images, kernels).double(), integer_features(images, kernels)
    assert found.dtype == torch.float64 and torch.equal(found * 2**12, (found * 2**12).round())
    apart = (found - usual).norm() / (usual - usual.mean(dim=0)).norm()
    assert apart < 0.08


def test_constant_images_and_dead_channels_give_zeros() -> None:
    kernels = network((1, 8, 8), 4, depth=2)
    flat = integer_features(torch.zeros(2, 1, 8, 8), kernels)
    assert not flat.any()
    dead = (kernels[0] * torch.tensor([0.0, 1.0, 1.0, 1.0])[:, None, None, None], kernels[1])
    assert torch.isfinite(integer_features(leaves(3, 1, 8, 8), dead)).all()


def test_a_convolution_that_leaves_the_whole_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    images, kernels = leaves(4, 1, 12, 12), network((1, 12, 12), 8, depth=2)
    found, exact = integer_features(images, kernels), functional.conv2d

    def rough(values: Tensor, kernel: Tensor, padding: int) -> Tensor:
        return exact(values, kernel, padding=padding) * (1.0 + 1e-6)

    monkeypatch.setattr(functional, "conv2d", rough)
    assert torch.equal(found, integer_features(images, kernels))
