"""A run's public pool: read once, labelled by the classifier in the releases, and made into the run's datasets.

Everything here is post-processing of releases, and public data: it asks nobody, and costs no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data import benchmarks
from dpdd.common.data.public_images import read_dataset, read_source
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files.untrusted import shown
from dpdd.common.methods.base import RunDescription
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.public_pool import PoolFacts
from dpdd.server.pool.making import ScoredPool, labelled, scored, small_set
from dpdd.server.run.requests import same_source

if TYPE_CHECKING:
    from dpdd.common.progress import Progress
    from dpdd.common.synthesis.teacher import Teacher
    from dpdd.server.pool.section import PoolSection
    from dpdd.server.run.scenario import Scenario


def check_public_pool(scenario: Scenario) -> None:
    """ConfigError, or DataError, where the scenario's pool cannot be had, or is the silos' own data."""
    pool = scenario.synthesis.pool
    if pool is None:
        return
    own = scenario.data.dataset
    if pool.dataset is not None and own is not None and same_source(own, pool.dataset):
        raise ConfigError(
            f"synthesis.pool.dataset = {pool.dataset!r} is the run's private data ({own}): choose other public images"
        )
    if pool.source is not None and not pool.source.exists():
        raise DataError(f"synthesis.pool.source: there is no file or folder {shown(pool.source)}")
    if pool.dataset is not None and not benchmarks.available(pool.dataset):
        benchmarks.load(pool.dataset, "train")  # downloads it, or says where it was looked for


def pool_images(pool: PoolSection, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """All images of the pool, in the run's shape."""
    if pool.dataset is not None:
        return read_dataset(pool.dataset, shape, pool.fit)
    assert pool.source is not None
    return read_source(pool.source, shape, pool.fit, pool.images_key)


@dataclass
class PublicPool:
    """The pool of a run, for all datasets that it makes."""

    section: PoolSection
    _images: list[NDArray[np.uint8]] = field(default_factory=list)
    _scored: list[ScoredPool] = field(default_factory=list)

    def scored(self, teacher: Teacher, run: RunDescription, progress: Progress) -> ScoredPool:
        """The images with what `teacher` says of them."""
        if not self._images:
            self._images.append(pool_images(self.section, run.image_shape))
        for known in self._scored:
            if np.array_equal(known.teacher.weights, teacher.weights):
                return known
        self._scored.append(scored(self._images[0], teacher, progress))
        return self._scored[-1]

    def facts(self, run: RunDescription) -> PoolFacts:
        """What the dataset says of it."""
        return PoolFacts(self.section.title, self.section.licence, run.classes, run.image_shape, self.section.fit)

    def small_set(self, teacher: Teacher, run: RunDescription) -> LabelledSet:
        """`run.images_per_class` images of each class, selected from the pool or distilled from it."""
        return small_set(self.scored(teacher, run, run.progress), self.section, run)

    def beside(self, dataset: LabelledSet, run: RunDescription) -> LabelledSet:
        """The set with the labelled pool beside it; as it is, where it has no teacher of images."""
        from dpdd.common.synthesis.teacher import Teacher

        if not isinstance(dataset.teacher, Teacher):
            return dataset
        pool = self.scored(dataset.teacher, run, run.progress)
        return replace(dataset, pool=labelled(pool, self.section, self.facts(run), run.public_seed))


def without_pool(learners: Sequence[str]) -> tuple[str, ...]:
    """Those of the learners who need no pool."""
    return tuple(name for name in learners if name != "convnet-pool")
