"""The product: a small labelled dataset that anyone may train on, with no further privacy cost.

On disk it is `dataset.safetensors` (records, labels; class names in the header), for images a `preview.png` and, where
the releases contain a classifier, `teacher.safetensors`. docs/using-the-dataset.md shows how to train on it.

>>> import numpy as np, tempfile, pathlib
>>> pets = LabelledSet(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 0, 1, 1]), ("cat", "dog"))
>>> with tempfile.TemporaryDirectory() as folder:
...     digest = pets.save(pathlib.Path(folder))
...     LabelledSet.load(pathlib.Path(folder)).classes
('cat', 'dog')
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

from dpdd.common.data.table.decoding import Decoded, decode
from dpdd.common.data.table.rows import codes_of, odd_rows
from dpdd.common.data.table.schema import TableSchema, table_schema
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.product_files import DATASET, POOL, TEACHER, UNREADABLE, file_sha256

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

    from dpdd.common.synthesis.linear_teacher import LinearTeacher
    from dpdd.common.synthesis.public_pool import LabelledPool


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Records, integer labels and class names; soft labels (N, classes) and a teacher, if any.

    Records are images (uint8; N, C, H, W), or rows of a table (float32; N, D): the codes of its columns without the
    label, in the order of its `schema`; `table` decodes them. `priors` are the shares of the classes that soft labels
    and teacher assume, where some were declared; the set itself has about as many records of every class.

    `pool` are public images with the teacher's labels, where the run used some. It is saved without the images
    (`dpdd.common.synthesis.public_pool`), so a set that was loaded has none: `PoolLabels.load(folder).join(images)`.
    """

    records: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    soft: NDArray[np.float32] | None = None
    teacher: LinearTeacher | None = None
    schema: TableSchema | None = None
    priors: tuple[float, ...] = ()
    pool: LabelledPool | None = None

    def __post_init__(self) -> None:
        form = (str(self.records.dtype), self.records.ndim)
        is_image = self.schema is None and form == ("uint8", 4)
        is_table = self.schema is not None and form == ("float32", 2) and self.records.shape[1:] == self.schema.shape
        if not (is_image or is_table):
            raise DataError(
                f"records of type {self.records.dtype} and shape {self.records.shape[1:]} with {len(self.columns)} "
                "columns are neither images (uint8; C, H, W) nor rows of a table (float32, a code per column)"
            )
        if self.schema is None:
            return
        if self.schema.classes != self.classes:
            raise DataError("the classes are not those of the table's label")
        odd = np.flatnonzero(odd_rows(self.schema, self.records))
        if len(odd):
            raise DataError(f"row {odd[0] + 1} holds a number that is no code of its column")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_table(self) -> bool:
        """Whether records are rows of a table."""
        return self.records.ndim == 2

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a table's columns without the label; none of images."""
        return () if self.schema is None else tuple(column.name for column in self.schema.features)

    @property
    def images(self) -> NDArray[np.uint8]:
        """The images; DataError where records are rows."""
        if self.is_table:
            raise DataError("this dataset is a table, and has no images")
        return cast("NDArray[np.uint8]", self.records)

    @property
    def rows(self) -> NDArray[np.float32]:
        """The rows; DataError where records are images."""
        if not self.is_table:
            raise DataError("this dataset is of images, and has no rows")
        return cast("NDArray[np.float32]", self.records)

    def table(self, seed: int | None = None) -> dict[str, Decoded]:
        """All columns by name, the label among them, as the original table has them: numbers, days and text, masked
        where a value is missing. A number lies in its bin: by a public `seed`, or in the middle. DataError for images.
        """
        if self.schema is None:
            raise DataError("this dataset is of images, and has no columns")
        generator = None if seed is None else np.random.Generator(np.random.PCG64(subseed(seed, "cells of a table")))
        return decode(self.schema, codes_of(self.schema, self.rows, self.labels), generator)

    @property
    def facts(self) -> dict[str, Any]:
        """What a data card says of it."""
        facts: dict[str, Any]
        if self.schema is not None:
            facts = {"rows": len(self), "columns": list(self.columns), "label": self.schema.label, "file": DATASET}
        else:
            facts = {"images": len(self), "image_shape": list(self.images.shape[1:]), "file": DATASET}
        return {**facts, "priors": dict(zip(self.classes, self.priors, strict=True))} if self.priors else facts

    def save(self, folder: Path) -> str:
        """Write the dataset and a preview into `folder`; the SHA-256 of the dataset file."""
        folder.mkdir(parents=True, exist_ok=True)
        about: dict[str, object] = {"classes": self.classes, "format": "dpdd dataset v1"}
        if self.schema is not None:
            about["schema"] = self.schema.model_dump(mode="json")
        if self.priors:
            about["priors"] = self.priors
        # One key only: safetensors writes several in random order, and the file's hash is in the card.
        header = {"dpdd": json.dumps(about, ensure_ascii=True)}
        tensors: dict[str, NDArray] = {
            "rows" if self.is_table else "images": np.ascontiguousarray(self.records),
            "labels": np.ascontiguousarray(self.labels),
        }
        if self.soft is not None:
            tensors["soft"] = np.ascontiguousarray(self.soft)
        save_file(tensors, folder / DATASET, metadata=header)
        (folder / TEACHER).unlink(missing_ok=True)
        if self.teacher is not None:
            self.teacher.save(folder)
        (folder / POOL).unlink(missing_ok=True)
        if self.pool is not None:
            self.pool.labels.save(folder)
        if not self.is_table:
            self.preview().save(folder / "preview.png")
        return file_sha256(folder / DATASET)

    @classmethod
    def load(cls, folder: Path | str) -> LabelledSet:
        """The dataset in `folder`; where it has a teacher, that knows which records it is for."""
        folder = Path(folder)
        path = folder / DATASET
        try:
            with safe_open(path, framework="numpy") as file:
                about, names = json.loads(file.metadata()["dpdd"]), set(file.keys())
                dataset = cls(
                    file.get_tensor("rows" if "rows" in names else "images"),
                    file.get_tensor("labels"),
                    tuple(about["classes"]),
                    file.get_tensor("soft") if "soft" in names else None,
                    None,
                    table_schema(about["schema"], "the header") if "rows" in names or "schema" in about else None,
                    tuple(map(float, about.get("priors", ()))),
                )
            return replace(dataset, teacher=dataset._teacher_in(folder))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no dataset here") from None
        except (*UNREADABLE, ConfigError) as error:
            raise DataError(f"{path}: this is not a dpdd dataset ({shown(error, 200)})") from None

    def _teacher_in(self, folder: Path) -> LinearTeacher | None:
        """The teacher that was saved beside this set, if any; DataError for one of other records."""
        if self.schema is None:
            from dpdd.common.synthesis.teacher import Teacher

            of_images = Teacher.load(folder)
            return None if of_images is None else replace(of_images, shape=self.images.shape[1:])
        from dpdd.common.synthesis.table_teacher import TableTeacher

        of_rows = TableTeacher.load(folder)
        if of_rows is not None and of_rows.schema != self.schema:
            raise DataError(f"{folder / TEACHER}: the teacher is of another table than the rows beside it")
        return of_rows

    def preview(self, per_class: int = 10, zoom: int = 2) -> Image.Image:
        """A grid of images with a row per class (the first twenty)."""
        channels, height, width = self.images.shape[1:]
        rows = min(len(self.classes), 20)
        grid = np.full((rows * (height + 2), per_class * (width + 2), channels), 255, dtype=np.uint8)
        for label in range(rows):
            members = self.images[self.labels == label][:per_class]
            for column, image in enumerate(members):
                top, left = label * (height + 2) + 1, column * (width + 2) + 1
                grid[top : top + height, left : left + width] = image.transpose(1, 2, 0)
        picture = Image.fromarray(grid[:, :, 0] if channels == 1 else grid)
        return picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)

    def as_torch(self, labels: Literal["hard", "soft", "both"] = "hard") -> TensorDataset:
        """A torch `Dataset` of float images in [0, 1], or of rows, with their labels.

        `hard` labels are integers, positions in `classes`; `soft` ones have a probability for each class; with `both`
        an item has three parts: the image, its hard label, its soft label. DataError where there are no soft labels.
        """
        import torch
        from torch.utils.data import TensorDataset

        if labels not in ("hard", "soft", "both"):
            raise DataError(f"labels are 'hard', 'soft' or 'both', not {labels!r}")
        records = torch.from_numpy(self.records.copy()).float()
        tensors = [records if self.is_table else records / 255.0]
        if labels != "soft":
            tensors.append(torch.from_numpy(self.labels.copy()))
        if labels != "hard":
            if self.soft is None:
                raise DataError("this dataset has no soft labels: take the hard ones")
            tensors.append(torch.from_numpy(self.soft.copy()))
        return TensorDataset(*tensors)

    def as_huggingface(self) -> Any:
        """A Hugging Face `Dataset`: `image`, or the table's own columns, `label` and, where there are, `soft_label`."""
        import datasets

        from dpdd.common.synthesis.arrow_table import arrow_table

        return datasets.Dataset(datasets.table.InMemoryTable(arrow_table(self)))
