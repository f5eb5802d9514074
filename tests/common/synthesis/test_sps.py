"""SPS's public half: Gaussians from noisy sums, the objective, groups, the teacher, and images that match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpdd.common.models.backbone import Provenance, build, load, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.synthesis import sps, teacher
from dpdd.common.synthesis.canvas import jostle
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.gaussian_fit import FLOOR, divergence, fit
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.summary import Summary, make_groups, moments, unpack

CLASSES = ("left", "right")
SHAPE = (1, 12, 12)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("backbone") / "tiny"
    network = build(
        ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(8, 12, 16), pool_after=(1,))
    )
    save(path, network, Provenance(public_data="none", licence="none", accuracy=0.0, command="test", seed=1))
    return str(path)


def settings_for(backbone: str, **changes: object) -> sps.MethodSettings:
    values: dict[str, object] = {"global_dimensions": 6, "class_dimensions": 6, "class_layers": 2, "thumbnail": 4}
    return sps.MethodSettings(backbone=backbone, clip=1.0, features=8, **(values | changes))  # type: ignore[arg-type]


def halves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(count) % 2
    images = 0.15 * torch.rand(count, *SHAPE, generator=generator)
    images[labels == 0, :, :, :6] += 0.7
    images[labels == 1, :, :, 6:] += 0.45  # also darker: pooled features do not see left and right
    return images, labels


def statistics_of(table: Summary, images: torch.Tensor, labels: torch.Tensor, noise: float = 0.0) -> Statistics:
    vectors = table.clipped(table.vectors(images)).detach().double()
    sums = {}
    for row in table.rows:
        sums[row.name] = (
            sps.membership(row, table).double()
            @ torch.nn.functional.one_hot(labels, table.classes).double().T
            @ vectors[:, table.columns[row.name]]
        ).numpy()
    sums["count"] = np.bincount(labels.numpy(), minlength=table.classes)[:, None] * table.count_weight
    generator = np.random.Generator(np.random.PCG64(3))
    return Statistics({k: v + noise * generator.standard_normal(v.shape) for k, v in sums.items()}, noise, 1)


def table_for(settings: sps.MethodSettings) -> Summary:
    return sps.summary(settings, load(settings.backbone), 2, SHAPE, 1)


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
    table = table_for(settings_for(backbone))
    parts = {True: 0.0, False: 0.0}
    for row in table.rows:
        parts[row.scope == "global"] += table.copies(row) * row.width * table.weights[row.name] ** 2
    assert parts[True] == pytest.approx(parts[False])
    assert parts[True] + parts[False] == pytest.approx(1.0 - table.count_weight**2)


def test_targets_from_clean_sums_are_the_data_s_own_gaussians(backbone: str) -> None:
    table = table_for(settings_for(backbone))
    images, labels = halves(60)
    wanted = sps.targets(statistics_of(table, images, labels), table, gamma=2.0)
    vectors = table.clipped(table.vectors(images))
    assert sps.mismatch(vectors, labels, table, wanted, class_weight=10.0) < 1e-4
    assert sps.mismatch(vectors, 1 - labels, table, wanted, class_weight=10.0) > 0.1


def test_a_class_lost_in_noise_is_left_out(backbone: str) -> None:
    table = table_for(settings_for(backbone))
    images, _ = halves(30)
    wanted = sps.targets(statistics_of(table, images, torch.zeros(30, dtype=torch.long), noise=0.05), table, gamma=2.0)
    known = {name: gaussians.known.tolist() for name, gaussians in wanted.items()}
    assert known["class-thumbnail"] == [True, False] and known["global-layer-00"] == [True]


@pytest.mark.parametrize("groups", [0, 2])
def test_synthesis_lowers_the_mismatch_and_puts_light_where_it_was(backbone: str, groups: int) -> None:
    settings = settings_for(backbone, groups=groups, classes_per_group=1 if groups else 0)
    table = table_for(settings)
    images, labels = halves(200)
    made = sps.synthesise(
        statistics_of(table, images, labels, noise=0.02),
        settings,
        sps.SynthesisSettings(steps=60, batch_per_class=8, flips=False, jostling=0.02, soft_labels=True),
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


def test_the_teacher_is_a_classifier_for_real_images(backbone: str) -> None:
    table = table_for(settings_for(backbone))
    images, labels = halves(300)
    found = teacher.from_statistics(statistics_of(table, images[:200], labels[:200]), table)
    answers = found.scores(table, images[200:]).argmax(1)
    assert (answers == labels[200:]).float().mean() > 0.95


def test_a_backbone_for_other_channels_is_refused(backbone: str) -> None:
    from dpdd.common.errors import ConfigError

    with pytest.raises(ConfigError, match="channels"):
        sps.summary(settings_for(backbone), load(backbone), 2, (3, 12, 12), 1)


def test_jostling_of_strength_zero_changes_nothing() -> None:
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(jostle(images, 0.0, False, torch.Generator().manual_seed(1)), images, atol=1e-5, rtol=0)


def test_a_table_used_without_gradients_first_still_gives_them_later(backbone: str) -> None:
    table = sps.summary(settings_for(backbone), load(backbone), 2, SHAPE, seed=99)
    with torch.inference_mode():
        table.vectors(torch.rand(2, *SHAPE))
    images = torch.rand(2, *SHAPE).requires_grad_(True)
    table.vectors(images).square().sum().backward()
    assert images.grad is not None and images.grad.abs().sum() > 0


def test_saving_twice_gives_the_same_file(tmp_path: Path) -> None:
    made = SyntheticSet(np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]), ("a", "b"))
    assert len({made.save(tmp_path / str(number)) for number in range(8)}) == 1
