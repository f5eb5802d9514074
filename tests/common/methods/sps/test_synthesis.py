"""SPS's synthesis: inputs of later stages, and images that match every backbone, without classes lost in noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.methods.sps.settings import SynthesisSettings
from dpdd.common.methods.sps.specification import feature_statistics, stage_input_shapes
from dpdd.common.methods.sps.synthesis import stage_input, synthesise
from dpdd.common.methods.sps.targets import mismatch, targets
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from tests.common.methods.sps import halves as world
from tests.common.methods.sps.halves import RUN, SHAPE, class_mean_rows, halves, settings_for, spec_for
from tests.common.methods.sps.released import statistics_of

backbone = world.backbone


def quick(**changes: object) -> SynthesisSettings:
    values: dict[str, object] = {"steps": 60, "batch_per_class": 8, "augmentation_strength": 0.02}
    return SynthesisSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("backbone") / "other"
    network = build(ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(6, 10), pool_after=(1,)))
    save(path, network.eval(), Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=7))
    return str(path)


@pytest.mark.parametrize("features", [0, 8])
def test_images_please_every_backbone_that_had_a_turn(backbone: str, other: str, features: int) -> None:
    """Rows only the second network sees differ between the classes: images made for it match it better."""
    settings = settings_for(backbone, stages=3, more_backbones=(other,), features=features, picture=0, thumbnail=0)
    specs = [spec_for(settings, stage) for stage in range(3)]
    assert [spec.turn for spec in specs] == [0, 1, 0]
    images, labels = halves(100)
    released = [statistics_of(specs[0], images, labels)]
    for spec in specs[1:]:
        given = stage_input(released, settings, RUN)
        assert {name: array.shape for name, array in given.items()} == stage_input_shapes(spec)
        released.append(statistics_of(spec, images, labels, stage_input=given))
    wanted = targets(released, specs, 2.0, specs[1])
    alone = feature_statistics(settings, load(other), 2, SHAPE, 1, first=load(backbone))
    clean = targets([statistics_of(alone, images, labels)], [alone], 2.0)
    for name, gaussians in clean.items():
        torch.testing.assert_close(wanted[name].means, gaussians.means, atol=1e-3, rtol=0)
    gaps = []
    for stages in (released[:1], released):
        dataset = synthesise(stages, settings, quick(), replace(RUN, images_per_class=8))
        vectors, _ = specs[1].measure(torch.from_numpy(dataset.images).float() / 255.0, embed=False)
        gaps.append(float(mismatch(vectors, torch.from_numpy(dataset.labels), specs[1], wanted, 10.0)))
    assert gaps[1] < 0.7 * gaps[0]


@pytest.mark.parametrize("changes", [{}, {"features": 0, "picture": 0}, {"picture": 0}, {"features": 0}], ids=str)
def test_a_stage_is_asked_with_what_it_wants(backbone: str, changes: dict[str, object]) -> None:
    settings = settings_for(backbone, stages=2, **changes)
    images, labels = halves(100)
    first = statistics_of(spec_for(settings), images, labels)
    given = stage_input([first], settings, RUN)
    assert {name: array.shape for name, array in given.items()} == stage_input_shapes(spec_for(settings, 1))
    assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in given.values())
    if "rows" in given:
        good = class_mean_rows(spec_for(settings), images, labels)["rows"]
        swapped = good[::-1]
        assert np.linalg.norm(given["rows"] - good) < 0.9 * np.linalg.norm(given["rows"] - swapped)


@pytest.mark.parametrize("groups", [0, 2])
def test_synthesis_lowers_the_mismatch_and_puts_light_where_it_was(backbone: str, groups: int) -> None:
    settings = settings_for(backbone, groups=groups, classes_per_group=1 if groups else 0)
    spec = spec_for(settings)
    images, labels = halves(200)
    dataset = synthesise(
        [statistics_of(spec, images, labels, noise=0.02)], settings, quick(), replace(RUN, images_per_class=10)
    )
    assert dataset.images.shape == (20, 1, 12, 12) and dataset.labels.tolist() == [0] * 10 + [1] * 10
    left, right = dataset.images[..., :6].mean((1, 2, 3)), dataset.images[..., 6:].mean((1, 2, 3))
    assert (left[:10] > right[:10] + 30).all() and (right[10:] > left[10:] + 30).all()
    assert dataset.soft is not None and dataset.soft.shape == (20, 2)
    np.testing.assert_allclose(dataset.soft.sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"global_dimensions": 0, "class_layers": 0, "thumbnail": 0},
        {"global_dimensions": 0, "class_layers": 0, "thumbnail": 0, "picture": 0},
        {"global_dimensions": 0, "class_layers": 0, "thumbnail": 0, "features": 0},
        {"features": 0, "picture": 0},
    ],
    ids=["embedding", "features", "picture", "rows"],
)
def test_every_kind_of_release_makes_images(backbone: str, changes: dict[str, object]) -> None:
    settings = settings_for(backbone, **changes)
    images, labels = halves(200)
    dataset = synthesise(
        [statistics_of(spec_for(settings), images, labels, noise=0.02)],
        settings,
        quick(steps=30),
        replace(RUN, images_per_class=9),
    )
    assert dataset.images.shape == (18, 1, 12, 12) and dataset.images.std() > 5
    assert (dataset.soft is None) == (dataset.teacher is None) == (changes == {"features": 0, "picture": 0})
    if changes.get("picture", 4):
        assert dataset.images[:9].mean() > dataset.images[9:].mean() + 10  # the left ones are brighter


@pytest.mark.parametrize("lost", [1, 2])
def test_classes_lost_in_noise_spoil_nothing(backbone: str, lost: int) -> None:
    """One class, or all of them: images stay finite, and the class that is known looks as it should."""
    settings = settings_for(backbone)
    images, _ = halves(200)
    images, labels = images[::2], torch.zeros(100, dtype=torch.long)
    noise = 0.5 if lost == 1 else 50.0
    statistics = statistics_of(spec_for(settings), images, labels, noise=noise)
    statistics.sums["count"][:, 0] = [10.0 if lost == 1 else -1.0, -1.0]
    dataset = synthesise([statistics], settings, quick(steps=30), replace(RUN, images_per_class=8))
    assert dataset.images.std() > 1 and dataset.soft is not None and np.isfinite(dataset.soft).all()
    if lost == 1:
        assert dataset.images[:8, ..., :6].mean() > dataset.images[:8, ..., 6:].mean() + 30
