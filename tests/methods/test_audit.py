"""Audits of every method: what canaries add is what clean sums hold, and no bound is above what is claimed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpdd.client.auditing.canaries import best_family, canaries, families
from dpdd.client.auditing.contributions import clean_sums, recorded
from dpdd.client.auditing.one_run import NOT_A_NUMBER, AuditPlan, attack, audit, observed, statistics_request
from dpdd.client.auditing.scoring import scores
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method
from dpdd.common.methods.registry import METHODS
from dpdd.common.synthesis.statistics import Statistics
from tests.methods.audits import plain_gaussian
from tests.methods.cases import all_cases
from tests.methods.harness import Case

PRIVATE = [case for case in all_cases() if case.private and isinstance(case.entry, Method)]
EXACT = [case for case in PRIVATE if case.variant not in ("any-size", "scattering", "solved-labels", "few-levels")]
AUDITED = [case for case in PRIVATE if str(case) in ("dp-merf", "sps-table-table", "dp-cda-table")]
TAKEN_APART = [
    case
    for case in PRIVATE
    if case.variant in ("", "table", "stages", "marginals", "squares")
    and str(case) not in ("private-evolution", "dp-kip", "sps", "kip-moments", "dosser", "dp-geng", "ndpdc")
    and case.method != "dp-kip-features"
]


def some_canaries(case: Case, count: int) -> Records:
    return Records(*canaries(next(iter(families(case.run))), count, case.run, 1))


def case_called(name: str) -> Case:
    return next(case for case in PRIVATE if str(case) == name)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_contributions_add_up_to_the_clean_sums(case: Case) -> None:
    """So the attacker knows to the last digits what each canary adds, whatever the method is."""
    records, request = some_canaries(case, 7), case.request(1.0)
    made, sums = recorded(records, request), clean_sums(records, request)
    assert len(made) == len(sums) > 0
    for contributions, clean in zip(made[:1], sums[:1], strict=True):
        total = contributions.total(np.ones(7))
        assert total.keys() == clean.keys()
        for name, array in clean.items():
            assert np.abs(total[name] - array).max() < 2e-4, name
        norms = contributions.squared_norms()
        assert norms.max() <= 1.0 + 1e-5
        inner = contributions.matched(contributions.total(np.eye(7)[3]))
        assert np.isclose(inner[3], norms[3], rtol=1e-3, atol=1e-6)


def test_every_method_is_tried() -> None:
    assert {case.method for case in EXACT} == METHODS.keys() - {"dm"}


@pytest.mark.parametrize("case", AUDITED, ids=str)
def test_no_bound_is_above_the_claim(case: Case) -> None:
    """`measure_audits` has fifty runs of every method."""
    for seed in (1, 2):
        result = audit(case.request(1.0), AuditPlan(canaries=60, seed=seed, noise_seed=seed, family=_family(case)))
        assert not result.refuted and max(result.one_run_bound, result.curve_bound) <= 1.0


def _family(case: Case) -> str:
    return next(iter(families(case.run)))


@pytest.mark.parametrize("case", TAKEN_APART, ids=str)
def test_without_noise_the_coins_are_found(case: Case) -> None:
    """Clean sums in the place of noisy ones: so the attack looks at the right numbers, stage by stage."""
    records, request = some_canaries(case, 12), statistics_request(case.request(1.0))
    coins = np.arange(12) % 3 == 0
    made, present = recorded(records, request), clean_sums(records.take(coins), request)
    layout = case.entry.layout(case.values(), case.run, 0)
    shapes = {segment.name: (segment.rows, segment.width) for segment in layout.segments}
    joined = {name: np.concatenate([each[name] for each in present]) for name in present[0]}
    known = Statistics({name: array for name, array in joined.items() if array.shape == shapes[name]}, 1.0, 1)
    seen = observed(request, known, made, None)
    found = scores([replace(each, sigma=0.01, rate=1.0) for each in seen])
    assert found[coins].mean() > found[~coins].mean() + 0.4 * (found.max() - found.min())


def test_the_plain_gaussian_release_gives_away_two_fifths_of_what_it_may() -> None:
    results = [
        audit(plain_gaussian(1.0), AuditPlan(canaries=7840, seed=seed, noise_seed=seed, family="pixels"))
        for seed in range(2)
    ]
    assert np.mean([each.one_run_bound for each in results]) > 0.36
    assert max(each.curve_bound for each in results) < 1.0 and not any(each.refuted for each in results)


def test_canaries_that_are_no_numbers_are_guessed_by_chance() -> None:
    found = attack(plain_gaussian(8.0), AuditPlan(canaries=300, family=NOT_A_NUMBER, noise_seed=1))
    assert (found.scores == 0.0).all()
    assert found.right(300).correct == int((~found.coins).sum())


def test_other_records_that_are_known_do_not_hide_canaries() -> None:
    request, generator = plain_gaussian(8.0), np.random.Generator(np.random.PCG64(1))
    others = Records(generator.random((300, 1, 28, 28)).astype(np.float32), generator.integers(0, 10, 300))
    plan = AuditPlan(canaries=500, seed=2, noise_seed=2, family="checks")
    alone, among = audit(request, plan), audit(request, plan, others)
    assert abs(alone.one_run.correct - among.one_run.correct) <= 3 and among.one_run_bound > 1.5


def test_other_records_of_which_a_sample_is_in_are_less_in_the_mean() -> None:
    case = case_called("dp-cda")
    features, labels = case.records(30)
    plan = AuditPlan(canaries=40, seed=1, noise_seed=1, family="checks")
    found = attack(case.request(1.0), plan, Records(features, labels))
    assert abs(float(found.scores.mean())) < 2.0


def test_a_finished_set_is_audited_by_the_sums_that_it_is_made_of() -> None:
    from dpdd.common.wire.request import Kind

    case = case_called("dp-merf")
    asked = statistics_request(case.request(1.0, Kind.DISTILLED_SET))
    assert asked.kind is Kind.STATISTICS and asked.settings == case.request(1.0).settings


def test_the_family_that_stands_out_is_taken() -> None:
    request = plain_gaussian(1.0)
    assert best_family(case_called("dp-merf").request(1.0), 300, 0.6) != "pixels"  # which it takes for one and the same
    assert best_family(request, 2000, 3.7) == "checks" and best_family(request, 2000, 0.2) == "pixels"


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"canaries": 0}, "at least one canary"),
        ({"confidence": 1.0}, "confidence lies in"),
        ({"family": "unicorns"}, "there are no canaries 'unicorns'"),
    ],
)
def test_odd_plans_are_an_error(plan: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        audit(plain_gaussian(1.0), AuditPlan(**plan))  # type: ignore[arg-type]
