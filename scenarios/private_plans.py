"""What each private classifier releases at a budget, and how it is run.

The whole budget belongs to one run, and σ is the smallest that our accountant allows. At ε = ∞ a run is the same
without noise (clipping and sampling stay), and its event is `NonPrivate`: what the noise takes off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.accounting import calibrate
from dpdd.common.privacy.clipping import GRID
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, compose
from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from torch import nn

    from dpdd.common.privacy.entropy import Entropy
    from dpdd.scenarios.private_finetune import SgdSettings
    from dpdd.scenarios.private_task import Task

SLACK = 1e-6
"""Share of δ that is set aside for the distance of the noise to ideal noise."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Budget:
    """(ε, δ); at ε = ∞ there is no noise."""

    epsilon: float
    delta: float

    @property
    def private(self) -> bool:
        """Whether there is any protection."""
        return math.isfinite(self.epsilon)

    def noise(self, event_of: Callable[[float], Event], share: float = 1.0) -> float:
        """The smallest σ whose event keeps to this `share` of ε, and to δ less `SLACK`; 0 without protection."""
        return calibrate(event_of, share * self.epsilon, self.delta * (1.0 - SLACK)) if self.private else 0.0


@dataclass(frozen=True)
class Plan:
    """What one run of a baseline releases, how far its noise is from ideal in all, and the run: noise ↦ accuracy."""

    event: Event
    distance: float
    score: Callable[[Entropy], float]


def plan_for(
    method: str,
    task: Task,
    budget: Budget,
    settings: Settings,
    minutes: float = math.inf,
    progress: Progress = silent,
) -> Plan:
    """What a method would release at a budget; an error if its grid is too coarse for its noise."""
    match method:
        case "logistic":
            plan = _logistic(task, budget, settings, progress)
        case "lda" | "ridge":
            plan = _closed_form(method, task, budget, settings)
        case "finetune":
            plan = _finetune(task, budget, settings, minutes, progress)
        case _:
            plan = _scratch(task, budget, settings, minutes, progress)
    if budget.private and (1.0 + math.exp(budget.epsilon)) * plan.distance > SLACK * budget.delta:
        raise ConfigError(f"at epsilon {budget.epsilon:g} the grid of {method} is too coarse for its noise")
    return plan


def _logistic(task: Task, budget: Budget, given: Settings, progress: Progress) -> Plan:
    from dpdd.scenarios import private_linear

    settings = _as(private_linear.LogisticSettings, given)
    sigma = budget.noise(settings.event)
    rows, labels = task.train_rows, task.train.labels

    def score(entropy: Entropy) -> float:
        return task.share(private_linear.logistic(rows, labels, task.classes, settings, sigma, entropy, progress))

    return Plan(_event(settings.event, sigma), _linear_distance(task, settings.steps, sigma), score)


def _closed_form(method: str, task: Task, budget: Budget, given: Settings) -> Plan:
    from dpdd.scenarios import private_linear

    settings = _as(private_linear.ClosedFormSettings, given)
    sigma = budget.noise(Gaussian)
    event = Gaussian(sigma) if sigma else NonPrivate()
    solve = private_linear.lda if method == "lda" else private_linear.ridge

    def score(entropy: Entropy) -> float:
        released = private_linear.moments(task.train_rows, task.train.labels, task.classes, event, entropy)
        return task.share(solve(released, settings.strength))

    width = task.train_rows.shape[1]
    return Plan(event, _distance(sigma * private_linear.PRODUCT, (task.classes + width) * width), score)


def _finetune(task: Task, budget: Budget, given: Settings, minutes: float, progress: Progress) -> Plan:
    import torch

    from dpdd.scenarios import private_finetune, private_linear
    from dpdd.scenarios.private_networks import TunedBackbone

    settings = _as(private_finetune.FineTuneSettings, given)
    head_sigma = budget.noise(settings.head.event, settings.head_share)
    first = _event(settings.head.event, head_sigma)

    def network(weight: NDArray[np.float64]) -> nn.Module:
        known = torch.from_numpy(weight).float()
        kinds: dict[str, Any] = {"trained": settings.trained, "reach": settings.reach}
        return TunedBackbone(task.backbone.network, task.features, known, **kinds)

    def start(entropy: Entropy) -> nn.Module:
        rows, labels = task.train_rows, task.train.labels
        head = private_linear.logistic(rows, labels, task.classes, settings.head, head_sigma, entropy, progress)
        return network(head)

    empty = network(np.zeros((task.classes, task.train_rows.shape[1])))
    plan = _sgd(task, budget, settings, empty, start, minutes, progress, first)
    return Plan(plan.event, plan.distance + _linear_distance(task, settings.head.steps, head_sigma), plan.score)


def _scratch(task: Task, budget: Budget, given: Settings, minutes: float, progress: Progress) -> Plan:
    import torch

    from dpdd.scenarios import private_finetune
    from dpdd.scenarios.private_networks import FreshConvNet

    def start(entropy: Entropy) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(entropy.take(7), "little"))
            return FreshConvNet(task.train.shape, task.classes)

    settings = _as(private_finetune.SgdSettings, given)
    empty = FreshConvNet(task.train.shape, task.classes)
    return _sgd(task, budget, settings, empty, start, minutes, progress)


def _sgd(
    task: Task,
    budget: Budget,
    settings: SgdSettings,
    empty: nn.Module,
    start: Callable[[Entropy], nn.Module],
    minutes: float,
    progress: Progress,
    *before: Event,
) -> Plan:
    """DP-SGD on a network that `start` makes, after the releases `before`, in what they leave of the budget."""
    from dpdd.scenarios import private_finetune
    from dpdd.scenarios.private_linear import sampled

    steps = private_finetune.steps_in(minutes, empty, task.train.shape, settings)
    rate = private_finetune.sampling_rate(len(task.train), settings)

    def event_of(sigma: float) -> Event:
        return compose(*before, sampled(sigma, rate, steps))

    sigma = budget.noise(event_of)

    def score(entropy: Entropy) -> float:
        network, records = start(entropy), (task.train.images, task.train.labels)
        private_finetune.train(network, *records, settings, steps, sigma, entropy, minutes=minutes, progress=progress)
        return private_finetune.accuracy(network, task.test.images, task.test.labels)

    draws = steps * sum(parameter.numel() for parameter in empty.parameters() if parameter.requires_grad)
    return Plan(_event(event_of, sigma), _distance(sigma * GRID, draws), score)


def _event(event_of: Callable[[float], Event], sigma: float) -> Event:
    return event_of(sigma) if sigma else NonPrivate()


def _as(kind: type[S], settings: Settings) -> S:
    if not isinstance(settings, kind):
        raise ConfigError(f"these are settings of another method: {type(settings).__name__} for {kind.__name__}")
    return settings


def _linear_distance(task: Task, steps: int, sigma: float) -> float:
    from dpdd.scenarios.private_linear import PRODUCT

    return _distance(sigma * PRODUCT, steps * task.classes * task.train_rows.shape[1] + 1)


def _distance(noise: float, draws: int) -> float:
    return draws * discrete_gaussian.distance(discrete_gaussian.scale_for(noise)) if noise else 0.0
