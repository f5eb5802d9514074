"""The settings of SPS for tables: what is released, and how rows are made of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpdd.common.config import Settings


class MethodSettings(Settings):
    """What is released; part of the request.

    `pairs` is the share of a record's squared norm that counts it in the cells of pairs of columns, and the rest, but
    for the class count, counts it in the cells of columns. With 0 only columns are released: naive Bayes, which is for
    silos of few hundred records or many columns. In pairs, a column with more values than `levels` has them in so many
    groups of neighbours.
    """

    pairs: Annotated[float, Field(ge=0.0, le=0.95)] = 0.7
    levels: Annotated[int, Field(ge=2, le=4096)] = 64
    count_weight: Annotated[float, Field(gt=0.0, le=0.5)] = 0.1


class SynthesisSettings(Settings):
    """How rows are made; may change without asking the silos again.

    Every class gets the mean of `fits` mixtures of `components` products of columns, each fitted in at most `steps`
    steps of length `learning_rate`, from a random start of which components are `spread` apart. At most `herding`
    rows of a class are chosen to have its moments together; more are drawn at random. `class_shares`: `equal` gives
    every class as many rows, `as-released` as many in proportion as it has records (the largest class has
    `images_per_class`), and `auto` does the former for herded rows and the latter for drawn ones. The teacher is
    fitted to `teacher_rows` drawn rows (0: there is none), and labels all rows where `soft_labels` are wanted.
    """

    components: Annotated[int, Field(ge=1, le=1024)] = 32
    fits: Annotated[int, Field(ge=1, le=100)] = 4
    steps: Annotated[int, Field(ge=0, le=100_000)] = 2000
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 0.05
    spread: Annotated[float, Field(ge=0.0, le=10.0)] = 0.5
    herding: Annotated[int, Field(ge=0, le=1000)] = 100
    class_shares: Literal["auto", "equal", "as-released"] = "auto"
    teacher_rows: Annotated[int, Field(ge=0, le=1_000_000)] = 20_000
    soft_labels: bool = True
