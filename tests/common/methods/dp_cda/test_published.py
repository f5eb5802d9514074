"""DP-CDA's Theorem 1 beside an exact account: what each of its steps does to ε, and in which direction."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpdd.common.methods.dp_cda.published import ADDED, theorem_1
from dpdd.common.privacy.accounting import guarantee, rdp_guarantee
from dpdd.common.privacy.sampling import sampled_event

DELTA, RECORDS, CLASSES = 1e-5, 60_000, 10
AT_TEN = {4: 0.2171, 16: 0.0620, 64: 0.0193}
"""σ_x / c at which the theorem says ε = 10, by order, for N = T = 60,000."""


def naive(noise: float, order: int, records: int, mixtures: int) -> float:
    """The theorem term by term, with fractions for its alternating sums, for few orders of divergence."""
    slope, p = 2.0 / noise**2 / order**2, order / records

    def alternating(length: int) -> Fraction:
        terms = (Fraction(math.exp((i - 1) * i * slope)) * math.comb(length, i) * (-1) ** i for i in range(length + 1))
        return sum(terms, Fraction(0))

    found = []
    for alpha in range(3, 9):
        pairs = p**2 * math.comb(alpha, 2) * min(4 * math.expm1(2 * slope), 2 * math.exp(2 * slope))
        rest = sum(
            p**j * math.comb(alpha, j) * math.sqrt(alternating(2 * (j // 2)) * alternating(2 * math.ceil(j / 2)))
            for j in range(3, alpha + 1)
        )
        loss = math.log1p(pairs + 4 * rest) / (alpha - 1)
        found.append(mixtures * loss + math.log(1 / DELTA) / (alpha - 1))
    return min(found)


@pytest.mark.parametrize(("noise", "order"), [(0.9, 1), (0.3, 4), (0.1, 16)])
def test_the_theorem_is_its_formula(noise: float, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdd.common.methods.dp_cda.published.LARGEST_ORDER", 8)
    ours = theorem_1.__wrapped__(noise, order, RECORDS, RECORDS, DELTA)
    assert ours == pytest.approx(naive(noise, order, RECORDS, RECORDS), rel=1e-6)


@pytest.mark.parametrize("order", AT_TEN)
def test_its_noise_for_ten_is_safe(order: int) -> None:
    """Together its errors are on the safe side: an upper bound of what it promises 10 for is far below."""
    noise = AT_TEN[order]
    assert theorem_1(noise, order, RECORDS, RECORDS, DELTA) == pytest.approx(10.0, abs=0.15)
    event = sampled_event(order * noise, order * CLASSES / RECORDS, RECORDS // CLASSES)
    renyi = rdp_guarantee(event, DELTA).epsilon
    assert guarantee(event, DELTA).epsilon <= renyi <= {4: 0.96, 16: 1.31, 64: 3.8}[order]


@pytest.mark.parametrize("order", [4, 64])
def test_each_step_has_its_direction(order: int) -> None:
    noise = AT_TEN[order]
    printed = theorem_1(noise, order, RECORDS, RECORDS, DELTA)
    by_class = theorem_1(noise, order, RECORDS // CLASSES, RECORDS, DELTA)
    assert by_class > printed, "records are sampled from their class: the printed rate says too little"
    parallel = theorem_1(noise, order, RECORDS // CLASSES, RECORDS // CLASSES, DELTA)
    assert parallel < by_class, "a record is in mixtures of its own class only: composing all says too much"
    added = theorem_1(noise, order, RECORDS // CLASSES, RECORDS // CLASSES, DELTA, sensitivity=ADDED)
    assert added < parallel, "adding a record moves a mean by c/l: 2c/l says too much"
    event = sampled_event(order * noise, order * CLASSES / RECORDS, RECORDS // CLASSES)
    assert guarantee(event, DELTA).epsilon < added, "the bound holds for any mechanism: for a Gaussian it is loose"


def test_labels_with_noise_cost_what_they_need_not() -> None:
    silent = theorem_1(0.3, 4, RECORDS, RECORDS, DELTA)
    assert theorem_1(0.3, 4, RECORDS, RECORDS, DELTA, label_noise=0.3) > silent
    with pytest.raises(ValueError, match="there are no 10 mixtures of 5 out of 4"):
        theorem_1(0.3, 5, 4, 10, DELTA)


def test_scaling_by_the_records_own_mean_is_not_free() -> None:
    """One record more, of another class even, moves a mean of 50 records by far more than 2c/l."""
    clip, order = 1.0, 50
    records = [1.0] * order + [0.0] * order

    def mixture(values: list[float]) -> float:
        """The mean of the first records, scaled as in the paper, then clipped."""
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        return sum(max(-clip, min(clip, (value - mean) / deviation)) for value in values[:order]) / order

    assert abs(mixture(records) - mixture([*records, 1000.0])) > 25 * (2 * clip / order)


def test_each_step_has_its_direction_in_an_exact_account_too() -> None:
    """The same σ in units of what a record adds, by privacy-loss distributions: rate, then composition, then 2c/l."""
    order = 64
    sigma, by_all, by_class = order * AT_TEN[order], order / RECORDS, order * CLASSES / RECORDS

    def exact(noise: float, rate: float, mixtures: int) -> float:
        return guarantee(sampled_event(noise, rate, mixtures), DELTA).epsilon

    assert exact(sigma, by_all, RECORDS // CLASSES) < exact(sigma, by_class, RECORDS // CLASSES), "class rate"
    assert exact(sigma, by_class, RECORDS // CLASSES) < exact(sigma, by_class, RECORDS), "parallel classes"
    assert exact(sigma, by_class, RECORDS // CLASSES) < exact(sigma / 2.0, by_class, RECORDS // CLASSES), "2c/l"


def test_a_mean_of_l_moves_by_c_over_l_with_a_record_more_and_by_twice_that_if_one_is_replaced() -> None:
    clip, order = 0.7, 5
    others = [(0.1, -0.2), (0.3, 0.3), (-0.5, 0.1), (0.0, 0.6)]

    def mean(records: list[tuple[float, float]]) -> complex:
        """With the public divisor l."""
        return sum((complex(*record) for record in records), 0j) / order

    one, opposite = (clip, 0.0), (-clip, 0.0)
    assert abs(mean([*others, one]) - mean(others)) == pytest.approx(clip / order)
    assert abs(mean([*others, one]) - mean([*others, opposite])) == pytest.approx(2.0 * clip / order)
