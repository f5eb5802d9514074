"""Own data as people have it: small striped images of three classes from a few patients, in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dpdd.common.data.formats import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords

CLASSES = ("flat", "rows", "columns")


def striped(count: int, patients: int, side: int = 12, channels: int = 1, seed: int = 0) -> LabelledRecords:
    """Images with a class each that can be seen, and patients with unequal numbers of them."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count, dtype=np.int64) % len(CLASSES)
    images = generator.integers(0, 60, (count, channels, side, side), dtype=np.uint8)
    images[labels == 1, :, ::2] += 150
    images[labels == 2, :, :, ::2] += 150
    owner = np.minimum((patients * generator.random(count) ** 1.5).astype(np.int64), patients - 1)
    owner[:patients] = np.arange(patients)
    return LabelledRecords(images, labels, np.array([f"p{number:02d}" for number in owner]))


def write_npz(path: Path, records: LabelledRecords, names: bool = False) -> Path:
    labels = np.array(CLASSES)[records.labels] if names else records.labels
    np.savez(path, images=records.features, labels=labels, patients=records.groups)
    return path


def write_folder(folder: Path, records: LabelledRecords) -> Path:
    """Files are called after the patient and a number, in the folder of their class."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    assert records.groups is not None
    for number, (pixels, label, group) in enumerate(zip(records.features, records.labels, records.groups, strict=True)):
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        picture.save(folder / CLASSES[label] / f"{group}_{number:04d}.png")
    return folder


def in_every_format(folder: Path, records: LabelledRecords) -> list[DataSpec]:
    """The same records as NPZ, CSV, Parquet and a folder, each with its patients."""
    assert records.groups is not None
    write_npz(folder / "all.npz", records)
    write_folder(folder / "all", records)
    columns = {f"x{i}": column for i, column in enumerate(records.features.reshape(len(records), -1).T)}
    table = pa.table({"patient": records.groups.tolist(), **columns, "label": records.labels})
    pq.write_table(table, folder / "all.parquet", row_group_size=7)
    lines = [",".join(table.column_names), *(",".join(map(str, row.values())) for row in table.to_pylist())]
    (folder / "all.csv").write_text("\n".join(lines) + "\n")
    schema = {"classes": CLASSES, "shape": records.features.shape[1:]}
    sources = [
        {"format": "npz", "path": "all.npz", "groups_key": "patients"},
        {"format": "csv", "path": "all.csv", "group_column": "patient"},
        {"format": "parquet", "path": "all.parquet", "group_column": "patient"},
        {"format": "image-folder", "path": "all", "group_pattern": "^(p[0-9]+)_"},
    ]
    return [DataSpec.model_validate({**schema, **source}) for source in sources]
