"""The generator of rows: relaxed ones, whose points have gradients, and hard ones, which are codes.

A category is drawn by the Gumbel trick: forward it is one category, backward the softmax of all. A number is a point
between 0 and 1, and becomes the bin that it falls into. Whether a number is missing is a category of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from dpdd.common.data.table.columns import Categorical, Column
from dpdd.common.methods.dp_merf.rows import points_of
from dpdd.common.methods.dp_merf.settings import SynthesisSettings


class RowGenerator(nn.Module):
    """Latent noise and a class to a row."""

    def __init__(self, settings: SynthesisSettings, classes: int, columns: Sequence[Column]) -> None:
        super().__init__()
        self.columns, self.classes, self.latent = tuple(columns), classes, settings.latent
        widths = [column.size if isinstance(column, Categorical) else 1 + 2 * column.missing for column in columns]
        self.starts = [sum(widths[:at]) for at in range(len(widths) + 1)]
        self.network = nn.Sequential(
            nn.Linear(settings.latent + classes, settings.hidden),
            nn.BatchNorm1d(settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, settings.hidden),
            nn.BatchNorm1d(settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, self.starts[-1]),
        )

    def forward(self, labels: Tensor) -> Tensor:
        """The points of one row per label, from fresh latent noise."""
        parts = []
        for column, raw in zip(self.columns, self._raw(labels), strict=True):
            if isinstance(column, Categorical):
                chosen = nn.functional.gumbel_softmax(raw, hard=True)
                parts.append(chosen @ torch.from_numpy(points_of(column)).to(raw.device))
                continue
            number = torch.sigmoid(raw[:, :1])
            if column.missing:
                gone = nn.functional.gumbel_softmax(raw[:, 1:], hard=True)[:, 1:]
                number = torch.cat([number * (1.0 - gone) + 0.5 * gone, gone], dim=1)
            parts.append(number)
        return torch.cat(parts, dim=1)

    def codes(self, labels: Tensor) -> Tensor:
        """The codes of one row per label, from fresh latent noise."""
        parts = []
        for column, raw in zip(self.columns, self._raw(labels), strict=True):
            if isinstance(column, Categorical):
                parts.append(nn.functional.gumbel_softmax(raw, hard=True).argmax(dim=1))
                continue
            number = (torch.sigmoid(raw[:, 0]) * column.values).long().clamp(0, column.values - 1)
            if column.missing:
                gone = nn.functional.gumbel_softmax(raw[:, 1:], hard=True)[:, 1] > 0.5
                number = torch.where(gone, column.values, number)
            parts.append(number)
        return torch.stack(parts, dim=1)

    def _raw(self, labels: Tensor) -> list[Tensor]:
        noise = torch.randn(len(labels), self.latent, device=labels.device)
        raw = self.network(torch.cat([noise, nn.functional.one_hot(labels, self.classes).float()], dim=1))
        return [raw[:, start:stop] for start, stop in pairwise(self.starts)]
