"""Where the rows of a table lie: marginals that are released beside gradients, and what they are good for.

A gradient of a table says how its classes differ, and next to nothing of what rows look like. A support set that starts
from noise hardly meets any, and with balanced labels it cannot know where between the classes the threshold is. So,
where `marginals` is set, each contribution has two parts: the gradient, of norm √(1-a²) at most, and the one-hot row of
the record in the row of its class, of norm a. Over the rounds the second adds up to noisy class-conditional marginals.
Then, all by post-processing:

- After `start_steps` rounds the support set starts anew, from rows that are chosen to have the marginals so far (as SPS
  for tables chooses few rows, of columns that are independent in a class).
- In the end, rows are chosen likewise with the marginals of all rounds. Their codes change one by one until their
  classifier is the wanted one: the sum of that of the relaxed set, which gradients led to, and of naive Bayes, which
  the marginals contain, both at the same scale. On rows that are drawn of the marginals, as many of every class, the
  relaxed set's threshold is put where it names all classes alike.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_kip.code_descent import improve
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred, predictions
from dpdd.common.methods.dp_kip.moments import Goal
from dpdd.common.methods.dp_kip.settings import GradientSettings, TableSettings
from dpdd.common.methods.dp_kip.table_inputs import PROBES, cells_of
from dpdd.common.methods.dp_kip.table_synthesis import second_moment
from dpdd.common.methods.sps_table.mixture import Mixture, simplex
from dpdd.common.methods.sps_table.rows import draw, herd
from dpdd.common.privacy.clipping import Segment, class_segment

MARGINALS = "marginals"
"""The released sums of one-hot rows, by class."""
SHARPNESS = 0.9
"""How far the rows that a set starts from are one-hot; the rest is the class's own marginals, so that all may move."""
_DECAY = 1e-3
"""A column's cells add up to 1, so their weights are only known but for a constant."""

Floats = NDArray[np.float64]


def segment(settings: GradientSettings, run: RunDescription) -> Segment:
    """A row of cells for every class; ConfigError for images, which have none."""
    if run.kind is not DataKind.TABLE:
        raise ConfigError("marginals are released beside gradients for tables only: leave the setting out for images")
    if settings.frozen:
        raise ConfigError("marginals are released beside gradients in factors only: leave out frozen")
    return class_segment(MARGINALS, cells_of(run).width, len(run.classes))


def gradient_norm(settings: GradientSettings) -> float:
    """To which gradients are clipped: what the row beside leaves of norm 1."""
    return math.sqrt(1.0 - settings.marginals**2)


def rows_beside(settings: GradientSettings, run: RunDescription, hot: NDArray[np.float32]) -> NDArray[np.float32]:
    """One-hot rows (N, cells), of norm `marginals`; a row of NaN, which is no row of the schema, stays one."""
    scaled: NDArray[np.float32] = hot * np.float32(settings.marginals / math.sqrt(len(run.columns)))
    return scaled


def distributions(sums: Floats, run: RunDescription) -> Floats:
    """Of every column's codes in every class, from noisy sums of one-hot rows: the nearest ones to the shares.

    A class without any records to speak of has all codes alike.
    """
    found, layout = np.empty_like(sums), cells_of(run)
    for row, total, shares in zip(sums, _records(sums, run), found, strict=True):
        for cells, size in zip(layout.cells, layout.sizes, strict=True):
            shares[cells] = simplex(row[cells] / total) if total > 0.0 else 1.0 / size
    return found


def started_anew(sums: Floats, settings: GradientSettings, run: RunDescription) -> NDArray[np.float32]:
    """A support set (rows, cells) of rows that have these noisy sums (classes, cells) for marginals."""
    cells, count = distributions(sums, run), settings.support_per_class
    hot = cells_of(run).one_hot(_herded(_product(cells), run, count).astype(np.float32))
    mixed = SHARPNESS * hot + (1.0 - SHARPNESS) * cells.repeat(count, axis=0)
    return np.clip(mixed, 0.0, 1.0).astype(np.float32)


def decoded(
    run: RunDescription, settings: GradientSettings, support: Floats, sums: Floats, noise: float
) -> NDArray[np.float32]:
    """Rows of codes, of the relaxed set (rows, cells) and the sums of all rounds, in which there is so much noise."""
    layout, table, classes = cells_of(run), TableSettings(), len(run.classes)
    product = _product(distributions(sums, run))
    second = torch.from_numpy(second_moment(product, layout))
    both = [_of_relaxed_set(run, settings, support, product), _naive_bayes(sums, noise, run)]
    wanted = sum((each / Goal.of(second, each).squares.sqrt().clamp_min(1e-30) for each in both), torch.zeros(()))
    count = min(run.images_per_class, settings.support_per_class)
    labels, start = np.arange(classes).repeat(count), _herded(product, run, count)
    rows = improve(start, labels, Goal.of(second, wanted), layout.sizes, table.ridge, table.sweeps)
    return rows.astype(np.float32)


def _of_relaxed_set(run: RunDescription, settings: GradientSettings, support: Floats, product: Mixture) -> Tensor:
    """The nearest linear classifier (classes, cells + 1) on rows drawn of the marginals, as many of every class."""
    layout, classes = cells_of(run), len(run.classes)
    rows = [draw(product, layout, label, PROBES // classes, run.public_seed, "probes") for label in range(classes)]
    hot = torch.from_numpy(layout.one_hot(np.concatenate(rows).astype(np.float32))).double()
    targets = centred(torch.arange(classes).repeat_interleave(settings.support_per_class), classes).double()
    said = predictions(FullyConnectedNTK(settings.depth), hot, torch.from_numpy(support), targets, settings.ridge)
    said = said - said.quantile(1.0 - 1.0 / classes, 0)  # so each class is named for its share of them
    hot = torch.nn.functional.pad(hot, (0, 1), value=1.0)
    within = hot.T @ hot / len(hot) + _DECAY * torch.eye(hot.shape[1])
    weights: Tensor = torch.linalg.solve(within, hot.T @ said / len(hot)).T
    return weights


def _naive_bayes(sums: Floats, noise: float, run: RunDescription) -> Tensor:
    """Its weights (classes, cells + 1) for equal class shares; what is below the noise weighs next to nothing."""
    records = np.maximum(_records(sums, run), 0.0)[:, None]
    least = max(noise, 1e-6 * float(records.max()), 1e-30)
    weights = np.log((records * distributions(sums, run) + least) / (records + least))
    return torch.from_numpy(np.pad(weights, ((0, 0), (0, 1))))


def _records(sums: Floats, run: RunDescription) -> Floats:
    """How many records each class has, in units of the sums."""
    columns = [sums[:, cells].sum(1) for cells in cells_of(run).cells]
    records: Floats = np.mean(columns, axis=0)
    return records


def _product(cells: Floats) -> Mixture:
    """Columns that are independent in every class."""
    return Mixture(np.ones((len(cells), 1)), cells[:, None], np.ones(len(cells)))


def _herded(product: Mixture, run: RunDescription, count: int) -> NDArray[np.int64]:
    """So many rows of every class."""
    layout, classes = cells_of(run), len(run.classes)
    return np.concatenate([herd(product, layout, label, count, run.public_seed) for label in range(classes)])
