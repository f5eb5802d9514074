"""The scattering transform: against kymatio, against its own symmetries, and as a backbone without public data."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from kymatio.numpy import Scattering2D as DoublePrecision
from kymatio.torch import Scattering2D
from torch import Tensor

from dpdd.common.data import benchmarks
from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import feature_statistics
from dpdd.common.models import backbone
from dpdd.common.models.backbone import Provenance
from dpdd.common.models.feature_network import Normalisation
from dpdd.common.models.scattering import Scattering, ScatteringArchitecture, ScatteringNet
from dpdd.scenarios.backbones import make_scattering
from dpdd.server.run.requests import backbone_sha256, same_source

GREY = ScatteringArchitecture(channels=1, height=28, width=28)
SMALL = ScatteringArchitecture(channels=3, height=10, width=9, scales=2, angles=4)
PROVENANCE = Provenance(public_data="none", licence="none", accuracy=0.0, command="none", seed=0)
KYMATIOS_PI = 3.1415  # of the Gaussians' norm; each convolution repeats it
shapes = pytest.mark.parametrize(
    ("height", "width", "scales", "angles"),
    [(28, 28, 2, 8), (32, 32, 2, 8), (29, 38, 3, 6), (33, 17, 1, 8), (28, 28, 2, 5), (40, 24, 4, 3), (64, 43, 3, 4)],
)


def garments(count: int, height: int, width: int) -> Tensor:
    """Real images, cut or framed in black to a size."""
    images = torch.from_numpy(benchmarks.load("fashion-slice", "test").images[:count]).float() / 255
    sides = [((after - 28) // 2, after - 28 - (after - 28) // 2) for after in (width, height)]
    return torch.nn.functional.pad(images, (*sides[0], *sides[1]))


def orders(maps: Tensor, scales: int, angles: int) -> list[Tensor]:
    counts = ScatteringArchitecture(1, 64, 64, scales, angles).maps
    assert maps.shape[2] == sum(counts)
    return [part for part in maps.split(list(counts), dim=2) if part.shape[2]]


@shapes
@pytest.mark.parametrize("kind", ["random", "real"])
def test_equals_kymatio(kind: str, height: int, width: int, scales: int, angles: int) -> None:
    torch.manual_seed(0)
    images = torch.rand(40, 1, height, width) if kind == "random" else garments(40, height, width)
    images = torch.cat([images, images.flip(0)], dim=1)  # two channels, and more than one chunk
    transform = Scattering(height, width, scales=scales, angles=angles)
    with torch.no_grad():
        ours = transform(images)
        theirs = Scattering2D(scales, (height, width), L=angles)(images)
        exact = transform.double()(images[:2].double())
    assert ours.shape == theirs.shape
    for mine, reference in zip(orders(ours, scales, angles), orders(theirs, scales, angles), strict=True):
        assert float((mine - reference).norm() / reference.norm()) < 1e-4
    numpys = torch.from_numpy(DoublePrecision(scales, (height, width), L=angles)(images[:2].double().numpy()))
    pairs = zip(orders(exact, scales, angles), orders(numpys, scales, angles), strict=True)
    for order, (mine, reference) in enumerate(pairs):
        corrected = mine * (math.pi / KYMATIOS_PI) ** (order + 1)
        assert float((corrected - reference).norm() / reference.norm()) < 1e-6


def test_gradients_equal_kymatios() -> None:
    torch.manual_seed(0)
    weights = torch.randn(6, 1, 81, 7, 7)
    gradients = []
    for transform in (Scattering(28, 28, scales=2, angles=8), Scattering2D(2, (28, 28), L=8)):
        images = 0.05 * torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(1)) + garments(6, 28, 28)
        images.requires_grad_()
        (transform(images) * weights).sum().backward()
        assert images.grad is not None
        gradients.append(images.grad)
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 1e-4


@pytest.mark.parametrize("scales", [1, 2, 3])
def test_gradients_are_those_of_the_function(scales: int) -> None:
    torch.manual_seed(0)
    transform = Scattering(10, 9, scales=scales, angles=3).double()
    images = torch.rand(2, 1, 10, 9, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(transform, (images,), fast_mode=True)


def test_an_empty_image_has_finite_gradients() -> None:
    images = torch.zeros(2, 1, 28, 28, requires_grad=True)
    maps = Scattering(28, 28, scales=2, angles=8)(images)
    assert not bool(maps.any())
    maps.sum().backward()
    assert images.grad is not None and bool(torch.isfinite(images.grad).all())


def test_a_record_does_not_depend_on_its_neighbours() -> None:
    network = backbone.load("scatter28").network
    torch.manual_seed(0)
    batch = torch.rand(70, 1, 28, 28)
    others = torch.rand_like(batch)
    others[0], others[1], others[2] = torch.nan, torch.inf, 1e30
    kept = [5, 31, 32, 69]
    others[kept] = batch[kept]
    assert torch.equal(network.features(batch)[kept], network.features(others)[kept])
    torch.testing.assert_close(network.features(batch[kept]), network.features(batch)[kept], rtol=1e-3, atol=1e-4)


def test_shifts_of_a_whole_step_shift_the_maps() -> None:
    images = torch.zeros(4, 1, 40, 40)
    images[:, :, 14:26, 14:26] = garments(4, 28, 28)[:, :, 8:20, 8:20]
    transform = Scattering(40, 40, scales=2, angles=8)
    maps, moved = transform(images), transform(images.roll((4, -4), (2, 3)))
    inner = maps.roll((1, -1), (3, 4))[..., 2:-2, 2:-2]
    torch.testing.assert_close(moved[..., 2:-2, 2:-2], inner, rtol=1e-2, atol=1e-5)
    assert float((moved - maps).norm() / maps.norm()) > 0.5


def test_small_shifts_change_maps_less_than_pixels() -> None:
    images = garments(50, 36, 36)
    transform = Scattering(36, 36, scales=2, angles=8)

    def change(before: Tensor, after: Tensor) -> float:
        return float((after - before).norm() / before.norm())

    shifted = images.roll(1, 3)
    assert change(transform(images), transform(shifted)) < 0.7 * change(images, shifted)


def test_transposing_an_image_turns_the_angles() -> None:
    """Angle t is (3 - t) π/8; mirrored in the diagonal it is π/2 less that, which is angle 2 - t (mod 8)."""
    torch.manual_seed(0)
    images = torch.rand(5, 1, 28, 28)
    transform = Scattering(28, 28, scales=2, angles=8)
    zeroth, first, second = orders(transform(images), 2, 8)
    turned = [(2 - angle) % 8 for angle in range(8)]
    first = first.unflatten(2, (2, 8))[:, :, :, turned].flatten(2, 3)
    second = second.unflatten(2, (8, 8))[:, :, turned][:, :, :, turned].flatten(2, 3)
    expected = torch.cat([zeroth, first, second], dim=2).transpose(3, 4)
    torch.testing.assert_close(transform(images.transpose(2, 3)), expected, rtol=1e-3, atol=1e-6)


def test_the_same_every_time() -> None:
    torch.manual_seed(0)
    images = torch.rand(40, 3, 10, 9)
    networks = [ScatteringNet(SMALL).eval() for _ in range(2)]
    features = [network.features(images) for network in (*networks, networks[0])]
    assert torch.equal(features[0], features[1]) and torch.equal(features[0], features[2])


def test_features_are_the_hooked_layers_standardised_per_map() -> None:
    torch.manual_seed(0)
    images = torch.rand(80, 3, 10, 9)
    network = ScatteringNet(SMALL).eval()
    network.standardise(images)
    layers_of = network.layers_of(images)
    assert network.layer_channels == (3 * 9, 3 * 16) == tuple(hook.shape[1] for hook in layers_of)
    assert torch.equal(network.features(images), torch.cat(layers_of, dim=1).flatten(1))
    assert network.head.in_features == 3 * 25 * 2 * 2 and network(images).shape == (80, 0)
    for hook in layers_of:
        variance, mean = torch.var_mean(hook, (0, 2, 3))
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-3)
        torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-3, atol=0)
    maps = network.scattering(images)
    raw = torch.cat([maps[:, :, :9].flatten(1, 2), maps[:, :, 9:].flatten(1, 2)], dim=1)
    for channel in range(raw.shape[1]):
        pair = torch.stack([raw[:, channel].flatten(), torch.cat(layers_of, dim=1)[:, channel].flatten()])
        assert float(torch.corrcoef(pair)[0, 1]) > 0.999, "standardising is increasing and affine, map by map"


def test_one_scale_has_one_hooked_layer() -> None:
    network = ScatteringNet(ScatteringArchitecture(1, 8, 8, scales=1, angles=4)).eval()
    assert network.layer_channels == (5,) and network.features(torch.rand(2, 1, 8, 8)).shape == (2, 5 * 16)


def test_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.rand(20, 3, 10, 9)
    network = backbone.build(SMALL, Normalisation((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))).eval()
    assert isinstance(network, ScatteringNet)
    network.standardise(images)
    card = backbone.save(tmp_path / "mine", network, PROVENANCE)
    loaded = backbone.load(tmp_path / "mine", sha256=card.sha256)
    assert loaded.card == card and card.architecture == SMALL and card.classes == 0
    assert torch.equal(loaded.network.features(images), network.features(images))
    assert backbone.save(tmp_path / "again", loaded.network, PROVENANCE).sha256 == card.sha256

    text = json.loads((tmp_path / "mine.json").read_text())
    text["architecture"]["angles"] = 5
    (tmp_path / "mine.json").write_text(json.dumps(text))
    with pytest.raises(IntegrityError, match="another architecture"):
        backbone.load(tmp_path / "mine")


@pytest.mark.parametrize("shape", [(2, 3, 28, 28), (2, 1, 32, 32), (2, 1, 28, 27), (2, 0, 28, 28)])
def test_other_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"images of shape \[1, 28, 28\]"):
        ScatteringNet(GREY).eval().features(torch.rand(shape))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ((0, 28, 28), "at least one channel"),
        ((1, 28, 28, 0), "at least one channel"),
        ((1, 28, 28, 2, 0), "at least one channel"),
        ((1, 4, 28), "sides above 4"),
        ((1, 28, 97), "up to 96"),
        ((1, 28, 28, 5), "sides above 32"),
    ],
)
def test_impossible_architectures_are_refused(values: tuple[int, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ScatteringArchitecture(*values)


def test_a_normalisation_for_other_channels_is_refused() -> None:
    with pytest.raises(ConfigError, match="for 3 channels"):
        ScatteringNet(GREY, Normalisation.neutral(3))


@pytest.mark.parametrize("name", ["scatter28", pytest.param("scatter32", marks=pytest.mark.slow)])
def test_shipped_backbones_are_what_dead_leaves_give(name: str) -> None:
    make_scattering.check(name, make_scattering.SHELF)
    shipped = backbone.load(name)
    assert shipped.card.architecture == make_scattering.BACKBONES[name] and shipped.card.classes == 0
    for hook in shipped.network.layers_of(torch.from_numpy(_leaves(name, 300))):
        variance, mean = torch.var_mean(hook, (0, 2, 3))
        assert float(mean.abs().max()) < 0.2 and 0.5 < float(variance.min()) < float(variance.max()) < 1.5


def test_backbones_are_built_alike_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_scattering, "IMAGES", 20)
    for folder in ("one", "two"):
        assert make_scattering.main(["--output", str(tmp_path / folder)]) == 0
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert files == ["scatter28.json", "scatter28.safetensors", "scatter32.json", "scatter32.safetensors"]
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    assert make_scattering.main(["--output", str(tmp_path / "one"), "--check"]) == 0
    monkeypatch.setattr(make_scattering, "IMAGES", 19)
    assert make_scattering.main(["--output", str(tmp_path / "one"), "--check"]) == DataError.exit_code


def test_a_check_sees_through_signs_but_not_through_another_whitening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_scattering, "IMAGES", 40)
    fresh = make_scattering.network(make_scattering.BACKBONES["scatter28"])
    monkeypatch.setattr(make_scattering, "network", lambda _architecture: fresh)

    def check(change: Callable[[ScatteringNet], object]) -> None:
        network = copy.deepcopy(fresh)
        change(network)
        backbone.save(tmp_path / "scatter28", network, make_scattering.PROVENANCE)
        make_scattering.check("scatter28", tmp_path)

    check(lambda network: network.whitening.maps_basis[:, ::3].neg_())
    check(lambda network: network.whitening.positions_basis.neg_())
    for change in (
        lambda network: network.whitening.maps_basis.copy_(torch.eye(81)),
        lambda network: network.whitening.positions_variances.mul_(1.01),
        lambda network: network.whitening.maps_basis.copy_(network.whitening.maps_basis.flip(1)),
        lambda network: network.whitening.centre.add_(0.01),
        lambda network: network.whitening.spread.mul_(1.01),
        lambda network: network.norms[1].running_var.mul_(1.01),
    ):
        with pytest.raises(DataError, match="dead leaves"):
            check(change)


def _leaves(name: str, count: int) -> np.ndarray:
    shape = make_scattering.BACKBONES[name]
    return make_scattering.dead_leaves(count, shape.channels, shape.height, shape.width, seed=5)


def test_dead_leaves_use_the_range_and_their_seed() -> None:
    grey, colour = _leaves("scatter28", 50), _leaves("scatter32", 50)
    for images in (grey, colour):
        assert images.min() >= 0 and images.max() <= 1 and images.std() > 0.15 and images.dtype == np.float32
    assert np.abs(colour[:, 0] - colour[:, 1]).mean() > 0.02
    assert not np.array_equal(grey, make_scattering.dead_leaves(50, 1, 28, 28, seed=6))


@pytest.mark.parametrize("name", make_scattering.BACKBONES)
def test_no_run_is_refused_a_backbone_without_public_data(name: str) -> None:
    card = backbone.load(name).card
    for dataset in benchmarks.names():
        assert not same_source(dataset, card.provenance.public_data)
        assert backbone_sha256([name], dataset).hex() == card.sha256


def test_sps_takes_it_as_any_backbone() -> None:
    shipped = backbone.load("scatter28")
    statistics = feature_statistics(MethodSettings(backbone="scatter28"), shipped, 10, (1, 28, 28), 0)
    images = torch.rand(4, 1, 28, 28, requires_grad=True)
    _, embeddings = statistics.measure(images)
    assert embeddings is not None and embeddings.shape == (4, 512 + 49 + 1)
    embeddings[:, :512].sum().backward()
    assert bool(torch.isfinite(embeddings).all()) and images.grad is not None and float(images.grad.abs().max()) > 0
