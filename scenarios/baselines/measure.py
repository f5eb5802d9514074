"""Baselines: what the same budget buys by other ways, on the same records; each is an entry in `METHODS`.

Every row has the whole budget for itself, and its ε is our accountant's, for the event that was run. Where `--silos`
split the records, rows that are *federated* never pool them, and (ε, δ) is what each silo's own noise makes it; the
others have one curator with all records, or are not private at all. On features of the public backbone:

- *logistic*: DP-SGD on Poisson batches for logistic regression on frozen features; *dp-fedavg-head*, in rounds of the
  silos;
- *lda*, *ridge*, *fedpft*: one Gaussian release of class statistics from each silo; then a closed form, or features
  that are drawn from them;
- *finetune*: such a classifier, then DP-SGD over the network through Opacus, for at most ``--minutes``;
- *probe*: logistic regression without any privacy, for reference.

On images, with nothing public: *dp-sgd* and *dp-fedavg* (`dp_sgd`), *feddm* and *fedlap-dp* (`shared_sets`), and
what real records are worth (`real_records`): *real*, *real-subset*, *alone*.

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

The rows from scratch and of shared sets, at ε = 1, with the first 12,000 records of MNIST's training split, 2,000 test
records and one seed; iid silos. Few were tried, so these are no optima:

- *dp-sgd*: 100 steps at rate 0.04, learning rate 2 84.4;
- *dp-fedavg*, five silos: ten rounds of ten steps at rate 0.1, learning rate 1 63.3;
- *fedlap-dp*, five silos: three rounds of three points at rate 0.1 56.9.

*feddm* and *fedpft* have the first settings that were tried; those of *dp-fedavg-head* are *logistic*'s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dpdd.common.errors import ConfigError
from dpdd.common.privacy.accounting import Guarantee, guarantee
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.baselines import plans
from dpdd.scenarios.baselines.base import Plan, Row, Task, prepare
from dpdd.scenarios.baselines.names import TITLES
from dpdd.scenarios.baselines.settings import BaselineSettings
from dpdd.server.evaluation.base import Score

__all__ = ["METHODS", "Row", "Task", "prepare", "run"]


@dataclass(frozen=True)
class Baseline:
    """A row: how a run of it is planned.

    `plan` gets a task, settings, ε and δ; the last two mean nothing where a row is not `private`. One that draws
    nothing is run once, whatever the number of seeds.
    """

    plan: Callable[[Task, BaselineSettings, float, float], Plan]
    private: bool = True
    draws: bool = True


METHODS: Mapping[str, Baseline] = {
    "real": Baseline(plans.real, private=False),
    "real-subset": Baseline(plans.real_subset, private=False),
    "alone": Baseline(plans.alone, private=False),
    "probe": Baseline(plans.probe, private=False, draws=False),
    "logistic": Baseline(plans.logistic),
    "lda": Baseline(plans.lda),
    "ridge": Baseline(plans.ridge),
    "fedpft": Baseline(plans.fedpft),
    "dp-fedavg-head": Baseline(plans.dp_fedavg_head),
    "finetune": Baseline(plans.finetune),
    "dp-sgd": Baseline(plans.dp_sgd),
    "dp-fedavg": Baseline(plans.dp_fedavg),
    "feddm": Baseline(plans.feddm, private=False),
    "fedlap-dp": Baseline(plans.fedlap),
}
"""By name, as in `TITLES`."""

SLACK = 1e-6
"""Share of δ that is set aside for the distance of the noise to ideal noise."""


def run(
    task: Task,
    methods: Iterable[str],
    budgets: Iterable[tuple[float, float]],
    seeds: int,
    *,
    settings: BaselineSettings | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """All `methods`, private ones at all `budgets` (ε, δ), each `seeds` times with noise of its own."""
    rows, budgets, chosen = [], list(budgets), settings or BaselineSettings()
    for name in methods:
        baseline = METHODS[name]
        for epsilon, delta in budgets if baseline.private else [(math.inf, 0.0)]:
            progress(f"{TITLES[name]}, ε = {epsilon:g}", 0, 1)
            plan = baseline.plan(task, chosen, epsilon, delta * (1.0 - SLACK))
            if baseline.private and (1.0 + math.exp(epsilon)) * plan.distance > SLACK * delta:
                raise ConfigError(f"at epsilon {epsilon:g} the grid of {TITLES[name]} is too coarse for its noise")
            vouched = _vouched(name, plan, epsilon, delta)
            rows.append(_row(name, plan, vouched, f"{epsilon!r} {delta!r}", seeds if baseline.draws else 1))
    return rows


def _vouched(name: str, plan: Plan, epsilon: float, delta: float) -> Guarantee:
    """What our accountant says of the event that is run."""
    if not METHODS[name].private:
        return Guarantee(math.inf, 0.0, "none")
    vouched = guarantee(plan.event, delta * (1.0 - SLACK))
    if not vouched.epsilon <= epsilon * (1.0 + 1e-9):  # the accountant rounds up, by 1e-12
        raise RuntimeError(f"{TITLES[name]} was calibrated to epsilon {epsilon:g} but costs {vouched.epsilon:g}")
    return Guarantee(min(epsilon, vouched.epsilon), delta, vouched.accountant)


def _row(name: str, plan: Plan, vouched: Guarantee, budget: str, seeds: int) -> Row:
    started = time.process_time()
    scores = [plan.score(SeededEntropy(seed, f"baseline {name} {budget}")) for seed in range(seeds)]
    seconds = (time.process_time() - started) / seeds
    found = {
        each: Score(tuple(run[each] for run in scores)) for each in scores[0] if all(each in run for run in scores)
    }
    return Row(name, vouched, plan.event, found, seconds)
