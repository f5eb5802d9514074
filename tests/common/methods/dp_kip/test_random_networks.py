"""Kernels of random networks: against a backward pass for each image, and against what a kernel is."""

from __future__ import annotations

import pytest
import torch

from dpdd.common.methods.dp_kip.kernels import FeatureKernel
from dpdd.common.methods.dp_kip.random_networks import EmpiricalNTK, LeNet, PerceptualFeatures


def images(count: int, channels: int = 1, side: int = 14) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(count))


def test_the_tangent_kernel_is_the_inner_product_of_gradients() -> None:
    network, x = LeNet((2, 14, 14)), images(5, channels=2)
    rows = []
    for image in x:
        weights = {name: weight.clone().requires_grad_(True) for name, weight in network.weights.items()}
        gradients = torch.autograd.grad(network.output(weights, image), list(weights.values()))
        rows.append(torch.cat([each.flatten() for each in gradients]))
    expected = torch.stack(rows) @ torch.stack(rows)[:2].T
    torch.testing.assert_close(EmpiricalNTK(network)(x, x[:2]), expected, rtol=1e-4, atol=1e-4)


def test_features_do_not_depend_on_the_batch_and_networks_on_nothing_but_the_seed() -> None:
    x, features = images(103), PerceptualFeatures(1)
    torch.testing.assert_close(features(x)[101:], features(x[101:]), rtol=1e-4, atol=1e-6)
    assert torch.equal(features(x[:2]), PerceptualFeatures(1)(x[:2]))
    assert not torch.allclose(features(x[:2]), PerceptualFeatures(1, seed=1)(x[:2]))
    assert not torch.equal(LeNet((1, 14, 14)).weights["third"], LeNet((1, 14, 14), seed=1).weights["third"])


def test_layers_have_an_equal_part_each() -> None:
    x, features = images(8, channels=3, side=32), PerceptualFeatures(3)
    sizes = [64 * 256, *[64 * 64] * 4, *[128 * 16] * 4, *[256 * 4] * 4, *[512] * 4]
    layers = features(x).square().split(sizes, dim=1)
    torch.testing.assert_close(torch.stack([each.sum(1) for each in layers]), torch.ones(17, 8))
    assert features(0.0 * x).isfinite().all()


def test_both_are_kernels() -> None:
    x = images(7).double()
    for kernel in (FeatureKernel(PerceptualFeatures(1)), EmpiricalNTK(LeNet((1, 14, 14)))):
        gram = kernel(x, x)
        torch.testing.assert_close(gram, gram.T)
        assert float(torch.linalg.eigvalsh(gram)[0]) > -1e-9 * float(gram.diagonal().mean())
        assert int(torch.linalg.matrix_rank(gram)) == 7


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="from 12 x 12"):
        LeNet((1, 11, 12))
