"""What the cells of a comparison gave, and what all seeds of a row have in common: means and deviations.

Everything is read from the cells' folders, where a run left it.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpdd.common.cli import software
from dpdd.common.errors import DpddError
from dpdd.scenarios.compare.cells import Cells, Ended
from dpdd.scenarios.compare.grid import Cell, fingerprint
from dpdd.server.evaluation.shown_order import shown_order
from dpdd.server.report.finished import FinishedRun, finished_run
from dpdd.server.report.order import MEAN, headline


@dataclass(frozen=True)
class Score:
    """A learner's figure: the mean over seeds, its deviation (None for one seed), and the labels it learnt from."""

    mean: float
    deviation: float | None
    labels: str
    title: str = ""

    @classmethod
    def over(cls, values: Sequence[float], labels: str, title: str = "") -> Score:
        """Of so many seeds."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, labels, title)


@dataclass(frozen=True)
class Measured:
    """A cell that has ended: its run, or the sentence that says why there is none."""

    cell: Cell
    ended: Ended
    run: FinishedRun | None


@dataclass(frozen=True)
class RowResult:
    """A row: a scenario at one ε, number of silos and partition, over its seeds."""

    cell: Cell
    measured: Sequence[Measured]
    waiting: int
    scores: Mapping[str, Score] = field(default_factory=dict)

    @property
    def runs(self) -> list[FinishedRun]:
        """Of the seeds that are finished."""
        return [each.run for each in self.measured if each.run is not None]

    @property
    def failures(self) -> list[tuple[int, str]]:
        """Seed and sentence of each cell that failed."""
        return [(each.cell.seed, each.ended.failure) for each in self.measured if each.ended.failure is not None]

    @property
    def main(self) -> tuple[str, Score] | None:
        """The learner that stands first, and its score."""
        return next(iter(self.scores.items()), None)

    @property
    def bytes_per_silo(self) -> int:
        """What left the silo that sent the most."""
        return max((size for run in self.runs for size in run.bytes_by_silo.values()), default=0)

    @property
    def seconds(self) -> float | None:
        """Of the processor, the mean over seeds."""
        spent = [each.ended.cpu_seconds for each in self.measured if each.run is not None]
        return statistics.fmean(spent) if spent else None


@dataclass(frozen=True)
class Results:
    """All rows, in the grid's order."""

    rows: Sequence[RowResult]
    fingerprint: str
    seeds: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many cells are finished, failed, and not run yet."""
        finished = sum(len(row.runs) for row in self.rows)
        failed = sum(len(row.failures) for row in self.rows)
        return finished, failed, sum(row.waiting for row in self.rows)


def results_of(cells: Cells) -> Results:
    """What there is so far."""
    rows: dict[str, list[Cell]] = {}
    for cell in cells.cells:
        rows.setdefault(cell.row, []).append(cell)
    return Results(
        [_row(cells, own) for own in rows.values()],
        fingerprint(cells.cells),
        max(cell.seed for cell in cells.cells) + 1,
    )


def _row(cells: Cells, own: Sequence[Cell]) -> RowResult:
    measured = [_measured(cells, cell, cells.ended[cell.key]) for cell in own if cell.key in cells.ended]
    scores = _scores([each.run for each in measured if each.run is not None])
    return RowResult(own[0], measured, len(own) - len(measured), scores)


def _measured(cells: Cells, cell: Cell, ended: Ended) -> Measured:
    if ended.failure is not None:
        return Measured(cell, ended, None)
    try:
        return Measured(cell, ended, finished_run(cells.home(cell)))
    except DpddError as error:
        return Measured(cell, Ended(failure=str(error)), None)


def _scores(runs: Sequence[FinishedRun]) -> dict[str, Score]:
    """Accuracy of every learner over seeds, the first in the order first; of tables, their mean before all."""
    found: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for run in runs:
        for name, score in run.metrics["accuracy"].items():
            found.setdefault(name, []).append(score["mean"])
            labels[name] = score.get("labels", "")
        if (first := headline(run.metrics)) is not None and first.name == MEAN:
            found.setdefault(MEAN, []).append(first.mean)
    ordered = [*([MEAN] if MEAN in found else []), *shown_order(labels)]
    return {name: Score.over(found[name], labels.get(name, "")) for name in ordered}


def as_json(results: Results, cells: Cells) -> dict[str, Any]:
    """The whole as plain values: a row for each line of the report, a cell for each run."""
    return {
        "software": software(),
        "fingerprint": results.fingerprint,
        "seeds": results.seeds,
        "rows": [_row_json(row) for row in results.rows],
        "cells": [_cell_json(each, cells) for row in results.rows for each in row.measured],
    }


def _row_json(row: RowResult) -> dict[str, Any]:
    return {
        **_facts(row.cell),
        "finished": len(row.runs),
        "failed": [{"seed": seed, "why": why} for seed, why in row.failures],
        "waiting": row.waiting,
        "accuracy": {
            name: {"mean": score.mean, "std": score.deviation, "labels": score.labels}
            for name, score in row.scores.items()
        },
        "bytes_per_silo": row.bytes_per_silo,
        "cpu_seconds": row.seconds,
    }


def _facts(cell: Cell) -> dict[str, Any]:
    epsilon = cell.stated_epsilon
    return {
        "name": cell.line.name,
        "scenario": cell.line.scenario,
        "method": cell.method,
        "epsilon": None if math.isinf(epsilon) else epsilon,
        "silos": cell.stated_silos,
        "partition": cell.stated_partition,
    }


def _cell_json(each: Measured, cells: Cells) -> dict[str, Any]:
    about = {**_facts(each.cell), "seed": each.cell.seed, "command": cells.command_line(each.cell)}
    if each.run is None:
        return {**about, "failure": each.ended.failure}
    metrics = each.run.metrics
    return {
        **about,
        "accuracy": metrics["accuracy"],
        "metrics": metrics.get("metrics", {}),
        "privacy": metrics["privacy"],
        "bytes_by_silo": each.run.bytes_by_silo,
        "seconds": each.ended.seconds,
        "cpu_seconds": each.ended.cpu_seconds,
        **({"audit": each.run.audit} if each.run.audit is not None else {}),
    }


COLUMNS = (
    "name",
    "scenario",
    "method",
    "epsilon",
    "silos",
    "partition",
    "seed",
    "learner",
    "labels",
    "accuracy",
    "bytes_per_silo",
    "cpu_seconds",
    "failure",
)


def as_csv(results: Results) -> str:
    """A line for every learner of every cell, and one for a cell that failed or evaluated nothing."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in results.rows:
        for each in row.measured:
            about = {**_facts(each.cell), "seed": each.cell.seed, "failure": each.ended.failure}
            if each.run is None:
                writer.writerow(about)
                continue
            size = max(each.run.bytes_by_silo.values(), default=0)
            about |= {"bytes_per_silo": size, "cpu_seconds": each.ended.cpu_seconds}
            scores = each.run.metrics["accuracy"]
            for name, score in scores.items():
                writer.writerow(
                    {**about, "learner": name, "labels": score.get("labels"), "accuracy": f"{score['mean']:.6f}"}
                )
            if not scores:
                writer.writerow(about)
    return out.getvalue()
