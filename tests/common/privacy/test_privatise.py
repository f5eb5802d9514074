"""The only exit: noise once, a value that cannot be forged or changed, and attacks that find no more than (ε, δ)."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.accounting import gaussian_delta
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, ClippedSum, Layout, class_segment, global_segment
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, compose
from dpdd.common.privacy.privatise import Privatised, combine, in_units, noise_distance, privatise

LAYOUT = Layout((class_segment("sums", 2, 2), class_segment("counts", 1, 2)))
ROWS = np.array([[0.5, -0.2, 0.1], [0.3, 0.6, 0.1], [-0.1, 0.1, 0.1]])
LABELS = np.array([0, 1, 1])


def total_of(rows: NDArray[np.float64] = ROWS, labels: NDArray[np.int64] = LABELS) -> ClippedSum:
    total = ClippedSum(LAYOUT)
    total.add(rows, labels)
    return total


def noisy(seed: int = 1, sigma: float = 4.0) -> Privatised:
    return privatise(total_of(), Gaussian(sigma), SeededEntropy(seed))


# Attacks


def observe(rows: NDArray[np.float64], labels: NDArray[np.int64], sigma: float, count: int) -> NDArray[np.float64]:
    """What `count` runs of the whole mechanism release, one row each, in units of the sensitivity."""
    observed = []
    for _ in range(count):
        released = privatise(total_of(rows, labels), Gaussian(sigma), SystemEntropy())
        observed.append(np.concatenate([in_units(array).ravel() for array in released.arrays.values()]))
    return np.array(observed)


def advantage(with_: NDArray[np.float64], without: NDArray[np.float64], epsilon: float) -> float:
    """The best TPR - e^ε·FPR of any threshold on the line between the two means, attacker knowing the direction.

    For Gaussian noise this is the optimal test, and a mechanism that is (ε, δ)-private keeps it at or below δ.
    """
    direction = with_.mean(axis=0) - without.mean(axis=0)
    true, false = np.sort(with_ @ direction), np.sort(without @ direction)
    thresholds = np.concatenate([true, false])
    tpr = 1 - np.searchsorted(true, thresholds, side="left") / len(true)
    fpr = 1 - np.searchsorted(false, thresholds, side="left") / len(false)
    return float(np.max(tpr - math.exp(epsilon) * fpr))


COUNT = 1_500
EPSILON = 1.0
# Dvoretzky-Kiefer-Wolfowitz for both empirical distributions, at 1e-7 each; the direction is fitted to the same
# draws, which for six coordinates adds far less than the slack has to spare.
SLACK = (1 + math.exp(EPSILON)) * math.sqrt(math.log(2 / 1e-7) / (2 * COUNT))

EXTREME = {
    "ordinary": [0.6, 0.7, 0.1],
    "huge": [1e308, -1e308, 1e308],
    "tiny and huge": [1e-320, 1e308, 5e-324],
    "NaN": [math.nan, 0.5, 0.1],
    "infinite": [0.1, -math.inf, 0.1],
}


@pytest.fixture(scope="module")
def without() -> NDArray[np.float64]:
    return observe(ROWS, LABELS, 1.0, COUNT)


@pytest.mark.parametrize("name", EXTREME)
def test_no_threshold_tells_a_record_apart_beyond_epsilon_and_delta(name: str, without: NDArray[np.float64]) -> None:
    with_ = observe(np.concatenate([ROWS, [EXTREME[name]]]), np.append(LABELS, 1), 1.0, COUNT)
    assert advantage(with_, without, EPSILON) <= gaussian_delta(1.0, EPSILON) + SLACK
    if name in ("NaN", "infinite"):  # not a bit of difference: an attacker at ε = 0 has nothing, either
        assert advantage(with_, without, 0.0) <= 2 * SLACK / (1 + math.exp(EPSILON)) + 0.02


def test_the_attack_does_find_a_mechanism_with_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    right = discrete_gaussian.scale_for
    monkeypatch.setattr(discrete_gaussian, "scale_for", lambda sigma: right(0.3 * sigma))
    with_ = observe(np.concatenate([ROWS, [EXTREME["huge"]]]), np.append(LABELS, 1), 1.0, COUNT)
    without = observe(ROWS, LABELS, 1.0, COUNT)
    assert advantage(with_, without, EPSILON) > gaussian_delta(1.0, EPSILON) + SLACK + 0.2


def test_the_attack_comes_close_to_the_bound() -> None:
    """δ is tight for a record of norm one, so the test above is not just a weak attack."""
    with_ = observe(np.array([[0.0, 5.0, 0.0]]), np.array([1]), 1.0, COUNT)
    without = observe(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), 1.0, COUNT)
    assert advantage(with_, without, EPSILON) > gaussian_delta(1.0, EPSILON) / 2


# Noise


def test_every_coordinate_gets_noise_of_the_stated_scale() -> None:
    layout = Layout((global_segment("a", 20_000, 1), class_segment("b", 10_000, 1)))
    released = privatise(ClippedSum(layout), Gaussian(2.5), SystemEntropy())
    for array in released.arrays.values():
        spread = float(np.mean((array / (2.5 * FIXED_POINT_ONE)) ** 2))
        assert abs(spread - 1) < 6 * math.sqrt(2 / array.size)
        assert len(np.unique(array)) > 0.99 * array.size
    first, second = released.arrays["a"].ravel()[:10_000], released.arrays["b"].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


def test_noise_is_added_to_the_sums() -> None:
    """Averaged over many runs the release is the clean sum."""
    runs = np.mean([in_units(noisy(seed, 0.5).arrays["sums"]) for seed in range(400)], axis=0)
    expected = np.array([[0.5, -0.2], [0.2, 0.7]])
    np.testing.assert_allclose(runs, expected, atol=6 * 0.5 / math.sqrt(400))


@pytest.mark.parametrize("rows", [ROWS, 0.7 * np.ones((300, 3)), -np.ones((40, 3)), np.zeros((1, 3))])
def test_noise_does_not_depend_on_what_it_is_added_to(rows: NDArray[np.float64]) -> None:
    """The same random bits give the same noise, whatever the sums are: so nothing was done to them before or after."""
    labels = np.arange(len(rows)) % 2
    clean = privatise(total_of(rows, labels), NonPrivate(), SeededEntropy(1)).arrays
    released = privatise(total_of(rows, labels), Gaussian(4.0), SeededEntropy(1)).arrays
    alone = privatise(ClippedSum(LAYOUT), Gaussian(4.0), SeededEntropy(1)).arrays
    for name, array in released.items():
        np.testing.assert_array_equal(array - clean[name], alone[name])
        assert alone[name].all()


def test_noise_is_drawn_once() -> None:
    total = total_of()
    privatise(total, Gaussian(4.0), SystemEntropy())
    with pytest.raises(RuntimeError, match="noise is drawn once"):
        privatise(total, Gaussian(4.0), SystemEntropy())
    with pytest.raises(RuntimeError, match="a new release needs a new sum"):
        total.add(ROWS, LABELS)


class Broken:
    releasable = True

    def take(self, count: int) -> bytes:
        raise OSError("no entropy")


def test_a_failed_draw_spends_the_sum_all_the_same() -> None:
    total = total_of()
    with pytest.raises(OSError, match="no entropy"):
        privatise(total, Gaussian(4.0), Broken())
    with pytest.raises(RuntimeError):
        privatise(total, Gaussian(4.0), SystemEntropy())


def test_noise_too_fine_for_the_grid_is_refused_before_the_sum_is_spent() -> None:
    total = total_of()
    with pytest.raises(ValueError, match="too coarse"):
        privatise(total, Gaussian(1e-6), SystemEntropy())
    with pytest.raises(ValueError, match="too wide"):
        privatise(total, Gaussian(1e13), SystemEntropy())
    privatise(total, Gaussian(4.0), SystemEntropy())


def test_one_sum_is_one_release() -> None:
    with pytest.raises(ValueError, match="one sum is one release"):
        privatise(total_of(), Gaussian(4.0, releases=2), SystemEntropy())


def test_sums_without_noise_exist_in_simulations_only() -> None:
    with pytest.raises(ValueError, match="simulations only"):
        privatise(total_of(), NonPrivate(), SystemEntropy())
    plain = privatise(total_of(), NonPrivate(), SeededEntropy(1))
    assert not plain.releasable and plain.distance == 0.0 and plain.event == NonPrivate()
    np.testing.assert_allclose(in_units(plain.arrays["counts"]).ravel(), [0.1, 0.2], atol=1e-5)


def test_only_system_entropy_makes_something_releasable() -> None:
    assert privatise(total_of(), Gaussian(4.0), SystemEntropy()).releasable
    assert not noisy().releasable


def test_the_distance_of_a_release_covers_all_its_coordinates() -> None:
    scale = discrete_gaussian.scale_for(4.0 * FIXED_POINT_ONE)
    assert LAYOUT.coordinates == 6
    assert noisy().distance == noise_distance(Gaussian(4.0), LAYOUT) == 6 * discrete_gaussian.distance(scale)


@pytest.mark.parametrize("count", [0, 1])
def test_empty_sums_and_empty_classes_are_released_like_any_other(count: int) -> None:
    for total in (ClippedSum(LAYOUT), total_of(ROWS[:count], LABELS[:count])):
        released = privatise(total, Gaussian(4.0), SystemEntropy())
        assert released.arrays["sums"].shape == (2, 2) and released.arrays["counts"].shape == (2, 1)
        assert all(array.all() for array in released.arrays.values())  # noise everywhere (zero: about 1 in 10^7)


# The type


def test_a_privatised_value_cannot_be_forged() -> None:
    arrays, event = {"x": np.zeros(3)}, Gaussian(4.0)
    with pytest.raises(TypeError, match="comes out of privatise"):
        Privatised(arrays, event, 0.0, True)
    with pytest.raises(TypeError, match="comes out of privatise"):
        Privatised(arrays, event, 0.0, True, object())
    for change in ({"arrays": arrays}, {"event": Gaussian(1e9)}, {"releasable": True}, {"distance": 0.0}, {}):
        with pytest.raises(TypeError, match="comes out of privatise"):
            dataclasses.replace(noisy(), **change)
    assert not any(value is noisy().arrays for value in vars(noisy()).values())
    assert set(vars(noisy())) == {"arrays", "event", "distance", "releasable"}  # no token to lift


def test_a_privatised_value_cannot_be_changed() -> None:
    released = noisy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        released.releasable = True  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        released.arrays = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        released.arrays["sums"] = np.zeros(1)  # type: ignore[index]
    for array in released.arrays.values():
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0
        with pytest.raises(ValueError, match="read-only"):
            array += 1
    assert copy.copy(released).arrays is released.arrays


def test_post_processing_keeps_what_it_cost() -> None:
    released = privatise(total_of(), Gaussian(4.0), SystemEntropy())
    images = released.post_process(lambda arrays: {"mean": in_units(arrays["sums"]) / 3})
    assert list(images.arrays) == ["mean"]
    np.testing.assert_array_equal(images.arrays["mean"], released.arrays["sums"] / FIXED_POINT_ONE / 3)
    assert (images.event, images.distance, images.releasable) == (released.event, released.distance, True)
    assert not images.arrays["mean"].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        released.post_process(lambda arrays: {"x": np.add(arrays["sums"], 1, out=arrays["sums"])})


def test_combining_adds_up_what_the_pieces_cost() -> None:
    one = noisy(1, 4.0)
    two = privatise(total_of(), Gaussian(6.0), SystemEntropy()).post_process(lambda a: {"two": a["sums"]})
    both = combine(one, two)
    assert set(both.arrays) == {"sums", "counts", "two"}
    assert both.event == compose(Gaussian(4.0), Gaussian(6.0))
    assert both.distance == one.distance + two.distance > 0
    assert not both.releasable  # one piece came from a seed
    assert combine(two).releasable
    with pytest.raises(ValueError, match="both called"):
        combine(one, one)
