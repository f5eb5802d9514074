"""What DP-MERF measures: random Fourier features of a record, summed by class."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_merf.settings import MethodSettings
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.randomness import gaussians


def layout(settings: MethodSettings, run: RunDescription) -> Layout:
    """The released sums: an embedding and a count per class."""
    classes = len(run.classes)
    return Layout(
        (
            class_segment("embedding", 2 * settings.features, classes),
            class_segment("count", 1, classes),
        )
    )


def frequencies(settings: MethodSettings, run: RunDescription) -> Tensor:
    """The random frequencies ω, the same for everybody with this public seed."""
    size = (math.prod(run.shape), settings.features)
    drawn = gaussians(run.public_seed, "dp-merf frequencies", size) / settings.length_scale
    return torch.from_numpy(drawn.astype(np.float32))


def working_memory(settings: MethodSettings, run: RunDescription) -> int:
    """Four arrays of doubles are alive while the frequencies are drawn, and more than is left of them afterwards."""
    return 32 * math.prod(run.shape) * settings.features


def embed(images: Tensor, omega: Tensor) -> Tensor:
    """φ of a batch of images in [0, 1]; every row has norm 1."""
    angles = images.flatten(1) @ omega
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1) / math.sqrt(omega.shape[1])
