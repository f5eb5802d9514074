"""The page of a comparison: one file, the parts of a run's own report beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from dpdd.common.cli import software
from dpdd.scenarios.compare.cells import Cells
from dpdd.scenarios.compare.charts import LETTERS, accuracy_by_bytes, accuracy_by_epsilon, shown_published
from dpdd.scenarios.compare.published import Published
from dpdd.scenarios.compare.results import Results, RowResult
from dpdd.scenarios.compare.row_tables import audits, diagnostics, every_learner, seconds, silos_in_words, spending
from dpdd.server.report.html.layout import (
    Section,
    code,
    command,
    facts,
    figures,
    folded,
    listed,
    page,
    paragraph,
    warning,
)
from dpdd.server.report.html.markup import Child, Html, element
from dpdd.server.report.html.picture import gallery, picture
from dpdd.server.report.html.table import Cell, Row, figure, table
from dpdd.server.report.html.words import bytes_in_words, seconds_in_words, spread_in_words
from dpdd.server.report.order import MEAN

MOST_LEARNERS = 4
"""So many learners have a column in the first table; all of them have a row in the second."""


def compare_page(results: Results, cells: Cells, name: str, typed: str) -> str:
    """The whole page; `typed` is the command that makes the grid."""
    finished, failed, waiting = results.counts
    others = shown_published(results)
    about: list[Child] = [
        warning("Noise came from seeds, so that every figure can be repeated: these datasets protect nobody."),
        figures(
            [
                (str(len(results.rows)), f"rows, with {results.seeds} seed{'s' if results.seeds > 1 else ''} each"),
                (f"{finished} of {finished + failed + waiting}", "cells are finished"),
                (str(failed), "cells failed"),
                (f"{waiting}", "cells have not run yet"),
            ]
        ),
    ]
    sections = [
        Section("results", "Results", _results(results, cells, typed)),
        Section("epsilon", "Accuracy against ε", _by_epsilon(results, others)),
        Section("bytes", "Accuracy against bytes sent", _by_bytes(results)),
        Section("looks", "What the datasets look like", _looks(results)),
        Section("learners", "Every learner", [every_learner(results)]),
        Section("noise", "Noise and clipping", diagnostics(results)),
        Section("spent", "What each silo spent", spending(results)),
        *([Section("audit", "Audits", parts)] if (parts := audits(results)) else []),
        Section("seconds", "What it cost in seconds", [seconds(results)]),
        *([Section("published", "Published figures", _published(others))] if others else []),
        Section("again", "To make it again", _again(results, typed)),
    ]
    foot = paragraph(f"{software()}. One file: it fetches nothing, and scripts only sort its tables.")
    return page(name, about, sections, foot=foot)


def title_of(learner: str, labels: str) -> str:
    """A learner as the head of a column.

    >>> title_of("convnet-dd", "hard"), title_of("mean", "")
    ('convnet-dd, hard labels', 'mean of learners')
    """
    if learner == MEAN:
        return "mean of learners"
    words = {"hard": "hard labels", "soft": "soft labels", "teacher": "teacher's labels", "pool": "public pool"}
    return f"{learner}, {words[labels]}" if labels in words else learner


def _results(results: Results, cells: Cells, typed: str) -> list[Child]:
    columns: dict[str, str] = {}
    for row in results.rows:
        for name, score in row.scores.items():
            columns.setdefault(name, score.labels)
    shown = list(columns)[:MOST_LEARNERS]
    header = ["scenario", "method", "ε", "silos", "split", "seeds"]
    header += [title_of(name, columns[name]) for name in shown]
    header += ["sent per silo", "processor"]
    rows = [_result(row, shown, cells, typed, len(header)) for row in results.rows]
    caption = (
        "Test accuracy in %: mean and deviation over seeds. What the images alone are worth, by the literature's "
        "protocol on hard labels, stands first. Choose a heading to sort."
    )
    return [table(caption, header, rows)]


def _result(row: RowResult, shown: Sequence[str], cells: Cells, typed: str, width: int) -> Row:
    cell = row.cell
    values: list[Cell | str] = [
        cell.line.name,
        cell.method,
        figure(cell.stated_epsilon, f"{cell.stated_epsilon:g}".replace("inf", "∞")),
        figure(cell.stated_silos, str(cell.stated_silos)),
        cell.stated_partition,
        figure(len(row.runs), f"{len(row.runs)} of {len(row.measured) + row.waiting}"),
    ]
    commands = [command(f"{typed} --only {row.cell.row}")]
    single = [f"{cells.command_line(each.cell)}" for each in row.measured]
    if single:
        commands.append(folded("Each seed by itself", command(*single)))
    below: list[Child] = [*commands]
    if row.failures:
        below.insert(0, listed([_failure(seed, why) for seed, why in row.failures]))
    if not row.runs:
        state = "failed" if row.failures else "not run yet"
        return Row([*values, Cell(state)], below, failed=bool(row.failures))
    for name in shown:
        score = row.scores.get(name)
        values.append(Cell("–") if score is None else figure(score.mean, spread_in_words(score.mean, score.deviation)))
    spent = row.seconds
    values.append(figure(row.bytes_per_silo, bytes_in_words(row.bytes_per_silo)))
    values.append(Cell("–") if spent is None else figure(spent, seconds_in_words(spent)))
    assert len(values) == width
    return Row(values, below, failed=bool(row.failures))


def _failure(seed: int, why: str) -> Html:
    return element("span", element("strong", f"Failed, seed {seed}: "), why)


def _by_epsilon(results: Results, others: Sequence[Published]) -> list[Child]:
    words = "Bars are deviations over seeds. ε is that of each silo; rows of one ε stand beside each other."
    if others:
        words += " Letters, beside their ε, are published figures, listed below; those far under ours are only there."
    return [accuracy_by_epsilon(results, others), paragraph(words)]


def _by_bytes(results: Results) -> list[Child]:
    words = (
        "Signed releases of the silo that sent the most, all rounds together. What a coordinator sends is not in it."
    )
    return [accuracy_by_bytes(results), paragraph(words)]


def _looks(results: Results) -> list[Child]:
    pictures = []
    for number, row in enumerate(results.rows):
        if not row.runs or (path := row.runs[0].picture) is None:
            continue
        run, cell = row.runs[0], row.cell
        seed = next(each.cell.seed for each in row.measured if each.run is run)
        is_table = "rows" in run.metrics["dataset"]
        what = "marginals of synthetic rows" if is_table else "synthetic images, a row for each class"
        epsilon = f"{cell.stated_epsilon:g}".replace("inf", "∞")
        caption = f"{cell.line.name} ({cell.method}), ε = {epsilon}, {silos_in_words(cell.stated_silos)}, seed {seed}"
        words = f"{what}: {caption}"
        pictures.append(picture(f"picture-{number}", path.read_bytes(), words, caption, pixels=not is_table))
    if not pictures:
        return [paragraph("No cell has a picture yet.")]
    return [paragraph("Of each row's first seed that is finished. Choose a picture to enlarge it."), gallery(pictures)]


def _published(others: Sequence[Published]) -> list[Child]:
    rows = [
        Row(
            [
                letter,
                each.method,
                figure(each.epsilon, f"{each.epsilon:g}"),
                Cell("–")
                if each.images_per_class is None
                else figure(each.images_per_class, str(each.images_per_class)),
                figure(each.accuracy, each.printed),
                each.source,
            ]
        )
        for letter, each in zip(LETTERS, others, strict=False)
    ]
    header = ["letter", "method", "claimed ε", "images per class", "accuracy, %", "source"]
    words = (
        "As printed, for δ = 1e-5: networks, public data and accounting differ, and the ε is what each paper claims. "
        "To be read beside our rows, not subtracted from them. Part of a dataset stands beside figures for the whole."
    )
    return [paragraph(words), table("By others.", header, rows)]


def _again(results: Results, typed: str) -> list[Child]:
    return [
        paragraph("Finished cells are not run again, unfinished ones go on where they were:"),
        command(typed),
        facts(
            [
                ("figures", "results.json and results.csv, beside this file"),
                ("grid", code(results.fingerprint)),
            ]
        ),
    ]
