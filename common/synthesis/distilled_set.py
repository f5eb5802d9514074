"""DistilledSet sets: what a request for one says, and how one travels.

In decentralised mode the silo synthesises. What it releases then also depends on the synthesis settings and on the
number of images, so a request of kind `DISTILLED_SET` has all three in its settings:

>>> asked = DistilledSetSettings(method={"features": 100}, synthesis={"steps": 50}, images_per_class=10)
>>> sorted(asked.on_wire())
['images_per_class', 'method', 'synthesis']

Where the coordinator declares class priors, whichever, a request also says `priors = "equal"`: the silo's teacher and
soft labels then assume equal priors, and the union turns them to the declared ones. So other priors cost nothing.

The release holds `images` (uint8; N, C, H, W) or, for a table, `rows` of codes (float32; N, columns), `labels` (int64;
N) and, where the method made some, `soft` labels (float32; N, classes), the weights of the `teacher` that gave them
(float32; classes, D), and the noisy class `counts` (float32; classes; 0 for a class that is lost in noise), so that a
union can tell who knows most of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpdd.common.config import Settings, one_line, validate
from dpdd.common.data.table.rows import odd_rows
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.request import Kind, ReleaseRequest

if TYPE_CHECKING:
    from dpdd.common.synthesis.linear_teacher import LinearTeacher

IMAGES, ROWS = "images", "rows"
"""The array of records, by their kind."""
MOST_WEIGHTS = 4096
"""Weights that a teacher of images has for each class, at most; one of a table has as many as there are cells."""


class DistilledSetSettings(Settings):
    """The settings of a request for a distilled set."""

    method: dict[str, Any]
    synthesis: dict[str, Any]
    images_per_class: Annotated[int, Field(ge=1, le=100_000)]
    priors: Literal["equal"] | None = None

    def on_wire(self) -> dict[str, Any]:
        """All settings as plain values; priors only where there are some, as requests were before there were any."""
        values = self.model_dump(mode="json")
        return {key: value for key, value in values.items() if key != "priors" or value is not None}


@dataclass(frozen=True, eq=False)
class DistilledSet:
    """What a silo made of its own releases: a set, and the noisy counts behind it, if its method released some."""

    dataset: LabelledSet
    counts: NDArray[np.float32] | None = None


def distilled_set_settings(request: ReleaseRequest) -> DistilledSetSettings:
    """What `request`, of kind `DISTILLED_SET`, says; ConfigError when it says something else."""
    return validate(dict(request.settings), DistilledSetSettings, "settings of a distilled set")


def method_values(request: ReleaseRequest) -> Mapping[str, Any]:
    """The method's own settings, of a request of any kind."""
    return distilled_set_settings(request).method if request.kind is Kind.DISTILLED_SET else request.settings


def to_arrays(distilled: DistilledSet) -> dict[str, NDArray]:
    """As a release's arrays."""
    dataset = distilled.dataset
    name = ROWS if dataset.is_table else IMAGES
    arrays: dict[str, NDArray] = {name: dataset.records, "labels": dataset.labels}
    if distilled.counts is not None:
        arrays["counts"] = distilled.counts
    if dataset.soft is not None:
        arrays["soft"] = dataset.soft.astype(np.float32)
    if dataset.teacher is not None:
        arrays["teacher"] = dataset.teacher.weights.astype(np.float32)
    return arrays


def teacher_of(weights: NDArray[np.float32], request: ReleaseRequest) -> LinearTeacher:
    """The classifier with these weights, on the backbone that the request names; ValueError when they do not fit it."""
    chosen = method(request.method)
    return chosen.teacher_of(weights, chosen.settings(method_values(request)), RunDescription.of(request))


def from_arrays(
    arrays: Mapping[str, NDArray],
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    most_per_class: int,
    who: str,
    teacher: Callable[[NDArray[np.float32]], LinearTeacher] | None = None,
    table: TableSchema | None = None,
) -> DistilledSet:
    """What `who` sent; IntegrityError unless it is a set of at most the asked size.

    `teacher` makes a classifier of weights that may come along; `table` is the schema of rows.
    """
    name, dtype = (IMAGES, np.uint8) if table is None else (ROWS, np.float32)

    def insist(condition: bool, what: str) -> None:
        if not condition:
            raise IntegrityError(f"silo {who} sent a set whose {what}")

    known = {name, "labels", "soft", "counts"} | ({"teacher"} if teacher else set())
    insist({name, "labels"} <= arrays.keys() <= known, f"arrays are {sorted(arrays)}")
    records, labels, soft = arrays[name], arrays["labels"], arrays.get("soft")
    insist(
        records.dtype == dtype and records.ndim == 1 + len(shape) and records.shape[1:] == tuple(shape),
        f"{name} are {records.dtype} of shape {records.shape[1:]}, not {np.dtype(dtype)} of shape {tuple(shape)}",
    )
    insist(table is None or not odd_rows(table, records).any(), "rows hold numbers that are no codes of their columns")
    insist(
        labels.dtype == np.int64 and labels.shape == records.shape[:1],
        f"labels are {labels.dtype} of shape {labels.shape}, for {len(records)} {name}",
    )
    insist(bool(((labels >= 0) & (labels < len(classes))).all()), f"labels leave 0..{len(classes) - 1}")
    largest = int(np.bincount(labels, minlength=1).max())
    insist(largest <= most_per_class, f"largest class has {largest} {name}; asked for were {most_per_class}")
    if soft is not None:
        insist(soft.dtype == np.float32 and soft.shape == (len(labels), len(classes)), "soft labels have another shape")
        proper = bool((soft >= 0.0).all()) and bool((np.abs(soft.sum(axis=1) - 1.0) < 1e-3).all())
        insist(proper, "soft labels are not probabilities")
    counts = arrays.get("counts")
    if counts is not None:
        insist(counts.dtype == np.float32 and counts.shape == (len(classes),), "counts are not one number per class")
        insist(bool(np.isfinite(counts).all()) and bool((counts >= 0.0).all()), "counts are not numbers from 0")
    weights, classifier = arrays.get("teacher"), None
    if weights is not None and teacher is not None:
        most = MOST_WEIGHTS if table is None else sum(column.size for column in table.features) + 1
        small = weights.ndim == 2 and len(weights) == len(classes) and 1 <= weights.shape[1] <= most
        fine = weights.dtype == np.float32 and small and bool(np.isfinite(weights).all())
        insist(fine, f"teacher is {weights.dtype} of shape {weights.shape}, or has odd weights")
        try:
            classifier = teacher(weights)
        except (ConfigError, ValueError) as error:
            raise IntegrityError(f"silo {who} sent a set whose teacher's weights are odd: {one_line(error)}") from None
    return DistilledSet(LabelledSet(records, labels, classes, soft, classifier, table), counts)
