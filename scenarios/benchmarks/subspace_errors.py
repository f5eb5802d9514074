"""The error of noisy class means in subspaces of every size: predicted from public facts, and measured on a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching import specification, subspace
from dpdd.common.methods.matching.settings import MethodSettings
from dpdd.common.methods.matching.signals import Draw, clipped
from dpdd.common.methods.matching.subspace import Subspace
from dpdd.common.models.random_net import RandomNet
from dpdd.common.privacy.accounting import calibrate
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.progress import Progress
from dpdd.common.randomness import subseed
from dpdd.scenarios.benchmarks.subspace_curves import Curve

BATCH = 16


def curves(
    dataset: str,
    settings: MethodSettings,
    budgets: Sequence[tuple[float, float]],
    networks: int,
    trials: int,
    seed: int,
    progress: Progress,
) -> list[Curve]:
    """One curve for every (ε, δ)."""
    train = benchmarks.load(dataset, "train")
    run = RunDescription(train.classes, train.shape, seed)
    noises = [calibrate(lambda sigma: sampled_event(sigma, settings.rate, settings.draws), *each) for each in budgets]
    auxiliary = specification.auxiliary(settings, {}, run)
    whole = settings.model_copy(update={"dimensions": 0, "networks": networks})
    signals = specification.signals(whole, auxiliary, run)
    sizes = _sizes(min(len(auxiliary) - 1, signals.settings.length))
    errors = torch.zeros(len(noises), len(sizes) + 1, dtype=torch.float64)
    for network in range(networks):
        draw = signals.draw(network)
        spaces = [*_spaces(draw.network, torch.from_numpy(auxiliary), sizes, seed), _everything(draw)]
        values = _features(draw.network, train, lambda done: progress("features of records", done, len(train)))
        generator = torch.Generator().manual_seed(subseed(seed, f"trials of network {network}"))
        for column, space in enumerate(spaces):
            errors[:, column] += _errors(values, train, space, noises, settings.rate, trials, generator) / networks
            progress(f"sizes with network {network + 1}", column + 1, len(spaces))
    measured_curves = []
    for index, ((epsilon, delta), noise) in enumerate(zip(budgets, noises, strict=True)):
        predicted = subspace.predict(signals.spectrum(0), noise, settings.rate * settings.records_per_class)
        picked = specification.with_dimensions(settings, run, epsilon, delta).dimensions
        assert isinstance(picked, int)
        *measured, plain = errors[index].tolist()
        at_sizes = tuple(float(predicted[size - 1]) for size in sizes)
        measured_curves.append(Curve(epsilon, noise, sizes, at_sizes, tuple(measured), plain, picked))
    return measured_curves


def _sizes(most: int) -> tuple[int, ...]:
    """Up to `most`, about equally spaced in their logarithm.

    >>> _sizes(100)
    (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 100)
    """
    steps = {round(2.0 ** (half / 2.0)) for half in range(40)}
    return tuple(sorted({size for size in steps if size < most} | {most}))


def _spaces(network: RandomNet, auxiliary: Tensor, sizes: Sequence[int], seed: int) -> list[Subspace]:
    exact = network.to(torch.zeros((), dtype=torch.float64))
    values = torch.cat([exact.features(part.double()) for part in auxiliary.split(BATCH)])
    return [subspace.fit(values, size, seed) for size in sizes]


def _everything(draw: Draw) -> Subspace:
    """What a method without a subspace does: every feature, clipped to the typical norm."""
    width = draw.settings.length
    return Subspace(torch.zeros(width), torch.eye(width), draw.scale, torch.zeros(width), torch.ones(width), 1.0)


@torch.inference_mode()
def _features(network: RandomNet, train: LabelledImages, progress: Callable[[int], None]) -> Tensor:
    rows = []
    for start in range(0, len(train), BATCH):
        rows.append(network.features(torch.from_numpy(train.images[start : start + BATCH]).float() / 255.0))
        progress(min(start + BATCH, len(train)))
    return torch.cat(rows)


def _errors(
    values: Tensor,
    train: LabelledImages,
    space: Subspace,
    noises: Sequence[float],
    rate: float,
    trials: int,
    generator: torch.Generator,
) -> Tensor:
    """Mean squared error for each noise: clipped coordinates of a Poisson sample, summed, with noise, and led back."""
    member = functional.one_hot(torch.from_numpy(train.labels), len(train.classes)).float()
    counts = member.sum(dim=0)
    truth = (member.T @ values) / counts[:, None] - space.mean.float()
    inside = truth @ space.basis.float()
    lost = truth.square().sum(dim=1) - inside.square().sum(dim=1)
    rows = clipped(space(values))
    errors = torch.zeros(len(noises), dtype=torch.float64)
    for _ in range(trials):
        sampled = torch.rand(len(train), generator=generator) < rate
        sums = member[sampled].T @ rows[sampled]
        for index, noise in enumerate(noises):
            noisy = sums + noise * torch.randn(sums.shape, generator=generator)
            mean = noisy * space.clip / (rate * counts)[:, None]
            errors[index] += ((mean - inside).square().sum(dim=1) + lost).mean().double() / trials
    return errors
