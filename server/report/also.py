"""Further datasets from the releases of a run: saved, said in the card and in `metrics.json`, and checked.

They lie in `dataset/also/NAME`, so that whoever copies the dataset has them too. Each is post-processing of the same
releases, and has the same guarantee: together they cost what one costs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.synthesis.product import Product
from dpdd.common.synthesis.product_files import DATASET, MODEL, TEACHER, file_sha256
from dpdd.server.report.product import in_words
from dpdd.server.report.scores import facts_table, learner_facts, score_table

FOLDER = Path("dataset", "also")


@dataclass(frozen=True, eq=False)
class Also:
    """A further dataset, the method that made it, and what evaluation said of it."""

    name: str
    method: str
    product: Product
    scores: Mapping[str, Any]


def save_also(folder: Path, also: Sequence[Also]) -> list[dict[str, Any]]:
    """Write these into the run's `folder`, in place of any before; what `metrics.json` and the card say of them."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    rows = []
    for each in also:
        own = folder / FOLDER / each.name
        row = {"name": each.name, "method": each.method, **each.product.facts, "sha256": each.product.save(own)}
        if each.product.teacher is not None:
            row["teacher_sha256"] = file_sha256(own / TEACHER)
        rows.append({**row, **each.scores})
    return rows


def also_lines(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """What `dpdd-sim` and `dpdd-server` print of them."""
    lines = []
    for row in metrics.get("also", ()):
        lines.append(f"also {row['name']}, {in_words(row)} by {row['method']}: {folder / FOLDER / row['name']}")
        lines += ["", score_table(row), ""] if row["accuracy"] else [""]
    return lines


def also_text(card: Mapping[str, Any]) -> str:
    """What `CARD.md` says of them; empty where there are none."""
    parts = []
    for row in card.get("also", ()):
        words = (
            f"- `{FOLDER / row['name'] / row['file']}`: {in_words(row)} by {row['method']}, SHA-256 `{row['sha256']}`."
        )
        parts.append(words)
        if row["accuracy"]:
            parts.append(f"```\n{facts_table(learner_facts(row))}\n```")
    if parts:
        parts.insert(0, "Further datasets were made from the releases above. All together cost what is stated there.")
    return "\n\n".join(parts)


def check_also(folder: Path, card: Mapping[str, Any]) -> None:
    """IntegrityError, or DataError, unless the further datasets in `folder` are those of the card."""
    rows = {}
    try:
        for row in card.get("also", ()):
            file = {DATASET: DATASET, MODEL: MODEL}[row["file"]]
            rows[str(row["name"])] = {file: str(row["sha256"]), TEACHER: row.get("teacher_sha256")}
    except (KeyError, TypeError):
        raise DataError(f"{folder / 'card.json'}: it names further datasets without saying which") from None
    here = {path.name for path in (folder / FOLDER).iterdir()} if (folder / FOLDER).exists() else set()
    if odd := sorted(here ^ rows.keys()):
        raise IntegrityError(f"{folder / FOLDER}: {odd[0]!r} is in the card or in this folder, and not in both")
    for name, files in rows.items():
        for file, expected in files.items():
            path = folder / FOLDER / name / file
            if (file_sha256(path) if path.exists() else None) != expected:
                raise IntegrityError(f"{path}: this is not what the card says")
