"""`dpdd-sim reproduce pe`: Private Evolution beside DP-MERF and SPS on the same silos, in one run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

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

PUBLISHED = """\
CIFAR-10 at ε = 1 in the literature (a ConvNet from scratch; from DP-GENG's and Dosser's papers): DP-GENG, whose
generator is Private Evolution with a diffusion model, 53.5 (10 images per class) and 55.9 (50); Dosser with auxiliary
images of a public generator 44.2 and 49.1; NDPDC 39.4 and 42.3. Ours has public photographs instead of a generator."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this comparison."""
    parser.set_defaults(dataset="cifar10", seeds=1)
    parser.add_argument("--epsilon", type=float, default=1.0, metavar="E", help="of every silo")
    parser.add_argument("--silos", type=int, default=1, metavar="N", help="that share the records")
    parser.add_argument("--records", type=int, metavar="N", help="of each silo; left out, all that there are")
    parser.add_argument("--images-per-class", type=int, nargs="+", default=[10, 50], metavar="N", help="of every set")
    parser.add_argument("--backbone", default="rgb32", help="of Private Evolution and of SPS")
    parser.add_argument("--pool", default="tinyimagenet32", help="public dataset; none: shapes instead")
    parser.add_argument("--evolution", nargs="+", default=[], metavar="KEY=VALUE", help="settings of Private Evolution")
    parser.add_argument("--only", nargs="+", choices=("pe", "merf", "sps"), default=["pe", "merf", "sps"])
    add_judge(parser)


def cells(options: argparse.Namespace) -> list[Cell]:
    """Each method, with the same releases for every number of images."""
    planned: list[Cell] = []
    for method in options.only:
        first = ""
        for images in options.images_per_class:
            key = f"{method}-{images}"
            planned.append(
                Cell(key, f"{_TITLES[method]}, {images} per class", _scenario(method, images, options), first)
            )
            first = first or key
    return planned


_TITLES = {"pe": "Private Evolution", "merf": "DP-MERF", "sps": "SPS"}


def report(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    """Accuracy by method and number of images."""
    judge = "convnet-dd" + (f" ({', '.join(options.judge)})" if options.judge else "")
    records = "" if options.records is None else f" of {options.records:,} records"
    yield f"{options.dataset}, {options.silos} silo(s){records}, ε = {options.epsilon:g}, δ = 1e-5;"
    yield f"test accuracy in % of {judge} on hard labels, by images per class; {options.seeds} seed(s)"
    yield ""
    lines = []
    for method in options.only:
        of = [outcomes[f"{method}-{images}"] for images in options.images_per_class]
        accuracy = [spread([each.accuracy.get("convnet-dd") for each in cell]) for cell in of]
        lines.append([_TITLES[method], stated_epsilon(of[0]), *accuracy, kilobytes_per_silo(of[0])])
    yield table(["method", "ε", *map(str, options.images_per_class), "kB per silo"], lines)
    yield ""
    yield PUBLISHED


def _scenario(method: str, images: int, options: argparse.Namespace) -> str:
    values: dict[str, object]
    if method == "merf":
        name, values, synthesis = "dp-merf", {}, ""
    elif method == "sps":
        name, values = "sps", {"backbone": options.backbone, "features": 320, "picture": 4, "stages": 3}
        synthesis = f"batch_per_class = {min(images, 25)}\nflips = true"
    else:
        name, synthesis = "private-evolution", ""
        pool = {} if options.pool == "none" else {"generator": "pool", "pool": options.pool}
        values = {"backbone": options.backbone, **EVOLUTION, **pool, **pairs(options.evolution)}
    return f"""\
name = "reproduce-pe-{method}"
seed = {{seed}}
[data]
dataset = "{options.dataset}"
silos = {options.silos}
{"" if options.records is None else f"records_per_silo = {options.records}"}
[privacy]
epsilon = {options.epsilon!r}
delta = 1e-5
[method]
name = "{name}"
[method.settings]
{toml_table(values)}
[synthesis]
images_per_class = {images}
[synthesis.settings]
{synthesis}
[evaluation]
learners = ["convnet-dd"]
labels = "hard"
runs = 1
[evaluation.convnet_dd]
{toml_table(pairs(options.judge))}
"""


EVOLUTION = {"rounds": 8, "population": 400, "features": 128, "strength": 1.0, "last_strength": 0.2}
"""Found on held-out training records of CIFAR-10 (docs/private-evolution.md)."""
