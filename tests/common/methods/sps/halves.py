"""Images that are light on the left or on the right, and a tiny backbone for them: for tests of what SPS makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import specification
from dpdd.common.models.backbone import Provenance, build, save
from dpdd.common.models.convnet import ConvNetArchitecture

CLASSES = ("left", "right")
SHAPE = (1, 12, 12)
RUN = RunDescription(CLASSES, SHAPE, 1)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(
        ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(8, 12, 16), pool_after=(1,))
    )
    with torch.no_grad():
        network.whitening.fit(network.eval().features(torch.rand(300, *SHAPE)))
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return str(path)


def settings_for(backbone: str, **changes: object) -> MethodSettings:
    values: dict[str, object] = {"global_dimensions": 6, "class_dimensions": 6, "class_layers": 2, "thumbnail": 4}
    values |= {"backbone": backbone, "clip": 1.0, "features": 8, "picture": 4}
    return MethodSettings(**(values | changes))  # type: ignore[arg-type]


def halves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(count) % 2
    images = 0.15 * torch.rand(count, *SHAPE, generator=generator)
    images[labels == 0, :, :, :6] += 0.7
    images[labels == 1, :, :, 6:] += 0.45  # also darker: pooled features do not see left and right
    return images, labels


def spec_for(settings: MethodSettings, stage: int = 0) -> FeatureStatistics:
    return specification(settings, RUN, stage)


def class_mean_rows(spec: FeatureStatistics, images: torch.Tensor, labels: torch.Tensor) -> dict[str, np.ndarray]:
    """A good stage input: the class means of the rows, in their own units."""
    vectors, _ = spec.measure(images)
    plain = torch.cat(
        [vectors[:, spec.columns[statistic.name]] / spec.weights[statistic.name] for statistic in spec.statistics], 1
    )
    return {"rows": torch.stack([plain[labels == label].mean(0) for label in range(2)]).numpy()}
