"""From noisy sums to Gaussians, and how far one Gaussian is from another: the arithmetic of SPS, eqs. 2 and 4.

Second moments with noise in them give covariances with negative eigenvalues. Those are cut off at zero, and a jitter
γ·|λ_min| goes on the diagonal, on the private and on the synthetic side alike, so that directions which are mostly
noise weigh little. The jitter never falls below a tenth of the mean eigenvalue: a small synthetic batch has a
rank-deficient covariance, and without that floor less noise would make the match worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 0.1


@dataclass(frozen=True, eq=False)
class Gaussians:
    """A batch of Gaussians: means (R, D), covariances and their jitter (R, D, D), the jitters (R), and who is known."""

    means: Tensor
    covariances: Tensor
    jitters: Tensor
    known: Tensor  # (R), False where the sums are lost in noise

    @property
    def log_determinants(self) -> Tensor:
        """Of the covariances."""
        return torch.logdet(self.covariances)


def fit(means: Tensor, second: Tensor, known: Tensor, gamma: float) -> Gaussians:
    """Gaussians from (noisy) first and second moments."""
    raw = second - means[:, :, None] * means[:, None, :]
    values, vectors = torch.linalg.eigh(raw)
    mean_value = values.clamp_min(0.0).mean(1)
    jitters = torch.maximum(gamma * (-values[:, 0]).clamp_min(0.0), FLOOR * mean_value).clamp_min(1e-6)
    clipped = vectors @ torch.diag_embed(values.clamp_min(0.0)) @ vectors.transpose(1, 2)
    eye = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
    return Gaussians(means, clipped + jitters[:, None, None] * eye, jitters, known)


def divergence(target: Gaussians, means: Tensor, second: Tensor) -> Tensor:
    """KL(target ‖ batch) per dimension, for each known Gaussian, the batch being given by its moments."""
    raw = second - means[:, :, None] * means[:, None, :]
    eye = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
    factor = torch.linalg.cholesky(raw + target.jitters[:, None, None] * eye)
    gap = (means - target.means)[:, :, None]
    spread = torch.cholesky_solve(target.covariances, factor).diagonal(dim1=1, dim2=2).sum(1)
    distance = (gap * torch.cholesky_solve(gap, factor)).sum((1, 2))
    log_determinant = 2.0 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    dimensions = means.shape[1]
    divergences = 0.5 * (spread + distance - dimensions + log_determinant - target.log_determinants) / dimensions
    return divergences[target.known]
