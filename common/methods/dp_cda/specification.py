"""What DP-CDA releases: records as points of a public scale, the layout of their mixtures, and what these cost.

>>> from dpdd.common.methods.dp_cda.settings import MixingSettings
>>> grey = np.full((1, 1, 2, 2), 0.9, np.float32)
>>> run = RunDescription(("cat", "dog"), (1, 2, 2), public_seed=1)
>>> points(grey, MixingSettings(centre=0.5, clip=0.4), run).round(3).tolist()
[[0.5, 0.5, 0.5, 0.5]]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.rows import proper_rows
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_cda.settings import COUNT, MIXTURE, MixingSettings
from dpdd.common.methods.plan import ArrayType, Plan, sampled_plan
from dpdd.common.privacy.clipping import Layout, Segment, class_segment
from dpdd.common.wire.parsing import MOST_BYTES, MOST_HEADER
from dpdd.common.wire.quantise import STEP
from dpdd.common.wire.request import ReleaseRequest

BATCH = 64
"""Records at a time, in a silo."""
MOST_NUMBERS = 1 << 27
"""What a coordinator can make a silo hold at once."""


def width(run: RunDescription) -> int:
    """The coordinates of a record: pixels, or a cell for every value of every column."""
    return math.prod(run.shape) if run.kind is DataKind.IMAGE else sum(column.size for column in run.columns)


def norm(settings: MixingSettings, run: RunDescription) -> float:
    """What records are clipped to, in pixel values or cells."""
    return settings.clip * math.sqrt(width(run)) if run.kind is DataKind.IMAGE else math.sqrt(len(run.columns))


def points(records: NDArray[np.float32], settings: MixingSettings, run: RunDescription) -> NDArray[np.float32]:
    """Each record as a point of norm 1 at most (N, width); NaN for a row that is none of the schema."""
    if run.kind is DataKind.IMAGE:
        flat = (records.reshape(len(records), -1) - np.float32(settings.centre)) / np.float32(norm(settings, run))
        norms = np.sqrt(np.einsum("ij,ij->i", flat, flat, dtype=np.float64))
        with np.errstate(invalid="ignore"):  # what is infinite adds nothing, as what is not a number
            scaled: NDArray[np.float32] = (flat / np.maximum(norms, 1.0)[:, None]).astype(np.float32)
        return scaled
    sizes = [column.size for column in run.columns]
    proper = proper_rows(records, sizes)
    found = np.zeros((len(records), sum(sizes)), np.float32)
    starts = np.cumsum([0, *sizes[:-1]])
    places = starts + np.where(proper[:, None], records, 0).astype(np.int64)
    np.put_along_axis(found, places, np.float32(1.0 / norm(settings, run)), axis=1)
    found[~proper] = np.nan
    return found


def mixture_layout(settings: MixingSettings, run: RunDescription) -> Layout:
    """The sums of one mixture of every class."""
    classes = len(run.classes)
    return Layout((class_segment(MIXTURE, width(run), classes), class_segment(COUNT, 1, classes)))


def layout(settings: MixingSettings, run: RunDescription) -> Layout:
    """The released sums: a row per mixture and class, the classes of a mixture one after another."""
    classes, mixtures = len(run.classes), settings.mixtures_per_class
    rows = tuple(tuple(range(label, mixtures * classes, classes)) for label in range(classes))
    return Layout((Segment(MIXTURE, width(run), mixtures * classes, rows), class_segment(COUNT, 1, classes)))


def count_weight(settings: MixingSettings) -> float:
    """What a record weighs in the released counts: those of all mixtures, divided by the root of their number."""
    return settings.count_share * settings.rate * math.sqrt(settings.mixtures_per_class)


def plan(request: ReleaseRequest, settings: MixingSettings) -> Plan:
    """All mixtures as one release; ConfigError for one that no silo could hold or send."""
    run = RunDescription.of(request)
    each, released = mixture_layout(settings, run), _released(settings, run)
    numbers, size = settings.mixtures_per_class * each.coordinates, sum(array.bytes for array in released.values())
    if numbers > MOST_NUMBERS or size > MOST_BYTES - MOST_HEADER:
        raise ConfigError(
            f"{settings.mixtures_per_class} mixtures of {len(run.classes)} classes have {numbers} numbers, more than a "
            f"silo can hold ({MOST_NUMBERS}) or send ({MOST_BYTES} bytes); ask for fewer mixtures_per_class"
        )
    return sampled_plan(request, each, settings.rate, settings.mixtures_per_class, released)


def _released(settings: MixingSettings, run: RunDescription) -> dict[str, ArrayType]:
    classes, short = len(run.classes), settings.encoding == "short"
    shape = (settings.mixtures_per_class * classes, width(run))
    released = {MIXTURE: ArrayType("int16" if short else "int64", shape), COUNT: ArrayType("int64", (classes, 1))}
    return {**released, MIXTURE + STEP: ArrayType("int64", (1, 1))} if short else released


def working_memory(settings: MixingSettings, run: RunDescription) -> int:
    """Bytes: batches of points a few times over, and the sums of all mixtures."""
    sums = settings.mixtures_per_class * len(run.classes) * (width(run) + 1)
    return 40 * BATCH * width(run) + 40 * sums
