"""From votes to populations: who stays, who has children, and that votes are what leads to the records."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client.mechanisms.private_evolution import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.private_evolution import synthesis
from dpdd.common.methods.private_evolution.evolution import drawn_in_proportion, next_population, selected
from dpdd.common.methods.private_evolution.generator import Generator
from dpdd.common.methods.private_evolution.settings import POPULATION, VOTES, EvolutionSettings
from dpdd.common.methods.private_evolution.specification import layout, resolve
from dpdd.common.methods.private_evolution.synthesis import Evolution, generated, weights_of
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.wire.request import ReleaseRequest

CLASSES = ("left", "right")
SHAPE = (1, 8, 8)
RUN = RunDescription(CLASSES, SHAPE, public_seed=3, images_per_class=8)
SETTINGS = resolve(EvolutionSettings(rounds=6, population=24, features=0, picture=4, strength=0.6), RUN)
Votes = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Numbered(Generator):
    """Whose children are recognised: 100 more than their parent."""

    def random(self, count: int, seed: int) -> NDArray[np.uint8]:
        return np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1)

    def variation(self, records: NDArray, mates: NDArray, strength: float, seed: int) -> NDArray[np.uint8]:
        assert ((records < 4) == (mates < 4)).all(), "mates are of the same class"
        return (records + 100).astype(np.uint8)


def test_those_with_the_most_votes_stay_and_the_others_are_children_in_proportion() -> None:
    weights = np.array([[0.0, 8.0, 1.0, 3.0], [0.0, 0.0, 0.0, 5.0]])
    population = Numbered().random(8, 0)
    after = next_population(population, weights, Numbered(), elite=0.5, strength=0.5, seed=1).ravel().tolist()
    assert after[:2] == [1, 3] and after[4] == 7, "the elite comes first, and has votes"
    assert set(after[2:4]) <= {101, 102, 103} and after[5:] == [107, 107, 107]


def test_each_has_as_many_children_as_its_share_says_but_for_one() -> None:
    weights = np.array([1.0, 0.0, 2.5, 6.5])
    for start in (0.01, 0.5, 0.99):
        counts = np.bincount(drawn_in_proportion(weights, 40, start), minlength=4)
        assert counts.sum() == 40 and counts[1] == 0 and (np.abs(counts - 4.0 * weights) <= 1.0).all()


@pytest.mark.parametrize("draw", [False, True])
def test_members_are_selected_once_each_and_then_varied(draw: bool) -> None:
    weights = np.array([[0.0, 8.0, 1.0, 3.0], [0.0, 0.0, 2.0, 5.0]])
    population = Numbered().random(8, 0)
    kept = selected(population, weights, 3, Numbered(), draw=draw, strength=0.1, seed=2).ravel().tolist()
    assert sorted(kept[:3]) == [1, 2, 3] and sorted(kept[3:5]) == [6, 7] and kept[5] in (106, 107)
    if not draw:
        assert kept[:3] == [1, 3, 2]


def test_votes_within_the_noise_are_dropped_and_a_class_without_any_is_drawn_evenly() -> None:
    settings = EvolutionSettings(population=3, threshold=2.0)
    sums = {VOTES: settings.vote * np.array([[9.0, 3.9, 4.1], [1.0, -5.0, 0.0]])}
    weights = weights_of(Statistics(sums, noise=2.0 * settings.vote, silos=1), settings)
    np.testing.assert_allclose(weights, [[9.0, 0.0, 4.1], [1.0, 1.0, 1.0]])


def bars(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A bright half, on the left or on the right, and some noise: what `shapes` never drew."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count, dtype=np.int64) % 2
    images = 0.1 * generator.random((count, *SHAPE), dtype=np.float32)
    for image, label in zip(images, labels, strict=True):
        image[:, :, 4 * label : 4 * label + 4] += 0.8
    return images, labels


@lru_cache(maxsize=4)
def evolved(votes: str) -> tuple[list[float], list[Statistics]]:
    """How far the records that are kept after each round are from real ones, with these votes."""
    images, labels = bars(400, seed=1)
    statistics: list[Statistics] = []
    apart = []
    state, stage_input = None, dict[str, NDArray]()
    for number in range(SETTINGS.rounds):
        asked = ReleaseRequest(
            "t",
            "private-evolution",
            SETTINGS.on_wire(),
            4.0,
            1e-5,
            CLASSES,
            SHAPE,
            3,
            stage=number,
            stage_input=stage_input,
        )
        plan = method("private-evolution").plan(asked, SETTINGS)
        answer = MECHANISM.run(Records(images, labels), asked, SETTINGS, plan, SeededEntropy(number), silent)
        each = of_one_silo(answer.arrays, answer.event, stage_input)
        if votes == "shuffled":
            order = np.random.Generator(np.random.PCG64(number)).permutation(SETTINGS.population)
            each = Statistics({**each.sums, VOTES: each.sums[VOTES][:, order]}, each.noise, 1, stage_input)
        statistics.append(each)
        kept = generated(statistics, SETTINGS, RUN)
        means = np.stack([images[labels == label].mean(0) for label in range(2)])
        apart.append(float(np.abs(kept.images / 255.0 - means[kept.labels]).mean()))
        state, advanced = synthesis.advance(state, each, SETTINGS, RUN)
        stage_input = dict(advanced)
    return apart, statistics


def test_votes_lead_to_the_records_and_shuffled_votes_do_not() -> None:
    real, shuffled = evolved("real")[0], evolved("shuffled")[0]
    assert real[-1] < 0.6 * shuffled[-1], f"{real[-1]} with votes, and {shuffled[-1]} with shuffled ones"
    assert real[-1] < 0.7 * real[0], f"rounds bring it nearer: {real}"


def test_what_a_round_is_asked_with_follows_from_all_votes_before_it() -> None:
    _, statistics = evolved("real")
    bare = [Statistics(each.sums, each.noise, each.silos) for each in statistics]  # as rounds keep them
    for number in (1, 2, 5):
        asked = statistics[number].stage_input[POPULATION]
        for history in (statistics, bare):
            leads_to = synthesis.stage_input(history[:number], SETTINGS, RUN)[POPULATION]
            np.testing.assert_array_equal(leads_to, asked)
    assert np.array_equal(generated(bare, SETTINGS, RUN).images, generated(statistics, SETTINGS, RUN).images)


def test_what_silos_were_asked_with_goes_before_what_it_follows_from() -> None:
    _, statistics = evolved("real")
    other = 255 - statistics[2].stage_input[POPULATION]
    asked = Statistics(statistics[2].sums, statistics[2].noise, 1, {POPULATION: other})
    most = generated([*statistics[:2], asked], SETTINGS, RUN).images[0]
    assert (other == most).all(axis=(1, 2, 3)).any()
    _, after = synthesis.advance(Evolution(2, np.zeros_like(other)), asked, SETTINGS, RUN)
    assert np.array_equal(after[POPULATION][0], most), "the elite comes from there, too"


def test_both_sides_draw_the_same_first_population_from_the_seed_alone() -> None:
    first = Evolution.begin(SETTINGS, RUN).population
    pool = SETTINGS.model_copy(update={"generator": "pool", "pool": "fashion-slice"})
    assert np.array_equal(Evolution.begin(pool, RUN).population, first), "silos need no pool"
    other = RunDescription(CLASSES, SHAPE, public_seed=4)
    assert not np.array_equal(Evolution.begin(SETTINGS, other).population, first)
    assert first.shape == (48, *SHAPE) and len(np.unique(first.reshape(48, -1), axis=0)) == 48
    assert layout(SETTINGS, RUN).coordinates == 2 * 25
