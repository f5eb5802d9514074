"""`croissant.json`, checked and read by MLCommons' own `mlcroissant`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlcroissant
import numpy as np
import pytest

from dpdd.common.synthesis.arrow_table import PUBLIC_SEED
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.cli import main as server
from dpdd.server.publish.croissant import CLASSES as CLASS_RECORDS
from dpdd.server.publish.croissant import CROISSANT, RECORDS
from tests.server.finished_runs import CLASSES, finished_run, images, table


def read(folder: Path, product: LabelledSet, **more: Any) -> mlcroissant.Dataset:
    finished_run(folder / "run", product, **more)
    assert server(["export", str(folder / "run"), "--out", str(folder / "out")]) == 0
    return mlcroissant.Dataset(jsonld=str(folder / "out" / CROISSANT))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_read_bit_by_bit(tmp_path: Path, channels: int) -> None:
    product = images(channels)
    dataset = read(tmp_path, product)
    assert not dataset.metadata.ctx.issues.errors
    records = list(dataset.records(RECORDS))
    pixels = np.stack([np.asarray(record[f"{RECORDS}/image"]).reshape(28, 28, channels) for record in records])
    np.testing.assert_array_equal(pixels.transpose(0, 3, 1, 2), product.images)
    assert [record[f"{RECORDS}/label"] for record in records] == product.labels.tolist()
    soft = np.array([record[f"{RECORDS}/soft_label"] for record in records], np.float32)
    np.testing.assert_array_equal(soft, product.soft)
    (fields,) = [each.fields for each in dataset.metadata.record_sets if each.id == RECORDS]
    assert {field.name: field.repeated for field in fields} == {"image": None, "label": None, "soft_label": True}


def test_rows_are_read_with_their_own_columns(tmp_path: Path) -> None:
    product = table()
    records = list(read(tmp_path, product).records(RECORDS))
    decoded = product.table(PUBLIC_SEED)
    sizes = [record[f"{RECORDS}/größe"] for record in records]
    np.testing.assert_allclose(sizes, decoded["größe"], rtol=1e-5)
    assert [record[f"{RECORDS}/kind"].decode() for record in records] == decoded["kind"].tolist()
    assert str(records[0][f"{RECORDS}/day"]) in ("NaT", "None")
    assert [str(record[f"{RECORDS}/day"])[:10] for record in records[1:]] == [str(day) for day in decoded["day"][1:]]
    assert f"{RECORDS}/soft_label" not in records[0]


def test_what_labels_stand_for(tmp_path: Path) -> None:
    records = list(read(tmp_path, images()).records(CLASS_RECORDS))
    names = {record[f"{CLASS_RECORDS}/label"]: record[f"{CLASS_RECORDS}/name"] for record in records}
    assert names == dict(enumerate(CLASSES))


def test_it_says_what_is_promised_and_the_licence(tmp_path: Path) -> None:
    metadata = read(tmp_path, images(), licence="CC-BY-4.0").metadata
    assert metadata.license == ["https://spdx.org/licenses/CC-BY-4.0.html"]
    assert metadata.name == "autumn" and "add or remove one" in str(metadata.personal_sensitive_information)
    assert {file.sha256 for file in metadata.file_objects} >= {
        json.loads((tmp_path / "run" / "card.json").read_text())["dataset_sha256"]
    }


def test_another_parquet_file_is_noticed_by_its_hash(tmp_path: Path) -> None:
    dataset = read(tmp_path, images())
    stated = {file.content_url: file.sha256 for file in dataset.metadata.file_objects}
    from dpdd.common.synthesis.product_files import file_sha256

    assert stated == {path: file_sha256(tmp_path / "out" / path) for path in stated} and len(stated) == 2
