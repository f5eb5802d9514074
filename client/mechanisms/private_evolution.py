"""Private Evolution, the private half: in each round, the votes of all records on a public population.

Event: one Gaussian over the whole vector of votes and counts, `rounds` times; all are reserved together.
Sensitivity: a record adds √(1-a²) to the member of its own class that is nearest to it, and a to the count of its
class, where a is the count weight, so its contribution has norm 1; `ClippedSum` enforces that in integers. Adding or
removing a record changes the sum by that contribution. Nobody's vote depends on who else is in the batch, or the silo.
Composition: σ is the same in each round and fixed by the request, and the sensitivity is 1 whatever population a round
is asked about; so the Gaussians compose exactly, although each population was chosen after the votes on the one before.
A record that is not finite, or whose vector is not, and a row with a number that is no code, adds nothing.
Public: class list, shape, a table's schema, the embedding, the population of each round (from the seed, or in the
request), the count weight. Private: everything else, the class counts and the number of records included.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Embedding, Mechanism, privatised_counts, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.data.table.rows import proper_rows
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.private_evolution.settings import POPULATION, EvolutionSettings
from dpdd.common.methods.private_evolution.specification import (
    BATCH,
    ROWS,
    image_vectors,
    layout,
    points_of,
    population_shape,
)
from dpdd.common.methods.private_evolution.synthesis import Evolution
from dpdd.common.privacy.counting import OneHot
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class PrivateEvolutionMechanism(Mechanism[EvolutionSettings]):
    """Votes for the nearest member of a population."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: EvolutionSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Count the votes of all records, and privatise them."""
        run = RunDescription.of(request)
        asked = request.stage_input.get(POPULATION)
        population = Evolution.begin(settings, run).population if asked is None else np.array(asked)
        population = population.reshape(population_shape(settings, run))
        if run.kind is DataKind.TABLE:
            return _votes_of_rows(records, population, settings, run, plan, entropy, progress)
        return _votes_of_images(records, population, settings, request, plan, entropy, progress)


def _votes_of_images(
    records: Records,
    population: NDArray[np.uint8],
    settings: EvolutionSettings,
    request: ReleaseRequest,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """By distance in the public embedding, batch by batch."""
    run = RunDescription.of(request)
    embedding, sums = image_vectors(settings, run), layout(settings, run)
    vectors = embedding.of_bytes(population).unflatten(0, (len(run.classes), settings.population))
    halves = 0.5 * vectors.square().sum(2)

    def see(images: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            seen = embedding.of(torch.from_numpy(images)).numpy()
        seen[~np.isfinite(images).all(axis=(1, 2, 3))] = np.nan
        return seen

    def contributions(vectors_of: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        with torch.inference_mode():
            seen, own = torch.from_numpy(vectors_of), torch.from_numpy(labels)
            closeness = torch.bmm(vectors[own], seen[:, :, None])[:, :, 0] - halves[own]
            nearest = torch.nan_to_num(closeness).argmax(1).numpy()
            finite = (torch.isfinite(seen).all(1) & torch.isfinite(closeness).all(1)).numpy()
        rows = np.zeros((len(seen), sums.width), np.float32)
        rows[np.arange(len(seen)), nearest] = settings.vote
        rows[:, -1] = settings.count_weight
        rows[~finite] = np.nan  # which the clipped sum takes for nothing
        return rows, {}

    kept = Embedding.asked(request, see)
    return privatised_sum(records, sums, contributions, plan, entropy, progress, batch=BATCH, embedding=kept)


def _votes_of_rows(
    records: Records,
    population: NDArray[np.int32],
    settings: EvolutionSettings,
    run: RunDescription,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """By distance of points with whole coordinates, whose products are exact: so rows are counted in blocks."""
    columns, classes = run.columns, len(run.classes)
    sizes = [column.size for column in columns]
    members = points_of(columns, population.astype(np.float64)).reshape(classes, settings.population, -1)
    halves = 0.5 * np.square(members).sum(2)

    def contributions(
        rows: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[OneHot, NDArray[np.int64], Mapping[str, OneHot]]:
        proper = proper_rows(rows, sizes)
        rows, labels = rows[proper], labels[proper]
        places = np.full((len(rows), 2), settings.population, np.int64)
        for label in range(classes):
            own = np.flatnonzero(labels == label)
            for begin in range(0, len(own), ROWS):
                part = own[begin : begin + ROWS]
                closeness = _products(points_of(columns, rows[part]), members[label]) - halves[label]
                places[part, 0] = closeness.argmax(axis=1)
        return OneHot(places, (settings.vote, settings.count_weight)), labels, {}

    return privatised_counts(records, layout(settings, run), contributions, plan, entropy, progress)


def _products(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Left to torch, as NumPy's products have threads of their own, which spin beside torch's."""
    products: NDArray[np.float64] = (torch.from_numpy(left) @ torch.from_numpy(right).T).numpy()
    return products


MECHANISM = PrivateEvolutionMechanism()
