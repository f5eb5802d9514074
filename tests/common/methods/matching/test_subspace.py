"""Subspaces: the right directions, found alike by everybody, and a prediction that holds where it says it does."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.methods.matching import subspace
from dpdd.common.methods.matching.subspace import best, fit, predict
from dpdd.common.models.random_net import RandomNet

WIDE, TALL = (30, 50), (80, 40)


def values(shape: tuple[int, int], seed: int = 1) -> Tensor:
    """Rows with a falling spectrum around a mean."""
    generator = np.random.default_rng(seed)
    scales = 1.0 / (1.0 + np.arange(shape[1]))
    turned = np.linalg.qr(generator.normal(size=(shape[1], shape[1])))[0]
    return torch.from_numpy(generator.normal(size=shape) * scales @ turned + generator.normal(size=shape[1]))


@pytest.mark.parametrize("shape", [WIDE, TALL, (40, 40), (41, 40), (39, 40)])
@pytest.mark.parametrize("dimensions", [1, 7, 29])
def test_directions_and_variances_are_those_of_a_singular_value_decomposition(
    shape: tuple[int, int], dimensions: int
) -> None:
    data = values(shape)
    found = fit(data, dimensions, seed=3)
    centred = data.numpy() - data.numpy().mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    expected = singular**2 / len(centred)
    np.testing.assert_allclose(found.spectrum[: len(expected)], expected, atol=1e-12)
    np.testing.assert_allclose(found.mean, data.mean(dim=0))
    agreement = np.abs((found.basis.numpy() * directions[:dimensions].T).sum(axis=0))
    np.testing.assert_allclose(agreement, 1.0, atol=1e-9)
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(dimensions), atol=1e-9)
    coordinates = found(data) * found.clip
    np.testing.assert_allclose(coordinates.square().mean(dim=0), expected[:dimensions], rtol=1e-9)
    norms = np.linalg.norm(centred @ directions[:dimensions].T, axis=1)
    assert found.clip == pytest.approx(np.sort(norms)[(len(norms) - 1) // 2])


def test_both_branches_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty columns make tall data wide; they must change nothing."""
    data = values(TALL)
    wide = torch.cat([data, torch.zeros(80, 60, dtype=torch.float64)], dim=1)
    compass = np.random.default_rng(0).normal(size=100)
    monkeypatch.setattr(subspace, "gaussians", lambda _seed, _purpose, shape: compass[: shape[0]])
    one, other = fit(data, 20, 0), fit(wide, 20, 0)
    np.testing.assert_allclose(other.basis[:40], one.basis, atol=1e-10)
    assert not other.basis[40:].any() and other.clip == pytest.approx(one.clip)
    np.testing.assert_allclose(other.spectrum[:40], one.spectrum, atol=1e-12)


def test_signs_follow_the_public_seed_alone() -> None:
    data = values(WIDE)
    assert torch.equal(fit(data, 10, 5).basis, fit(data.clone(), 10, 5).basis)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    np.testing.assert_allclose(fit(data[order], 10, 5).basis, fit(data, 10, 5).basis, atol=1e-10)
    turned = (fit(data, 10, 6).basis * fit(data, 10, 5).basis).sum(dim=0)
    np.testing.assert_allclose(turned.abs(), 1.0, atol=1e-10)
    assert (turned < 0.0).any() and (turned > 0.0).any()


@cache
def real_features() -> tuple[Tensor, Tensor]:
    """A random network's features of dead leaves, in double precision and as a network usually computes."""
    leaves = torch.from_numpy(dead_leaves(200, 1, 28, 28, seed=9))
    network = RandomNet.draw(4, 0, (1, 28, 28), width=32, depth=3, classes=10)
    return network.to(leaves.double()).features(leaves.double()), network.features(leaves).double()


def steps_apart(one: Tensor, other: Tensor) -> Tensor:
    """How many of the steps in which silos hold a basis two of them are apart."""
    return (torch.round(one * 2.0**24) - torch.round(other * 2.0**24)).abs()


def test_double_precision_gives_everybody_the_same_subspace_and_single_would_not() -> None:
    """Two machines' features differ in their last bits; what they compute with is the basis in steps of 2^-24."""
    exact, usual = real_features()
    generator = torch.Generator().manual_seed(0)

    def shaken(size: float) -> Tensor:
        noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
        return fit(exact * (1.0 + size * noise), 100, 3).basis

    basis = fit(exact, 100, 3).basis
    doubles, singles = shaken(1e-13), shaken(1e-7)
    assert (doubles - basis).abs().max() < 1e-9
    apart = steps_apart(doubles, basis)
    assert apart.max() <= 1.0 and (apart > 0.0).float().mean() < 1e-3
    for rough in (singles, fit(usual, 100, 3).basis):
        apart = steps_apart(rough, basis)
        assert apart.max() > 2.0 and (apart > 0.0).float().mean() > 0.05


def test_directions_in_which_nothing_differs_are_left_empty() -> None:
    """Rounding errors would make others of them on every machine; and constant images must not give NaN."""
    copies = values(WIDE)[:5].repeat(6, 1)
    for data in (copies, torch.cat([copies] * 2)):
        found = fit(data, 12, 3)
        kept = found.basis.norm(dim=0)
        np.testing.assert_allclose(kept, [1.0] * 4 + [0.0] * 8, atol=1e-9)
        assert torch.isfinite(found(data)).all()
    constant = fit(torch.ones(30, 50, dtype=torch.float64), 12, 3)
    assert not constant.basis.any() and not constant(torch.ones(3, 50, dtype=torch.float64)).any()


@pytest.mark.parametrize("whitening", [0.0, 0.7, 1.0])
def test_squares_say_how_far_an_image_is_from_what_is_usual_in_each_direction(whitening: float) -> None:
    values = torch.randn(60, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * torch.arange(9.0)
    space = fit(values, 9, seed=0, whitening=whitening)
    squares = space.squares(space(values)) * space.square_clip
    assert squares[:, :-1].mean(dim=0).abs().max() < 1e-12, "usual images are usual"
    assert torch.allclose(squares[:, -1], torch.full((60,), -1.0, dtype=torch.float64))  # where nothing differs
    assert float(squares.norm(dim=1).median()) == pytest.approx(space.square_clip)
    twice = space.squares(2.0 * space(values)) * space.square_clip
    assert torch.allclose(twice + 1.0, 4.0 * (squares + 1.0))


def test_whitening_evens_out_coordinates_and_no_direction_gets_longer() -> None:
    values = torch.randn(60, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * torch.arange(
        1.0, 10.0
    )
    plain, half, whole = (fit(values, 8, seed=0, whitening=share) for share in (0.0, 0.5, 1.0))
    deviations = [(space(values) * space.clip).std(dim=0, correction=0) for space in (plain, half, whole)]
    assert torch.allclose(deviations[2], deviations[2][-1].expand(8)), "all alike"
    assert torch.allclose(deviations[1].square(), deviations[0] * deviations[0][-1]), "half of the way"
    for space, deviation in zip((plain, half, whole), deviations, strict=True):
        assert float(space.basis.norm(dim=0).max()) <= 1.0 + 1e-12, "or sums of whole numbers would not be exact"
        assert torch.equal(space.spectrum, plain.spectrum) and torch.allclose(space.spread, deviation)
        assert float((space(values)).norm(dim=1).median()) == pytest.approx(1.0)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(TypeError, match="double"):
        fit(values(WIDE).float(), 3, 0)
    for shape, dimensions, most in ((WIDE, 30, 29), (TALL, 41, 40), (WIDE, 0, 29)):
        with pytest.raises(ValueError, match=f"at most {most} directions, not {dimensions}"):
            fit(values(shape), dimensions, 0)


def test_coordinates_are_differentiable_and_of_the_inputs_type() -> None:
    found = fit(values(WIDE), 4, 0)
    single = values(WIDE).float().requires_grad_(True)
    inside = found(single)
    assert inside.dtype == torch.float32
    inside.sum().backward()
    np.testing.assert_allclose(single.grad, (found.basis / found.clip).sum(dim=1).expand(30, -1), rtol=1e-5, atol=1e-8)


def measured(
    spectrum: np.ndarray, dimensions: int, noise: float, per_class: float, between: float, trials: int
) -> float:
    """The error of a class mean over `trials` classes: Poisson-sampled records, no clipping, noise of σ × typical norm.

    A class's mean takes `between` of every variance, its records the rest.
    """
    generator, width = np.random.default_rng(7), len(spectrum)
    clip = float(np.sqrt(spectrum[:dimensions].sum()))
    means = generator.normal(size=(trials, width)) * np.sqrt(between * spectrum)
    sizes = generator.poisson(per_class, size=(trials, 1))
    # The sum of so many records is Gaussian itself, so it can be drawn at once.
    sums = sizes * means + generator.normal(size=(trials, width)) * np.sqrt(sizes * (1.0 - between) * spectrum)
    noisy = sums[:, :dimensions] + noise * clip * generator.normal(size=(trials, dimensions))
    found = np.zeros_like(means)
    found[:, :dimensions] = noisy / per_class
    return float(np.square(found - means).sum(axis=1).mean())


@pytest.mark.parametrize("between", [0.3, 0.6])
@pytest.mark.parametrize("noise, per_class", [(0.0, 20.0), (3.0, 50.0), (20.0, 300.0)])
def test_the_prediction_is_the_measured_error(noise: float, per_class: float, between: float) -> None:
    spectrum = 1.0 / (1.0 + np.arange(60.0))
    predicted = predict(torch.from_numpy(spectrum), noise, per_class, between)
    assert len(predicted) == 60
    for dimensions in (2, 15, 60):
        found = measured(spectrum, dimensions, noise, per_class, between, trials=6000)
        assert found == pytest.approx(float(predicted[dimensions - 1]), rel=0.05)


def test_the_best_is_where_the_predicted_error_is_least() -> None:
    spectrum = torch.from_numpy(1.0 / (1.0 + np.arange(100.0)) ** 1.5)
    chosen = [best(spectrum, noise, 100.0, 100) for noise in (0.0, 1.0, 3.0, 10.0, 1e4)]
    for noise, found in zip((0.0, 1.0, 3.0, 10.0, 1e4), chosen, strict=True):
        curve = predict(spectrum, noise, 100.0)
        assert 1 <= found <= 100 and curve[found - 1] == curve.min()
    assert chosen == sorted(chosen, reverse=True) and chosen[0] > 10 and chosen[-1] == 1
    assert best(spectrum, 0.0, 1e9, 20) == 20  # as many as are allowed
    assert best(spectrum, 0.0, 1e9, 100) == 100
