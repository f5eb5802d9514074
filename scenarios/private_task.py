"""What private classifiers are compared on: simulated private records, test records, and features of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.private_features import Features, extracted

if TYPE_CHECKING:
    from dpdd.common.datasets import LabelledImages
    from dpdd.common.models.backbone import Backbone


@dataclass(frozen=True, eq=False)
class Task:
    """A backbone, one kind of its features, simulated private records and test records, and the rows of both."""

    backbone: Backbone
    features: Features
    train: LabelledImages
    test: LabelledImages
    train_rows: NDArray[np.int16]
    test_rows: NDArray[np.int16]

    @property
    def name(self) -> str:
        """Backbone and features, in words."""
        return self.features.described(self.backbone)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.train.classes)

    def share(self, weight: NDArray[np.floating]) -> float:
        """The accuracy of linear weights (classes, D + 1)."""
        right = 0
        for start in range(0, len(self.test), 1000):
            part = slice(start, start + 1000)
            scores = self.test_rows[part].astype(np.float64) @ weight.T
            right += int((scores.argmax(axis=1) == self.test.labels[part]).sum())
        return right / len(self.test)


def prepare(
    backbone: Backbone,
    train: LabelledImages,
    test: LabelledImages,
    wanted: Sequence[Features] = (Features(),),
    progress: Progress = silent,
    *,
    rows: bool = True,
) -> list[Task]:
    """A task for each kind of features, in one pass over the images; without `rows`, for methods that need none."""
    channels = backbone.network.mean.shape[1]
    if train.shape[0] != channels:
        raise ConfigError(
            f"the images have {train.shape[0]} channels, but backbone {backbone.card.name} was made for {channels}; "
            "choose another with --backbone"
        )
    both = []
    for data, what in ((train, "features of the private records"), (test, "features of the test set")):
        images = data.images if rows else data.images[:0]
        both.append(extracted(backbone.network, images, wanted, f"{backbone.card.name}: {what}", progress))
    return [
        Task(backbone, kind, train, test, private, public) for kind, private, public in zip(wanted, *both, strict=True)
    ]
