"""The section `[synthesis.pool]` of a scenario: public images as material, where a scenario allows them.

>>> section = PoolSection(dataset="tinyimagenet32", licence="ImageNet's terms: research only")
>>> section.title, section.images
('tinyimagenet32', 40000)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from dpdd.common.config import Settings
from dpdd.common.data import benchmarks
from dpdd.common.data.schema import Fit
from dpdd.common.methods.base import Method, Query
from dpdd.common.methods.registry import METHODS

if TYPE_CHECKING:
    from dpdd.server.run.data_section import DataSection


class PoolDistillation(Settings):
    """How images are distilled from the labelled pool: it is post-processing, so as long as one likes.

    The images' mean features of each class are matched to those of batches of the pool, under one kind of augmentation
    per step, in ConvNets of width `width`: a new one of random weights in each step, or, where `networks` is not 0, so
    many that learn from the pool for `training_steps` batches before, each as it was at several times of its training.
    Then their own cross-entropy on the images, times `label_weight`, may be made small, too. Of each class, the
    `material` surest images take part.
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.01
    label_weight: Annotated[float, Field(ge=0.0)] = 0.0
    networks: Annotated[int, Field(ge=0, le=100)] = 0
    width: Annotated[int, Field(ge=4, le=512)] = 32
    training_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 300
    batch: Annotated[int, Field(ge=2, le=10_000)] = 64
    material: Annotated[int, Field(ge=10, le=1_000_000)] = 1000

    @model_validator(mode="after")
    def _has_learnt(self) -> PoolDistillation:
        if self.label_weight and not self.networks:
            raise ValueError("label_weight is for networks that learnt from the pool: ask for some as networks")
        return self


class PoolSection(Settings):
    """Which public images, under which licence, and what is made of them.

    `dataset` is a public benchmark, whose training images are taken, or `source` is an ``.npz`` archive (the array
    `images_key`) or a folder of image files; `name` is what the card calls it. The classifier in the releases labels
    all of them softly, and `images` of them, as many of each class (`choice = "surest"`), or any (`"any"`), are named
    in the dataset by their hashes. `set` is what the small set of `images_per_class` is made of: `selected` from the
    pool, `distilled` from it, or by the `method`, as without a pool.

    `candidates` is how many times more images selection looks at than it takes: the surest of each class. With `parts`
    every image of the small set holds parts x parts smaller ones, which are each enlarged to a full one (partition and
    expand), so the set that is saved has parts² times as many.
    """

    licence: Annotated[str, Field(min_length=1, max_length=500)]
    dataset: str | None = None
    source: Path | None = None
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    images_key: Annotated[str, Field(min_length=1)] = "images"
    fit: Fit = "resize"
    images: Annotated[int, Field(ge=1, le=10_000_000)] = 40_000
    choice: Literal["surest", "any"] = "any"
    set: Literal["selected", "distilled", "method"] = "selected"
    candidates: Annotated[int, Field(ge=1, le=1000)] = 3
    parts: Annotated[int, Field(ge=1, le=4)] = 1
    distillation: PoolDistillation = PoolDistillation()

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or self.dataset or (self.source.name if self.source is not None else "")

    def located(self, base: Path) -> PoolSection:
        """The same, with a path that is relative to `base` made absolute."""
        return self if self.source is None else self.model_copy(update={"source": base.absolute() / self.source})

    @model_validator(mode="after")
    def _one_source(self) -> PoolSection:
        if (self.dataset is None) == (self.source is None):
            raise ValueError(
                "name the public images: a benchmark as dataset, or an .npz archive or a folder as source, not both"
            )
        if self.dataset is not None and self.dataset not in benchmarks.names():
            raise ValueError(f"there is no dataset {self.dataset!r}; the datasets are {', '.join(benchmarks.names())}")
        if not self.title.isprintable() or not self.licence.isprintable():
            raise ValueError("name and licence are words in one line")
        return self


def located_pool(pool: PoolSection | None, base: Path) -> PoolSection | None:
    """The section, if there is one, with paths that are relative to `base` made absolute."""
    return None if pool is None else pool.located(base)


def check_pool(
    pool: PoolSection | None, data: DataSection, mode: str, method: Query[Any], *, tasks: bool, learners: Sequence[str]
) -> None:
    """ValueError where a scenario with these sections cannot have this pool, or asks for what a pool is needed for."""
    if pool is None:
        if "convnet-pool" in learners:
            raise ValueError("evaluation.learners asks for convnet-pool, which learns from a public pool: declare one")
        return
    if data.is_table:
        raise ValueError("synthesis.pool is of images, and the records are rows of a table: leave it out")
    if tasks or mode == "decentralised":
        raise ValueError("synthesis.pool is for one set of sums: leave it out, or continual and decentralised mode")
    if not isinstance(method, Method) or type(method).released_teacher is Method.released_teacher:
        able = [name for name, each in METHODS.items() if type(each).released_teacher is not Method.released_teacher]
        raise ValueError(
            f"what {method.name} releases contains no classifier that could label synthesis.pool; "
            f"methods that do are {', '.join(able)}"
        )
