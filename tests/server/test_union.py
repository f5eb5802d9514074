"""The union of the silos' sets: checked, balanced, of the asked size."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.distilled import from_arrays, to_arrays
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
