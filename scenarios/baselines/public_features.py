"""Features of a public backbone, whitened, so that they are easier to learn from under noise.

Whitening flattens the spectrum of the features, so that a unit of noise hurts all directions alike. The map is the
backbone's own (`dpdd.common.models.whitening`): it was fitted to public images, or to images that are no data, and lies
in the same file. No private record is used for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.models.feature_network import FeatureNetwork

MOST = 512
"""Of a backbone with more features, such as a scattering transform, the strongest directions count."""

_CHUNK = 2000


def extracted(
    network: FeatureNetwork, images: NDArray[np.uint8], what: str, progress: Progress = silent
) -> NDArray[np.floating]:
    """The whitened features of uint8 images; `what` is what progress says."""
    import torch

    from dpdd.common.models.probe import extract

    dimensions = min(network.whitening.dimensions, MOST)
    parts = []
    for start in range(0, len(images), _CHUNK):
        features = extract(network, torch.from_numpy(np.ascontiguousarray(images[start : start + _CHUNK])))
        with torch.inference_mode():
            parts.append(network.whitening(features, dimensions))
        progress(what, min(start + _CHUNK, len(images)), len(images))
    return np.asarray(torch.cat(parts).numpy())


def described(backbone: Backbone) -> str:
    """What was done to the features, in words."""
    whitening = backbone.network.whitening
    if not whitening.fitted:
        return "as they are (its whitening was never fitted)"
    which = f"the {MOST} strongest directions, " if whitening.dimensions > MOST else ""
    return f"{which}whitened by its own map (public data: {backbone.card.provenance.public_data})"
