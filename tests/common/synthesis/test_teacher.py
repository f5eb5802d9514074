"""The teacher: ridge regression and Newton steps against plain recomputations, and a file that refuses garbage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor

from dpdd.common.errors import DataError
from dpdd.common.methods.sps import synthesis as sps
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.synthesis import teacher
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import TEACHER, LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.teacher import CURVATURE, RESIDUAL_CLIP, SHARPNESS, SHRINKAGE, Teacher
from tests.common.synthesis.released import statistics_of

SHAPE = (1, 12, 12)
CLASSES = 3


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(8, 16), pool_after=(1,)))
    with torch.no_grad():
        network.whitening.fit(network.eval().features(torch.rand(300, *SHAPE)))
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return str(path)


def table_for(backbone: str, stage: int = 0) -> FeatureStatistics:
    settings = sps.MethodSettings(backbone=backbone, features=6, picture=4, stages=2)
    return sps.feature_statistics(settings, load(backbone), CLASSES, SHAPE, 1, stage)


def bars(count: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    """A bright bar at the left, in the middle or at the right, dimly."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    images = 0.6 * torch.rand(count, *SHAPE, generator=generator)
    for label in range(CLASSES):
        images[labels == label, :, :, 4 * label : 4 * label + 4] += 0.2
    return images, labels


def embeddings_of(spec: FeatureStatistics, images: Tensor) -> Tensor:
    with torch.no_grad():
        _, embeddings = spec.measure(images)
    assert embeddings is not None
    return embeddings


def test_on_clean_sums_it_is_ridge_regression(backbone: str) -> None:
    """With a ridge of a thousandth of the mean variance, and scores of ten times one-hot, less their mean."""
    spec = table_for(backbone)
    images, labels = bars(90)
    x = embeddings_of(spec, images).double().numpy()
    y = np.eye(CLASSES)[labels.numpy()]
    q = x.T @ x / len(x)
    weights = np.linalg.solve(q + 1e-3 * np.trace(q) / len(q) * np.eye(len(q)), x.T @ y / len(x)).T
    expected = SHARPNESS * (weights - weights.mean(0))
    found = teacher.learn([statistics_of(spec, images, labels)], [spec])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert found.dtype == np.float32 and found.shape == (CLASSES, 23)


def test_it_tells_unseen_images_apart(backbone: str) -> None:
    spec = table_for(backbone)
    weights = torch.from_numpy(teacher.learn([statistics_of(spec, *bars(600))], [spec]))
    images, labels = bars(300, seed=3)
    answers = (embeddings_of(spec, images) @ weights.T).argmax(1)
    assert (answers == labels).float().mean() > 0.95


def test_a_later_stage_is_one_newton_step(backbone: str) -> None:
    """From where that stage was centred, with the shrunk second moment for a Hessian."""
    specs = [table_for(backbone, stage) for stage in (0, 1)]
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
    found = teacher.learn([first, later], specs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_the_last_stage_decides_and_each_starts_from_its_own_centre(backbone: str) -> None:
    """A late silo changes the first stage's sums, but not what later stages were centred on."""
    specs = [table_for(backbone, min(stage, 1)) for stage in range(3)]
    images, labels = bars(90)
    first = statistics_of(specs[0], images, labels)
    a, b = (np.random.default_rng(seed).normal(size=(CLASSES, 23)).astype(np.float32) for seed in (1, 2))
    stages = [statistics_of(specs[1], images, labels, stage_input={"teacher": start}) for start in (a, b)]
    both = teacher.learn([first, *stages], specs)
    np.testing.assert_array_equal(both, teacher.learn([first, stages[1]], [specs[0], specs[2]]))
    one = teacher.learn([first, stages[0]], specs[:2])
    assert np.abs(both - one).max() > 1e-2
    for average_last_stages in (2, 3):  # the mean of all steps there are; ridge alone is none
        np.testing.assert_allclose(
            teacher.learn([first, *stages], specs, average_last_stages), (one + both) / 2, atol=1e-4
        )
    np.testing.assert_array_equal(teacher.learn([first], specs[:1], 3), teacher.learn([first], specs[:1]))


def test_a_set_s_teacher_is_as_settled_as_the_settings_say(backbone: str) -> None:
    specs = [table_for(backbone, min(stage, 1)) for stage in range(3)]
    images, labels = bars(90)
    statistics = [statistics_of(specs[0], images, labels)]
    for seed in (1, 2):
        start = np.random.default_rng(seed).normal(size=(CLASSES, 23)).astype(np.float32)
        statistics.append(statistics_of(specs[1], images, labels, stage_input={"teacher": start}))
    method = sps.MethodSettings(backbone=backbone, features=6, picture=4, stages=3)
    for average_last_stages in (1, 2):
        settings = sps.SynthesisSettings(average_last_stages=average_last_stages)
        task = sps.ImageTask(statistics, method, settings, tuple("abcdefghij"[:CLASSES]), SHAPE, 1, 2)
        assert task.guide is not None
        np.testing.assert_array_equal(task.guide.weights, teacher.learn(statistics, task.specs, average_last_stages))


def test_newton_steps_lower_the_loss(backbone: str) -> None:
    specs, (images, labels) = [table_for(backbone)], bars(300)
    labels = torch.where(torch.rand(300, generator=torch.Generator().manual_seed(5)) < 0.2, 0, labels)  # some doubt
    statistics, embeddings, losses = [statistics_of(specs[0], images, labels)], embeddings_of(specs[0], images), []
    for _ in range(4):
        weights = teacher.learn(statistics, specs)
        losses.append(float(torch.nn.functional.cross_entropy(embeddings @ torch.from_numpy(weights).T, labels)))
        specs.append(table_for(backbone, 1))
        statistics.append(statistics_of(specs[-1], images, labels, stage_input={"teacher": weights}))
    assert losses[-1] < losses[0] - 0.01


def test_unclipped_residuals_are_the_gradient_of_cross_entropy(backbone: str) -> None:
    spec = table_for(backbone)
    images, labels = bars(60)
    embeddings = embeddings_of(spec, images)
    best = torch.from_numpy(teacher.learn([statistics_of(spec, images, labels)], [spec]))
    weights = (3.0 * best).requires_grad_(True)  # sure enough that nobody is clipped
    torch.nn.functional.cross_entropy(embeddings @ weights.T, labels, reduction="sum").backward()
    wrong = teacher.residuals(embeddings, labels, weights.detach())
    kept = wrong.norm(dim=1) < 1.0
    assert kept.float().mean() > 0.9
    if not kept.all():
        weights.grad = None
        torch.nn.functional.cross_entropy(embeddings[kept] @ weights.T, labels[kept], reduction="sum").backward()
    assert weights.grad is not None
    torch.testing.assert_close(RESIDUAL_CLIP * wrong[kept].T @ embeddings[kept], weights.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4, 1e30])
def test_residuals_have_norm_one_at_most_and_keep_their_direction(backbone: str, scale: float) -> None:
    embeddings, labels = embeddings_of(table_for(backbone), bars(60)[0]), bars(60)[1]
    weights = scale * torch.randn(CLASSES, 23, generator=torch.Generator().manual_seed(1))
    found = teacher.residuals(embeddings, labels, weights)
    assert (found.norm(dim=1) <= 1.0 + 1e-6).all()
    wrong = torch.softmax(embeddings.double() @ weights.double().T, 1) - torch.eye(CLASSES)[labels]
    length = wrong.norm(dim=1).clamp_min(RESIDUAL_CLIP)
    if scale <= 30.0:
        torch.testing.assert_close(found.double(), wrong / length[:, None], atol=1e-5, rtol=0)


def test_residuals_do_not_depend_on_the_place_in_a_batch(backbone: str) -> None:
    """To the last bit, and for classifiers that blow up the last bit as well."""
    embeddings = embeddings_of(table_for(backbone), bars(250)[0])
    labels = bars(250)[1]
    for scale in (1.0, 1e8, 1e30, 3e38):
        weights = scale * torch.randn(CLASSES, 23, generator=torch.Generator().manual_seed(1)).sign()
        straight = teacher.residuals(embeddings, labels, weights)
        turned = teacher.residuals(embeddings.roll(1, 0), labels.roll(1), weights).roll(-1, 0)
        assert torch.equal(straight.nan_to_num(9.0), turned.nan_to_num(9.0))


def test_noise_shrinks_it(backbone: str) -> None:
    spec = table_for(backbone)
    statistics = statistics_of(spec, *bars(300))
    sizes = []
    for noise in (0.0, 0.01, 0.1, 1.0):
        sizes.append(float(np.linalg.norm(teacher.learn([replace(statistics, noise=noise)], [spec]))))
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.2 * sizes[0]


def test_shrinkage_is_what_the_noise_in_the_second_moment_demands(backbone: str) -> None:
    """The spectral norm that is stated, against that of drawn noise."""
    spec = table_for(backbone)
    images, labels = bars(300)
    clean = teacher.moments_of(statistics_of(spec, images, labels), spec)
    noisy = teacher.moments_of(statistics_of(spec, images, labels, noise=0.5), spec)
    largest = float(torch.linalg.eigvalsh(noisy.second - clean.second).abs().max())
    assert largest == pytest.approx(noisy.spectral_noise, rel=0.35) and 0.0 < SHRINKAGE <= 1.0
    entries = (noisy.second - clean.second)[*torch.triu_indices(23, 23, 1)]
    assert float(entries.std()) == pytest.approx(noisy.noise, rel=0.2)
    torch.testing.assert_close(noisy.second, noisy.second.T)
    levels = (noisy.means * noisy.counts[:, None] - clean.means * clean.counts[:, None]).std(1)
    torch.testing.assert_close(levels, noisy.mean_noise * noisy.counts, rtol=0.5, atol=0.0)


def test_moments_of_clean_sums_are_the_data_s_own(backbone: str) -> None:
    spec = table_for(backbone)
    images, labels = bars(91)
    x = embeddings_of(spec, images).double()
    found = teacher.moments_of(statistics_of(spec, images, labels), spec)
    torch.testing.assert_close(found.counts, torch.bincount(labels).double())
    torch.testing.assert_close(found.second, x.T @ x / 91, atol=1e-9, rtol=1e-6)
    means = torch.stack([x[labels == label].mean(0) for label in range(CLASSES)])
    torch.testing.assert_close(found.means, means, atol=1e-9, rtol=1e-6)
    around = x - means[labels]
    torch.testing.assert_close(found.within, around.T @ around / 91, atol=1e-9, rtol=1e-6)
    assert found.known.all() and found.spectral_noise == 0.0


def test_a_class_lost_in_noise_is_said_to_be(backbone: str) -> None:
    spec = table_for(backbone)
    images, labels = bars(90)
    statistics = statistics_of(spec, images[labels < 2], labels[labels < 2])
    sums = {name: array.copy() for name, array in statistics.sums.items()}
    sums["count"][2] = -0.3
    found = teacher.moments_of(Statistics(sums, 0.2, 1), spec)
    assert found.known.tolist() == [True, True, False] and float(found.counts[2]) == 1.0
    assert np.isfinite(teacher.learn([Statistics(sums, 0.2, 1)], [spec])).all()


# Several tasks


def tasks_of(
    backbone: str, noise: float = 0.0
) -> tuple[list[FeatureStatistics], list[Statistics], FeatureStatistics, Statistics]:
    """Five classes, 24 records of the first and more of each next one, in tasks of two and three; and all at once."""
    settings = sps.MethodSettings(backbone=backbone, features=6, picture=4)
    specs = [sps.feature_statistics(settings, load(backbone), classes, SHAPE, 1) for classes in (2, 3, 5)]
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
    moments = teacher.joined([teacher.moments_of(*part) for part in zip(parts, specs, strict=True)])
    expected = teacher.moments_of(whole, spec)
    for field in ("means", "counts", "second", "mean_noise", "known", "within", "shares"):
        torch.testing.assert_close(getattr(moments, field), getattr(expected, field), atol=1e-9, rtol=1e-6)
    classes = (("a", "b"), ("c", "d", "e"))
    made = sps.joint_teacher(parts, sps.MethodSettings(backbone=backbone, features=6, picture=4), classes, SHAPE)
    assert made is not None and made.classes == 5 and made.backbone_sha256 == load(backbone).card.sha256
    weights = teacher.learn([whole], [spec])
    np.testing.assert_allclose(made.weights, weights, rtol=1e-4, atol=1e-4 * np.abs(weights).max())


def test_noise_of_tasks_adds_up_in_the_second_moment_only(backbone: str) -> None:
    """What is stated, against drawn noise: smaller tasks have more of it, in all and in their own class means."""
    specs, clean, *_ = tasks_of(backbone)
    noisy = [replace(part, noise=level) for part, level in zip(tasks_of(backbone, 1.0)[1], (0.3, 0.6), strict=True)]
    for part, before, level in zip(noisy, clean, (0.3, 0.6), strict=True):
        for name, array in part.sums.items():
            array *= level
            array += (1.0 - level) * before.sums[name]
    before, after = (
        teacher.joined([teacher.moments_of(*part) for part in zip(parts, specs, strict=True)])
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


def test_tasks_without_portraits_have_no_teacher(backbone: str) -> None:
    settings = sps.MethodSettings(backbone=backbone, features=0, picture=0, thumbnail=4)
    assert sps.joint_teacher([Statistics({}, 0.0, 1)], settings, [("a", "b")], SHAPE) is None


# The file


def saved(backbone: str, folder: Path) -> Teacher:
    spec = table_for(backbone)
    assert spec.embedding is not None
    weights = teacher.learn([statistics_of(spec, *bars(90))], [spec])
    made = Teacher(weights, backbone, load(backbone).card.sha256, spec.embedding)
    made.save(folder)
    return made


def test_round_trip(backbone: str, tmp_path: Path) -> None:
    made = saved(backbone, tmp_path)
    loaded = Teacher.load(tmp_path)
    assert loaded is not None and loaded.classes == CLASSES
    assert (loaded.backbone, loaded.backbone_sha256, loaded.embedding) == (
        backbone,
        made.backbone_sha256,
        made.embedding,
    )
    images, labels = bars(700, seed=4)
    assert torch.equal(loaded.probabilities(images), made.probabilities(images))
    torch.testing.assert_close(loaded.probabilities(images), torch.softmax(made.logits(images), 1))
    torch.testing.assert_close(loaded.probabilities(images).sum(1), torch.ones(700))
    assert (loaded.probabilities(images).argmax(1) == labels).float().mean() > 0.9
    first = (tmp_path / TEACHER).read_bytes()
    loaded.save(tmp_path)
    assert (tmp_path / TEACHER).read_bytes() == first


def test_asking_it_for_the_first_time_leaves_torchs_generator_alone(backbone: str, tmp_path: Path) -> None:
    """Or what is trained next would depend on whether the teacher was asked before."""
    saved(backbone, tmp_path)
    loaded = Teacher.load(tmp_path)
    assert loaded is not None
    before = torch.random.get_rng_state()
    loaded.probabilities(bars(3)[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_dataset_brings_its_teacher_and_no_other(backbone: str, tmp_path: Path) -> None:
    made = saved(backbone, tmp_path)
    images = np.zeros((2, *SHAPE), np.uint8)
    LabelledSet(images, np.array([0, 1]), ("a", "b", "c"), None, made).save(tmp_path)
    found = LabelledSet.load(tmp_path).teacher
    assert found is not None
    np.testing.assert_array_equal(found.weights, made.weights)
    LabelledSet(images, np.array([0, 1]), ("a", "b", "c")).save(tmp_path)
    assert LabelledSet.load(tmp_path).teacher is None and Teacher.load(tmp_path) is None


@pytest.mark.parametrize(
    ("weights", "about"),
    [
        (np.ones((3, 22), np.float32), {}),
        (np.ones((3, 24), np.float32), {}),
        (np.ones(23, np.float32), {}),
        (np.ones((3, 23, 1), np.float32), {}),
        (np.ones((3, 23), np.float64), {}),
        (np.full((3, 23), np.nan, np.float32), {}),
        (np.ones((3, 23), np.float32), {"§embedding§": [6, 4]}),
        (np.ones((3, 23), np.float32), {"§embedding§": ["6", "4", "1"]}),
        (np.ones((3, 23), np.float32), {"§embedding§": None}),
        (np.ones((3, 23), np.float32), None),
    ],
    ids=["narrow", "wide", "flat", "cubic", "double", "nan", "short", "text", "none", "no header"],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, weights: np.ndarray, about: dict[str, object]) -> None:
    header = None
    if about is not None:
        header = {"dpdd": json.dumps({"backbone": "gray28", "sha256": "", "§embedding§": [6, 4, 1]} | about)}
    save_file({"weights": weights}, tmp_path / TEACHER, metadata=header)
    with pytest.raises(DataError, match="not a teacher"):
        Teacher.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 100])
def test_files_that_are_no_teachers_are_refused(backbone: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / TEACHER).write_bytes(content)
    with pytest.raises(DataError, match="not a teacher"):
        Teacher.load(tmp_path)


def test_portraits_of_another_backbone_are_refused(backbone: str) -> None:
    from dpdd.common.errors import IntegrityError

    made = Teacher(np.zeros((3, 23), np.float32), backbone, "0" * 64, ImageEmbedding(6, 4, 1))
    with pytest.raises(IntegrityError, match="asked for"):
        made.logits(torch.rand(1, *SHAPE))


# Lessons


@pytest.mark.parametrize("count", [1, 99, 100, 250, 601])
def test_lessons_are_images_and_as_many_as_asked(count: int) -> None:
    images = torch.rand(30, 3, 16, 12, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    found = [teacher.lessons(images, count, 0.08, True, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert found[0].shape == (count, 3, 16, 12) and found[0].min() >= 0 and found[0].max() <= 1
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert torch.equal(images, before)


def test_a_third_of_the_lessons_each_is_jostled_blended_and_pasted() -> None:
    """From black and white images: jostled ones are dark or light all over, blends in between, collages in parts."""
    images = torch.zeros(20, 1, 14, 14)
    images[10:] = 1.0
    made = teacher.lessons(images, 900, 0.05, False, torch.Generator().manual_seed(1)).view(9, 100, -1)
    flat = made.amax(2) - made.amin(2) < 1e-3
    grey = flat & (made.mean(2) > 0.01) & (made.mean(2) < 0.4)
    assert flat[0::3].all() and not grey[0::3].any()
    assert flat[1::3].all() and float(grey[1::3].float().mean()) > 0.05
    assert 0.3 < float(flat[2::3].float().mean()) < 0.7


@pytest.mark.parametrize("flips", [True, False])
def test_half_of_the_lessons_are_mirrored_if_asked(flips: bool) -> None:
    images = torch.zeros(4, 1, 14, 14)
    images[..., :7] = 1.0
    jostled = teacher.lessons(images, 100, 0.05, flips, torch.Generator().manual_seed(2))
    mirrored = float((jostled[..., 12].mean((1, 2)) > jostled[..., 1].mean((1, 2))).float().mean())
    assert 0.35 < mirrored < 0.65 if flips else mirrored == 0.0
