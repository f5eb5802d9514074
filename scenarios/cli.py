"""`dpdd-sim`: many silos on one machine, and a privacy calculator."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpdd.common.cli import Commands, guarded, print_json, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    from dpdd.scenarios import account, baselines, benchmark_noise, benchmark_silo, reproduce

    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == ["pretrain"]:
        return _pretrain(arguments)
    commands = Commands("dpdd-sim", "Play many silos on one machine, and do privacy arithmetic.")
    run = commands.add(
        "run",
        _run,
        "run a scenario with simulated silos",
        "The run's folder keeps everything; running again re-uses the releases that are there.",
    )
    run.add_argument("scenario", help="a shipped scenario's name (see `dpdd-sim list`) or a .toml file")
    run.add_argument("--out", type=Path, metavar="FOLDER", help="the run's folder (default: runs/NAME)")
    run.add_argument("--fresh", action="store_true", help="start over: new silos, new budgets, new noise")
    run.add_argument(
        "--noise-seed", type=int, metavar="N", help="repeatable noise; the result then says it protects nobody"
    )
    run.add_argument(
        "--engine",
        choices=("in-process", "exchange", "ray"),
        default="in-process",
        help="exchange: a server and silos as processes of their own, with certificates, on loopback; "
        "ray: Flower's simulation (needs dpdd[ray])",
    )
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what synthesises images")
    run.add_argument(
        "--workers", type=int, metavar="N", help="processes that synthesise images (default: one per processor or GPU)"
    )
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.add_argument("--json", action="store_true", help="print metrics.json instead of a summary")
    listing = commands.add("list", _list, "list the shipped scenarios")
    listing.add_argument("--json", action="store_true", help="as JSON")
    account.add_to(commands)
    baselines.add_to(commands)
    benchmark_noise.add_to(commands)
    benchmark_silo.add_to(commands)
    reproduce.add_to(commands)
    commands.add("pretrain", lambda _options: None, "train a public backbone from public data")
    return commands.main(arguments)


def _pretrain(arguments: Sequence[str]) -> int:
    """`pretrain` has a parser of its own, which needs torch: every other command's `--help` must not wait for that."""
    from dpdd.scenarios import pretrain

    parser = argparse.ArgumentParser(prog="dpdd-sim")
    pretrain.add_parser(parser.add_subparsers())
    options = parser.parse_args(arguments)
    return guarded(lambda: options.run(options), program="dpdd-sim", debug=False)


def _run(options: argparse.Namespace) -> None:
    from dpdd.common.progress import Console
    from dpdd.common.scenario import load_scenario
    from dpdd.common.synthesis.workshop import Workshop
    from dpdd.scenarios import simulate

    scenario = load_scenario(options.scenario)
    workshop = Workshop(device=options.device, workers=options.workers)
    folder: Path = options.out or Path("runs") / scenario.name
    console = Console(quiet=options.quiet or options.json)
    if options.fresh:
        simulate.start_over(folder)
    console.say(f"{scenario.name}: {scenario.summary or scenario.method.name}")
    metrics = simulate.run(
        options.scenario,
        scenario,
        folder,
        console,
        noise_seed=options.noise_seed,
        engine=options.engine,
        workshop=workshop,
    )
    if options.json:
        print_json(metrics)
    else:
        print(_summary(metrics, folder))


_EVALUATED = {"teacher": "the classifier that the releases contain"}


def _summary(metrics: dict[str, Any], folder: Path) -> str:
    rows = [
        [row["silo"], "∞" if row["epsilon"] is None else f"{row['epsilon']:g}", f"{row['delta']:g}", row["accountant"]]
        for row in metrics["privacy"]
    ]
    lines = ["", table(["silo", "ε", "δ", "accountant"], rows), ""]
    for name, score in metrics["accuracy"].items():
        spread = f" ± {100 * score['std']:.1f}" if len(score["runs"]) > 1 else ""
        what = _EVALUATED.get(name, f"{name} trained on the synthetic set alone")
        lines.append(f"{what}: {100 * score['mean']:.1f}{spread} % on real test data")
    if "average" in metrics.get("continual", {}):
        lines.append(_continual(metrics["continual"]))
    if not all(row["releasable"] for row in metrics["privacy"]):
        lines.append("This was a simulation with repeatable or no noise: it protects nobody.")
    lines += [
        f"{metrics['dataset']['images']} synthetic images: {folder / 'dataset'} (look at preview.png)",
        f"what it promises, and how to check it: {folder / 'CARD.md'}",
    ]
    return "\n".join(lines)


def _continual(found: dict[str, Any]) -> str:
    joint = found.get("joint")
    ceiling = f"; all classes at once: {100 * joint['mean']:.1f} %" if joint else ""
    return (
        f"{len(found['tasks'])} tasks: {100 * found['average']:.1f} % over tasks at the end, "
        f"forgetting {100 * found['forgetting']:.1f} points{ceiling}"
    )


def _list(options: argparse.Namespace) -> None:
    import tomllib

    from dpdd.common.scenario import shipped

    found = {name: tomllib.loads(path.read_text()).get("summary", "") for name, path in shipped().items()}
    print(json.dumps(found, indent=2) if options.json else table(["scenario", "what it does"], list(found.items())))


if __name__ == "__main__":
    sys.exit(main())
