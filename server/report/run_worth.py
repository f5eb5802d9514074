"""What a run's dataset is worth, for its report: every learner, what the images alone are worth first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdd.server.evaluation.metrics import METRICS
from dpdd.server.report.comparison import distances_table
from dpdd.server.report.cross_table import cross_table
from dpdd.server.report.finished import FinishedRun
from dpdd.server.report.html.layout import paragraph, plain
from dpdd.server.report.html.markup import Child, Html
from dpdd.server.report.html.table import Cell, Row, figure, table
from dpdd.server.report.order import ranked
from dpdd.server.report.scores import (
    at_silos_table,
    continual_table,
    learner_facts,
    left_out_lines,
    real_in_words,
)


def worth(run: FinishedRun) -> list[Child]:
    """Tables of what learners reached; a sentence where nothing was evaluated."""
    metrics, parts = run.metrics, list[Child]()
    if metrics["accuracy"]:
        data = run.card.get("evaluation", {}).get("test_data", "test data")
        parts.append(
            paragraph(
                f"Measured on {data}, which no silo's budget pays for: exact figures that no noise protects, and no "
                "part of the promise above. Hard labels by the literature's protocol come first: what the records "
                "alone are worth. Soft labels and a teacher add what else the releases say."
            )
        )
        parts.append(scores(metrics, "Classifiers that learnt from the dataset alone."))
        if real := metrics.get("real"):
            parts.append(scores(real, real_in_words(real)))
        if metrics.get("continual", {}).get("learners"):
            parts.append(plain(continual_table(metrics)))
        parts += [paragraph(line) for line in left_out_lines(metrics)]
    if metrics.get("at_silos", {}).get("models"):
        parts.append(paragraph("Measured at the silos, by noisy histograms that are part of the promise above:"))
        parts.append(plain(at_silos_table(metrics)))
    if "fidelity" in metrics:
        parts += [paragraph("How far the rows are from public test rows:"), plain(distances_table(metrics["fidelity"]))]
    for row in metrics.get("also", ()):
        if row["accuracy"]:
            parts.append(scores(row, f"Also made from these releases: {row['name']}, by {row['method']}."))
    if across := cross_table(metrics):
        parts.append(plain(across))
    return parts or [paragraph("Nothing was evaluated in this run.")]


def scores(about: Mapping[str, Any], caption: str) -> Html:
    """A row for each learner, a column for each metric; `about` is `metrics.json` or a part of it that has both."""
    of = dict(zip(about["accuracy"], learner_facts(about), strict=True))
    columns = list(dict.fromkeys(name for row in of.values() for name in row["metrics"]))
    rows = []
    for name in ranked(about["accuracy"]):
        row = of[name]
        cells: list[Cell | str] = [row["learner"], row["learnt_from"], figure(row["runs"], str(row["runs"]))]
        cells += [_score(column, row["metrics"].get(column), row["runs"]) for column in columns]
        rows.append(Row(cells))
    means, best = about.get("mean_over_learners") or {}, about.get("best_learner") or {}
    if means and best:
        count = max(mean["learners"] for mean in means.values())
        rows.append(Row([f"mean of {count} learners", "", "", *(_score(name, means.get(name), 1) for name in columns)]))
        rows.append(Row(["best single", "", "", *(_score(name, best.get(name), 1) for name in columns)]))
    header = ["learner", "learnt from", "networks", *(METRICS[name].title for name in columns)]
    return table(caption, header, rows)


def _score(name: str, score: Mapping[str, Any] | None, runs: int) -> Cell:
    if score is None:
        return Cell("–")
    metric = METRICS[name]
    shown = metric.show(score["mean"]) + (f" ± {metric.show(score['std'])}" if runs > 1 else "")
    return figure(score["mean"], shown)
