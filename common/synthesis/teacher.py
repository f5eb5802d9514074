"""The teacher of images: a linear classifier (ridge regression, then Newton steps) on the embedding of an image.

The releases already contain it, so it costs no further privacy (`dpdd.common.methods.sps.classifier` fits it). Its
probabilities are labels for synthetic images, for augmentations and mixtures of them, and for anything else: a script
gets it as `LabelledSet.load(folder).teacher`. The public backbone that it stands on is named and pinned by its hash.

>>> import numpy as np
>>> teacher = Teacher(np.eye(2, 3, dtype=np.float32), "scatter28", "", ImageEmbedding(features=2, side=0, channels=1))
>>> teacher.classes
2
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.models import backbone as backbones
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.image_pyramid import random_affine
from dpdd.common.synthesis.linear_teacher import LinearTeacher
from dpdd.common.synthesis.product_files import TEACHER, UNREADABLE

if TYPE_CHECKING:
    from dpdd.common.models.feature_network import FeatureNetwork


@dataclass(frozen=True, eq=False)
class Teacher(LinearTeacher):
    """Weights (classes, embedding) and the backbone that they are for.

    Where known: the `shape` of the images that it learnt from, and the `folder` that it came from, in which a backbone
    may lie that does not ship with dpdd.
    """

    backbone: str
    backbone_sha256: str
    embedding: ImageEmbedding
    shape: tuple[int, ...] | None = None
    folder: Path | None = None

    @property
    def constant(self) -> float:
        """The embedding's last entry."""
        return self.embedding.constant

    @property
    def facts(self) -> Mapping[str, Any]:
        """The public backbone that it needs."""
        return {"teacher_backbone": {"name": Path(self.backbone).name, "sha256": self.backbone_sha256}}

    @cached_property
    def network(self) -> FeatureNetwork:
        """The public backbone; DataError where it is not here."""
        name: str | Path = self.backbone
        if self.folder is not None and not backbones.comes_with_dpdd(self.backbone):
            beside = self.folder / Path(self.backbone).name
            name = beside if beside.with_name(f"{beside.name}.safetensors").exists() else name
        with torch.random.fork_rng(devices=[]):  # building a network draws weights: which nobody should notice
            try:
                return backbones.load(name, self.backbone_sha256 or None).network
            except ConfigError:
                raise DataError(
                    f"the teacher needs the public backbone {Path(self.backbone).name} (SHA-256 "
                    f"{self.backbone_sha256}), which is not here: put its two files beside {TEACHER}"
                ) from None

    def logits(self, images: Tensor, /) -> Tensor:
        """Unnormalised log probabilities for images in [0, 1]; differentiable."""
        return self.logits_of_features(images, self.network.to(images.device).features(images))

    def logits_of_features(self, images: Tensor, features: Tensor, /) -> Tensor:
        """The same, where the backbone's features of the images are there already."""
        embeddings = self.embedding.of(self.network, images, features)
        return embeddings @ torch.from_numpy(self.weights).to(embeddings).T

    def embeddings(self, images: Tensor | NDArray[Any], /, batch: int = 500) -> Iterator[Tensor]:
        """The vectors that it scores, of so many images at a time; the scores are their products with the weights."""
        pixels, network = images if isinstance(images, Tensor) else torch.from_numpy(images), self.network
        for part in pixels.split(batch):
            with torch.inference_mode():
                seen = self._checked(part)
                yield self.embedding.of(network, seen, network.features(seen))

    def probabilities(self, images: Tensor | NDArray[Any], /, batch: int = 500) -> Tensor:
        """Labels for many images (N, C, H, W): whole numbers of 8 bits, or floats in [0, 1]; of torch or NumPy."""
        pixels = self._checked(images)
        with torch.inference_mode():
            return torch.cat([torch.softmax(self.logits(part), 1) for part in pixels.split(batch)])

    def _checked(self, images: Tensor | NDArray[Any]) -> Tensor:
        """The images as single-precision floats in [0, 1]; DataError for anything that is not such images."""
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images, order="C"))
        wanted = self.shape or (len(self.network.normalisation.mean), "height", "width")
        agree = [isinstance(side, str) or side == given for side, given in zip(wanted, pixels.shape[1:], strict=False)]
        if pixels.ndim != 4 or not all(agree):
            expected = ", ".join(map(str, ("N", *wanted)))
            raise DataError(f"the teacher labels images of shape ({expected}), not {tuple(pixels.shape)}")
        if pixels.dtype == torch.uint8:
            return pixels.float() / 255.0
        if not pixels.is_floating_point():
            raise DataError(f"the teacher labels images of uint8, or of floats in [0, 1], not of {pixels.dtype}")
        if pixels.numel() and not 0.0 <= pixels.min() <= pixels.max() <= 1.0:
            raise DataError(f"the teacher labels floats in [0, 1], and these reach {float(pixels.max()):g}")
        return pixels if pixels.dtype == torch.float32 else pixels.float()

    def save(self, folder: Path) -> None:
        """Write ``teacher.safetensors`` into `folder`."""
        embedding = [self.embedding.features, self.embedding.side, self.embedding.channels]
        # "portrait" is the name that embeddings had when this format was fixed
        about = {"backbone": self.backbone, "sha256": self.backbone_sha256, "portrait": embedding}
        weights = {"weights": np.ascontiguousarray(self.weights)}
        save_file(weights, folder / TEACHER, metadata={"dpdd": json.dumps(about, sort_keys=True)})

    @classmethod
    def load(cls, folder: Path) -> Teacher | None:
        """The teacher in `folder`, if there is one."""
        path = folder / TEACHER
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                about = json.loads(file.metadata()["dpdd"])
                if not all(isinstance(size, int) and size >= 0 for size in about["portrait"]):
                    raise ValueError("its embedding has no sizes")
                weights, embedding = file.get_tensor("weights"), ImageEmbedding(*about["portrait"])
                if weights.dtype != np.float32 or weights.shape != (len(weights), embedding.dimensions):
                    raise ValueError(f"its weights are {weights.dtype} of shape {weights.shape}")
                if not np.isfinite(weights).all():
                    raise ValueError("its weights are not finite")
                if not re.fullmatch("[0-9a-f]{64}", about["sha256"]):
                    raise ValueError("it names no hash of its backbone")
                return cls(weights, about["backbone"], about["sha256"], embedding, folder=folder)
        except UNREADABLE as error:
            raise DataError(f"{path}: this is not a teacher of a dpdd dataset ({shown(error, 200)})") from None


def teacher_augmentations(
    images: Tensor, count: int, augmentation_strength: float, flips: bool, generator: torch.Generator
) -> Tensor:
    """`count` images for the teacher to label: shifted and zoomed ones, blends of two, collages of two; any contrast.

    With `flips` half of what goes into them is mirrored.
    """
    height, width = images.shape[2:]
    augmented = []
    for number in range(math.ceil(count / 100)):
        one, other = (
            random_affine(
                images[torch.randint(len(images), (100,), generator=generator)], augmentation_strength, flips, generator
            )
            for _ in range(2)
        )
        if number % 3 == 1:
            one = one.lerp(other, 0.5 * torch.rand(100, 1, 1, 1, generator=generator))
        elif number % 3 == 2:
            sides = [
                int(torch.randint(side // 7, 5 * side // 7, (1,), generator=generator)) for side in (height, width)
            ]
            top, left = (
                int(torch.randint(side - part, (1,), generator=generator))
                for side, part in zip((height, width), sides, strict=True)
            )
            patch = (..., slice(top, top + sides[0]), slice(left, left + sides[1]))
            one[patch] = other[patch]
        floor = 0.3 * torch.rand(100, 1, 1, 1, generator=generator)  # faint things vanish, as in clean pictures
        gain = 0.7 + 0.8 * torch.rand(100, 1, 1, 1, generator=generator)
        augmented.append(((one - floor) * gain).clamp(0.0, 1.0))
    return torch.cat(augmented)[:count]
