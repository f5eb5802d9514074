"""Portraits: of norm at most 1 whatever the image, with the picture and the constant where they should be."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpdd.common.models.backbone import build
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNet
from dpdd.common.synthesis.image_embedding import CONSTANT, REACH, Portrait

SHAPE = (2, 12, 12)
PORTRAITS = [Portrait(6, 4, 2), Portrait(0, 4, 2), Portrait(6, 0, 2), Portrait(8, 1, 2), Portrait(1, 16, 2)]
portraits = pytest.mark.parametrize("portrait", PORTRAITS, ids=str)


def made() -> FeatureNet:
    torch.manual_seed(3)
    network = build(ConvNetArchitecture(channels=2, height=12, width=12, classes=3, widths=(4, 8), pool_after=(1,)))
    with torch.no_grad():
        network.whitening.fit(network.eval().features(torch.rand(100, *SHAPE)))
    return network.requires_grad_(False)


NETWORK = made()


def of(portrait: Portrait, images: Tensor) -> Tensor:
    return portrait.of(NETWORK, images, NETWORK.features(images))


@st.composite
def anything(draw: st.DrawFn) -> Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    scale = draw(st.sampled_from([0.0, 1e-40, 1e-20, 1e-3, 1.0, 30.0, 1e6, 1e18, 1e20, 1e36]))
    images = scale * (torch.rand(3, *SHAPE, generator=generator) - draw(st.sampled_from([0.0, 0.5, 1.0])))
    if draw(st.booleans()):
        place = draw(st.tuples(*(st.integers(0, side - 1) for side in (3, *SHAPE))))
        images[place] = draw(st.sampled_from([math.nan, math.inf, -math.inf, 3e38]))
    return images


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(PORTRAITS), anything())
def test_the_norm_is_at_most_one_for_anything(portrait: Portrait, images: Tensor) -> None:
    """Or it is not a number, and the record will not count."""
    norms = of(portrait, images).double().norm(dim=1)
    assert not (norms > 1.0 + 1e-6).any()


def test_real_features_can_be_anything_too() -> None:
    """Whatever a backbone says of an image, of 0 up to what single precision holds."""
    portrait, images = Portrait(6, 4, 2), torch.rand(6, *SHAPE)
    features = torch.randn(6, 8) * torch.tensor([0.0, 1e-30, 1e-3, 1e3, 1e18, 1e38])[:, None]
    norms = portrait.of(NETWORK, images, features).double().norm(dim=1)
    assert not (norms > 1.0 + 1e-6).any() and torch.isfinite(norms[:-1]).all()


@portraits
def test_ordinary_images_are_hardly_clipped(portrait: Portrait) -> None:
    images = 0.4 * torch.rand(50, *SHAPE)
    vectors = of(portrait, images)
    assert vectors.shape == (50, portrait.dimensions)
    torch.testing.assert_close(vectors[:, -1], torch.full((50,), portrait.constant))
    if portrait.features:
        norms = vectors[:, : portrait.features].norm(dim=1)
        torch.testing.assert_close(norms, torch.full((50,), 1.0 / REACH))
    if portrait.side:
        expected = torch.nn.functional.adaptive_avg_pool2d(images, portrait.side)
        torch.testing.assert_close(portrait.pictures(vectors), expected)


def test_bright_images_keep_their_direction() -> None:
    portrait, images = Portrait(6, 4, 2), torch.ones(1, *SHAPE)
    vectors = of(portrait, images)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(1))
    shrunk = vectors[0, -1] / portrait.constant
    assert shrunk < 0.9
    torch.testing.assert_close(portrait.pictures(vectors), torch.ones(1, 2, 4, 4) * shrunk)


def test_the_parts_follow_each_other() -> None:
    portrait = Portrait(features=6, side=4, channels=2)
    assert portrait.picture == slice(6, 6 + 32) and portrait.dimensions == 39
    assert portrait.constant == CONSTANT / REACH
    one = torch.zeros(1, *SHAPE)
    one[0, 1, 0, 0] = 1.0  # top left of the second channel
    found = portrait.pictures(of(portrait, one))[0]
    assert found[1, 0, 0] > 0 and found.count_nonzero() == 1


@portraits
def test_gradients_reach_the_images(portrait: Portrait) -> None:
    images = torch.rand(2, *SHAPE, requires_grad=True)
    of(portrait, images)[:, :-1].square().sum().backward()
    assert images.grad is not None and torch.isfinite(images.grad).all() and images.grad.abs().sum() > 0


def test_an_empty_image_has_finite_gradients() -> None:
    images = torch.zeros(2, *SHAPE, requires_grad=True)
    of(Portrait(6, 4, 2), images).sum().backward()
    assert images.grad is not None and torch.isfinite(images.grad).all()
