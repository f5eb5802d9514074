"""MomentLoss: nothing for a batch with the released moments, more for wrong labels and for other images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpdd.common.methods.sps import moment_loss as moment_loss_module
from dpdd.common.methods.sps.classifier import Moments
from dpdd.common.methods.sps.moment_loss import MomentLoss
from dpdd.common.synthesis.image_embedding import ImageEmbedding

EMBEDDING = ImageEmbedding(features=10, side=3, channels=1)
CLASSES, SIZE = 4, EMBEDDING.dimensions


def population(count: int, seed: int = 0, uneven: bool = False) -> tuple[Tensor, Tensor]:
    """Gaussian classes around means of their own with one covariance, about as large as real embeddings."""
    world = torch.Generator().manual_seed(1)
    means = 0.15 * torch.randn(CLASSES, SIZE, dtype=torch.float64, generator=world)
    mixing = 0.06 * torch.randn(SIZE, SIZE, dtype=torch.float64, generator=world) / SIZE**0.5
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    if uneven:
        labels = labels * (torch.rand(count, generator=generator) < 0.5)
    noise = torch.randn(count, SIZE, dtype=torch.float64, generator=generator) @ mixing
    return means[labels] + noise, labels


def moments_of(embeddings: Tensor, labels: Tensor, noise: float = 0.0) -> Moments:
    """Moments by their definition, with noise in the second moment and the means."""
    counts = torch.bincount(labels, minlength=CLASSES).double()
    means = torch.stack([embeddings[labels == label].mean(0) for label in range(CLASSES)])
    second = embeddings.T @ embeddings / len(embeddings)
    generator = torch.Generator().manual_seed(9)
    symmetric = torch.randn(SIZE, SIZE, dtype=torch.float64, generator=generator)
    second = second + noise * (symmetric + symmetric.T) / 2.0**0.5
    means = means + noise * torch.randn(CLASSES, SIZE, dtype=torch.float64, generator=generator)
    everybody = torch.ones(CLASSES, dtype=torch.bool)
    return Moments(means, counts, second, noise, torch.full((CLASSES,), noise, dtype=torch.float64), everybody)


def exact(embeddings: Tensor, labels: Tensor) -> Moments:
    """The moments that this very batch should be matched to: its covariance with the degrees of freedom put back."""
    found = moments_of(embeddings, labels)
    spare = len(labels) / (len(labels) - CLASSES)
    between = (found.means.T * found.shares) @ found.means
    return Moments(found.means, found.counts, between + spare * found.within, 0.0, torch.zeros(CLASSES), found.known)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_batch_with_the_released_moments_has_no_gaps(uneven: bool) -> None:
    embeddings, labels = population(48, uneven=uneven)
    moment_loss = MomentLoss.of(exact(embeddings, labels), EMBEDDING)
    features, picture = moment_loss.losses(embeddings.float(), labels)
    assert abs(float(features)) < 1e-4 and abs(float(picture)) < 1e-4


def test_gaps_of_another_sample_are_small_and_fall_with_its_size() -> None:
    moment_loss = MomentLoss.of(moments_of(*population(20_000)), EMBEDDING)
    sums = [
        sum(float(gap) for gap in moment_loss.losses(p.float(), y)) for p, y in (population(n, 5) for n in (80, 4000))
    ]
    assert 0.0 <= sums[1] < 0.2 * sums[0] and sums[1] < 0.05


def test_wrong_labels_and_other_images_have_larger_gaps() -> None:
    moment_loss = MomentLoss.of(moments_of(*population(20_000)), EMBEDDING)
    embeddings, labels = population(400, 5)
    right = moment_loss.losses(embeddings.float(), labels)
    shifted, grown, flat = embeddings.clone(), embeddings.clone(), embeddings.clone()
    shifted[:, EMBEDDING.picture] += 0.1
    grown += 2.0 * (embeddings - moments_of(embeddings, labels).means[labels])
    flat -= 0.9 * (embeddings - moments_of(embeddings, labels).means[labels])
    for other, theirs in ((embeddings, labels.roll(1)), (shifted, labels), (grown, labels), (flat, labels)):
        features, picture = moment_loss.losses(other.float(), theirs)
        assert features > 2.0 * right[0] and picture > 2.0 * right[1]
    moved = embeddings.clone()
    moved[:, : EMBEDDING.features] += 0.1
    features, picture = moment_loss.losses(moved.float(), labels)
    assert features > 2.0 * right[0]
    torch.testing.assert_close(picture, right[1])  # its own business


def test_class_means_count_in_directions_of_little_spread_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moment_loss_module, "SPREAD_DIRECTIONS", 2)
    moment_loss = MomentLoss.of(moments_of(*population(20_000)), EMBEDDING)
    embeddings, labels = population(400, 5)
    aside = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    aside -= moment_loss.axes @ torch.linalg.lstsq(moment_loss.axes, aside[:, None]).solution[:, 0]
    moved = embeddings.float() + 0.1 * (labels == 0)[:, None] * aside / aside.norm()
    assert moment_loss.axes.shape == (SIZE, 2)
    assert moment_loss.losses(moved, labels)[0] > 1.5 * moment_loss.losses(embeddings.float(), labels)[0]


def test_gradients_lead_to_the_released_moments() -> None:
    moment_loss = MomentLoss.of(moments_of(*population(5000)), EMBEDDING)
    labels = torch.arange(80) % CLASSES
    embeddings = (0.05 * torch.randn(80, SIZE, generator=torch.Generator().manual_seed(3))).requires_grad_(True)
    before = sum(float(gap) for gap in moment_loss.losses(embeddings.detach(), labels))
    optimiser = torch.optim.Adam([embeddings], lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        features, picture = moment_loss.losses(embeddings, labels)
        (features + picture).backward()
        optimiser.step()
    assert float((features + picture).detach()) < 0.1 * before


def test_drawn_pictures_have_the_released_mean_and_covariance() -> None:
    moments = moments_of(*population(20_000))
    moment_loss = MomentLoss.of(moments, EMBEDDING)
    labels = torch.arange(40_000) % CLASSES
    drawn = moment_loss.draw(labels, torch.Generator().manual_seed(2)).double()
    assert not drawn[:, : EMBEDDING.features].any() and not drawn[:, -1].any()
    small = EMBEDDING.picture
    wanted = moments.within[small, small]
    scale = float(wanted.diagonal().mean())
    for label in range(CLASSES):
        mine = drawn[labels == label][:, small]
        torch.testing.assert_close(mine.mean(0), moments.means[label, small], atol=5 * (scale / 10_000) ** 0.5, rtol=0)
        torch.testing.assert_close(torch.cov(mine.T), wanted, atol=0.08 * scale, rtol=0)
    torch.testing.assert_close(drawn, moment_loss.draw(labels, torch.Generator().manual_seed(2)).double())


def test_noise_in_the_moments_leaves_gaps_finite_and_pictures_sober() -> None:
    """With noise that drowns the covariance, only the class means are drawn."""
    embeddings, labels = population(400)
    moment_loss = MomentLoss.of(moments_of(embeddings, labels, noise=0.05), EMBEDDING)
    assert all(bool(torch.isfinite(gap)) for gap in moment_loss.losses(embeddings.float(), labels))
    drawn = moment_loss.draw(labels, torch.Generator().manual_seed(2))[:, EMBEDDING.picture]
    assert float(drawn.std(0).max()) < 1.0


def test_the_noise_of_class_means_is_put_back_into_the_covariance() -> None:
    embeddings, labels = population(4000)
    clean = moments_of(embeddings, labels)
    generator = torch.Generator().manual_seed(4)
    found = torch.zeros_like(clean.second)
    for _ in range(400):
        noise = 0.02 * torch.randn(CLASSES, SIZE, dtype=torch.float64, generator=generator)
        levels = torch.full((CLASSES,), 0.02, dtype=torch.float64)
        found += Moments(clean.means + noise, clean.counts, clean.second, 0.0, levels, clean.known).within / 400
    assert float((found - clean.within).trace()) / SIZE == pytest.approx(0.0, abs=0.02**2 / 20)


def test_a_class_lost_in_noise_has_no_part_in_it() -> None:
    embeddings, labels = population(400)
    clean = exact(embeddings, labels)
    known = torch.tensor([True, True, True, False])
    means = clean.means.clone()
    means[3] = 50.0  # what noise over a count of 1 looks like
    counts = torch.tensor([100.0, 100.0, 100.0, 1.0], dtype=torch.float64)
    levels = torch.tensor([0.0, 0.0, 0.0, 50.0], dtype=torch.float64)
    second = moments_of(embeddings, labels).second
    moment_loss = MomentLoss.of(Moments(means, counts, second, 0.0, levels, known), EMBEDDING)
    features, picture = moment_loss.losses(embeddings.float(), labels)
    assert float(features) < 1.0 and float(picture) < 1.0
    drawn = moment_loss.draw(torch.full((2000,), 3), torch.Generator().manual_seed(2))[:, EMBEDDING.picture].double()
    overall = clean.means[:3, EMBEDDING.picture].mean(0)
    torch.testing.assert_close(drawn.mean(0), overall, atol=0.02, rtol=0)


def test_without_a_picture_there_is_no_picture_s_gap() -> None:
    embedding = ImageEmbedding(features=SIZE - 1, side=0, channels=1)
    embeddings, labels = population(200)
    moment_loss = MomentLoss.of(exact(embeddings, labels), embedding)
    features, picture = moment_loss.losses(embeddings.float(), labels)
    assert abs(float(features)) < 1e-4 and float(picture) == 0.0
    assert not moment_loss.draw(labels, torch.Generator().manual_seed(0)).any()


def test_all_classes_lost_leaves_nothing_to_match() -> None:
    embeddings, labels = population(200)
    found = moments_of(embeddings, labels)
    nobody = torch.zeros(CLASSES, dtype=torch.bool)
    lost = Moments(found.means, found.counts, found.second, 1.0, torch.ones(CLASSES).double(), nobody)
    moment_loss = MomentLoss.of(lost, EMBEDDING)
    assert [float(gap) for gap in moment_loss.losses(embeddings.float(), labels)] == [0.0, 0.0]
    assert torch.isfinite(moment_loss.draw(labels, torch.Generator().manual_seed(0))).all()
