"""The classifier in SPS releases: ridge regression and Newton steps, against plain recomputations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps import classifier
from dpdd.common.methods.sps.classifier import CURVATURE, RESIDUAL_CLIP, SHARPNESS, SHRINKAGE
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.sps.specification import feature_statistics
from dpdd.common.methods.sps.synthesis import ImageTask
from dpdd.common.models.backbone import load
from dpdd.common.synthesis.statistics import Statistics
from tests.common.methods.sps import bars as world
from tests.common.methods.sps.bars import CLASSES, SHAPE, bars, embeddings_of, spec_for
from tests.common.methods.sps.released import statistics_of

backbone = world.backbone


def test_on_clean_sums_it_is_ridge_regression(backbone: str) -> None:
    """With a ridge of a thousandth of the mean variance, and scores of ten times one-hot, less their mean."""
    spec = spec_for(backbone)
    images, labels = bars(90)
    x = embeddings_of(spec, images).double().numpy()
    y = np.eye(CLASSES)[labels.numpy()]
    q = x.T @ x / len(x)
    weights = np.linalg.solve(q + 1e-3 * np.trace(q) / len(q) * np.eye(len(q)), x.T @ y / len(x)).T
    expected = SHARPNESS * (weights - weights.mean(0))
    found = classifier.learn([statistics_of(spec, images, labels)], [spec])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert found.dtype == np.float32 and found.shape == (CLASSES, 23)


def test_it_tells_unseen_images_apart(backbone: str) -> None:
    spec = spec_for(backbone)
    weights = torch.from_numpy(classifier.learn([statistics_of(spec, *bars(600))], [spec]))
    images, labels = bars(300, seed=3)
    answers = (embeddings_of(spec, images) @ weights.T).argmax(1)
    assert (answers == labels).float().mean() > 0.95


def test_a_later_stage_is_one_newton_step(backbone: str) -> None:
    """From the classifier that the stage was asked with, with the shrunk second moment for a Hessian."""
    specs = [spec_for(backbone, stage) for stage in (0, 1)]
    images, labels = bars(90)
    first = statistics_of(specs[0], images, labels)
    start = np.random.default_rng(1).normal(size=(CLASSES, 23)).astype(np.float32)
    later = statistics_of(specs[1], images, labels, stage_input={"teacher": start})
    x = embeddings_of(specs[0], images).double().numpy()
    logits = x @ start.T.astype(np.float64)
    p = np.exp(logits - logits.max(1, keepdims=True))
    wrong = p / p.sum(1, keepdims=True) - np.eye(CLASSES)[labels.numpy()]
    wrong /= np.maximum(np.linalg.norm(wrong, axis=1, keepdims=True) / RESIDUAL_CLIP, 1.0)
    q = x.T @ x / len(x)
    hessian = CURVATURE * (q + 1e-3 * np.trace(q) / len(q) * np.eye(len(q)))
    expected = start - np.linalg.solve(hessian, (wrong.T @ x / len(x)).T).T
    found = classifier.learn([first, later], specs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_the_last_stage_decides_and_each_starts_from_its_own_input(backbone: str) -> None:
    """A late silo changes the first stage's sums, but not what later stages were asked with."""
    specs = [spec_for(backbone, min(stage, 1)) for stage in range(3)]
    images, labels = bars(90)
    first = statistics_of(specs[0], images, labels)
    a, b = (np.random.default_rng(seed).normal(size=(CLASSES, 23)).astype(np.float32) for seed in (1, 2))
    stages = [statistics_of(specs[1], images, labels, stage_input={"teacher": start}) for start in (a, b)]
    both = classifier.learn([first, *stages], specs)
    np.testing.assert_array_equal(both, classifier.learn([first, stages[1]], [specs[0], specs[2]]))
    one = classifier.learn([first, stages[0]], specs[:2])
    assert np.abs(both - one).max() > 1e-2
    for average_last_stages in (2, 3):  # the mean of all steps there are; ridge alone is none
        np.testing.assert_allclose(
            classifier.learn([first, *stages], specs, average_last_stages), (one + both) / 2, atol=1e-4
        )
    np.testing.assert_array_equal(classifier.learn([first], specs[:1], 3), classifier.learn([first], specs[:1]))


def test_a_set_s_teacher_averages_as_many_stages_as_the_settings_say(backbone: str) -> None:
    specs = [spec_for(backbone, min(stage, 1)) for stage in range(3)]
    images, labels = bars(90)
    statistics = [statistics_of(specs[0], images, labels)]
    for seed in (1, 2):
        start = np.random.default_rng(seed).normal(size=(CLASSES, 23)).astype(np.float32)
        statistics.append(statistics_of(specs[1], images, labels, stage_input={"teacher": start}))
    settings, run = (
        MethodSettings(backbone=backbone, features=6, picture=4, stages=3),
        RunDescription(("a", "b", "c"), SHAPE, 1),
    )
    for average_last_stages in (1, 2):
        synthesis = SynthesisSettings(average_last_stages=average_last_stages)
        task = ImageTask(statistics, settings, synthesis, run, 2)
        assert task.released.teacher is not None
        expected = classifier.learn(statistics, task.released.specs, average_last_stages)
        np.testing.assert_array_equal(task.released.teacher.weights, expected)


def test_newton_steps_lower_the_loss(backbone: str) -> None:
    specs, (images, labels) = [spec_for(backbone)], bars(300)
    labels = torch.where(torch.rand(300, generator=torch.Generator().manual_seed(5)) < 0.2, 0, labels)  # some doubt
    statistics, embeddings, losses = [statistics_of(specs[0], images, labels)], embeddings_of(specs[0], images), []
    for _ in range(4):
        weights = classifier.learn(statistics, specs)
        losses.append(float(torch.nn.functional.cross_entropy(embeddings @ torch.from_numpy(weights).T, labels)))
        specs.append(spec_for(backbone, 1))
        statistics.append(statistics_of(specs[-1], images, labels, stage_input={"teacher": weights}))
    assert losses[-1] < losses[0] - 0.01


def test_unclipped_residuals_are_the_gradient_of_cross_entropy(backbone: str) -> None:
    spec = spec_for(backbone)
    images, labels = bars(60)
    embeddings = embeddings_of(spec, images)
    best = torch.from_numpy(classifier.learn([statistics_of(spec, images, labels)], [spec]))
    weights = (3.0 * best).requires_grad_(True)  # sure enough that nobody is clipped
    torch.nn.functional.cross_entropy(embeddings @ weights.T, labels, reduction="sum").backward()
    wrong = classifier.residuals(embeddings, labels, weights.detach())
    kept = wrong.norm(dim=1) < 1.0
    assert kept.float().mean() > 0.9
    if not kept.all():
        weights.grad = None
        torch.nn.functional.cross_entropy(embeddings[kept] @ weights.T, labels[kept], reduction="sum").backward()
    assert weights.grad is not None
    torch.testing.assert_close(RESIDUAL_CLIP * wrong[kept].T @ embeddings[kept], weights.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4, 1e30])
def test_residuals_have_norm_one_at_most_and_keep_their_direction(backbone: str, scale: float) -> None:
    embeddings, labels = embeddings_of(spec_for(backbone), bars(60)[0]), bars(60)[1]
    weights = scale * torch.randn(CLASSES, 23, generator=torch.Generator().manual_seed(1))
    found = classifier.residuals(embeddings, labels, weights)
    assert (found.norm(dim=1) <= 1.0 + 1e-6).all()
    wrong = torch.softmax(embeddings.double() @ weights.double().T, 1) - torch.eye(CLASSES)[labels]
    length = wrong.norm(dim=1).clamp_min(RESIDUAL_CLIP)
    if scale <= 30.0:
        torch.testing.assert_close(found.double(), wrong / length[:, None], atol=1e-5, rtol=0)


def test_residuals_do_not_depend_on_the_place_in_a_batch(backbone: str) -> None:
    """To the last bit, and for classifiers that blow up the last bit as well."""
    embeddings = embeddings_of(spec_for(backbone), bars(250)[0])
    labels = bars(250)[1]
    for scale in (1.0, 1e8, 1e30, 3e38):
        weights = scale * torch.randn(CLASSES, 23, generator=torch.Generator().manual_seed(1)).sign()
        straight = classifier.residuals(embeddings, labels, weights)
        turned = classifier.residuals(embeddings.roll(1, 0), labels.roll(1), weights).roll(-1, 0)
        assert torch.equal(straight.nan_to_num(9.0), turned.nan_to_num(9.0))


def test_noise_shrinks_it(backbone: str) -> None:
    spec = spec_for(backbone)
    statistics = statistics_of(spec, *bars(300))
    sizes = []
    for noise in (0.0, 0.01, 0.1, 1.0):
        sizes.append(float(np.linalg.norm(classifier.learn([replace(statistics, noise=noise)], [spec]))))
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.2 * sizes[0]


def test_shrinkage_is_what_the_noise_in_the_second_moment_demands(backbone: str) -> None:
    """The spectral norm that is stated, against that of drawn noise."""
    spec = spec_for(backbone)
    images, labels = bars(300)
    clean = classifier.moments_of(statistics_of(spec, images, labels), spec)
    noisy = classifier.moments_of(statistics_of(spec, images, labels, noise=0.5), spec)
    largest = float(torch.linalg.eigvalsh(noisy.second - clean.second).abs().max())
    assert largest == pytest.approx(noisy.spectral_noise, rel=0.35) and 0.0 < SHRINKAGE <= 1.0
    entries = (noisy.second - clean.second)[*torch.triu_indices(23, 23, 1)]
    assert float(entries.std()) == pytest.approx(noisy.noise, rel=0.2)
    torch.testing.assert_close(noisy.second, noisy.second.T)
    levels = (noisy.means * noisy.counts[:, None] - clean.means * clean.counts[:, None]).std(1)
    torch.testing.assert_close(levels, noisy.mean_noise * noisy.counts, rtol=0.5, atol=0.0)


def test_moments_of_clean_sums_are_the_data_s_own(backbone: str) -> None:
    spec = spec_for(backbone)
    images, labels = bars(91)
    x = embeddings_of(spec, images).double()
    found = classifier.moments_of(statistics_of(spec, images, labels), spec)
    torch.testing.assert_close(found.counts, torch.bincount(labels).double())
    torch.testing.assert_close(found.second, x.T @ x / 91, atol=1e-9, rtol=1e-6)
    means = torch.stack([x[labels == label].mean(0) for label in range(CLASSES)])
    torch.testing.assert_close(found.means, means, atol=1e-9, rtol=1e-6)
    around = x - means[labels]
    torch.testing.assert_close(found.within, around.T @ around / 91, atol=1e-9, rtol=1e-6)
    assert found.known.all() and found.spectral_noise == 0.0


def test_a_class_lost_in_noise_is_said_to_be(backbone: str) -> None:
    spec = spec_for(backbone)
    images, labels = bars(90)
    statistics = statistics_of(spec, images[labels < 2], labels[labels < 2])
    sums = {name: array.copy() for name, array in statistics.sums.items()}
    sums["count"][2] = -0.3
    found = classifier.moments_of(Statistics(sums, 0.2, 1), spec)
    assert found.known.tolist() == [True, True, False] and float(found.counts[2]) == 1.0
    assert np.isfinite(classifier.learn([Statistics(sums, 0.2, 1)], [spec])).all()


# Several tasks


def tasks_of(
    backbone: str, noise: float = 0.0
) -> tuple[list[FeatureStatistics], list[Statistics], FeatureStatistics, Statistics]:
    """Five classes, 24 records of the first and more of each next one, in tasks of two and three; and all at once."""
    settings = MethodSettings(backbone=backbone, features=6, picture=4)
    specs = [feature_statistics(settings, load(backbone), classes, SHAPE, 1) for classes in (2, 3, 5)]
    labels = torch.arange(5).repeat_interleave(torch.tensor([24, 30, 40, 50, 60]))
    images = 0.6 * torch.rand(len(labels), *SHAPE, generator=torch.Generator().manual_seed(6))
    for label in range(5):
        images[labels == label, :, 2 * label : 2 * label + 3] += 0.3
    first = labels < 2
    parts = [
        statistics_of(specs[0], images[first], labels[first], noise),
        statistics_of(specs[1], images[~first], labels[~first] - 2, noise),
    ]
    return specs[:2], parts, specs[2], statistics_of(specs[2], images, labels, noise)


def test_tasks_add_up_to_what_one_release_over_all_classes_says(backbone: str) -> None:
    specs, parts, spec, whole = tasks_of(backbone)
    moments = classifier.joined([classifier.moments_of(*part) for part in zip(parts, specs, strict=True)])
    expected = classifier.moments_of(whole, spec)
    for field in ("means", "counts", "second", "mean_noise", "known", "within", "shares"):
        torch.testing.assert_close(getattr(moments, field), getattr(expected, field), atol=1e-9, rtol=1e-6)
    settings, tasks = MethodSettings(backbone=backbone, features=6, picture=4), (("a", "b"), ("c", "d", "e"))
    teacher = method("sps").joint_teacher(parts, settings, tasks, RunDescription(tuple("abcde"), SHAPE, 1))
    assert teacher is not None and teacher.classes == 5 and teacher.backbone_sha256 == load(backbone).card.sha256
    weights = classifier.learn([whole], [spec])
    np.testing.assert_allclose(teacher.weights, weights, rtol=1e-4, atol=1e-4 * np.abs(weights).max())


def test_noise_of_tasks_adds_up_in_the_second_moment_only(backbone: str) -> None:
    """What is stated, against drawn noise: smaller tasks have more of it, in all and in their own class means."""
    specs, clean, *_ = tasks_of(backbone)
    noisy = [replace(part, noise=level) for part, level in zip(tasks_of(backbone, 1.0)[1], (0.3, 0.6), strict=True)]
    for part, before, level in zip(noisy, clean, (0.3, 0.6), strict=True):
        for name, array in part.sums.items():
            array *= level
            array += (1.0 - level) * before.sums[name]
    before, after = (
        classifier.joined([classifier.moments_of(*part) for part in zip(parts, specs, strict=True)])
        for parts in (clean, noisy)
    )
    total, weight = float(after.counts.sum()), specs[0].weights["portrait-moment"]
    assert after.noise == pytest.approx(np.hypot(0.3, 0.6) / weight / total / np.sqrt(2.0))
    scale = float(before.counts.sum()) / total  # noisy counts
    entries = (after.second - scale * before.second)[*torch.triu_indices(23, 23, 1)]
    assert float(entries.std()) == pytest.approx(after.noise, rel=0.2)
    torch.testing.assert_close(after.second, after.second.T)
    levels = (after.means * after.counts[:, None] - before.means * before.counts[:, None]).std(1)
    torch.testing.assert_close(levels, after.mean_noise * after.counts, rtol=0.5, atol=0.0)
    assert float((after.mean_noise * after.counts)[2] / (after.mean_noise * after.counts)[1]) == pytest.approx(2.0)


def test_tasks_without_embeddings_have_no_teacher(backbone: str) -> None:
    settings = MethodSettings(backbone=backbone, features=0, picture=0, thumbnail=4)
    run = RunDescription(("a", "b"), SHAPE, 1)
    assert method("sps").joint_teacher([Statistics({}, 0.0, 1)], settings, [("a", "b")], run) is None
