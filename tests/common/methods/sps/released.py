"""What a silo would release of some images, recomputed in plain floats: for tests of what is made of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.sps.classifier import RESIDUAL_CLIP
from dpdd.common.methods.sps.feature_statistics import (
    CLASS_SUMS,
    COUNT,
    RESIDUAL,
    SECOND_MOMENT,
    FeatureStatistics,
    Statistic,
)
from dpdd.common.synthesis.statistics import Statistics


def statistics_of(
    spec: FeatureStatistics,
    images: Tensor,
    labels: Tensor,
    noise: float = 0.0,
    stage_input: Mapping[str, NDArray] | None = None,
) -> Statistics:
    """Sums over these images in the layout of `spec`, with Gaussian noise in every entry."""
    stage_input = stage_input or {}
    one_hot = functional.one_hot(labels, spec.classes).double()
    with torch.no_grad():
        rows, embeddings = spec.measure(images, reference_of(spec, stage_input, labels))
    sums = {}
    for statistic in spec.statistics:
        added = one_hot @ _rows_of(statistic, spec).T  # (records, rows of the sum)
        sums[statistic.name] = added.T @ rows[:, spec.columns[statistic.name]].double()
    if embeddings is not None:
        p = embeddings.double()
        if spec.stage == 0:
            sums[CLASS_SUMS] = one_hot.T @ p * spec.weights[CLASS_SUMS]
            sums[SECOND_MOMENT] = (p.T @ p).reshape(1, -1) * spec.weights[SECOND_MOMENT]
        else:
            wrong = torch.softmax(p @ torch.from_numpy(np.asarray(stage_input["teacher"], np.float64)).T, 1) - one_hot
            wrong = wrong / wrong.norm(dim=1, keepdim=True).clamp_min(RESIDUAL_CLIP)
            sums[RESIDUAL] = (wrong.T @ p).reshape(1, -1) * spec.weights[RESIDUAL]
    sums[COUNT] = one_hot.sum(0)[:, None] * spec.count_weight
    generator = np.random.Generator(np.random.PCG64(3 + spec.stage))
    noisy = {name: array.numpy() + noise * generator.standard_normal(array.shape) for name, array in sums.items()}
    return Statistics(noisy, noise, 1, stage_input)


def reference_of(spec: FeatureStatistics, stage_input: Mapping[str, NDArray], labels: Tensor) -> Tensor | None:
    """What is taken off each record's rows."""
    if "rows" not in stage_input:
        return None
    scale = torch.cat([torch.full((statistic.width,), spec.weights[statistic.name]) for statistic in spec.statistics])
    return (torch.from_numpy(np.asarray(stage_input["rows"], np.float32)) * scale)[labels]


def _rows_of(statistic: Statistic, spec: FeatureStatistics) -> Tensor:
    """Which classes are added to which rows of the sum."""
    if statistic.scope == "global":
        return torch.ones(1, spec.classes, dtype=torch.float64)
    if statistic.scope == "class":
        return torch.eye(spec.classes, dtype=torch.float64)
    assert spec.groups is not None
    members = [[float(label in group) for label in range(spec.classes)] for group in spec.groups.members]
    return torch.tensor(members, dtype=torch.float64)
