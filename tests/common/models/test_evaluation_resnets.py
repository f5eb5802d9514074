"""ResNet-18 and DenseNet-121 of the literature's judges: as published but for the stem, and one image by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpdd.common.data.lazy_torchvision import load_torchvision
from dpdd.common.models.evaluation_resnets import evaluation_densenet, evaluation_resnet


def weights(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


def test_they_have_the_weights_of_torchvisions_but_for_the_stem() -> None:
    """A stem of 7 x 7 has 40 numbers more in each kernel; DenseNet's norm before its pooling goes with that."""
    with torch.device("meta"):
        resnet = evaluation_resnet((3, 32, 32), 10, 64, "batch")
        densenet = evaluation_densenet((3, 32, 32), 10, 32, "batch")
    load_torchvision()
    from torchvision.models import densenet121, resnet18

    with torch.device("meta"):
        assert weights(resnet) == weights(resnet18(num_classes=10)) - 64 * 3 * 40
        assert weights(densenet) == weights(densenet121(num_classes=10)) - 64 * 3 * 40 - 2 * 64


@pytest.mark.parametrize("side", [9, 28, 32, 40])
def test_both_take_images_of_any_size_and_see_fine_detail(side: int) -> None:
    """The stem has no stride: the first map is as large as the image with its border."""
    for network in (
        evaluation_resnet((1, side, side), 3, 4, "instance"),
        evaluation_densenet((1, side, side), 3, 2, "instance"),
    ):
        stem = next(each for each in network if isinstance(each, nn.Conv2d))
        sizes: list[torch.Size] = []
        stem.register_forward_hook(lambda _module, _inputs, output, to=sizes: to.append(output.shape[2:]))
        assert network(torch.rand(2, 1, side, side)).shape == (2, 3)
        assert sizes == [(max(side, 32),) * 2]


def test_by_instance_norm_an_image_is_judged_by_itself_and_by_batch_norm_with_its_batch() -> None:
    batch = torch.rand(6, 3, 32, 32)
    batch[3:] *= 4.0
    for build in (evaluation_resnet, evaluation_densenet):
        torch.manual_seed(0)
        alone = build((3, 32, 32), 3, 4, "instance").train()
        norms = [each for each in alone.modules() if isinstance(each, nn.GroupNorm)]
        assert norms and all(each.num_groups == each.num_channels for each in norms), "each channel by itself"
        torch.testing.assert_close(alone(batch)[:3], alone(batch[:3]), atol=1e-4, rtol=1e-4)
        together = build((3, 32, 32), 3, 4, "batch").train()
        assert not torch.allclose(together(batch)[:3], together(batch[:3]), atol=1e-2)
