"""The settings of DP-CDA: which mixtures are released, and how records are made of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpdd.common.config import Settings

MIXTURE, COUNT = "mixture", "count"
"""The released sums."""


class MixingSettings(Settings):
    """What is released; part of the request.

    A mixture is the sum of a Poisson sample of the records of one class; `mixtures_per_class` of them are made. `order`
    (l in the paper) is how many records a mixture has on average in a class of `class_size` records, a public guess of
    how many a silo has: a record is in each mixture of its class with the probability `order` / `class_size`. If the
    guess is wrong, mixtures have another order, and the guarantee is the same.

    Images are centred at the grey level `centre` and clipped to `clip` times the root of their number of pixels; a
    table's rows are one-hot, and need no clipping. `encoding` "short" sends 16 bits per number.
    """

    order: Annotated[float, Field(gt=0.0, le=1e6)] = 64.0
    class_size: Annotated[int, Field(ge=1)] = 1000
    mixtures_per_class: Annotated[int, Field(ge=1, le=20_000)] = 100
    centre: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.4
    count_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    encoding: Literal["short", "exact"] = "short"

    @property
    def rate(self) -> float:
        """The probability with which a record is in a mixture of its class."""
        return min(1.0, self.order / self.class_size)


class MixtureSynthesisSettings(Settings):
    """How records are made of noisy mixtures; may change without asking the silos again.

    `denoise` keeps of a mixture's deviation from the mean of its class what stands out of the noise over all
    mixtures. `spread` "records" makes deviations as large as those of single records, "mixtures" leaves them: a mean of
    l records deviates by 1 / √l of what one does. In the paper records are the noisy "mixtures" as they are, and the
    mean of their one-hot labels, known by construction, has noise of deviation σ_y = `label_noise`; the largest is the
    label. That noise is public here, as it protects nothing, and wrong labels are all that comes of it.
    """

    denoise: bool = True
    spread: Literal["records", "mixtures"] = "records"
    label_noise: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
