"""Private Evolution after the noise: the population of every round, and the records that are kept. Post-processing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.private_evolution.evolution import Floats, elected, next_population, selected
from dpdd.common.methods.private_evolution.generator import Records
from dpdd.common.methods.private_evolution.generators import first_generator, generator_of
from dpdd.common.methods.private_evolution.settings import POPULATION, VOTES, EvolutionSettings, SelectionSettings
from dpdd.common.methods.private_evolution.specification import population_shape
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Evolution:
    """The population of the round `number`, counted from 0: what records vote on."""

    number: int
    population: Records

    @classmethod
    def begin(cls, settings: EvolutionSettings, run: RunDescription) -> Evolution:
        """The first population, which silos draw by themselves: it comes from the public seed, and from no data."""
        count = population_shape(settings, run)[0]
        drawn = first_generator(settings, run).random(count, subseed(run.public_seed, "first population") >> 16)
        return cls(0, drawn)

    def after(self, statistics: Statistics, settings: EvolutionSettings, run: RunDescription) -> Evolution:
        """The population of the next round, by the votes on this one."""
        here = self.asked_with(statistics)
        generator, native = generator_of(settings, run), settings.generator in ("shapes", "rows")
        children = next_population(
            here.population,
            weights_of(statistics, settings),
            generator,
            elite=settings.elite if native or self.number else 0.0,  # the first members were not made by the others
            strength=settings.strength_after(self.number),
            seed=subseed(run.public_seed, f"round {self.number}"),
        )
        return Evolution(self.number + 1, children)

    def asked_with(self, statistics: Statistics) -> Evolution:
        """The same round with the members that silos were asked about, where that is kept."""
        asked = statistics.stage_input.get(POPULATION)
        return self if asked is None else replace(self, population=np.asarray(asked))


def weights_of(statistics: Statistics, settings: EvolutionSettings) -> Floats:
    """The votes (classes, members) that stand out of their noise."""
    return elected(statistics.sums[VOTES] / settings.vote, settings.threshold * statistics.noise / settings.vote)


def reached(statistics: Sequence[Statistics], settings: EvolutionSettings, run: RunDescription) -> Evolution:
    """The last population that was voted on."""
    known = [number for number, each in enumerate(statistics) if POPULATION in each.stage_input]
    if known:
        start = Evolution(known[-1], np.asarray(statistics[known[-1]].stage_input[POPULATION]))
    else:
        start = Evolution.begin(settings, run)
    for each in statistics[start.number : -1]:
        start = start.after(each, settings, run)
    return start


def stage_input(
    statistics: Sequence[Statistics], settings: EvolutionSettings, run: RunDescription
) -> Mapping[str, NDArray]:
    """The population that the next round is asked about."""
    return {POPULATION: reached(statistics, settings, run).after(statistics[-1], settings, run).population}


def advance(
    state: Evolution | None, statistics: Statistics, settings: EvolutionSettings, run: RunDescription
) -> tuple[Evolution, Mapping[str, NDArray]]:
    """One round more; the same as following all of them from the start."""
    after = (state or Evolution.begin(settings, run)).after(statistics, settings, run)
    return after, {POPULATION: after.population}


def generated(
    statistics: Sequence[Statistics],
    settings: EvolutionSettings,
    run: RunDescription,
    selection: SelectionSettings | None = None,
) -> LabelledSet:
    """`images_per_class` records of every class, after as many rounds as there are statistics."""
    chosen = selection or SelectionSettings()
    records = selected(
        reached(statistics, settings, run).population,
        weights_of(statistics[-1], settings),
        run.images_per_class,
        generator_of(settings, run),
        draw=chosen.selection == "draw",
        strength=settings.last_strength,
        seed=subseed(run.public_seed, "selection"),
    )
    labels = np.arange(len(run.classes)).repeat(run.images_per_class)
    if run.kind is DataKind.TABLE:
        return LabelledSet(records.astype(np.float32), labels, run.classes, schema=run.table)
    return LabelledSet(np.ascontiguousarray(records), labels, run.classes)
