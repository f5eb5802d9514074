import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from dpdd.common.methods.dp_kip.kernels import (
    FeatureKernel,
    FullyConnectedNTK,
    centred,
    coefficients,
    linear_weights,
    predictions,
)

WIDTH, NETWORKS = 512, 24


class WideNetwork(nn.Module):
    """A fully connected network in the NTK parametrisation: standard normal weights, scaled in the forward pass."""

    def __init__(self, inputs: int, ntk: FullyConnectedNTK) -> None:
        super().__init__()
        sizes = [inputs, *[WIDTH] * ntk.depth, 1]
        self.ntk = ntk
        self.weights = nn.ParameterList(torch.randn(a, b, dtype=torch.float64) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(torch.randn(size, dtype=torch.float64) for size in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.relu(x) if layer else x
            x = self.ntk.weight_std / math.sqrt(x.shape[1]) * x @ weight + self.ntk.bias_std * bias
        return x[:, 0]

    def tangent_kernel(self, x: Tensor) -> Tensor:
        rows = []
        for output in self(x):
            gradients = torch.autograd.grad(output, list(self.parameters()), retain_graph=True)
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        jacobian = torch.stack(rows)
        return jacobian @ jacobian.T


def inputs() -> Tensor:
    """Four inputs, two of them nearly the same and two opposite, of unequal norms."""
    x = torch.randn(4, 6, dtype=torch.float64)
    x[1] = x[0] + 0.01 * x[1]
    x[3] = -2.0 * x[2]
    return x


def deviation(ntk: FullyConnectedNTK, kernels: Tensor, x: Tensor) -> float:
    """The largest distance of the closed form to the mean of networks' kernels, in its allowance.

    The mean has a standard error, which the networks tell, and a bias of order depth / width (Hanin and Nica 2020: the
    finite network's kernel has relative fluctuations and corrections of that order, with a constant of a few).
    """
    error = kernels.std(0) / math.sqrt(len(kernels))
    wanted = ntk(x, x)
    scale = (wanted.diagonal()[:, None] * wanted.diagonal()).sqrt()
    return float(((kernels.mean(0) - wanted).abs() / (6.0 * error + 2.0 * ntk.depth / WIDTH * scale)).max())


@pytest.mark.parametrize("depth", [1, 3])
def test_closed_form_is_that_of_wide_networks(depth: int) -> None:
    torch.manual_seed(depth)
    ntk, x = FullyConnectedNTK(depth), inputs()
    kernels = torch.stack([WideNetwork(6, ntk).tangent_kernel(x) for _ in range(NETWORKS)])
    assert deviation(ntk, kernels, x) < 1.0
    for other in (
        FullyConnectedNTK(depth, bias_std=0.5),
        FullyConnectedNTK(depth + 1),
        FullyConnectedNTK(depth, 1.3),
        FullyConnectedNTK(max(depth - 1, 0)),
    ):
        assert deviation(other, kernels, x) > 1.0


def test_a_network_without_hidden_layers_is_linear() -> None:
    torch.manual_seed(0)
    x, z = torch.randn(3, 5), torch.randn(4, 5)
    torch.testing.assert_close(FullyConnectedNTK(0, 1.5, 0.2)(x, z), 2.25 * x @ z.T / 5 + 0.04)


def test_kernels_are_symmetric_positive_and_flatten_images() -> None:
    torch.manual_seed(0)
    images = torch.rand(6, 2, 3, 3, dtype=torch.float64)
    gram = FullyConnectedNTK()(images, images)
    torch.testing.assert_close(gram, gram.T)
    assert float(torch.linalg.eigvalsh(gram)[0]) > 0.0
    torch.testing.assert_close(gram[:2, 2:], FullyConnectedNTK()(images[:2], images[2:]))


def test_gradients_are_right_and_finite_at_equal_inputs() -> None:
    torch.manual_seed(0)
    x, z = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(2, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda each: FullyConnectedNTK()(each, z), (x,))
    ntk = FullyConnectedNTK(bias_std=0.0)
    gradient = torch.autograd.grad(ntk(x, x).diagonal().sum(), x)[0]
    # without biases the kernel of an input and itself is homogeneous: (depth + 1) σ_w² |x|² / D, σ_w² / 2 being 1
    torch.testing.assert_close(ntk(x, x).diagonal(), 4 * 2.0 * x.square().sum(1) / 4, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(gradient, 4 * 2.0 * 2.0 * x.detach() / 4, rtol=1e-4, atol=1e-6)
    assert torch.isfinite(ntk(torch.zeros(2, 4), torch.zeros(2, 4))).all()


def test_ridge_regression_by_kernel_and_by_weights_agree() -> None:
    torch.manual_seed(0)
    support, images = torch.randn(7, 5, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    targets = centred(torch.arange(7) % 3, 3).double()
    kernel = FeatureKernel(lambda x: torch.tanh(x))
    by_kernel = predictions(kernel, images, support, targets, ridge=1e-2)
    features = torch.tanh(support)
    weights = linear_weights(features, targets, 1e-2)
    torch.testing.assert_close(by_kernel, torch.tanh(images) @ weights.T)
    # the primal: the minimum of |Φw - y|² + λ|w|²
    amount = 1e-2 * features.square().sum() / len(features)
    primal = torch.linalg.solve(features.T @ features + amount * torch.eye(5).double(), features.T @ targets)
    torch.testing.assert_close(weights, primal.T)


def test_scale_of_the_kernel_does_not_matter() -> None:
    torch.manual_seed(0)
    gram = torch.cov(torch.randn(5, 9))
    torch.testing.assert_close(
        100.0 * coefficients(100.0 * gram, torch.eye(5), 0.1), coefficients(gram, torch.eye(5), 0.1)
    )


def test_centred_takes_soft_labels() -> None:
    soft = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    torch.testing.assert_close(centred(soft, 2), torch.tensor([[-0.3, 0.3], [0.5, -0.5]]))
