"""What every learner may be told: how long it trains, from which labels. Who learns is said in `settings`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator

from dpdd.common.config import RenamedKeyWarning, Settings
from dpdd.common.methods.dp_kip.settings import RIDGE

Labels = Literal["teacher", "soft", "hard"]
AugmentationKind = Literal["color", "crop", "cutout", "flip", "scale", "rotate"]
AUGMENTATION_KINDS: tuple[AugmentationKind, ...] = get_args(AugmentationKind)
NormalisationKind = Literal["instance", "batch"]


class ProtocolSettings(Settings):
    """The literature's protocol: `runs` networks from scratch on hard labels, DSA augmentation, long training.

    Every batch is changed in one way out of `augmentation`; mirror images are left out where `evaluation.flips` is
    false, as for digits. Batches are everything, for a set of up to `batch` images.
    """

    runs: Annotated[int, Field(ge=1, le=100)] = 3
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 300
    batch: Annotated[int, Field(ge=1)] = 256
    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4
    augmentation: tuple[AugmentationKind, ...] = AUGMENTATION_KINDS

    @field_validator("augmentation")
    @classmethod
    def _once_each(cls, kinds: tuple[AugmentationKind, ...]) -> tuple[AugmentationKind, ...]:
        if len(set(kinds)) != len(kinds):
            raise ValueError("augmentation names a kind twice")
        return kinds

    def kinds(self, flips: bool) -> tuple[AugmentationKind, ...]:
        """The kinds of change that batches get, with or without mirror images."""
        return tuple(kind for kind in self.augmentation if flips or kind != "flip")


class ConvNetDDSettings(ProtocolSettings):
    """The literature's ConvNet.

    `depth` blocks of convolution; 0, as many as the literature has for images of this size: 3 up to 63 pixels, one
    more for every doubling.
    """

    width: Annotated[int, Field(ge=4)] = 128
    depth: Annotated[int, Field(ge=0, le=6)] = 0


class ResNetDDSettings(ProtocolSettings):
    """ResNet-18; `width`, the channels of its first blocks, is 64 as published, and time grows with its square."""

    width: Annotated[int, Field(ge=4)] = 64
    normalisation: NormalisationKind = "instance"


class DenseNetDDSettings(ProtocolSettings):
    """DenseNet-121; `growth`, the channels that a layer adds, is 32 as published, and time grows with its square."""

    growth: Annotated[int, Field(ge=2)] = 32
    normalisation: NormalisationKind = "instance"


class ConvNetPoolSettings(Settings):
    """The ConvNet of the literature, from scratch on a public pool and its soft labels; mirrored, shifted images.

    A pool has many images, so it takes thousands of steps where a small set takes hundreds.
    """

    runs: Annotated[int, Field(ge=1, le=100)] = 1
    width: Annotated[int, Field(ge=4)] = 128
    depth: Annotated[int, Field(ge=0, le=6)] = 0
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 4000
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4


class ProbeSettings(Settings):
    """Multinomial logistic regression on frozen features of a public backbone.

    It sees `copies` of the synthetic images, shifted by up to `shift` pixels; or teacher-labelled augmentations, as
    they are.
    """

    copies: Annotated[int, Field(ge=1)] = 5
    shift: Annotated[int, Field(ge=0)] = 2
    decay: Annotated[float, Field(ge=0.0)] = 1e-3
    iterations: Annotated[int, Field(ge=1)] = 200


class FineTuneSettings(Settings):
    """All weights of a public backbone, BatchNorm frozen: AdamW inside GSAM, a cosine for the learning rate and `rho`.

    `rho = 0` is AdamW alone, at half the time. Without a warm-up the first steps harm the public weights: on 1,000
    MNIST images (a public proxy; `gray28`, 60 steps) GSAM had 68 % without and 92 % with it, AdamW alone 90 and 94 %.
    """

    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    shift: Annotated[int, Field(ge=0)] = 2
    rho: Annotated[float, Field(ge=0.0)] = 0.05
    alpha: Annotated[float, Field(ge=0.0)] = 0.1


class KernelRegressionSettings(Settings):
    """Kernel ridge regression: λ as a share of tr(K)/m, and the hidden layers of the neural tangent kernel's network.

    A set that was made for one λ should be judged with that.
    """

    ridge: Annotated[float, Field(gt=0.0)] = RIDGE
    depth: Annotated[int, Field(ge=0, le=100)] = 3


class LearnerSettings(Settings):
    """How learners train.

    `runs` is how many of each (0: nobody trains), but for those that have settings of their own: `convnet-dd`,
    `resnet18-dd`, `densenet121-dd` and `convnet-pool` in `convnet_dd`, `resnet18_dd`, `densenet121_dd`, `convnet_pool`;
    `width` to `learning_rate` are for `convnet`. Learners of tables have fixed settings,
    take hard labels, and train on at most `rows` rows: of more, on the same share of every class.

    `labels` is the best that they may learn from, and they take the best that the set has: `teacher` (so many
    `augmentations` of its images, blends and collages among them, labelled by its teacher), `soft` labels, or `hard`
    ones. So `augmentations = 0` says the same as `labels = "soft"`. With `flips`, all of them see mirror images too:
    not for digits.
    """

    renamed: ClassVar[Mapping[str, str]] = {"lessons": "augmentations"}

    runs: Annotated[int, Field(ge=0, le=100)] = 1
    width: Annotated[int, Field(ge=4)] = 64
    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.003
    convnet_dd: ConvNetDDSettings = ConvNetDDSettings()
    resnet18_dd: ResNetDDSettings = ResNetDDSettings()
    densenet121_dd: DenseNetDDSettings = DenseNetDDSettings()
    convnet_pool: ConvNetPoolSettings = ConvNetPoolSettings()
    probe: ProbeSettings = ProbeSettings()
    fine_tune: FineTuneSettings = FineTuneSettings()
    krr: KernelRegressionSettings = KernelRegressionSettings()
    labels: Labels = "teacher"
    flips: bool = True
    augmentations: Annotated[int, Field(ge=0, le=10_000_000)] = 12_000
    rows: Annotated[int, Field(ge=2)] = 10_000

    @field_validator("labels", mode="before")
    @classmethod
    def _renamed_value(cls, labels: Any) -> Any:
        if labels != "lessons":
            return labels
        warnings.warn('evaluation.labels = "lessons" is called "teacher" now', RenamedKeyWarning, stacklevel=2)
        return "teacher"
