"""Subspace error reduction (SER): which directions of a network's features are worth their noise.

Noise is the same in every coordinate, so a direction in which images hardly differ costs as much error as one in which
they differ most. `fit` finds the directions in which *auxiliary* images differ (PCA); those images are public or
differentially private, so nothing here reads a record. `predict` says, before any record is read, what error the mean
of a class would have with d directions, and `best` picks d by it (the paper's theorem 1, with clipping to a typical
norm).

Silos and coordinator compute the same subspace apart from each other. Eigenvectors of nearly equal eigenvalues turn
with the last bits of the input. So the features of auxiliary images are computed in whole numbers, which have the same
bits everywhere (`dpdd.common.models.integer_net`; for older requests in double precision), what follows is in double
precision, and the sign of a direction is fixed by a public random vector.

>>> import torch
>>> values = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
>>> space = fit(values, 1, seed=0)
>>> space.basis.abs().round(decimals=6).tolist(), space.spectrum.tolist()
([[1.0], [0.0]], [4.5, 0.5])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpdd.common.randomness import gaussians

_HARDLY = 1e-6
"""A smaller variance is not blown up: features of an instance-normed network are around 1."""

_NOTHING = 1e-10
"""Below this share of the largest variance a direction is rounding errors, and nobody else would find the same one."""


@dataclass(frozen=True, eq=False)
class Subspace:
    """Directions (D, d) around a mean (D); `clip` is the norm that half of the auxiliary images have inside it.

    `spectrum` are all variances, those of the kept directions first. Directions are zero where images do not differ,
    and shorter than 1 where they differ more than in the last one, if the subspace was whitened. `spread` (d) are the
    deviations of coordinates, and `square_clip` is to `squares` what `clip` is to coordinates.
    """

    mean: Tensor
    basis: Tensor
    clip: float
    spectrum: Tensor
    spread: Tensor
    square_clip: float

    def __call__(self, values: Tensor) -> Tensor:
        """Coordinates inside, in units of the clip norm; differentiable."""
        inside: Tensor = (values - self.mean.to(values)) @ (self.basis / self.clip).to(values)
        return inside

    def squares(self, inside: Tensor) -> Tensor:
        """Of coordinates: each squared, over its variance among auxiliary images, less 1; in units of their norm."""
        return _squares(inside * self.clip, self.spread) / self.square_clip


def fit(values: Tensor, dimensions: int, seed: int, whitening: float = 0.0) -> Subspace:
    """The `dimensions` directions in which `values` (N, D; float64) differ most.

    `whitening` from 0 to 1 brings coordinates closer to each other in size: 1 makes them all differ by the same.
    """
    if values.dtype != torch.float64:
        raise TypeError("a subspace is fitted in double precision")
    count, width = values.shape
    if not 1 <= dimensions <= min(count - 1, width):
        raise ValueError(f"{count} auxiliary images span at most {min(count - 1, width)} directions, not {dimensions}")
    mean = values.mean(dim=0)
    centred = values - mean
    if count < width:
        variances, vectors = torch.linalg.eigh(centred @ centred.T / count)
        variances, vectors = variances.flip(0), vectors.flip(1)
        basis = centred.T @ vectors[:, :dimensions]
        basis = basis / basis.norm(dim=0, keepdim=True)
    else:
        variances, vectors = torch.linalg.eigh(centred.T @ centred / count)
        variances, vectors = variances.flip(0), vectors.flip(1)
        basis = vectors[:, :dimensions]
    compass = torch.from_numpy(gaussians(seed, "sign of directions", (width,)))
    signs = torch.where(compass @ basis < 0.0, -1.0, 1.0)
    differ = variances[:dimensions] > _NOTHING * variances[0]
    basis = torch.where(differ, basis * signs, 0.0)
    variances = variances.clamp_min(0.0)
    own = variances[:dimensions].clamp_min(_HARDLY)
    shorter = (own[-1] / own) ** (whitening / 2.0)
    basis, spread = basis * shorter, own.sqrt() * shorter
    inside = centred @ basis
    clip, square_clip = (
        float(part.norm(dim=1).median().clamp_min(1e-12)) for part in (inside, _squares(inside, spread))
    )
    return Subspace(mean, basis, clip, variances, spread, square_clip)


def _squares(inside: Tensor, spread: Tensor) -> Tensor:
    return (inside / spread.to(inside)).square() - 1.0


def predict(spectrum: Tensor, noise: float, per_class: float, between: float = 0.3) -> Tensor:
    """The expected squared error of a class mean with 1, 2, ... directions (entry d - 1 is for d of them).

    `noise` is σ, `per_class` how many records of a class are expected in a draw. Three parts, as in the paper: sampling
    of what is kept, Σλ/n; noise of σ × clip norm in each of d coordinates of a sum over n; and what is given up of a
    class's own mean. Auxiliary images have no classes to measure that on, so `between` says which share of variance
    lies between classes. The clip norm is the typical norm inside, √Σλ.

    >>> predict(torch.tensor([4.0, 1.0, 0.0]), noise=0.0, per_class=1e9, between=1.0).round(decimals=3).tolist()
    [1.0, 0.0, 0.0]
    """
    kept = spectrum.cumsum(0)
    dimensions = torch.arange(1, len(spectrum) + 1, dtype=spectrum.dtype)
    return kept / per_class + dimensions * kept * (noise / per_class) ** 2 + between * (kept[-1] - kept)


def best(spectrum: Tensor, noise: float, per_class: float, most: int) -> int:
    """How many directions have the least predicted error."""
    return int(predict(spectrum, noise, per_class)[:most].argmin()) + 1
