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

Features of two kinds, what an image is like and where in it, have a `TwoPartWhitening`: half of the coordinates from
each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.errors import ConfigError
from dpdd.common.randomness import uniforms

FLOOR = 0.01
"""Share of the mean variance of the kept directions that is added to each."""


class Whitening(nn.Module):
    """The map; before `fit` it leaves features as they are, but for one factor.

    With `fill` the product's columns are filled up with zeros to a multiple of it: at one position, some processors
    round the last few columns of an odd number differently from record to record in a batch.
    """

    centre: Tensor
    spread: Tensor
    maps_basis: Tensor
    maps_variances: Tensor
    positions_basis: Tensor
    positions_variances: Tensor

    def __init__(self, maps: int, positions: int = 1, *, fill: int = 1) -> None:
        super().__init__()
        self.fill = fill
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

    @torch.no_grad()
    def fix_signs(self) -> None:
        """Give each eigenvector the sign with which it points to the side of a fixed random direction.

        Eigenvectors are defined up to their signs, and libraries differ: whoever fits on another machine must get the
        same ones.
        """
        for name in ("maps", "positions"):
            basis = self.get_buffer(f"{name}_basis")
            side = torch.from_numpy(uniforms(0, f"signs of {name}", len(basis)) - 0.5).to(basis)
            basis.mul_(torch.where(side @ basis < 0.0, -1.0, 1.0).to(basis))

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
        basis = functional.pad(self.maps_basis[:, maps], (0, -len(maps) % self.fill)).expand(len(values), -1, -1)
        turned = torch.bmm(values.mT, basis).mT[:, : len(maps)] @ self.positions_basis
        return turned.flatten(1).index_select(1, rank * positions + kept % positions) * scale


class TwoPartWhitening(nn.Module):
    """Two whitenings side by side, for features that are those of the `first` followed by those of the `second`.

    Coordinates are taken from both in equal numbers, as long as there are enough; each has variance 1, so both parts
    weigh as much in the whole.

    >>> both = TwoPartWhitening(Whitening(maps=6), Whitening(maps=2, positions=2))
    >>> both.dimensions, both.shares(6), both.shares(9)
    (10, (3, 3), (5, 4))
    """

    def __init__(self, first: Whitening, second: Whitening) -> None:
        super().__init__()
        self.first, self.second = first, second

    @property
    def dimensions(self) -> int:
        """How many directions there are."""
        return self.first.dimensions + self.second.dimensions

    @property
    def fitted(self) -> bool:
        """Whether it was fitted to anything."""
        return self.first.fitted and self.second.fitted

    def shares(self, dimensions: int) -> tuple[int, int]:
        """How many coordinates come from each part."""
        second = min(dimensions // 2, self.second.dimensions)
        first = min(dimensions - second, self.first.dimensions)
        return first, dimensions - first

    def fit(self, features: Tensor) -> None:
        """Take means and covariances from these features, which must be public."""
        for part, values in zip((self.first, self.second), self._split(features), strict=True):
            part.fit(values)

    def fix_signs(self) -> None:
        """As `Whitening.fix_signs`."""
        self.first.fix_signs()
        self.second.fix_signs()

    def forward(self, features: Tensor, dimensions: int) -> Tensor:
        """So many coordinates of features, whitened, those of the first part first; differentiable."""
        if not 1 <= dimensions <= self.dimensions:
            raise ConfigError(f"This network has {self.dimensions} features to whiten, so not {dimensions}.")
        parts = zip((self.first, self.second), self._split(features), self.shares(dimensions), strict=True)
        return torch.cat([part(values, share) for part, values, share in parts if share], dim=1)

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        first, second = features.split([self.first.dimensions, self.second.dimensions], dim=1)
        return first, second
