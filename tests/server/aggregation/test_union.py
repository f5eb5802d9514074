"""The union of the silos' sets: checked, balanced, of the asked size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.synthesis.distilled_set import DistilledSet, from_arrays, teacher_of, to_arrays
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.linear_teacher import united
from dpdd.common.synthesis.teacher import Teacher
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.aggregation.union import per_silo, seats, union

CLASSES = ("ant", "bee")


def a_set(
    value: int, sizes: tuple[int, int], soft: bool = False, counts: tuple[float, float] | None = None
) -> DistilledSet:
    labels = np.repeat([0, 1], sizes)
    chances = np.eye(2, dtype=np.float32)[labels] if soft else None
    labelled = LabelledSet(np.full((len(labels), 1, 8, 8), value, np.uint8), labels, CLASSES, chances)
    return DistilledSet(labelled, None if counts is None else np.array(counts, np.float32))


@pytest.mark.parametrize(("images", "silos"), [(50, 3), (3, 5), (10, 10), (7, 1)])
def test_the_union_has_the_asked_size(images: int, silos: int) -> None:
    each = per_silo(images, silos)
    joined = union([a_set(number, (each, each)) for number in range(silos)], images)
    assert np.bincount(joined.labels).tolist() == [images, images]
    from_each = np.bincount(joined.images[joined.labels == 0][:, 0, 0, 0], minlength=silos)
    assert np.ptp(from_each) <= 1  # silos take turns


def test_what_a_silo_left_out_comes_from_the_others() -> None:
    joined = union([a_set(7, (4, 0)), a_set(9, (4, 4)), a_set(11, (0, 0))], 6)
    assert np.bincount(joined.labels).tolist() == [6, 4]
    assert set(joined.images[joined.labels == 1].ravel()) == {9}
    assert sorted(joined.images[joined.labels == 0][:, 0, 0, 0]) == [7, 7, 7, 9, 9, 9]


def test_a_class_comes_from_the_silos_that_have_most_of_it() -> None:
    sets = [a_set(1, (8, 8), counts=(6000.0, 0.0)), a_set(2, (8, 8), counts=(2000.0, 500.0)), a_set(3, (8, 8))]
    joined = union(sets[:2], 8)
    assert np.bincount(joined.images[joined.labels == 0][:, 0, 0, 0]).tolist() == [0, 6, 2]
    assert set(joined.images[joined.labels == 1].ravel()) == {2}
    alike = union(sets, 9)  # one that sent no counts: then nobody's say anything
    assert np.bincount(alike.images[alike.labels == 1][:, 0, 0, 0]).tolist() == [0, 3, 3, 3]


def test_places_are_shared_out_as_d_hondt_would() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        votes, most = random.integers(1, 1000, 6).astype(np.float64), random.integers(0, 9, 6).tolist()
        count = int(random.integers(1, 40))
        claims = [(votes[who] / (place + 1), who) for who in range(6) for place in range(most[who])]
        winners = [who for _, who in sorted(claims, reverse=True)[:count]]
        assert seats(votes, most, count) == np.bincount(winners, minlength=6).tolist()


def test_soft_labels_stay_with_their_images_and_nothing_is_an_error() -> None:
    joined = union([a_set(1, (2, 1), soft=True), a_set(2, (1, 2), soft=True)], 3)
    assert joined.soft is not None
    np.testing.assert_array_equal(joined.soft.argmax(axis=1), joined.labels)
    with pytest.raises(DpddError, match="lost in noise"):
        union([a_set(1, (0, 0))], 3)
    with pytest.raises(IntegrityError, match="soft"):
        union([a_set(1, (1, 1)), a_set(1, (1, 1), soft=True)], 3)


def test_a_set_travels_and_anything_else_is_refused() -> None:
    good = to_arrays(a_set(1, (2, 2), soft=True))
    back = from_arrays(good, CLASSES, (1, 8, 8), 2, "north")
    np.testing.assert_array_equal(back.dataset.labels, [0, 0, 1, 1])
    assert back.counts is None
    numbers = np.array([3.5, 0.0], np.float32)
    counted = from_arrays({**good, "counts": numbers}, CLASSES, (1, 8, 8), 2, "north")
    np.testing.assert_array_equal(counted.counts, numbers)
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
        {**good, "counts": numbers[:1]},
        {**good, "counts": numbers.astype(np.float64)},
        {**good, "counts": -numbers},
        {**good, "counts": np.full(2, np.inf, np.float32)},
    ]
    for arrays in wrong:
        with pytest.raises(IntegrityError, match="silo north sent a set whose"):
            from_arrays(arrays, CLASSES, (1, 8, 8), 2, "north")


def taught(weights: np.ndarray) -> Teacher:
    return Teacher(weights, "scatter28", "", ImageEmbedding(features=weights.shape[1] - 1, side=0, channels=1))


def test_a_teacher_travels_and_the_union_has_one_of_those_sent() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = a_set(1, (2, 2))
    sets = [
        replace(plain, dataset=replace(plain.dataset, teacher=teacher))
        for teacher in (taught(weights), None, taught(3 * weights))
    ]
    sent = to_arrays(sets[0])
    assert sent["teacher"].dtype == np.float32 and "teacher" not in to_arrays(sets[1])
    back = from_arrays(sent, CLASSES, (1, 8, 8), 2, "north", taught)
    assert back.dataset.teacher is not None
    np.testing.assert_array_equal(back.dataset.teacher.weights, weights)
    joined = union(sets, 4)
    assert joined.teacher is not None and joined.teacher.weights.dtype == np.float32
    np.testing.assert_allclose(joined.teacher.weights, 2 * weights, rtol=1e-6)
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


def test_the_union_s_teacher_labels_all_images_anew() -> None:
    embedding = ImageEmbedding(features=0, side=4, channels=1)
    bright = np.zeros((2, embedding.dimensions), np.float32)
    bright[1, :-1], bright[1, -1] = 20.0, -20.0  # a bee is a bright ant
    sets = []
    for value, counts in ((0, (900.0, 0.0)), (255, (0.0, 900.0))):
        one = a_set(value, (2, 2), soft=True, counts=counts)
        taught_set = replace(one.dataset, teacher=Teacher(bright, "scatter28", "", embedding))
        sets.append(replace(one, dataset=replace(taught_set, records=np.full((4, 1, 28, 28), value, np.uint8))))
    joined = union(sets, 2)
    assert joined.soft is not None and joined.teacher is not None
    np.testing.assert_array_equal(joined.labels, [0, 0, 1, 1])
    assert joined.images[joined.labels == 0].max() == 0 and joined.images[joined.labels == 1].min() == 255
    seen = joined.teacher.probabilities(joined.as_torch().tensors[0]).numpy()
    np.testing.assert_array_equal(joined.soft, seen)
    assert (joined.soft.argmax(1) == joined.labels).all()


def test_silos_with_other_shares_of_the_classes_make_the_teacher_of_all_records_together() -> None:
    random, embedding = np.random.default_rng(5), ImageEmbedding(features=4, side=0, channels=1)
    classes, silos = 6, 3
    counts = random.integers(200, 5000, (silos, classes)).astype(np.float64)
    likelihood = random.normal(size=(classes, 5))  # log p(x | class), linear in the embedding x, up to one number

    def with_shares(numbers: np.ndarray) -> np.ndarray:
        weights = likelihood.copy()
        weights[:, -1] += np.log(numbers / numbers.sum()) / embedding.constant
        return weights

    def at_silo(numbers: np.ndarray) -> Teacher:
        return Teacher(with_shares(numbers).astype(np.float32), "scatter28", "", embedding)

    teacher = united([at_silo(row) for row in counts], counts)
    np.testing.assert_allclose(teacher.weights, with_shares(counts.sum(0)), atol=1e-5)

    # A class that a silo does not have is none of its business, whatever it says of it.
    counts[0, 2] = 0.0
    teachers = [at_silo(np.maximum(row, 1.0)) for row in counts]
    loud = replace(teachers[0], weights=np.where(np.arange(classes)[:, None] == 2, 1e6, teachers[0].weights))
    said = united([loud, *teachers[1:]], counts)
    np.testing.assert_allclose(said.weights, united(teachers, counts).weights, rtol=1e-6)
    np.testing.assert_allclose(said.weights[2, :-1], likelihood[2, :-1], atol=1e-5)

    # A class that nobody has, and a silo that has nothing, spoil nothing.
    counts[:, 4], counts[1] = 0.0, 0.0
    assert np.isfinite(united(teachers, counts).weights).all()
    assert np.isfinite(united(teachers, np.zeros_like(counts)).weights).all()


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
    assert fitting.embedding == ImageEmbedding(16, 4, 1) and fitting.classes == 2
    with pytest.raises(ValueError, match="fit no classifier"):
        teacher_of(np.zeros((2, 5), np.float32), request)
    with pytest.raises(ValueError, match="fit no classifier"):
        other = {**values, "method": {"features": 16}}
        teacher_of(np.zeros((2, 5), np.float32), replace(request, method="dp-merf", settings=other))


def test_declared_priors_replace_the_equal_ones_of_the_silos_teachers() -> None:
    """As released are the shares in all silos together; a silo's own shares are in nobody's scores."""
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    sets = [
        replace(each, dataset=replace(each.dataset, teacher=taught(weights)))
        for each in (a_set(1, (2, 2), counts=(300.0, 100.0)), a_set(2, (2, 2), counts=(400.0, 0.0)))
    ]
    constant = taught(weights).embedding.constant
    for priors, expected in (
        ("equal", (0.5, 0.5)),
        ("as-released", (0.875, 0.125)),
        ({"ant": 0.1, "bee": 0.9}, (0.1, 0.9)),
    ):
        joined = union(sets, 4, priors)  # type: ignore[arg-type]
        assert joined.teacher is not None and joined.priors == pytest.approx(expected)
        change = constant * (joined.teacher.weights - weights)[:, -1]
        assert change[1] - change[0] == pytest.approx(np.log(expected[1] / expected[0]), abs=1e-5)
        np.testing.assert_array_equal(joined.teacher.weights[:, :-1], weights[:, :-1])
    assert union(sets, 4).priors == ()
    uncounted = [replace(each, counts=None) for each in sets]
    assert union(uncounted, 4, "equal").priors == (0.5, 0.5)
    with pytest.raises(DpddError, match="no class counts"):
        union(uncounted, 4, "as-released")
