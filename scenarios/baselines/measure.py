"""Baselines: what the same budget buys without distillation, on the features of the same public backbone.

Every row has the whole budget for itself, and its ε is our accountant's, for the event that was run:

- *logistic*: DP-SGD on Poisson batches for logistic regression on frozen features;
- *lda*, *ridge*: one Gaussian release of class sums and second moment, then a closed form;
- *finetune*: such a classifier, then DP-SGD over the network through Opacus, for at most ``--minutes`` (only when asked
  for);
- *probe*: logistic regression without any privacy, for reference.

Settings are the same for every dataset. They were chosen on a public proxy, never on a private test set: MNIST's
training split played the private one and its test split was the judge, with `gray28`, δ = 1e-5 and one seed. In % at
ε = 1 and 8:

- features (ridge, shrinkage 0.1): unit norm 85.6 and 89.1, standardised by BatchNorm 85.8 and 89.3, whitened by public
  images 88.8 to 89.0 and 91.0 to 91.2 for floors of 0.1, 0.01 and 0.001;
- shrinkage of 0.03, 0.1, 0.2, 0.3 and 1 times the noise's spectral norm: 0.2 for ridge (89.2 and 91.9), 0.1 for LDA
  (89.8 and 92.1; at 0.2 89.4 and 92.2);
- class sums against the second moment: weights of 0.5 and 1 tie, 0.25 is worse;
- logistic regression at rate 0.1, learning rate 300 (now 1 per dimension, of 321), clip 0.3: 100 steps 91.5 and 92.4,
  300 steps 92.3 and 94.1; at 300 steps also (100, 0.3) 92.5 and 93.0, (1000, 0.1) 92.5 and 94.1, (100, 0.5) 92.6 and
  93.7, (30, 1) 92.2 and 93.0. Full batches cost ten times as much per step and were tried for 30 steps only.

*finetune* at ε = 1, in the same way, for 3 to 6 minutes on one core (a head alone has 92.5):

- all weights at once from a head of zeros, batches of 256: 68.1 at learning rate 0.5, 29.0 at 2;
- a head first, with 60 or 70 % of the budget, then all weights: batches of 512, rate 0.1 91.4 -> 91.2, 0.01 92.0 ->
  91.7; batches of 4,000, rate 0.3 91.2 -> 90.6; with 90 % for the head and rate 0.05 92.2 -> 91.8;
- then gains and offsets of norms only (4 times as many records per second, 5,300 numbers to put noise on instead of 1.4
  million), batches of 4,000: 85 % for the head, rate 0.1 91.7 -> 91.7, 0.5 92.0 -> 91.9; 90 %, rate 1 91.9 -> 91.9, 2
  92.1 -> 91.8.

So nothing that we tried on this proxy beats spending all on the head at this ε, and the default is what harms least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.accounting import Guarantee, calibrate, guarantee
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, describe
from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from dpdd.common.data.labelled_images import LabelledImages
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.privacy.entropy import Entropy
    from dpdd.scenarios.baselines.private_finetune import FineTuneSettings
    from dpdd.scenarios.baselines.private_linear import LogisticSettings, Moments
    from dpdd.server.evaluation.base import Score

METHODS = {
    "probe": "logistic regression, not private",
    "logistic": "DP logistic regression",
    "lda": "one-shot DP-LDA",
    "ridge": "one-shot DP ridge",
    "finetune": "DP-SGD fine-tuning",
}
USUAL = ("probe", "logistic", "lda", "ridge")

SLACK = 1e-6
"""Share of δ that is set aside for the distance of the noise to ideal noise."""


@dataclass(frozen=True, eq=False)
class Task:
    """A backbone, simulated private records, test records, and the features of both on the way to unit norm."""

    backbone: Backbone
    train: LabelledImages
    test: LabelledImages
    train_features: NDArray[np.floating]
    test_features: NDArray[np.floating]
    normalisation: str

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.train.classes)

    def measured(self, scores: NDArray[np.floating]) -> dict[str, float]:
        """Every metric of scores (test records, classes) that the test records allow."""
        from dpdd.server.evaluation import scoring
        from dpdd.server.evaluation.base import Answers
        from dpdd.server.evaluation.metrics import DEFAULT_METRICS

        answers, metrics = Answers.of_logits(scores), DEFAULT_METRICS[DataKind.IMAGE]
        return {name: score.mean for name, score in scoring.measured([answers], self.test.labels, metrics).items()}


@dataclass(frozen=True)
class Plan:
    """What one run of a baseline releases, how far its noise is from ideal in all, and the run: noise ↦ metrics."""

    event: Event
    distance: float
    score: Callable[[Entropy], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """One baseline at one budget."""

    method: str
    guarantee: Guarantee
    event: Event
    scores: Mapping[str, Score]

    @property
    def accuracy(self) -> Score:
        """The metric that every row has."""
        return self.scores["accuracy"]

    def as_json(self) -> dict[str, Any]:
        """The row in plain values."""
        return {
            "method": self.method,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "accountant": self.guarantee.accountant,
            "event": describe(self.event),
            "accuracy": self.accuracy.as_json(),
            "metrics": {name: score.as_json() for name, score in self.scores.items() if name != "accuracy"},
        }


def prepare(
    backbone: Backbone,
    train: LabelledImages,
    test: LabelledImages,
    progress: Progress = silent,
) -> Task:
    """Compute and normalise the features of both splits."""
    from dpdd.scenarios.baselines import public_features

    channels = backbone.network.mean.shape[1]
    if train.shape[0] != channels:
        raise ConfigError(
            f"the images have {train.shape[0]} channels, but backbone {backbone.card.name} was made for {channels}; "
            "choose another with --backbone"
        )
    private, public = (
        public_features.extracted(backbone.network, data.images, what, progress)
        for data, what in ((train, "features of the private records"), (test, "features of the test set"))
    )
    return Task(backbone, train, test, private, public, public_features.described(backbone))


def run(
    task: Task,
    methods: Iterable[str],
    budgets: Iterable[tuple[float, float]],
    seeds: int,
    *,
    logistic: LogisticSettings | None = None,
    finetune: FineTuneSettings | None = None,
    minutes: float = 5.0,
    progress: Progress = silent,
) -> list[Row]:
    """All `methods` at all `budgets` (ε, δ), each `seeds` times with noise of its own."""
    from dpdd.scenarios.baselines import private_linear

    known: dict[str, Callable[[float, float], Plan]] = {
        "logistic": lambda epsilon, delta: _logistic(task, epsilon, delta, logistic, progress),
        "lda": lambda epsilon, delta: _closed_form(task, epsilon, delta, private_linear.lda),
        "ridge": lambda epsilon, delta: _closed_form(task, epsilon, delta, private_linear.ridge),
        "finetune": lambda epsilon, delta: _finetune(task, epsilon, delta, finetune, minutes, progress),
    }
    rows, budgets = [], list(budgets)
    for method in methods:
        if method == "probe":
            rows.append(_probe(task, progress))
        for epsilon, delta in budgets if method in known else ():
            progress(f"{METHODS[method]}, ε = {epsilon:g}", 0, 1)
            plan = known[method](epsilon, delta * (1.0 - SLACK))
            if (1.0 + math.exp(epsilon)) * plan.distance > SLACK * delta:
                raise ConfigError(f"at epsilon {epsilon:g} the grid of {METHODS[method]} is too coarse for its noise")
            rows.append(_row(method, plan, epsilon, delta, seeds))
    return rows


def _row(method: str, plan: Plan, epsilon: float, delta: float, seeds: int) -> Row:
    from dpdd.common.privacy.entropy import SeededEntropy
    from dpdd.server.evaluation.base import Score

    vouched = guarantee(plan.event, delta * (1.0 - SLACK))
    if not vouched.epsilon <= epsilon * (1.0 + 1e-9):  # the accountant rounds up, by 1e-12
        raise RuntimeError(f"{METHODS[method]} was calibrated to epsilon {epsilon:g} but costs {vouched.epsilon:g}")
    scores = [plan.score(SeededEntropy(seed, f"baseline {method} {epsilon!r} {delta!r}")) for seed in range(seeds)]
    spent = Guarantee(min(epsilon, vouched.epsilon), delta, vouched.accountant)
    return Row(method, spent, plan.event, {name: Score(tuple(run[name] for run in scores)) for name in scores[0]})


def _probe(task: Task, progress: Progress) -> Row:
    import torch

    from dpdd.common.models.probe import probe_logits, share_right
    from dpdd.server.evaluation.base import Score

    progress(METHODS["probe"], 0, 1)
    train, test = (torch.from_numpy(features).float() for features in (task.train_features, task.test_features))
    logits = probe_logits(train, torch.from_numpy(task.train.labels), test)
    measured = task.measured(logits.numpy()) | {"accuracy": share_right(logits, torch.from_numpy(task.test.labels))}
    scores = {name: Score((value,)) for name, value in measured.items()}
    return Row("probe", Guarantee(math.inf, 0.0, "none"), NonPrivate(), scores)


def _logistic(task: Task, epsilon: float, delta: float, chosen: LogisticSettings | None, progress: Progress) -> Plan:
    from dpdd.scenarios.baselines import private_linear

    settings = chosen or private_linear.LogisticSettings()
    sigma = calibrate(settings.event, epsilon, delta)
    rows, test = _rows(task)

    def score(entropy: Entropy) -> dict[str, float]:
        weight = private_linear.logistic(rows, task.train.labels, task.classes, settings, sigma, entropy, progress)
        return task.measured(test @ weight.T)

    draws = settings.steps * task.classes * rows.shape[1] + 1
    return Plan(settings.event(sigma), _distance(sigma * private_linear.PRODUCT, draws), score)


def _closed_form(task: Task, epsilon: float, delta: float, solve: Callable[[Moments], NDArray[np.float64]]) -> Plan:
    from dpdd.scenarios.baselines import private_linear

    event = Gaussian(calibrate(Gaussian, epsilon, delta))
    rows, test = _rows(task)

    def score(entropy: Entropy) -> dict[str, float]:
        released = private_linear.moments(rows, task.train.labels, task.classes, event, entropy)
        return task.measured(test @ solve(released).T)

    draws = (task.classes + rows.shape[1]) * rows.shape[1]
    return Plan(event, _distance(event.sigma * private_linear.PRODUCT, draws), score)


def _finetune(
    task: Task, epsilon: float, delta: float, chosen: FineTuneSettings | None, minutes: float, progress: Progress
) -> Plan:
    from dpdd.scenarios.baselines import private_finetune, private_linear
    from dpdd.server.evaluation.scoring import logits_of

    if not task.backbone.card.classes:
        raise ConfigError(f"backbone {task.backbone.card.name} was never trained, so there is nothing to fine-tune")
    settings = chosen or private_finetune.FineTuneSettings()
    rows, _ = _rows(task)

    def network(head: NDArray[np.float64]) -> private_finetune.Tunable:
        return private_finetune.Tunable(task.backbone.network, head, settings.weights)

    fresh = network(np.zeros((task.classes, rows.shape[1])))
    steps = private_finetune.steps_in(minutes, fresh, task.train.shape, settings)
    noise = private_finetune.planned(len(task.train), steps, settings, epsilon, delta)

    def score(entropy: Entropy) -> dict[str, float]:
        labels = task.train.labels
        head = private_linear.logistic(rows, labels, task.classes, settings.head, noise.head, entropy, progress)
        tuned = network(head)
        images = task.train.images
        private_finetune.train(tuned, images, labels, settings, noise, entropy, minutes=minutes, progress=progress)
        return task.measured(logits_of(tuned, task.test))

    draws = settings.head.steps * rows.shape[1] * task.classes + 1
    distance = _distance(noise.head * private_linear.PRODUCT, draws)
    distance += _distance(noise.network * FIXED_POINT_ONE, steps * sum(each.numel() for each in fresh.trained()))
    return Plan(noise.event(settings), distance, score)


def _rows(task: Task) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from dpdd.scenarios.baselines.private_linear import on_grid, with_bias

    return on_grid(with_bias(task.train_features)), with_bias(task.test_features)


def _distance(noise: float, draws: int) -> float:
    return draws * discrete_gaussian.distance(discrete_gaussian.scale_for(noise))
