"""Evaluating a network: its accuracy, and a linear probe (a linear classifier on its frozen features).

Neither is private: they are for public data, and for reports on benchmark data.

>>> import torch
>>> torch.manual_seed(0)  # doctest: +ELLIPSIS
<torch._C.Generator object at ...>
>>> labels = torch.arange(200) % 2
>>> features = torch.randn(200, 3) + 4 * labels[:, None]
>>> linear_probe(features, labels, features, labels) > 0.95
True
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dpdd.common.models.feature_network import FeatureNetwork


@torch.no_grad()
def extract(network: FeatureNetwork, images: Tensor, batch_size: int = 500) -> Tensor:
    """Give the features of uint8 images (N, C, H, W), batch by batch, in eval mode."""
    was_training = network.training
    network.eval()
    features = torch.cat([network.features(batch.float() / 255) for batch in torch.split(images, batch_size)])
    network.train(was_training)
    return features


def accuracy(network: FeatureNetwork, images: Tensor, labels: Tensor) -> float:
    """Give the share of uint8 images that the network classifies rightly."""
    with torch.no_grad():
        logits = F.linear(extract(network, images), network.head.weight, network.head.bias)
    return share_right(logits, labels)


def linear_probe(features: Tensor, labels: Tensor, test_features: Tensor, test_labels: Tensor) -> float:
    """Fit multinomial logistic regression by L-BFGS on standardised features, and give its test accuracy."""
    return share_right(probe_logits(features, labels, test_features), test_labels)


def share_right(logits: Tensor, labels: Tensor) -> float:
    """Give the share of records whose highest logit is that of their class."""
    return float((logits.argmax(1) == labels).float().mean())


def probe_logits(
    features: Tensor, labels: Tensor, test_features: Tensor, *, decay: float = 1e-4, iterations: int = 200
) -> Tensor:
    """Fit the same, and give its scores of test records."""
    mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
    x, test_x = (features - mean) / std, (test_features - mean) / std
    classes = int(labels.max()) + 1
    weight = x.new_zeros(classes, x.shape[1]).requires_grad_()
    bias = x.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(x, weight, bias), labels) + 0.5 * decay * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type,no-untyped-call]
    with torch.no_grad():
        return F.linear(test_x, weight, bias)
