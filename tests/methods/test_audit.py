"""Audits of every method: what canaries add is what clean sums hold, and no bound is above what is claimed."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from dpdd.client.auditing.canaries import canaries, families
from dpdd.client.auditing.contributions import clean_sums, recorded
from dpdd.client.auditing.one_run import NOT_A_NUMBER, AuditPlan, attack, audit, observed, statistics_request
from dpdd.client.auditing.scoring import scores
from dpdd.client.records.records import Records
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.registry import METHODS, method
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import Kind, ReleaseRequest
from tests.methods.cases import all_cases
from tests.methods.harness import Case

os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")
PRIVATE = [case for case in all_cases() if case.private and isinstance(case.entry, Method)]
QUICK = [case for case in PRIVATE if case.variant in ("", "table", "stages", "frozen-table", "marginals")]
SLOW = ("dp-kip", "dosser", "dp-geng")  # to plan at another budget


def plain_gaussian(epsilon: float) -> ReleaseRequest:
    """One Gaussian over the class sums of images: a mixture of everybody."""
    classes = tuple("abcdefghij")
    run, chosen = RunDescription(classes, (1, 28, 28), public_seed=5), method("dp-cda")
    given = {"mixtures_per_class": 1, "order": 1.0, "class_size": 1, "encoding": "exact"}
    return ReleaseRequest(
        run="audit",
        method="dp-cda",
        settings=chosen.resolve(chosen.settings(given), run, epsilon, 1e-5).on_wire(),
        epsilon=epsilon,
        delta=1e-5,
        classes=classes,
        shape=run.shape,
        public_seed=5,
        kind=Kind.STATISTICS,
    )


def some_canaries(case: Case, count: int) -> Records:
    return Records(*canaries(next(iter(families(case.run))), count, case.run, 1))


@pytest.mark.parametrize("case", PRIVATE, ids=str)
def test_contributions_add_up_to_the_clean_sums(case: Case) -> None:
    """So the attacker knows to the last digits what each canary adds, whatever the method is."""
    records, request = some_canaries(case, 7), case.request(1.0)
    made, sums = recorded(records, request), clean_sums(records, request)
    assert len(made) == len(sums) > 0
    for contributions, clean in zip(made[:2], sums[:2], strict=True):  # an adaptive one goes its own way afterwards
        total = contributions.total(np.ones(7))
        assert total.keys() == clean.keys()
        for name, array in clean.items():
            assert np.abs(total[name] - array).max() < 2e-4, name
        assert contributions.squared_norms().max() <= 1.0 + 1e-5
        unit = contributions.total(np.eye(7)[3])
        assert np.isclose(contributions.matched(unit)[3], contributions.squared_norms()[3], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_no_bound_is_above_the_claim(case: Case) -> None:
    for epsilon in (1.0, 8.0) if case.method not in SLOW else (1.0,):
        result = audit(replace(case.request(1.0), epsilon=epsilon), AuditPlan(canaries=40, seed=3, noise_seed=3))
        assert not result.refuted and max(result.one_run_bound, result.curve_bound) <= epsilon


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_what_is_attacked_gives_canaries_away_where_there_is_no_noise(case: Case) -> None:
    """With the clean sums for the noisy ones nearly all coins are found, so the attack looks at the right numbers."""
    records, request = some_canaries(case, 12), statistics_request(case.request(1.0))
    coins = np.arange(12) % 3 == 0
    made = recorded(records, request)
    present = clean_sums(records.take(coins), request)
    layout = case.entry.layout(case.values(), case.run, 0)
    whole = {s.name: (s.rows, s.width) for s in layout.segments}
    joined = {name: np.concatenate([each[name] for each in present]) for name in present[0]}
    known = Statistics({n: a for n, a in joined.items() if a.shape == whole[n]}, 1.0, 1)
    seen = observed(request, known, made, None)
    found = scores([replace(each, sigma=0.01, rate=1.0) for each in seen])
    norms = np.sum([each.contributions.squared_norms() for each in seen], axis=0)
    assert (norms > 0.0).all()
    assert found[coins].mean() > found[~coins].mean() + 0.4 * (found.max() - found.min())


def test_canaries_that_are_no_numbers_are_guessed_by_chance() -> None:
    for request in (plain_gaussian(8.0), next(case for case in PRIVATE if str(case) == "sps").request(1.0)):
        found = attack(request, AuditPlan(canaries=300, family=NOT_A_NUMBER, noise_seed=1))
        assert (found.scores == 0.0).all()


def test_the_plain_gaussian_release_gives_away_nearly_half_of_what_it_may() -> None:
    result = audit(plain_gaussian(1.0), AuditPlan(canaries=6000, seed=1, noise_seed=1, family="checks"))
    assert 0.35 < result.one_run_bound <= 1.0 and 0.45 < result.curve_bound <= 1.0 and not result.refuted


def test_other_records_that_are_known_do_not_hide_canaries() -> None:
    request = plain_gaussian(8.0)
    generator = np.random.Generator(np.random.PCG64(1))
    others = Records(generator.random((500, 1, 28, 28)).astype(np.float32), generator.integers(0, 10, 500))
    plan = AuditPlan(canaries=600, seed=2, noise_seed=2, family="checks")
    alone, among = audit(request, plan), audit(request, plan, others)
    assert abs(alone.one_run.correct - among.one_run.correct) <= 3 and among.one_run_bound > 1.5


def test_every_method_is_audited() -> None:
    assert {case.method for case in QUICK} >= {
        each.name for each in METHODS if each.name not in ("dm", "sps-published", "kip-table-published")
    }
