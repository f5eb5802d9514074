"""`dpdd-sim reproduce kip`: DP-KIP's tables 1 to 6 beside our rows, for one dataset of images, or one table, at a time.

Cells of data that a run did not have are printed as published.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpdd.common.cli import table
from dpdd.scenarios.papers import kip_tables
from dpdd.scenarios.papers.base import Cell, Outcome, Outcomes, spread, stated_epsilon

NAMESAKES = {"fashion-slice": "fashion-mnist"}
"""A part of a dataset stands beside the whole one's published cells."""
NOT_MEASURED = "–"
READ_AS = """\
How to read them: KRR is kernel ridge regression with the kernel that a set was made for. "e-NTK" and "PFs" need an
untrained network's features, and are not run here. Our ε are exact or upper bounds for Poisson samples, the paper's are
for batches of a shuffled dataset. Two other papers measure 10 to 26 % where table 3 has 88 to 98 for a ConvNet. Table
5's ROC of real records suggests that it is of hard predictions: ours are printed both ways."""


@dataclass(frozen=True)
class Row:
    """A method of ours, the learner with its kernel, and its scenario."""

    key: str
    title: str
    learner: str
    method: str
    synthesis: str = ""


ROWS = (
    Row("kip-moments", "kip-moments", "krr", 'name = "kip-moments"\n[method.settings]\nstages = {stages}'),
    Row(
        "kip-ridge",
        "kip-moments, one stage, ridge target",
        "krr",
        'name = "kip-moments"\n[method.settings]\nstages = 1',
        'target = "ridge"',
    ),
    Row(
        "dp-kip",
        "dp-kip, FC-NTK",
        "krr-ntk",
        'name = "dp-kip"\nmode = "decentralised"\n[method.settings]\nsupport_per_class = {images}',
    ),
)
HERDED = "herded"
TABLE_SETS = {"": "kip-table", HERDED: "sps-table, herded"}
"""The sets of ten rows per class that one release of a table gives, and what makes them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this paper."""
    keys = [row.key for row in ROWS]
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=[1.0], metavar="E", help="of every silo; inf: table 1"
    )
    parser.add_argument("--images-per-class", type=int, nargs="+", default=[1, 10], metavar="N", help="synthetic ones")
    parser.add_argument("--silos", type=int, default=1, metavar="N", help="that share the records")
    parser.add_argument("--rows", nargs="*", choices=keys, default=keys, metavar="ROW", help="only these rows")
    parser.add_argument("--stages", type=int, default=6, metavar="N", help="stages of a release of kip-moments")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="of each ConvNet")
    parser.add_argument(
        "--tables", nargs="+", default=[], metavar="TABLE", help="for table 5: adult, cervical, or any other table"
    )


def cells(options: argparse.Namespace) -> list[Cell]:
    """One per row, ε and size; further sizes of kip-moments start from the same releases."""
    planned: list[Cell] = []
    for row, epsilon in _lines(options):
        first = ""
        for images in options.images_per_class:
            key = _key(row.key, epsilon, images)
            title = f"{row.title}, ε = {epsilon:g}, {images} images per class"
            planned.append(Cell(key, title, _scenario(row, epsilon, images, options), like=first))
            first = first or (key if row.learner == "krr" else "")
    planned += [Cell(f"kip-table-{name}", f"{name}, kip-table", _table_scenario(name)) for name in options.tables]
    return planned


def report(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    """Our rows, then the paper's tables, with ours where they are of the same data."""
    sizes = options.images_per_class
    rows = []
    for row, epsilon in _lines(options):
        by_size = [outcomes[_key(row.key, epsilon, images)] for images in sizes]
        columns = [_score(each, learner) for each in by_size for learner in (row.learner, "convnet")]
        rows.append([row.title, stated_epsilon(by_size[0]), *columns])
    if rows:
        yield f"KIP on {options.dataset}, {options.silos} silo(s), δ = 1e-5 for each, {options.seeds} seed(s)"
        yield ""
        header = [f"{who} {images}" for images in sizes for who in ("KRR", "ConvNet")]
        yield table(["ours, measured now (%, by images per class)", "ε", *header], rows)
        yield ""
    yield from _table_1(options, outcomes)
    yield from _table_2(options, outcomes)
    yield "Table 3, left: a ConvNet trained by SGD, %"
    yield table(["", "MNIST ε = 1", "ε = 10", "Fashion ε = 1", "ε = 10"], [list(row) for row in kip_tables.TABLE_3])
    yield ""
    yield "Table 3, right: the same at ε = 10, by images per class"
    header = [f"{name} {size}" for name in ("MNIST", "Fashion") for size in ("10", "20", "full")]
    yield table(["", *header], [list(row) for row in kip_tables.TABLE_3_RIGHT])
    yield ""
    yield from _table_4(options, outcomes)
    yield from _table_5(options, outcomes)
    yield "Table 6: MNIST, one image per class, KRR by clipping norm"
    yield table(["ε", *(f"1e-{power}" for power in range(1, 7))], [list(row) for row in kip_tables.TABLE_6])
    yield ""
    yield READ_AS


def _table_1(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    yield "Table 1: KRR without privacy, %"
    rows = [
        [
            kip_tables.DATASETS[name],
            str(images),
            *values,
            _ours(options, outcomes, "kip-moments", name, float("inf"), images),
        ]
        for (name, images), values in kip_tables.TABLE_1.items()
    ]
    yield table(["data", "per class", *kip_tables.KERNELS_1, "kip-moments"], rows)
    yield ""


def _table_2(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    yield "Table 2: KRR, %; ours on the right"
    rows = []
    for (name, images), values in kip_tables.TABLE_2.items():
        ours = [
            _ours(options, outcomes, key, name, epsilon, images)
            for key in ("kip-moments", "dp-kip")
            for epsilon in (1.0, 10.0)
        ]
        rows.append([kip_tables.DATASETS[name], str(images), *values, *ours])
    header = [
        "FC-NTK ε = 1",
        "ε = 10",
        "ScatterNet ε = 1",
        "ε = 10",
        "kip-moments ε = 1",
        "ε = 10",
        "dp-kip ε = 1",
        "ε = 10",
    ]
    yield table(["data", "per class", *header], rows)
    yield ""


def _table_4(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    yield "Table 4: CIFAR-10, KRR by the share of frozen pixels, %; kip-moments freezes none"
    rows = []
    for images, lines in kip_tables.TABLE_4.items():
        rows += [[str(images), *line] for line in lines]
        ours = [
            _ours(options, outcomes, "kip-moments", "cifar10", epsilon, images) for epsilon in (0.1, 1.0, 10.0, 100.0)
        ]
        rows.append([str(images), "kip-moments", *ours])
    yield table(["per class", "% frozen", "ε = 0.1", "ε = 1", "ε = 10", "ε = 100"], rows)
    yield ""


def _table_5(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    yield "Table 5: tables at ε = 1, mean of twelve classifiers: ROC and PRC (covtype, intrusion: F1)"
    names = [*kip_tables.TABLE_5, *(name for name in options.tables if name not in kip_tables.TABLE_5)]
    unknown = (NOT_MEASURED,) * len(kip_tables.METHODS_5)
    rows = [[name, *kip_tables.TABLE_5.get(name, unknown)] for name in names]
    yield table(["", *kip_tables.METHODS_5], rows)
    yield ""
    if options.tables:
        rows = []
        for name in options.tables:
            for made, method in TABLE_SETS.items():
                metrics = ("roc-auc-hard", "macro-roc-auc", "average-precision", "f1")
                means = (_mean(outcomes[f"kip-table-{name}"], made, metric) for metric in metrics)
                rows.append([name, method, *means])
        header = ["ROC of hard predictions", "ROC of scores", "PRC", "F1"]
        yield table(["ours, ten rows per class", "method", *header], rows)
        yield ""


def _lines(options: argparse.Namespace) -> list[tuple[Row, float]]:
    chosen = [row for row in ROWS if row.key in options.rows]
    return [(row, epsilon) for row in chosen for epsilon in options.epsilon]


def _key(row: str, epsilon: float, images: int) -> str:
    return f"{row}-{epsilon:g}-{images}"


def _score(outcomes: Sequence[Outcome], learner: str) -> str:
    return spread([outcome.accuracy.get(learner) for outcome in outcomes])


def _mean(outcomes: Sequence[Outcome], made: str, metric: str) -> str:
    """Over learners, then over seeds."""
    known = [outcome.means[made][metric] for outcome in outcomes if metric in outcome.means.get(made, {})]
    return f"{sum(known) / len(known):.3f}" if known else NOT_MEASURED


def _ours(options: argparse.Namespace, outcomes: Outcomes, key: str, dataset: str, epsilon: float, images: int) -> str:
    """What we measured in a cell of theirs, marked where it is of a part of their data."""
    own = NAMESAKES.get(options.dataset, options.dataset)
    measured = outcomes.get(_key(key, epsilon, images))
    if own != dataset or measured is None:
        return NOT_MEASURED
    learner = next(row.learner for row in ROWS if row.key == key)
    return _score(measured, learner) + (" (slice)" if own != options.dataset else "")


def _scenario(row: Row, epsilon: float, images: int, options: argparse.Namespace) -> str:
    method = row.method.format(stages=options.stages, images=images)
    moments = row.learner == "krr"
    picture = 7 if options.dataset in ("fashion-slice", "fashion-mnist", "mnist") else 4
    settings = f"picture = {picture}" if moments else ""
    one = "moment_weight = 0.01" if moments and images == 1 else ""
    learners = ["convnet", row.learner] if options.steps else [row.learner]
    flips = "false" if options.dataset in ("mnist", "svhn") else "true"
    return f"""\
name = "reproduce-{row.key}"
seed = {{seed}}
[data]
dataset = "{options.dataset}"
silos = {options.silos}
[privacy]
epsilon = {epsilon!r}
delta = 1e-5
[method]
{method}
{settings}
[synthesis]
images_per_class = {images}
[synthesis.settings]
{row.synthesis}
{one}
[evaluation]
runs = 1
learners = {learners}
labels = "hard"
flips = {flips}
metrics = []
steps = {max(options.steps, 1)}
"""


def _table_scenario(name: str) -> str:
    return f"""\
name = "reproduce-kip-table"
seed = {{seed}}
[data]
dataset = "{name}"
silos = 1
[privacy]
epsilon = 1.0
delta = 1e-5
[method]
name = "kip-table"
[synthesis]
rows_per_class = 10
[[synthesis.also]]
name = "{HERDED}"
method = "sps-table"
rows_per_class = 10
[evaluation]
runs = 1
"""
