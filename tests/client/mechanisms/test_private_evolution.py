"""Votes of records against brute force, and what a silo is not asked with."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.private_evolution import MECHANISM
from dpdd.client.policy import Refused, check_public_datasets
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.private_evolution.settings import COUNT, POPULATION, VOTES, EvolutionSettings
from dpdd.common.methods.private_evolution.specification import image_vectors, points_of
from dpdd.common.methods.private_evolution.synthesis import Evolution
from dpdd.common.methods.registry import method
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian
from dpdd.common.progress import silent
from dpdd.common.synthesis.statistics import of_one_silo
from dpdd.common.wire.request import Kind, ReleaseRequest
from tests.methods.harness import CLASSES, TABLE, images, make_silo, rows
from tests.methods.harness import Case as ContractCase

ENTRY = method("private-evolution")


def request(shape: tuple[int, ...], epsilon: float = math.inf, **values: Any) -> ReleaseRequest:
    table = TABLE if len(shape) == 1 else None
    run = RunDescription(CLASSES, shape, public_seed=5, table=table)
    settings = ENTRY.resolve(ENTRY.settings({"rounds": 4, "population": 6, **values}), run, 1.0, 1e-5).on_wire()
    return ReleaseRequest("t", "private-evolution", settings, epsilon, 1e-5, CLASSES, shape, 5, table=table)


def votes(asked: ReleaseRequest, records: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, NDArray]:
    settings = ENTRY.settings(asked.settings)
    answer = MECHANISM.run(
        Records(records, labels), asked, settings, ENTRY.plan(asked, settings), SeededEntropy(1), silent
    )
    sums = of_one_silo(answer.arrays, answer.event).sums
    return {VOTES: sums[VOTES] / settings.vote, COUNT: sums[COUNT][:, 0] / settings.count_weight}


def nearest(points: NDArray, members: NDArray, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many records of each class are nearest to each member of their own, one after the other."""
    counts = np.zeros(members.shape[:2], np.int64)
    for point, label in zip(points, labels, strict=True):
        counts[label, np.square(members[label] - point).sum(1).argmin()] += 1
    return counts


@pytest.mark.parametrize("values", [{"features": 0}, {"features": 7, "picture": 3}, {"features": 5, "picture": 0}])
def test_every_image_votes_for_the_nearest_member_of_its_class(values: dict[str, Any]) -> None:
    asked = request((1, 9, 8), **values)
    records, labels = images(150, (1, 9, 8), seed=1)  # more than two batches
    settings, run = EvolutionSettings(**asked.settings), RunDescription.of(asked)
    population = Evolution.begin(settings, run).population
    vectors = image_vectors(settings, run)
    with torch.inference_mode():
        points = vectors.of(torch.from_numpy(records)).double().numpy()
    expected = nearest(points, vectors.of_bytes(population).double().numpy().reshape(4, 6, -1), labels)
    found = votes(asked, records, labels)
    np.testing.assert_allclose(found[VOTES], expected, atol=1e-3)
    np.testing.assert_allclose(found[COUNT], np.bincount(labels, minlength=4), atol=0.01)
    later = replace(asked, stage=2, stage_input={POPULATION: population[::-1].copy()})  # classes change places, too
    members = vectors.of_bytes(population[::-1].copy()).double().numpy().reshape(4, 6, -1)
    np.testing.assert_allclose(votes(later, records, labels)[VOTES], nearest(points, members, labels), atol=1e-3)


def test_every_row_votes_for_the_nearest_member_of_its_class() -> None:
    asked = request(TABLE.shape)
    records, labels = rows(200, TABLE, seed=2)
    population = Evolution.begin(EvolutionSettings(**asked.settings), RunDescription.of(asked)).population
    members = points_of(TABLE.features, population.astype(np.float64)).reshape(4, 6, -1)
    expected = nearest(points_of(TABLE.features, records), members, labels)
    odd = np.concatenate([records, records[:1] + 0.5, records[:1] * 0 - 1])  # no codes: they have no vote
    found = votes(asked, odd, np.append(labels, [0, 1]))
    np.testing.assert_allclose(found[VOTES], expected, atol=1e-3)
    assert (expected > 0).sum() > 4 and expected.sum() == 200


def test_all_rounds_have_the_noise_of_one_mechanism_whatever_they_are_asked_with() -> None:
    asked = request((1, 9, 8), 1.0, features=0)
    first = plan_of(asked)
    population = np.zeros((24, 1, 9, 8), np.uint8)
    for stage in (1, 3):
        for pixels in (population, population + 200):
            later = replace(asked, stage=stage, stage_input={POPULATION: pixels})
            assert plan_of(later) == first and later.first_stage().id == asked.id
    assert isinstance(first.event, Gaussian) and first.whole == Gaussian(first.event.sigma, 4)
    alone = plan_of(request((1, 9, 8), 1.0, features=0, rounds=1)).event
    assert isinstance(alone, Gaussian)
    assert first.event.sigma == pytest.approx(2.0 * alone.sigma, rel=1e-6), "four rounds, twice the noise"


@pytest.mark.parametrize(
    ("stage", "stage_input"),
    [
        (0, {POPULATION: np.zeros((24, 1, 9, 8), np.uint8)}),
        (1, {}),
        (1, {POPULATION: np.zeros((24, 1, 9, 8), np.float32)}),
        (1, {POPULATION: np.zeros((23, 1, 9, 8), np.uint8)}),
        (1, {"others": np.zeros((24, 1, 9, 8), np.uint8)}),
    ],
)
def test_a_round_is_asked_with_a_population_and_the_first_with_none(
    stage: int, stage_input: dict[str, NDArray]
) -> None:
    asked = replace(request((1, 9, 8), 1.0, features=0), stage=stage, stage_input=stage_input)
    with pytest.raises(ConfigError, match="and should have"):
        plan_of(asked)


def test_a_population_of_rows_has_codes() -> None:
    codes = np.zeros((24, *TABLE.shape), np.int32)
    asked = replace(request(TABLE.shape, 1.0), stage=1, stage_input={POPULATION: codes})
    plan_of(asked)
    codes[3, 0] = 99
    with pytest.raises(ConfigError, match="no codes"):
        plan_of(replace(asked, stage_input={POPULATION: codes}))


def test_what_cannot_be_asked_is_said_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"has 94371840 bytes, and a request has room for .* a population of 5376"):
        plan_of(request((3, 32, 32), 1.0, features=0, population=7680))
    with pytest.raises(ConfigError, match="larger than images"):
        plan_of(replace(request((1, 9, 8), 1.0, features=0), settings=request((3, 32, 32), picture=20).settings))
    with pytest.raises(ConfigError, match="by features, by a picture, or by both"):
        request((1, 9, 8), features=0, picture=0)
    opened = {**request((1, 9, 8), features=0).settings, "generator": "auto"}
    with pytest.raises(ConfigError, match="leaves generator or backbone open"):
        plan_of(replace(request((1, 9, 8), 1.0, features=0), settings=opened))


def test_a_silo_makes_no_set_out_of_public_data_that_it_does_not_list(tmp_path: Path) -> None:
    case = ContractCase("private-evolution", settings={"rounds": 2, "population": 3, "features": 0})
    silo = make_silo(tmp_path / "north", case, 12)
    pool = {"generator": "pool", "pool": "fashion-slice", "pool_images": 50}
    asked = ContractCase("private-evolution", settings={**case.settings, **pool}).request(1.0, Kind.DISTILLED_SET)
    with pytest.raises(Refused, match=r"made of fashion-slice, which is not among this silo's policy.public_datasets"):
        silo.plan(asked)
    statistics = ContractCase("private-evolution", settings={**case.settings, **pool}).request(1.0)
    silo.plan(statistics)  # silos that vote need no pool
    policy = silo.settings.policy.model_copy(update={"public_datasets": ("fashion-slice",)})
    check_public_datasets(("fashion-slice",), Kind.DISTILLED_SET, silo.settings.model_copy(update={"policy": policy}))
