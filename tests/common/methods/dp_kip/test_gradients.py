"""Per-example gradients, against a backward pass for each record."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpdd.common.methods.dp_kip.gradients import SupportSet
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred, predictions


def one_by_one(s: Tensor, targets: Tensor, kernel: FullyConnectedNTK, ridge: float, x: Tensor, y: Tensor) -> Tensor:
    gradients = []
    for record, wanted in zip(x, y, strict=True):
        support = s.clone().requires_grad_(True)
        loss = (predictions(kernel, record[None], support, targets, ridge) - wanted).square().sum()
        gradients.append(torch.autograd.grad(loss, support)[0])
    return torch.stack(gradients).flatten(2)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_they_are_those_of_a_backward_pass_each(depth: int, ridge: float) -> None:
    torch.manual_seed(depth)
    kernel, s, x = FullyConnectedNTK(depth), torch.randn(6, 1, 3, 2).double(), torch.randn(9, 1, 3, 2).double()
    targets, y = centred(torch.arange(6) % 3, 3).double(), centred(torch.arange(9) % 3, 3).double()
    expected = one_by_one(s, targets, kernel, ridge, x, y)
    found = SupportSet.of(s, targets, kernel, ridge).gradients(x, y)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7 * float(expected.abs().max()))


def test_a_record_that_is_a_support_image_has_a_finite_gradient() -> None:
    torch.manual_seed(0)
    s = torch.randn(4, 5).double()
    support = SupportSet.of(s, centred(torch.arange(4) % 2, 2).double(), FullyConnectedNTK(), 1e-3)
    assert bool(torch.isfinite(support.gradients(torch.cat([s, -s, 0.0 * s]), torch.zeros(12, 2).double())).all())


def test_the_kernel_of_an_input_and_itself() -> None:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).double()
    for depth in range(4):
        kernel = FullyConnectedNTK(depth)
        torch.testing.assert_close(
            kernel.of_itself(x.square().sum(1), 7), kernel(x, x).diagonal(), rtol=1e-6, atol=1e-9
        )
