"""Finished runs with any product: real silos' signed releases in a store, and the card that a run would write."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpdd.common.data.table.columns import Categorical, Date, Numeric, Ordinal
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.models import backbone as backbones
from dpdd.common.models.table_logistic import weights_shape
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import Product
from dpdd.common.synthesis.table_teacher import TableTeacher
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.report.card import write_card
from dpdd.server.run.scenario import Scenario
from dpdd.server.run.store import Store
from tests.client.silos import make_request
from tests.server.releases import signed_releases

SCORES: Mapping[str, Any] = {
    "accuracy": {
        "convnet": {"mean": 0.8, "std": 0.01, "runs": [0.79, 0.81], "labels": "soft"},
        "teacher": {"mean": 0.75, "std": 0.0, "runs": [0.75]},
    },
    "metrics": {
        "macro-roc-auc": {
            "convnet": {"mean": 0.9, "std": 0.02, "runs": [0.88, 0.92]},
            "teacher": {"mean": 0.85, "std": 0.0, "runs": [0.85]},
        }
    },
}
CLASSES = ("coat", "shoe / boot")


def images(channels: int = 1, *, soft: bool = True, teacher: bool = False, side: int = 28) -> LabelledSet:
    """Four images of noise in two classes; a teacher of random weights on `scatter28`."""
    generator = np.random.default_rng(channels)
    pixels = generator.integers(0, 256, (4, channels, side, side), dtype=np.uint8)
    chances = generator.dirichlet(np.ones(2), 4).astype(np.float32) if soft else None
    learnt = None
    if teacher:
        embedding = ImageEmbedding(features=16, side=4, channels=channels)
        weights = generator.normal(size=(2, embedding.dimensions)).astype(np.float32)
        learnt = Teacher(weights, "scatter28", backbones.load("scatter28").card.sha256, embedding)
    return LabelledSet(pixels, np.array([0, 0, 1, 1]), CLASSES, chances, learnt)


def table(*, soft: bool = False, columns: tuple[str, ...] = ("age", "größe"), teacher: bool = False) -> LabelledSet:
    """Five rows of a column of every type, with some cells missing; a teacher of random weights, and its labels."""
    age, size = columns
    schema = TableSchema(
        label="kind",
        columns=(
            Numeric(name=age, low=0, high=100, bins=10, integer=True, missing=True),
            Numeric(name=size, low=0.5, high=2.5, bins=7),
            Categorical(name="kind", categories=CLASSES),
            Date(name="day", first=datetime.date(2001, 1, 1), last=datetime.date(2024, 12, 31), missing=True),
            Ordinal(name="pain", categories=("none", "some", "much")),
        ),
    )
    rows = np.array([[0, 0, 16, 2], [10, 6, 0, 0], [3, 2, 7, 1], [9, 5, 15, 1], [4, 4, 4, 0]], np.float32)
    chances, learnt = np.full((5, 2), 0.5, np.float32) if soft else None, None
    if teacher:
        weights = np.random.default_rng(5).normal(size=weights_shape(schema)).astype(np.float32)
        learnt = TableTeacher(weights, schema)
        chances = learnt.probabilities(rows).numpy()
    return LabelledSet(rows, np.array([0, 1, 1, 1, 0]), CLASSES, chances, learnt, schema)


def scenario(**more: Any) -> Scenario:
    """One that a finished run might have had."""
    about = {"name": "autumn", "data": {"dataset": "fashion-slice"}, "method": {"name": "dp-merf"}}
    return Scenario.model_validate({**about, **more})


def finished_run(
    folder: Path, product: Product, *, scores: Mapping[str, Any] = SCORES, missing: Mapping[str, str] = {}, **more: Any
) -> dict[str, Any]:
    """Leave in `folder` what a run leaves behind, and give the card; `more` are keys of the scenario."""
    request = make_request(classes=product.classes)
    signed, roster = signed_releases(folder / "silos", ("north", "south"), request)
    store = Store(folder / "store")
    store.add_request(request.id, request.encode())
    releases = [store.add(data, request.id, roster) for data in signed]
    digest = product.save(folder / "dataset")
    write_card(folder, scenario(**more), product, digest, releases, store, roster, missing, scores)
    store.close()
    card: dict[str, Any] = json.loads((folder / "card.json").read_text())
    return card
