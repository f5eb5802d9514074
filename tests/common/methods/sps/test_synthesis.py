"""SPS's public half: Gaussians from noisy sums, the objective, groups, centres of later stages, images that match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.sps import synthesis as sps
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics, make_groups, moments, unpack
from dpdd.common.methods.sps.gaussian_fit import FLOOR, divergence, fit
from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.synthesis.image_pyramid import random_affine
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from tests.common.synthesis.released import statistics_of

CLASSES = ("left", "right")
SHAPE = (1, 12, 12)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(
        ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(8, 12, 16), pool_after=(1,))
    )
    with torch.no_grad():
        network.whitening.fit(network.eval().features(torch.rand(300, *SHAPE)))
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return str(path)


def settings_for(backbone: str, **changes: object) -> sps.MethodSettings:
    values: dict[str, object] = {"global_dimensions": 6, "class_dimensions": 6, "class_layers": 2, "thumbnail": 4}
    values |= {"backbone": backbone, "clip": 1.0, "features": 8, "picture": 4}
    return sps.MethodSettings(**(values | changes))  # type: ignore[arg-type]


def halves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(count) % 2
    images = 0.15 * torch.rand(count, *SHAPE, generator=generator)
    images[labels == 0, :, :, :6] += 0.7
    images[labels == 1, :, :, 6:] += 0.45  # also darker: pooled features do not see left and right
    return images, labels


def table_for(settings: sps.MethodSettings, stage: int = 0) -> FeatureStatistics:
    return sps.feature_statistics(settings, load(settings.backbone), 2, SHAPE, 1, stage)


def quick(**changes: object) -> sps.SynthesisSettings:
    values: dict[str, object] = {"steps": 60, "batch_per_class": 8, "augmentation_strength": 0.02}
    return sps.SynthesisSettings(**(values | changes))  # type: ignore[arg-type]


def test_moments_and_unpack_are_inverse() -> None:
    z = torch.randn(3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    means, second = unpack(moments(z), 5)
    torch.testing.assert_close(means, z.mean(2))
    torch.testing.assert_close(second, torch.einsum("nip,njp->nij", z, z) / 7)


def test_the_divergence_is_that_of_torch_and_zero_at_the_target() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(2, 4, 50, dtype=torch.float64, generator=generator)
    other = 1.3 * torch.randn(2, 4, 50, dtype=torch.float64, generator=generator) + 0.2
    target = fit(*unpack(moments(z), 4), torch.tensor([True, True]), gamma=2.0)
    assert divergence(target, *unpack(moments(z), 4)).abs().max() < 1e-9
    means, second = unpack(moments(other), 4)
    eye = torch.eye(4, dtype=torch.float64)
    covariances = second - means[:, :, None] * means[:, None, :] + target.jitters[:, None, None] * eye
    p = torch.distributions.MultivariateNormal(target.means, target.covariances)
    q = torch.distributions.MultivariateNormal(means, covariances)
    torch.testing.assert_close(divergence(target, means, second), torch.distributions.kl_divergence(p, q) / 4)


def test_noisy_covariances_become_valid_and_the_jitter_has_a_floor() -> None:
    noisy = torch.diag(torch.tensor([2.0, 1.0, -0.5], dtype=torch.float64))[None]
    fitted = fit(torch.zeros(1, 3, dtype=torch.float64), noisy, torch.tensor([True]), gamma=2.0)
    assert fitted.jitters[0] == 1.0
    torch.testing.assert_close(
        torch.linalg.eigvalsh(fitted.covariances[0]), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    )
    clean = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))[None]
    fitted = fit(torch.zeros(1, 3, dtype=torch.float64), clean, torch.tensor([True]), gamma=2.0)
    torch.testing.assert_close(fitted.jitters[0], torch.tensor(FLOOR, dtype=torch.float64))


def test_groups_are_balanced_and_impossible_ones_refused() -> None:
    groups = make_groups(10, 20, 5, seed=4)
    assert len(groups.members) == 20 and all(len(set(m)) == 5 for m in groups.members)
    assert {len(g) for g in groups.of_class(10)} == {10}
    with pytest.raises(ValueError, match="balanced"):
        make_groups(10, 3, 4, seed=1)


def test_the_class_part_weighs_as_much_as_the_global_part(backbone: str) -> None:
    for changes in ({}, {"features": 0, "picture": 0}, {"groups": 4, "classes_per_group": 1}, {"row_share": 0.7}):
        spec = table_for(settings_for(backbone, **changes))
        parts = {True: 0.0, False: 0.0}
        for statistic in spec.statistics:
            parts[statistic.scope == "global"] += (
                spec.copies(statistic) * statistic.width * spec.weights[statistic.name] ** 2
            )
        assert parts[True] == pytest.approx(parts[False])
        share = 1.0 - spec.count_weight**2 if spec.embedding is None else spec.row_share
        assert parts[True] + parts[False] == pytest.approx(share)


def test_targets_from_clean_sums_are_the_data_s_own_gaussians(backbone: str) -> None:
    spec = table_for(settings_for(backbone))
    images, labels = halves(60)
    wanted = sps.targets([statistics_of(spec, images, labels)], [spec], gamma=2.0)
    vectors, _ = spec.measure(images)
    assert sps.mismatch(vectors, labels, spec, wanted, class_weight=10.0) < 1e-4
    assert sps.mismatch(vectors, 1 - labels, spec, wanted, class_weight=10.0) > 0.1


def test_a_class_lost_in_noise_is_left_out(backbone: str) -> None:
    spec = table_for(settings_for(backbone))
    images, _ = halves(30)
    statistics = statistics_of(spec, images, torch.zeros(30, dtype=torch.long), noise=0.05)
    wanted = sps.targets([statistics], [spec], gamma=2.0)
    known = {name: gaussians.known.tolist() for name, gaussians in wanted.items()}
    assert known["class-thumbnail"] == [True, False] and known["global-layer-00"] == [True]


def rows_of_everybody(spec: FeatureStatistics, images: torch.Tensor, labels: torch.Tensor) -> dict[str, np.ndarray]:
    """A good centre: the class means of the rows, in their own units."""
    vectors, _ = spec.measure(images)
    plain = torch.cat(
        [vectors[:, spec.columns[statistic.name]] / spec.weights[statistic.name] for statistic in spec.statistics], 1
    )
    return {"rows": torch.stack([plain[labels == label].mean(0) for label in range(2)]).numpy()}


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("kind", ["good", "zero", "off"])
def test_re_centred_stages_give_the_same_gaussians(backbone: str, groups: int, kind: str) -> None:
    """Whatever a stage is centred on, as long as nothing is clipped: the centre is put back."""
    settings = settings_for(backbone, groups=groups, classes_per_group=1 if groups else 0, features=0, picture=0)
    specs = [table_for(settings, stage) for stage in (0, 1)]
    images, labels = halves(60)
    centre = rows_of_everybody(specs[0], images, labels)
    centre["rows"] = {"good": centre["rows"], "zero": 0.0 * centre["rows"], "off": centre["rows"] + 0.05}[kind]
    first = statistics_of(specs[0], images, labels)
    later = statistics_of(specs[1], images, labels, stage_input=centre)
    assert kind != "good" or all(np.abs(later.sums[statistic.name]).max() < 1e-3 for statistic in specs[0].statistics)
    once, twice = (sps.targets(*pair, gamma=2.0) for pair in (([first], specs[:1]), ([first, later], specs)))
    for name, gaussians in once.items():
        torch.testing.assert_close(twice[name].means, gaussians.means, atol=1e-5, rtol=0)
        torch.testing.assert_close(twice[name].covariances, gaussians.covariances, atol=1e-5, rtol=0)


def test_stages_are_weighed_by_their_precision(backbone: str) -> None:
    settings = settings_for(backbone, features=0, picture=0)
    specs = [table_for(settings, stage) for stage in (0, 1)]
    images, labels = halves(60)
    centre = rows_of_everybody(specs[0], images, labels)
    clean = [statistics_of(spec, images, labels, stage_input=c) for spec, c in zip(specs, ({}, centre), strict=True)]
    for worse in (0, 1):
        noisy = list(clean)
        off = {name: array + (name != "count") for name, array in clean[worse].sums.items()}
        noisy[worse] = Statistics(off, 1e-2, 1, clean[worse].stage_input)
        noisy[1 - worse] = Statistics(clean[1 - worse].sums, 1e-7, 1, clean[1 - worse].stage_input)
        for name, gaussians in sps.targets(noisy, specs, gamma=2.0).items():
            expected = sps.targets(clean, specs, gamma=2.0)[name].means
            torch.testing.assert_close(gaussians.means, expected, atol=1e-4, rtol=0)


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
    specs = [sps._spec(settings, 2, SHAPE, 1, stage) for stage in range(3)]
    assert [spec.turn for spec in specs] == [0, 1, 0]
    images, labels = halves(100)
    released = [statistics_of(specs[0], images, labels)]
    for spec in specs[1:]:
        centre = sps.stage_input(released, settings, classes=CLASSES, shape=SHAPE, public_seed=1)
        assert {name: array.shape for name, array in centre.items()} == sps.stage_input_shapes(spec)
        released.append(statistics_of(spec, images, labels, stage_input=centre))
    wanted = sps.targets(released, specs, 2.0, specs[1])
    alone = sps.feature_statistics(settings, load(other), 2, SHAPE, 1, first=load(backbone))
    clean = sps.targets([statistics_of(alone, images, labels)], [alone], 2.0)
    for name, gaussians in clean.items():
        torch.testing.assert_close(wanted[name].means, gaussians.means, atol=1e-3, rtol=0)
    gaps = []
    for given in (released[:1], released):
        made = sps.synthesise(given, settings, quick(), classes=CLASSES, shape=SHAPE, images_per_class=8, public_seed=1)
        vectors, _ = specs[1].measure(torch.from_numpy(made.images).float() / 255.0, embed=False)
        gaps.append(float(sps.mismatch(vectors, torch.from_numpy(made.labels), specs[1], wanted, 10.0)))
    assert gaps[1] < 0.7 * gaps[0]


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"stages": 1}, "need as many stages"),
        ({"stages": 2, "global_dimensions": 0, "class_layers": 0}, "rows of layers"),
        ({"stages": 2, "more_sha256": ("00", "11")}, "leave it out"),
    ],
    ids=str,
)
def test_odd_choices_of_backbones_are_refused(backbone: str, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        settings_for(backbone, more_backbones=("scatter28",), **changes)


@pytest.mark.parametrize("changes", [{}, {"features": 0, "picture": 0}, {"picture": 0}, {"features": 0}], ids=str)
def test_a_centre_is_what_the_next_stage_wants(backbone: str, changes: dict[str, object]) -> None:
    settings = settings_for(backbone, stages=2, **changes)
    images, labels = halves(100)
    first = statistics_of(table_for(settings), images, labels)
    found = sps.stage_input([first], settings, classes=CLASSES, shape=SHAPE, public_seed=1)
    assert {name: array.shape for name, array in found.items()} == sps.stage_input_shapes(table_for(settings, 1))
    assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in found.values())
    if "rows" in found:
        good = rows_of_everybody(table_for(settings), images, labels)["rows"]
        swapped = good[::-1]
        assert np.linalg.norm(found["rows"] - good) < 0.9 * np.linalg.norm(found["rows"] - swapped)


@pytest.mark.parametrize("groups", [0, 2])
def test_synthesis_lowers_the_mismatch_and_puts_light_where_it_was(backbone: str, groups: int) -> None:
    settings = settings_for(backbone, groups=groups, classes_per_group=1 if groups else 0)
    spec = table_for(settings)
    images, labels = halves(200)
    made = sps.synthesise(
        [statistics_of(spec, images, labels, noise=0.02)],
        settings,
        quick(),
        classes=CLASSES,
        shape=SHAPE,
        images_per_class=10,
        public_seed=1,
    )
    assert made.images.shape == (20, 1, 12, 12) and made.labels.tolist() == [0] * 10 + [1] * 10
    left, right = made.images[..., :6].mean((1, 2, 3)), made.images[..., 6:].mean((1, 2, 3))
    assert (left[:10] > right[:10] + 30).all() and (right[10:] > left[10:] + 30).all()
    assert made.soft is not None and made.soft.shape == (20, 2)
    np.testing.assert_allclose(made.soft.sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"global_dimensions": 0, "class_layers": 0, "thumbnail": 0},
        {"global_dimensions": 0, "class_layers": 0, "thumbnail": 0, "picture": 0},
        {"global_dimensions": 0, "class_layers": 0, "thumbnail": 0, "features": 0},
        {"features": 0, "picture": 0},
    ],
    ids=["§embedding§", "features", "picture", "rows"],
)
def test_every_kind_of_release_makes_images(backbone: str, changes: dict[str, object]) -> None:
    settings = settings_for(backbone, **changes)
    images, labels = halves(200)
    made = sps.synthesise(
        [statistics_of(table_for(settings), images, labels, noise=0.02)],
        settings,
        quick(steps=30),
        classes=CLASSES,
        shape=SHAPE,
        images_per_class=9,
        public_seed=1,
    )
    assert made.images.shape == (18, 1, 12, 12) and made.images.std() > 5
    assert (made.soft is None) == (made.teacher is None) == (changes == {"features": 0, "picture": 0})
    if changes.get("picture", 4):
        assert made.images[:9].mean() > made.images[9:].mean() + 10  # the left ones are brighter


@pytest.mark.parametrize("lost", [1, 2])
def test_classes_lost_in_noise_spoil_nothing(backbone: str, lost: int) -> None:
    """One class, or all of them: images stay finite, and the class that is known looks as it should."""
    settings = settings_for(backbone)
    images, _ = halves(200)
    images, labels = images[::2], torch.zeros(100, dtype=torch.long)
    noise = 0.5 if lost == 1 else 50.0
    statistics = statistics_of(table_for(settings), images, labels, noise=noise)
    statistics.sums["count"][:, 0] = [10.0 if lost == 1 else -1.0, -1.0]
    made = sps.synthesise(
        [statistics],
        settings,
        quick(steps=30),
        classes=CLASSES,
        shape=SHAPE,
        images_per_class=8,
        public_seed=1,
    )
    assert made.images.std() > 1 and made.soft is not None and np.isfinite(made.soft).all()
    if lost == 1:
        assert made.images[:8, ..., :6].mean() > made.images[:8, ..., 6:].mean() + 30


def test_a_backbone_for_other_channels_is_refused(backbone: str) -> None:
    with pytest.raises(ConfigError, match="channels"):
        sps.feature_statistics(settings_for(backbone), load(backbone), 2, (3, 12, 12), 1)


def test_more_features_than_the_backbone_has_are_refused(backbone: str) -> None:
    with pytest.raises(ConfigError, match="16 features, not 17"):
        table_for(settings_for(backbone, features=17))


def test_a_release_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is released"):
        sps.MethodSettings(features=0, picture=0)


def test_jostling_of_strength_zero_changes_nothing() -> None:
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        random_affine(images, 0.0, False, torch.Generator().manual_seed(1)), images, atol=1e-5, rtol=0
    )


def test_a_table_used_without_gradients_first_still_gives_them_later(backbone: str) -> None:
    spec = sps.feature_statistics(settings_for(backbone), load(backbone), 2, SHAPE, seed=99)
    with torch.inference_mode():
        spec.measure(torch.rand(2, *SHAPE))
    images = torch.rand(2, *SHAPE).requires_grad_(True)
    rows, embeddings = spec.measure(images)
    assert embeddings is not None
    (rows.square().sum() + embeddings[:, :3].sum()).backward()
    assert images.grad is not None and images.grad.abs().sum() > 0


def test_saving_twice_gives_the_same_file(tmp_path: Path) -> None:
    made = LabelledSet(np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]), ("a", "b"))
    assert len({made.save(tmp_path / str(number)) for number in range(8)}) == 1
