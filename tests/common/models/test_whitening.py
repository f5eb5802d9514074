"""Whitening: white where its model holds, close where it does not, and the same after a round trip through a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.whitening import FLOOR, Whitening

MAPS, POSITIONS = 4, 3


def kronecker(count: int, seed: int = 0) -> Tensor:
    """Features whose covariance is a Kronecker product, with maps of very different scale, off centre."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(MAPS, MAPS, generator=torch.Generator().manual_seed(10)) + torch.eye(MAPS)
    places = torch.randn(POSITIONS, POSITIONS, generator=torch.Generator().manual_seed(11)) + torch.eye(POSITIONS)
    values = maps @ torch.randn(count, MAPS, POSITIONS, generator=generator) @ places
    return (values * torch.tensor([1e-2, 1.0, 30.0, 2.0])[:, None] + 5.0).flatten(1)


def fitted(features: Tensor, maps: int = MAPS, positions: int = POSITIONS) -> Whitening:
    whitening = Whitening(maps, positions)
    whitening.fit(features)
    return whitening


def variances(whitening: Whitening) -> Tensor:
    """Of the coordinates, as the whitening sees them, the strongest first."""
    return torch.outer(whitening.maps_variances, whitening.positions_variances).flatten().sort(descending=True).values


def test_features_become_white() -> None:
    features = kronecker(20_000)
    whitening = fitted(features)
    white = whitening(features, whitening.dimensions)
    assert white.mean(0).abs().max() < 1e-3
    kept = variances(whitening)
    expected = kept / (kept + FLOOR * kept.mean())  # what the floor leaves of weak directions
    torch.testing.assert_close(torch.cov(white.T), torch.diag(expected), atol=0.05, rtol=0.0)


def test_the_strongest_directions_come_first() -> None:
    """As `maps x positions` of the standardised features, against an eigendecomposition of all of them."""
    features = kronecker(20_000)
    whitening = fitted(features)
    scaled = (features - features.mean(0)).unflatten(1, (MAPS, POSITIONS))
    scaled = (scaled / scaled.square().mean((0, 2)).sqrt()[:, None]).flatten(1)
    values = torch.linalg.eigvalsh(torch.cov(scaled.T)).flip(0)
    torch.testing.assert_close(variances(whitening), values, rtol=0.05, atol=0.01)
    few, all_ = whitening(features, 5), whitening(features, whitening.dimensions)
    for index in range(5):  # the same coordinates, but for the floor, which depends on how many there are
        assert torch.corrcoef(torch.stack([few[:, index], all_[:, index]]))[0, 1] > 0.9999


def test_one_position_is_plain_whitening() -> None:
    features = kronecker(20_000)
    whitening = fitted(features, MAPS * POSITIONS, 1)
    white = whitening(features, 6)
    torch.testing.assert_close(torch.cov(white.T), torch.eye(6), atol=0.06, rtol=0.0)


def test_it_hardly_depends_on_the_scale_of_maps() -> None:
    features = kronecker(2000)
    stretched = (features.unflatten(1, (MAPS, POSITIONS)) * torch.tensor([7.0, 1.0, 0.5, 1e4])[:, None]).flatten(1)
    one, other = fitted(features)(features, 6), fitted(stretched)(stretched, 6)
    torch.testing.assert_close(one.abs(), other.abs(), atol=2e-2, rtol=1e-2)


def test_before_it_is_fitted_it_only_scales() -> None:
    features = kronecker(10)
    whitening = Whitening(MAPS, POSITIONS)
    torch.testing.assert_close(whitening(features, whitening.dimensions), features * (1.0 + FLOOR) ** -0.5)
    assert not whitening.fitted and fitted(features).fitted


def test_a_map_that_never_varies_stays_finite() -> None:
    features = kronecker(100)
    features[:, :POSITIONS] = 3.0
    whitening = fitted(features)
    assert torch.isfinite(whitening(features, whitening.dimensions)).all()
    assert torch.isfinite(whitening(torch.rand_like(features), whitening.dimensions)).all()


def test_gradients_pass() -> None:
    whitening = fitted(kronecker(500)).double()
    features = kronecker(2).double().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: whitening(x, 7), (features,))


@pytest.mark.parametrize("dimensions", [0, -1, MAPS * POSITIONS + 1])
def test_more_directions_than_there_are_are_refused(dimensions: int) -> None:
    with pytest.raises(ConfigError, match=f"{MAPS * POSITIONS} features to whiten, so not {dimensions}"):
        Whitening(MAPS, POSITIONS)(kronecker(2), dimensions)


def test_a_record_does_not_depend_on_its_neighbours() -> None:
    whitening = fitted(kronecker(500))
    batch, others = kronecker(64, seed=2), kronecker(64, seed=3)
    others[0] = torch.nan
    kept = [5, 31, 63]
    others[kept] = batch[kept]
    assert torch.equal(whitening(batch, 9)[kept], whitening(others, 9)[kept])


def test_nor_does_it_at_one_position() -> None:
    whitening = fitted(kronecker(500), MAPS * POSITIONS, 1)
    batch, others = kronecker(64, seed=2), kronecker(64, seed=3)
    others[0] = torch.nan
    kept = [5, 31, 63]
    others[kept] = batch[kept]
    assert torch.equal(whitening(batch, 9)[kept], whitening(others, 9)[kept])


@pytest.mark.parametrize("maps, positions", [(MAPS, POSITIONS), (MAPS * POSITIONS, 1), (1, MAPS * POSITIONS)])
@pytest.mark.parametrize("dimensions", [1, 2, 5, MAPS * POSITIONS])
def test_it_is_the_kronecker_product_written_out(maps: int, positions: int, dimensions: int) -> None:
    """Whichever directions are left out because nobody wants them."""
    features = kronecker(300).double()
    whitening = fitted(features, maps, positions).double()
    standard = (features - whitening.centre) / whitening.spread.repeat_interleave(positions)
    variances = torch.kron(whitening.maps_variances, whitening.positions_variances)
    kept = variances.argsort(descending=True, stable=True)[:dimensions]
    basis = torch.kron(whitening.maps_basis, whitening.positions_basis)[:, kept]
    expected = standard @ basis / (variances[kept] + FLOOR * variances[kept].mean()).sqrt()
    torch.testing.assert_close(whitening(features, dimensions), expected)


def test_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = backbone.build(ConvNetArchitecture(channels=1, height=8, width=8, classes=2, widths=(4, 12))).eval()
    features = kronecker(1000)
    network.whitening.fit(features)
    provenance = backbone.Provenance(public_data="none", licence="none", accuracy=0.0, command="none", seed=0)
    card = backbone.save(tmp_path / "mine", network, provenance)
    loaded = backbone.load(tmp_path / "mine", card.sha256).network
    torch.testing.assert_close(loaded.whitening(features, 8), network.whitening(features, 8), atol=0.02, rtol=0.0)
    assert backbone.save(tmp_path / "again", loaded, provenance).sha256 == card.sha256


@pytest.mark.parametrize("name", backbone.available())
def test_shipped_backbones_are_fitted(name: str) -> None:
    network = backbone.load(name).network
    assert network.whitening.fitted and network.whitening.dimensions == network.head.in_features
