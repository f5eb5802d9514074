"""A tiny backbone in a file, and datasets of stripes under every name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpdd.common.data import benchmarks
from dpdd.common.models import backbone as backbones
from tests.scenarios.small_images import stripes, tiny_network


@pytest.fixture
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(benchmarks, "load", lambda name, split: stripes(600 if split == "train" else 90, len(split)))
    provenance = backbones.Provenance("stripes", "none needed", 0.3, "none", 0)
    network = tiny_network("convnet")
    network.whitening.fit(network.features(torch.from_numpy(stripes(500, 7).images).float() / 255))
    backbones.save(tmp_path / "tiny", network, provenance)
    return str(tmp_path / "tiny")
