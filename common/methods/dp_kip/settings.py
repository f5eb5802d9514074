"""The settings of `kip-moments`: how a support set is made of released moments. What is released is SPS's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpdd.common.config import Settings

RIDGE = 1e-3
"""What λ is, as a share of tr(K)/m, unless somebody says otherwise: for making sets and for judging them."""


class MomentsSettings(Settings):
    """How images are made; may change without asking the silos again.

    `target`: the `teacher` in the releases (ridge regression, then Newton steps), or the `ridge` loss itself, which
    needs one stage only. `labels`: `hard` ones, as many of every class, or `solved` for along with the images and
    stored as soft labels. `moment_weight` is that of SPS's moment loss beside: with it, images look like their classes,
    and other learners can use them; 0 is for kernel ridge regression alone. One image per class cannot do both: take
    0.01 there. `ridge` is λ as a share of tr(K)/m, as in the paper: whoever fits kernel ridge regression to
    the set should take the same. `average_last_stages` is the teacher's, as in SPS.
    """

    target: Literal["teacher", "ridge"] = "teacher"
    labels: Literal["hard", "solved"] = "hard"
    ridge: Annotated[float, Field(gt=0.0)] = RIDGE
    steps: Annotated[int, Field(ge=1, le=100_000)] = 300
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.05
    moment_weight: Annotated[float, Field(ge=0.0)] = 0.1
    smoothness: Annotated[float, Field(ge=0.0)] = 0.02
    average_last_stages: Annotated[int, Field(ge=1, le=50)] = 1
