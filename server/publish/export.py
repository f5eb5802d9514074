"""A published folder: what may be shown of a finished run, whole or not at all.

It has what `dpdd-server verify` checks (the dataset, its card, the signed releases that the card cites, the requests
that they answer) and the same dataset and card in the formats of others. Nothing in it depends on when or where it was
written.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.common.errors import ConfigError
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import POOL, TEACHER
from dpdd.server.publish import huggingface, image_folder, table_files
from dpdd.server.publish.croissant import CROISSANT, write_croissant
from dpdd.server.publish.registry_entry import REGISTRY, write_registry_entry
from dpdd.server.report.card_text import release_rows
from dpdd.server.report.verification import REQUESTS


def export(
    run: Path,
    card: Mapping[str, Any],
    out: Path,
    requests: Mapping[str, bytes],
    *,
    with_image_folder: bool = False,
) -> dict[str, str]:
    """Write what may be published of `run`, whose card was checked, into the new folder `out`.

    `requests`, by their ids, are those that the releases answer: with them anybody can recompute what was asked for.
    Returned is what there is, by file or folder. A model has no records, so it comes without the formats of datasets;
    a run that protects nobody is no deployment for the registry.
    """
    if out.exists():
        raise ConfigError(f"{out}: there is something of that name already")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        written = _copy(run, card, partial) | _write_requests(partial, requests)
        written |= _translate(partial, card, with_image_folder)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


def _copy(run: Path, card: Mapping[str, Any], partial: Path) -> dict[str, str]:
    """What `verify` checks, byte for byte."""
    (partial / "store").mkdir(parents=True)
    for source in sorted(
        (run / "dataset").rglob("*")
    ):  # contents alone: a run is its owner's, an export is everybody's
        if source.is_file():
            target = partial / source.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for name in ("card.json", "CARD.md"):
        shutil.copyfile(run / name, partial / name)
    labelled = "images" if "image_shape" in card else "rows"
    digests = [digest for row in release_rows(card) for digest in row["release_sha256"]]
    for digest in digests:
        shutil.copyfile(run / "store" / digest, partial / "store" / digest)
    return {
        f"dataset/{card['file']}": _product(card),
        **({f"dataset/{TEACHER}": f"its teacher, which labels any {labelled}"} if "teacher_sha256" in card else {}),
        **({f"dataset/{POOL}": "hashes and soft labels of public images"} if "pool" in card else {}),
        "CARD.md, card.json": "what it promises, and to whom",
        "store/": f"{len(digests)} signed releases",
    }


def _product(card: Mapping[str, Any]) -> str:
    """What the product's file holds."""
    if "described" in card:
        return "the columns"
    return "the model" if "model" in card else "the dataset"


def _write_requests(partial: Path, requests: Mapping[str, bytes]) -> dict[str, str]:
    """What the releases answer, as files that are named by their ids."""
    if not requests:
        return {}
    (partial / REQUESTS).mkdir()
    for request_id, data in requests.items():
        (partial / REQUESTS / f"{request_id}.request").write_bytes(data)
    return {f"{REQUESTS}/": f"{len(requests)} request{'s' if len(requests) > 1 else ''}, which they answer"}


def _translate(partial: Path, card: Mapping[str, Any], with_image_folder: bool) -> dict[str, str]:
    """The formats of others."""
    written = {}
    if _product(card) == "the dataset":
        dataset = LabelledSet.load(partial / "dataset")
        if with_image_folder and dataset.is_table:
            raise ConfigError("--imagefolder is for images, and this dataset is a table")
        if dataset.is_table:
            table_files.write_table(partial / table_files.FOLDER, dataset, card)
            written[f"{table_files.FOLDER}/"] = "Parquet and CSV with the original columns; schema and dictionary"
        huggingface.write_huggingface(partial / huggingface.FOLDER, dataset, card)
        written[f"{huggingface.FOLDER}/"] = "Parquet and README.md, for `datasets` and the hub"
        write_croissant(partial, dataset, card)
        written[CROISSANT] = "its description for tools (MLCommons Croissant)"
        if with_image_folder:
            image_folder.write_image_folder(partial / image_folder.FOLDER, dataset)
            written[f"{image_folder.FOLDER}/"] = "a PNG file per image, a folder per class"
    elif with_image_folder:
        made = "a model" if "model" in card else "a description"
        raise ConfigError(f"--imagefolder is for images, and this run made {made}")
    if card["protects_people"]:
        write_registry_entry(partial, card)
        written[REGISTRY] = "a draft for the registry of DP deployments; some fields are yours to fill in"
    return written
