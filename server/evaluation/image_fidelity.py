"""How close synthetic images are to real ones, in the feature space of a public network that is named beside them.

- **Fréchet distance** of two Gaussians, one fitted to the features of either (what FID is in Inception's features).
- **Density** and **coverage** (Naeem et al. 2020): each real image has a ball that reaches its k-th nearest real
  neighbour. Density is in how many balls a synthetic image lies, on average and over k, so that real images would have
  about 1; it can be more. Coverage is the share of balls with at least one synthetic image: what real images there are
  that some synthetic one resembles. Few images cannot cover many.
- **Label entropy**, in bits: the mean over images of the entropy of their labels. 0 for hard labels, log2(classes) for
  labels that say nothing.

All but the last are biased in small samples: compare figures of one number of images, in one feature space.

>>> real = np.array([[0.0], [1.0], [2.0], [3.0]])
>>> density_and_coverage(real, np.array([[0.5], [9.0]]), neighbours=1)
(1.0, 0.5)
>>> frechet_distance(real, real + 2.0)
4.0
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import DataError
from dpdd.common.randomness import uniforms

if TYPE_CHECKING:
    from dpdd.common.data.labelled_images import LabelledImages
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.synthesis.labelled_set import LabelledSet

MOST_IMAGES = 2000
"""Of either kind; of more, a public sample."""
NEIGHBOURS = 5
"""As its authors have it."""

Floats = NDArray[np.float64]


def image_fidelity(backbone: Backbone, dataset: LabelledSet, test: LabelledImages) -> dict[str, Any]:
    """Every figure, of a set of images beside real ones; for `metrics.json`."""
    images, real = (_sample(each) for each in (dataset.images, test.images))
    features, real_features = (_features(backbone, each) for each in (images, real))
    facts = {
        "backbone": backbone.card.name,
        "dimensions": features.shape[1],
        "images": len(images),
        "real_images": len(real),
        "frechet": frechet_distance(real_features, features),
        "label_entropy": label_entropy(dataset.soft),
    }
    if len(real) > NEIGHBOURS:
        facts["density"], facts["coverage"] = density_and_coverage(real_features, features)
        facts["neighbours"] = NEIGHBOURS
    return facts


def frechet_distance(first: Floats, second: Floats) -> float:
    """|m - n|² + tr(A + B - 2 (A B)^½), for means m and n and covariances A and B of the rows."""
    (mean, root), (other_mean, other_root) = (_gaussian(rows) for rows in (first, second))
    # The singular values of √A √B are the roots of the eigenvalues of A B, with no covariance ever squared.
    shared = np.linalg.svd(root @ other_root.T, compute_uv=False).sum()
    spread = np.square(root).sum() + np.square(other_root).sum() - 2.0 * shared
    return float(np.square(mean - other_mean).sum() + max(spread, 0.0))


def density_and_coverage(real: Floats, synthetic: Floats, neighbours: int = NEIGHBOURS) -> tuple[float, float]:
    """Both, from the rows of features."""
    if len(real) <= neighbours or len(synthetic) == 0:
        raise DataError(
            f"{len(real)} real and {len(synthetic)} synthetic images are too few for {neighbours} neighbours"
        )
    among = _squared_distances(real, real)
    np.fill_diagonal(among, -1.0)  # an image is no neighbour of itself; its twins are
    radii = np.partition(among, neighbours, axis=1)[:, neighbours]
    inside = _squared_distances(real, synthetic) <= radii[:, None]
    return float(inside.sum() / (neighbours * len(synthetic))), float(inside.any(axis=1).mean())


def label_entropy(soft: NDArray[np.floating[Any]] | None) -> float:
    """Of soft labels (N, classes), the mean over rows, in bits; 0 where there are none.

    >>> label_entropy(np.array([[0.5, 0.5], [1.0, 0.0]]))
    0.5
    """
    if soft is None or len(soft) == 0:
        return 0.0
    shares = np.asarray(soft, dtype=np.float64)
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0.0)
    return float(abs((shares * logs).sum(axis=1)).mean())


def _gaussian(rows: Floats) -> tuple[Floats, Floats]:
    """The mean, and a matrix R with R'R = the covariance."""
    mean = rows.mean(axis=0)
    root = (rows - mean) / math.sqrt(len(rows))
    if len(rows) > rows.shape[1]:
        root = np.asarray(np.linalg.qr(root, mode="r"))
    return mean, root


def _squared_distances(first: Floats, second: Floats) -> Floats:
    """Between all pairs of rows, by differences: two equal rows are at distance 0 exactly."""
    from scipy.spatial.distance import cdist

    distances: Floats = cdist(first, second, "sqeuclidean")
    return distances


def _sample(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if len(images) <= MOST_IMAGES:
        return images
    drawn = uniforms(0, "images whose features are compared", len(images))
    return images[np.sort(np.argsort(drawn, kind="stable")[:MOST_IMAGES])]


def _features(backbone: Backbone, images: NDArray[np.uint8]) -> Floats:
    import torch

    from dpdd.common.models.probe import extract

    features = extract(backbone.network, torch.from_numpy(np.ascontiguousarray(images)))
    return np.asarray(features.numpy(), dtype=np.float64)
