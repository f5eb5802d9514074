"""`report`, `export` and `verify`: what people read, what may be published, and whether it is what its card says."""

from __future__ import annotations

import argparse
import logging
import textwrap
from pathlib import Path
from typing import Any

from dpdd.common.cli import facts, table


def report(options: argparse.Namespace) -> None:
    """Write the report of a run that is finished already."""
    from dpdd.server.report.run_page import write_report

    print(f"wrote {write_report(options.folder)}")


def export(options: argparse.Namespace) -> None:
    """Write what may be published into a new folder."""
    from dpdd.server.publish.export import export as write
    from dpdd.server.report.verification import checked_run

    run = checked_run(options.folder)
    written = write(options.folder, run.card, options.out, run.requests, with_image_folder=options.imagefolder)
    print(f"wrote {options.out}:")
    print(textwrap.indent(facts(written), "  "))
    if not run.card["protects_people"]:
        print("it protects nobody, so there is no entry for the registry of DP deployments")
    print(f"anybody can check it: `dpdd-server verify {options.out}`")


def verify(options: argparse.Namespace) -> None:
    """Check a finished run or an exported one, and say what was checked and recomputed."""
    from dpdd.server.report.card_text import budget_cells, release_rows
    from dpdd.server.report.verification import checked_run

    logging.getLogger("absl").setLevel(logging.ERROR)  # Rényi accounting tells of every order that it leaves out
    run = checked_run(options.folder, thorough=options.thorough)
    card = run.card
    rows = [[*budget_cells(row), f"{len(row['release_sha256'])}, signed"] for row in release_rows(card)]
    print(table(["silo", "ε", "δ", "releases"], rows))
    for each in run.recomputed:
        print(each)
    releases = sum(len(row["release_sha256"]) for row in release_rows(card))
    teacher = f", its teacher ({card['teacher_sha256'][:16]}…)" if card.get("teacher_sha256") else ""
    print(f"the dataset ({card['dataset_sha256'][:16]}…){teacher} and {releases} releases are as the card says")
    if options.pool is not None:
        print(_relabelled(options.folder, options.pool))
    for name in _checked_translations(options.folder):
        print(f"{name}/ holds the same records")
    text = options.folder / "CARD.md"
    if text.exists() and text.read_bytes() != _as_text(card):
        print("CARD.md is not what this version writes for card.json: what was checked is card.json")


def _relabelled(folder: Path, source: str) -> str:
    """What became of recomputing the labels of the public pool, of which `source` is a copy."""
    from dpdd.common.synthesis.public_pool import PoolLabels
    from dpdd.server.commands.pool import images_of
    from dpdd.server.report.pool import relabelled

    about = PoolLabels.load(folder / "dataset").facts
    return relabelled(folder, images_of(source, about, "images"))


def _as_text(card: dict[str, Any]) -> bytes | None:
    """`CARD.md`, as it is written now; None for a card of other fields, of another version maybe."""
    from dpdd.server.report.card_text import markdown

    try:
        return markdown(card).encode()
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _checked_translations(folder: Path) -> list[str]:
    """The formats of others in an exported folder, after their records were compared with the dataset's."""
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.server.publish import huggingface, image_folder, table_files

    checks = {
        huggingface.FOLDER: huggingface.check_huggingface,
        image_folder.FOLDER: image_folder.check_image_folder,
        table_files.FOLDER: table_files.check_table,
    }
    there = [name for name in checks if (folder / name).exists()]
    for name in there:
        checks[name](folder / name, LabelledSet.load(folder / "dataset"))
    return there
