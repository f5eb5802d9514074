"""The same made-up records, written in every format that there is."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dpdd.common.data.formats import DataSpec
from dpdd.common.files import idx

CLASSES = ("cat", "dog", "emu")


def sample(channels: int = 1, count: int = 7, height: int = 4, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Random images with rising labels; the class "emu" stays empty."""
    images = np.random.default_rng(0).integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return images, np.array([0] * (count // 2) + [1] * (count - count // 2), dtype=np.int64)


def picture(image: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(out, kind)
    return out.getvalue()


def spec(form: str, path: str, shape: tuple[int, ...] = (1, 4, 5), **more: Any) -> DataSpec:
    return DataSpec(format=form, path=path, classes=CLASSES, shape=shape, **more)  # type: ignore[arg-type]


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_all(base: Path, images: np.ndarray, labels: np.ndarray) -> dict[str, DataSpec]:
    """Write the records in every way there is, and return a spec for each."""
    shape = images.shape[1:]
    names = [CLASSES[label] for label in labels]
    flat = images.reshape(len(images), int(np.prod(shape)))
    header = [f"pixel{number}" for number in range(flat.shape[1])]
    specs: dict[str, DataSpec] = {}
    for kind in ("png", "bmp"):
        (base / kind / "emu").mkdir(parents=True)
        for row, (image, name) in enumerate(zip(images, names, strict=True)):
            (base / kind / name).mkdir(parents=True, exist_ok=True)
            (base / kind / name / f"{row:04}.{kind}").write_bytes(picture(image, kind.upper()))
        specs[f"folder of {kind}"] = spec("image-folder", kind, shape)

    write_csv(base / "pixels.csv", ["label", *header], [[n, *r] for n, r in zip(names, flat.tolist(), strict=True)])
    specs["csv of pixels"] = spec("csv", "pixels.csv", shape)
    files = [f"png/{name}/{row:04}.png" for row, name in enumerate(names)]
    write_csv(base / "files.csv", ["id", "file", "y"], [[7, f, la] for f, la in zip(files, labels, strict=True)])
    specs["csv of files"] = spec("csv", "files.csv", shape, image_column="file", label_column="y")

    columns = {"label": labels, **dict(zip(header, flat.T, strict=True))}
    pq.write_table(pa.table(columns), base / "pixels.parquet")
    specs["parquet of pixels"] = spec("parquet", "pixels.parquet", shape)
    encoded = [picture(image) for image in images]
    dictionary = pa.array(names, pa.string()).dictionary_encode()
    pq.write_table(pa.table({"image": pa.array(encoded, pa.binary()), "label": dictionary}), base / "bytes.parquet")
    specs["parquet of bytes"] = spec("parquet", "bytes.parquet", shape, image_column="image")
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    structs = pa.array([{"bytes": data, "path": None} for data in encoded], struct)
    pq.write_table(pa.table({"image": structs, "label": labels}), base / "structs.parquet")
    specs["parquet of structs"] = spec("parquet", "structs.parquet", shape, image_column="image")

    np.savez(base / "first.npz", images=images, labels=labels)
    specs["npz, channels first"] = spec("npz", "first.npz", shape)
    np.savez_compressed(base / "last.npz", x=images.transpose(0, 2, 3, 1), y=np.array(names, dtype=str)[:, None])
    specs["npz, channels last"] = spec("npz", "last.npz", shape, images_key="x", labels_key="y")
    np.savez(base / "float.npz", images=(images / 255).astype(np.float64), labels=labels)
    specs["npz of floats"] = spec("npz", "float.npz", shape, value_range=(0, 1))
    if shape[0] == 1:
        np.savez(base / "flat.npz", images=images[:, 0], labels=np.array(names, dtype="S"))
        specs["npz without channels"] = spec("npz", "flat.npz", shape)
        for suffix in ("", ".gz"):
            idx.write(base / f"images{suffix}", images[:, 0])
            idx.write(base / f"labels{suffix}", labels.astype(np.uint8))
            specs[f"idx{suffix}"] = spec("idx", f"images{suffix}", shape, labels=f"labels{suffix}")
    return specs


def table_files(base: Path, values: np.ndarray, labels: np.ndarray) -> list[DataSpec]:
    header = [f"f{number}" for number in range(values.shape[1])]
    rows = [[*row, CLASSES[label]] for row, label in zip(values.tolist(), labels, strict=True)]
    write_csv(base / "t.csv", [*header, "label"], rows)
    pq.write_table(pa.table({**dict(zip(header, values.T, strict=True)), "label": labels}), base / "t.parquet")
    np.savez(base / "t.npz", images=values, labels=labels)
    return [spec(form, f"t.{form}", (values.shape[1],)) for form in ("csv", "parquet", "npz")]
