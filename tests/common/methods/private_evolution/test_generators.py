"""Generators: what they draw is of the right kind, variations are as strong as asked for, nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.common.data import benchmarks
from dpdd.common.data.lazy_torchvision import load_torchvision
from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.private_evolution import generator_diffusion
from dpdd.common.methods.private_evolution.generator_pool import PoolGenerator, pool_images
from dpdd.common.methods.private_evolution.generator_rows import RowGenerator
from dpdd.common.methods.private_evolution.generator_shapes import ShapesGenerator
from dpdd.common.methods.private_evolution.generators import generator_of
from dpdd.common.methods.private_evolution.settings import EvolutionSettings
from dpdd.common.methods.private_evolution.specification import ImageVectors

COLUMNS = (
    Numeric(name="age", low=0, high=100, bins=20, missing=True),
    Categorical(name="ward", categories=("heart", "lung", "rest")),
)
VECTORS = ImageVectors(None, 0, 4)
RUN = RunDescription(("a", "b"), (3, 10, 12), public_seed=0)


def change(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> float:
    return float(np.abs(before.astype(float) - after).mean())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 14)])
def test_shapes_differ_and_stronger_variations_change_more(shape: tuple[int, int, int]) -> None:
    shapes = ShapesGenerator(shape)
    images = shapes.random(30, seed=1)
    assert images.shape == (30, *shape) and images.dtype == np.uint8
    for kind in range(3):  # leaves, strokes, blobs
        assert images[kind::3].std() > 20.0 and len(np.unique(images[kind::3].reshape(10, -1), axis=0)) == 10
    changes = [
        change(images, shapes.variation(images, images[::-1], strength, 2)) for strength in (1e-6, 0.1, 0.4, 1.0)
    ]
    assert changes[0] < 0.5 and changes == sorted(changes) and changes[-1] > 3.0 * changes[1]
    assert np.array_equal(shapes.variation(images, images, 0.3, 5), shapes.variation(images, images, 0.3, 5))


def test_rows_are_codes_and_change_by_the_strength() -> None:
    rows = RowGenerator(COLUMNS)
    drawn, mates = rows.random(3000, seed=1), rows.random(3000, seed=2)
    sizes = np.array([column.size for column in COLUMNS])
    for codes in (drawn, rows.variation(drawn, mates, 1.0, 3)):
        assert (codes >= 0).all() and (codes < sizes).all() and codes.dtype == np.int32
        assert (codes.max(axis=0) == sizes - 1).all()
    shares = [float((rows.variation(drawn, mates, strength, 4) != drawn).mean()) for strength in (0.0, 0.1, 0.5, 1.0)]
    assert shares[0] == 0.0 and shares == sorted(shares) and 0.05 < shares[1] < 0.1


def test_neighbours_are_near_and_never_the_image_itself() -> None:
    images = ShapesGenerator((3, 10, 12)).random(60, seed=3)
    pool = PoolGenerator(images, VECTORS.of_bytes(images), VECTORS, reach=20)
    asked = np.repeat(images[:5], 6, axis=0)
    for strength, count in ((1.0, 20), (0.3, 6), (0.01, 1)):
        found = pool.neighbours(asked, strength, seed=4)
        apart = ((pool.vectors[:5, None] - pool.vectors) ** 2).sum(2).numpy()
        ranks = apart.argsort(axis=1).argsort(axis=1)[np.arange(5).repeat(6), found]
        assert ranks.min() >= 1 and ranks.max() <= count, "rank 0 is the image itself"
        for own in found.reshape(5, 6):  # equal records get different neighbours, while there are any
            assert len(set(own.tolist())) == min(6, count)
    stranger = ShapesGenerator((3, 10, 12)).random(1, seed=9)
    nearest = pool.neighbours(stranger, 0.01, seed=4)
    apart = ((VECTORS.of_bytes(stranger) - pool.vectors) ** 2).sum(1)
    assert nearest.tolist() == [int(apart.argmin())]


def test_a_pool_of_the_runs_shape_whose_variations_get_weaker() -> None:
    images = pool_images("fashion-slice", (3, 10, 12), 40)
    assert images.shape == (40, 3, 10, 12) and (images[:, 0] == images[:, 1]).all(), "three channels of one grey"
    settings = EvolutionSettings(
        generator="pool", pool="fashion-slice", pool_images=40, population=4, features=0, backbone=""
    )
    pool = generator_of(settings, RUN)
    assert len(np.unique(pool.random(40, 1).reshape(40, -1), axis=0)) == len(np.unique(images.reshape(40, -1), axis=0))
    changes = [change(images, pool.variation(images, images, strength, 2)) for strength in (0.02, 1.0)]
    assert changes[0] < 0.3 * changes[1]
    every = pool.variation(images, images, 1.0, 2)
    assert all((images == image).all(axis=(1, 2, 3)).any() for image in every), "at strength 1 all are the pool's own"


@pytest.mark.parametrize("name", ["tinyimagenet32", "../etc", "mnist"])
def test_a_pool_is_never_downloaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(benchmarks.ENVIRONMENT, str(tmp_path))
    monkeypatch.setattr(benchmarks, "load", lambda *_: pytest.fail("it would be downloaded"))
    with pytest.raises(ConfigError, match="is not on this machine"):
        pool_images(name, (3, 10, 12), 40)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"generator": "pool"}, "go together"),
        ({"generator": "diffusion"}, "go together"),
        ({"pool": "mnist"}, "go together"),
        ({"generator": "diffusion", "model": "../somewhere"}, "model"),
        ({"strength": 0.1, "last_strength": 0.2}, "weaker"),
    ],
)
def test_settings_that_contradict_themselves(values: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        EvolutionSettings(**values)


def test_rows_are_for_tables() -> None:
    with pytest.raises(ConfigError, match="makes no records of shape"):
        generator_of(EvolutionSettings(generator="rows"), RUN)


# A diffusion model


def test_a_diffusion_model_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvolutionSettings(generator="diffusion", model="tiny")
    monkeypatch.delenv(generator_diffusion.ENVIRONMENT, raising=False)
    with pytest.raises(ConfigError, match="no diffusion model 'tiny' here: set DPDD_MODELS"):
        generator_of(settings, RUN)
    for part in ("unet", "scheduler"):
        (tmp_path / "tiny" / part).mkdir(parents=True)
    monkeypatch.setenv(generator_diffusion.ENVIRONMENT, str(tmp_path))
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match=r"pip install 'dpdd\[diffusion\]'"):
        generator_of(settings, RUN)


def test_a_diffusion_model_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diffusers = pytest.importorskip("diffusers", reason="it is an extra of its own: pip install 'dpdd[diffusion]'")
    load_torchvision()
    network = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    diffusers.DDPMPipeline(network, diffusers.DDPMScheduler(num_train_timesteps=1000)).save_pretrained(
        tmp_path / "tiny"
    )
    monkeypatch.setenv(generator_diffusion.ENVIRONMENT, str(tmp_path))
    settings = EvolutionSettings(generator="diffusion", model="tiny")
    generator = generator_of(settings, RUN)
    drawn = generator.random(2, seed=1)
    assert drawn.shape == (2, *RUN.shape) and drawn.dtype == np.uint8 and drawn.std() > 0.0
    images = ShapesGenerator((3, 10, 12)).random(3, seed=1)
    again = [generator.variation(images, images, 0.5, seed) for seed in (1, 1, 2)]
    assert np.array_equal(again[0], again[1]) and not np.array_equal(again[0], again[2])
    weak, strong = (change(images, generator.variation(images, images, strength, 1)) for strength in (0.05, 0.9))
    assert weak < strong
    with pytest.raises(ConfigError, match="images of 3 channels, not of 1"):
        generator_of(settings, RunDescription(("a", "b"), (1, 10, 12), public_seed=0))
    (tmp_path / "tiny" / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        generator_of(settings, RUN)
