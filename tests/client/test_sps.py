"""SPS's private half by brute force: one record moves the sums by at most one unit; silos add up to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpdd.client.mechanisms import sps as mechanism
from dpdd.client.records.records import Records
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.privacy.clipping import GRID
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.synthesis import sps
from dpdd.common.wire.request import ReleaseRequest

CLASSES = ("a", "b", "c", "d")
SHAPE = (1, 12, 12)
PLAIN = {"global_dimensions": 5, "class_dimensions": 4, "class_layers": 2, "thumbnail": 3, "features": 4}
GROUPED = PLAIN | {"groups": 6, "classes_per_group": 2}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random network: privacy must not depend on what the backbone computes."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(4, 6, 8), pool_after=(1,)))
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return path


def request_for(backbone: Path, settings: dict[str, object]) -> tuple[ReleaseRequest, sps.MethodSettings]:
    values = sps.MethodSettings(backbone=str(backbone), **settings)  # type: ignore[arg-type]
    request = ReleaseRequest(
        run="test",
        method="sps",
        settings=values.model_dump(mode="json"),
        epsilon=float("inf"),
        delta=1e-5,
        classes=CLASSES,
        shape=SHAPE,
        public_seed=5,
        backbone_sha256=bytes.fromhex(load(backbone).card.sha256),
    )
    return request, values


def clean_sums(
    backbone: Path, settings: dict[str, object], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    request, values = request_for(backbone, settings)
    plan = mechanism.plan(request, values)
    records = Records(images.astype(np.float32), labels.astype(np.int64))
    return dict(mechanism.run(records, request, values, plan, SeededEntropy(0), lambda *_: None).arrays)


def hostile(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images, and among them constant, huge, tiny, negative and checkered ones."""
    generator = np.random.Generator(np.random.PCG64(seed))
    images = generator.random((count, *SHAPE))
    images[0] = 0.0
    images[1] = 1.0
    images[2] *= 1e20
    images[3] *= -1e6
    images[4] = np.indices(SHAPE[1:]).sum(0) % 2
    images[5] *= 1e-30
    return images, generator.integers(0, len(CLASSES), count)


@pytest.mark.parametrize("settings", [PLAIN, GROUPED, PLAIN | {"clip": 0.9}, PLAIN | {"clip": 0.001}], ids=str)
def test_one_record_moves_the_sums_by_at_most_one_unit(backbone: Path, settings: dict[str, object]) -> None:
    images, labels = hostile(9, 3)
    whole = clean_sums(backbone, settings, images, labels)
    for index in range(len(images)):
        without = clean_sums(backbone, settings, np.delete(images, index, 0), np.delete(labels, index))
        moved = sum(int(((whole[name] - without[name]).astype(object) ** 2).sum()) for name in whole)
        assert moved <= GRID**2, f"record {index} moves the sums by {moved**0.5 / GRID}"


def test_a_small_clip_makes_every_record_weigh_exactly_one(backbone: Path) -> None:
    images, labels = hostile(8, 4)
    for index in (0, 4, 7):
        alone = clean_sums(backbone, PLAIN | {"clip": 0.001}, images[index : index + 1], labels[index : index + 1])
        norm = sum(int((array.astype(object) ** 2).sum()) for array in alone.values()) ** 0.5 / GRID
        assert 0.999 < norm <= 1.0


@pytest.mark.parametrize("settings", [PLAIN, GROUPED], ids=["plain", "grouped"])
def test_a_record_with_nan_or_infinity_contributes_exactly_nothing(backbone: Path, settings: dict[str, object]) -> None:
    images, labels = hostile(8, 5)
    expected = clean_sums(backbone, settings, images, labels)
    for value in (np.nan, np.inf):
        bad = images[7:8].copy()
        bad[0, 0, 5, 5] = value
        found = clean_sums(backbone, settings, np.concatenate([images, bad]), np.append(labels, 1))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("settings", [PLAIN, GROUPED], ids=["plain", "grouped"])
def test_any_split_over_silos_adds_up_to_the_last_bit(backbone: Path, settings: dict[str, object]) -> None:
    images, labels = hostile(600, 6)
    whole = clean_sums(backbone, settings, images, labels)
    order = np.random.Generator(np.random.PCG64(1)).permutation(600)
    parts = [
        clean_sums(backbone, settings, images[piece], labels[piece]) for piece in np.split(order, [1, 7, 260, 511])
    ]
    for name in whole:
        np.testing.assert_array_equal(sum(part[name] for part in parts), whole[name])


def test_counts_are_released_inside_the_same_vector(backbone: Path) -> None:
    images, labels = hostile(50, 7)
    sums = clean_sums(backbone, PLAIN, images[6:], labels[6:])
    counts = sums["count"][:, 0] / GRID / 0.1
    np.testing.assert_allclose(counts, np.bincount(labels[6:], minlength=4), atol=0.01)


def test_without_clipping_the_sums_are_the_moments(backbone: Path) -> None:
    """Against a plain re-computation of means and second moments, with no code of ours but the network."""
    images, labels = hostile(40, 8)
    images, labels = images[6:], labels[6:]
    request, values = request_for(backbone, PLAIN | {"clip": 1.0})
    sums = clean_sums(backbone, PLAIN | {"clip": 1.0}, images, labels)
    table = sps.summary_for(values, request)
    taps = table.network.taps(torch.from_numpy(images).float())
    row = next(row for row in table.rows if row.name == "class-layer-02")
    from dpdd.common.randomness import gaussians

    projection = gaussians(5, f"sps projection 2 {row.dimensions}", (row.dimensions, 8)) / 8**0.5
    z = np.einsum("dc,nchw->nhwd", projection, taps[2].detach().double().numpy())
    z = 2.0 / (1.0 + np.exp(-z)) - 1.0
    for label in range(4):
        mine = z[labels == label]
        first = mine.mean(axis=(1, 2)).sum(0)
        second = np.einsum("nhwi,nhwj->ij", mine, mine) / (mine.shape[1] * mine.shape[2])
        expected = np.concatenate([first, second[np.triu_indices(row.dimensions)]]) * table.weights[row.name]
        np.testing.assert_allclose(sums[row.name][label] / GRID, expected, atol=2e-4)


def test_another_backbone_than_the_requests_is_refused(backbone: Path) -> None:
    from dataclasses import replace

    from dpdd.common.errors import ConfigError

    request, values = request_for(backbone, PLAIN)
    with pytest.raises(ConfigError, match="asked for"):
        mechanism.plan(replace(request, backbone_sha256=bytes(32)), values)
