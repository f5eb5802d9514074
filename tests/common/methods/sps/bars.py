"""Images with bars, a tiny backbone for them, and the specification that looks at them: for tests of classifiers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import feature_statistics
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture

SHAPE = (1, 12, 12)
CLASSES = 3


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(8, 16), pool_after=(1,)))
    with torch.no_grad():
        network.whitening.fit(network.eval().features(torch.rand(300, *SHAPE)))
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return str(path)


def spec_for(backbone: str, stage: int = 0) -> FeatureStatistics:
    settings = MethodSettings(backbone=backbone, features=6, picture=4, stages=2)
    return feature_statistics(settings, load(backbone), CLASSES, SHAPE, 1, stage)


def bars(count: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    """A bright bar at the left, in the middle or at the right, dimly."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    images = 0.6 * torch.rand(count, *SHAPE, generator=generator)
    for label in range(CLASSES):
        images[labels == label, :, :, 4 * label : 4 * label + 4] += 0.2
    return images, labels


def embeddings_of(spec: FeatureStatistics, images: Tensor) -> Tensor:
    with torch.no_grad():
        _, embeddings = spec.measure(images)
    assert embeddings is not None
    return embeddings
