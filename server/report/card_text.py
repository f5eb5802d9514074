"""The data card in words: `CARD.md`, and its parts for others who describe the dataset."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dpdd.common.cli import table
from dpdd.common.privacy import events
from dpdd.common.synthesis.product_files import TEACHER
from dpdd.server.report.also import also_text
from dpdd.server.report.comparison import comparison_text
from dpdd.server.report.image_comparison import image_comparison_text
from dpdd.server.report.joining import joining_text
from dpdd.server.report.pool import pool_text
from dpdd.server.report.product import in_words
from dpdd.server.report.scores import at_silos_table, facts_table, left_out_lines

MOST_DIGESTS = 8
"""So many releases of a silo are named in the text."""


def markdown(card: Mapping[str, Any]) -> str:
    """The whole of `CARD.md`."""
    teacher = ""
    if "teacher_sha256" in card:
        teacher = f"- `dataset/{TEACHER}`, made from the same releases, has SHA-256 `{card['teacher_sha256']}`.\n"
        if (backbone := card.get("teacher_backbone")) is not None:  # a table's needs none
            teacher += f"  It stands on the public backbone `{backbone['name']}` with SHA-256 `{backbone['sha256']}`.\n"
    sections = [
        f"# {card['name']}",
        about_text(card),
        f"## Privacy\n\n{privacy_text(card)}",
        *([f"## What came from which silo\n\n{text}"] if (text := joining_text(card)) else []),
        *([f"## What learners reached\n\n{text}"] if (text := evaluation_text(card)) else []),
        *([f"## Also made from these releases\n\n{text}"] if (text := also_text(card)) else []),
        *([f"## The public pool\n\n{text}"] if (text := pool_text(card)) else []),
        *([f"## Beside public test rows\n\n{text}"] if (text := comparison_text(card)) else []),
        *([f"## Beside public test images\n\n{text}"] if (text := image_comparison_text(card)) else []),
        f"## Licence\n\n{licence_text(card)}",
        f"## Verifying\n\n- `dataset/{card['file']}` has SHA-256 `{card['dataset_sha256']}`.\n{teacher}"
        "- Every release named above lies in `store/` under its SHA-256, signed (Ed25519) with the key in\n"
        "  `card.json`.\n"
        "- `dpdd-server verify` on this folder checks all of that.",
    ]
    return "\n\n".join(sections) + "\n"


def about_text(card: Mapping[str, Any]) -> str:
    """What it is, and what made it."""
    classes = ", ".join(card["classes"])
    words = in_words(card)
    made = textwrap.fill(
        f"{words[0].upper()}{words[1:]}{_shape_in_words(card)} in {len(card['classes'])} classes ({classes})"
        f"{_shares_in_words(card)}, made by {card['software']} with {card['method']} ({card['mode']}, silos joined by "
        f"{card['aggregation']}).",
        width=100,
        break_on_hyphens=False,
    )
    return f"{card['summary']}\n\n{made}" if card["summary"] else made


def _shape_in_words(card: Mapping[str, Any]) -> str:
    if "described" in card:
        return ""
    if "image_shape" not in card:
        return f" ({len(card['columns'])} columns)"
    channels, height, width = card["image_shape"]
    return f" ({height}x{width} pixels, {channels} channel{'s' if channels > 1 else ''})"


def _shares_in_words(card: Mapping[str, Any]) -> str:
    counts = card.get("records_per_class")  # older cards do not have it
    if not counts:
        return ""
    if len(set(counts)) == 1:
        return f", {counts[0]} of each"
    each = ", ".join(f"{count} {name}" for name, count in zip(card["classes"], counts, strict=True))
    return f", of which there are {each}"


def privacy_text(card: Mapping[str, Any]) -> str:
    """What is promised to whom."""
    if card["protects_people"]:
        promise = (
            "Each person's records lie in one silo, and are protected by that silo's (ε, δ) below: nobody who sees\n"
            "this dataset, or anything made from it, learns more about whether one labelled record was in the silo's\n"
            "data than that bound allows. Using the dataset costs no further privacy."
        )
    else:
        promise = "**This is a simulation. Its noise is repeatable or absent, and it protects nobody.**"
    header = ["silo", "ε", "δ", "accountant", "event", "releases (SHA-256)"]
    cells = [
        [
            *budget_cells(row),
            row["accountant"],
            events.describe(events.from_json(row["event"])),
            _digests(row),
        ]
        for row in card["silos"]
    ]
    judged = card.get("evaluation_at_silos", [])
    if judged:
        header, cells = _with_evaluation(header, cells, judged)
    open_silos = [row["silo"] for row in card["silos"] if row["public_counts"]]
    counts = "Labels, class counts and the number of records are protected too."
    if open_silos:
        counts = (
            f"Labels are protected too; class counts are, except of {', '.join(open_silos)}: declared public there."
        )
    parts = [promise, f"Neighbours: {events.NEIGHBOURS}. {counts}", f"```\n{table(header, cells)}\n```"]
    parts += [_about_evaluation(judged)] if judged else []
    parts += [published] if (published := _as_published(card)) else []
    if card["silos_without_release"]:
        absent = "\n".join(f"- {silo}: {why}" for silo, why in card["silos_without_release"].items())
        parts.append(f"Silos that did not take part, or not in every stage:\n\n{absent}")
    if card.get("warnings"):
        forks = "\n".join(f"- {sentence}." for sentence in card["warnings"])
        parts.append(
            "**Warning.** What these silos released does not come from one ledger: an older copy of it was put back,\n"
            f"and the (ε, δ) above may have been spent more than once there.\n\n{forks}"
        )
    return "\n\n".join(parts)


def evaluation_text(card: Mapping[str, Any]) -> str:
    """What learners reached on which test data; empty where nothing was evaluated."""
    parts = []
    if evaluation := card.get("evaluation"):
        shown = "\n".join([facts_table(evaluation["learners"], evaluation), *left_out_lines(evaluation)])
        parts.append(
            f"Measured on {evaluation['test_data']}.\n\n```\n{shown}\n```\n\n"
            "Test figures are no part of the privacy claim above: they are exact figures of that test data, which\n"
            "no noise protects."
        )
    if "at_silos" in card:
        parts.append(
            f"Measured at the silos, by noisy histograms that are part of the privacy claim above:\n\n"
            f"```\n{at_silos_table(card)}\n```"
        )
    return "\n\n".join(parts)


def licence_text(card: Mapping[str, Any]) -> str:
    """Under which terms it may be used, where the coordinator said so."""
    stated: str = card.get("licence") or "Not stated: ask whoever published this dataset."
    return f"{stated}\n\nOf the public pool: {card['pool']['licence']}" if "pool" in card else stated


def _digests(row: Mapping[str, Any]) -> str:
    """The releases of a row; of very many the first ones."""
    digests = row["release_sha256"]
    shown = digests if len(digests) <= MOST_DIGESTS else digests[:2]
    more = f" and {len(digests) - len(shown)} more, in card.json" if len(shown) < len(digests) else ""
    return " ".join(digest[:16] + "…" for digest in shown) + more


def _with_evaluation(
    header: list[str], cells: list[list[str]], judged: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    """The table with a column that says what was released for, and two lines more for each silo that evaluated."""
    lines = []
    rows = {row["silo"]: row for row in judged}
    for silo, *rest in cells:
        lines.append([silo, "dataset", *rest])
        if silo in rows:
            row = rows[silo]
            event = events.describe(events.from_json(row["event"]))
            digests = _digests(row)
            lines.append([silo, "evaluation", *budget_cells(row)[1:], row["accountant"], event, digests])
            both = {"silo": silo, **row["together"]}
            lines.append([silo, "together", *budget_cells(both)[1:], both["accountant"], "", ""])
    return [header[0], "for", *header[1:]], lines


def _as_published(card: Mapping[str, Any]) -> str:
    """What the method's paper would have said of the same noise, where it accounts in another way."""
    rows = [row for row in card["silos"] if "epsilon_as_published" in row]
    if not rows:
        return ""
    figures = ", ".join(f"ε = {row['epsilon_as_published']:g} for {row['silo']}" for row in rows)
    return (
        f"As published: the accounting in the paper of {card['method']} would say of the same noise {figures}.\n"
        "It is printed for comparison, and promises nothing; the guarantee is the ε in the table."
    )


def _about_evaluation(judged: Sequence[Mapping[str, Any]]) -> str:
    """What the evaluation read, in a sentence."""
    inside = [row["silo"] for row in judged if not row["held_out"]]
    if not inside:
        read = "records that the silos held out: no release that the dataset was made from has read them"
    else:
        read = (
            f"all records of {', '.join(inside)} (in-sample: the dataset was made from them), held-out ones elsewhere"
        )
    return (
        f"The evaluation at the silos read {read}.\nWhat holds for a silo that evaluated is the line 'together'; it "
        "does not assume that the two releases read different records."
    )


def budget_cells(row: Mapping[str, Any]) -> list[str]:
    """The silo, ε and δ of one of the `privacy_rows`, for a table.

    >>> budget_cells({"silo": "north", "epsilon": None, "delta": 1e-5})
    ['north', '∞', '1e-05']
    """
    epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:g}"
    return [row["silo"], epsilon, f"{row['delta']:g}"]


def release_rows(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All rows of a card that name releases: those that the dataset was made from, then those that judged it."""
    return [*card["silos"], *card.get("evaluation_at_silos", [])]


def guarantees(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each silo ε, δ and accountant of all its releases in the card together.

    >>> row = {"silo": "north", "epsilon": 1.0, "delta": 1e-5, "accountant": "analytic Gaussian"}
    >>> both = {"epsilon": 1.2, "delta": 1e-5, "accountant": "analytic Gaussian"}
    >>> guarantees({"silos": [row], "evaluation_at_silos": [{**row, "together": both}]})[0]["epsilon"]
    1.2
    """
    together = {row["silo"]: row["together"] for row in card.get("evaluation_at_silos", [])}
    keys = ("epsilon", "delta", "accountant")
    return [
        {"silo": row["silo"], **{key: together.get(row["silo"], row)[key] for key in keys}} for row in card["silos"]
    ]
