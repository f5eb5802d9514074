"""SPS for tables beside MST and AIM: ``python -m tests.scenarios.benchmarks.bench_tables --other PYTHON``.

All have the same records, the same codes by the same public schema and the same (ε, δ) for adding or removing a record,
and make as many rows as there are records. Then all rows are compared with the same test rows, and the same classifiers
are trained on them. Real records are the reference. MST and AIM are those of dpmm, which needs an environment of its
own (NumPy 1.26): `--other` is its interpreter. Without it, ours stand alone. One thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdd.common.cli import table
from dpdd.common.data import table_benchmarks
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.data.table.rows import codes_of, rows_and_labels
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.simulator.simulate import run
from dpdd.server.evaluation.fidelity import fidelity
from dpdd.server.evaluation.scoring import evaluate
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.run.scenario import load_scenario

DELTA = 1e-5
SCENARIO = """
name = "beside"
[data]
dataset = "{dataset}"
silos = 1
[privacy]
epsilon = {epsilon}
delta = {delta}
[method]
name = "sps-table"
[synthesis]
images_per_class = {largest}
[evaluation]
runs = 0
"""
HEADER = ["rows from", "ε", "pairs", "triples", "Cramér's V", "AUC", "best AUC", "hard AUC", "F1", "CPU s", "s"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, eq=False)
class Made:
    """Rows, who made them, and what that took."""

    maker: str
    epsilon: float | None
    rows: LabelledSet
    cpu: float = 0.0
    wall: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="adult", choices=table_benchmarks.names())
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 0.2])
    parser.add_argument("--other", type=Path, metavar="PYTHON", help="an interpreter that has dpmm")
    parser.add_argument("--mechanisms", nargs="+", default=["mst", "aim"], choices=("mst", "aim"))
    parser.add_argument("--model-size", type=float, default=80.0, metavar="MB", help="bound of AIM's model (80)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep rows here, and use those that are here")
    parser.add_argument("--records", type=int, metavar="N", help="only the first N training records")
    options = parser.parse_args()
    train, test = (table_benchmarks.load(options.dataset, split) for split in ("train", "test"))
    train = train.subset(np.arange(len(train))[: options.records])
    print(f"{options.dataset}: {len(train)} training and {len(test)} test records, δ = {DELTA:g}", flush=True)
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for made in makers(options, train, folder):
            lines.append(judged(made, test, options.seed))
            print("  ".join(lines[-1]), flush=True)
    print(f"\n{table(HEADER, lines)}")
    print(
        "pairs and triples: mean total variation distance to the test rows; Cramér's V: mean difference over pairs;\n"
        "AUC: ROC-AUC from scores, mean over the twelve classifiers; best: of one; hard: from hard predictions"
    )


def makers(options: argparse.Namespace, train: LabelledRows, folder: Path) -> Iterator[Made]:
    """Real rows, then everybody's, one budget after the other."""
    schema = train.schema
    yield Made("real training records", None, LabelledSet(train.rows, train.labels, train.classes, schema=schema))
    for epsilon in options.epsilons:
        yield ours(options.dataset, epsilon, train, folder)
        for mechanism in options.mechanisms if options.other else ():
            yield theirs(mechanism, epsilon, train, options, folder)


def ours(dataset: str, epsilon: float, train: LabelledRows, folder: Path) -> Made:
    """A simulated silo and its coordinator, from records to rows."""
    path, out = folder / f"ours-{epsilon:g}.toml", folder / f"ours-{epsilon:g}"
    largest = int(np.bincount(train.labels).max())
    text = SCENARIO.format(dataset=dataset, epsilon=epsilon, delta=DELTA, largest=largest)
    path.write_text(text.replace("silos = 1", f"silos = 1\nrecords_per_silo = {len(train)}"))
    cpu, wall = time.process_time(), time.monotonic()
    run(str(path), load_scenario(str(path)), out, Console(quiet=True))
    return Made("SPS for tables", epsilon, LabelledSet.load(out / "dataset"), time.process_time() - cpu,
                time.monotonic() - wall)  # fmt: skip


def theirs(mechanism: str, epsilon: float, train: LabelledRows, options: argparse.Namespace, folder: Path) -> Made:
    """What `mst_and_aim` makes, in the other interpreter."""
    source, target = folder / "records.npz", folder / f"{mechanism}-{epsilon:g}-{options.seed}.npz"
    schema = train.schema
    np.savez(source, codes=codes_of(schema, train.rows, train.labels), sizes=np.array(schema.sizes))
    if not target.exists():
        script = Path(__file__).with_name("mst_and_aim.py")
        numbers = (epsilon, DELTA, options.seed, options.model_size)
        command = [options.other, script, mechanism, *numbers, source, target]
        subprocess.run(list(map(str, command)), check=True, env={**os.environ, **ONE_THREAD})
    with np.load(target) as archive:
        codes, took = archive["codes"], json.loads(str(archive["took"]))
    rows = LabelledSet(*rows_and_labels(schema, codes), schema.classes, schema=schema)
    return Made(f"{mechanism.upper()} (dpmm)", epsilon, rows, took["cpu"], took["wall"])


def judged(made: Made, test: LabelledRows, seed: int) -> list[str]:
    """A line of the table."""
    schema = test.schema
    close = fidelity(
        schema, codes_of(schema, made.rows.rows, made.rows.labels), codes_of(schema, test.rows, test.labels)
    )
    scores = evaluate(made.rows, test, EvaluationSection(), None, seed)
    mean: dict[str, Any] = {name: score["mean"] for name, score in scores["mean_over_learners"].items()}
    best = scores["best_learner"]["macro-roc-auc"]["mean"]
    return [
        made.maker,
        "–" if made.epsilon is None else f"{made.epsilon:g}",
        *(f"{close[key]:.4f}" for key in ("two_way", "three_way", "correlation_difference")),
        *(f"{figure:.3f}" for figure in (mean["macro-roc-auc"], best, mean["roc-auc-hard"], mean["f1"])),
        *("–" if made.epsilon is None else f"{seconds:.0f}" for seconds in (made.cpu, made.wall)),
    ]


if __name__ == "__main__":
    main()
