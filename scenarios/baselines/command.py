"""``dpdd-sim baselines``: what other ways give on the same records; `measure` says which, and `tables` for tables."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdd.common.cli import Commands, print_json, table
from dpdd.common.data import table_benchmarks
from dpdd.common.errors import ConfigError
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.privacy.events import NEIGHBOURS, describe
from dpdd.scenarios.baselines.names import FEDERATED, JUDGED, OF_TABLES, SIZED, TITLES, USUAL
from dpdd.scenarios.options import number, rounded_up, whole_number
from dpdd.server.evaluation.metrics import METRICS as METRIC_BY_NAME

if TYPE_CHECKING:
    from dpdd.common.data.labelled_records import LabelledRecords
    from dpdd.common.progress import Console
    from dpdd.scenarios.baselines.base import Positions, Row

_OTHERS = ("balanced-accuracy", "macro-roc-auc")
_BESIDE = {"worst-silo": "worst", "best-silo": "best", "convnet-dd-of-sets": "convnet-dd of its sets"}
"""What a row says beside its accuracy."""


def add_to(commands: Commands) -> None:
    """Register ``baselines``."""
    parser = commands.add(
        "baselines",
        _run,
        "measure what the same budget buys without distillation, and what real records are worth",
        "Records of a public dataset play the private ones, and noise is drawn from seeds, so that nothing of this "
        "protects anybody. Each row has the whole budget for itself.",
    )
    add = parser.add_argument
    add("--dataset", default="fashion-mnist", metavar="NAME", help="whose records are private: images, or a table")
    add("--backbone", default="gray28", metavar="NAME", help="a shipped backbone's name, or the path of a saved one")
    add("--epsilon", type=_epsilon, nargs="+", default=[1.0, 8.0], metavar="E", help="budgets")
    add("--delta", type=_delta, default=1e-5, metavar="D", help="of every budget")
    add("--methods", nargs="+", choices=TITLES, metavar="M", help=f"any of {', '.join(TITLES)}; {', '.join(USUAL)} by "
        f"default; of a table {', '.join(OF_TABLES)}")  # fmt: skip
    add("--silos", type=whole_number, default=1, metavar="N", help="split the records over so many silos")
    add("--partition", choices=("iid", "dirichlet", "pathological"), default="iid", help="how, as in a scenario")
    add("--alpha", type=float, metavar="A", help="of dirichlet")
    add("--classes-per-silo", type=whole_number, metavar="N", help="of pathological")
    add("--seeds", type=whole_number, default=1, metavar="N", help="repetitions, each with noise of its own")
    add("--records", type=whole_number, metavar="N", help="only the first N private records")
    add("--images-per-class", type=whole_number, default=50, metavar="N", help="of real-subset, feddm and fedlap-dp")
    add(
        "--judge-width",
        type=whole_number,
        default=128,
        metavar="N",
        help="width of the ConvNet that learns from images",
    )
    add("--no-flips", action="store_true", help="no mirror images while it learns, as for digits")
    add("--minutes", type=_minutes, default=5.0, metavar="T", help="for each run of finetune")
    add("--threads", type=whole_number, metavar="N", help="of torch")
    add("--quiet", action="store_true", help="no progress")
    add("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> None:
    import torch

    from dpdd.common.progress import Console

    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console(quiet=options.quiet or options.json)
    of_table = options.dataset in table_benchmarks.names()
    facts, rows = (_of_table if of_table else _of_images)(options, console)
    console.finish()
    titles = OF_TABLES if of_table else TITLES
    commands = {row.method: command_of(options, row.method) for row in rows}
    if options.json:
        who = {True: "each silo", False: "one curator"}
        shown = [
            {**row.as_json(), "records_with": who[row.method in FEDERATED], "command": commands[row.method]}
            for row in rows
        ]
        print_json({"dataset": options.dataset, **facts, "releasable": False, "rows": shown})
        return
    silos = f" in {options.silos} silos ({options.partition})" if options.silos > 1 else ""
    made = "" if of_table else f"; features of {facts['backbone']}, {facts['features']}"
    print(f"{options.dataset}, {facts['records']:,} records{silos}{made}\n")
    print(_table(rows, titles))
    print()
    for name, command in commands.items():
        print(f"{titles[name]}: {command}")
    print(f"\nNeighbours, where a row is private: {NEIGHBOURS}; with several silos, (ε, δ) is each one's.")
    print("Each row has the whole budget for itself. Noise came from seeds: this protects nobody.")


def _of_images(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], list[Row]]:
    from dpdd.common.data import benchmarks
    from dpdd.common.data.labelled_records import LabelledRecords
    from dpdd.common.models import backbone as backbones
    from dpdd.scenarios.baselines import measure
    from dpdd.scenarios.baselines.real_records import JudgeSettings
    from dpdd.scenarios.baselines.settings import BaselineSettings
    from dpdd.server.evaluation.learner_settings import ConvNetDDSettings

    backbone = backbones.load(options.backbone)
    train, test = benchmarks.load(options.dataset, "train"), benchmarks.load(options.dataset, "test")
    if options.records:
        train = train.subset(np.arange(min(options.records, len(train))))
    shares = _shares(LabelledRecords(train.images, train.labels), options)
    task = measure.prepare(backbone, train, test, console, shares)
    judge = JudgeSettings(
        convnet_dd=ConvNetDDSettings(runs=1, width=options.judge_width),
        images_per_class=options.images_per_class,
        flips=not options.no_flips,
    )
    settings = BaselineSettings(minutes=options.minutes, judge=judge)
    budgets = [(epsilon, options.delta) for epsilon in options.epsilon]
    rows = measure.run(task, options.methods or USUAL, budgets, options.seeds, settings=settings, progress=console)
    facts = {"records": sum(map(len, shares)), "silos": options.silos, "partition": options.partition}
    facts |= {"backbone": backbone.card.name, "backbone_sha256": backbone.card.sha256, "features": task.normalisation}
    judged = {"judge": "convnet-dd", "judge_width": options.judge_width}
    return {**facts, **judged, "seeds": options.seeds}, rows


def _of_table(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], list[Row]]:
    from dpdd.common.data.labelled_records import LabelledRecords
    from dpdd.scenarios.baselines import tables

    methods = options.methods or tuple(OF_TABLES)
    if strangers := [name for name in methods if name not in OF_TABLES]:
        raise ConfigError(
            f"{strangers[0]} is for images; of a table there are {', '.join(OF_TABLES)} "
            "(docs/baselines.md says how MST and AIM are run)"
        )
    train, test = (table_benchmarks.load(options.dataset, split) for split in ("train", "test"))
    if options.records:
        train = train.subset(np.arange(min(options.records, len(train))))
    shares = _shares(LabelledRecords(train.rows, train.labels), options)
    rows = tables.run(train, test, shares, methods, options.seeds, options.images_per_class, console)
    facts = {"records": sum(map(len, shares)), "silos": options.silos, "partition": options.partition}
    return {**facts, "seeds": options.seeds}, rows


def _shares(records: LabelledRecords, options: argparse.Namespace) -> tuple[Positions, ...]:
    """Who has which records, by public seed 0."""
    from dpdd.common.config import validate
    from dpdd.scenarios.simulator.partition import partition
    from dpdd.server.run.data_section import DataSection

    section = {"dataset": options.dataset, "silos": options.silos, "partition": options.partition}
    section |= {} if options.alpha is None else {"alpha": options.alpha}
    section |= {} if options.classes_per_silo is None else {"classes_per_silo": options.classes_per_silo}
    return tuple(partition(records.labels, validate(section, DataSection, "--partition"), seed=0))


def command_of(options: argparse.Namespace, method: str) -> str:
    """What makes this row, and no other, again."""
    words: list[object] = ["dpdd-sim", "baselines", "--dataset", options.dataset, "--methods", method]
    if options.dataset not in table_benchmarks.names():
        words += ["--backbone", options.backbone]
        words += ["--judge-width", options.judge_width] if method in JUDGED else []
        words += ["--epsilon", *(f"{each:g}" for each in options.epsilon), "--delta", f"{options.delta:g}"]
        words += ["--minutes", f"{options.minutes:g}"] if method == "finetune" else []
        words += ["--no-flips"] if options.no_flips and method in JUDGED else []
    words += ["--images-per-class", options.images_per_class] if method in SIZED else []
    words += ["--seeds", options.seeds, "--silos", options.silos]
    words += ["--partition", options.partition] if options.silos > 1 else []
    words += ["--alpha", f"{options.alpha:g}"] if options.alpha is not None else []
    words += ["--classes-per-silo", options.classes_per_silo] if options.classes_per_silo is not None else []
    words += ["--records", options.records] if options.records else []
    return shlex.join(map(str, words))


def _table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    cells = []
    for row in rows:
        private = math.isfinite(row.guarantee.epsilon)
        budget = [rounded_up(row.guarantee.epsilon), f"{row.guarantee.delta:g}"] if private else ["∞", "–"]
        spread = f" ± {100 * row.accuracy.std:.2f}" if len(row.accuracy.runs) > 1 else ""
        beside = [f"{word} {100 * row.scores[name].mean:.2f}" for name, word in _BESIDE.items() if name in row.scores]
        accuracy = f"{100 * row.accuracy.mean:.2f}{spread}" + (f" ({', '.join(beside)})" if beside else "")
        others = [METRIC_BY_NAME[name].show(row.scores[name].mean) if name in row.scores else "" for name in _OTHERS]
        event = describe(row.event) if row.private else "not private"
        cells.append(
            [titles[row.method], *budget, row.guarantee.accountant, accuracy, *others, f"{row.seconds:.0f}", event]
        )
    names = [METRIC_BY_NAME[name].title for name in _OTHERS]
    return table(["baseline", "ε", "δ", "accountant", "test accuracy, %", *names, "CPU s", "what was run"], cells)


def _epsilon(text: str) -> float:
    return number(text, 0.0, LARGEST_EPSILON, f"a budget epsilon lies above 0 and goes up to {LARGEST_EPSILON:g}")


def _delta(text: str) -> float:
    return number(text, 0.0, 0.01, "a delta lies above 0 and goes up to 0.01, such as 1e-5")


def _minutes(text: str) -> float:
    return number(text, 0.0, 1e4, "a number of minutes lies above 0")
