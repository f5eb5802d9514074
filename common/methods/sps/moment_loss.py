"""How alike the embeddings of a synthetic batch and of the records are: class means, and the covariance around them.

Each class is taken for a Gaussian around its own mean, all with one covariance, which is known ten times better than
any class's own (ten classes share it). `losses` has two parts, both from KL(released ‖ batch) for such Gaussians:

- features: the distance of class means along the strongest directions of the second moment, and the divergence of the
  covariance along its own strongest directions, as many as stand out of the noise;
- picture: the divergence of the small pictures, pixel by pixel.

A class that is lost in the noise has no part in this; it is sketched as if it were any of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpdd.common.methods.sps.classifier import Moments
from dpdd.common.methods.sps.gaussian_fit import Gaussians, divergence, fit
from dpdd.common.synthesis.image_embedding import ImageEmbedding

MEAN_DIRECTIONS, SPREAD_DIRECTIONS = 256, 64
_UNIT = 100.0
"""Embeddings have entries around 0.05, variances around 0.002; in these units the jitter's absolute floor is small."""


@dataclass(frozen=True, eq=False)
class MomentLoss:
    """What a batch is compared with."""

    embedding: ImageEmbedding
    means: Tensor  # (classes, D)
    directions: Tensor  # (D, k), of the means, divided by their deviation
    axes: Tensor  # (D, m), of the covariance, likewise
    spreads: Gaussians
    pictures: Gaussians | None  # None where embeddings have none
    picture_root: Tensor  # of the pictures' covariance, as far as it stands out of the noise

    @classmethod
    def of(cls, moments: Moments, embedding: ImageEmbedding) -> MomentLoss:
        """From the first stage's noisy moments."""
        known = moments.known
        shares = torch.where(known, moments.counts, 0.0)
        means = torch.where(known[:, None], moments.means, shares @ moments.means / shares.sum().clamp_min(1.0))
        values, vectors = torch.linalg.eigh(moments.second)
        scale = (values.clamp_min(0.0) + values.clamp_min(0.0).mean()).rsqrt()
        directions = (vectors * scale)[:, -MEAN_DIRECTIONS:]
        values, vectors = torch.linalg.eigh(moments.within)
        kept = values > max(0.5 * moments.spectral_noise, 1e-6)
        kept &= torch.arange(len(values)) >= len(values) - SPREAD_DIRECTIONS
        kept[-2:] = True
        axes = (vectors / values.clamp_min(1e-6).sqrt())[:, kept]
        spreads = _gaussians(means @ axes, axes.T @ moments.within @ axes, known)
        pictures, root = None, torch.zeros(0, 0)
        if embedding.side:
            small = embedding.picture
            pictures = _gaussians(_UNIT * means[:, small], _UNIT**2 * moments.within[small, small], known)
            variances, basis = torch.linalg.eigh(moments.within[small, small])
            variances = torch.where(variances > 2.0 * moments.noise * len(variances) ** 0.5, variances, 0.0)
            root = (basis * variances.sqrt()).float()
        return cls(embedding, means.float(), directions.float(), axes.float(), spreads, pictures, root)

    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Embeddings of which only the small picture counts, one for each label, from the released Gaussians."""
        embeddings = torch.zeros(len(labels), self.embedding.dimensions)
        if self.pictures is None:
            return embeddings
        drawn = torch.randn(len(labels), len(self.picture_root), generator=generator) @ self.picture_root.T
        embeddings[:, self.embedding.picture] = self.means[labels][:, self.embedding.picture] + drawn
        return embeddings

    def losses(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Of features and of pictures; 0 for a batch with exactly the released moments."""
        one_hot = torch.nn.functional.one_hot(labels, len(self.means)).to(embeddings)
        means = one_hot.T @ embeddings / one_hot.sum(0).clamp_min(1.0)[:, None]
        around = embeddings - means[labels]
        spare = len(labels) / max(len(labels) - len(self.means), 1)  # as many means were taken off
        distance = _mean(((means - self.means) @ self.directions).square().sum(1)[self.spreads.known])
        spread = _divergence(self.spreads, means @ self.axes, around @ self.axes, spare)
        picture = self.embedding.picture
        small = embeddings.new_zeros(())
        if self.pictures is not None:
            small = _divergence(self.pictures, _UNIT * means[:, picture], _UNIT * around[:, picture], spare)
        return distance + spread, small


def _gaussians(means: Tensor, covariance: Tensor, known: Tensor) -> Gaussians:
    """One Gaussian per class, all with one covariance."""
    second = covariance + means[:, :, None] * means[:, None, :]
    fitted = fit(means, second, known, 1.0)
    return Gaussians(fitted.means.float(), fitted.covariances.float(), fitted.jitters.float(), fitted.known)


def _divergence(target: Gaussians, means: Tensor, around: Tensor, spare: float) -> Tensor:
    covariance = spare * around.T @ around / len(around)
    return _mean(divergence(target, means, covariance + means[:, :, None] * means[:, None, :]))


def _mean(losses: Tensor) -> Tensor:
    """Over the known classes; 0 where there are none."""
    return losses.sum() / max(len(losses), 1)
