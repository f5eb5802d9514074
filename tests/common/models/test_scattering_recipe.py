"""Backbones that are built in code: what pins them, what they are fitted to, and a cache that is checked."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone, scattering_recipe
from dpdd.common.models.choice import LARGEST_SIDE, SMALLEST_SIDE, backbone_for
from dpdd.common.models.pooled_scattering import PooledScatteringArchitecture
from dpdd.common.models.scattering_recipe import Recipe
from dpdd.server.run.requests import backbone_sha256

TINY = Recipe(PooledScatteringArchitecture(1, 8, 10), images=30)
RECIPE_3X64X64 = "e51141ab42ad"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scattering_recipe._kept.cache_clear()
    yield tmp_path / "dpdd" / "backbones"
    scattering_recipe._kept.cache_clear()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_recipe_has_the_hash_that_it_has_in_requests() -> None:
    """Features that change need another version, and so another hash; the same recipe keeps its hash for good."""
    assert Recipe(PooledScatteringArchitecture(3, 64, 64)).sha256.startswith(RECIPE_3X64X64)


def test_whatever_decides_features_decides_the_hash() -> None:
    recipes = [TINY, replace(TINY, images=31), replace(TINY, seed=1), replace(TINY, version=2)]
    recipes += [replace(TINY, architecture=PooledScatteringArchitecture(*shape)) for shape in ((3, 8, 10), (1, 10, 8))]
    assert len({recipe.sha256 for recipe in recipes}) == len({recipe.fit_key for recipe in recipes}) == len(recipes)


def test_a_fit_is_white_on_other_leaves_and_has_half_precision_matrices() -> None:
    loaded = backbone.load("scattering-1x20x24")
    leaves = torch.from_numpy(dead_leaves(2000, 1, 20, 24, seed=9))
    white = loaded.network.whitening(loaded.network.features(leaves), 40)
    deviations = white.std(0)
    assert float(white.mean(0).abs().max()) < 0.2
    assert float(deviations[:20].min()) > 0.8 and float(deviations[:20].max()) < 1.2, "means and deviations of maps"
    assert float(deviations[20:].min()) > 0.4 and float(deviations[20:].max()) < 1.6, "layout: a Kronecker model of it"
    for name, tensor in loaded.network.state_dict().items():
        assert tensor.ndim < 2 or torch.equal(tensor, tensor.half().float()), name
    assert loaded.card.classes == 0 and loaded.card.provenance.public_data.startswith("none")
    assert loaded.network.whitening.fitted and not loaded.network.training


def test_a_fit_is_the_same_every_time_and_for_all_sizes_that_are_made_small_alike() -> None:
    assert same(scattering_recipe.fit(TINY), scattering_recipe.fit(TINY))
    long = [Recipe(PooledScatteringArchitecture(1, 8, side), images=20) for side in (64, 72)]
    assert long[0].fit_key == long[1].fit_key and long[0].sha256 != long[1].sha256
    assert same(*map(scattering_recipe.fit, long))


def test_signs_of_eigenvectors_do_not_depend_on_the_library() -> None:
    whitening = backbone.load("scattering-1x8x10").network.whitening
    bases = {name: tensor.clone() for name, tensor in whitening.named_buffers() if name.endswith("basis")}
    for tensor in whitening.buffers():
        if tensor.ndim == 2:
            tensor[:, ::2].neg_()
    whitening.fix_signs()
    assert len(bases) == 4 and all(torch.equal(whitening.get_buffer(name), basis) for name, basis in bases.items())


def test_a_fit_is_made_once_then_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scattering_recipe.weights(TINY)
    assert [file.name for file in cache.iterdir()] == [f"{TINY.fit_key}.built"]
    monkeypatch.setattr(scattering_recipe, "fit", lambda _recipe: pytest.fail("it was there already"))
    assert same(scattering_recipe.weights(TINY), made), "in memory"
    scattering_recipe._kept.cache_clear()
    assert same(scattering_recipe.weights(TINY), made), "in the cache"


@pytest.mark.parametrize("damage", ["a digest", "a weight", "the header", "cut short", "empty", "a folder"])
def test_an_altered_cache_is_noticed_and_made_anew(cache: Path, damage: str) -> None:
    made = scattering_recipe.weights(TINY)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    place = {"a digest": 3, "a weight": len(good) - 5, "the header": 45}.get(damage)
    if place is not None:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    elif damage == "a folder":
        file.unlink()
        (file / "inside").mkdir(parents=True)
    else:
        file.write_bytes(good[:-1] if damage == "cut short" else b"")
    scattering_recipe._kept.cache_clear()
    assert same(scattering_recipe.weights(TINY), made)
    assert damage == "a folder" or file.read_bytes() == good


def test_no_cache_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(scattering_recipe.weights(TINY), scattering_recipe.fit(TINY))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("named", ["", "some/where"])
def test_the_cache_is_in_the_home_folder_unless_an_absolute_path_is_named(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    scattering_recipe.weights(TINY)
    assert (tmp_path / ".cache" / "dpdd" / "backbones" / f"{TINY.fit_key}.built").is_file()


def test_threads_make_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fit = [], scattering_recipe.fit

    def counted(recipe: Recipe) -> dict[str, torch.Tensor]:
        calls.append(recipe)
        return fit(recipe)

    monkeypatch.setattr(scattering_recipe, "fit", counted)
    threads = [threading.Thread(target=scattering_recipe.weights, args=(TINY,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [TINY]


def test_another_process_with_more_threads_gets_the_same() -> None:
    made = backbone.load("scattering-1x9x8").network.state_dict()
    code = """
import torch; torch.set_num_threads(2)
from dpdd.common.models import scattering_recipe as r
from dpdd.common.models.pooled_scattering import PooledScatteringArchitecture as A
fit = r.fit(r.Recipe(A(1, 9, 8)))
print(fit["whitening.first.maps_variances"].double().sum().item(), fit["whitening.first.maps_basis"][0, 0].item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, entry = map(float, done.stdout.split())
    assert total == pytest.approx(float(made["whitening.first.maps_variances"].double().sum()), rel=1e-6)
    assert entry == pytest.approx(float(made["whitening.first.maps_basis"][0, 0]), rel=1e-2)


def test_load_by_name_and_hash() -> None:
    loaded = backbone.load("scattering-1x8x10")
    assert loaded.card.sha256 == Recipe(PooledScatteringArchitecture(1, 8, 10)).sha256 and loaded.card.name.endswith(
        "8x10"
    )
    assert backbone.load("scattering-1x8x10", loaded.card.sha256).card == loaded.card
    assert backbone_sha256(["scattering-1x8x10"], "mnist").hex() == loaded.card.sha256
    with pytest.raises(ConfigError, match=r"by the recipe .* but (ab){8}\.\.\. was asked for"):
        backbone.load("scattering-1x8x10", "ab" * 32)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("scattering-1x7x10", "no backbone for images of 1x7x10"),
        ("scattering-1x8x4097", "from 8 to 4096 pixels"),
        ("scattering-0x8x10", "up to 16 channels"),
        ("scattering-17x8x10", "up to 16 channels"),
        ("scattering-03x8x10", "is called scattering-3x8x10"),
        ("scattering-3x8", "There is no backbone"),
        ("scattering-3x8x10x2", "There is no backbone"),
        ("scattering-3x8x99999999999", "There is no backbone"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        backbone.load(name)


@pytest.mark.parametrize(
    "shape", [(1, SMALLEST_SIDE, LARGEST_SIDE), (3, LARGEST_SIDE, LARGEST_SIDE), (16, 8, 8), (1, 64, 21)]
)
def test_every_shape_in_range_has_an_architecture(shape: tuple[int, int, int]) -> None:
    assert backbone_for(shape) == "scattering-" + "x".join(map(str, shape))
    backbone.build(PooledScatteringArchitecture(*shape[:1], *(min(side, 70) for side in shape[1:])))
    assert Recipe(PooledScatteringArchitecture(*shape)).sha256
