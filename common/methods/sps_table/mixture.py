"""A mixture of products of columns for every class, fitted to noisy marginals by weighted least squares.

Component k of class c has a share and, for every column, a distribution of its own; within a component columns are
independent. So a column's marginal is a sum of K vectors and a pair's of K outer products, for all pairs at once, and
nothing has to be selected, triangulated or made consistent: whatever the mixture says is consistent and not negative.

The loss is the sum of (marginal - noisy marginal)² / noise² over all cells. At the true distribution it is about the
number of cells, and less only for a model that follows the noise: the fit ends a quarter of its steps after the loss is
no larger than that (the discrepancy principle; the quarter is for small tables, where chance may leave more room). A
parameter's steps are scaled by the mean of its own gradient's size and that of all, so that what many records say is
fitted long before what a rare cell says, which Adam would follow as fast, noise and all. Several fits from other random
starts agree on what stands out of the noise, and less on the rest: their mean is again a mixture, and closer than each.

How many records a class has is solved for in closed form, for columns and for pairs by themselves, as silos' sums may
be weighed differently. All cells together know that better than the one noisy count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpdd.common.methods.sps_table.marginals import COLUMNS, PAIRS, Floats, Marginals
from dpdd.common.methods.sps_table.settings import SynthesisSettings
from dpdd.common.progress import Progress
from dpdd.common.randomness import gaussians
from dpdd.common.synthesis.priors import ClassCounts
from dpdd.common.synthesis.statistics import Statistics

_FAINT = 1e-4  # the least probability of a cell at the start
_FEWEST = 1e-6
_MOMENTUM, _SCALE = 0.9, 0.99  # of averages over steps: of gradients, and of their squares
_FURTHER = 0.25
_LEAST_NOISE = 0.5  # in records: without noise, cells need not be met more closely than that


@dataclass(frozen=True, eq=False)
class NoisyTables:
    """In records, with their noise: `columns` (classes, cells) and `pairs` (classes, group cells, group cells)."""

    columns: Floats
    column_noise: float
    pairs: Floats | None = None
    pair_noise: float = 0.0


@dataclass(frozen=True, eq=False)
class Mixture:
    """`shares` (classes, components), `cells` (classes, components, cells of columns), and records of each class."""

    shares: Floats
    cells: Floats
    records: Floats


def noisy_tables(statistics: Statistics, marginals: Marginals) -> NoisyTables:
    """The released sums in records; every pair of columns is the mean of its two blocks."""
    columns = statistics.sums[COLUMNS] / marginals.column_weight
    column_noise = max(statistics.noise / marginals.column_weight, _LEAST_NOISE)
    if not marginals.has_pairs:
        return NoisyTables(columns, column_noise)
    width = marginals.group_width
    pairs = statistics.sums[PAIRS].reshape(marginals.classes, width, width) / marginals.pair_weight
    pair_noise = max(statistics.noise / marginals.pair_weight, _LEAST_NOISE)
    return NoisyTables(columns, column_noise, (pairs + pairs.transpose(0, 2, 1)) / 2.0, pair_noise)


def simplex(values: Floats) -> Floats:
    """The nearest vector of numbers from 0 that add up to 1.

    >>> simplex(np.array([0.9, 0.4, -0.2])).round(2).tolist()
    [0.75, 0.25, 0.0]
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)


def one_way(tables: NoisyTables, counts: Floats, marginals: Marginals) -> Floats:
    """The classes' distributions of each column (classes, cells) from its own noisy marginals alone.

    The pairs have them once more, on the diagonal, for columns of no more values than a pair may have.
    """
    columns = tables.columns.copy()
    if tables.pairs is not None:
        precision = (tables.column_noise / tables.pair_noise) ** 2
        again = np.diagonal(tables.pairs, axis1=1, axis2=2)
        for cells, groups in zip(marginals.cells, marginals.group_cells, strict=True):
            if cells.stop - cells.start == groups.stop - groups.start:
                columns[:, cells] = (columns[:, cells] + precision * again[:, groups]) / (1.0 + precision)
    found = np.empty_like(columns)
    for label, total in enumerate(np.maximum(counts, 1.0)):
        for cells in marginals.cells:
            found[label, cells] = simplex(columns[label, cells] / total)
    return found


def fit(
    tables: NoisyTables,
    counts: ClassCounts,
    marginals: Marginals,
    settings: SynthesisSettings,
    seed: int,
    progress: Progress,
) -> Mixture:
    """The mixture that has the noisy marginals, as far as they stand out of their noise; the mean of several fits."""
    start, loss = one_way(tables, counts.counts, marginals), _Loss(tables, marginals)
    found = []
    for number in range(settings.fits):
        model = _Logits(start, marginals, settings, seed, number)
        descent = _Descent(list(model.parameters()), settings.learning_rate)
        end = math.inf
        for step in range(settings.steps):
            distance = loss(*model())
            if math.isinf(end) and float(distance.detach()) <= loss.cells:
                end = (1.0 + _FURTHER) * step
            if step >= end:
                break
            descent.step(torch.autograd.grad(distance, descent.parameters))
            progress("fitting marginals", number * settings.steps + step + 1, settings.fits * settings.steps)
        with torch.no_grad():
            found.append(model())
    progress("fitting marginals", settings.fits * settings.steps, settings.fits * settings.steps)
    shares = torch.cat([shares for shares, _ in found], dim=1) / settings.fits
    cells = torch.cat([cells for _, cells in found], dim=1)
    return Mixture(shares.double().numpy(), cells.double().numpy(), loss.records(shares, cells, counts))


class _Descent:
    """Steps along averaged gradients, scaled half by each parameter's own size of them, and half by that of all."""

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        self.parameters, self._rate, self._steps = parameters, rate, 0
        self._means = [torch.zeros_like(each) for each in parameters]
        self._squares = [torch.zeros_like(each) for each in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step; the averages are corrected for their start at zero, as Adam's are."""
        self._steps += 1
        rate, since = self._rate / (1.0 - _MOMENTUM**self._steps), 1.0 - _SCALE**self._steps
        for parameter, gradient, mean, square in zip(
            self.parameters, gradients, self._means, self._squares, strict=True
        ):
            mean.lerp_(gradient, 1.0 - _MOMENTUM)
            square.lerp_(gradient.square(), 1.0 - _SCALE)
            size = ((square / since).sqrt() + (square.mean() / since).sqrt()) / 2.0
            parameter.sub_(rate * mean / size.clamp_min(1e-30))


class _Logits(nn.Module):
    """The parameters, from those of a product of columns and a random step away from it for every component."""

    def __init__(
        self, start: Floats, marginals: Marginals, settings: SynthesisSettings, seed: int, number: int
    ) -> None:
        super().__init__()
        shape = (marginals.classes, settings.components, marginals.width)
        apart = settings.spread * gaussians(seed, f"sps-table mixture {number}", shape) * (settings.components > 1)
        cells = np.log(start + _FAINT)[:, None, :] + apart
        self.slices = marginals.cells
        self.cells = nn.Parameter(torch.from_numpy(cells.astype(np.float32)))
        self.shares = nn.Parameter(torch.zeros(shape[:2]))

    def forward(self) -> tuple[Tensor, Tensor]:
        """The mixture's shares and cells."""
        cells = torch.cat([torch.softmax(self.cells[..., part], dim=-1) for part in self.slices], dim=-1)
        return torch.softmax(self.shares, dim=-1), cells


class _Loss:
    """The squared distance to noisy marginals in units of their noise: of the true ones, it is about `cells`."""

    def __init__(self, tables: NoisyTables, marginals: Marginals) -> None:
        self.columns = torch.from_numpy((tables.columns / tables.column_noise).astype(np.float32))
        self.column_noise, self.pair_noise = tables.column_noise, tables.pair_noise
        self.pairs: Tensor | None = None
        self.cells = float(self.columns.numel())
        if tables.pairs is None:
            return
        apart = marginals.apart()
        weights = np.where(apart, 1.0, 0.0)  # both triangles, each with a half of the weight that two noisy sums have
        np.fill_diagonal(weights, 1.0)  # the columns' own marginals once more
        self.weights = torch.from_numpy((weights / tables.pair_noise).astype(np.float32))
        self.pairs = torch.from_numpy(tables.pairs.astype(np.float32)) * self.weights
        self.grouping = torch.from_numpy(marginals.grouping())
        self.cells += marginals.classes * (float(apart.sum()) / 2.0 + marginals.group_width)

    def __call__(self, shares: Tensor, cells: Tensor) -> Tensor:
        """How far away the marginals of this mixture are."""
        distance = shares.new_zeros(())
        for marginals, noisy in self._marginals(shares, cells):
            with torch.no_grad():  # the derivative by the best number of records is 0
                best, _ = _records(marginals, noisy)
            distance = distance + (best.clamp_min(_FEWEST)[:, None] * marginals - noisy).square().sum()
        return distance

    def records(self, shares: Tensor, cells: Tensor, counts: ClassCounts) -> Floats:
        """How many records every class has, from the released count and from all cells, each by its precision."""
        total, precision = counts.counts.copy(), np.ones_like(counts.counts)
        for marginals, noisy in self._marginals(shares, cells):
            best, weight = (part.double().numpy() for part in _records(marginals, noisy))
            weight = weight * max(counts.noise, _LEAST_NOISE) ** 2
            total, precision = total + weight * best, precision + weight
        return np.maximum(total / precision, _FEWEST)

    def _marginals(self, shares: Tensor, cells: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The mixture's marginals of columns, then of pairs, beside the noisy ones; in units of the noise."""
        yield torch.einsum("ck,ckd->cd", shares, cells) / self.column_noise, self.columns
        if self.pairs is None:
            return
        groups = cells @ self.grouping
        own = torch.diag_embed(torch.einsum("ck,ckd->cd", shares, groups))
        pairs = torch.einsum("ckd,cke->cde", groups * shares[..., None], groups)
        eye = torch.eye(len(self.weights), dtype=torch.bool)
        yield (torch.where(eye, own, pairs) * self.weights).flatten(1), self.pairs.flatten(1)


def _records(marginals: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
    """By which numbers of records each class's marginals come closest to the noisy ones, and how precise these are."""
    weight = marginals.square().sum(1)
    return (marginals * noisy).sum(1) / weight.clamp_min(1e-30), weight
