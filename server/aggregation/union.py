"""From distilled sets to one: the union over silos. No statistics, so silos that look different stay different.

A request asks every silo for `per_silo(images_per_class, silos)` images of each class, unless the scenario says how
many, so that the union has the asked size (times what the method makes of an image), whoever of them answers late.
The places of a class are shared out by the
noisy counts that came with the sets, as seats are by votes (d'Hondt), so silos that know a class equally well take
turns. The union stops at `images_per_class`; it is smaller where silos are missing, or left a class out because their
noisy count of it was lost in noise.

Where the sets have teachers, the union has one that knows of each class what the silos that have it know
(`dpdd.common.synthesis.linear_teacher.united`), and it labels all images anew: a silo's own has never seen the others'
classes. Where class priors are declared, it is for these; as released are the silos' counts together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.methods.request_plan import images_made
from dpdd.common.synthesis.distilled_set import DistilledSet, distilled_set_settings, from_arrays, teacher_of
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import ClassCounts, Priors, shares
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from dpdd.common.synthesis.linear_teacher import LinearTeacher


def per_silo(images_per_class: int, silos: int) -> int:
    """How many images of each class one of `silos` is asked for.

    >>> per_silo(50, 3)
    17
    """
    return -(-images_per_class // silos)


def opened(release: Release, request: ReleaseRequest) -> DistilledSet:
    """The set in a release, checked against what was asked for."""
    most = distilled_set_settings(request).images_per_class * images_made(request)

    def teacher(weights: NDArray[np.float32]) -> LinearTeacher:
        return teacher_of(weights, request)

    return from_arrays(release.arrays, request.classes, request.shape, most, release.silo, teacher, request.table)


def class_counts(distilled: Sequence[DistilledSet]) -> ClassCounts | None:
    """What the silos' noisy counts are together; None where some silo's method released none."""
    if any(each.counts is None for each in distilled):
        return None
    counts = _counts(distilled).sum(0)
    return ClassCounts(counts, counts > 0.0)


def union(distilled: Sequence[DistilledSet], images_per_class: int, priors: Priors | None = None) -> LabelledSet:
    """All sets as one of at most `images_per_class` images of each class; DpddError when none has an image.

    With `priors`, the silos were asked for teachers with equal ones.
    """
    sets = [each.dataset for each in distilled]
    if not sum(map(len, sets)):
        raise DpddError("no silo's set has a record: every class was lost in noise")
    alike = all((each.classes, each.schema) == (sets[0].classes, sets[0].schema) for each in sets)
    if not alike or len({each.soft is None for each in sets}) != 1:
        raise IntegrityError("the silos' sets do not agree on their classes, or only some have soft labels")
    counts, taken = _counts(distilled), places(distilled, images_per_class)
    records = np.concatenate([each.records for each in sets])
    labels = np.concatenate([each.labels for each in sets])
    starts = np.cumsum([0, *(len(each) for each in sets[:-1])])
    picked: list[int] = []
    for label in range(len(sets[0].classes)):
        for start, each, number in zip(starts, sets, taken[:, label], strict=True):
            picked += (start + np.flatnonzero(each.labels == label))[:number].tolist()
    records, labels = records[picked], labels[picked]
    assumed = None if priors is None else shares(priors, sets[0].classes, class_counts(distilled))
    teacher = _teacher(sets, counts, assumed)
    soft = np.concatenate([each.soft for each in sets])[picked] if sets[0].soft is not None else None  # type: ignore[arg-type]
    declared = () if assumed is None else tuple(assumed.tolist())
    joined = LabelledSet(records, labels, sets[0].classes, soft, teacher, sets[0].schema, declared)
    if teacher is None or soft is None:
        return joined
    return replace(joined, soft=teacher.probabilities(joined.as_torch().tensors[0]).numpy())


def places(distilled: Sequence[DistilledSet], images_per_class: int) -> NDArray[np.int64]:
    """How many images of each class the union takes from each silo (silos x classes)."""
    counts, classes = _counts(distilled), len(distilled[0].dataset.classes)
    sizes = np.stack([np.bincount(each.dataset.labels, minlength=classes) for each in distilled])
    taken = [seats(counts[:, label], sizes[:, label].tolist(), images_per_class) for label in range(classes)]
    return np.array(taken, dtype=np.int64).T


def seats(votes: NDArray[np.float64], most: Sequence[int], count: int) -> list[int]:
    """How many of `count` places everyone gets by votes (d'Hondt), where nobody can fill more than `most`.

    >>> seats(np.array([100.0, 80.0, 30.0]), [8, 8, 8], 8), seats(np.array([100.0, 80.0, 30.0]), [8, 2, 0], 8)
    ([4, 3, 1], [6, 2, 0])
    """
    given = [0] * len(most)
    claims = [(-votes[who], who) for who, room in enumerate(most) if room]
    heapq.heapify(claims)
    for _ in range(min(count, sum(most))):
        _, who = heapq.heappop(claims)
        given[who] += 1
        if given[who] < most[who]:
            heapq.heappush(claims, (-votes[who] / (given[who] + 1), who))
    return given


def _counts(distilled: Sequence[DistilledSet]) -> NDArray[np.float64]:
    """Noisy records (silos, classes); all count the same where some silo's method released no counts."""
    counts = [each.counts for each in distilled]
    if any(row is None for row in counts):
        return np.ones((len(distilled), len(distilled[0].dataset.classes)))
    return np.stack(counts).astype(np.float64)  # type: ignore[arg-type]


def _teacher(
    sets: Sequence[LabelledSet], counts: NDArray[np.float64], assumed: NDArray[np.float64] | None
) -> LinearTeacher | None:
    """One classifier of the teachers of the silos that sent one."""
    from dpdd.common.synthesis.linear_teacher import united

    teachers = [(each.teacher, row) for each, row in zip(sets, counts, strict=True) if each.teacher is not None]
    if not teachers:
        return None
    return united([teacher for teacher, _ in teachers], np.stack([row for _, row in teachers]), assumed)
