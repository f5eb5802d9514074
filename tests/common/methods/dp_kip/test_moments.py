"""The loss from moments, against records themselves; indefinite second moments; solving for labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpdd.common.methods.dp_kip.kernels import centred, linear_weights
from dpdd.common.methods.dp_kip.moments import Goal

CLASSES, SIZE = 3, 6


def records(count: int = 200) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and targets of records, their second moment and the ridge classifier."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % CLASSES
    x = torch.randn(count, SIZE, generator=generator).double()
    x[torch.arange(count), labels] += 1.0
    y = centred(labels, CLASSES).double()
    second = x.T @ x / count
    return x, y, second, torch.linalg.solve(second, x.T @ y / count).T


def random_weights(seed: int = 2) -> Tensor:
    weights = torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(seed)).double()
    return weights - weights.mean(0)


def test_it_is_the_squared_loss_on_the_records_up_to_a_constant() -> None:
    """For the best multiple of the classifier; the constant is the loss of the ridge classifier, |W*|² the unit."""
    x, y, second, ridge = records()
    goal = Goal.of(second, ridge)

    def squared(weights: Tensor) -> Tensor:
        return (x @ weights.T - y).square().sum(1).mean()

    for weights in (random_weights(), random_weights(3), ridge + random_weights()):
        said = x @ weights.T
        scale = (said * y).sum() / said.square().sum()
        expected = (squared(scale * weights) - squared(ridge)) / (squared(0.0 * ridge) - squared(ridge))
        assert goal.loss(weights) + goal.loss(-weights) == 2.0
        torch.testing.assert_close(torch.minimum(goal.loss(weights), goal.loss(-weights)), expected)
    torch.testing.assert_close(goal.loss(ridge), torch.zeros(()).double(), atol=1e-9, rtol=0.0)
    torch.testing.assert_close(goal.squares, squared(0.0 * ridge) - squared(ridge))


def test_neither_scale_nor_what_all_classes_share_matters() -> None:
    _, _, second, ridge = records()
    weights, shared = random_weights(), torch.randn(SIZE, generator=torch.Generator().manual_seed(5)).double()
    goal = Goal.of(second, ridge)
    torch.testing.assert_close(goal.loss(7.0 * weights), goal.loss(weights))
    torch.testing.assert_close(Goal.of(second, 3.0 * ridge + shared).loss(weights), goal.loss(weights))


def test_an_indefinite_second_moment_gives_a_loss_that_is_bounded() -> None:
    """Along a negative eigenvalue the plain loss falls without end; projected, such a direction costs nothing."""
    _, _, second, ridge = records()
    values, vectors = torch.linalg.eigh(second)
    broken = (vectors * torch.cat([torch.tensor([-5.0]).double(), values[1:]])) @ vectors.T
    away = torch.outer(torch.tensor([1.0, -1.0, 0.0]).double(), vectors[:, 0])
    far = ridge + 1e3 * away
    joint = ridge @ broken
    plain = torch.trace(far @ broken @ far.T) - 2.0 * torch.trace(far @ joint.T)
    assert plain < -1e6
    goal = Goal.of(broken, ridge)
    for weights in (far, ridge + away, random_weights()):
        assert 0.0 <= float(goal.loss(weights)) <= 2.0
    torch.testing.assert_close(goal.loss(far), goal.loss(ridge), atol=1e-9, rtol=0.0)
    projected = (vectors * torch.cat([torch.zeros(1).double(), values[1:]])) @ vectors.T
    torch.testing.assert_close(goal.root.T @ goal.root, projected)
    shrunk = Goal.of(broken, ridge, amount=0.5)
    torch.testing.assert_close(shrunk.root.T @ shrunk.root, projected + 0.5 * torch.eye(SIZE).double())
    assert float(shrunk.loss(far)) > 0.9  # with something on the diagonal, far away is bad


def test_solved_labels_are_probabilities_and_the_best_there_are() -> None:
    _, _, second, ridge = records()
    goal, features = Goal.of(second, ridge), random_features(4)
    labels = goal.labels(features, 1e-2)
    assert labels.shape == (4, CLASSES) and bool((labels >= 0.0).all())
    torch.testing.assert_close(labels.sum(1), torch.ones(4).double())
    best = goal.loss(linear_weights(features, centred(labels, CLASSES), 1e-2))
    for seed in range(20):
        other = labels + 0.02 * torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(seed)).double()
        assert goal.loss(linear_weights(features, centred(other, CLASSES), 1e-2)) > best


def test_with_enough_images_solved_labels_give_the_wanted_classifier() -> None:
    _, _, second, ridge = records()
    features = random_features(9)
    labels = Goal.of(second, ridge).labels(features, 1e-2)
    found = linear_weights(features, centred(labels, CLASSES), 1e-2)
    assert torch.equal((random_features(50) @ found.T).argmax(1), (random_features(50) @ ridge.T).argmax(1))


def test_alike_images_can_be_labelled() -> None:
    _, _, second, ridge = records()
    labels = Goal.of(second, ridge).labels(random_features(1).repeat(3, 1), 1e-3)
    assert bool(torch.isfinite(labels).all())


@pytest.mark.parametrize("solved", [False, True])
def test_the_gradient_in_features_is_right(solved: bool) -> None:
    """With solved labels the gradient that takes them for constants is that of the whole, as they are at their best."""
    _, _, second, ridge = records()
    goal, start = Goal.of(second, ridge), random_features(4)
    hard = centred(torch.arange(4) % CLASSES, CLASSES).double()

    def loss(features: Tensor) -> Tensor:
        targets = centred(goal.labels(features.detach(), 1e-2), CLASSES) if solved else hard
        return goal.loss(linear_weights(features, targets, 1e-2))

    features = start.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(loss(features), features)
    direction = random_features(4, seed=9)
    with torch.no_grad():
        slope = (loss(start + 1e-5 * direction) - loss(start - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-3, atol=1e-6)


def random_features(count: int, seed: int = 4) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed)).double()
