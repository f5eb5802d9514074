"""Labelled sets of images and of rows: written, read, handed on, and refused where they are neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.table.encoding import encode_block
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import DataError
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import DATASET, file_sha256

COLUMNS, CLASSES = ("age", "height", "größe"), ("no", "yes")


def schema_of(*names: str) -> TableSchema:
    numbers = [Numeric(name=name, low=0, high=20, bins=10, missing=True) for name in names]
    return TableSchema(label="sick", columns=(Categorical(name="sick", categories=CLASSES), *numbers))


SCHEMA = schema_of(*COLUMNS)


def table(count: int = 6) -> LabelledSet:
    rows = np.random.default_rng(1).integers(0, 11, size=(count, 3)).astype(np.float32)
    return LabelledSet(rows, np.arange(count) % 2, CLASSES, schema=SCHEMA)


def images(channels: int = 1) -> LabelledSet:
    pixels = np.random.default_rng(2).integers(0, 256, (6, channels, 5, 7), dtype=np.uint8)
    return LabelledSet(pixels, np.arange(6) % 2, CLASSES)


def test_a_table_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    dataset = table()
    digest = dataset.save(tmp_path / "new" / "folder")
    loaded = LabelledSet.load(tmp_path / "new" / "folder")
    np.testing.assert_array_equal(loaded.rows, dataset.rows)
    np.testing.assert_array_equal(loaded.labels, dataset.labels)
    assert loaded.rows.dtype == np.float32 and loaded.labels.dtype == np.int64 and loaded.is_table
    assert (loaded.columns, loaded.classes, loaded.soft, loaded.teacher) == (COLUMNS, CLASSES, None, None)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [DATASET]  # and no preview
    assert digest == file_sha256(tmp_path / "new" / "folder" / DATASET)
    assert loaded.save(tmp_path / "again") == digest


def test_soft_labels_of_a_table_travel_too(tmp_path: Path) -> None:
    soft = np.full((6, 2), 0.5, np.float32)
    LabelledSet(table().rows, table().labels, CLASSES, soft, schema=SCHEMA).save(tmp_path)
    loaded = LabelledSet.load(tmp_path).soft
    assert loaded is not None
    np.testing.assert_array_equal(loaded, soft)


def test_images_are_the_same_after_a_round_trip_and_have_a_preview(tmp_path: Path) -> None:
    dataset = images(3)
    dataset.save(tmp_path)
    loaded = LabelledSet.load(tmp_path)
    np.testing.assert_array_equal(loaded.images, dataset.images)
    assert not loaded.is_table and loaded.columns == () and (tmp_path / "preview.png").exists()
    with safe_open(tmp_path / DATASET, framework="numpy") as file:  # as readers of earlier versions expect it
        assert set(file.keys()) == {"images", "labels"}
        assert json.loads(file.metadata()["dpdd"]) == {"classes": list(CLASSES), "format": "dpdd dataset v1"}


def test_images_are_no_rows_and_rows_no_images() -> None:
    with pytest.raises(DataError, match="is a table, and has no images"):
        _ = table().images
    with pytest.raises(DataError, match="is of images, and has no rows"):
        _ = images().rows
    with pytest.raises(DataError, match="has no images"):
        table().preview()


@pytest.mark.parametrize(
    ("records", "columns"),
    [
        (np.zeros((6, 3), np.float32), ("a", "b")),
        (np.zeros((6, 3), np.float32), ("a", "b", "c", "d")),
        (np.zeros((6, 3), np.float32), ()),
        (np.zeros(6, np.float32), ("a",)),
        (np.zeros((6, 3, 1), np.float32), ("a", "b", "c")),
        (np.zeros((6, 3), np.float64), ("a", "b", "c")),
        (np.zeros((6, 3), np.int64), ("a", "b", "c")),
        (np.zeros((6, 3), np.uint8), ("a", "b", "c")),
        (np.zeros((6, 1, 5, 5), np.uint8), ("a",)),
        (np.zeros((6, 5, 5), np.uint8), ()),
        (np.zeros((6, 1, 5, 5), np.float32), ()),
    ],
    ids=lambda value: f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"{len(value)} columns",
)
def test_records_that_are_neither_images_nor_rows_are_refused(
    tmp_path: Path, records: np.ndarray, columns: tuple[str, ...]
) -> None:
    with pytest.raises(DataError, match="neither images"):
        LabelledSet(records, np.arange(6) % 2, CLASSES, schema=schema_of(*columns) if columns else None)
    name = "images" if records.ndim > 3 or not columns else "rows"
    about = {"classes": CLASSES, "format": "dpdd dataset v1"}
    if columns:
        about["schema"] = schema_of(*columns).model_dump(mode="json")
    save_file({name: records, "labels": np.arange(6) % 2}, tmp_path / DATASET, metadata={"dpdd": json.dumps(about)})
    with pytest.raises(DataError):
        LabelledSet.load(tmp_path)


def without(name: str) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {"rows": table().rows, "labels": table().labels}
    return {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("arrays", "about"),
    [
        (without("rows"), {}),
        (without("labels"), {}),
        (without(""), None),
        (without(""), {"schema": None}),
        (without(""), {"schema": schema_of("a", "b").model_dump(mode="json")}),
        (without(""), {"classes": 3}),
        (without(""), {"classes": ["no", "maybe"]}),
        ({**without(""), "rows": table().rows + 0.5}, {}),
        ({**without(""), "rows": table().rows + 11}, {}),
        ({**without(""), "rows": np.full((6, 3), np.nan, np.float32)}, {}),
    ],
    ids=[
        *("no rows", "no labels", "no header", "no schema", "few columns", "a number of classes", "other classes"),
        *("half a code", "no such code", "no number"),
    ],
)
def test_files_that_lack_something_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], about: dict[str, Any] | None
) -> None:
    declared = {"classes": CLASSES, "schema": SCHEMA.model_dump(mode="json")}
    header = None if about is None else {"dpdd": json.dumps(declared | about)}
    save_file(arrays, tmp_path / DATASET, metadata=header)
    with pytest.raises(DataError):
        LabelledSet.load(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    table().save(tmp_path)
    path = tmp_path / DATASET
    data = path.read_bytes()
    path.write_bytes({"missing": b"", "empty": b"", "cut": data[:-1], "garbage": b"\xff" * 100}[damage])
    if damage == "missing":
        path.unlink()
    with pytest.raises(DataError, match="there is no dataset here" if damage == "missing" else "not a dpdd dataset"):
        LabelledSet.load(tmp_path)


def test_facts_for_the_card() -> None:
    assert table().facts == {"rows": 6, "columns": list(COLUMNS), "label": "sick", "file": DATASET}
    assert images(3).facts == {"images": 6, "image_shape": [3, 5, 7], "file": DATASET}


def test_a_table_for_torch_has_its_rows_as_they_are() -> None:
    dataset = table()
    rows, labels = dataset.as_torch().tensors
    np.testing.assert_array_equal(rows.numpy(), dataset.rows)
    assert rows.dtype == torch.float32 and labels.tolist() == dataset.labels.tolist()
    rows.zero_()
    assert dataset.rows.any()  # a copy
    pixels, _ = images().as_torch().tensors
    np.testing.assert_allclose(pixels.numpy() * 255.0, images().images, atol=1e-4)


def test_a_table_for_hugging_face_has_its_own_columns() -> None:
    pytest.importorskip("datasets")
    dataset = table()
    shared = dataset.as_huggingface()
    assert shared.column_names == ["sick", *COLUMNS]
    for name in COLUMNS:
        assert shared.features[name].dtype == "float64"
    assert list(shared["sick"]) == [CLASSES[label] for label in dataset.labels]


def test_a_table_is_decoded_by_a_public_seed_or_to_the_middle_of_bins() -> None:
    dataset = table(60)
    middle, drawn, again, other = (dataset.table(seed) for seed in (None, 3, 3, 4))
    assert list(middle) == ["sick", *COLUMNS]
    assert set(middle["age"].compressed().tolist()) <= {1.0 + 2.0 * code for code in range(10)}
    assert drawn["age"].tolist() == again["age"].tolist() != other["age"].tolist()
    assert (encode_block(SCHEMA, drawn)[:, 1:] == dataset.rows).all()
    with pytest.raises(DataError, match="is of images"):
        images().table()


@pytest.mark.parametrize("channels", [1, 3])
def test_images_for_hugging_face_are_pictures(channels: int) -> None:
    pytest.importorskip("datasets")
    dataset = images(channels)
    shared = dataset.as_huggingface()
    picture = np.atleast_3d(np.asarray(shared[4]["image"])).transpose(2, 0, 1)
    np.testing.assert_array_equal(picture, dataset.images[4])
    assert list(shared["label"]) == dataset.labels.tolist()


def test_saving_twice_gives_the_same_file(tmp_path: Path) -> None:
    dataset = LabelledSet(np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]), ("a", "b"))
    assert len({dataset.save(tmp_path / str(number)) for number in range(8)}) == 1
    assert len({table().save(tmp_path / f"table {number}") for number in range(8)}) == 1


# Soft labels


def with_soft(dataset: LabelledSet) -> LabelledSet:
    soft = np.random.default_rng(3).dirichlet(np.ones(2), len(dataset)).astype(np.float32)
    return LabelledSet(dataset.records, dataset.labels, CLASSES, soft, schema=dataset.schema)


@pytest.mark.parametrize("plain", [images(), table()], ids=["images", "table"])
def test_soft_labels_for_torch_on_request(plain: LabelledSet) -> None:
    dataset = with_soft(plain)
    assert dataset.soft is not None
    hard, soft, both = (dataset.as_torch(labels=labels).tensors for labels in ("hard", "soft", "both"))
    assert (len(hard), len(soft), len(both)) == (2, 2, 3)
    assert torch.equal(hard[0], soft[0]) and torch.equal(hard[0], both[0]) and torch.equal(hard[1], both[1])
    assert torch.equal(soft[1], both[2]) and soft[1].dtype == torch.float32
    np.testing.assert_array_equal(soft[1].numpy(), dataset.soft)
    soft[1].zero_()
    assert dataset.soft.any()  # a copy
    assert torch.equal(dataset.as_torch().tensors[1], hard[1])
    for labels in ("soft", "both"):
        with pytest.raises(DataError, match="no soft labels"):
            plain.as_torch(labels=labels)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'hard', 'soft' or 'both'"):
        dataset.as_torch(labels="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("plain", [images(3), table()], ids=["images", "table"])
def test_soft_labels_for_hugging_face(plain: LabelledSet) -> None:
    dataset = with_soft(plain)
    assert dataset.soft is not None
    shared = dataset.as_huggingface()
    own = ["image", "label"] if dataset.schema is None else [*dataset.schema.names]
    assert shared.column_names == [*own, "soft_label"]
    np.testing.assert_array_equal(np.array(shared["soft_label"], np.float32), dataset.soft)
    assert shared.features["soft_label"].feature.dtype == "float32"
    assert "soft_label" not in plain.as_huggingface().column_names


def test_a_column_that_is_called_like_soft_labels_is_refused() -> None:
    named = schema_of("a", "soft_label", "c")
    soft = np.full((6, 2), 0.5, np.float32)
    with pytest.raises(DataError, match="a column 'soft_label'"):
        LabelledSet(table().rows, table().labels, CLASSES, soft, schema=named).as_huggingface()
    assert (
        "soft_label" in LabelledSet(table().rows, table().labels, CLASSES, schema=named).as_huggingface().column_names
    )


def test_a_folder_may_be_named_by_a_string(tmp_path: Path) -> None:
    images().save(tmp_path)
    np.testing.assert_array_equal(LabelledSet.load(str(tmp_path)).images, images().images)
