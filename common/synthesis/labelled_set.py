"""The product: a small labelled dataset that anyone may train on, with no further privacy cost.

On disk it is `dataset.safetensors` (images, labels; class names in the header), `preview.png` and, where the releases
contain a classifier, `teacher.safetensors`.

>>> import numpy as np, tempfile, pathlib
>>> made = LabelledSet(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 0, 1, 1]), ("cat", "dog"))
>>> with tempfile.TemporaryDirectory() as folder:
...     digest = made.save(pathlib.Path(folder))
...     LabelledSet.load(pathlib.Path(folder)).classes
('cat', 'dog')
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dpdd.common.errors import DataError

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

    from dpdd.common.synthesis.teacher import Teacher

FILE, TEACHER = "dataset.safetensors", "teacher.safetensors"


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Images (uint8; N, C, H, W), integer labels, class names; soft labels (N, classes) and a teacher, if any."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    soft: NDArray[np.float32] | None = None
    teacher: Teacher | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def save(self, folder: Path) -> str:
        """Write the dataset and a preview into `folder`; the SHA-256 of the dataset file."""
        folder.mkdir(parents=True, exist_ok=True)
        # One key only: safetensors writes several in random order, and the file's hash is in the card.
        header = {"dpdd": json.dumps({"classes": self.classes, "format": "dpdd dataset v1"}, ensure_ascii=True)}
        tensors: dict[str, NDArray] = {
            "images": np.ascontiguousarray(self.images),
            "labels": np.ascontiguousarray(self.labels),
        }
        if self.soft is not None:
            tensors["soft"] = np.ascontiguousarray(self.soft)
        save_file(tensors, folder / FILE, metadata=header)
        (folder / TEACHER).unlink(missing_ok=True)
        if self.teacher is not None:
            self.teacher.save(folder)
        self.preview().save(folder / "preview.png")
        return file_sha256(folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> LabelledSet:
        """The dataset in `folder`."""
        from dpdd.common.synthesis.teacher import Teacher

        path = folder / FILE
        try:
            with safe_open(path, framework="numpy") as file:
                classes = tuple(json.loads(file.metadata()["dpdd"])["classes"])
                soft = file.get_tensor("soft") if "soft" in file.keys() else None  # noqa: SIM118
                return cls(file.get_tensor("images"), file.get_tensor("labels"), classes, soft, Teacher.load(folder))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no dataset here") from None
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: this is not a dpdd dataset ({error})") from None

    def preview(self, per_class: int = 10, zoom: int = 2) -> Image.Image:
        """A grid with a row per class (the first twenty)."""
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

    def as_torch(self) -> TensorDataset:
        """A torch `Dataset` of float images in [0, 1] and integer labels."""
        import torch
        from torch.utils.data import TensorDataset

        images = torch.from_numpy(self.images.copy()).float() / 255.0
        return TensorDataset(images, torch.from_numpy(self.labels.copy()))

    def as_huggingface(self) -> Any:
        """A Hugging Face `Dataset` with an image and a label column."""
        import datasets

        pictures = [image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0) for image in self.images]
        features = datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(self.classes))}
        )
        columns = {"image": [Image.fromarray(p) for p in pictures], "label": self.labels.tolist()}
        return datasets.Dataset.from_dict(columns, features=features)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
