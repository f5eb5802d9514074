"""``dpdd-sim baselines``: what the same budget buys without distillation, on the features of the same public backbone.

- *logistic*: DP-SGD on Poisson batches for logistic regression on frozen features;
- *lda*, *ridge*: one Gaussian release of class sums and second moment, then a closed form;
- *finetune*: DP logistic regression, then DP-SGD over that and the backbone's weights through Opacus;
- *scratch*: DP-SGD over a small ConvNet from scratch, which is what is left without public data;
- *probe*: logistic regression without any privacy, for reference.

Frozen features are whitened by the backbone's public map, as in the portrait of SPS, or raw. Settings are tuned on
public data with ``--tune-on``, which does not load the private dataset at all (see `private_tuning`).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpdd.common.cli import Commands, print_json, table
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.privacy.events import describe
from dpdd.scenarios.private_classifiers import METHODS, NETWORKS, Row, assign, key, run
from dpdd.scenarios.private_features import USUAL as USUAL_FEATURES
from dpdd.scenarios.private_features import Features
from dpdd.scenarios.private_plans import Budget

if TYPE_CHECKING:
    from dpdd.common.datasets import LabelledImages
    from dpdd.common.models.backbone import Backbone
    from dpdd.common.progress import Progress
    from dpdd.scenarios.private_task import Task

USUAL = ("probe", "logistic", "lda", "ridge")


def add_to(commands: Commands) -> None:
    """Register ``baselines``."""
    parser = commands.add(
        "baselines",
        _run,
        "measure private classifiers without distillation, on the same backbone and budget",
        "Records of a public dataset play the private ones, and noise is drawn from seeds, so that nothing of this "
        "protects anybody. Each row has the whole budget for itself.",
    )
    add = parser.add_argument
    add("--dataset", default="fashion-mnist", metavar="NAME", help="whose records are private")
    add("--backbone", nargs="+", default=["gray28"], metavar="NAME", help="shipped backbones, or paths of saved ones")
    features = f"whitened features, {USUAL_FEATURES} as in the portrait of SPS; or 'raw'"
    add("--features", type=_features, nargs="+", default=[Features()], metavar="N", help=features)
    add("--epsilon", type=_epsilon, nargs="+", default=[1.0, 8.0], metavar="E", help="budgets; inf is without noise")
    add("--delta", type=_delta, default=1e-5, metavar="D", help="of every budget")
    add("--methods", nargs="+", choices=METHODS, default=list(USUAL), metavar="M", help=f"any of {', '.join(METHODS)}")
    add("--seeds", type=_count, default=1, metavar="N", help="repetitions, each with noise of its own")
    add("--network-seeds", type=_count, default=1, metavar="N", help=f"the same for {' and '.join(NETWORKS)}")
    add("--records", type=_count, metavar="N", help="only the first N private records")
    add("--minutes", type=_minutes, default=math.inf, metavar="T", help="at most, for each run of DP-SGD on a network")
    add("--settings", type=Path, metavar="FILE", help="of the methods, as --save writes them (default: shipped ones)")
    add("--tune-on", metavar="NAME", help="tune settings on this public dataset, and do not touch the private one")
    add("--save", type=Path, metavar="FILE", help="where --tune-on writes the settings it found")
    add("--threads", type=_count, metavar="N", help="of torch")
    add("--quiet", action="store_true", help="no progress")
    add("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> None:
    import torch

    from dpdd.common import datasets
    from dpdd.common.models import backbone as backbones
    from dpdd.common.progress import Console
    from dpdd.scenarios import private_settings

    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console(quiet=options.quiet or options.json)
    found = [backbones.load(name) for name in options.backbone]
    settings = private_settings.read(options.settings) if options.settings else {}
    if options.tune_on:
        _tune(options, found, console)
        return
    train, test = datasets.load(options.dataset, "train"), datasets.load(options.dataset, "test")
    tasks = _tasks(options, found, train, test, console)
    pairs, notes = assign(options.methods, tasks)
    rows = run(
        pairs,
        [Budget(epsilon, options.delta) for epsilon in options.epsilon],
        options.seeds,
        network_seeds=options.network_seeds,
        settings=settings,
        minutes=options.minutes,
        progress=console,
    )
    console.finish()
    records = len(tasks[0].train)
    if options.json:
        facts = {"dataset": options.dataset, "records": records, "seeds": options.seeds, "notes": notes}
        facts["backbones"] = {backbone.card.name: backbone.card.sha256 for backbone in found}
        print_json({**facts, "releasable": False, "rows": [row.as_json() for row in rows]})
        return
    print(f"{options.dataset}, {records:,} records\n\n{_table(rows)}\n")
    for backbone in found:
        print(f"{backbone.card.name} and its whitening: public data {backbone.card.provenance.public_data}")
    for note in notes:
        print(note)
    print("Each row has the whole budget for itself. Noise came from seeds: this protects nobody.")


def _tasks(
    options: argparse.Namespace,
    backbones: list[Backbone],
    train: LabelledImages,
    test: LabelledImages,
    progress: Progress,
) -> list[Task]:
    from dpdd.scenarios.private_task import prepare

    if options.records:
        train = train.subset(np.arange(min(options.records, len(train))))
    rows = set(options.methods) != {"scratch"}
    return [task for each in backbones for task in prepare(each, train, test, options.features, progress, rows=rows)]


def _tune(options: argparse.Namespace, backbones: list[Backbone], progress: Progress) -> None:
    from dpdd.scenarios import private_settings, private_tuning

    tasks = _tasks(options, backbones, *private_tuning.proxy(options.tune_on, options.dataset), progress)
    methods = [method for method in options.methods if method != "probe"]
    budget = Budget(options.epsilon[0], options.delta)
    print(
        f"{options.tune_on}, {len(tasks[0].train):,} records, in place of {options.dataset}; ε = {budget.epsilon:g}\n"
    )
    chosen = {}
    for method, task in assign(methods, tasks)[0]:
        best = private_tuning.tune(method, task, budget, lambda line: print(line, flush=True), progress=progress)
        chosen[key(method, task)] = best
        print(f"chosen for {key(method, task)}: {best!r}\n", flush=True)
    if options.save:
        private_settings.write(options.save, chosen)


def _table(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        private = math.isfinite(row.guarantee.epsilon)
        budget = [_up(row.guarantee.epsilon), f"{row.guarantee.delta:g}"] if private else ["∞", "–"]
        spread = f" ± {100 * row.accuracy.std:.2f}" if len(row.accuracy.runs) > 1 else ""
        accuracy = f"{100 * row.accuracy.mean:.2f}{spread}"
        cells.append([METHODS[row.method], row.on, *budget, row.guarantee.accountant, accuracy, describe(row.event)])
    return table(["baseline", "on", "ε", "δ", "accountant", "test accuracy, %", "what was run"], cells)


def _up(value: float) -> str:
    """Rounded up, so that the printed figure holds as well."""
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:.4f}"


def _features(text: str) -> Features:
    try:
        return Features.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _epsilon(text: str) -> float:
    if text == "inf":
        return math.inf
    return _number(
        text, LARGEST_EPSILON, f"a budget epsilon lies above 0 and goes up to {LARGEST_EPSILON:g}, or is inf"
    )


def _delta(text: str) -> float:
    return _number(text, 0.01, "a delta lies above 0 and goes up to 0.01, such as 1e-5")


def _minutes(text: str) -> float:
    return _number(text, 1e4, "a number of minutes lies above 0")


def _number(text: str, most: float, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= most:
        raise argparse.ArgumentTypeError(f"{rule}, not {text!r}")
    return value


def _count(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"a whole number from 1 up is needed, not {text!r}")
    return int(text)
