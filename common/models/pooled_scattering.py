"""A scattering transform for images of any size: made small, transformed, pooled.

Images whose longer side is above `CANVAS` pixels are area-resampled to it, inside the network. The octaves J are the
fewest (from 2) that leave at most `MOST_POSITIONS` positions, with L = 4 angles; features are, of every standardised
map,

- its mean and its deviation over all positions: what is in the image, wherever that is;
- its means on a grid of 4 x 4 cells: where.

Whitened coordinates are taken from both in equal numbers. On photographs this does as well as all positions together
do, and much better on images without an upright position, such as cells, where the noise of a private release drowns
hundreds of coordinates that only tell where things are.

>>> import torch
>>> architecture = PooledScatteringArchitecture(channels=3, height=96, width=150)
>>> architecture.canvas.height, architecture.canvas.width, architecture.canvas.scales, architecture.cells
(41, 64, 3, (4, 4))
>>> network = PooledScatteringNet(PooledScatteringArchitecture(channels=1, height=17, width=40)).eval()
>>> tuple(network.features(torch.rand(2, 1, 17, 40)).shape), network.layer_channels
((2, 450), (9, 16))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.choice import SMALLEST_SIDE, built_name
from dpdd.common.models.feature_network import LayerHook, Normalisation
from dpdd.common.models.resampling import area_resample, smaller
from dpdd.common.models.scattering import NoHead, ScatteringArchitecture, ScatteringLayers, check_shape
from dpdd.common.models.whitening import TwoPartWhitening, Whitening

CANVAS = 64
"""The longer side of what is transformed, at most."""
MOST_POSITIONS = 81
"""Of a map."""
ANGLES = 4
GRID = 4
"""Cells of the layout, down and across, at most."""
_LEAST_VARIANCE = 1e-4
"""Next to 1, that of a standardised map: keeps the gradient of a deviation finite where a map is flat."""

_FILL = 16
"""Numbers that a processor multiplies at once, at most."""


@dataclass(frozen=True)
class PooledScatteringArchitecture:
    """Shape of a `PooledScatteringNet`: that of the images; all else follows from it."""

    channels: int
    height: int
    width: int
    kind: Literal["pooled-scattering"] = "pooled-scattering"

    def __post_init__(self) -> None:
        built_name((self.channels, self.height, self.width))  # ConfigError where there is none for such images

    @property
    def classes(self) -> int:
        """Outputs of the head: none, as nothing was trained."""
        return 0

    @property
    def canvas(self) -> ScatteringArchitecture:
        """The transform, and the size at which it looks at images."""
        height, width = smaller(self.height, self.width, longest=CANVAS, shortest=SMALLEST_SIDE)
        scales = 2
        while (height >> scales) * (width >> scales) > MOST_POSITIONS:
            scales += 1
        return ScatteringArchitecture(self.channels, height, width, scales, ANGLES)

    @property
    def cells(self) -> tuple[int, int]:
        """Of the layout, down and across."""
        canvas = self.canvas
        return min(canvas.height >> canvas.scales, GRID), min(canvas.width >> canvas.scales, GRID)


class PooledScatteringNet(ScatteringLayers):
    """The network of a `PooledScatteringArchitecture`; layers that hooks see are the maps before pooling."""

    default_features = 256

    def __init__(self, architecture: PooledScatteringArchitecture, normalisation: Normalisation | None = None) -> None:
        self.canvas = architecture.canvas
        super().__init__(self.canvas, normalisation)
        self.architecture = architecture
        maps, cells = architecture.channels * sum(self.canvas.maps), architecture.cells[0] * architecture.cells[1]
        self.whitening = TwoPartWhitening(Whitening(2 * maps, fill=_FILL), Whitening(maps, cells, fill=_FILL))
        self.head = NoHead(self.whitening.dimensions, architecture.classes)

    def features(self, images: Tensor, hook: LayerHook | None = None) -> Tensor:
        """Give means and deviations of all maps, then their means in the cells of the layout."""
        return self.pooled(self.standardised(self.raw_layers(images), hook))

    def pooled(self, maps: Tensor) -> Tensor:
        """Give the features that standardised maps have."""
        means = maps.mean((2, 3))
        variances = (maps - means[:, :, None, None]).square().mean((2, 3))
        layout = functional.adaptive_avg_pool2d(maps, self.architecture.cells)
        return torch.cat([means, (variances + _LEAST_VARIANCE).sqrt(), layout.flatten(1)], dim=1)

    def raw_layers(self, images: Tensor) -> list[Tensor]:
        """Give the maps of orders 0 and 1, and of order 2, of images made small."""
        check_shape(images, self.architecture.channels, self.architecture.height, self.architecture.width)
        return super().raw_layers(area_resample(images, self.canvas.height, self.canvas.width))
