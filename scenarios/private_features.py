"""Features of a public backbone, as rows for linear classifiers: whitened, or as the network gives them.

Whitening flattens the spectrum of the features, so that a unit of noise hurts all directions alike. The map is the
backbone's own (`dpdd.common.models.whitening`): it was fitted to public images, or to images that are no data, and lies
in the same file; the portrait of SPS has it, too. *Raw* features are the pooled ones of a network, or all coefficients
of a scattering transform. No private record is used for either.

>>> Features.parse("raw"), Features.parse("256")
(Features(whitened=None), Features(whitened=256))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from torch import Tensor

    from dpdd.common.models.backbone import Backbone
    from dpdd.common.models.tapped import FeatureNet

USUAL = 512
"""As many as the portrait of SPS has."""

_CHUNK = 1000


@dataclass(frozen=True)
class Features:
    """The strongest `whitened` directions of a backbone's features (or all there are); with None, raw features."""

    whitened: int | None = USUAL

    @classmethod
    def parse(cls, text: str) -> Features:
        """From ``raw`` or a number; ValueError for anything else."""
        if text == "raw":
            return cls(None)
        if not (text.isdecimal() and 1 <= int(text) < 2**20):
            raise ValueError(f"features are 'raw', or a number of whitened ones from 1 up, not {text!r}")
        return cls(int(text))

    def count(self, network: FeatureNet) -> int:
        """How many there are of this network."""
        most = network.whitening.most
        return most if self.whitened is None else min(self.whitened, most)

    def of(self, network: FeatureNet, features: Tensor) -> Tensor:
        """These features, from all that the network gives; differentiable."""
        return features if self.whitened is None else network.whitening(features, self.count(network))

    def described(self, backbone: Backbone) -> str:
        """In words, for a table."""
        whitening = backbone.network.whitening
        kind = "whitened" if self.whitened and whitening.fitted else "raw"
        return f"{backbone.card.name}, {self.count(backbone.network):,} {kind}"


def extracted(
    network: FeatureNet, images: NDArray[np.uint8], wanted: Sequence[Features], what: str, progress: Progress = silent
) -> list[NDArray[np.int16]]:
    """For each kind of features, the rows of uint8 images (`private_linear.packed`); `what` is what progress says."""
    import torch

    from dpdd.common.models.probe import extract
    from dpdd.scenarios.private_linear import packed

    found = [np.zeros((len(images), kind.count(network) + 1), dtype=np.int16) for kind in wanted]
    for start in range(0, len(images), _CHUNK) if wanted else ():
        part = slice(start, start + _CHUNK)
        features = extract(network, torch.from_numpy(np.ascontiguousarray(images[part])))
        with torch.inference_mode():
            for kind, rows in zip(wanted, found, strict=True):
                rows[part] = packed(kind.of(network, features).numpy())
        progress(what, min(start + _CHUNK, len(images)), len(images))
    return found
