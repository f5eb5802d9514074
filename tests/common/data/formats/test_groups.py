"""Which records belong together, as every format says it; and what is said of a record without a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dpdd.common.data import formats
from dpdd.common.data.formats import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords, as_float
from dpdd.common.errors import DataError
from tests.common.own_files import CLASSES, in_every_format, striped, write_folder, write_npz


def by_record(records: LabelledRecords) -> set[tuple[bytes, int, str]]:
    """What is said of each record, in any order: a folder's comes class by class."""
    assert records.groups is not None
    features = np.rint(255.0 * as_float(records.features[:])).astype(np.uint8)
    return {
        (features[row].tobytes(), int(records.labels[row]), str(records.groups[row])) for row in range(len(records))
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_every_format_gives_the_same_records_with_the_same_groups(tmp_path: Path, channels: int) -> None:
    written = striped(23, patients=5, side=4, channels=channels)
    for spec in in_every_format(tmp_path, written):
        read = formats.load(spec, tmp_path)
        assert read.features.shape == written.features.shape, spec.format
        assert by_record(read) == by_record(written), spec.format


def test_a_source_that_names_no_groups_has_none(tmp_path: Path) -> None:
    records = striped(6, patients=2, side=4)
    write_npz(tmp_path / "x.npz", records)
    spec = DataSpec(format="npz", path="x.npz", classes=CLASSES, shape=(1, 4, 4))  # type: ignore[arg-type]
    assert formats.load(spec, tmp_path).groups is None


def test_numbers_are_groups_too(tmp_path: Path) -> None:
    images, labels = np.zeros((3, 4, 4), np.uint8), np.zeros(3, np.int64)
    np.savez(tmp_path / "x.npz", images=images, labels=labels, patients=np.array([[7], [7], [12]]))
    spec = {"format": "npz", "path": "x.npz", "groups_key": "patients", "classes": CLASSES, "shape": (1, 4, 4)}
    groups = formats.load(DataSpec.model_validate(spec), tmp_path).groups
    assert groups is not None and groups.tolist() == ["7", "7", "12"]


def write_nameless(folder: Path, form: str) -> None:
    """Three records, the second without a group; `secret` is what must not be repeated."""
    match form:
        case "npz":
            values = {"images": np.zeros((3, 1, 1), np.uint8), "labels": np.zeros(3, int)}
            np.savez(folder / "x.npz", **values, patients=np.array(["secret", " ", "secret"]))
        case "csv":
            (folder / "x.csv").write_text("label,x,patient\n0,1,secret\n0,1,\n0,1,secret\n")
        case "parquet":
            table = pa.table({"label": [0, 0, 0], "x": [1, 1, 1], "patient": ["secret", None, "secret"]})
            pq.write_table(table, folder / "x.parquet")
        case _:
            records = striped(3, patients=3, side=1)
            write_folder(folder / "x", LabelledRecords(records.features, records.labels, np.array(["a", "?", "b"])))


@pytest.mark.parametrize(
    ("form", "key", "sentence"),
    [
        ("npz", {"groups_key": "patients"}, r"x\.npz: record 2 has no group; every record needs one"),
        ("csv", {"group_column": "patient"}, r"x\.csv: row 2 has no group"),
        ("parquet", {"group_column": "patient"}, r"x\.parquet: row 2 has no group"),
        ("image-folder", {"group_pattern": "^([a-z])_"}, r"rows/\?_0001\.png has no group: group_pattern finds none"),
    ],
)
def test_a_record_without_a_group_is_named_and_not_its_content(
    tmp_path: Path, form: str, key: dict[str, str], sentence: str
) -> None:
    write_nameless(tmp_path, form)
    path = "x" if form == "image-folder" else f"x.{form}"
    spec = DataSpec.model_validate({"format": form, "path": path, "classes": CLASSES, "shape": (1, 1, 1), **key})
    with pytest.raises(DataError, match=sentence) as error:
        formats.load(spec, tmp_path)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (np.zeros(2, int), r"'patients' must hold one group per record.*shape \(2,\) beside \(3, 1, 1\)"),
        (np.zeros((3, 2), int), "one group per record"),
        (np.zeros(3), "as text or integers, but it is float64"),
        (None, "patients"),
    ],
)
def test_an_array_that_is_no_list_of_groups_is_refused(tmp_path: Path, groups: Any, sentence: str) -> None:
    more = {} if groups is None else {"patients": groups}
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 1, 1), np.uint8), labels=np.zeros(3, int), **more)
    spec = {"format": "npz", "path": "x.npz", "groups_key": "patients", "classes": CLASSES, "shape": (1, 1, 1)}
    with pytest.raises(DataError, match=sentence):
        formats.load(DataSpec.model_validate(spec), tmp_path)


def test_a_group_column_that_is_not_there_or_is_no_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0], "x": [1], "patient": [0.5]}), tmp_path / "x.parquet")
    spec: dict[str, Any] = {"format": "parquet", "path": "x.parquet", "classes": CLASSES, "shape": (1, 1, 1)}
    with pytest.raises(DataError, match="no column 'owner' \\(group_column\\)"):
        formats.load(DataSpec.model_validate({**spec, "group_column": "owner"}), tmp_path)
    with pytest.raises(DataError, match="group column 'patient' must be text or integers, not double"):
        formats.load(DataSpec.model_validate({**spec, "group_column": "patient"}), tmp_path)
    with pytest.raises(DataError, match="has 2 columns beside 'label', but"):
        formats.load(DataSpec.model_validate(spec), tmp_path)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"group_column": "g"}, "group_column is for format 'csv' or 'parquet' or 'sql', not 'npz'"),
        ({"format": "csv", "groups_key": "g"}, "groups_key is for format 'npz'"),
        ({"format": "csv", "group_pattern": "(a)"}, "group_pattern is for format 'image-folder'"),
        ({"format": "csv", "group_column": "label"}, "label_column and group_column must differ"),
        ({"format": "csv", "group_column": "i", "image_column": "i"}, "image_column and group_column must differ"),
        ({"format": "image-folder", "group_pattern": "a+"}, "must have a group in brackets"),
        ({"format": "image-folder", "group_pattern": "(a"}, "no regular expression"),
    ],
)
def test_declarations_of_groups_that_cannot_be(change: dict[str, object], fragment: str) -> None:
    settings = {"format": "npz", "path": "x", "classes": CLASSES, "shape": (1, 4, 5), **change}
    with pytest.raises(ValidationError) as caught:
        DataSpec.model_validate(settings)
    assert fragment in str(caught.value)
