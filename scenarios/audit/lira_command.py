"""``dpdd-sim lira``: membership inference on models trained on synthetic sets, with noise and without it."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from dpdd.common.cli import Commands, print_json, table
from dpdd.scenarios.options import number, whole_number

RATES = (0.001, 0.01)


def add_to(commands: Commands) -> None:
    """Register `lira`."""
    parser = commands.add(
        "lira",
        _run,
        "try membership inference (LiRA) on models trained on synthetic sets, with noise and without it",
        "A setting that is easy to attack: few records, and mixtures that hold one or two of them.",
    )
    parser.add_argument("--epsilon", type=_epsilon, action="append", help="a budget; again for more (default: 1)")
    parser.add_argument("--worlds", type=whole_number, default=64, help="releases that are made at each budget")
    parser.add_argument("--candidates", type=whole_number, default=200, help="records that are guessed of")
    parser.add_argument("--seed", type=int, default=0, help="of candidates, worlds and noise")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where lira.json and roc.svg go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _epsilon(text: str) -> float:
    return number(text, 0.0, 32.0, "a budget lies in (0, 32]")


def _run(options: argparse.Namespace) -> None:
    from dpdd.common.progress import Console
    from dpdd.scenarios.audit.lira import LiraSetting, attacked
    from dpdd.scenarios.audit.roc import as_svg

    setting = LiraSetting(options.worlds, options.candidates, options.seed)
    console = Console(quiet=options.quiet or options.json)
    curves = {}
    for epsilon in (math.inf, *(options.epsilon or [1.0])):
        name = "no noise" if math.isinf(epsilon) else f"ε = {epsilon:g}"
        console.say(name)
        curves[name] = attacked(setting, epsilon, console)
    console.finish()
    rows = [
        {
            "releases": name,
            "auc": curve.auc,
            **{f"tpr_at_{rate:g}": curve.tpr_at(rate) for rate in RATES},
            **{f"chance_at_{rate:g}": curve.found_by_chance(rate) for rate in RATES},
        }
        for name, curve in curves.items()
    ]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "lira.json").write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        svg = as_svg(curves, "Members found against false alarms (LiRA)")
        (options.out / "roc.svg").write_text(svg, encoding="utf-8")
    if options.json:
        print_json(rows)
        return
    first = next(iter(curves.values()))
    print(f"{setting.method}, {setting.worlds} worlds, {first.members:,} members and {first.others:,} others guessed\n")
    header = ["releases", "AUC", *(f"found at {100 * rate:g} % false alarms (chance)" for rate in RATES)]
    cells = [
        [
            name,
            f"{curve.auc:.3f}",
            *(f"{100 * curve.tpr_at(rate):.2f} % (≤ {100 * curve.found_by_chance(rate):.2f} %)" for rate in RATES),
        ]
        for name, curve in curves.items()
    ]
    print(table(header, cells))
