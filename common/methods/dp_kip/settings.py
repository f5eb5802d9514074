"""The settings of kernel inducing points: how sets are made of released moments, and what `dp-kip` releases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpdd.common.config import Settings
from dpdd.common.methods.sps_table.settings import SynthesisSettings
from dpdd.common.models.choice import AUTO

RIDGE = 1e-3
"""What λ is, as a share of tr(K)/m, unless somebody says otherwise: for making sets and for judging them."""


LEARNERS = ("convnet", "krr", "krr-features", "krr-ntk")
"""Who judges images: a set that was made with one kernel, with all of them; and an ordinary ConvNet."""


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


class TableSettings(Settings):
    """How `kip-table` chooses rows; may change without asking the silos again.

    `ridge` is λ as a share of tr(K)/m. Cells change one after the other, in at most `sweeps` sweeps over all of them,
    until none does. `components`, `fits`, `steps` and `teacher_rows` are those of SPS for tables.
    """

    ridge: Annotated[float, Field(gt=0.0)] = 1e-2
    sweeps: Annotated[int, Field(ge=0, le=1000)] = 20
    components: Annotated[int, Field(ge=1, le=1024)] = 32
    fits: Annotated[int, Field(ge=1, le=100)] = 4
    steps: Annotated[int, Field(ge=0, le=100_000)] = 2000
    teacher_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000

    @property
    def fit(self) -> SynthesisSettings:
        """How marginals are fitted, and how the teacher learns of them."""
        return SynthesisSettings(
            components=self.components, fits=self.fits, steps=self.steps, teacher_rows=self.teacher_rows
        )


class GradientSettings(Settings):
    """What `dp-kip` releases; part of the request, as every step's gradient is taken where earlier ones led to.

    A set of `support_per_class` images of every class is made in `steps` steps; in each, every record is in the sample
    with probability `rate`. Gradients are clipped to `clip` times their own unit, divided by it, and summed; Adam takes
    no notice of the sum's scale. `frozen` is the share of pixels that stay as they were drawn ("corrupted" in the
    paper): fewer numbers get noise. `ridge` is λ as a share of tr(K)/m.
    The `kernel` is the tangent kernel of a fully connected network with `depth` hidden layers (`fc-ntk`), or the inner
    product of a scattering transform's features (`scattering`); `backbone` left out is the one for images of the run's
    shape. Gradients are clipped with respect to pixels, or, in the variant `dp-kip-features`, with respect to features,
    and the noisy sum is led back through the public Jacobian.
    For tables, `marginals` is how much of a contribution's norm is the record's one-hot row, which adds up to noisy
    marginals of the classes (`row_marginals`). With those of the first `start_steps` steps the support set starts anew,
    from rows that have them; with those of all steps it is decoded.
    """

    support_per_class: Annotated[int, Field(ge=1, le=1000)] = 10
    steps: Annotated[int, Field(ge=1, le=2000)] = 200
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    clip: Annotated[float, Field(gt=0.0, le=1e6)] = 1e-3
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 0.02
    frozen: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    marginals: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    start_steps: Annotated[int, Field(ge=1, le=1000)] = 20
    ridge: Annotated[float, Field(gt=0.0)] = RIDGE
    depth: Annotated[int, Field(ge=1, le=20)] = 3
    kernel: Literal["fc-ntk", "scattering"] = "fc-ntk"
    clip_in: Literal["pixels", "features"] = "pixels"
    backbone: str = AUTO

    @model_validator(mode="after")
    def _with_features(self) -> GradientSettings:
        if self.kernel == "fc-ntk" and (self.clip_in == "features" or self.backbone != AUTO):
            raise ValueError("the kernel fc-ntk has no features: leave clip_in and backbone out, or take scattering")
        if self.marginals and self.start_steps >= self.steps:
            raise ValueError("with marginals the support set starts anew: let start_steps be fewer than steps")
        return self

    @property
    def factored(self) -> bool:
        """Whether gradients are sums over few vectors in the space that they are clipped in, and so need not be made.

        Where pixels are frozen one by one they are not.
        """
        return self.clip_in == "features" or (self.kernel == "fc-ntk" and not self.frozen)


class GradientSynthesisSettings(Settings):
    """What is made of the noisy gradients: the mean of the support sets after the last `average_last` steps.

    It may change without asking the silos again (in decentralised mode it is part of the request).
    """

    average_last: Annotated[int, Field(ge=1, le=2000)] = 1
