"""Writes the same records in every format a silo may have."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dpdd.client.records import DataSpec
from dpdd.common import idx

CLASSES = ("cat", "dog", "emu")


def sample(channels: int = 1, count: int = 7, height: int = 4, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Random images with rising labels; the class "emu" stays empty."""
    images = np.random.default_rng(0).integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return images, np.array([0] * (count // 2) + [1] * (count - count // 2))


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
    flat = images.reshape(len(images), -1)
    header = [f"pixel{number}" for number in range(flat.shape[1])]
    made: dict[str, DataSpec] = {}
    for kind in ("png", "bmp"):
        for row, (image, name) in enumerate(zip(images, names, strict=True)):
            (base / kind / name).mkdir(parents=True, exist_ok=True)
            (base / kind / name / f"{row:04}.{kind}").write_bytes(picture(image, kind.upper()))
        made[f"folder of {kind}"] = spec("image-folder", kind, shape)
    (base / "png" / "emu").mkdir()

    write_csv(base / "pixels.csv", ["label", *header], [[n, *r] for n, r in zip(names, flat.tolist(), strict=True)])
    made["csv of pixels"] = spec("csv", "pixels.csv", shape)
    files = [f"png/{name}/{row:04}.png" for row, name in enumerate(names)]
    write_csv(base / "files.csv", ["id", "file", "y"], [[7, f, la] for f, la in zip(files, labels, strict=True)])
    made["csv of files"] = spec("csv", "files.csv", shape, image_column="file", label_column="y")

    columns = {"label": labels, **dict(zip(header, flat.T, strict=True))}
    pq.write_table(pa.table(columns), base / "pixels.parquet")
    made["parquet of pixels"] = spec("parquet", "pixels.parquet", shape)
    encoded = [picture(image) for image in images]
    dictionary = pa.array(names).dictionary_encode()
    pq.write_table(pa.table({"image": encoded, "label": dictionary}), base / "bytes.parquet")
    made["parquet of bytes"] = spec("parquet", "bytes.parquet", shape, image_column="image")
    structs = [{"bytes": data, "path": None} for data in encoded]
    pq.write_table(pa.table({"image": structs, "label": labels}), base / "structs.parquet")
    made["parquet of structs"] = spec("parquet", "structs.parquet", shape, image_column="image")

    np.savez(base / "first.npz", images=images, labels=labels)
    made["npz, channels first"] = spec("npz", "first.npz", shape)
    np.savez_compressed(base / "last.npz", x=images.transpose(0, 2, 3, 1), y=np.array(names)[:, None])
    made["npz, channels last"] = spec("npz", "last.npz", shape, images_key="x", labels_key="y")
    np.savez(base / "float.npz", images=(images / 255).astype(np.float64), labels=labels)
    made["npz of floats"] = spec("npz", "float.npz", shape, value_range=(0, 1))
    if shape[0] == 1:
        np.savez(base / "flat.npz", images=images[:, 0], labels=np.array(names, dtype="S"))
        made["npz without channels"] = spec("npz", "flat.npz", shape)
        for suffix in ("", ".gz"):
            idx.write(base / f"images{suffix}", images[:, 0])
            idx.write(base / f"labels{suffix}", labels.astype(np.uint8))
            made[f"idx{suffix}"] = spec("idx", f"images{suffix}", shape, labels=f"labels{suffix}")
    return made
