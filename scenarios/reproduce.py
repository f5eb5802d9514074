"""``dpdd-sim reproduce PAPER``: a paper's tables beside our own rows, measured now, at a scale that two cores can bear.

Our rows are runs of the real system (`dpdd.scenarios.simulate`), each in a folder of its own that is kept, so that a
second call only does what is missing. Figures of the paper are copied from it and marked as such; datasets, networks
and budgets differ, so the rows are to be read side by side, not subtracted.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdd.common.cli import Commands, table
from dpdd.common.progress import Console

PAPER_SPS = (
    ("CIFAR-10, one curator, SPS+ (one WRN-34-10)", "1", "95.5"),
    ("CIFAR-10, one curator, SPS+ (ensemble of five)", "1", "96.2"),
    ("CIFAR-10, five silos of 10,000, SPS+ summed", "1", "89.5"),
    ("CIFAR-10, one silo of 10,000 alone", "1", "86"),
    ("CIFAR-100, ten tasks of ten classes", "4", "68.1"),
)
"""Test accuracy in % (public ImageNet-32, δ = 1e-5), as printed."""


@dataclass(frozen=True)
class Cell:
    """One setting: how many silos, who synthesises, how classes are split; `share` of the records per silo."""

    title: str
    silos: int
    mode: str = "centralised"
    partition: str = 'partition = "iid"'
    epsilon: str = "1.0"
    share: float | None = None


CELLS = (
    Cell("one silo with everything, no noise", 1, epsilon="inf"),
    Cell("one silo with everything, centralised", 1),
    Cell("one silo with everything, decentralised", 1, mode="decentralised"),
    Cell("one silo with a fifth, alone", 1, share=0.2),
    Cell("five silos, IID, centralised", 5),
    Cell("five silos, IID, decentralised", 5, mode="decentralised"),
    Cell("five silos, Dirichlet 0.1, centralised", 5, partition='partition = "dirichlet"\nalpha = 0.1'),
    Cell(
        "five silos, Dirichlet 0.1, decentralised",
        5,
        mode="decentralised",
        partition='partition = "dirichlet"\nalpha = 0.1',
    ),
)


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        "reproduce",
        _reproduce,
        "print a paper's tables beside our own rows",
        "Runs every setting once per seed; what is in the folder already is not run again.",
    )
    parser.add_argument("paper", choices=("sps",), help="which paper")
    parser.add_argument("--dataset", default="fashion-slice", help="what the silos hold (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs per setting (default: %(default)s)")
    parser.add_argument("--images-per-class", type=int, default=10, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--stages", type=int, default=3, metavar="N", help="stages of a release (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=250, metavar="N", help="of each ConvNet (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: runs/reproduce-PAPER")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _reproduce(options: argparse.Namespace) -> None:
    console = Console(quiet=options.quiet)
    folder: Path = options.out or Path("runs") / f"reproduce-{options.paper}"
    rows = []
    for number, cell in enumerate(CELLS):
        scores = [_measure(cell, number, seed, options, folder, console) for seed in range(options.seeds)]
        epsilon = "∞" if cell.epsilon == "inf" else f"{float(cell.epsilon):g}"
        rows.append([cell.title, epsilon, *(_spread([s[what] for s in scores]) for what in ("convnet", "teacher"))])
        console.say(f"{cell.title}: ConvNet {rows[-1][2]} %, teacher {rows[-1][3]} %")
    print("\n".join(_report(options, rows)))


def _report(options: argparse.Namespace, rows: list[list[str]]) -> Iterator[str]:
    yield f"SPS on {options.dataset}, δ = 1e-5 for each silo, {options.images_per_class} synthetic images per class,"
    yield f"{options.stages} stages, {options.seeds} seeds; test accuracy in %, mean ± deviation over seeds"
    yield ""
    yield table(["ours, measured now", "ε", "ConvNet from scratch", "teacher in the releases"], rows)
    yield ""
    yield table(["the paper, as printed", "ε", "fine-tuned public network"], [list(row) for row in PAPER_SPS])
    yield ""
    yield "Noise came from seeds, so that this can be repeated: it protects nobody."


def _measure(
    cell: Cell, number: int, seed: int, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, float | None]:
    """The accuracies of one run; from its `metrics.json` if it was run before."""
    from dpdd.common import datasets
    from dpdd.common.scenario import load_scenario
    from dpdd.scenarios import simulate

    home = folder / f"{number}-{seed}"
    file = folder / f"{number}-{seed}.toml"
    text = _scenario(cell, seed, options, len(datasets.load(options.dataset, "train")))
    done = home / "metrics.json"
    if not (done.exists() and file.exists() and file.read_text() == text):
        folder.mkdir(parents=True, exist_ok=True)
        simulate.start_over(home)
        file.write_text(text)
        console.say(f"{cell.title}, seed {seed}")
        simulate.run(str(file), load_scenario(str(file)), home, console, noise_seed=seed)
    accuracy: dict[str, Any] = json.loads(done.read_text())["accuracy"]
    return {name: accuracy[name]["mean"] if name in accuracy else None for name in ("convnet", "teacher")}


def _scenario(cell: Cell, seed: int, options: argparse.Namespace, records: int) -> str:
    share = "" if cell.share is None else f"records_per_silo = {round(cell.share * records)}\n"
    per_batch = max(2, min(10, options.images_per_class))
    return f"""\
name = "reproduce-{options.paper}"
seed = {seed}
[data]
dataset = "{options.dataset}"
silos = {cell.silos}
{cell.partition}
{share}
[privacy]
epsilon = {cell.epsilon}
delta = 1e-5
[method]
name = "{options.paper}"
mode = "{cell.mode}"
[method.settings]
stages = {options.stages}
[synthesis]
images_per_class = {options.images_per_class}
[synthesis.settings]
batch_per_class = {per_batch}
steps = 80
[evaluation]
runs = 1
width = 32
steps = {options.steps}
lessons = 5000
"""


def _spread(values: list[float | None]) -> str:
    known = [100.0 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.fmean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")
