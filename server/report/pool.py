"""The public pool of a run: what the card, `metrics.json` and a person are told of it, and how it is checked."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.synthesis.product_files import POOL, file_sha256
from dpdd.common.synthesis.public_pool import STEPS, PoolLabels

if TYPE_CHECKING:
    from dpdd.common.synthesis.product import Product
    from dpdd.server.pool.section import PoolSection

_SETS = {
    "selected": "The images of the small set are copies of images of the pool: its licence is theirs, too.",
    "distilled": "The images of the small set were distilled from the labelled pool: its licence may bind them, too.",
    "method": "The images of the small set were made without it.",
}
TOLERANCE = 2
"""Labels are recomputed to so many steps: another machine adds up in another order."""


def pool_facts(section: PoolSection | None, product: Product, folder: Path) -> dict[str, Any]:
    """What `metrics.json` and the card say of the pool, when the dataset is saved in `folder`; nothing without one."""
    from dpdd.common.synthesis.labelled_set import LabelledSet

    if section is None or not isinstance(product, LabelledSet) or product.pool is None:
        return {}
    facts = product.pool.labels.facts
    return {
        "pool": {
            "name": facts.name,
            "licence": facts.licence,
            "images": len(product.pool),
            "choice": section.choice,
            "set": section.set,
            "file": POOL,
            "sha256": file_sha256(folder / POOL),
        }
    }


def pool_line(pool: Mapping[str, Any]) -> str:
    """What a finished run prints of it."""
    return f"public pool: {pool['images']} images of {pool['name']}, named by hash with soft labels in {pool['file']}"


def pool_text(card: Mapping[str, Any]) -> str:
    """What `CARD.md` says of it; empty where there is none."""
    pool = card.get("pool")
    if pool is None:
        return ""
    which = "those that the classifier is surest of" if pool["choice"] == "surest" else "drawn by the public seed"
    paragraphs = [
        f"`dataset/{pool['file']}` names {pool['images']} public images of {pool['name']} ({which}) by the SHA-256 of "
        "their pixels, with a soft label each from the classifier in the releases. This file does not hold the images: "
        f"`dpdd-server pool` joins it with a copy of them. {_SETS[pool['set']]}",
        f"Licence of the pool, as the coordinator states it: {pool['licence']}",
        "Privacy: labels and the choice of images are post-processing of the releases and of public data, so the "
        "guarantee above holds for them as it stands, whatever the pool is. Nobody checked whether the pool overlaps a "
        "silo's data. Where it does, those images were public before, and stay as they were published; that this "
        "dataset names one says no more about whether a silo has it than that guarantee allows.",
    ]
    return "\n\n".join(textwrap.fill(each, width=100, break_on_hyphens=False) for each in paragraphs)


def check_pool_file(folder: Path, card: Mapping[str, Any]) -> None:
    """IntegrityError, or DataError, unless the run in `folder` names the pool that its card names."""
    path, pool = folder / "dataset" / POOL, card.get("pool")
    if not path.exists():
        if pool is not None:
            raise DataError(f"{path}: the labels of the public pool that the card names are missing")
        return
    if pool is None:
        raise IntegrityError(f"{path}: the card names no public pool; remove this file")
    if not isinstance(pool, Mapping) or file_sha256(path) != pool.get("sha256"):
        raise IntegrityError(f"{path}: these are not the labels of the card's public pool")
    labels = PoolLabels.load(path.parent)
    facts = labels.facts
    said = (pool.get("name"), pool.get("licence"), pool.get("images"), card.get("classes"), card.get("image_shape"))
    if said != (facts.name, facts.licence, len(labels), list(facts.classes), list(facts.shape)):
        raise IntegrityError(f"{path}: the card says something else of the public pool than this file")


def relabelled(folder: Path, images: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """In words: how many labels of the pool the dataset's own teacher gives again; IntegrityError for another label.

    `images` are a copy of the pool, or a part of it.
    """
    from dpdd.common.synthesis.labelled_set import LabelledSet

    joined = PoolLabels.load(folder / "dataset").join(images)
    if len(joined.pool) == 0:
        raise DataError("none of these images is in the pool that the dataset names")
    teacher = LabelledSet.load(folder / "dataset").teacher
    if teacher is None:
        raise DataError(f"{folder / 'dataset'}: there is no teacher that the pool's labels could be of")
    again = teacher.probabilities(joined.pool.images).numpy() * STEPS
    off = np.abs(again - joined.pool.labels.steps).max(axis=1)
    if (wrong := int((off > TOLERANCE).sum())) > 0:
        raise IntegrityError(f"{wrong} labels of the public pool are not those of the dataset's teacher")
    missing = f", {joined.missing} are not in these images" if joined.missing else ""
    return f"{len(joined.pool)} labels of the public pool are those of the dataset's teacher{missing}"
