"""`export` and `verify`: what may be published, and whether it is what its card says."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import facts, table
from dpdd.common.errors import DataError, IntegrityError

if TYPE_CHECKING:
    from dpdd.common.wire.release import Release


def export(options: argparse.Namespace) -> None:
    """Write what may be published into a new folder."""
    from dpdd.server.publish.export import export as write

    card = checked_card(options.folder)
    written = write(options.folder, card, options.out, with_image_folder=options.imagefolder)
    print(f"wrote {options.out}:")
    print(textwrap.indent(facts(written), "  "))
    if not card["protects_people"]:
        print("it protects nobody, so there is no entry for the registry of DP deployments")
    print(f"anybody can check it: `dpdd-server verify {options.out}`")


def verify(options: argparse.Namespace) -> None:
    """Check a finished run or an exported one, and say what was checked."""
    from dpdd.server.report.card_text import budget_cells, release_rows

    card = checked_card(options.folder)
    rows = [[*budget_cells(row), f"{len(row['release_sha256'])}, signed"] for row in release_rows(card)]
    print(table(["silo", "ε", "δ", "releases"], rows))
    releases = sum(len(row["release_sha256"]) for row in release_rows(card))
    for row in card.get("evaluation_at_silos", []):
        silo, epsilon, delta = budget_cells({"silo": row["silo"], **row["together"]})
        print(f"{silo}: release and evaluation together, ε = {epsilon} at δ = {delta}")
    teacher = f", its teacher ({card['teacher_sha256'][:16]}…)" if card.get("teacher_sha256") else ""
    print(f"the dataset ({card['dataset_sha256'][:16]}…){teacher} and {releases} releases are as the card says")
    for name in _checked_translations(options.folder):
        print(f"{name}/ holds the same records")


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


def checked_card(folder: Path) -> dict[str, Any]:
    """The data card of a finished run, after everything in it was checked."""
    from dpdd.common.privacy import events
    from dpdd.common.synthesis.product_files import DATASET, MODEL, TEACHER, file_sha256
    from dpdd.common.wire.release import Release, open_signed
    from dpdd.common.wire.request import Kind
    from dpdd.server.run.store import read_stored

    path = folder / "card.json"
    try:
        card: dict[str, Any] = json.loads(path.read_text())
        silos, judged, expected = _rows(card, "silos"), _rows(card, "evaluation_at_silos"), card["dataset_sha256"]
        keys = {row["silo"]: bytes.fromhex(row["public_key"]) for row in silos}
        together = [(row["silo"], _stated(row["together"])) for row in judged if row["held_out"] in (True, False)]
        if len(together) != len(judged):
            raise ValueError("an evaluation read held-out records, or did not")
    except FileNotFoundError:
        raise DataError(f"{path}: there is no data card; is this a finished run?") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: this is not a data card") from None
    dataset = folder / "dataset" / (MODEL if card.get("file") == MODEL else DATASET)
    if not dataset.exists():
        raise DataError(f"{dataset}: the dataset is missing")
    if file_sha256(dataset) != expected:
        raise IntegrityError(f"{dataset}: the dataset is not the one in the card")
    _check_teacher(folder / "dataset" / TEACHER, card.get("teacher_sha256"))
    store, opened = folder / "store", dict[str, list[Release]]()
    for row in (*silos, *judged):
        if row["silo"] not in keys:
            raise IntegrityError(f"the card has an evaluation by {row['silo']}, which released nothing else")
        releases = [open_signed(read_stored(store, digest), keys[row["silo"]]) for digest in row["release_sha256"]]
        if not releases or len({release.request_id for release in releases}) != len(releases):
            raise IntegrityError(f"the card's row for {row['silo']} names no release, or one twice")
        stated = row["epsilon"] if row["epsilon"] is not None else float("inf")
        for release in releases:
            if release.silo != row["silo"]:
                raise IntegrityError(f"the release in the card's row for {row['silo']} is by silo {release.silo}")
            if (release.guarantee.epsilon, release.guarantee.delta) != (stated, row["delta"]):
                raise IntegrityError(f"the card states another guarantee for {row['silo']} than the silo signed")
        if events.to_json(events.compose(*(release.event for release in releases))) != row["event"]:
            raise IntegrityError(f"the card states another event for {row['silo']} than the silo signed")
        evaluation = row in judged
        if any((release.kind is Kind.EVALUATION) != evaluation for release in releases):
            raise IntegrityError(f"the card's rows for {row['silo']} mistake an evaluation for another release")
        if evaluation and any(release.held_out != row["held_out"] for release in releases):
            raise IntegrityError(f"the card says other than {row['silo']} whether its evaluation read held-out records")
        opened.setdefault(row["silo"], []).extend(releases)
    for silo, stated in together:
        _check_together(silo, stated, opened[silo])
    return card


def _rows(card: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a card that name releases; ValueError, KeyError or TypeError unless they have their fields."""
    rows = card[name] if name == "silos" else card.get(name, [])
    if not isinstance(rows, list):
        raise TypeError(f"{name} is a list")
    for row in rows:
        _stated(row)
        if not (isinstance(row["silo"], str) and row["silo"].isprintable() and len(row["silo"]) <= 100):
            raise ValueError("a silo's name is short")
        if not isinstance(row["release_sha256"], list) or "event" not in row:
            raise TypeError("a row names releases and their event")
    return rows


def _stated(row: dict[str, Any]) -> tuple[float | None, float]:
    """ε (None is none) and δ in a row of a card; ValueError, KeyError or TypeError unless they are figures."""
    epsilon, delta = row["epsilon"], row["delta"]
    for figure in (delta,) if epsilon is None else (epsilon, delta):
        if type(figure) not in (int, float) or not 0 <= figure <= 1e300:
            raise ValueError("ε and δ are figures")
    return epsilon, delta


def _check_together(silo: str, stated: tuple[float | None, float], releases: list[Release]) -> None:
    """IntegrityError where the card states less for all releases of a silo together than the accountant does."""
    from dpdd.server.report.card import together

    found = together(releases)
    epsilon, needed = (math.inf if each is None else each for each in (stated[0], found["epsilon"]))
    if stated[1] != found["delta"] or epsilon < needed * (1.0 - 1e-9):
        raise IntegrityError(f"the card states less for all releases of {silo} together than they cost")


def _check_teacher(path: Path, expected: str | None) -> None:
    """IntegrityError for another teacher than the card's, or for one that the card does not speak of."""
    from dpdd.common.synthesis.product_files import file_sha256

    if not path.exists():
        if expected is not None:
            raise DataError(f"{path}: the teacher that the card names is missing")
    elif expected is None:
        raise IntegrityError(f"{path}: the card names no teacher; remove this one")
    elif file_sha256(path) != expected:
        raise IntegrityError(f"{path}: the teacher is not the one in the card")
