"""What DP-MERF measures: random Fourier features of a record, summed by class."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_merf import rows
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
    size = (_width(run), settings.features)
    drawn = gaussians(run.public_seed, "dp-merf frequencies", size) / settings.length_scale
    return torch.from_numpy(drawn.astype(np.float32))


def working_memory(settings: MethodSettings, run: RunDescription) -> int:
    """Four arrays of doubles are alive while the frequencies are drawn, and more than is left of them afterwards."""
    return 32 * _width(run) * settings.features


def embed_records(records: Tensor, omega: Tensor, run: RunDescription) -> Tensor:
    """φ of a batch of images in [0, 1], or of rows of codes; every row has norm 1."""
    if run.kind is DataKind.IMAGE:
        return embed(records, omega)
    return _waves(rows.angles(records, run.columns, omega))


def embed(points: Tensor, omega: Tensor) -> Tensor:
    """φ of a batch of points, which images are as they are; every row has norm 1."""
    return _waves(points.flatten(1) @ omega)


def _waves(angles: Tensor) -> Tensor:
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1) / math.sqrt(angles.shape[1])


def _width(run: RunDescription) -> int:
    """The coordinates of a record, before frequencies: pixels, or what the cells of a row are spread over."""
    return math.prod(run.shape) if run.kind is DataKind.IMAGE else rows.dimensions(run.columns)
