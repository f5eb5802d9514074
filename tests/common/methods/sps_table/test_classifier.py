"""The classifier in a table's releases: better than naive Bayes and the mixture, for the priors that were declared."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records.records import Records
from dpdd.common.data import made_patients
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSet
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.synthesis.table_teacher import TableTeacher
from dpdd.common.wire.request import ReleaseRequest
from dpdd.server.aggregation.union import union

SCHEMA = made_patients.SCHEMA
CHOSEN = method("sps-table")
SETTINGS = MethodSettings()
RUN = RunDescription(SCHEMA.classes, SCHEMA.shape, public_seed=5, images_per_class=40, table=SCHEMA)
FEW = {"steps": 60, "components": 8, "teacher_rows": 4000}


@cache
def released(start: int, stop: int, epsilon: float = 8.0) -> Statistics:
    """What a silo with these patients releases."""
    part = made_patients.rows("train").subset(np.arange(start, stop))
    request = ReleaseRequest(
        "test", "sps-table", SETTINGS.on_wire(), epsilon, 1e-5, SCHEMA.classes, SCHEMA.shape, 5, table=SCHEMA
    )
    plan = CHOSEN.plan(request, SETTINGS)
    records = Records(part.rows, part.labels)
    answer = mechanism(CHOSEN).run(records, request, SETTINGS, plan, SeededEntropy(1), silent)
    return of_one_silo(answer.arrays, answer.event)


def made(statistics: Statistics, run: RunDescription = RUN, **settings: object) -> LabelledSet:
    product = CHOSEN.synthesise([statistics], SETTINGS, CHOSEN.synthesis_settings({**FEW, **settings}), run)
    assert isinstance(product, LabelledSet)
    return product


def teacher_of(product: LabelledSet) -> TableTeacher:
    assert isinstance(product.teacher, TableTeacher)
    return product.teacher


def area(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """ROC-AUC of the score of class 1, pair by pair."""
    one, other = scores[labels == 1], scores[labels == 0]
    return float(((one[:, None] > other) + 0.5 * (one[:, None] == other)).mean())


def test_it_knows_what_the_releases_know() -> None:
    """In 3,000 records at ε = 8; logistic regression on the records themselves has 0.90 of all of them."""
    test = made_patients.rows("test")
    chances = teacher_of(made(released(0, 3000))).probabilities(test.rows)[:, 1].numpy()
    assert area(chances, test.labels) > 0.87
    assert abs(chances.mean() - test.labels.mean()) < 0.03, "its class shares are those of the records"


def test_it_labels_the_rows_and_depends_on_nothing_but_the_releases() -> None:
    product = made(released(0, 3000))
    assert product.soft is not None
    np.testing.assert_array_equal(product.soft, teacher_of(product).probabilities(product.rows).numpy())
    torch.manual_seed(3)
    again = made(released(0, 3000), replace(RUN, images_per_class=7))
    np.testing.assert_array_equal(teacher_of(again).weights, teacher_of(product).weights)


def test_priors_that_are_declared_are_the_teachers() -> None:
    test = made_patients.rows("test")
    statistics = released(0, 3000)
    means = {}
    for priors in (None, "as-released", "equal", {"no": 0.05, "yes": 0.95}):
        product = made(statistics, replace(RUN, priors=priors))  # type: ignore[arg-type]
        means[str(priors)] = float(teacher_of(product).probabilities(test.rows)[:, 1].mean())
        assert product.soft is not None
        np.testing.assert_array_equal(product.soft, teacher_of(product).probabilities(product.rows).numpy())
    none, released_, equal, most = means.values()
    assert abs(none - released_) < 0.01 and released_ + 0.05 < equal < most
    one, other = (
        teacher_of(made(statistics, replace(RUN, priors=p))).weights for p in ("equal", {"no": 0.2, "yes": 0.8})
    )  # type: ignore[arg-type]
    shift = (other - one)[:, -1]
    assert shift[1] - shift[0] == pytest.approx(math.log(4.0), abs=1e-5)
    np.testing.assert_array_equal(one[:, :-1], other[:, :-1])


def test_nobody_needs_to_have_one() -> None:
    without = made(released(0, 3000), teacher_rows=0)
    assert without.teacher is None and without.soft is None
    hard = made(released(0, 3000), soft_labels=False)
    assert hard.teacher is not None and hard.soft is None
    np.testing.assert_array_equal(hard.rows, without.rows)


@pytest.mark.parametrize("settings", [{}, {"soft_labels": False}, {"teacher_rows": 0}], ids=str)
def test_a_distilled_set_has_what_is_planned(settings: dict[str, object]) -> None:
    synthesis = CHOSEN.synthesis_settings({**FEW, **settings})
    planned, product = CHOSEN.label_arrays(SETTINGS, synthesis, RUN), made(released(0, 3000), **settings)
    arrays = {"teacher": None if product.teacher is None else product.teacher.weights, "soft": product.soft}
    there = {name: array for name, array in arrays.items() if array is not None}
    assert planned.keys() == there.keys()
    for name, array in there.items():
        assert str(array.dtype) == planned[name].dtype
        assert array.shape == planned[name].shape, "as many rows of each class as were asked for, here"


def test_weights_that_somebody_sent_are_of_this_table() -> None:
    weights = teacher_of(made(released(0, 3000))).weights
    assert CHOSEN.teacher_of(weights, SETTINGS, RUN).weights is weights
    for odd in (weights[:, 1:], weights[:1], weights.astype(np.float64)):
        with pytest.raises(ValueError, match="weights are"):
            CHOSEN.teacher_of(odd, SETTINGS, RUN)
    with pytest.raises(ValueError, match="no rows of a table"):
        CHOSEN.label_arrays(SETTINGS, CHOSEN.synthesis_settings({}), replace(RUN, table=None))


def test_teachers_of_silos_are_united() -> None:
    """Two silos, one of which has three times the records; the union's is better than the small one's."""
    test, sets = made_patients.rows("test"), []
    for start, stop in ((0, 3000), (3000, 4000)):
        statistics = released(start, stop, 4.0)
        counts = (statistics.sums["count"][:, 0] / SETTINGS.count_weight).astype(np.float32)
        sets.append(DistilledSet(made(statistics), counts))
    joined = union(sets, 40)
    areas = [
        area(teacher_of(each).probabilities(test.rows)[:, 1].numpy(), test.labels)
        for each in (joined, *(each.dataset for each in sets))
    ]
    assert areas[0] > areas[2] and areas[0] > areas[1] - 0.01
    assert joined.soft is not None and len(joined) == 80
    np.testing.assert_array_equal(joined.soft, teacher_of(joined).probabilities(joined.rows).numpy())


@pytest.mark.parametrize("epsilon", [0.05, math.inf])
def test_noise_alone_and_no_noise_at_all_still_give_finite_weights(epsilon: float) -> None:
    weights = teacher_of(made(released(0, 20, epsilon))).weights
    assert np.isfinite(weights).all() and np.abs(weights).max() < 50.0
