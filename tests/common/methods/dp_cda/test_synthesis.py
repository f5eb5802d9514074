"""From noisy mixtures to records: each step against what is known of the mixtures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records.records import Records
from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_cda.settings import MixingSettings, MixtureSynthesisSettings
from dpdd.common.methods.dp_cda.specification import norm, points
from dpdd.common.methods.dp_cda.synthesis import class_mixtures, denoised, noisy_labels, rows, synthesise
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.wire.request import ReleaseRequest

AS_PUBLISHED = MixtureSynthesisSettings(denoise=False, spread="mixtures")
SCHEMA = TableSchema(
    label="sick",
    columns=(
        Numeric(name="age", low=0, high=100, bins=5, missing=True),
        Categorical(name="ward", categories=("heart", "lung")),
        Categorical(name="sick", categories=("no", "yes")),
    ),
)


def asked(
    records: NDArray, labels: NDArray[np.int64], settings: MixingSettings, epsilon: float, **more: object
) -> tuple[Statistics, RunDescription]:
    """What a silo with these records answers."""
    request = ReleaseRequest(
        "test", "dp-cda", settings.on_wire(), epsilon, 1e-5, ("no", "yes"), records.shape[1:], 3, **more
    )
    chosen = method("dp-cda")
    plan = chosen.plan(request, settings)
    held = Records(records, labels)
    released = mechanism(chosen).run(held, request, settings, plan, SeededEntropy(1), silent)
    return of_one_silo(released.arrays, plan.event), RunDescription.of(request, images_per_class=100)


def test_without_noise_and_sampling_a_mixture_is_the_mean_of_its_class() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    records = generator.integers(90, 160, (40, 1, 6, 5)).astype(np.uint8)
    labels = np.arange(40) % 2
    settings = MixingSettings(order=40, class_size=40, mixtures_per_class=3)
    statistics, run = asked(records, labels, settings, float("inf"))
    product = synthesise(statistics, settings, MixtureSynthesisSettings(), run)
    assert product.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for image, label in zip(product.images, product.labels, strict=True):
        np.testing.assert_allclose(image, records[labels == label].mean(axis=0), atol=1.0)


def test_mixtures_are_divided_by_the_order_that_their_class_really_has() -> None:
    """The guess of the class's size is ten times too small here."""
    generator = np.random.Generator(np.random.PCG64(0))
    records = np.where(generator.random((4000, 1, 4, 4)) < 0.5, 100, 140).astype(np.uint8)
    labels = np.zeros(4000, np.int64)
    settings = MixingSettings(order=20, class_size=400, mixtures_per_class=20)
    statistics, run = asked(records, labels, settings, float("inf"))
    found = class_mixtures(statistics, settings, 2)
    assert found.known.tolist() == [True, False] and found.order[0] == pytest.approx(200, rel=0.05)
    mean = points(records.astype(np.float32) / 255, settings, run).mean(axis=0)
    np.testing.assert_allclose(found.means[:, 0].mean(axis=0), mean, atol=0.15 * np.abs(mean).max())
    product = synthesise(statistics, settings, AS_PUBLISHED, run)
    assert (product.images[product.labels == 1] == 128).all(), "nothing is known of a class without records"


def test_noise_in_mixtures_is_what_is_said_of_it() -> None:
    records, labels = np.full((500, 1, 8, 8), 128, np.uint8), np.arange(500) % 2
    settings = MixingSettings(order=125, class_size=250, mixtures_per_class=50, encoding="exact")
    statistics, _ = asked(records, labels, settings, 2.0)
    found = class_mixtures(statistics, settings, 2)
    deviations = found.means.std(axis=(0, 2))
    np.testing.assert_allclose(deviations, found.noise, rtol=0.1)


def test_denoising_takes_out_noise_and_leaves_what_mixtures_have_in_common() -> None:
    generator = np.random.Generator(np.random.PCG64(4))
    directions = np.linalg.qr(generator.normal(size=(60, 3)))[0].T
    clean = 8.0 * generator.normal(size=(80, 2, 3)) @ directions
    noise = np.array([0.7, 1.3])
    noisy = clean + noise[None, :, None] * generator.normal(size=clean.shape)
    for width in (60, 10):  # more mixtures than dimensions; and, with few mixtures, the other way round
        part = slice(0, 80) if width == 60 else slice(0, 20)
        before, after = (np.square(each - clean[part]).mean() for each in (noisy[part], denoised(noisy[part], noise)))
        assert after < 0.25 * before
    alone = noise[None, :, None] * generator.normal(size=clean.shape)
    left = denoised(alone, noise) - alone.mean(axis=0)
    assert np.square(left).mean() < 0.1 * np.square(alone).mean(), "of noise alone hardly anything is left"
    assert (denoised(clean, np.zeros(2)) == clean).all()


def test_both_ways_to_the_principal_directions_agree() -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    means = generator.normal(size=(20, 2, 40)) + 5.0 * generator.normal(size=(20, 2, 1)) * np.ones(40)
    wide = denoised(means, np.ones(2))  # 40 deviations in 40 dimensions
    padded = np.concatenate([means, np.zeros((20, 2, 1))], axis=2)  # 41 dimensions: the other way, and one of nothing
    narrow = denoised(padded, np.ones(2))
    np.testing.assert_allclose(narrow[:, :, :40], wide, atol=0.35)
    np.testing.assert_allclose(narrow[:, :, 40], 0.0, atol=1e-9)


def test_rows_have_the_shares_of_their_mixtures() -> None:
    run = RunDescription(SCHEMA.classes, SCHEMA.shape, 5, table=SCHEMA)
    shares = np.array([0.5, 0.2, 0.0, 0.0, 0.2, 0.1, 0.9, 0.1])
    drawn = rows(np.tile(shares, (20_000, 1)), run)
    ages = np.bincount(drawn[:, 0].astype(int), minlength=6) / 20_000
    wards = np.bincount(drawn[:, 1].astype(int), minlength=2) / 20_000
    np.testing.assert_allclose([*ages, *wards], shares, atol=0.02)
    assert rows(np.full((50, 8), -1.0), run).max() <= 5, "without any share, all values are as likely"


def test_tables_keep_what_tells_their_classes_apart() -> None:
    generator = np.random.Generator(np.random.PCG64(6))
    labels = np.arange(4000) % 2
    wards = np.where(generator.random(4000) < 0.9, labels, 1 - labels)
    records = np.stack([generator.integers(0, 6, 4000), wards], axis=1).astype(np.float32)
    settings = MixingSettings(order=100, class_size=2000, mixtures_per_class=100)
    statistics, run = asked(records, labels, settings, 1.0, table=SCHEMA)
    assert norm(settings, run) == pytest.approx(2**0.5)
    product = synthesise(statistics, settings, MixtureSynthesisSettings(), run)
    assert np.mean(product.rows[:, 1] == product.labels) > 0.75
    fewer = synthesise(statistics, settings, MixtureSynthesisSettings(), replace(run, images_per_class=7))
    assert np.bincount(fewer.labels).tolist() == [7, 7]


def test_labels_with_noise_are_those_of_the_largest_noisy_entry() -> None:
    run, labels = RunDescription(("a", "b", "c"), (1, 4, 4), 3), np.arange(6000) % 3
    assert noisy_labels(labels, 0.0, run) is labels and (noisy_labels(labels, 0.05, run) == labels).all()
    right = (noisy_labels(labels, 1.0, run) == labels).mean()
    assert right == pytest.approx(0.634, abs=0.02), "the largest of N(1, 1), N(0, 1) and N(0, 1) is the first"
