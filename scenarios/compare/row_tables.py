"""The further tables of a comparison: every learner, noise, what silos spent, audits, seconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from dpdd.common.privacy import events
from dpdd.scenarios.compare.results import Results, RowResult
from dpdd.server.evaluation.metrics import METRICS
from dpdd.server.report.audit_figures import audit_cell, audit_figures
from dpdd.server.report.card_text import guarantees
from dpdd.server.report.html.layout import listed, paragraph
from dpdd.server.report.html.markup import Child, Html
from dpdd.server.report.html.table import Cell, Row, figure, table
from dpdd.server.report.html.words import bytes_in_words, epsilon_in_words, seconds_in_words
from dpdd.server.report.joining import implausible_lines, lost_in_words
from dpdd.server.report.odds import most_often_right, odds_in_words
from dpdd.server.report.order import ranked
from dpdd.server.report.run_diagnostics import clipping
from dpdd.server.report.scores import learner_facts

PHASES = ("releases", "synthesis", "evaluation")


def silos_in_words(count: int) -> str:
    """So many silos."""
    return f"{count} silo{'s' if count > 1 else ''}"


def name_of(row: RowResult) -> str:
    """A row in few words."""
    cell = row.cell
    epsilon = f"{cell.stated_epsilon:g}".replace("inf", "∞")
    return f"{cell.line.name}, ε = {epsilon}, {silos_in_words(cell.stated_silos)}, {cell.stated_partition}"


def every_learner(results: Results) -> Html:
    """A line for each learner of each row, with every metric: means and deviations over seeds."""
    lines: list[tuple[RowResult, str, Mapping[str, Any], dict[str, list[float]]]] = []
    for row in results.rows:
        found: dict[str, dict[str, list[float]]] = {}
        about: dict[str, Mapping[str, Any]] = {}
        for run in row.runs:
            of = dict(zip(run.metrics["accuracy"], learner_facts(run.metrics), strict=True))
            for name in ranked(run.metrics["accuracy"]):
                about[name] = of[name]
                for metric, value in of[name]["metrics"].items():
                    found.setdefault(name, {}).setdefault(metric, []).append(value["mean"])
        lines += [(row, name, about[name], values) for name, values in found.items()]
    columns = list(dict.fromkeys(name for *_, values in lines for name in values))
    rows = []
    for row, _, facts, values in lines:
        cells: list[Cell | str] = [name_of(row), facts["learner"], facts["learnt_from"]]
        cells += [_over_seeds(name, values.get(name, [])) for name in columns]
        rows.append(Row(cells))
    return table(None, ["row", "learner", "learnt from", *(METRICS[name].title for name in columns)], rows)


def _over_seeds(name: str, values: list[float]) -> Cell:
    if not values:
        return Cell("–")
    metric, mean = METRICS[name], statistics.fmean(values)
    return figure(mean, metric.show(mean) + (f" ± {metric.show(statistics.stdev(values))}" if len(values) > 1 else ""))


def diagnostics(results: Results) -> list[Child]:
    """The noise of each row, its public bounds, who moved it, and what was lost: of the first seed."""
    rows, notes = [], []
    for row in results.rows:
        for run in row.runs[:1]:
            moved = [each["in_noise"] for each in run.metrics.get("influence", ()) if each["in_noise"] is not None]
            kinds = {events.describe(events.from_json(each["event"])) for each in run.card["silos"]}
            clips = "" if run.request is None else "; ".join(f"{a} = {b}" for a, b in clipping(run.request.settings))
            lost = run.metrics.get("lost_in_noise", [])
            cells: list[Cell | str] = [name_of(row), "; ".join(sorted(kinds)), clips or "–"]
            cells.append(figure(max(moved), f"{max(moved):.3g}") if moved else Cell("–"))
            cells.append(figure(len(lost), str(len(lost))))
            rows.append(Row(cells))
        for run in row.runs:
            notes += [f"{name_of(row)}: {lost_in_words(lost)}" for lost in [run.metrics.get("lost_in_noise")] if lost]
            notes += [f"{name_of(row)}: {line}" for line in implausible_lines(run.metrics["implausible_releases"])]
    words = (
        "σ is in units of the most that one record can change a release. Moved is how far the silo that matters most "
        "moves the result, in units of its noise. How many records were clipped was never released, so nobody knows."
    )
    header = ["row", "noise of a silo", "public bounds", "moved (noise = 1)", "classes lost in noise"]
    return [paragraph(words), table("Of the first seed.", header, rows), listed(notes) if notes else None]


def spending(results: Results) -> list[Child]:
    """What each silo of each row promised: of the first seed, the same for all of them."""
    rows = []
    for row in results.rows:
        for run in row.runs[:1]:
            for each in guarantees(run.card):
                sent = run.bytes_by_silo.get(each["silo"], 0)
                odds = most_often_right(each["epsilon"], each["delta"])
                rows.append(
                    Row(
                        [
                            name_of(row),
                            each["silo"],
                            figure(each["epsilon"] or float("inf"), epsilon_in_words(each)),
                            figure(odds, odds_in_words(each["epsilon"], each["delta"])),
                            figure(sent, bytes_in_words(sent)),
                            each["accountant"],
                        ]
                    )
                )
    words = (
        "The odds are those of an attacker who wagers on whether one record was used, and knows all others: from a "
        "coin's 50 % to at most (e^ε + δ) / (1 + e^ε). They would hold with noise that nobody can repeat."
    )
    header = ["row", "silo", "guarantee", "an attacker's odds", "bytes sent", "accountant"]
    return [paragraph(words), table("Of the first seed.", header, rows)]


def audits(results: Results) -> list[Child]:
    """What an audit left in a cell's folder (`audit.json`), where there is one: its figures as they are."""
    rows = []
    for row in results.rows:
        for each in row.measured:
            audit = None if each.run is None else each.run.audit
            for name, value in audit_figures(audit or {}):
                rows.append(Row([name_of(row), figure(each.cell.seed, str(each.cell.seed)), name, audit_cell(value)]))
    return [table("From audit.json.", ["row", "seed", "figure", "value"], rows)] if rows else []


def seconds(results: Results) -> Html:
    """Means over seeds: of the processor, by the clock, and by the clock of every phase."""
    rows = []
    for row in results.rows:
        ended = [each for each in row.measured if each.run is not None]
        if not ended:
            continue
        cells: list[Cell | str] = [name_of(row)]
        cells.append(_seconds([each.ended.cpu_seconds for each in ended]))
        cells.append(_seconds([each.ended.seconds for each in ended]))
        for phase in PHASES:
            spent = [float(run.metrics["seconds"].get(phase, 0.0)) for run in row.runs]
            cells.append(_seconds(spent))
        rows.append(Row(cells))
    caption = (
        "Means over seeds, of one thread; other work on the machine is in what the clock says. An unfinished cell "
    )
    caption += "that went on counts from there."
    return table(caption, ["row", "processor", "clock", *PHASES], rows)


def _seconds(values: list[float]) -> Cell:
    mean = statistics.fmean(values)
    return figure(mean, seconds_in_words(mean))
