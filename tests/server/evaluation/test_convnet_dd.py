"""`convnet-dd`: hard labels teach, whatever the size of images, their number, and how classes are spread."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation import convnet_dd
from dpdd.server.evaluation.base import Score
from dpdd.server.evaluation.convnet import TrainedConvNet
from dpdd.server.evaluation.convnet_dd import batches, dd_convnets
from dpdd.server.evaluation.learner_settings import AUGMENTATION_KINDS, ConvNetDDSettings, LearnerSettings
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.scoring import evaluate, scores
from dpdd.server.evaluation.settings import EvaluationSection

CLASSES = ("top", "middle", "bottom")
SETTINGS = LearnerSettings(convnet_dd=ConvNetDDSettings(runs=2, width=8, steps=40, learning_rate=0.01))


def quick(**changes: object) -> LearnerSettings:
    own = SETTINGS.convnet_dd.model_copy(update={"runs": 1, **changes})
    return SETTINGS.model_copy(update={"convnet_dd": own})


def pictures(
    labels: np.ndarray, seed: int, side: int = 16, channels: int = 1, classes: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """A class is where the image is bright: at the top, in the middle, at the bottom."""
    generator = np.random.Generator(np.random.PCG64(seed))
    images = generator.integers(0, 60, (len(labels), channels, side, side), dtype=np.uint8)
    height = side // classes
    for image, label in zip(images, labels, strict=True):
        image[:, label * height : (label + 1) * height] += 150
    return images, labels


def measured(dataset: LabelledSet, settings: LearnerSettings, seed: int = 0) -> Score:
    _, channels, side, _ = dataset.images.shape
    classes = len(dataset.classes)
    test = LabelledImages(*pictures(np.arange(90) % classes, 2, side, channels, classes), dataset.classes)
    return scores(dd_convnets(dataset, settings, seed), test)["accuracy"]


def test_a_network_learns_from_right_labels_only() -> None:
    images, labels = pictures(np.arange(30) % 3, 1)
    right = measured(LabelledSet(images, labels, CLASSES), SETTINGS)
    assert len(right.runs) == 2 and right.mean > 0.95
    assert measured(LabelledSet(images, (labels + 1) % 3, CLASSES), SETTINGS).mean < 0.05


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (28, 3), (33, 1), (64, 3), (128, 1)])
def test_images_of_any_size(side: int, channels: int) -> None:
    images, labels = pictures(np.arange(12) % 3, 1, side, channels)
    few = quick(width=4, steps=40 if side < 100 else 25, learning_rate=0.02)
    assert measured(LabelledSet(images, labels, CLASSES), few).mean > 0.8


@pytest.mark.parametrize("classes", [("no", "yes"), CLASSES])
def test_one_image_per_class(classes: tuple[str, ...]) -> None:
    images, labels = pictures(np.arange(len(classes)), 1, classes=len(classes))
    assert measured(LabelledSet(images, labels, classes), quick(steps=60)).mean > 0.85


def test_unequal_classes_and_one_without_an_image() -> None:
    images, labels = pictures(np.array([0] * 40 + [2] * 2), 1)
    [network] = dd_convnets(LabelledSet(images, labels, CLASSES), quick(), seed=0)
    fresh, wanted = pictures(np.array([0, 2] * 20), 3)
    named = network(torch.from_numpy(fresh).float() / 255).argmax(1).numpy()
    assert (named == wanted).mean() > 0.9


def test_only_hard_labels_count() -> None:
    """Soft labels that say something else, and a teacher, change nothing."""
    images, labels = pictures(np.arange(12) % 3, 1)
    wrong = np.eye(3, dtype=np.float32)[(labels + 1) % 3]
    plain, soft = (LabelledSet(images, labels, CLASSES, each) for each in (None, wrong))
    batch = torch.from_numpy(images).float() / 255
    [one], [other] = (dd_convnets(each, quick(steps=3), seed=0) for each in (plain, soft))
    assert one(batch).equal(other(batch))
    section = EvaluationSection(learners=("convnet-dd",), convnet_dd=quick(steps=3).convnet_dd)
    shown = evaluate(soft, LabelledImages(images, labels, CLASSES), section, None, seed=0)
    assert shown["accuracy"]["convnet-dd"]["labels"] == "hard"


def test_networks_follow_from_the_seed_and_leave_torchs_generator_alone() -> None:
    dataset = LabelledSet(*pictures(np.arange(12) % 3, 1), CLASSES)
    batch = torch.from_numpy(pictures(np.arange(3), 5)[0]).float() / 255
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = [network(batch) for network in dd_convnets(dataset, SETTINGS, seed=3)]
    assert torch.random.get_rng_state().equal(before)
    torch.manual_seed(2)
    again = [network(batch) for network in dd_convnets(dataset, SETTINGS, seed=3)]
    assert all(one.equal(two) for one, two in zip(first, again, strict=True))
    assert not first[0].equal(first[1])
    assert not dd_convnets(dataset, quick(), seed=4)[0](batch).equal(first[0])


def test_runs_are_its_own() -> None:
    dataset = LabelledSet(*pictures(np.arange(6) % 3, 1), CLASSES)
    settings = quick(steps=1, runs=3).model_copy(update={"runs": 1})
    assert len(LEARNERS["convnet-dd"].train(dataset, settings, None, seed=0)) == 3


def test_images_are_standardised_by_the_synthetic_set_channel_by_channel() -> None:
    images, labels = pictures(np.arange(12) % 3, 1, channels=3)
    images[:, 1] //= 4
    [network] = dd_convnets(LabelledSet(images, labels, CLASSES), quick(steps=1), seed=0)
    assert isinstance(network, TrainedConvNet)
    pixels = torch.from_numpy(images).double() / 255
    torch.testing.assert_close(network.mean.double().flatten(), pixels.mean((0, 2, 3)), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(network.std.double().flatten(), pixels.std((0, 2, 3), correction=0), atol=1e-5, rtol=0.0)


def test_brighter_images_with_more_contrast_teach_the_same() -> None:
    """Networks see standardised images, so twice the levels (and as much more in the test images) change nothing."""
    images, labels = pictures(np.arange(12) % 3, 1)
    half = images // 2
    test = torch.from_numpy(half).float() / 255
    [one], [other] = (
        dd_convnets(LabelledSet(each, labels, CLASSES), quick(steps=5), seed=0) for each in (half, 2 * half + 3)
    )
    torch.testing.assert_close(other(2.0 * test + 3.0 / 255), one(test), atol=1e-3, rtol=1e-3)


def test_first_weights_are_drawn_anew_for_every_network() -> None:
    """Without augmentation and with everything in one batch nothing else is random."""
    dataset = LabelledSet(*pictures(np.arange(6) % 3, 1), CLASSES)
    first, second = dd_convnets(dataset, quick(runs=2, steps=1, augmentation=()), seed=0)
    batch = torch.rand(2, 1, 16, 16)
    assert not torch.allclose(first(batch), second(batch), atol=1e-3)


@pytest.mark.parametrize(("side", "depth", "reached"), [(28, 0, 4), (64, 0, 4), (28, 2, 7)])
def test_the_network_is_as_deep_as_asked_or_as_usual_and_has_a_border(side: int, depth: int, reached: int) -> None:
    images, labels = pictures(np.arange(3), 1, side)
    [network] = dd_convnets(LabelledSet(images, labels, CLASSES), quick(width=4, steps=1, depth=depth), seed=0)
    assert isinstance(network, TrainedConvNet)
    assert network.network[-1].in_features == 4 * reached**2  # type: ignore[union-attr]


def test_constant_images_give_finite_answers() -> None:
    dataset = LabelledSet(np.full((6, 1, 16, 16), 90, np.uint8), np.arange(6) % 3, CLASSES)
    [network] = dd_convnets(dataset, quick(steps=2), seed=0)
    assert torch.isfinite(network(torch.rand(4, 1, 16, 16))).all()


def test_batches_are_shuffled_passes_in_about_equal_parts() -> None:
    source = batches(10, 4, torch.Generator().manual_seed(0))
    passes = [[next(source) for _ in range(3)] for _ in range(20)]
    for each in passes:
        assert sorted(torch.cat(each).tolist()) == list(range(10)) and sorted(map(len, each)) == [3, 3, 4]
    assert len({tuple(torch.cat(each).tolist()) for each in passes}) > 15
    whole = batches(3, 256, torch.Generator().manual_seed(0))
    assert sorted(next(whole).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("flips", [True, False])
def test_mirror_images_are_left_out_for_digits(flips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def watch(images: torch.Tensor, kinds: tuple[str, ...], generator: torch.Generator) -> torch.Tensor:
        asked.append(kinds)
        return images

    monkeypatch.setattr(convnet_dd, "augment", watch)
    dataset = LabelledSet(*pictures(np.arange(6) % 3, 1), CLASSES)
    dd_convnets(dataset, quick(steps=2).model_copy(update={"flips": flips}), seed=0)
    expected = tuple(kind for kind in AUGMENTATION_KINDS if flips or kind != "flip")
    assert asked == [expected] * 2


@pytest.mark.parametrize(
    "values",
    [
        {"runs": 0},
        {"width": 2},
        {"depth": 7},
        {"depth": -1},
        {"steps": 0},
        {"batch": 0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"augmentation": ["crop", "crop"]},
        {"augmentation": ["blur"]},
        {"epochs": 3},
    ],
)
def test_settings_are_checked(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ConvNetDDSettings.model_validate(values)


def test_defaults_are_the_literatures() -> None:
    own = ConvNetDDSettings()
    assert (own.runs, own.width, own.depth, own.batch, own.weight_decay) == (3, 128, 0, 256, 5e-4)
    assert own.augmentation == AUGMENTATION_KINDS
    assert ConvNetDDSettings(augmentation=()).kinds(flips=True) == ()
