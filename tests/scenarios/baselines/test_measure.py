"""Baselines: sums of exactly known sensitivity, noise of the right size, honest tables, and a command that runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpdd.common.cli import Commands
from dpdd.common.data import benchmarks
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone as backbones
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.models.wrn import WideResNetArchitecture
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, gaussian_mu, parts
from dpdd.scenarios.baselines import compare as baselines
from dpdd.scenarios.baselines import private_finetune, private_linear, public_features
from dpdd.scenarios.baselines.private_linear import (
    PRODUCT,
    UNIT,
    LogisticSettings,
    clipped_gradient,
    lda,
    logistic,
    moments,
    noisy,
    on_grid,
    ridge,
    with_bias,
)

CLASSES = ("a", "b", "c")


def blobs(count: int, seed: int, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    features = generator.normal(size=(count, width)) + 3.0 * np.eye(width)[labels]
    return features, labels


class NoNoise:
    """Draws that are all 0: sums as they are."""

    releasable = False

    def take(self, count: int) -> bytes:
        return (2**63).to_bytes(8, "little") * (count // 8)


# sums and their sensitivity


def test_rows_on_the_grid_have_norm_one_at_most_and_lose_little() -> None:
    features, _ = blobs(300, 0)
    rows = np.concatenate([with_bias(features), 1e9 * features.repeat(7, 1)[:, :7], np.full((1, 7), np.nan)])
    grid = on_grid(rows)
    assert (grid == np.trunc(grid)).all()
    assert ((grid**2).sum(axis=1) <= UNIT**2).all(), "exact: the squares are integers"
    assert (grid[-1] == 0).all()
    assert np.abs(grid[:300] / UNIT - rows[:300]).max() < 1.01 / UNIT


def test_odd_features_become_the_bias_alone() -> None:
    odd = np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [1e200, 1e200]])
    rows = with_bias(odd)
    assert (rows[:, :-1] == 0).all() and np.isfinite(rows).all()


@pytest.mark.parametrize("clip", [0.05, 0.4, 1.0, 5.0])
def test_gradients_are_clipped_as_autograd_would(clip: float) -> None:
    features, labels = blobs(40, 1)
    rows = with_bias(features)
    weight = np.random.Generator(np.random.PCG64(2)).normal(size=(3, 7)) * 3
    expected = torch.zeros(3, 7, dtype=torch.float64)
    clipped = 0
    for row, label in zip(torch.from_numpy(rows), torch.from_numpy(labels), strict=True):
        parameter = torch.from_numpy(weight).clone().requires_grad_()
        loss = functional.cross_entropy((parameter @ row)[None], label[None])
        (gradient,) = torch.autograd.grad(loss, parameter)
        clipped += bool(gradient.norm() > clip)
        expected += gradient * min(1.0, clip / float(gradient.norm()))
    found = clipped_gradient(on_grid(rows), labels, weight, clip) * clip / PRODUCT
    np.testing.assert_allclose(found, expected.numpy(), atol=40 * 3e-4 * clip)
    assert (clipped > 30) == (clip == 0.05) and (clipped == 0) == (clip == 5.0)


def test_one_record_moves_a_gradient_sum_by_the_sensitivity_at_most() -> None:
    features, labels = blobs(30, 3)
    features[0] *= 1e6
    rows, weight = on_grid(with_bias(features)), np.random.Generator(np.random.PCG64(1)).normal(size=(3, 7)) * 20
    whole = clipped_gradient(rows, labels, weight, 0.3)
    moved = [
        np.linalg.norm(whole - clipped_gradient(np.delete(rows, i, 0), np.delete(labels, i), weight, 0.3))
        for i in range(30)
    ]
    assert max(moved) <= PRODUCT and max(moved) > 0.99 * PRODUCT, "bounded, and the bound is tight"


def test_one_record_moves_the_moments_by_the_sensitivity_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[np.ndarray, int]] = []

    def watch(total: np.ndarray, sensitivity: int, sigma: float, entropy: Any) -> np.ndarray:
        seen.append((total.copy(), sensitivity))
        return total

    monkeypatch.setattr(private_linear, "noisy", watch)
    features, labels = blobs(20, 4)
    features[0] *= 1e9

    def clean(keep: np.ndarray) -> np.ndarray:
        seen.clear()
        moments(on_grid(with_bias(features[keep])), labels[keep], 3, Gaussian(1.0), NoNoise())
        return np.concatenate([total.ravel() for total, _ in seen])

    whole = clean(np.arange(20))
    moved = [np.linalg.norm(whole - clean(np.delete(np.arange(20), i))) for i in range(20)]
    (sensitivity,) = {sensitivity for _, sensitivity in seen}
    assert 0.99 * sensitivity < max(moved) <= sensitivity
    assert sensitivity == pytest.approx(math.sqrt(2) * PRODUCT, rel=1e-6)


# noise


@pytest.mark.parametrize("wrong", [1.0, 0.7, 1.3])
def test_noise_has_the_size_that_was_accounted(wrong: float) -> None:
    draws = noisy(np.zeros(20_000), PRODUCT, 2.5 * wrong, SeededEntropy(1)) / (2.5 * PRODUCT)
    close = abs(float((draws**2).mean()) - 1.0) < 0.05
    assert close == (wrong == 1.0)


def test_every_step_and_the_count_get_the_noise_of_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []

    def watch(total: np.ndarray, sensitivity: int, sigma: float, entropy: Any) -> np.ndarray:
        seen.append((sensitivity, sigma))
        return total

    monkeypatch.setattr(private_linear, "noisy", watch)
    settings = LogisticSettings(steps=5, rate=0.5)
    features, labels = blobs(60, 0)
    logistic(on_grid(with_bias(features)), labels, 3, settings, 1.7, SeededEntropy(0))
    gradients, count = parts(settings.event(1.7))
    assert gradients == PoissonGaussian(1.7, 0.5, 5) and isinstance(count, Gaussian)
    assert seen == [(PRODUCT, count.sigma)] + [(PRODUCT, 1.7)] * 5


def test_moments_carry_the_noise_they_state() -> None:
    rows = np.zeros((1, 150))
    released = [moments(rows, np.array([0]), 3, Gaussian(2.0), SeededEntropy(seed)) for seed in range(3)]
    assert released[0].noise == pytest.approx(2.0 * math.sqrt(2.0), rel=1e-6)
    upper = np.triu_indices(150, 1)
    off = np.concatenate([each.second[upper] for each in released])
    diagonal = np.concatenate([np.diag(each.second) for each in released] + [each.sums.ravel() for each in released])
    assert off.std() == pytest.approx(released[0].noise / math.sqrt(2.0), rel=0.05)
    assert diagonal.std() == pytest.approx(released[0].noise, rel=0.1)
    spectral = np.linalg.norm(released[0].second, 2)
    assert private_linear.shrinkage(released[0], 1.0) == pytest.approx(spectral, rel=0.15), "what shrinkage assumes"
    with pytest.raises(ValueError, match="one release"):
        moments(rows, np.array([0]), 3, Gaussian(2.0, releases=2), SeededEntropy(0))


GRADIENTS = PoissonGaussian(5.0, LogisticSettings().rate, LogisticSettings().steps)


def test_full_batches_are_plain_gaussians_and_the_count_is_cheap() -> None:
    mu = gaussian_mu(LogisticSettings(steps=25, rate=1.0).event(10.0))
    assert mu == pytest.approx(5 / 10 * math.sqrt(1.01))
    assert guarantee(LogisticSettings().event(5.0), 1e-5).epsilon < 1.02 * guarantee(GRADIENTS, 1e-5).epsilon


def test_empty_batches_and_one_record_are_legal() -> None:
    features, labels = blobs(3, 0)
    settings = LogisticSettings(steps=4, rate=1e-9)
    weight = logistic(on_grid(with_bias(features)), labels, 3, settings, 1.0, SeededEntropy(0))
    assert weight.shape == (3, 7) and np.isfinite(weight).all() and (weight != 0).any(), "noise all the same"


# classifiers


def test_all_three_learn_and_noise_hurts() -> None:
    (features, labels), (test, truth) = blobs(3000, 5), blobs(600, 6)
    rows, test_rows = on_grid(with_bias(features)), with_bias(test)
    settings = LogisticSettings(steps=30)

    def accuracy(sigma: float) -> dict[str, float]:
        released = moments(rows, labels, 3, Gaussian(sigma), SeededEntropy(1))
        weights = {
            "lda": lda(released),
            "ridge": ridge(released),
            "logistic": logistic(rows, labels, 3, settings, sigma, SeededEntropy(1)),
        }
        return {name: float(((test_rows @ w.T).argmax(1) == truth).mean()) for name, w in weights.items()}

    assert min(accuracy(1.0).values()) > 0.9
    assert max(accuracy(1e4).values()) < 0.75


def test_closed_forms_are_what_their_names_say() -> None:
    features, labels = blobs(900, 7)
    rows = with_bias(features)
    released = moments(on_grid(rows), labels, 3, Gaussian(1e-4), SeededEntropy(0))
    lam = private_linear.shrinkage(released, 0.0)
    targets = 2.0 * np.eye(3)[labels] - 1.0
    expected = np.linalg.solve(rows.T @ rows + lam * np.eye(7), rows.T @ targets).T
    np.testing.assert_allclose(ridge(released, 0.0), expected, atol=0.02)

    x = rows[:, :-1]
    means = np.stack([x[labels == c].mean(0) for c in range(3)])
    within = sum(((x[labels == c] - means[c]).T @ (x[labels == c] - means[c]) for c in range(3)), np.zeros((6, 6)))
    precision = np.linalg.inv((within + lam * np.eye(6)) / 900)
    scores = x @ precision @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, precision, means) + math.log(1 / 3)
    np.testing.assert_allclose(rows @ lda(released, 0.0).T, scores, atol=0.05)


# DP-SGD over all weights


def tiny_network(kind: str) -> FeatureNetwork:
    torch.manual_seed(1)
    architecture = (
        ConvNetArchitecture(channels=1, height=8, width=8, classes=5, widths=(4, 6), pool_after=(1,))
        if kind == "convnet"
        else WideResNetArchitecture(channels=1, height=8, width=8, classes=5, depth=10, widen=1)
    )
    network = backbones.build(architecture)  # in the memory layout that Opacus does not expect
    for seed in range(3):
        network.train()(torch.from_numpy(stripes(30, seed).images).float() / 255)
    return network.eval().requires_grad_(False)


def stripes(count: int, seed: int) -> benchmarks.LabelledImages:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count, dtype=np.int64) % 3
    images = generator.integers(0, 60, (count, 1, 8, 8), dtype=np.uint8)
    images[labels == 0, :, ::2] += 150
    images[labels == 1, :, :, ::2] += 150
    return benchmarks.LabelledImages(images, labels, CLASSES)


STILL = private_finetune.FineTuneSettings(shift=0, at_once=4, batch=8)


def tunable(kind: str, weights: Any = "all", spread: float = 1.0) -> private_finetune.Tunable:
    network = tiny_network(kind)
    network.whitening.fit(torch.randn(500, network.whitening.most, generator=torch.Generator().manual_seed(0)))
    head = np.random.default_rng(0).normal(size=(3, network.whitening.most + 1)) * spread
    return private_finetune.Tunable(network, head, weights)


@pytest.mark.parametrize("kind", ["convnet", "wrn"])
def test_a_tunable_network_starts_as_the_linear_classifier_of_the_backbone(kind: str) -> None:
    network, images, head = tiny_network(kind), stripes(5, 0).images, np.random.default_rng(0)
    network.whitening.fit(torch.randn(500, network.whitening.most))
    weight = head.normal(size=(3, network.whitening.most + 1))
    expected = with_bias(public_features.extracted(network, images, "")) @ weight.T
    tuned = private_finetune.Tunable(network, weight, "all")
    found = tuned(torch.from_numpy(images).float() / 255).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert not any("running" in name for name in tuned.state_dict())


@pytest.mark.parametrize("weights", ["all", "norms"])
@pytest.mark.parametrize("kind, clip", [("convnet", 0.05), ("convnet", 100.0), ("wrn", 0.5)])
def test_opacus_gradients_are_clipped_as_autograd_would(kind: str, clip: float, weights: str) -> None:
    network, data = tunable(kind, weights), stripes(10, 0)
    assert any(p.ndim == 4 for p in network.trained()) == (weights == "all")
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    expected = [torch.zeros_like(p) for p in network.trained()]
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(network(image[None].float() / 255), label[None])
        each = torch.autograd.grad(loss, network.trained())
        norm = math.sqrt(sum(float(g.square().sum()) for g in each))
        for total, gradient in zip(expected, each, strict=True):
            total += gradient * min(1.0, clip / norm)
    settings = STILL.model_copy(update={"clip": clip})
    found = private_finetune.PrivateSteps(network, settings).gradient(images, labels, torch.Generator())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.equal(ours.trunc()), "whole steps of the grid"
        torch.testing.assert_close(ours.float() * clip / FIXED_POINT_ONE, theirs, rtol=1e-3, atol=1e-4 * clip)


@pytest.mark.parametrize("weights", ["all", "norms"])
def test_one_record_moves_the_opacus_sum_by_the_sensitivity_at_most(weights: str) -> None:
    network, data = tunable("convnet", weights, spread=30.0), stripes(40, 0)
    settings = STILL.model_copy(update={"clip": 0.01, "augmentations": 3, "at_once": 32})
    private = private_finetune.PrivateSteps(network, settings)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)

    def total(keep: list[int]) -> torch.Tensor:
        return torch.cat([g.flatten() for g in private.gradient(images[keep], labels[keep], torch.Generator())])

    every = list(range(40))
    moved = [float((total(every) - total([j for j in every if j != i])).norm()) for i in (0, 15, 16, 31, 32, 39)]
    assert max(moved) <= FIXED_POINT_ONE and max(moved) > 0.99 * FIXED_POINT_ONE
    assert float(total([]).abs().max()) == 0.0, "an empty batch is legal"


def test_a_record_without_a_usable_gradient_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = tunable("convnet"), stripes(5, 0)
    private = private_finetune.PrivateSteps(network, STILL)
    usual = private._per_example
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    clean = private.gradient(images[1:], labels[1:], torch.Generator())

    def spoilt(*arguments: object) -> list[torch.Tensor]:
        each = usual(*arguments)  # type: ignore[arg-type]
        each[0][0] = math.inf
        each[1][0] = math.nan
        return each

    private.settings = STILL.model_copy(update={"at_once": 5})
    monkeypatch.setattr(private, "_per_example", spoilt)
    for ours, theirs in zip(private.gradient(images, labels, torch.Generator()), clean, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5.0)


def test_sums_over_many_records_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """All gradients point one way: float32 would round the sum of 33 odd numbers beyond 2^24."""
    network, data = tunable("convnet"), stripes(33, 0)
    private = private_finetune.PrivateSteps(network, STILL.model_copy(update={"at_once": 33}))

    def alike(*_arguments: object) -> list[torch.Tensor]:
        each = [torch.zeros(33, *parameter.shape) for parameter in network.trained()]
        each[0].flatten(1)[:, 0] = 1.0
        return each

    monkeypatch.setattr(private, "_per_example", alike)
    total = private.gradient(torch.from_numpy(data.images), torch.from_numpy(data.labels), torch.Generator())
    one = int(FIXED_POINT_ONE * (1.0 - 1e-5))
    assert one % 2 == 1 and 33 * one > 2**24
    assert int(total[0].flatten()[0]) == 33 * one


@pytest.mark.parametrize("length", [1, 255, 256, 257, 5000])
def test_squares_of_long_rows_are_right_to_more_than_the_margin(length: int) -> None:
    rows = torch.randn(7, length) * torch.logspace(-4, 4, 7)[:, None]
    ours, exact = private_finetune._squares(rows), rows.double().square().sum(dim=1)
    assert float((ours / exact - 1.0).abs().max()) < 1e-6


def test_copies_of_a_record_are_averaged_before_clipping() -> None:
    network, data = tunable("convnet"), stripes(5, 0)
    images, labels, sums = torch.from_numpy(data.images), torch.from_numpy(data.labels), []
    for copies in (1, 4):  # without shifts all copies are the same
        settings = STILL.model_copy(update={"clip": 100.0, "augmentations": copies})
        private = private_finetune.PrivateSteps(network, settings)
        sums.append(torch.cat([g.flatten() for g in private.gradient(images, labels, torch.Generator())]))
        private.close()
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=10.0)
    assert sums[0].abs().max() > 1000.0


def flat(network: private_finetune.Tunable) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.trained()[:-1]])


@pytest.mark.parametrize("factor", [1.0, 0.7, 1.3])
def test_dp_sgd_adds_the_noise_it_should(factor: float) -> None:
    network, data = tunable("wrn"), stripes(1, 0)
    before = flat(network)
    settings = STILL.model_copy(update={"learning_rate": 1.0, "momentum": 0.0, "clip": 0.5, "batch": 1})
    # One step over one record: it moves the weights by norm 0.5 at most, the noise by 3 x 0.5 in each of 10^5.
    noise = private_finetune.Noise(1.0, 3.0 * factor, 1.0, 1)
    private_finetune.train(network, data.images, data.labels, settings, noise, SeededEntropy(2))
    moved = flat(network) - before
    assert (abs(float(moved.std()) / 1.5 - 1.0) < 0.05) == (factor == 1.0)


@pytest.mark.parametrize("weights", ["all", "norms"])
def test_dp_sgd_learns_and_keeps_its_time(weights: str) -> None:
    network, data, test = tunable("convnet", weights, spread=0.0), stripes(300, 0), stripes(90, 1)
    rates = {"learning_rate": 0.2, "head_rate": 0.5}
    settings = STILL.model_copy(update={"batch": 60, "at_once": 60, **rates})
    assert private_finetune.steps_in(1e-9, network, (1, 8, 8), settings) == 1
    noise = private_finetune.Noise(1.0, 0.1, 0.2, 60)
    done = private_finetune.train(network, data.images, data.labels, settings, noise, SeededEntropy(0))
    answers = network(torch.from_numpy(test.images).float() / 255).argmax(1).numpy()
    assert done == 60 and (answers == test.labels).mean() > 0.8
    ended = private_finetune.train(network, data.images, data.labels, settings, noise, SeededEntropy(0), minutes=0)
    assert ended == 1


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_both_parts_of_fine_tuning_cost_the_budget_together(share: float) -> None:
    settings = private_finetune.FineTuneSettings(share=share, batch=100, head=private_linear.LogisticSettings(steps=20))
    noise = private_finetune.planned(5000, 10, settings, 1.0, 1e-5)
    assert 0.999 < guarantee(noise.event(settings), 1e-5).epsilon <= 1.0 + 1e-9
    parts = settings.head.event(noise.head), PoissonGaussian(noise.network, noise.rate, noise.steps)
    alone = [guarantee(part, 1e-5).epsilon for part in parts]
    assert max(alone) < 1.0 < sum(alone)
    assert (alone[1] > alone[0]) == (share > 0.5) or share == 0.5


# the command


@pytest.fixture
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(benchmarks, "load", lambda name, split: stripes(600 if split == "train" else 90, len(split)))
    provenance = backbones.Provenance("stripes", "none needed", 0.3, "none", 0)
    network = tiny_network("convnet")
    network.whitening.fit(network.features(torch.from_numpy(stripes(500, 7).images).float() / 255))
    backbones.save(tmp_path / "tiny", network, provenance)
    return str(tmp_path / "tiny")


def run(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    baselines.add_to(commands)
    return commands.main(["baselines", *arguments])


def test_the_command_prints_what_each_row_costs(small_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--backbone", small_world, "--epsilon", "0.1", "--seeds", "2"]
    assert run(*shared, "--json", "--methods", "probe", "lda", "ridge") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and found["releasable"] is False and found["records"] == 600
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["probe"]["epsilon"] is None and rows["probe"]["accuracy"]["mean"] > 0.9
    for method in ("lda", "ridge"):
        assert 0.0999 < rows[method]["epsilon"] <= 0.1 and rows[method]["delta"] == 1e-5
        assert rows[method]["accountant"] == "analytic Gaussian"
        assert len(set(rows[method]["accuracy"]["runs"])) == 2, "seeds differ"

    assert run(*shared, "--methods", "lda") == 0
    out, err = capsys.readouterr()
    assert "±" in out and "one-shot DP-LDA" in out and "protects nobody" in out and "whitened" in out
    assert "features of the private records" in err
    assert run(*shared, "--methods", "lda", "--quiet", "--records", "30") == 0
    out, err = capsys.readouterr()
    assert err == "" and "30 records" in out


@pytest.fixture
def task(small_world: str) -> baselines.Task:
    return baselines.prepare(backbones.load(small_world), stripes(600, 0), stripes(90, 1))


def test_sampled_baselines_are_accounted_as_sampled(task: baselines.Task) -> None:
    few = LogisticSettings(steps=5, rate=0.2)
    small = STILL.model_copy(update={"batch": 120, "at_once": 120, "head": few})
    rows = baselines.run(
        task, ["logistic", "finetune"], [(0.3, 1e-5)], seeds=1, logistic=few, finetune=small, minutes=1e-4
    )
    for row in rows:
        sampled = parts(row.event)[0]
        assert isinstance(sampled, PoissonGaussian) and sampled.rate == 0.2
        assert row.guarantee.accountant == "privacy-loss distribution"
        assert guarantee(row.event, 1e-5).epsilon <= row.guarantee.epsilon <= 0.3 < 1.01 * row.guarantee.epsilon
    assert len(parts(rows[0].event)) == 2 and len(parts(rows[1].event)) == 3


def test_what_was_never_trained_cannot_be_fine_tuned() -> None:
    nothing = benchmarks.LabelledImages(np.zeros((30, 1, 28, 28), np.uint8), np.arange(30) % 3, CLASSES)
    scattering = baselines.prepare(backbones.load("scatter28"), nothing, nothing)
    with pytest.raises(ConfigError, match="nothing to fine-tune"):
        baselines.run(scattering, ["finetune"], [(1.0, 1e-5)], seeds=1)


def test_a_generous_budget_is_nearly_as_good_as_none(task: baselines.Task) -> None:
    full = LogisticSettings(steps=200, rate=1.0, learning_rate=10.0)
    rows = baselines.run(task, ["probe", "logistic", "lda", "ridge"], [(32.0, 1e-3)], seeds=1, logistic=full)
    assert [row.method for row in rows] == ["probe", "logistic", "lda", "ridge"]
    assert min(row.accuracy.mean for row in rows) > 0.85, rows
    repeated = baselines.run(task, ["lda"], [(32.0, 1e-3)], seeds=1)
    assert repeated[0].accuracy == rows[2].accuracy


def test_the_vouched_epsilon_is_that_of_the_event(task: baselines.Task) -> None:
    (row,) = baselines.run(task, ["ridge"], [(0.5, 1e-6)], seeds=1)
    assert isinstance(row.event, Gaussian) and row.guarantee.epsilon == 0.5
    assert 0.499 < guarantee(row.event, 1e-6).epsilon <= 0.5


def test_features_are_whitened_by_the_backbone_s_own_map(small_world: str) -> None:
    loaded = backbones.load(small_world)
    images = stripes(300, 9).images
    found = public_features.extracted(loaded.network, images, "features")
    with torch.no_grad():
        plain = loaded.network.features(torch.from_numpy(images).float() / 255)
        expected = loaded.network.whitening(plain, loaded.network.whitening.most)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.mean(0), 0, atol=0.3)
    assert 0.5 < found[:, 0].std() < 1.5
    assert public_features.described(loaded) == "whitened by its own map (public data: stripes)"


def test_a_scattering_transform_gives_its_strongest_directions() -> None:
    loaded = backbones.load("scatter28")
    images = np.zeros((3, 1, 28, 28), np.uint8)
    assert public_features.extracted(loaded.network, images, "features").shape == (3, public_features.MOST)
    assert "512 strongest" in public_features.described(loaded) and "none" in public_features.described(loaded)


def test_features_without_a_map_are_said_to_be_as_they_are(tmp_path: Path) -> None:
    backbones.save(tmp_path / "raw", tiny_network("convnet"), backbones.Provenance("noise", "none", 0.0, "none", 0))
    assert "never fitted" in public_features.described(backbones.load(tmp_path / "raw"))


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--epsilon", "0"], "above 0"),
        (["--epsilon", "40"], "up to 32"),
        (["--delta", "1"], "up to 0.01"),
        (["--seeds", "0"], "from 1 up"),
        (["--minutes", "-1"], "above 0"),
        (["--methods", "magic"], "invalid choice"),
        (["--records", "some"], "whole number"),
        (["--backbone", "no-such"], "no backbone"),
    ],
)
def test_bad_values_get_one_sentence(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = run(*arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert code in (2, 3) and out == "" and complaint in err and "Traceback" not in err
