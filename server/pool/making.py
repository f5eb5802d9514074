"""From a pool of public images and a classifier that releases contain: labels, selected images, distilled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.randomness import uniforms
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.public_pool import LabelledPool, PoolFacts
from dpdd.server.pool.selection import surest

if TYPE_CHECKING:
    from dpdd.common.progress import Progress
    from dpdd.common.synthesis.teacher import Teacher
    from dpdd.server.pool.section import PoolSection

_AT_ONCE = 500


@dataclass(frozen=True, eq=False)
class ScoredPool:
    """Images (uint8; N, C, H, W), their vectors in the teacher's embedding, and its probabilities of the classes."""

    images: NDArray[np.uint8]
    vectors: NDArray[np.float32]
    soft: NDArray[np.float32]
    teacher: Teacher


def scored(images: NDArray[np.uint8], teacher: Teacher, progress: Progress) -> ScoredPool:
    """What `teacher` says of the images, and what it looked at."""
    vectors = np.empty((len(images), teacher.embedding.dimensions), np.float32)
    done = 0
    for part in teacher.embeddings(images, batch=_AT_ONCE):
        vectors[done : done + len(part)] = part.numpy()
        done += len(part)
        progress("labelling the public pool", done, len(images))
    logits = torch.from_numpy(vectors) @ torch.from_numpy(teacher.weights).T
    return ScoredPool(images, vectors, torch.softmax(logits, 1).numpy(), teacher)


def labelled(pool: ScoredPool, section: PoolSection, facts: PoolFacts, seed: int) -> LabelledPool:
    """So many images as the scenario asks for, with their labels, in the pool's order."""
    if section.choice == "surest":
        chosen = surest(pool.soft, section.images)
    else:
        order = np.argsort(uniforms(seed, "images of the public pool", len(pool.images)), kind="stable")
        chosen = np.sort(order[: section.images])
    return LabelledPool.of(pool.images[chosen], pool.soft[chosen], facts)


def small_set(pool: ScoredPool, section: PoolSection, run: RunDescription) -> LabelledSet:
    """`run.images_per_class` images of each class: selected from the pool, or distilled from it."""
    from dpdd.server.pool.distillation import distilled, selected

    images, labels = (selected if section.set == "selected" else distilled)(pool, section, run)
    soft = pool.teacher.probabilities(images).numpy()
    return LabelledSet(images, labels, run.classes, soft, pool.teacher)
