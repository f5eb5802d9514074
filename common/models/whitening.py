"""Whitening of features by a public covariance, so that one clip norm and one noise scale suit all directions.

Features come as `maps` at `positions` (a pooled network has one position). Their covariance on public images, or on
images that are no data, is approximated by a Kronecker product, maps x positions: two small matrices whatever the size
of the features. Whitened features are (as in PCA) coordinates in the product of the two eigenbases, the strongest
first, each divided by its deviation (weak ones by a little less than that would ask for).

>>> import torch
>>> noise = torch.randn(2000, 2, 3, generator=torch.Generator().manual_seed(0))
>>> features = (torch.tensor([[5.0, 0.0], [2.0, 3.0]]) @ noise).flatten(1)  # two maps that go together
>>> whitening = Whitening(maps=2, positions=3)
>>> whitening.fit(features)
>>> [round(x, 1) for x in whitening(features, 4).std(0).tolist()]
[1.0, 1.0, 1.0, 1.0]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpdd.common.errors import ConfigError

FLOOR = 0.01
"""Share of the mean variance of the kept directions that is added to each."""


class Whitening(nn.Module):
    """The map; before `fit` it leaves features as they are, but for one factor."""

    centre: Tensor
    spread: Tensor
    maps_basis: Tensor
    maps_variances: Tensor
    positions_basis: Tensor
    positions_variances: Tensor

    def __init__(self, maps: int, positions: int = 1) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(maps * positions))
        self.register_buffer("spread", torch.ones(maps))
        for name, size in (("maps", maps), ("positions", positions)):
            self.register_buffer(f"{name}_basis", torch.eye(size))
            self.register_buffer(f"{name}_variances", torch.ones(size))

    @property
    def dimensions(self) -> int:
        """How many directions there are."""
        return len(self.centre)

    @property
    def fitted(self) -> bool:
        """Whether it was fitted to anything."""
        return not bool((self.maps_variances == 1.0).all() and (self.positions_variances == 1.0).all())

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """Take mean and covariance from these features (N, maps x positions), which must be public."""
        shape = (len(self.spread), len(self.positions_variances))
        values = features.double().unflatten(1, shape)
        centre = values.mean(0)
        spread = (values - centre).square().mean((0, 2)).sqrt().clamp_min(1e-9)
        values = (values - centre) / spread[:, None]
        maps = torch.einsum("nip,njp->ij", values, values) / (len(values) * shape[1])
        positions = torch.einsum("nip,niq->pq", values, values) / (len(values) * shape[0])
        self.centre.copy_(centre.flatten())
        self.spread.copy_(spread)
        for name, matrix in (("maps", maps), ("positions", positions * (shape[1] / positions.trace()))):
            variances, basis = torch.linalg.eigh(matrix)
            self.get_buffer(f"{name}_basis").copy_(basis)
            self.get_buffer(f"{name}_variances").copy_(variances.clamp_min(0.0))

    def forward(self, features: Tensor, dimensions: int) -> Tensor:
        """The `dimensions` strongest coordinates of features, whitened; differentiable."""
        if not 1 <= dimensions <= self.dimensions:
            raise ConfigError(f"This network has {self.dimensions} features to whiten, so not {dimensions}.")
        variances = torch.outer(self.maps_variances, self.positions_variances).flatten()
        kept = variances.argsort(descending=True, stable=True)[:dimensions]
        scale = (variances[kept] + FLOOR * variances[kept].mean()).rsqrt()
        positions = len(self.positions_variances)
        maps, rank = (kept // positions).unique(return_inverse=True)  # the others would be computed for nothing
        values = (features - self.centre).unflatten(1, (len(self.spread), positions)) / self.spread[:, None]
        # One product per record, so that its neighbours leave no trace; transposed, which is faster at one position.
        basis = self.maps_basis[:, maps].expand(len(values), -1, -1)
        turned = torch.bmm(values.mT, basis).mT @ self.positions_basis
        return turned.flatten(1).index_select(1, rank * positions + kept % positions) * scale
