"""Aggregation by robust: nobody moves the means far, honest silos that look alike lose nothing, noise is a bound."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, Layout, class_segment, global_segment, product_segment
from dpdd.server.aggregation.precision import combine
from dpdd.server.aggregation.robust import (
    LARGEST_SHARE,
    TOLERANCE,
    robustly,
    trust_of,
    with_capped_counts,
    without_each,
)
from tests.client.silos import make_request
from tests.server.releases import as_asked, requested_layout, signed_releases

WEIGHT, WIDTH, SIZE = 0.1, 60, 8
LAYOUT = Layout(
    (
        global_segment("all", 20, 2),
        class_segment("sums", WIDTH, 2),
        product_segment("square", SIZE, SIZE, 2, norm=0.5, symmetric=True),
        class_segment("count", 1, 2),
    )
)
MEANS = {"all": 0.1, "sums": 0.08, "square": 0.05}
Sums = dict[str, np.ndarray]


def silo_sums(counts: tuple[int, int], noise: float, generator: np.random.Generator) -> Sums:
    """Noisy sums over records that are all alike."""
    records = {"all": [sum(counts)], "sums": counts, "square": [sum(counts)], "count": counts}
    clean = {
        segment.name: np.repeat(
            MEANS.get(segment.name, WEIGHT) * np.array(records[segment.name], float)[:, None], segment.width, axis=1
        )
        for segment in LAYOUT.segments
    }
    return {name: each + noise * generator.standard_normal(each.shape) for name, each in clean.items()}


def robust(sums: list[Sums], noise: list[float]) -> tuple[Sums, np.ndarray, float]:
    """The sums over silos by the rule, the trust in each silo, and the noise that is stated."""
    capped = with_capped_counts(sums, noise, LAYOUT, WEIGHT)
    trust = trust_of(capped, noise, LAYOUT, WEIGHT)
    total = combine(capped, noise, LAYOUT, WEIGHT, trust)
    return dict(total.sums), trust, total.noise


def means(total: Sums) -> Sums:
    counts = total["count"][:, 0] / WEIGHT
    records = {"all": counts.sum(), "sums": counts[:, None], "square": counts.sum()}
    return {name: total[name] / records[name] for name in records}


def length(name: str, difference: np.ndarray) -> float:
    """The norm that the rule bounds: of the longest row, or the largest singular value."""
    if name == "square":
        return float(np.linalg.norm(difference.reshape(SIZE, SIZE), 2))
    return float(np.linalg.norm(difference, axis=1).max())


@pytest.mark.parametrize("silos", [3, 5, 10])
def test_with_silos_that_look_alike_it_is_precision(silos: int) -> None:
    generator, off = np.random.default_rng(1), []
    for _ in range(30):
        sums, noise = [silo_sums((800, 600), 3.0, generator) for _ in range(silos)], [3.0] * silos
        found, trust, _ = robust(sums, noise)
        expected = combine(sums, noise, LAYOUT, WEIGHT).sums
        off.append(max(np.abs(found[name] - expected[name]).max() for name in found))
        assert trust.min() > 0.9
    assert np.median(off) == 0.0
    alone = [silo_sums((800, 600), 0.0, generator)] * silos
    for name, value in means(robust(alone, [0.0] * silos)[0]).items():
        np.testing.assert_allclose(value, MEANS[name], rtol=1e-9)


def test_unequal_honest_silos_keep_their_trust_and_lose_little() -> None:
    generator, squares = np.random.default_rng(2), np.zeros(2)
    for _ in range(60):
        noise, counts = [1.0, 4.0, 8.0, 4.0], [(900, 500), (2000, 1500), (700, 800), (400, 900)]
        sums = [silo_sums(n, sigma, generator) for n, sigma in zip(counts, noise, strict=True)]
        found, trust, _ = robust(sums, noise)
        assert trust.min() > 0.7
        for row, total in enumerate((found, dict(combine(sums, noise, LAYOUT, WEIGHT).sums))):
            squares[row] += np.square(means(total)["sums"] - MEANS["sums"]).mean()
    assert squares[0] < 1.1 * squares[1]


ATTACKS = {
    "sums 1000 times": lambda sums, _: {**sums, **{name: 1000.0 * sums[name] for name in MEANS}},
    "signs": lambda sums, _: {**sums, **{name: -sums[name] for name in MEANS}},
    "everything 1000 times": lambda sums, _: {name: 1000.0 * each for name, each in sums.items()},
    "counts 1000 times": lambda sums, _: {**sums, "count": 1000.0 * sums["count"]},
    "one direction": lambda sums, g: {**sums, **{name: sums[name] + 40.0 * np.sign(sums[name]) for name in MEANS}},
    "noise": lambda sums, g: {**sums, **{name: 300.0 * g.standard_normal(sums[name].shape) for name in MEANS}},
    "a shift, for many": lambda sums, _: {
        name: (1000.0 * each if name == "count" else 1000.0 * (each + 50.0)) for name, each in sums.items()
    },
    "nothing": lambda sums, _: {name: np.zeros_like(each) for name, each in sums.items()},
}


def room(others: Sums, honest: list[Sums], trust: np.ndarray, bad: int, noise: float) -> dict[str, float]:
    """How far the rule lets `bad` of the silos move a mean per record; the derivation is in the module's docstring."""
    reach, weight = LAYOUT.plain_clip_norm / FIXED_POINT_ONE, float(trust.sum())
    found = {}
    for name, numbers, norm, each in (
        ("all", 20.0, reach, 2),
        ("sums", float(WIDTH), reach, 1),
        ("square", 4.0 * SIZE, 0.5, 2),
    ):
        claimed = LARGEST_SHARE * 1100.0 * each  # of the largest count of an honest silo
        median = 0.5 * math.pi * noise**2 / ((len(honest) + bad) * (900.0 * each) ** 2)
        expected = numbers * (noise**2 + claimed**2 * median) + norm**2 * (claimed + each * (noise / WEIGHT) ** 2)
        apart = np.abs([means(one)[name] - others[name] for one in honest]).max(axis=0)  # the median is among these
        off = float(np.linalg.norm(apart)) if name == "square" else length(name, apart)
        found[name] = bad * 1.25 * (TOLERANCE * math.sqrt(expected) + claimed * off) / (weight * 900.0 * each)
    return found


@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_minority_moves_the_means_by_no_more_than_is_stated(attack, bad: int) -> None:  # type: ignore[no-untyped-def]
    generator, noise = np.random.default_rng(3), 3.0
    for _ in range(10):
        honest = [silo_sums((1000, 1000), noise, generator) for _ in range(5 - bad)]
        forged = [attack(silo_sums((1000, 1000), noise, generator), generator) for _ in range(bad)]
        total, trust, stated = robust([*forged, *honest], [noise] * 5)
        others = combine(honest, [noise] * len(honest), LAYOUT, WEIGHT, trust[bad:])
        limits = room(means(dict(others.sums)), honest, trust[bad:], bad, noise)
        for name, value in means(total).items():
            moved = length(name, value - means(dict(others.sums))[name])
            assert moved <= limits[name], (name, moved, limits[name])
            of_one = np.mean([length(name, means(one)[name] - MEANS[name]) for one in honest])
            assert moved <= 2.0 * bad * of_one, (name, moved, of_one)  # what noise moves the mean of one silo
        assert trust[bad:].min() > 0.7 and stated == pytest.approx(noise * 5**0.5)


def test_by_sum_and_by_precision_the_same_silo_owns_the_result() -> None:
    generator = np.random.default_rng(4)
    sums = [silo_sums((1000, 1000), 3.0, generator) for _ in range(4)]
    liar = ATTACKS["sums 1000 times"](silo_sums((1000, 1000), 3.0, generator), generator)
    for total in (
        {name: sum(each[name] for each in [liar, *sums]) for name in liar},
        dict(combine([liar, *sums], [3.0] * 5, LAYOUT, WEIGHT).sums),
    ):
        assert means(total)["sums"].mean() > 100 * MEANS["sums"]
    assert means(robust([liar, *sums], [3.0] * 5)[0])["sums"].mean() == pytest.approx(MEANS["sums"], rel=0.2)


def test_the_stated_noise_is_a_bound_with_a_bad_silo_too() -> None:
    generator, noise, seen = np.random.default_rng(5), [3.0, 1.0, 5.0, 3.0, 3.0], []
    for _ in range(300):
        sums = [silo_sums((900, 900), sigma, generator) for sigma in noise]
        sums[2] = ATTACKS["signs"](sums[2], generator)
        for each in sums:  # fixed counts, so that only the noise in the sums is seen
            each["count"] = np.full((2, 1), 900 * WEIGHT)
        total, _, stated = robust(sums, noise)
        seen.append(total["sums"])
    assert np.std(seen, axis=0).max() <= stated * 1.15
    assert np.std(seen, axis=0).mean() <= stated


def test_a_class_that_two_silos_have_is_as_by_precision() -> None:
    generator, noise = np.random.default_rng(6), [1.0] * 4
    sums = [silo_sums(counts, 1.0, generator) for counts in ((900, 900), (800, 700), (900, 0), (1000, 0))]
    narrow = Layout((LAYOUT.segments[1], LAYOUT.segments[3]))
    sums = [{name: each[name] for name in ("sums", "count")} for each in sums]
    sums[0]["sums"][1] += 500.0
    trust = trust_of(sums, noise, narrow, WEIGHT)
    assert trust.min() > 0.9  # there is no saying which of the two is right
    sums[0]["sums"][0] += 500.0
    assert trust_of(sums, noise, narrow, WEIGHT)[0] < 0.1


def test_fewer_than_three_silos_cannot_be_compared(tmp_path: Path) -> None:
    data, _ = signed_releases(tmp_path, ("north", "south", "west"))
    releases, layout = [as_asked(each, make_request()) for each in data], requested_layout()
    with pytest.raises(DpddError, match="at least 3, and there are 2: wait for more, or aggregate by sum"):
        robustly(releases[:2], layout, WEIGHT)
    with pytest.raises(ConfigError, match="no class counts"):
        robustly(releases, layout, None)
    total = robustly(releases, layout, WEIGHT)
    assert total.silos == 3 and set(total.sums) == {"embedding", "count"}
    assert [left.silos for left in without_each(releases, layout, WEIGHT)] == [2, 2, 2]
