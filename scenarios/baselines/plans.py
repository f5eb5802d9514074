"""How a run of each row is planned: the event, the noise that (ε, δ) asks for, and what is done with it.

What trains is in the modules that these name; torch is loaded when a row is run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.privacy.accounting import calibrate
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian
from dpdd.scenarios.baselines import (
    dp_sgd as scratch,
)
from dpdd.scenarios.baselines import (
    federated_heads,
    private_finetune,
    private_linear,
    real_records,
)
from dpdd.scenarios.baselines import (
    shared_sets as sets,
)
from dpdd.scenarios.baselines.base import Plan, Positions, Task, noise_distance, not_private, seed_of
from dpdd.scenarios.baselines.private_linear import PRODUCT, Moments
from dpdd.scenarios.baselines.settings import BaselineSettings

Floats = NDArray[np.float64]
Metrics = dict[str, float]


def everybody(task: Task) -> tuple[Positions, ...]:
    """All silos' records with one curator."""
    return (np.sort(np.concatenate(task.shares)),)


def real(task: Task, settings: BaselineSettings, _epsilon: float, _delta: float) -> Plan:
    """All real records."""
    return not_private(lambda entropy: real_records.all_records(task, settings.judge, seed_of(entropy)))


def real_subset(task: Task, settings: BaselineSettings, _epsilon: float, _delta: float) -> Plan:
    """As many as a synthetic set has."""
    return not_private(lambda entropy: real_records.some_records(task, settings.judge, seed_of(entropy)))


def alone(task: Task, settings: BaselineSettings, _epsilon: float, _delta: float) -> Plan:
    """Those of each silo by itself."""
    return not_private(lambda entropy: real_records.each_silo_alone(task, settings.judge, seed_of(entropy)))


def probe(task: Task, _settings: BaselineSettings, _epsilon: float, _delta: float) -> Plan:
    """Logistic regression without privacy."""
    import torch

    from dpdd.common.models.probe import probe_logits, share_right

    def score(_entropy: Entropy) -> Metrics:
        (held,) = everybody(task)
        train, test = (torch.from_numpy(each).float() for each in (task.train_features[held], task.test_features))
        logits = probe_logits(train, torch.from_numpy(task.train.labels[held]), test)
        return task.measured(logits.numpy()) | {"accuracy": share_right(logits, torch.from_numpy(task.test.labels))}

    return not_private(score)


def logistic(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """DP-SGD for a linear classifier."""
    own = settings.logistic
    sigma = calibrate(own.event, epsilon, delta)

    def score(entropy: Entropy) -> Metrics:
        (held,), (rows, test) = everybody(task), task.rows
        labels = task.train.labels[held]
        weight = private_linear.logistic(rows[held], labels, task.classes, own, sigma, entropy, task.progress)
        return task.measured(test @ weight.T)

    draws = own.steps * task.classes * task.rows[0].shape[1] + 1
    return Plan(own.event(sigma), noise_distance(sigma * PRODUCT, draws), score)


def lda(task: Task, _settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """Linear discriminant analysis on the silos' moments."""
    return _closed_form(task, epsilon, delta, private_linear.lda)


def ridge(task: Task, _settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """Least squares on the silos' moments."""
    return _closed_form(task, epsilon, delta, private_linear.ridge)


def _closed_form(task: Task, epsilon: float, delta: float, solve: Callable[[Moments], Floats]) -> Plan:
    event = Gaussian(calibrate(Gaussian, epsilon, delta))
    rows, test = task.rows

    def score(entropy: Entropy) -> Metrics:
        labels, shares = task.train.labels, task.shares
        released = federated_heads.summed_moments(rows, labels, shares, task.classes, event, entropy)
        return task.measured(test @ solve(released).T)

    draws = (task.classes + rows.shape[1]) * rows.shape[1]
    return Plan(event, noise_distance(event.sigma * PRODUCT, draws), score)


def fedpft(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """A head that learns from features drawn from the silos' class Gaussians."""
    import torch

    from dpdd.common.models.probe import probe_logits

    event = Gaussian(calibrate(Gaussian, epsilon, delta))
    rows, test = task.rows

    def score(entropy: Entropy) -> Metrics:
        labels, shares = task.train.labels, task.shares
        sums, squares = federated_heads.class_gaussians(rows, labels, shares, task.classes, event, entropy)
        drawn, of_class = federated_heads.drawn_features(sums, squares, settings.per_class, seed_of(entropy))
        features, seen = (torch.from_numpy(each).float() for each in (drawn, test[:, :-1]))
        return task.measured(probe_logits(features, torch.from_numpy(of_class), seen, decay=1e-2).numpy())

    return Plan(event, noise_distance(event.sigma * PRODUCT, 2 * task.classes * rows.shape[1]), score)


def dp_fedavg_head(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """Rounds of noisy gradient steps on a linear classifier."""
    own = settings.head
    sigma = calibrate(own.event, epsilon, delta)
    rows, test = task.rows

    def score(entropy: Entropy) -> Metrics:
        labels, shares = task.train.labels, task.shares
        weight = federated_heads.federated_logistic(
            rows, labels, shares, task.classes, own, sigma, entropy, task.progress
        )
        return task.measured(test @ weight.T)

    draws = own.steps * task.classes * rows.shape[1] + 1
    return Plan(own.event(sigma), noise_distance(sigma * PRODUCT, draws), score)


def finetune(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """A linear classifier, then DP-SGD over the backbone."""
    from dpdd.server.evaluation.scoring import logits_of

    if not task.backbone.card.classes:
        raise ConfigError(f"backbone {task.backbone.card.name} was never trained, so there is nothing to fine-tune")
    own, minutes, (held,), (rows, _) = settings.finetune, settings.minutes, everybody(task), task.rows

    def network(head: Floats) -> private_finetune.Tunable:
        return private_finetune.Tunable(task.backbone.network, head, own.weights)

    fresh = network(np.zeros((task.classes, rows.shape[1])))
    steps = private_finetune.steps_in(minutes, fresh, task.train.shape, own)
    noise = private_finetune.planned(len(held), steps, own, epsilon, delta)

    def score(entropy: Entropy) -> Metrics:
        images, labels = task.train.images[held], task.train.labels[held]
        head = private_linear.logistic(rows[held], labels, task.classes, own.head, noise.head, entropy, task.progress)
        tuned = network(head)
        private_finetune.train(tuned, images, labels, own, noise, entropy, minutes=minutes, progress=task.progress)
        return task.measured(logits_of(tuned, task.test))

    draws = own.head.steps * rows.shape[1] * task.classes + 1
    distance = noise_distance(noise.head * PRODUCT, draws)
    distance += noise_distance(noise.network * FIXED_POINT_ONE, steps * sum(each.numel() for each in fresh.trained()))
    return Plan(noise.event(own), distance, score)


def dp_sgd(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """From random weights, with one curator."""
    return _from_scratch(task, settings.dp_sgd, everybody(task), epsilon, delta)


def dp_fedavg(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """From random weights, in rounds of the silos."""
    return _from_scratch(task, settings.dp_fedavg, task.shares, epsilon, delta)


def _from_scratch(
    task: Task, own: scratch.DPSGDSettings, shares: tuple[Positions, ...], epsilon: float, delta: float
) -> Plan:
    from dpdd.server.evaluation.scoring import logits_of

    sigma = calibrate(own.event, epsilon, delta)

    def score(entropy: Entropy) -> Metrics:
        network = scratch.ScratchNet(task.train.shape, task.classes, own, seed_of(entropy))
        images, labels = task.train.images, task.train.labels
        trained = scratch.federated(network, images, labels, shares, own, sigma, entropy, task.progress)
        return task.measured(logits_of(trained, task.test))

    weights = sum(each.numel() for each in scratch.ScratchNet(task.train.shape, task.classes, own, 0).trained())
    return Plan(own.event(sigma), noise_distance(sigma * FIXED_POINT_ONE, own.steps * weights), score)


def feddm(task: Task, settings: BaselineSettings, _epsilon: float, _delta: float) -> Plan:
    """Sets that match mean features, in rounds, without noise."""
    return not_private(lambda entropy: _shared(task, settings, settings.feddm, None, entropy))


def fedlap(task: Task, settings: BaselineSettings, epsilon: float, delta: float) -> Plan:
    """Sets that match noisy gradients, in rounds."""
    own = settings.fedlap
    sigma = calibrate(own.event, epsilon, delta)
    layout = sets.draw_layout(task, own)
    distance = noise_distance(sigma * FIXED_POINT_ONE, own.draws * layout.coordinates)
    return Plan(own.event(sigma), distance, lambda entropy: _shared(task, settings, own, sigma, entropy))


def _shared(
    task: Task, settings: BaselineSettings, own: sets.SharedSetsSettings, sigma: float | None, entropy: Entropy
) -> Metrics:
    """The global network's metrics, and what `convnet-dd` reaches on the sets alone."""
    from dpdd.server.evaluation.scoring import logits_of

    own = own.model_copy(update={"images_per_class": settings.judge.images_per_class, "flips": settings.judge.flips})
    shared = sets.shared_sets(task, own, sigma, entropy, task.progress)
    alone = real_records.judged(task, shared.images, settings.judge, seed_of(entropy), task.progress)
    return task.measured(logits_of(shared, task.test)) | {"convnet-dd-of-sets": alone["accuracy"]}
