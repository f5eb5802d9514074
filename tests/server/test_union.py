"""The union of the silos' sets: checked, balanced, of the asked size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.distilled import from_arrays, teacher_of, to_arrays
from dpdd.common.synthesis.portrait import Portrait
from dpdd.common.synthesis.teacher import Teacher
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.union import per_silo, union

CLASSES = ("ant", "bee")


def a_set(value: int, counts: tuple[int, int], soft: bool = False) -> SyntheticSet:
    labels = np.repeat([0, 1], counts)
    chances = np.eye(2, dtype=np.float32)[labels] if soft else None
    return SyntheticSet(np.full((len(labels), 1, 8, 8), value, np.uint8), labels, CLASSES, chances)


@pytest.mark.parametrize(("images", "silos"), [(50, 3), (3, 5), (10, 10), (7, 1)])
def test_the_union_has_the_asked_size(images: int, silos: int) -> None:
    each = per_silo(images, silos)
    made = union([a_set(number, (each, each)) for number in range(silos)], images)
    assert np.bincount(made.labels).tolist() == [images, images]
    from_each = np.bincount(made.images[made.labels == 0][:, 0, 0, 0], minlength=silos)
    assert np.ptp(from_each) <= 1  # silos take turns


def test_what_a_silo_left_out_comes_from_the_others() -> None:
    made = union([a_set(7, (4, 0)), a_set(9, (4, 4)), a_set(11, (0, 0))], 6)
    assert np.bincount(made.labels).tolist() == [6, 4]
    assert set(made.images[made.labels == 1].ravel()) == {9}
    assert sorted(made.images[made.labels == 0][:, 0, 0, 0]) == [7, 7, 7, 9, 9, 9]


def test_soft_labels_stay_with_their_images_and_nothing_is_an_error() -> None:
    made = union([a_set(1, (2, 1), soft=True), a_set(2, (1, 2), soft=True)], 3)
    assert made.soft is not None
    np.testing.assert_array_equal(made.soft.argmax(axis=1), made.labels)
    with pytest.raises(DpddError, match="lost in noise"):
        union([a_set(1, (0, 0))], 3)
    with pytest.raises(IntegrityError, match="soft"):
        union([a_set(1, (1, 1)), a_set(1, (1, 1), soft=True)], 3)


def test_a_set_travels_and_anything_else_is_refused() -> None:
    good = to_arrays(a_set(1, (2, 2), soft=True))
    made = from_arrays(good, CLASSES, (1, 8, 8), 2, "north")
    np.testing.assert_array_equal(made.labels, [0, 0, 1, 1])
    wrong = [
        {"images": good["images"]},
        {**good, "extra": good["labels"]},
        {**good, "images": good["images"].astype(np.float32)},
        {**good, "images": good["images"][:, :, :7]},
        {**good, "images": good["images"][:3]},
        {**good, "labels": good["labels"].astype(np.int32)},
        {**good, "labels": good["labels"] - 1},
        {**good, "labels": good["labels"] + 1},
        {**good, "labels": np.zeros(4, np.int64)},  # more of one class than was asked for
        {**good, "soft": good["soft"][:, :1]},
        {**good, "soft": good["soft"] * np.float32(2.0)},
        {**good, "soft": np.where(good["soft"] > 0, np.float32(np.nan), good["soft"])},
    ]
    for arrays in wrong:
        with pytest.raises(IntegrityError, match="silo north sent a set whose"):
            from_arrays(arrays, CLASSES, (1, 8, 8), 2, "north")


def taught(weights: np.ndarray) -> Teacher:
    return Teacher(weights, "scatter28", "", Portrait(features=weights.shape[1] - 1, side=0, channels=1))


def test_a_teacher_travels_and_the_union_has_the_mean_of_those_sent() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = a_set(1, (2, 2), soft=True)
    sets = [replace(plain, teacher=teacher) for teacher in (taught(weights), None, taught(3 * weights))]
    sent = to_arrays(sets[0])
    assert sent["teacher"].dtype == np.float32 and "teacher" not in to_arrays(sets[1])
    back = from_arrays(sent, CLASSES, (1, 8, 8), 2, "north", taught)
    assert back.teacher is not None
    np.testing.assert_array_equal(back.teacher.weights, weights)
    made = union(sets, 4)
    assert made.teacher is not None and made.teacher.weights.dtype == np.float32
    np.testing.assert_array_equal(made.teacher.weights, 2 * weights)
    assert union(sets[1:2], 4).teacher is None
    wrong = [
        weights[:1],
        weights[0],
        weights.astype(np.float64),
        np.zeros((2, 0), np.float32),
        np.zeros((2, 4097), np.float32),
        np.where(weights > 3, np.float32(np.nan), weights),
        np.where(weights > 3, np.float32(np.inf), weights),
    ]
    for odd in wrong:
        with pytest.raises(IntegrityError, match="silo north sent a set whose teacher"):
            from_arrays({**sent, "teacher": odd}, CLASSES, (1, 8, 8), 2, "north", taught)
    with pytest.raises(IntegrityError, match="whose arrays are"):  # nobody asked this method for one
        from_arrays(sent, CLASSES, (1, 8, 8), 2, "north")


def test_a_teacher_must_fit_the_backbone_of_the_request() -> None:
    values = {"method": {"features": 16, "picture": 4}, "synthesis": {}, "images_per_class": 2}
    request = ReleaseRequest(
        run="r",
        method="sps",
        kind=Kind.DISTILLED_SET,
        settings=values,
        epsilon=1.0,
        delta=1e-5,
        classes=CLASSES,
        shape=(1, 28, 28),
        public_seed=1,
    )
    fitting = teacher_of(np.zeros((2, 16 + 16 + 1), np.float32), request)
    assert fitting.portrait == Portrait(16, 4, 1) and fitting.classes == 2
    with pytest.raises(ValueError, match="fit no classifier"):
        teacher_of(np.zeros((2, 5), np.float32), request)
    with pytest.raises(ValueError, match="fit no classifier"):
        other = {**values, "method": {"features": 16}}
        teacher_of(np.zeros((2, 5), np.float32), replace(request, method="dp-merf", settings=other))
