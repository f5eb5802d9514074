"""`dpdd-sim reproduce sps`: one silo and five, IID and not, centralised and decentralised."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from dpdd.common.cli import table
from dpdd.scenarios.papers.base import (
    Cell,
    Outcomes,
    add_judge,
    kilobytes_per_silo,
    pairs,
    spread,
    stated_epsilon,
    toml_table,
)

PRINTED = (
    ("CIFAR-10, one curator, SPS+ (one WRN-34-10)", "1", "95.5"),
    ("CIFAR-10, one curator, SPS+ (ensemble of five)", "1", "96.2"),
    ("CIFAR-10, five silos of 10,000, SPS+ summed", "1", "89.5"),
    ("CIFAR-10, one silo of 10,000 alone", "1", "86"),
    ("CIFAR-100, ten tasks of ten classes", "4", "68.1"),
)
"""Test accuracy in % (public ImageNet-32, δ = 1e-5), as printed."""

_DIRICHLET = 'partition = "dirichlet"\nalpha = 0.1'


@dataclass(frozen=True)
class Setting:
    """How many silos, who synthesises, how classes are split; `share` of the records per silo.

    Silos that may lack classes are asked for all `images_per_class` each, as others cannot fill in for them.
    """

    title: str
    silos: int
    mode: str = "centralised"
    partition: str = 'partition = "iid"'
    epsilon: str = "1.0"
    share: float | None = None


SETTINGS = (
    Setting("one silo with everything, no noise", 1, epsilon="inf"),
    Setting("one silo with everything, centralised", 1),
    Setting("one silo with everything, decentralised", 1, mode="decentralised"),
    Setting("one silo with a fifth, alone", 1, share=0.2),
    Setting("five silos, IID, centralised", 5),
    Setting("five silos, IID, decentralised", 5, mode="decentralised"),
    Setting("five silos, Dirichlet 0.1, centralised", 5, partition=_DIRICHLET),
    Setting("five silos, Dirichlet 0.1, decentralised", 5, mode="decentralised", partition=_DIRICHLET),
)


LEARNERS = ("convnet-dd", "convnet", "teacher")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this paper."""
    parser.add_argument("--images-per-class", type=int, default=10, metavar="N", help="synthetic ones")
    parser.add_argument("--stages", type=int, default=3, metavar="N", help="stages of a release")
    parser.add_argument("--steps", type=int, default=250, metavar="N", help="of the learner convnet")
    add_judge(parser)


def cells(options: argparse.Namespace) -> list[Cell]:
    """One per setting."""
    from dpdd.common.data import benchmarks

    records = len(benchmarks.load(options.dataset, "train"))
    return [
        Cell(str(number), setting.title, _scenario(setting, options, records))
        for number, setting in enumerate(SETTINGS)
    ]


def report(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    """Our rows, then the paper's."""
    yield f"SPS on {options.dataset}, δ = 1e-5 for each silo, {options.images_per_class} synthetic images per class,"
    yield f"{options.stages} stages, {options.seeds} seeds; test accuracy in %, mean ± deviation over seeds"
    yield ""
    rows = []
    for number, setting in enumerate(SETTINGS):
        runs = outcomes[str(number)]
        scores = [spread([outcome.accuracy.get(learner) for outcome in runs]) for learner in LEARNERS]
        rows.append([setting.title, stated_epsilon(runs), *scores, kilobytes_per_silo(runs)])
    learners = ["ConvNet, hard labels", "ConvNet, teacher's labels", "teacher in the releases"]
    yield table(["ours, measured now", "ε", *learners, "kB per silo"], rows)
    yield ""
    yield table(["the paper, as printed", "ε", "fine-tuned public network"], [list(row) for row in PRINTED])


def _scenario(setting: Setting, options: argparse.Namespace, records: int) -> str:
    share = "" if setting.share is None else f"records_per_silo = {round(setting.share * records)}\n"
    per_batch = max(2, min(10, options.images_per_class))
    skewed = setting.mode == "decentralised" and setting.partition == _DIRICHLET
    each = f"images_per_silo = {options.images_per_class}\n" if skewed else ""
    return f"""\
name = "reproduce-sps"
seed = {{seed}}
[data]
dataset = "{options.dataset}"
silos = {setting.silos}
{setting.partition}
{share}
[privacy]
epsilon = {setting.epsilon}
delta = 1e-5
[method]
name = "sps"
mode = "{setting.mode}"
[method.settings]
stages = {options.stages}
[synthesis]
images_per_class = {options.images_per_class}
{each}[synthesis.settings]
batch_per_class = {per_batch}
steps = 80
[evaluation]
runs = 1
width = 32
steps = {options.steps}
augmentations = 5000
[evaluation.convnet_dd]
{toml_table(pairs(options.judge))}
"""
