"""The tiny public network, as it is in memory and as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.common.models.backbone import Backbone
from dpdd.common.models.feature_network import FeatureNetwork
from tests.server.evaluation.worlds import tiny_backbone, tiny_network


@pytest.fixture
def backbone() -> FeatureNetwork:
    return tiny_network()


@pytest.fixture
def public(tmp_path: Path) -> Backbone:
    return tiny_backbone(tmp_path)
