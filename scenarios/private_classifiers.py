"""Private classifiers side by side: which runs where, what each one costs, and how well it does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpdd.common.config import Settings
from dpdd.common.privacy.accounting import Guarantee, guarantee
from dpdd.common.privacy.events import Event, NonPrivate, describe
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.private_plans import SLACK, Budget, Plan, plan_for

if TYPE_CHECKING:
    from dpdd.common.privacy.entropy import Entropy
    from dpdd.scenarios.private_task import Task
    from dpdd.server.evaluate import Accuracy

METHODS = {
    "probe": "logistic regression, not private",
    "logistic": "DP logistic regression",
    "lda": "one-shot DP-LDA",
    "ridge": "one-shot DP ridge",
    "finetune": "DP-SGD fine-tuning",
    "scratch": "DP-SGD from scratch",
}
NETWORKS = ("finetune", "scratch")
"""What takes minutes."""
PIXELS = "pixels"
"""What `scratch` sees."""
LARGEST_MOMENT = 2048
"""Rows of a second moment: beyond, it would be minutes of work and nearly all noise."""


@dataclass(frozen=True)
class Row:
    """One baseline at one budget."""

    method: str
    on: str
    guarantee: Guarantee
    event: Event
    accuracy: Accuracy
    settings: Settings | None

    def as_json(self) -> dict[str, Any]:
        """The row in plain values."""
        return {
            "method": self.method,
            "on": self.on,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "accountant": self.guarantee.accountant,
            "event": describe(self.event),
            "accuracy": {"mean": self.accuracy.mean, "std": self.accuracy.std, "runs": list(self.accuracy.runs)},
            "settings": self.settings.model_dump() if self.settings else {},
        }


def assign(methods: Iterable[str], tasks: Sequence[Task]) -> tuple[list[tuple[str, Task]], list[str]]:
    """Which method runs on which task, and a sentence for each that cannot."""
    from dpdd.scenarios.private_networks import has_weights

    pairs: dict[tuple[str, str], tuple[str, Task]] = {}
    notes = []
    for task in tasks:
        for asked in methods:
            method, name = asked, task.backbone.card.name
            if method == "finetune" and not has_weights(task.backbone.network):
                notes.append(f"{name} has no weights to fine-tune: DP-SGD trains a small ConvNet from scratch instead.")
                method = "scratch"
            if method in ("lda", "ridge") and task.train_rows.shape[1] > LARGEST_MOMENT:
                notes.append(
                    f"{METHODS[method]} is left out on {task.name}: the second moment would be nearly all noise."
                )
            else:
                pairs.setdefault((method, place(method, task)), (method, task))
    return list(pairs.values()), list(dict.fromkeys(notes))


def place(method: str, task: Task) -> str:
    """What a method works on, in words: two runs in the same place are the same."""
    return PIXELS if method == "scratch" else task.name


def run(
    pairs: Iterable[tuple[str, Task]],
    budgets: Iterable[Budget],
    seeds: int,
    *,
    network_seeds: int = 1,
    settings: Mapping[str, Settings] | None = None,
    minutes: float = math.inf,
    progress: Progress = silent,
) -> list[Row]:
    """All methods at all budgets, each `seeds` times (`NETWORKS` less often) with noise of its own, once without.

    `settings` are by method, or by method and place (`key`), which counts more; other methods have the shipped ones.
    """
    rows, budgets = [], list(budgets)
    for method, task in pairs:
        if method == "probe":
            rows.append(_probe(task, progress))
            continue
        chosen = settings_for(method, task, settings)
        for budget in budgets:
            progress(f"{METHODS[method]}, {place(method, task)}, ε = {budget.epsilon:g}", 0, 1)
            plan = plan_for(method, task, budget, chosen, minutes, progress)
            times = (network_seeds if method in NETWORKS else seeds) if budget.private else 1
            rows.append(_row(method, task, plan, budget, times, chosen))
    return rows


def key(method: str, task: Task) -> str:
    """A method and its place, as settings files and logs name them."""
    return f"{method}: {place(method, task)}"


def settings_for(method: str, task: Task, given: Mapping[str, Settings] | None = None) -> Settings:
    """The settings of a method on a task: those given, else those that were tuned, else the usual ones."""
    from dpdd.scenarios.private_settings import TUNED, USUAL

    here, given = key(method, task), given or {}
    return given.get(here) or given.get(method) or TUNED.get(here) or USUAL[method]


def noise_of(method: str, budget: Budget, seed: int) -> Entropy:
    """Where the randomness of one run comes from."""
    from dpdd.common.privacy.entropy import SeededEntropy

    return SeededEntropy(seed, f"baseline {method} {budget.epsilon!r} {budget.delta!r}")


def _row(method: str, task: Task, plan: Plan, budget: Budget, seeds: int, settings: Settings) -> Row:
    from dpdd.server.evaluate import Accuracy

    spent = Guarantee(math.inf, 0.0, "none")
    if budget.private:
        vouched = guarantee(plan.event, budget.delta * (1.0 - SLACK))
        if not vouched.epsilon <= budget.epsilon * (1.0 + 1e-9):  # the accountant rounds up, by 1e-12
            raise RuntimeError(
                f"{METHODS[method]} was calibrated to epsilon {budget.epsilon:g} but costs {vouched.epsilon:g}"
            )
        spent = Guarantee(min(budget.epsilon, vouched.epsilon), budget.delta, vouched.accountant)
    scores = tuple(plan.score(noise_of(method, budget, seed)) for seed in range(seeds))
    return Row(method, place(method, task), spent, plan.event, Accuracy(scores), settings)


def _probe(task: Task, progress: Progress) -> Row:
    import torch

    from dpdd.common.models.probe import linear_probe
    from dpdd.server.evaluate import Accuracy

    progress(f"{METHODS['probe']}, {task.name}", 0, 1)
    train, test = (torch.from_numpy(rows[:, :-1]).float() for rows in (task.train_rows, task.test_rows))
    score = linear_probe(train, torch.from_numpy(task.train.labels), test, torch.from_numpy(task.test.labels))
    return Row("probe", task.name, Guarantee(math.inf, 0.0, "none"), NonPrivate(), Accuracy((score,)), None)
