"""A pool of public images with soft labels from the classifier that releases contain, for a dataset without them.

The labels are post-processing of the releases, so they cost no privacy. The images are somebody else's, so the dataset
names them only: `pool.safetensors` has the SHA-256 of every image's pixels (as 8-bit numbers, fitted to the run's
shape) and its probabilities of the classes, in bytes. Whoever has the images puts both together again, in any order:

>>> images = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
>>> sure = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
>>> pool = LabelledPool.of(images, sure, PoolFacts("drawings", "CC0-1.0", ("cat", "dog"), (1, 8, 8)))
>>> joined = pool.labels.join(images[::-1][:2])
>>> joined.missing, joined.pool.soft.round(1).tolist()
(1, [[0.5, 0.5], [0.0, 1.0]])
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from dpdd.common.data.schema import Fit
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.synthesis.product_files import POOL, UNREADABLE, file_sha256

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

STEPS = 255
"""A probability is stored as a whole number of these."""
_FORMAT = "dpdd pool v1"


@dataclass(frozen=True)
class PoolFacts:
    """Whose images they are, under which licence, and what the labels are of."""

    name: str
    licence: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    fit: str = "resize"

    def __post_init__(self) -> None:
        words = (self.name, self.licence, self.fit, *self.classes)
        if not all(isinstance(word, str) and word.isprintable() for word in words):
            raise ValueError("its name, licence or classes are no words")
        if self.fit not in get_args(Fit):
            raise ValueError("it was fitted in a way that does not exist")
        if not all(type(side) is int and 0 < side < 1 << 20 for side in self.shape):
            raise ValueError("its images have no shape")


@dataclass(frozen=True, eq=False)
class PoolLabels:
    """Hashes of images (uint8; N, 32), each once, and their labels (uint8; N, classes), in steps of probability."""

    hashes: NDArray[np.uint8]
    steps: NDArray[np.uint8]
    facts: PoolFacts

    def __post_init__(self) -> None:
        count, classes = len(self.hashes), len(self.facts.classes)
        if self.hashes.dtype != np.uint8 or self.hashes.shape != (count, 32):
            raise ValueError(f"its hashes are {self.hashes.dtype} of shape {self.hashes.shape}")
        if self.steps.dtype != np.uint8 or self.steps.shape != (count, classes):
            raise ValueError(f"its labels are {self.steps.dtype} of shape {self.steps.shape}")
        if not self.steps.any(axis=1).all():
            raise ValueError("an image has no label")
        if len(np.unique(self.hashes, axis=0)) != count:
            raise ValueError("it names an image twice")

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def soft(self) -> NDArray[np.float32]:
        """The labels as probabilities (N, classes)."""
        return probabilities(self.steps)

    def join(self, images: NDArray[np.uint8]) -> Joined:
        """The named ones among `images` (uint8; N, C, H, W), in the order of the labels; the others are passed over."""
        if images.dtype != np.uint8 or images.shape[1:] != self.facts.shape:
            raise DataError(
                f"the pool's images are uint8 of shape {self.facts.shape}, not {images.dtype} of {images.shape[1:]}"
            )
        places = {digest.tobytes(): place for place, digest in reversed(list(enumerate(hashes_of(images))))}
        found = [places.get(digest.tobytes(), -1) for digest in self.hashes]
        have = np.array(found, dtype=np.int64) >= 0
        labels = PoolLabels(self.hashes[have], self.steps[have], self.facts)
        chosen = np.array(found, dtype=np.int64)[have]
        return Joined(LabelledPool(labels, images[chosen]), self.hashes[~have])

    def save(self, folder: Path) -> str:
        """Write ``pool.safetensors`` into `folder`; its SHA-256."""
        folder.mkdir(parents=True, exist_ok=True)
        header = {"dpdd": json.dumps({"format": _FORMAT, **asdict(self.facts)}, ensure_ascii=True, sort_keys=True)}
        arrays = {"sha256": np.ascontiguousarray(self.hashes), "soft": np.ascontiguousarray(self.steps)}
        save_file(arrays, folder / POOL, metadata=header)
        return file_sha256(folder / POOL)

    @classmethod
    def load(cls, folder: Path | str) -> PoolLabels:
        """Those in `folder`; DataError where there are none."""
        path = Path(folder) / POOL
        try:
            with safe_open(path, framework="numpy") as file:
                about = json.loads(file.metadata()["dpdd"])
                if about.pop("format") != _FORMAT:
                    raise ValueError("it has another format")
                channels, height, width = about.pop("shape")
                facts = PoolFacts(**{**about, "classes": tuple(about["classes"]), "shape": (channels, height, width)})
                return cls(file.get_tensor("sha256"), file.get_tensor("soft"), facts)
        except FileNotFoundError:
            raise DataError(f"{path}: this dataset names no public pool") from None
        except UNREADABLE as error:
            raise DataError(f"{path}: these are no labels of a public pool ({shown(error, 200)})") from None


@dataclass(frozen=True, eq=False)
class LabelledPool:
    """Labels, and the images (uint8; N, C, H, W) that they are of."""

    labels: PoolLabels
    images: NDArray[np.uint8]

    @classmethod
    def of(cls, images: NDArray[np.uint8], soft: NDArray[Any], facts: PoolFacts) -> LabelledPool:
        """`images` with the labels `soft` (N, classes); an image that is there twice counts once."""
        hashes = hashes_of(images)
        _, first = np.unique(hashes, axis=0, return_index=True)
        first.sort()
        return cls(PoolLabels(hashes[first], quantised(soft[first]), facts), images[first])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def soft(self) -> NDArray[np.float32]:
        """The labels as probabilities (N, classes), as whoever loads them has them."""
        return self.labels.soft

    def as_torch(self) -> TensorDataset:
        """A torch `Dataset` of float images in [0, 1] with their soft labels."""
        import torch
        from torch.utils.data import TensorDataset

        return TensorDataset(torch.from_numpy(self.images).float() / 255.0, torch.from_numpy(self.soft))


@dataclass(frozen=True, eq=False)
class Joined:
    """What came of images and labels: a pool, and the hashes (uint8; N, 32) of images that were not there."""

    pool: LabelledPool
    missing_hashes: NDArray[np.uint8]

    @property
    def missing(self) -> int:
        """How many images were not there."""
        return len(self.missing_hashes)


def hashes_of(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The SHA-256 of the pixels of each image, row by row and channel by channel (uint8; N, 32)."""
    digests = b"".join(hashlib.sha256(image.tobytes()).digest() for image in images)
    return np.frombuffer(digests, np.uint8).reshape(len(images), 32)


def quantised(soft: NDArray[Any]) -> NDArray[np.uint8]:
    """Probabilities in steps, rounded; the largest is never lost."""
    steps = np.rint(np.clip(soft, 0.0, 1.0) * STEPS).astype(np.uint8)
    largest = soft.argmax(axis=1)
    rows = np.arange(len(soft))
    steps[rows, largest] = np.maximum(steps[rows, largest], 1)
    return steps


def probabilities(steps: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Probabilities that add up to 1.

    >>> probabilities(quantised(np.array([[0.75, 0.25], [1.0, 0.0]]))).sum(axis=1).tolist()
    [1.0, 1.0]
    """
    counts = steps.astype(np.float32)
    shares: NDArray[np.float32] = counts / counts.sum(axis=1, keepdims=True)
    return shares
