"""The charts of a comparison: accuracy of the first learner against ε and against bytes sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpdd.scenarios.compare.published import Published, published
from dpdd.scenarios.compare.results import Results, RowResult
from dpdd.server.report.html.chart import Axes, Point, Reference, Series, chart
from dpdd.server.report.html.markup import Html
from dpdd.server.report.html.words import bytes_in_words, spread_in_words

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FAR_BELOW = 10.0
"""Published figures further below all of ours, in points, would only stretch the chart: the table has them."""


def accuracy_by_epsilon(results: Results, others: Sequence[Published]) -> Html:
    """A line for each scenario, number of silos and split."""
    epsilons = sorted({row.cell.stated_epsilon for row in results.rows})
    finite = [each for each in epsilons if math.isfinite(each)]
    named = sorted({*finite, *(each.epsilon for each in others)})
    axes = Axes("Test accuracy against ε", "ε of each silo", "test accuracy, %", named, beside=True)
    series = _series(results, lambda row: row.cell.stated_epsilon)
    lowest = min((point.y for line in series for point in line.points), default=0.0)
    references = [
        Reference(letter, each.epsilon, 100.0 * each.accuracy, each.words)
        for letter, each in zip(LETTERS, others, strict=False)
        if 100.0 * each.accuracy >= lowest - FAR_BELOW
    ]
    return chart(axes, series, references)


def accuracy_by_bytes(results: Results) -> Html:
    """The same rows by what left the silo that sent the most."""
    axes = Axes("Test accuracy against bytes sent", "bytes that left a silo", "test accuracy, %")
    return chart(axes, _series(results, lambda row: float(row.bytes_per_silo)))


def _series(results: Results, x: Callable[[RowResult], float]) -> list[Series]:
    groups: dict[tuple[str, int, str], list[RowResult]] = {}
    for row in results.rows:
        cell = row.cell
        groups.setdefault((cell.line.name, cell.stated_silos, cell.stated_partition), []).append(row)
    splits = {(silos, partition) for _, silos, partition in groups}
    series = []
    for number, ((name, silos, partition), rows) in enumerate(groups.items()):
        points = [_point(row, x(row)) for row in rows if row.main is not None and x(row) > 0.0]
        more = "" if len(splits) == 1 else f", {silos} silo{'s' if silos > 1 else ''}, {partition}"
        learner = next((row.main[0] for row in rows if row.main is not None), "")
        if points:
            series.append(Series(f"{name}{more} ({learner})", points, number))
    return series


def _point(row: RowResult, x: float) -> Point:
    assert row.main is not None
    name, score = row.main
    epsilon = f"{row.cell.stated_epsilon:g}".replace("inf", "∞")
    words = (
        f"{row.cell.line.name}, ε = {epsilon}: {spread_in_words(score.mean, score.deviation)} % by {name}, "
        f"{bytes_in_words(row.bytes_per_silo)} per silo"
    )
    return Point(x, 100.0 * score.mean, 100.0 * (score.deviation or 0.0), words)


def shown_published(results: Results) -> list[Published]:
    """Published figures for what the grid has: one dataset, and its numbers of images per class."""
    datasets = {row.cell.dataset for row in results.rows}
    if len(datasets) != 1:
        return []
    sizes = {run.metrics["dataset"].get("images_per_class") for row in results.rows for run in row.runs}
    return published(datasets.pop(), sizes)[: len(LETTERS)]
