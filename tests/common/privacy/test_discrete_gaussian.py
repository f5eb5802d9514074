"""The noise: its tables digit by digit, its convolution by brute force, its draws by statistics with known error rates.

Statistical tests here use fresh system entropy, so each is set to a false-alarm rate of 1e-7 or less.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf
from numpy.typing import NDArray
from scipy import stats

from dpdd.common.privacy import discrete_gaussian as dg
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from tests.common.privacy.scripted import Scripted

ALARM = 1e-7
SCALES = [1.0, 4.0, 100.0, 2.0**18, 2.0**20, 2.0**23]


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(90):
        yield


def exact_pmf(scale: float | mpf, half_width: int) -> dict[int, mpf]:
    """D(scale), by its definition."""
    s = mpf(scale)
    weights = [mpmath.exp(-(mpf(k) ** 2) / (2 * s * s)) for k in range(half_width + 1)]
    tail = 2 * mpmath.nsum(lambda k: mpmath.exp(-((half_width + k) ** 2) / (2 * s * s)), [1, 60])
    total = 2 * mpmath.fsum(weights) - weights[0] + tail
    return {k: weights[abs(k)] / total for k in range(-half_width, half_width + 1)}


def table_pmf(scale: float) -> dict[int, Fraction]:
    """What the table really draws, from its integer steps."""
    table = dg._table(scale)
    edges = [0, *table.steps, 1 << 128]
    return {
        index - table.half_width: Fraction(above - below, 1 << 128)
        for index, (below, above) in enumerate(itertools.pairwise(edges))
    }


def total_variation(drawn: dict[int, Fraction], ideal: dict[int, mpf]) -> mpf:
    def as_mpf(p: Fraction) -> mpf:
        return mpf(p.numerator) / mpf(p.denominator)

    everywhere = drawn.keys() | ideal.keys()
    missing = 1 - mpmath.fsum(ideal.values())
    differences = (abs(as_mpf(drawn.get(k, Fraction(0))) - ideal.get(k, mpf(0))) for k in everywhere)
    return (mpmath.fsum(differences) + missing) / 2


# Exactness


@pytest.mark.parametrize("scale", [0.05, 0.3, 0.7, 1.0, 2.5, 4.0, 17.3])
def test_tables_hold_the_exact_probabilities(scale: float) -> None:
    drawn, half_width = table_pmf(scale), math.ceil(14 * scale) + 3
    ideal = exact_pmf(scale, half_width)
    assert sum(drawn.values()) == 1
    for k, p in drawn.items():
        assert abs(mpf(p.numerator) / mpf(p.denominator) - ideal[k]) <= mpf(2) ** -127
    assert total_variation(drawn, ideal) <= dg.sampler_distance(scale)


def test_the_total_variation_sees_a_wrong_scale() -> None:
    assert total_variation(table_pmf(4.0), exact_pmf(4.0 * (1 + 1e-30), 60)) < 1e-29
    assert total_variation(table_pmf(4.0), exact_pmf(4.0 * (1 + mpf(10) ** -20), 60)) > dg.sampler_distance(4.0)


@pytest.mark.parametrize("smooth", [0.7, 1.0, 2.05])
@pytest.mark.parametrize("widest, scale", [(10.0, 30.0), (8.0, 31.7), (12.0, 40.0), (10.0, 90.0), (10.0, 230.0)])
def test_the_sum_of_two_draws_is_as_close_to_one_as_claimed(
    widest: float, scale: float, smooth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The convolution that draws wide noise, in small: every probability of x₁ + k·x₂, as exact fractions.

    With less smoothness the seams show, and the bound has to follow them; with what is used they vanish behind the
    128 bits of the tables.
    """
    monkeypatch.setattr(dg, "WIDEST_TABLE", widest)
    monkeypatch.setattr(dg, "_SMOOTH", smooth)

    def pmf_and_square(scale: float) -> tuple[dict[int, int], int, Fraction]:
        """Probabilities × 2^bits, the bits, and the square of the scale that was realised."""
        if scale <= widest:
            return {k: int(p * 2**128) for k, p in table_pmf(scale).items()}, 128, Fraction(scale) ** 2
        narrow, factor, wide = dg._split(scale)
        assert narrow <= widest
        one, one_bits, one_square = pmf_and_square(narrow)
        two, two_bits, two_square = pmf_and_square(wide)
        out: dict[int, int] = {}
        for b, q in two.items():
            for a, p in one.items():
                out[a + factor * b] = out.get(a + factor * b, 0) + p * q
        return out, one_bits + two_bits, one_square + factor**2 * two_square

    integers, bits, square = pmf_and_square(scale)
    drawn = {k: Fraction(p, 1 << bits) for k, p in integers.items()}
    assert sum(integers.values()) == 1 << bits
    assert square >= Fraction(scale) ** 2
    assert square <= Fraction(scale) ** 2 * (1 + Fraction(1, 10**14))
    realised = mpmath.sqrt(mpf(square.numerator) / mpf(square.denominator))
    claimed = dg.sampler_distance(scale)
    assert claimed < (1e-34 if smooth == 2.05 else 1e-2)
    assert total_variation(drawn, exact_pmf(realised, max(drawn))) <= claimed


@pytest.mark.parametrize("scale", [30.0, 90.0])
def test_draws_by_convolution_fit_the_definition(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small, where a factor that is off by one is not lost among a thousand."""
    monkeypatch.setattr(dg, "WIDEST_TABLE", 10.0)
    assert _fits_definition(dg.sample(scale, 100_000, SystemEntropy()), scale)


@settings(deadline=None, max_examples=300)
@given(st.floats(2048.001, 2.0**57))
def test_realised_noise_is_never_narrower_than_asked(scale: float) -> None:
    def square(scale: float) -> Fraction:
        if scale <= dg.WIDEST_TABLE:
            return Fraction(scale) ** 2
        narrow, factor, wide = dg._split(scale)
        assert narrow * wide / math.hypot(narrow, factor * wide) >= dg._SMOOTH
        return square(narrow) + factor**2 * square(wide)

    assert Fraction(scale) ** 2 <= square(scale) <= Fraction(scale) ** 2 * (1 + Fraction(1, 10**14))


@settings(deadline=None, max_examples=300)
@given(st.floats(4.0, 2.0**57))
def test_the_discrete_scale_covers_the_twelfth_that_rounding_costs(sigma: float) -> None:
    asked = Fraction(sigma) ** 2 + Fraction(1, 12)
    assert asked <= Fraction(dg.scale_for(sigma)) ** 2 <= asked * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize("scale", [4.0, 5.0, 8.0, 16.0])
def test_rounding_distance_by_brute_force(scale: float) -> None:
    """D(s) against N(0, s² - 1/12) rounded to integers."""
    deviation = mpmath.sqrt(mpf(scale) ** 2 - mpf(1) / 12)
    ideal = exact_pmf(scale, math.ceil(20 * scale))

    def above(x: mpf) -> mpf:
        return mpmath.erfc(x / deviation / mpmath.sqrt(2)) / 2

    half = mpf(1) / 2
    differences = [abs(ideal[k] - (above(k - half) - above(k + half))) for k in range(max(ideal) + 1)]
    true = (2 * mpmath.fsum(differences) - differences[0]) / 2
    assert dg.rounding_distance(scale) / 50 < true <= dg.rounding_distance(scale)


def test_the_inequality_behind_the_rounding_distance() -> None:
    for step in range(1, 3143):
        t = mpf(step) / 1000
        assert abs(mpmath.exp(-(t**2) / 24) - mpmath.sinc(t / 2)) <= t**4 / 2880


def test_distances_are_sums_that_shrink_with_the_scale() -> None:
    assert dg.distance(2.0**18) == dg.sampler_distance(2.0**18) + dg.rounding_distance(2.0**18)
    assert dg.delta_cost(2.0**18, 7, 1.5) == (1 + math.exp(1.5)) * 7 * dg.distance(2.0**18)
    assert dg.rounding_distance(4.0) > dg.rounding_distance(40.0) > dg.rounding_distance(400.0)


# Statistics


def scale_matches(samples: NDArray[np.int64], scale: float) -> bool:
    """Whether the mean square is that of D(scale), two-sided, with a false-alarm rate of `ALARM`.

    D(s) has variance s² to nine digits from s = 1.2 on (to seven at 1), and normal tails: the sum of squares is χ².
    """
    squares = float(np.sum((samples / scale) ** 2))
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], len(samples))
    return bool(low < squares < high)


@pytest.mark.parametrize("scale", SCALES)
def test_scale_two_sided(scale: float) -> None:
    """Accepts the true scale and, to be worth anything, rejects one that is a tenth off either way."""
    count = 20_000
    assert scale_matches(dg.sample(scale, count, SystemEntropy()), scale)
    if scale > 1.0:  # a tenth of 1 is lost between the integers
        assert not scale_matches(dg.sample(0.9 * scale, count, SystemEntropy()), scale)
        assert not scale_matches(dg.sample(1.1 * scale, count, SystemEntropy()), scale)


@pytest.mark.parametrize("scale", [100.0, 2.0**18, 2.0**20, 2.0**23, 2.0**50])
def test_the_shape_is_normal(scale: float) -> None:
    draws = dg.sample(scale, 50_000, SystemEntropy())
    smooth = draws + np.random.default_rng(1).random(len(draws)) - 0.5
    assert stats.kstest(smooth, stats.norm(scale=scale).cdf).pvalue > ALARM
    assert stats.kstest(smooth * 1.1, stats.norm(scale=scale).cdf).pvalue < ALARM


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, 6.0])
def test_small_scales_against_the_definition(scale: float) -> None:
    count = 100_000
    draws = dg.sample(scale, count, SystemEntropy())
    assert _fits_definition(draws, scale)
    assert not _fits_definition(dg.sample(1.1 * scale, count, SystemEntropy()), scale)


def _fits_definition(draws: NDArray[np.int64], scale: float) -> bool:
    reach = math.ceil(3 * scale)
    expected = [float(p) * len(draws) for _, p in sorted(exact_pmf(scale, reach).items())]
    observed = [int(np.sum(draws == k)) for k in range(-reach, reach + 1)]
    expected.append(len(draws) - sum(expected))
    observed.append(len(draws) - sum(observed))
    kept = [(o, e) for o, e in zip(observed, expected, strict=True) if e >= 5.0]
    statistic = sum((o - e) ** 2 / e for o, e in kept)
    return bool(stats.chi2.sf(statistic, len(kept) - 1) > ALARM)


def test_against_opendps_exact_sampler() -> None:
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)

    def theirs(scale: float, count: int) -> NDArray[np.int64]:
        return np.array((space >> opendp.m.then_gaussian(scale))([0] * count))

    for scale in (2.0**18, 2.0**20):
        others = theirs(scale, 20_000)
        assert scale_matches(others, scale)
        assert stats.ks_2samp(dg.sample(scale, 100_000, SystemEntropy()), others).pvalue > ALARM
        assert stats.ks_2samp(dg.sample(scale * 1.2, 100_000, SystemEntropy()), others).pvalue < ALARM
    assert _fits_definition(theirs(2.5, 20_000), 2.5)  # and the definition in this file is theirs, too


@pytest.mark.parametrize("scale", [4.0, 2.0**18, 2.0**20])
def test_coordinates_and_calls_are_independent(scale: float) -> None:
    count = 1 << 17  # two batches
    entropy = SystemEntropy()
    one, two = (dg.sample(scale, count, entropy) / scale for _ in range(2))
    limit = stats.norm.isf(ALARM / 100)
    for x, y in ((one, one), (one**2 - 1, one**2 - 1)):
        for lag in (1, 2, 3, 7, 64, 1 << 16):
            assert abs(_correlation(x[:-lag], y[lag:])) < limit
    for x, y in ((one, two), (one**2 - 1, two**2 - 1)):
        assert abs(_correlation(x, y)) < limit


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Standard normal for independent x and y."""
    return float(np.sum(x * y) / math.sqrt(np.sum(x**2) * np.sum(y**2)) * math.sqrt(len(x)))


@pytest.mark.parametrize("scale", [4.0, 2.0**18, 2.0**23])
def test_symmetry(scale: float) -> None:
    draws = dg.sample(scale, 100_000, SystemEntropy())
    positive, negative = int(np.sum(draws > 0)), int(np.sum(draws < 0))
    assert stats.binomtest(positive, positive + negative).pvalue > ALARM
    assert abs(draws.mean() / scale) * math.sqrt(len(draws)) < stats.norm.isf(ALARM / 2)
    assert stats.ks_2samp(np.abs(draws[draws > 0]), np.abs(draws[draws < 0])).pvalue > ALARM


@pytest.mark.parametrize("scale", [2.0**13, 2.0**18, 2.0**20])
def test_no_residue_is_preferred(scale: float) -> None:
    """x₁ + k·x₂ would show its seams modulo k, were x₁ too narrow."""
    draws = dg.sample(scale, 200_000, SystemEntropy())
    for modulus in (2, 3, dg._split(scale)[1]):
        counts = np.bincount(draws % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > ALARM


# The machinery of a draw


@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0, 300.0])
def test_ties_are_settled_by_the_other_64_bits(scale: float) -> None:
    table = dg._table(scale)
    mask = (1 << 64) - 1
    for step in table.steps[:: max(1, len(table.steps) // 40)]:
        high, low = step >> 64, step & mask
        for tail in {max(low - 1, 0), low, min(low + 1, mask), 0, mask}:
            entropy = Scripted(high, tail)
            expected = sum(s <= (high << 64 | tail) for s in table.steps) - table.half_width
            assert dg.sample(scale, 1, entropy).tolist() == [expected]
            assert entropy.spent, "a tie takes 64 more bits"


def test_ties_among_other_draws_land_in_their_own_place() -> None:
    table = dg._table(4.0)
    middle = len(table.steps) // 2
    tie, other = table.steps[middle] >> 64, table.steps[middle + 3] >> 64
    words, tails = [1 << 60, tie, 1 << 61, other, 3 << 62], [0, (1 << 64) - 1]
    whole = [w << 64 for w in words]
    whole[1] |= tails[0]
    whole[3] |= tails[1]
    expected = [sum(s <= w for s in table.steps) - table.half_width for w in whole]
    assert dg.sample(4.0, 5, Scripted(*words, *tails)).tolist() == expected


@pytest.mark.parametrize("scale", [0.3, 4.0, 2048.0])
def test_shortcut_cells_agree_with_plain_inversion(scale: float) -> None:
    table = dg._table(scale)
    rng = random.Random(5)
    words = [rng.getrandbits(64) for _ in range(2_000)]
    words += [(cell << (64 - dg._CELL_BITS)) + d for cell in (1, 77, 1 << 17) for d in (0, 1)]
    words += [(cell << (64 - dg._CELL_BITS)) - 1 for cell in (1, 77, 1 << 17)] + [0, (1 << 64) - 1]
    high = [step >> 64 for step in table.steps]
    tied = set(high)
    words = [word for word in words if word not in tied]
    expected = np.searchsorted(np.array(high, dtype=np.uint64), np.array(words, dtype=np.uint64), side="right")
    drawn = dg.sample(scale, len(words), Scripted(*words))
    assert drawn.tolist() == (expected - table.half_width).tolist()


def test_seeded_noise_repeats_and_system_noise_does_not() -> None:
    def seeded(seed: int, purpose: str = "") -> list[int]:
        return dg.sample(2.0**20, 50, SeededEntropy(seed, purpose)).tolist()

    assert seeded(1) == seeded(1)
    assert seeded(1) != seeded(2)
    assert seeded(1) != seeded(1, "another silo")
    stream = SeededEntropy(1)
    assert not set(dg.sample(2.0**20, 50, stream)) & set(dg.sample(2.0**40, 50, stream))
    assert SystemEntropy().take(32) != SystemEntropy().take(32)
    one = SystemEntropy()
    assert one.take(32) != one.take(32)
    draws = [tuple(dg.sample(2.0**20, 4, SystemEntropy())) for _ in range(50)]
    assert len(set(draws)) == 50


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e18, 1e160, 1e300])
def test_scales_that_cannot_be_drawn_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        dg.sample(scale, 1, SystemEntropy())
    if scale > 1 or math.isnan(scale):
        with pytest.raises(ValueError, match="scale"):
            dg.sampler_distance(scale)


def test_noise_too_coarse_to_account_for_is_refused() -> None:
    with pytest.raises(ValueError, match="too coarse"):
        dg.distance(3.99)


@pytest.mark.parametrize("count", [0, 1, dg._BATCH - 1, dg._BATCH, dg._BATCH + 1])
def test_any_number_of_draws(count: int) -> None:
    draws = dg.sample(50.0, count, SystemEntropy())
    assert draws.shape == (count,) and draws.dtype == np.int64
    if count > 1000:
        assert scale_matches(draws, 50.0)


def test_the_widest_noise_still_fits_64_bits() -> None:
    draws = dg.sample(dg.WIDEST, 100_000, SystemEntropy())
    assert scale_matches(draws, dg.WIDEST)
