"""The teacher: a file that refuses garbage, and images for it to label."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.methods.sps import classifier
from dpdd.common.models.backbone import load
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import TEACHER
from dpdd.common.synthesis.teacher import Teacher, teacher_augmentations
from tests.common.methods.sps import bars as world
from tests.common.methods.sps.bars import CLASSES, SHAPE, bars, spec_for
from tests.common.methods.sps.released import statistics_of

backbone = world.backbone


# The file


def saved(backbone: str, folder: Path) -> Teacher:
    spec = spec_for(backbone)
    assert spec.embedding is not None
    weights = classifier.learn([statistics_of(spec, *bars(90))], [spec])
    teacher = Teacher(weights, backbone, load(backbone).card.sha256, spec.embedding)
    teacher.save(folder)
    return teacher


def test_round_trip(backbone: str, tmp_path: Path) -> None:
    teacher = saved(backbone, tmp_path)
    loaded = Teacher.load(tmp_path)
    assert loaded is not None and loaded.classes == CLASSES
    assert (loaded.backbone, loaded.backbone_sha256, loaded.embedding) == (
        backbone,
        teacher.backbone_sha256,
        teacher.embedding,
    )
    images, labels = bars(700, seed=4)
    assert torch.equal(loaded.probabilities(images), teacher.probabilities(images))
    torch.testing.assert_close(loaded.probabilities(images), torch.softmax(teacher.logits(images), 1))
    torch.testing.assert_close(loaded.probabilities(images).sum(1), torch.ones(700))
    assert (loaded.probabilities(images).argmax(1) == labels).float().mean() > 0.9
    first = (tmp_path / TEACHER).read_bytes()
    loaded.save(tmp_path)
    assert (tmp_path / TEACHER).read_bytes() == first


def test_other_priors_are_a_shift_that_can_be_undone(backbone: str, tmp_path: Path) -> None:
    teacher = saved(backbone, tmp_path)
    equal, skewed = np.full(3, 1 / 3), np.array([0.7, 0.2, 0.1])
    turned = teacher.with_priors(equal, skewed)
    images = bars(50, seed=5)[0]
    expected = teacher.probabilities(images).double() * torch.from_numpy(skewed)
    torch.testing.assert_close(
        turned.probabilities(images).double(), expected / expected.sum(1, keepdim=True), rtol=1e-3, atol=1e-5
    )
    back = turned.with_priors(skewed, equal)
    np.testing.assert_allclose(back.weights, teacher.weights, atol=1e-5)
    assert np.isfinite(teacher.with_priors(equal, np.array([1e-300, 0.5, 0.5])).weights).all()


def test_asking_it_for_the_first_time_leaves_torchs_generator_alone(backbone: str, tmp_path: Path) -> None:
    """Or what is trained next would depend on whether the teacher was asked before."""
    saved(backbone, tmp_path)
    loaded = Teacher.load(tmp_path)
    assert loaded is not None
    before = torch.random.get_rng_state()
    loaded.probabilities(bars(3)[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_dataset_brings_its_teacher_and_no_other(backbone: str, tmp_path: Path) -> None:
    teacher = saved(backbone, tmp_path)
    images = np.zeros((2, *SHAPE), np.uint8)
    LabelledSet(images, np.array([0, 1]), ("a", "b", "c"), None, teacher).save(tmp_path)
    loaded = LabelledSet.load(tmp_path).teacher
    assert loaded is not None
    np.testing.assert_array_equal(loaded.weights, teacher.weights)
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
        (np.ones((3, 23), np.float32), {"portrait": [6, 4]}),
        (np.ones((3, 23), np.float32), {"portrait": ["6", "4", "1"]}),
        (np.ones((3, 23), np.float32), {"portrait": None}),
        (np.ones((3, 23), np.float32), None),
    ],
    ids=["narrow", "wide", "flat", "cubic", "double", "nan", "short", "text", "none", "no header"],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, weights: np.ndarray, about: dict[str, object]) -> None:
    header = None
    if about is not None:
        header = {"dpdd": json.dumps({"backbone": "gray28", "sha256": "", "portrait": [6, 4, 1]} | about)}
    save_file({"weights": weights}, tmp_path / TEACHER, metadata=header)
    with pytest.raises(DataError, match="not a teacher"):
        Teacher.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 100])
def test_files_that_are_no_teachers_are_refused(backbone: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / TEACHER).write_bytes(content)
    with pytest.raises(DataError, match="not a teacher"):
        Teacher.load(tmp_path)


def test_embeddings_of_another_backbone_are_refused(backbone: str) -> None:
    teacher = Teacher(np.zeros((3, 23), np.float32), backbone, "0" * 64, ImageEmbedding(6, 4, 1))
    with pytest.raises(IntegrityError, match="asked for"):
        teacher.logits(torch.rand(1, *SHAPE))


# From a script


def folder_with_teacher(backbone: str, folder: Path) -> LabelledSet:
    images, labels = bars(6, seed=5)
    folder.mkdir(exist_ok=True)
    pixels = (255.0 * images).round().byte().numpy()
    dataset = LabelledSet(pixels, labels.numpy(), tuple(map(str, range(CLASSES))), teacher=saved(backbone, folder))
    dataset.save(folder)
    return dataset


def test_a_script_may_give_numpy_or_torch(backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = folder_with_teacher(backbone, tmp_path / "set").images
    monkeypatch.chdir(tmp_path)
    teacher = LabelledSet.load("set").teacher
    assert teacher is not None and teacher.shape == SHAPE
    floats = torch.from_numpy(pixels).float() / 255.0
    expected = teacher.probabilities(floats)
    assert expected.shape == (6, CLASSES)
    read_only = pixels.copy()
    read_only.flags.writeable = False
    for given in (pixels, read_only, torch.from_numpy(pixels), floats.numpy(), pixels[:, :, ::-1][:, :, ::-1]):
        assert torch.equal(teacher.probabilities(given), expected)
    torch.testing.assert_close(teacher.probabilities(floats.double()), expected)
    assert teacher.probabilities(pixels[:0]).shape == (0, CLASSES)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros(SHAPE, np.uint8), r"shape \(N, 1, \d+, \d+\), not \(1, "),
        (np.zeros((2, 3, *SHAPE[1:]), np.uint8), r"shape \(N, 1, "),
        (np.zeros((2, 1, SHAPE[1] + 1, SHAPE[2]), np.uint8), r"shape \(N, 1, "),
        (np.zeros((2, *SHAPE), np.int64), r"not of torch.int64"),
        (np.full((2, *SHAPE), 255.0, np.float32), r"these reach 255"),
        (np.full((2, *SHAPE), -0.1, np.float32), r"in \[0, 1\]"),
        (np.full((2, *SHAPE), np.nan, np.float32), r"in \[0, 1\]"),
    ],
    ids=["one image", "channels", "height", "integers", "not divided", "negative", "nan"],
)
def test_other_images_are_refused_in_one_sentence(
    backbone: str, tmp_path: Path, images: np.ndarray, message: str
) -> None:
    folder_with_teacher(backbone, tmp_path)
    teacher = LabelledSet.load(tmp_path).teacher
    assert teacher is not None
    with pytest.raises(DataError, match=message):
        teacher.probabilities(images)


def test_without_a_dataset_it_knows_the_channels(backbone: str, tmp_path: Path) -> None:
    teacher = saved(backbone, tmp_path)
    with pytest.raises(DataError, match=r"\(N, 1, height, width\), not \(2, 3, "):
        teacher.probabilities(torch.zeros(2, 3, *SHAPE[1:]))


def test_its_backbone_may_lie_beside_it(backbone: str, tmp_path: Path) -> None:
    """The coordinator's path means nothing elsewhere; the name and the hash do."""
    own, home = tmp_path / "coordinator", tmp_path / "set"
    own.mkdir()
    for suffix in (".safetensors", ".json"):
        shutil.copy(f"{backbone}{suffix}", own / f"tiny{suffix}")
    pixels = folder_with_teacher(str(own / "tiny"), home).images

    def labels() -> torch.Tensor:
        teacher = LabelledSet.load(home).teacher
        assert teacher is not None
        return teacher.probabilities(pixels)

    expected = labels()
    files = [path.rename(tmp_path / path.name) for path in own.iterdir()]
    with pytest.raises(DataError, match=r"needs the public backbone tiny \(SHA-256 [0-9a-f]{64}\)"):
        labels()
    for path in files:
        path.rename(home / path.name)
    assert torch.equal(labels(), expected)


def test_a_teacher_without_its_backbones_hash_is_refused(backbone: str, tmp_path: Path) -> None:
    teacher = saved(backbone, tmp_path)
    Teacher(teacher.weights, backbone, "", teacher.embedding).save(tmp_path)
    with pytest.raises(DataError, match="names no hash of its backbone"):
        Teacher.load(tmp_path)


# What it labels


@pytest.mark.parametrize("count", [1, 99, 100, 250, 601])
def test_augmentations_are_images_and_as_many_as_asked(count: int) -> None:
    images = torch.rand(30, 3, 16, 12, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    one, same, other = (
        teacher_augmentations(images, count, 0.08, True, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert one.shape == (count, 3, 16, 12) and one.min() >= 0 and one.max() <= 1
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(images, before)


def test_a_third_of_the_augmentations_each_is_moved_blended_and_pasted() -> None:
    """From black and white images: moved ones are dark or light all over, blends in between, collages in parts."""
    images = torch.zeros(20, 1, 14, 14)
    images[10:] = 1.0
    augmented = teacher_augmentations(images, 900, 0.05, False, torch.Generator().manual_seed(1))
    augmented = augmented.view(9, 100, -1)
    flat = augmented.amax(2) - augmented.amin(2) < 1e-3
    grey = flat & (augmented.mean(2) > 0.01) & (augmented.mean(2) < 0.4)
    assert flat[0::3].all() and not grey[0::3].any()
    assert flat[1::3].all() and float(grey[1::3].float().mean()) > 0.05
    assert 0.3 < float(flat[2::3].float().mean()) < 0.7


@pytest.mark.parametrize("flips", [True, False])
def test_half_of_the_augmentations_are_mirrored_if_asked(flips: bool) -> None:
    images = torch.zeros(4, 1, 14, 14)
    images[..., :7] = 1.0
    moved = teacher_augmentations(images, 100, 0.05, flips, torch.Generator().manual_seed(2))
    mirrored = float((moved[..., 12].mean((1, 2)) > moved[..., 1].mean((1, 2))).float().mean())
    assert 0.35 < mirrored < 0.65 if flips else mirrored == 0.0
