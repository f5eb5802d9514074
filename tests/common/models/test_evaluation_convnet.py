"""The ConvNet that judges: as deep as the literature has it, and with a border it looks at every pixel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpdd.common.models.evaluation_convnet import EvaluationConvNet, depth_for


def test_depth_grows_by_one_for_every_doubling_from_64_pixels_on() -> None:
    depths = {8: 3, 28: 3, 32: 3, 63: 3, 64: 4, 96: 4, 127: 4, 128: 5, 255: 5, 256: 6}
    assert {side: depth_for((3, side, side)) for side in depths} == depths
    assert depth_for((1, 200, 64)) == 4, "the smaller side"


def test_grey_28_pixels_are_the_authors_network() -> None:
    """Their first convolution has a border of 3 zeros: 28 becomes 32, and 4 x 4 squares reach the classifier."""
    network = EvaluationConvNet((1, 28, 28), 10, 128, padded=True)
    head = network[-1]
    assert isinstance(head, nn.Linear) and head.in_features == 128 * 4 * 4
    images = torch.randn(2, 1, 28, 28)
    first = network[1]
    assert isinstance(first, nn.Conv2d)
    wide = nn.functional.conv2d(images, first.weight, first.bias, padding=3)
    torch.testing.assert_close(first(network[0](images)), wide)


@pytest.mark.parametrize(("shape", "depth"), [((1, 28, 28), 3), ((3, 33, 47), 3), ((3, 100, 64), 4), ((1, 5, 9), 3)])
def test_with_a_border_every_pixel_counts(shape: tuple[int, int, int], depth: int) -> None:
    torch.manual_seed(0)
    network = EvaluationConvNet(shape, 3, 4, depth, padded=True).double()
    images = torch.randn(1, *shape, dtype=torch.float64, requires_grad=True)
    network(images)[0, 0].backward()
    assert images.grad is not None and bool((images.grad.abs().sum(dim=(0, 1)) > 0).all())


def test_without_one_the_network_is_what_it_was() -> None:
    """Models that silos are sent, and released ones, have these weights by these names."""
    names = [f"{layer}.{part}" for layer in (0, 1, 4, 5, 8, 9) for part in ("weight", "bias")]
    network = EvaluationConvNet((1, 28, 28), 10, 8)
    assert list(network.state_dict()) == [*names, "13.weight", "13.bias"]
    assert EvaluationConvNet((1, 32, 32), 10, 8, padded=True).state_dict().keys() == network.state_dict().keys()
