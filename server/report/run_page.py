"""A run's own `report.html`, for a coordinator and a data-protection officer: one file, without any outside fetch.

What left each silo, under which guarantee, and what that means for one person; what the dataset looks like; what it is
worth; how loud the noise was; what each silo spent; and the commands that make it again and check it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpdd.common.files.atomic import write_atomically
from dpdd.common.privacy import events
from dpdd.server.report.audit_figures import audit_cell, audit_figures
from dpdd.server.report.card_text import guarantees, licence_text
from dpdd.server.report.finished import COMMAND, FinishedRun, finished_run
from dpdd.server.report.html.layout import (
    Section,
    code,
    command,
    facts,
    figures,
    listed,
    page,
    paragraph,
    warning,
)
from dpdd.server.report.html.markup import Child, Html, element
from dpdd.server.report.html.picture import picture_of
from dpdd.server.report.html.table import Cell, Row, figure, table
from dpdd.server.report.html.words import bytes_in_words, epsilon_in_words, seconds_in_words
from dpdd.server.report.odds import most_often_right, odds_in_words, percent_at_most
from dpdd.server.report.order import headline
from dpdd.server.report.pool import pool_text
from dpdd.server.report.product import in_words
from dpdd.server.report.run_diagnostics import diagnostics
from dpdd.server.report.run_worth import worth

REPORT = "report.html"


def write_report(folder: Path, made_by: str | None = None) -> Path:
    """Write the report of the finished run in `folder` beside its card; `made_by` is the command that made the run.

    The command is kept, so that a report that is written later has it, too.
    """
    if made_by is not None:
        write_atomically(folder / COMMAND, f"{made_by}\n".encode())
    path = folder / REPORT
    write_atomically(path, run_page(finished_run(folder)).encode("utf-8"))
    return path


def run_page(run: FinishedRun) -> str:
    """The whole page."""
    card = run.card
    about: list[Child] = [paragraph(card["summary"]) if card.get("summary") else None]
    if not card["protects_people"]:
        about.append(
            warning(
                "This is a simulation. Its noise is repeatable or absent, and it protects nobody. "
                "The guarantees below are those that the same run would have with noise that nobody can repeat."
            )
        )
    about.append(figures(_first_figures(run)))
    sections = [
        Section("left", "What left each silo, and what is promised", _left(run)),
        *([Section("looks", "What it looks like", parts)] if (parts := _looks(run)) else []),
        Section("worth", "What it is worth", worth(run)),
        Section("noise", "Noise and clipping", diagnostics(run)),
        *([Section("audit", "Audit", [_audit(run.audit)])] if run.audit is not None else []),
        Section("cost", "What it cost", _cost(run)),
        Section("again", "To make it again, and to check it", _again(run)),
    ]
    foot = paragraph(f"{card['software']}. One file: it fetches nothing, and scripts only sort its tables.")
    return page(card["name"], about, sections, foot=foot)


def _first_figures(run: FinishedRun) -> list[tuple[str, str]]:
    promised = guarantees(run.card)
    worst = max(promised, key=lambda row: most_often_right(row["epsilon"], row["delta"]), default=None)
    values = [(in_words(run.metrics["dataset"]), f"from {_silos(len(promised))} by {run.card['method']}")]
    if worst is not None:
        odds = percent_at_most(most_often_right(worst["epsilon"], worst["delta"]))
        values.append((f"50 % → {odds} %", "an attacker's odds of telling whether one record was used, at most"))
        largest = "∞" if worst["epsilon"] is None else f"{worst['epsilon']:g}"
        values.append((f"ε = {largest}", f"at δ = {worst['delta']:g}, of the silo that promised least"))
    if (first := headline(run.metrics)) is not None:
        values.append((f"{100 * first.mean:.1f} %", f"right on real test data: {first.words}"))
    values.append((bytes_in_words(max(run.bytes_by_silo.values(), default=0)), "left the silo that sent the most"))
    return values


def _silos(count: int) -> str:
    return f"{count} silo{'s' if count != 1 else ''}"


def _left(run: FinishedRun) -> list[Child]:
    card = run.card
    parts: list[Child] = [
        paragraph(
            "A silo sent the coordinator the signed releases below. They hold sums over all of its records, or images "
            "made from such sums, with noise that the silo drew once and added before anything left. No record left, "
            "and no sum without noise. No other message of a silo depends on its records: neither its word that it is "
            "there, nor its answer to a dry round, nor a refusal."
        ),
        paragraph(
            "The guarantee of a silo is (ε, δ)-differential privacy for each person's record in it: "
            f"neighbours are data sets that differ by one ({events.NEIGHBOURS}). {_counts(run)}"
        ),
    ]
    rows = []
    for row in guarantees(card):
        sent = run.bytes_by_silo.get(row["silo"], 0)
        releases = sum(each.silo == row["silo"] for each in run.sent)
        rows.append(
            Row(
                [
                    row["silo"],
                    _spent(row),
                    figure(most_often_right(row["epsilon"], row["delta"]), odds_in_words(row["epsilon"], row["delta"])),
                    figure(releases, str(releases)),
                    figure(sent, bytes_in_words(sent)),
                    row["accountant"],
                ]
            )
        )
    header = ["silo", "guarantee", "an attacker's odds", "releases", "bytes", "accountant"]
    parts.append(table("All releases of a silo together.", header, rows))
    parts += [odds_explained(row["epsilon"], row["delta"]) for row in guarantees(card)[:1]]
    parts += [element("h3", "What is in the releases"), _releases(run)]
    if missing := card.get("silos_without_release"):
        parts.append(paragraph("Silos that did not take part, or not in every stage:"))
        parts.append(listed([f"{silo}: {why}" for silo, why in missing.items()]))
    if card.get("warnings"):
        parts.append(warning("What these silos released does not come from one ledger, so more may have been spent."))
        parts.append(listed(list(card["warnings"])))
    return parts


def _counts(run: FinishedRun) -> str:
    open_silos = [row["silo"] for row in run.card["silos"] if row["public_counts"]]
    if open_silos:
        return f"Labels are protected, and class counts, too, but for {', '.join(open_silos)}: declared public there."
    return "Labels, class counts and the number of records are protected, too."


def odds_explained(epsilon: float | None, delta: float) -> Html:
    """The odds in a picture and in words."""
    share = most_often_right(epsilon, delta)
    right = 300.0 * share
    bar = element(
        "svg",
        element("title", odds_in_words(epsilon, delta)),
        element("rect", x=0, y=4, width=300, height=16, class_="track"),
        element("rect", x=0, y=4, width=f"{right:.1f}", height=16, class_="bar"),
        element("path", d="M150 0V24", class_="axis", stroke_width="2"),
        element("text", "a coin: 50 %", x=150, y=36, text_anchor="middle"),
        element("text", f"at most {percent_at_most(share)} %", x=f"{max(right, 215.0):.1f}", y=36, text_anchor="start"),
        viewBox="0 0 380 42",
        class_="odds",
        role="img",
        aria_label=odds_in_words(epsilon, delta),
        font_size="11",
    )
    if epsilon is None:
        words = "There is no bound: nothing keeps somebody who knows all other records from being right every time."
        return element("div", bar, paragraph(words))
    words = (
        "Somebody wagers on whether one certain person's record was used, knows all other records and every setting, "
        f"and starts from even odds. Tossing a coin, they are right 50 % of the time. After seeing all that left "
        f"the silo, they are right at most {percent_at_most(share)} % of the time: (e^ε + δ) / (1 + e^ε) at "
        f"ε = {epsilon:g} and δ = {delta:g}, rounded up. δ is the part of that which ε does not bound."
    )
    return element("div", bar, paragraph(words))


def _releases(run: FinishedRun) -> Html:
    """Releases of one shape together: a run in rounds has hundreds."""
    shapes: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for each in run.sent:
        arrays = "; ".join(f"{name} ({_shape(shape)}, {dtype})" for name, (dtype, shape) in sorted(each.arrays.items()))
        shapes.setdefault((each.silo, each.purpose, arrays), []).append((each.bytes, each.digest))
    rows = []
    for (silo, purpose, arrays), found in shapes.items():
        hashes = ", ".join(digest[:16] + "…" for _, digest in found[:4])
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        size = sum(size for size, _ in found)
        cells: Sequence[Cell | str] = [
            silo,
            purpose,
            figure(len(found), str(len(found))),
            figure(size, bytes_in_words(size)),
            arrays,
            Cell([code(hashes), more]),
        ]
        rows.append(Row(cells))
    header = ["silo", "for", "releases", "bytes", "arrays (shape, type)", "SHA-256"]
    return table("Each is a file in the run's store under its hash, signed by its silo.", header, rows)


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"


def _looks(run: FinishedRun) -> list[Child]:
    path = run.picture
    pool = [paragraph(part.replace("\n", " ").replace("`", "")) for part in pool_text(run.card).split("\n\n") if part]
    if path is None:
        return [*pool]
    is_table = "rows" in run.metrics["dataset"]
    if is_table:
        words = "the marginals of every column by class"
        caption = "Each column's shares by class: synthetic rows, beside public test rows where there are any."
    else:
        words = "synthetic images, a row for each class"
        caption = (
            f"A row for each class, in this order: {', '.join(run.card['classes'][:20])}. Choose it to enlarge it."
        )
    shown = picture_of(path, "dataset-picture", words, caption, pixels=not is_table)
    return [element("div", shown, class_="wide"), *pool]


def _audit(audit: Mapping[str, Any]) -> Html:
    rows = [Row([name, audit_cell(value)]) for name, value in audit_figures(audit)]
    return table("From audit.json, beside this file.", ["figure", "value"], rows, sorts=False)


def _cost(run: FinishedRun) -> list[Child]:
    rows = []
    for row in run.card["silos"]:
        event = events.describe(events.from_json(row["event"]))
        rows.append(Row([row["silo"], "dataset", _spent(row), row["accountant"], event]))
    for row in run.card.get("evaluation_at_silos", []):
        event = events.describe(events.from_json(row["event"]))
        rows.append(Row([row["silo"], "evaluation", _spent(row), row["accountant"], event]))
        both = row["together"]
        rows.append(Row([row["silo"], "both together", _spent(both), both["accountant"], ""]))
    spent = table("What each silo spent of its budget.", ["silo", "for", "spent", "accountant", "noise"], rows)
    seconds = run.metrics["seconds"]
    times = [(name, seconds_in_words(value)) for name, value in seconds.items()]
    total = seconds_in_words(sum(seconds.values()))
    return [
        spent,
        paragraph("Using the dataset, for whatever and however often, costs no further privacy."),
        paragraph("Seconds by the clock, in the coordinator's last pass over the run:"),
        facts([*times, ("together", total)]),
    ]


def _spent(row: Mapping[str, Any]) -> Cell:
    return figure(float("inf") if row["epsilon"] is None else row["epsilon"], epsilon_in_words(row))


def _again(run: FinishedRun) -> list[Child]:
    folder = str(run.folder)
    parts: list[Child] = []
    if run.command is not None:
        parts += [paragraph("The command that makes this run again:"), command(run.command)]
    parts += [
        paragraph("Whether the dataset is what its card says, recomputed from what silos signed:"),
        command(f"dpdd-server verify {folder}"),
        paragraph("This report again:"),
        command(f"dpdd-server report {folder}"),
        facts(
            [
                ("dataset", code(str(run.card["dataset_sha256"]))),
                ("licence", licence_text(run.card)),
                ("in full", "CARD.md and card.json, beside this file"),
            ]
        ),
    ]
    return parts
