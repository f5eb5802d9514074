"""From distilled sets to one: the union over silos. No statistics, so silos that look different stay different.

A request asks every silo for `per_silo(images_per_class, silos)` images of each class, so that the union has the
asked size, whoever of them answers late. Silos take turns, class by class, and the union stops at `images_per_class`;
it is smaller where silos are missing, or left a class out because their noisy count of it was lost in noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.distilled import distil_settings, from_arrays, teacher_of
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from dpdd.common.synthesis.teacher import Teacher


def per_silo(images_per_class: int, silos: int) -> int:
    """How many images of each class one of `silos` is asked for.

    >>> per_silo(50, 3)
    17
    """
    return -(-images_per_class // silos)


def opened(release: Release, request: ReleaseRequest) -> SyntheticSet:
    """The set in a release, checked against what was asked for."""
    most = distil_settings(request).images_per_class

    def teacher(weights: NDArray[np.float32]) -> Teacher:
        return teacher_of(weights, request)

    return from_arrays(release.arrays, request.classes, request.shape, most, release.silo, teacher)


def union(sets: Sequence[SyntheticSet], images_per_class: int) -> SyntheticSet:
    """All sets as one of at most `images_per_class` images of each class; DpddError when none has an image."""
    if not sum(map(len, sets)):
        raise DpddError("no silo's set has an image: every class was lost in noise")
    if len({made.classes for made in sets}) != 1 or len({made.soft is None for made in sets}) != 1:
        raise IntegrityError("the silos' sets do not agree on their classes, or only some have soft labels")
    images = np.concatenate([made.images for made in sets])
    labels = np.concatenate([made.labels for made in sets])
    starts = np.cumsum([0, *(len(made) for made in sets[:-1])])
    picked: list[int] = []
    for label in range(len(sets[0].classes)):
        members = [start + np.flatnonzero(made.labels == label) for start, made in zip(starts, sets, strict=True)]
        in_turn = [index for index in chain.from_iterable(zip_longest(*members)) if index is not None]
        picked += [int(index) for index in in_turn[:images_per_class]]
    soft = np.concatenate([made.soft for made in sets])[picked] if sets[0].soft is not None else None  # type: ignore[arg-type]
    return SyntheticSet(images[picked], labels[picked], sets[0].classes, soft, _mean_teacher(sets))


def _mean_teacher(sets: Sequence[SyntheticSet]) -> Teacher | None:
    """The mean of the teachers of the silos that sent one."""
    teachers = [made.teacher for made in sets if made.teacher is not None]
    if not teachers:
        return None
    return replace(teachers[0], weights=np.mean([each.weights for each in teachers], axis=0, dtype=np.float32))
