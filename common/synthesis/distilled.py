"""Distilled sets: what a request for one says, and how one travels.

In decentralised mode the silo synthesises. What it releases then also depends on the synthesis settings and on the
number of images, so a request of kind `DISTILLED_SET` has all three in its settings:

>>> asked = DistilSettings(method={"features": 100}, synthesis={"steps": 50}, images_per_class=10)
>>> sorted(asked.model_dump(mode="json"))
['images_per_class', 'method', 'synthesis']

The release holds `images` (uint8; N, C, H, W), `labels` (int64; N) and, where the method made some, `soft` labels
(float32; N, classes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpdd.common.config import Settings, validate
from dpdd.common.errors import IntegrityError
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.wire.request import Kind, ReleaseRequest


class DistilSettings(Settings):
    """The settings of a request for a distilled set."""

    method: dict[str, Any]
    synthesis: dict[str, Any]
    images_per_class: Annotated[int, Field(ge=1, le=100_000)]


def distil_settings(request: ReleaseRequest) -> DistilSettings:
    """What `request`, of kind `DISTILLED_SET`, says; ConfigError when it says something else."""
    return validate(dict(request.settings), DistilSettings, "settings of a distilled set")


def method_values(request: ReleaseRequest) -> Mapping[str, Any]:
    """The method's own settings, of a request of any kind."""
    return distil_settings(request).method if request.kind is Kind.DISTILLED_SET else request.settings


def to_arrays(made: SyntheticSet) -> dict[str, NDArray]:
    """The set as a release's arrays."""
    arrays: dict[str, NDArray] = {"images": made.images, "labels": made.labels}
    return arrays if made.soft is None else {**arrays, "soft": made.soft.astype(np.float32)}


def from_arrays(
    arrays: Mapping[str, NDArray], classes: tuple[str, ...], shape: tuple[int, ...], most_per_class: int, who: str
) -> SyntheticSet:
    """The set that `who` sent; IntegrityError unless it is one of at most the asked size."""

    def insist(condition: bool, what: str) -> None:
        if not condition:
            raise IntegrityError(f"silo {who} sent a set whose {what}")

    insist({"images", "labels"} <= arrays.keys() <= {"images", "labels", "soft"}, f"arrays are {sorted(arrays)}")
    images, labels, soft = arrays["images"], arrays["labels"], arrays.get("soft")
    insist(
        images.dtype == np.uint8 and images.ndim == 1 + len(shape) and images.shape[1:] == tuple(shape),
        f"images are {images.dtype} of shape {images.shape[1:]}, not uint8 of shape {tuple(shape)}",
    )
    insist(
        labels.dtype == np.int64 and labels.shape == images.shape[:1],
        f"labels are {labels.dtype} of shape {labels.shape}, for {len(images)} images",
    )
    insist(bool(((labels >= 0) & (labels < len(classes))).all()), f"labels leave 0..{len(classes) - 1}")
    largest = int(np.bincount(labels, minlength=1).max())
    insist(largest <= most_per_class, f"largest class has {largest} images; asked for were {most_per_class}")
    if soft is not None:
        insist(soft.dtype == np.float32 and soft.shape == (len(labels), len(classes)), "soft labels have another shape")
        proper = bool((soft >= 0.0).all()) and bool((np.abs(soft.sum(axis=1) - 1.0) < 1e-3).all())
        insist(proper, "soft labels are not probabilities")
    return SyntheticSet(images, labels, classes, soft)
