"""The data card: what the dataset is, who stands behind it under which guarantee, and how to check that."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpdd.common.cli import software, table
from dpdd.common.errors import IntegrityError
from dpdd.common.privacy import events
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import Product
from dpdd.common.synthesis.product_files import TEACHER, file_sha256
from dpdd.common.wire.release import Release
from dpdd.server.report.product import in_words
from dpdd.server.report.scores import facts_table, learner_facts
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario
from dpdd.server.run.store import Store


def by_silo(releases: Iterable[Release]) -> dict[str, list[Release]]:
    """Each silo's releases, in the order given (which is that of the stages); silos by name."""
    grouped: dict[str, list[Release]] = {}
    for release in releases:
        grouped.setdefault(release.silo, []).append(release)
    return dict(sorted(grouped.items()))


def privacy_rows(releases: Iterable[Release]) -> list[dict[str, Any]]:
    """Per silo: the guarantee that each person in it has, as `metrics.json` and the card show it.

    Every stage's release states the guarantee of all stages together, so it is named once.
    """
    return [_row(silo, stages) for silo, stages in by_silo(releases).items()]


def _row(silo: str, releases: Sequence[Release]) -> dict[str, Any]:
    first = releases[0]
    if any(release.guarantee != first.guarantee for release in releases):
        raise IntegrityError(f"silo {silo} states different guarantees for stages of one run")
    return {
        "silo": silo,
        "epsilon": first.guarantee.epsilon if math.isfinite(first.guarantee.epsilon) else None,
        "delta": first.guarantee.delta,
        "accountant": first.guarantee.accountant,
        "neighbours": events.NEIGHBOURS,
        "releases": len(releases),
        "event": events.to_json(events.compose(*(release.event for release in releases))),
        "noise_distance": math.fsum(release.distance for release in releases),
        "releasable": all(release.releasable for release in releases),
        "public_counts": list(first.public_counts) or None,
    }


def budget_cells(row: Mapping[str, Any]) -> list[str]:
    """The silo, ε and δ of one of the `privacy_rows`, for a table.

    >>> budget_cells({"silo": "north", "epsilon": None, "delta": 1e-5})
    ['north', '∞', '1e-05']
    """
    epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:g}"
    return [row["silo"], epsilon, f"{row['delta']:g}"]


def write_card(
    folder: Path,
    scenario: Scenario,
    product: Product,
    dataset_sha256: str,
    releases: Sequence[Release],
    store: Store,
    roster: Roster,
    missing: Mapping[str, str],
    scores: Mapping[str, Any],
) -> None:
    """Write `card.json` and `CARD.md`, when the dataset is saved in `folder/dataset`.

    `scores` is what the evaluation gave (`accuracy` and other metrics by learner); without any the card has none.
    """
    rows = privacy_rows(releases)
    signed = by_silo(releases)
    for row in rows:
        silo = row["silo"]
        row["release_sha256"] = [store.digest(release.request_id, silo) for release in signed[silo]]
        row["public_key"] = roster.key_of(silo).hex()
    card = {
        "name": scenario.name,
        "summary": scenario.summary,
        "software": software(),
        "method": scenario.method.name,
        "mode": scenario.method.mode,
        "aggregation": scenario.method.aggregation if scenario.method.mode == "centralised" else "union",
        "licence": scenario.licence,
        "classes": list(product.classes),
        **product.facts,
        **_records_per_class(product),
        "dataset_sha256": dataset_sha256,
        **_teacher_facts(product, folder),
        "protects_people": bool(rows) and all(row["releasable"] for row in rows),
        "silos": rows,
        "silos_without_release": dict(missing),
        **_evaluation(scenario, scores),
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    (folder / "CARD.md").write_text(_markdown(card))


def _records_per_class(product: Product) -> dict[str, Any]:
    """How many records of each class there are, in the order of the classes; nothing for a model."""
    if not isinstance(product, LabelledSet):
        return {}
    return {"records_per_class": np.bincount(product.labels, minlength=len(product.classes)).tolist()}


def _teacher_facts(product: Product, folder: Path) -> dict[str, Any]:
    """The hash of the saved teacher, and the public backbone that it needs."""
    if product.teacher is None:
        return {}
    backbone = {"name": Path(product.teacher.backbone).name, "sha256": product.teacher.backbone_sha256}
    return {"teacher_sha256": file_sha256(folder / "dataset" / TEACHER), "teacher_backbone": backbone}


def _evaluation(scenario: Scenario, scores: Mapping[str, Any]) -> dict[str, Any]:
    if not scores.get("accuracy"):
        return {}
    test_data = f"the test data of {scenario.data.dataset}" if scenario.data.dataset else "the coordinator's test data"
    return {"evaluation": {"test_data": test_data, "learners": learner_facts(scores)}}


def _markdown(card: Mapping[str, Any]) -> str:
    teacher = ""
    if "teacher_sha256" in card:
        backbone = card["teacher_backbone"]
        teacher = (
            f"- `dataset/{TEACHER}`, made from the same releases, has SHA-256 `{card['teacher_sha256']}`.\n"
            f"  It stands on the public backbone `{backbone['name']}` with SHA-256 `{backbone['sha256']}`.\n"
        )
    sections = [
        f"# {card['name']}",
        about_text(card),
        f"## Privacy\n\n{privacy_text(card)}",
        *([f"## What learners reached\n\n{text}"] if (text := evaluation_text(card)) else []),
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
            " ".join(digest[:16] + "…" for digest in row["release_sha256"]),
        ]
        for row in card["silos"]
    ]
    open_silos = [row["silo"] for row in card["silos"] if row["public_counts"]]
    counts = "Labels, class counts and the number of records are protected too."
    if open_silos:
        counts = (
            f"Labels are protected too; class counts are, except of {', '.join(open_silos)}: declared public there."
        )
    parts = [promise, f"Neighbours: {events.NEIGHBOURS}. {counts}", f"```\n{table(header, cells)}\n```"]
    if card["silos_without_release"]:
        absent = "\n".join(f"- {silo}: {why}" for silo, why in card["silos_without_release"].items())
        parts.append(f"Silos that did not take part, or not in every stage:\n\n{absent}")
    return "\n\n".join(parts)


def evaluation_text(card: Mapping[str, Any]) -> str:
    """What learners reached on which test data; empty where nothing was evaluated."""
    evaluation = card.get("evaluation")
    if not evaluation:
        return ""
    return (
        f"Measured on {evaluation['test_data']}.\n\n```\n{facts_table(evaluation['learners'])}\n```\n\n"
        "Test figures are no part of the privacy claim above: they are exact figures of that test data, which\n"
        "no noise protects."
    )


def licence_text(card: Mapping[str, Any]) -> str:
    """Under which terms it may be used, where the coordinator said so."""
    return card.get("licence") or "Not stated: ask whoever published this dataset."
