"""Signals: silos and coordinator mean the same by one, a record's is its own to the last bit, gradients are true."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.methods.matching import signals as module
from dpdd.common.methods.matching.signals import Draw, Signals, SignalSettings, clipped, gradients
from dpdd.common.models.random_net import RandomNet, feature_count, features
from dpdd.common.synthesis.siamese_augmentation import SiameseAugmentation

SHAPE, CLASSES = (1, 12, 12), 4
PLAIN = SignalSettings("features", 3, 6, 2, 0, 1, 0.0, True, True, SHAPE, CLASSES, 5)
KINDS = {
    "features": PLAIN,
    "subspace": replace(PLAIN, dimensions=7),
    "colour subspace": replace(PLAIN, dimensions=7, shape=(3, 12, 10)),
    "two moments": replace(PLAIN, dimensions=7, moments=2, whitening=0.7),
    "whole numbers": replace(PLAIN, dimensions=7, moments=2, whitening=0.7, subspace_arithmetic="integer"),
    "gradients": replace(PLAIN, kind="gradients"),
}
kinds = pytest.mark.parametrize("kind", KINDS)
of_features = pytest.mark.parametrize(
    "kind", ["features", "subspace", "colour subspace", "two moments", "whole numbers"]
)


@cache
def signals_of(kind: str) -> Signals:
    settings = KINDS[kind]
    return Signals(settings, dead_leaves(60, *settings.shape, seed=2))


def records(count: int, shape: tuple[int, ...] = SHAPE, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures, every third of them noise, and labels."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.from_numpy(dead_leaves(count, *shape, seed=seed))
    pictures[::3] = torch.rand(pictures[::3].shape, generator=generator)
    return pictures, torch.randint(CLASSES, (count,), generator=generator)


def draws(kind: str, count: int = 12) -> list[Draw]:
    return [signals_of(kind).draw(number) for number in range(count)]


def test_the_draws_of_these_tests_have_views_of_every_kind() -> None:
    assert {draw.augmentation.kind for draw in draws("features")} >= {
        (True, False, False),
        (True, True, False),
        (False, True, False),
        (False, False, True),
    }


@kinds
def test_a_signal_has_its_stated_length_and_a_typical_image_norm_one(kind: str) -> None:
    settings = KINDS[kind]
    leaves = torch.from_numpy(dead_leaves(60, *settings.shape, seed=2))
    labels = torch.arange(60) % CLASSES
    for number in range(settings.networks):
        draw = replace(signals_of(kind).draw(number), augmentation=SiameseAugmentation())
        found = draw.of_records(leaves, labels)
        assert found.shape == (60, settings.length) and found.dtype == np.float32
        norms = np.linalg.norm(found.astype(np.float64), axis=1)
        assert np.sort(norms)[29] == pytest.approx(1.0, abs=0.02 if kind == "whole numbers" else 2e-3)


def test_two_moments_are_the_coordinates_and_their_squares() -> None:
    images, labels = records(20)
    leaves = dead_leaves(60, *SHAPE, seed=2)
    for number in range(4):
        draw = signals_of("two moments").draw(number)
        found = draw.of_records(images, labels) * draw.scale
        alone = Signals(replace(draw.settings, moments=1), leaves).draw(number)
        np.testing.assert_allclose(found[:, :7], alone.of_records(images, labels) * alone.scale, rtol=1e-5, atol=1e-6)
        assert draw.space is not None
        squares = draw.space.squares(torch.from_numpy(found[:, :7])).numpy()
        np.testing.assert_allclose(found[:, 7:], squares, rtol=1e-4, atol=1e-5)


@of_features
def test_class_means_are_the_means_of_clipped_records(kind: str) -> None:
    pictures, labels = records(50, KINDS[kind].shape)
    for draw in draws(kind):
        rows = clipped(torch.from_numpy(draw.of_records(pictures, labels)))
        assert 0 < (rows.norm(dim=1) > 0.999).sum() < 50, "some are clipped, some are not"
        expected = torch.stack([rows[labels == label].mean(dim=0) for label in range(CLASSES)])
        # In a subspace, records are rounded to features of 2^-12.
        torch.testing.assert_close(draw.of_class_means(pictures, labels, range(CLASSES)), expected, atol=3e-4, rtol=0.0)


@kinds
def test_class_means_of_some_classes_are_those_of_all(kind: str) -> None:
    """Classes are synthesised a few at a time; the third class is the third class in any batch."""
    pictures, labels = records(20, KINDS[kind].shape)
    draw = signals_of(kind).draw(1)
    every = draw.of_class_means(pictures, labels, range(CLASSES))
    for some in (range(2, 4), [3], [1, 0]):
        own = sum(labels == label for label in some) > 0
        found = draw.of_class_means(pictures[own], labels[own], some)
        torch.testing.assert_close(found, every[list(some)], atol=1e-6, rtol=1e-4)
    missing = draw.of_class_means(pictures[labels != 2], labels[labels != 2], range(CLASSES))
    assert not missing[2].any() and missing.shape == every.shape


@kinds
def test_class_means_are_differentiable_and_leave_no_trace_in_the_networks(kind: str) -> None:
    settings = replace(KINDS[kind], shape=(1, 8, 8))
    draw = Signals(settings, dead_leaves(30, 1, 8, 8, seed=2)).draw(0)
    pictures, labels = records(4, (1, 8, 8))
    before = draw.of_records(pictures, labels)
    moving = pictures.clone().requires_grad_(True)
    draw.of_class_means(moving, labels, range(CLASSES)).square().sum().backward()
    assert moving.grad is not None and torch.isfinite(moving.grad).all() and moving.grad.any()
    assert not any(weight.requires_grad or weight.grad is not None for weight in draw.network.weights)
    np.testing.assert_array_equal(draw.of_records(pictures, labels), before)


def test_the_derivative_of_class_means_is_right() -> None:
    for kind in ("features", "gradients"):
        settings = replace(KINDS[kind], shape=(1, 4, 4), width=4, depth=1)
        draw = Signals(settings, dead_leaves(30, 1, 4, 4, seed=2)).draw(0)
        pictures, labels = records(3, (1, 4, 4))
        inside = pictures.double().requires_grad_(True)
        assert torch.autograd.gradcheck(lambda x: draw.of_class_means(x, labels, range(CLASSES)), (inside,))  # noqa: B023


def test_gradients_are_each_examples_own() -> None:
    network = RandomNet.draw(5, 1, SHAPE, 6, 2, CLASSES)
    pictures, labels = records(9)
    found = gradients(network, pictures, labels)
    assert found.shape == (9, KINDS["gradients"].length)
    weights = [weight.clone().requires_grad_(True) for weight in network.weights]
    for picture, label, row in zip(pictures, labels, found, strict=True):
        scores = features(picture[None], tuple(weights[:-1])) @ weights[-1].T
        loss = -torch.log_softmax(scores, dim=1)[0, label]
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights)])
        torch.testing.assert_close(row, expected, atol=1e-6, rtol=1e-4)


def test_the_mean_gradient_of_a_class_is_that_of_its_images() -> None:
    pictures, labels = records(20)
    draw = signals_of("gradients").draw(2)
    each = gradients(draw.network, draw.augmentation(pictures), labels) / draw.scale
    expected = torch.stack([each[labels == label].mean(dim=0) for label in range(CLASSES)])
    found = draw.of_class_means(pictures, labels, range(CLASSES))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@kinds
def test_a_record_has_the_same_signal_to_the_last_bit_at_any_place_and_beside_anybody(kind: str) -> None:
    pictures, labels = records(64, KINDS[kind].shape)
    others, their_labels = records(64, KINDS[kind].shape, seed=8)
    others[5], others[6], others[7] = float("nan"), float("inf"), 1e30
    generator = torch.Generator().manual_seed(0)
    for draw in draws(kind):
        found = draw.of_records(pictures, labels)
        order = torch.randperm(64, generator=generator)
        np.testing.assert_array_equal(draw.of_records(pictures[order], labels[order]), found[order])
        mixed, mixed_labels = others.clone(), their_labels.clone()
        mixed[20:40], mixed_labels[20:40] = pictures[:20], labels[:20]
        beside = draw.of_records(mixed, mixed_labels)
        np.testing.assert_array_equal(beside[20:40], found[:20])
        assert not np.isfinite(beside[[5, 6]]).all(axis=1).any()


def test_coordinates_in_a_subspace_are_exact_sums() -> None:
    """Against Python's integers; and in any order, which is what makes the place in a batch leave no trace."""
    draw = signals_of("subspace").draw(0)
    assert draw.space is not None
    pictures, _ = records(8)
    values = draw.network.features(draw.augmentation(pictures))
    values[0, 0], values[1] = 1e30, -1e30  # clamped to 64
    found = module._exact_coordinates(values, draw.space)
    steps = torch.round((values.double() - draw.space.mean) * 2**12).clamp(-(2**18), 2**18)
    basis = torch.round(draw.space.basis * 2**24)
    for row, signal in zip(steps.tolist(), found, strict=True):
        for direction, number in zip(basis.T.tolist(), signal, strict=True):
            exact = sum(int(a) * int(b) for a, b in zip(row, direction, strict=True))
            assert abs(exact) < 2**53 and number == exact / (2.0**36 * draw.space.clip)


def test_no_partial_sum_can_pass_the_exact_integers() -> None:
    """With the widest network that a silo admits."""
    width = module.MOST_FEATURES
    assert 2**18 * (2**24 * width**0.5 + 0.5 * width) <= 2**53


@kinds
def test_signals_are_the_same_for_everybody_with_the_request(kind: str) -> None:
    again = Signals(KINDS[kind], dead_leaves(60, *KINDS[kind].shape, seed=2))
    pictures, labels = records(5, KINDS[kind].shape)
    for number in (0, 4, 7):
        np.testing.assert_array_equal(
            again.draw(number).of_records(pictures, labels), signals_of(kind).draw(number).of_records(pictures, labels)
        )
    other = Signals(replace(KINDS[kind], seed=6), dead_leaves(60, *KINDS[kind].shape, seed=2))
    assert not np.array_equal(other.draw(0).of_records(pictures, labels), again.draw(0).of_records(pictures, labels))


def test_draws_share_networks_but_not_views() -> None:
    made = signals_of("features")
    assert made.draw(1).network is made.draw(4).network and made.draw(0).network is not made.draw(1).network
    assert len({made.draw(number).augmentation for number in range(9)}) == 9
    still = Signals(replace(PLAIN, augment=False), dead_leaves(60, *SHAPE, seed=2))
    assert {still.draw(number).augmentation for number in range(9)} == {SiameseAugmentation()}


def test_the_spectrum_is_that_of_the_subspace() -> None:
    found = signals_of("subspace").draw(2)
    assert found.space is not None
    spectrum = signals_of("subspace").spectrum(2)
    count = min(60, feature_count(SHAPE, 6, 2))
    assert len(spectrum) == count
    torch.testing.assert_close(found.space.spectrum[:count], spectrum, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("kind", ["subspace", "two moments", "features", "gradients"])
def test_constant_auxiliary_images_give_finite_signals(kind: str) -> None:
    """A coordinator may send any; a silo must not fail on them after its budget was set aside."""
    for value in (0.0, 0.4):
        made = Signals(KINDS[kind], np.full((60, *SHAPE), value, np.float32))
        pictures, labels = records(5)
        found = made.draw(0).of_records(pictures, labels)
        assert np.isfinite(found).all()


def test_few_networks_are_kept_where_they_are_large() -> None:
    small = module.kept_networks(replace(PLAIN, networks=50))
    large = module.kept_networks(replace(PLAIN, networks=50, shape=(1, 64, 64), width=256, depth=1, dimensions=500))
    assert small == 50 and large == 2


def test_clipping_leaves_short_rows_alone() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(clipped(rows), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert functional.pairwise_distance(clipped(rows), rows)[1:].max() < 1e-5
