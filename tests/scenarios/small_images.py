"""Images and networks that are small enough for tests of private classifiers."""

from __future__ import annotations

import numpy as np
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.models import backbone as backbones
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.models.wrn import WideResNetArchitecture


def stripes(count: int, seed: int, side: int = 8) -> LabelledImages:
    """Three classes: horizontal stripes, vertical stripes, none."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count, dtype=np.int64) % 3
    images = generator.integers(0, 60, (count, 1, side, side), dtype=np.uint8)
    images[labels == 0, :, ::2] += 150
    images[labels == 1, :, :, ::2] += 150
    return LabelledImages(images, labels, ("a", "b", "c"))


def tiny_network(kind: str = "convnet") -> FeatureNetwork:
    """An untrained backbone with statistics of stripes, in the memory layout that Opacus does not expect."""
    torch.manual_seed(1)
    architecture = (
        ConvNetArchitecture(channels=1, height=8, width=8, classes=5, widths=(4, 6), pool_after=(1,))
        if kind == "convnet"
        else WideResNetArchitecture(channels=1, height=8, width=8, classes=5, depth=10, widen=1)
    )
    network = backbones.build(architecture)
    for seed in range(3):
        network.train()(torch.from_numpy(stripes(30, seed).images).float() / 255)
    return network.eval().requires_grad_(False)
