"""Image embeddings: of norm at most 1 whatever the image, with the picture and the constant where they should be."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpdd.common.models.backbone import build
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.image_embedding import CONSTANT, REACH, ImageEmbedding

SHAPE = (2, 12, 12)
EMBEDDINGS = [
    ImageEmbedding(6, 4, 2),
    ImageEmbedding(0, 4, 2),
    ImageEmbedding(6, 0, 2),
    ImageEmbedding(8, 1, 2),
    ImageEmbedding(1, 16, 2),
]
embeddings = pytest.mark.parametrize("embedding", EMBEDDINGS, ids=str)


def make_network() -> FeatureNetwork:
    torch.manual_seed(3)
    network = build(ConvNetArchitecture(channels=2, height=12, width=12, classes=3, widths=(4, 8), pool_after=(1,)))
    with torch.no_grad():
        network.whitening.fit(network.eval().features(torch.rand(100, *SHAPE)))
    return network.requires_grad_(False)


NETWORK = make_network()


def of(embedding: ImageEmbedding, images: Tensor) -> Tensor:
    return embedding.of(NETWORK, images, NETWORK.features(images))


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
@given(st.sampled_from(EMBEDDINGS), anything())
def test_the_norm_is_at_most_one_for_anything(embedding: ImageEmbedding, images: Tensor) -> None:
    """Or it is not a number, and the record will not count."""
    norms = of(embedding, images).double().norm(dim=1)
    assert not (norms > 1.0 + 1e-6).any()


def test_real_features_can_be_anything_too() -> None:
    """Whatever a backbone says of an image, of 0 up to what single precision holds."""
    embedding, images = ImageEmbedding(6, 4, 2), torch.rand(6, *SHAPE)
    features = torch.randn(6, 8) * torch.tensor([0.0, 1e-30, 1e-3, 1e3, 1e18, 1e38])[:, None]
    norms = embedding.of(NETWORK, images, features).double().norm(dim=1)
    assert not (norms > 1.0 + 1e-6).any() and torch.isfinite(norms[:-1]).all()


@embeddings
def test_ordinary_images_are_hardly_clipped(embedding: ImageEmbedding) -> None:
    images = 0.4 * torch.rand(50, *SHAPE)
    vectors = of(embedding, images)
    assert vectors.shape == (50, embedding.dimensions)
    torch.testing.assert_close(vectors[:, -1], torch.full((50,), embedding.constant))
    if embedding.features:
        norms = vectors[:, : embedding.features].norm(dim=1)
        torch.testing.assert_close(norms, torch.full((50,), 1.0 / REACH))
    if embedding.side:
        expected = torch.nn.functional.adaptive_avg_pool2d(images, embedding.side)
        torch.testing.assert_close(embedding.pictures(vectors), expected)


def test_bright_images_keep_their_direction() -> None:
    embedding, images = ImageEmbedding(6, 4, 2), torch.ones(1, *SHAPE)
    vectors = of(embedding, images)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(1))
    shrunk = vectors[0, -1] / embedding.constant
    assert shrunk < 0.9
    torch.testing.assert_close(embedding.pictures(vectors), torch.ones(1, 2, 4, 4) * shrunk)


def test_the_parts_follow_each_other() -> None:
    embedding = ImageEmbedding(features=6, side=4, channels=2)
    assert embedding.picture == slice(6, 6 + 32) and embedding.dimensions == 39
    assert embedding.constant == CONSTANT / REACH
    one = torch.zeros(1, *SHAPE)
    one[0, 1, 0, 0] = 1.0  # top left of the second channel
    found = embedding.pictures(of(embedding, one))[0]
    assert found[1, 0, 0] > 0 and found.count_nonzero() == 1


@embeddings
def test_gradients_reach_the_images(embedding: ImageEmbedding) -> None:
    images = torch.rand(2, *SHAPE, requires_grad=True)
    of(embedding, images)[:, :-1].square().sum().backward()
    assert images.grad is not None and torch.isfinite(images.grad).all() and images.grad.abs().sum() > 0


def test_an_empty_image_has_finite_gradients() -> None:
    images = torch.zeros(2, *SHAPE, requires_grad=True)
    of(ImageEmbedding(6, 4, 2), images).sum().backward()
    assert images.grad is not None and torch.isfinite(images.grad).all()
