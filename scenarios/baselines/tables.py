"""Baselines of tables: what real rows are worth to the twelve classifiers; none is private.

`dpdd-sim baselines --dataset adult` has all real rows, those of each silo alone, and random ones, so many of each
class. What is measured is the mean over the classifiers that synthetic tables are judged by. MST and AIM need an
environment of their own, and are not here: ``python -m tests.scenarios.benchmarks.bench_tables`` runs them beside SPS.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

import numpy as np

from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.methods.base import DataKind
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.events import NonPrivate
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed, uniforms
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.baselines.base import Positions, Row
from dpdd.server.evaluation.base import Score
from dpdd.server.evaluation.settings import EvaluationSection


def run(
    train: LabelledRows,
    test: LabelledRows,
    shares: Sequence[Positions],
    methods: Iterable[str],
    seeds: int,
    per_class: int,
    progress: Progress = silent,
    settings: EvaluationSection | None = None,
) -> list[Row]:
    """A row for each of `methods`, over so many seeds of the classifiers and of the rows that are picked."""
    rows, chosen = [], settings or EvaluationSection()
    for name in methods:
        started = time.process_time()
        scores = [_scores(name, train, test, shares, seed, per_class, chosen, progress) for seed in range(seeds)]
        seconds = (time.process_time() - started) / seeds
        found = {each: Score(tuple(run[each] for run in scores)) for each in scores[0]}
        rows.append(Row(name, Guarantee(math.inf, 0.0, "none"), NonPrivate(), found, seconds))
    return rows


def _scores(
    name: str,
    train: LabelledRows,
    test: LabelledRows,
    shares: Sequence[Positions],
    seed: int,
    per_class: int,
    settings: EvaluationSection,
    progress: Progress,
) -> dict[str, float]:
    everything = np.sort(np.concatenate(shares))
    if name == "real":
        return _of_rows(train, everything, test, seed, settings, progress)
    if name == "real-subset":
        order = everything[np.argsort(uniforms(seed, "real rows", len(everything)), kind="stable")]
        classes = range(len(train.classes))
        picked = np.concatenate([order[train.labels[order] == label][:per_class] for label in classes])
        return _of_rows(train, picked, test, seed, settings, progress)
    found = [
        _of_rows(train, share, test, subseed(seed, f"silo {at}"), settings, progress) for at, share in enumerate(shares)
    ]
    accuracies = [silo["accuracy"] for silo in found]
    mean = {each: float(np.mean([silo[each] for silo in found])) for each in found[0]}
    return {**mean, "worst-silo": min(accuracies), "best-silo": max(accuracies)}


def _of_rows(
    train: LabelledRows,
    positions: Positions,
    test: LabelledRows,
    seed: int,
    settings: EvaluationSection,
    progress: Progress,
) -> dict[str, float]:
    """Means over the classifiers that learn from these rows."""
    from dpdd.server.evaluation.scoring import scores, train_learners

    rows = LabelledSet(train.rows[positions], train.labels[positions], train.classes, schema=train.schema)
    trained = train_learners(rows, settings, None, seed, progress)
    found = [scores(each, test, settings.metrics_of(DataKind.TABLE)) for each in trained.values()]
    return {
        name: float(np.mean([of[name].mean for of in found])) for name in found[0] if all(name in of for of in found)
    }
