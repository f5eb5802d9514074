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


class GradientSettings(Settings):
    """What `dp-kip` releases; part of the request, as every step's gradient is taken where earlier ones led to.

    A set of `support_per_class` images of every class is made in `steps` steps; in each, every record is in the sample
    with probability `rate`. Gradients are clipped to `clip` times their own unit, divided by it, and summed; Adam takes
    no notice of the sum's scale. `frozen` is the share of pixels that stay as they were drawn ("corrupted" in the
    paper): fewer numbers get noise. `ridge` is λ as a share of tr(K)/m, `depth` the hidden layers of the tangent
    kernel's network.
    """

    support_per_class: Annotated[int, Field(ge=1, le=1000)] = 10
    steps: Annotated[int, Field(ge=1, le=2000)] = 200
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    clip: Annotated[float, Field(gt=0.0, le=1e6)] = 1e-3
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 0.02
    frozen: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    ridge: Annotated[float, Field(gt=0.0)] = RIDGE
    depth: Annotated[int, Field(ge=1, le=20)] = 3


class GradientSynthesisSettings(Settings):
    """What is made of the noisy gradients: the mean of the support sets after the last `average_last` steps.

    It may change without asking the silos again (in decentralised mode it is part of the request).
    """

    average_last: Annotated[int, Field(ge=1, le=2000)] = 1
