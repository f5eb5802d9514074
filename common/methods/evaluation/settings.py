"""What a request for an evaluation says: which models it brings, and how their answers are counted.

>>> asked = EvaluationSettings(models=({"kind": "convnet", "width": 16},), bins=0)
>>> asked.cells, round(asked.weight, 3)
(2, 1.0)
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator

from dpdd.common.config import Settings

MOST_MODELS = 16
MOST_BINS = 100

Finite = Annotated[float, Field(allow_inf_nan=False)]


class ConvNetModel(Settings):
    """An `EvaluationConvNet` of this width, for images that `mean` was taken from and that were divided by `std`."""

    kind: Literal["convnet"]
    width: Annotated[int, Field(ge=4, le=512)]
    mean: Finite = 0.0
    std: Annotated[Finite, Field(gt=0.0)] = 1.0


class TeacherModel(Settings):
    """A linear classifier on the `ImageEmbedding` of a public backbone, which is named and pinned by its hash."""

    kind: Literal["teacher"]
    backbone: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    features: Annotated[int, Field(ge=0, le=4096)]
    picture: Annotated[int, Field(ge=0, le=64)]


class LinearModel(Settings):
    """Of rows of a table: a linear classifier over the one-hot cells of its columns (`table_logistic`)."""

    kind: Literal["linear"]


ModelSettings = Annotated[ConvNetModel | TeacherModel | LinearModel, Field(discriminator="kind")]


class EvaluationSettings(Settings):
    """The models, in the order of their arrays, and into how many bins the score of class 1 is cut (0: right, wrong).

    Bins have the same width on [0, 1], and are for two classes: with more, a record would have a score for each class,
    and fall into one cell per class. They are an even number, so that one half of them is the answer "class 1".
    """

    models: Annotated[tuple[ModelSettings, ...], Field(max_length=MOST_MODELS)] = ()
    bins: Annotated[int, Field(ge=0, le=MOST_BINS)] = 0

    @field_validator("bins")
    @classmethod
    def _even(cls, bins: int) -> int:
        if bins % 2:
            raise ValueError(f"bins are an even number, so that 1/2 is an edge between two of them, not {bins}")
        return bins

    @property
    def cells(self) -> int:
        """The cells of one class in a model's histogram."""
        return self.bins or 2

    @property
    def weight(self) -> float:
        """What a record adds to its cell of each of the m models: 1/√m, so that its contribution has norm 1."""
        return 1.0 / math.sqrt(max(len(self.models), 1))


def segment_of(model: int) -> str:
    """The name of a model's histogram in a release, and the beginning of its arrays' names in a request.

    >>> segment_of(0)
    'model0'
    """
    return f"model{model}"
