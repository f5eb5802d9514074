"""Distances between images' features, against twins that loop; and a scenario that asks for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import DataError
from dpdd.common.models import backbone as backbones
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation import image_fidelity as module
from dpdd.server.evaluation.image_fidelity import (
    density_and_coverage,
    frechet_distance,
    image_fidelity,
    label_entropy,
)


def slow_density_and_coverage(real: np.ndarray, synthetic: np.ndarray, k: int) -> tuple[float, float]:
    """As in the definition: one ball after the other."""
    inside, covered = 0, 0
    for at, centre in enumerate(real):
        others = [math.dist(centre, other) for number, other in enumerate(real) if number != at]
        radius = sorted(others)[k - 1]
        hits = sum(math.dist(centre, each) <= radius * (1.0 + 1e-12) for each in synthetic)
        inside, covered = inside + hits, covered + (hits > 0)
    return inside / (k * len(synthetic)), covered / len(real)


rows = st.lists(st.tuples(*(st.integers(-5, 5) for _ in range(2))), min_size=4, max_size=15)


@settings(deadline=None, max_examples=60)
@given(real=rows, synthetic=rows, k=st.integers(1, 3))
def test_density_and_coverage_are_those_of_the_definition(real: list, synthetic: list, k: int) -> None:
    """Whole numbers, so that there are ties, twins and real images that synthetic ones equal."""
    first, second = np.array(real, dtype=float), np.array(synthetic, dtype=float)
    assert density_and_coverage(first, second, k) == pytest.approx(slow_density_and_coverage(first, second, k))


def test_a_copy_covers_everything_and_one_repeated_image_hardly_anything() -> None:
    real = np.random.Generator(np.random.PCG64(1)).normal(size=(200, 3))
    density, coverage = density_and_coverage(real, real)
    assert density == pytest.approx(1.2) and coverage == 1.0, "k neighbours and oneself, over k"
    _, coverage = density_and_coverage(real, np.repeat(real[:1], 200, axis=0))
    assert coverage < 0.1
    assert density_and_coverage(real, real + 100.0) == (0.0, 0.0)


@pytest.mark.parametrize("few", [(5, 3), (6, 0)])
def test_too_few_images_are_an_error(few: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="too few"):
        density_and_coverage(np.zeros((few[0], 2)), np.zeros((few[1], 2)))


@pytest.mark.parametrize("counts", [(50, 60), (3, 60), (3, 2)])
def test_the_frechet_distance_is_that_of_the_matrix_root(counts: tuple[int, int]) -> None:
    """Also with fewer images than dimensions, where covariances are singular."""
    generator = np.random.Generator(np.random.PCG64(2))
    first, second = (generator.normal(size=(count, 4)) @ generator.normal(size=(4, 4)) for count in counts)
    ours = frechet_distance(first, second)
    a, b = (np.cov(each.T, bias=True) for each in (first, second))
    roots = np.sqrt(np.maximum(linalg.eigvals(a @ b).real, 0.0))  # those of the root of A B
    means = np.square(first.mean(axis=0) - second.mean(axis=0)).sum()
    assert ours == pytest.approx(means + np.trace(a + b) - 2.0 * roots.sum(), rel=1e-6, abs=1e-5)
    assert frechet_distance(second, first) == pytest.approx(ours)
    assert frechet_distance(first, first[::-1]) == pytest.approx(0.0, abs=1e-9)


def test_label_entropy_is_that_of_the_rows() -> None:
    soft = np.array([[0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert label_entropy(soft) == pytest.approx((2.0 + 0.0 + 1.0) / 3)
    assert label_entropy(None) == 0.0 and label_entropy(soft[:0]) == 0.0


def test_figures_of_images_name_their_feature_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IMAGES", 12)
    generator = np.random.Generator(np.random.PCG64(3))
    images = generator.integers(0, 256, (20, 1, 28, 28), dtype=np.uint8)
    labels = np.arange(20) % 2
    same = LabelledSet(images, labels, ("a", "b"))
    dark = LabelledSet(images[:8] // 20, labels[:8], ("a", "b"), soft=np.full((8, 2), 0.5, np.float32))
    test, backbone = LabelledImages(images, labels, ("a", "b")), backbones.load("scatter28")
    close, far = (image_fidelity(backbone, each, test) for each in (same, dark))
    assert close["backbone"] == "scatter28" and close["images"] == close["real_images"] == 12
    assert close["coverage"] == 1.0 and close["frechet"] < 1e-6 and close["label_entropy"] == 0.0
    assert far["frechet"] > 1.0 and far["coverage"] < 0.5 and far["label_entropy"] == 1.0
    assert far["images"] == 8 and far["neighbours"] == 5
    few = LabelledImages(images[:5], labels[:5], ("a", "b"))
    assert "coverage" not in image_fidelity(backbone, dark, few)
