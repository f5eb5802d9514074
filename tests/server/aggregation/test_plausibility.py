"""What an honest silo's release never looks like: seldom said of honest ones, whatever their records; said of liars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    Layout,
    Segment,
    class_segment,
    global_segment,
    product_segment,
)
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.wire.quantise import quantise
from dpdd.server.aggregation.plausibility import (
    FALSE_ALARM,
    Design,
    implausible,
    implausible_set,
    least_norm,
    noisy_counts,
    norm_tail,
    tail,
)

CLASSES = ("ant", "bee", "cat")
WEIGHT, SIGMA = 0.1, 2.0
REST = math.sqrt(1.0 - WEIGHT**2)
LAYOUT = Layout(
    (
        global_segment("all", 3, 3),
        class_segment("sums", 5, 3),
        Segment("groups", 2, 2, ((0, 1), (1,), (0,))),
        product_segment("square", 20, 20, 3, norm=0.5, symmetric=True),
        class_segment("count", 1, 3),
    )
)
DESIGN = Design.of(LAYOUT, WEIGHT, Gaussian(SIGMA), CLASSES)
assert DESIGN is not None
Arrays = dict[str, np.ndarray]


def released(
    records: tuple[int, ...], generator: np.random.Generator, sigma: float = SIGMA, scale: float = 1.0
) -> Arrays:
    """A release in `LAYOUT`: all records alike, at the largest norm that they may have, in one segment at random."""
    counts = np.array(records, dtype=np.float64)
    sums = {segment.name: np.zeros((segment.rows, segment.width)) for segment in LAYOUT.segments}
    reach = LAYOUT.plain_clip_norm / FIXED_POINT_ONE
    name = generator.choice(["all", "sums", "groups"])
    if name == "all":
        sums["all"][0, 0] = math.sqrt(reach**2 - WEIGHT**2) * counts.sum()
    elif name == "sums":
        sums["sums"][:, 1] = math.sqrt(reach**2 - WEIGHT**2) * counts
    else:  # a record of class 0 is in two rows, and counts twice towards its norm
        each = np.sqrt((reach**2 - WEIGHT**2) / np.array([2.0, 1.0, 1.0])) * counts
        sums["groups"][:, 0] = (each[0] + each[2], each[0] + each[1])
    sums["square"][0, 0] = 0.5 * counts.sum()
    sums["count"][:, 0] = WEIGHT * counts
    return {
        key: np.rint((scale * each + sigma * generator.standard_normal(each.shape)) * FIXED_POINT_ONE).astype(np.int64)
        for key, each in sums.items()
    }


@pytest.mark.parametrize("alarm", [0.5, 0.05])
@pytest.mark.parametrize("records", [(0, 0, 0), (40, 3, 0), (5000, 20_000, 800)])
def test_honest_releases_are_called_implausible_at_most_as_often_as_stated(
    alarm: float, records: tuple[int, ...]
) -> None:
    generator, trials = np.random.default_rng(1), 400
    first = noisy_counts(released(records, generator), DESIGN)
    wrong = sum(bool(implausible(released(records, generator), DESIGN, records, first, alarm)) for _ in range(trials))
    assert wrong <= alarm * trials + 4.0 * math.sqrt(alarm * trials)


def test_the_bounds_hold_as_often_as_they_say_and_are_near() -> None:
    generator = np.random.default_rng(2)
    for p in (0.3, 0.03):
        slack = 4.0 * math.sqrt(p / 20_000)
        assert (generator.standard_normal(20_000) > tail(p)).mean() <= p + slack
        for numbers in (1, 7, 300):
            norms = np.linalg.norm(generator.standard_normal((20_000, numbers)), axis=1)
            assert (norms > norm_tail(numbers, p)).mean() <= p + slack
            assert (norms < least_norm(numbers, p)).mean() <= p + slack
    assert tail(1e-8) < 6.1 and norm_tail(10_000, 1e-8) < 1.05 * 100 and least_norm(10_000, 1e-8) > 0.95 * 100
    size, p = 40, 0.05
    lows = []
    for _ in range(300):
        noise = generator.standard_normal((size, size))
        lows.append(np.linalg.eigvalsh((noise + noise.T) / 2.0)[0])
    bound = math.sqrt(2.0 * size) + tail(p)
    assert (np.array(lows) < -bound).mean() <= p + 4.0 * math.sqrt(p / 300)
    assert min(lows) < -0.6 * bound


def test_no_honest_release_among_many_is_implausible() -> None:
    generator = np.random.default_rng(3)
    for records in [(0, 0, 0), (1, 0, 0), (200, 200, 200), (10_000, 5, 300)] * 50:
        first = noisy_counts(released(records, generator), DESIGN)
        assert implausible(released(records, generator), DESIGN, records, first) == []


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


LIES = {
    "everything 1000 times": (
        lambda arrays: {key: 1000 * each for key, each in arrays.items()},
        "asymmetric|symmetric",
    ),
    "sums 1000 times": (changed("sums", lambda each: 1000 * each), "'sums' are .* times"),
    "one class": (changed("sums", lambda each: each * np.array([[1], [40], [1]])), "sums of bee are"),
    "all": (changed("all", lambda each: each + 10_000 * 2**20), "'all' are"),
    "a matrix turned round": (changed("square", lambda each: -each), "eigenvalue -3"),
    "a matrix too large": (changed("square", lambda each: 40 * each), "'square' are"),
    "a matrix without noise": (changed("square", np.zeros_like), "0 times as far from symmetric"),
    "negative counts": (changed("count", lambda each: -each), "counts -.* records of"),
    "fewer counts": (changed("count", lambda each: each // 20), "sums"),
    "more counts": (changed("count", lambda each: 1000 * each), "in its first stage it counted"),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES)
def test_lies_are_found(lie: Callable[[Arrays], Arrays], words: str) -> None:
    generator, records = np.random.default_rng(4), (2000, 3000, 2500)
    first = noisy_counts(released(records, generator), DESIGN)
    honest = {**released(records, generator)}
    honest["sums"] = honest["sums"] + np.rint(np.array(records)[:, None] * 0.4 * FIXED_POINT_ONE).astype(np.int64)
    honest["all"], honest["groups"] = honest["all"] // 10, honest["groups"] // 10
    assert implausible(honest, DESIGN, records, first) == []

    found = implausible(lie(honest), DESIGN, (), first)
    assert re.search(words, "; ".join(found)), found


def test_counts_are_held_against_those_declared_public() -> None:
    arrays = released((2000, 3000, 2500), np.random.default_rng(5))
    found = implausible(arrays, DESIGN, (2000, 30_000, 2500))
    assert len(found) == 1 and "records of bee, it declares 30000 public" in found[0]
    assert implausible(arrays, DESIGN, (2000, 3000)) == []  # another number of classes is refused elsewhere


DRAWS, RATE, SHARE = 12, 0.2, 0.1


def sampled(records: int, generator: np.random.Generator, sigma: float = SIGMA, rate: float = RATE) -> Arrays:
    """Sums over Poisson samples, all records alike and as long as they may be, as the matching family releases them."""
    members = generator.binomial(records, rate, size=(DRAWS, 3)) if rate < 1.0 else np.full((DRAWS, 3), records)
    signal = np.zeros((DRAWS * 3, 6))
    signal[:, 2] = math.sqrt(1.0 - SHARE**2) * members.ravel()
    signal += sigma * generator.standard_normal(signal.shape)
    counts = SHARE * members.sum(axis=0)[:, None] + sigma * generator.standard_normal((DRAWS, 3, 1)).sum(axis=0)
    grid = {"signal": signal, "count": counts / math.sqrt(DRAWS)}
    arrays = {name: np.rint(each * FIXED_POINT_ONE).astype(np.int64) for name, each in grid.items()}
    return quantise(arrays, "signal")


def sampled_design(sigma: float = SIGMA, rate: float = RATE) -> Design:
    rows = tuple(tuple(range(label, 3 * DRAWS, 3)) for label in range(3))
    layout = Layout((Segment("signal", 6, 3 * DRAWS, rows), class_segment("count", 1, 3)))
    event = PoissonGaussian(sigma, rate, DRAWS) if rate < 1.0 else Gaussian(sigma, DRAWS)
    found = Design.of(layout, SHARE * rate * math.sqrt(DRAWS), event, CLASSES)
    assert found is not None
    return found


@pytest.mark.parametrize("rate", [RATE, 1.0])
@pytest.mark.parametrize("records", [0, 30, 20_000])
def test_sums_over_samples_are_plausible_whoever_was_sampled(records: int, rate: float) -> None:
    generator, design, trials, alarm = np.random.default_rng(6), sampled_design(rate=rate), 200, 0.1
    wrong = 0
    for _ in range(trials):
        first = noisy_counts(sampled(records, generator, rate=rate), design)
        wrong += bool(implausible(sampled(records, generator, rate=rate), design, (records,) * 3, first, alarm))
    assert wrong <= alarm * trials + 4.0 * math.sqrt(alarm * trials)


def test_lies_about_samples_are_found() -> None:
    arrays, design = sampled(20_000, np.random.default_rng(7)), sampled_design()
    assert implausible(arrays, design, (20_000,) * 3) == []
    loud = {**arrays, "signal-step": 3 * arrays["signal-step"]}
    assert len(implausible(loud, design)) == 4  # the segment, and each class
    coarse = {**arrays, "signal-step": 3000 * arrays["signal-step"], "signal": arrays["signal"] // 1000}
    assert implausible(coarse, design)  # a step of its own choosing buys no room
    assert "declares" in implausible(arrays, design, (20_000, 25_000, 20_000))[0]


def test_what_nothing_is_known_of_is_never_implausible() -> None:
    arrays = released((10, 10, 10), np.random.default_rng(8))
    wild = {name: 10**6 * array for name, array in arrays.items()}
    uncounted = Design.of(LAYOUT, None, Gaussian(SIGMA), CLASSES)
    assert uncounted is not None and implausible(wild, uncounted) == []
    assert Design.of(LAYOUT, WEIGHT, NonPrivate(), CLASSES) is None
    assert Design.of(LAYOUT, WEIGHT, compose(Gaussian(2.0), Gaussian(3.0)), CLASSES) is None


def test_sets_are_held_against_their_own_counts() -> None:
    noise = SIGMA / WEIGHT
    labels, counts = np.array([0, 0, 1, 1]), np.array([500.0, 3.0 * noise, 0.0])
    assert implausible_set(labels, counts, DESIGN, (500, 60, 10)) == []
    assert implausible_set(labels, None, DESIGN) == []
    found = implausible_set(np.array([0, 2]), counts, DESIGN)
    assert found == ["it has images of cat, and says that noise hides whether it has records of that"]
    found = implausible_set(labels, np.array([500.0, noise, 0.0]), DESIGN)
    assert found == ["it counts 20 records of bee, and says nothing of so few: noise hides 40"]
    assert "it declares 90000 public" in implausible_set(labels, counts, DESIGN, (500, 90_000, 10))[0]
    assert "it declares 90000 public" in implausible_set(labels, counts, DESIGN, (500, 60, 90_000))[0]


def test_false_alarms_are_as_rare_as_stated() -> None:
    assert FALSE_ALARM <= 1e-6
