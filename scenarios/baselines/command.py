"""``dpdd-sim baselines``: a table of private classifiers without distillation; `measure` says which."""

from __future__ import annotations

import argparse
import math

import numpy as np

from dpdd.common.cli import Commands, print_json, table
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.privacy.events import describe
from dpdd.scenarios.baselines import measure
from dpdd.scenarios.baselines.measure import METHODS, USUAL, Row
from dpdd.scenarios.options import number, rounded_up, whole_number
from dpdd.server.evaluation.metrics import METRICS as METRIC_BY_NAME

_OTHERS = ("balanced-accuracy", "macro-roc-auc")


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
    add("--backbone", default="gray28", metavar="NAME", help="a shipped backbone's name, or the path of a saved one")
    add("--epsilon", type=_epsilon, nargs="+", default=[1.0, 8.0], metavar="E", help="budgets")
    add("--delta", type=_delta, default=1e-5, metavar="D", help="of every budget")
    add("--methods", nargs="+", choices=METHODS, default=list(USUAL), metavar="M", help=f"any of {', '.join(METHODS)}")
    add("--seeds", type=whole_number, default=1, metavar="N", help="repetitions, each with noise of its own")
    add("--records", type=whole_number, metavar="N", help="only the first N private records")
    add("--minutes", type=_minutes, default=5.0, metavar="T", help="for each run of finetune")
    add("--threads", type=whole_number, metavar="N", help="of torch")
    add("--quiet", action="store_true", help="no progress")
    add("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> None:
    import torch

    from dpdd.common.data import benchmarks
    from dpdd.common.models import backbone as backbones
    from dpdd.common.progress import Console

    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console(quiet=options.quiet or options.json)
    backbone = backbones.load(options.backbone)
    train, test = benchmarks.load(options.dataset, "train"), benchmarks.load(options.dataset, "test")
    if options.records:
        train = train.subset(np.arange(min(options.records, len(train))))
    task = measure.prepare(backbone, train, test, console)
    budgets = [(epsilon, options.delta) for epsilon in options.epsilon]
    rows = measure.run(task, options.methods, budgets, options.seeds, minutes=options.minutes, progress=console)
    console.finish()
    if options.json:
        facts = {"dataset": options.dataset, "records": len(train), "backbone": backbone.card.name}
        facts |= {"backbone_sha256": backbone.card.sha256, "features": task.normalisation, "seeds": options.seeds}
        print_json({**facts, "releasable": False, "rows": [row.as_json() for row in rows]})
        return
    print(f"{options.dataset}, {len(train):,} records; features of {backbone.card.name}, {task.normalisation}\n")
    print(_table(rows))
    print("\nEach row has the whole budget for itself. Noise came from seeds: this protects nobody.")


def _table(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        private = math.isfinite(row.guarantee.epsilon)
        budget = [rounded_up(row.guarantee.epsilon), f"{row.guarantee.delta:g}"] if private else ["∞", "–"]
        spread = f" ± {100 * row.accuracy.std:.2f}" if len(row.accuracy.runs) > 1 else ""
        accuracy = f"{100 * row.accuracy.mean:.2f}{spread}"
        others = [METRIC_BY_NAME[name].show(row.scores[name].mean) if name in row.scores else "" for name in _OTHERS]
        cells.append([METHODS[row.method], *budget, row.guarantee.accountant, accuracy, *others, describe(row.event)])
    titles = [METRIC_BY_NAME[name].title for name in _OTHERS]
    return table(["baseline", "ε", "δ", "accountant", "test accuracy, %", *titles, "what was run"], cells)


def _epsilon(text: str) -> float:
    return number(text, 0.0, LARGEST_EPSILON, f"a budget epsilon lies above 0 and goes up to {LARGEST_EPSILON:g}")


def _delta(text: str) -> float:
    return number(text, 0.0, 0.01, "a delta lies above 0 and goes up to 0.01, such as 1e-5")


def _minutes(text: str) -> float:
    return number(text, 0.0, 1e4, "a number of minutes lies above 0")
