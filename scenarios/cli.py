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
    from dpdd.scenarios import account
    from dpdd.scenarios.baselines import compare as baselines
    from dpdd.scenarios.benchmarks import matching as benchmark_matching
    from dpdd.scenarios.benchmarks import noise as benchmark_noise
    from dpdd.scenarios.benchmarks import silo as benchmark_silo
    from dpdd.scenarios.benchmarks import subspace_report
    from dpdd.scenarios.papers import reproduce

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
    benchmark_matching.add_to(commands)
    subspace_report.add_to(commands)
    reproduce.add_to(commands)
    commands.add("pretrain", lambda _options: None, "train a public backbone from public data")
    return commands.main(arguments)


def _pretrain(arguments: Sequence[str]) -> int:
    """`pretrain` has a parser of its own, which needs torch: every other command's `--help` must not wait for that."""
    from dpdd.scenarios.backbones import pretrain

    parser = argparse.ArgumentParser(prog="dpdd-sim")
    pretrain.add_parser(parser.add_subparsers())
    options = parser.parse_args(arguments)
    return guarded(lambda: options.run(options), program="dpdd-sim", debug=False)


def _run(options: argparse.Namespace) -> None:
    from dpdd.common.progress import Console
    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.scenarios.simulator import simulate
    from dpdd.server.run.scenario import load_scenario

    scenario = load_scenario(options.scenario)
    runner = SynthesisRunner(device=options.device, workers=options.workers)
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
        runner=runner,
    )
    if options.json:
        print_json(metrics)
    else:
        print(_summary(metrics, folder))


_LEARNERS = {
    "convnet": "ConvNet from scratch",
    "probe": "linear probe of {backbone}",
    "fine-tune": "fine-tuned {backbone}",
    "ensemble": "fine-tuned {backbone}, together",
    "teacher": "teacher",
}
_LEARNT_FROM = {"lessons": "lessons by the teacher", "soft": "soft labels", "hard": "hard labels"}


def _summary(metrics: dict[str, Any], folder: Path) -> str:
    rows = [
        [row["silo"], "∞" if row["epsilon"] is None else f"{row['epsilon']:g}", f"{row['delta']:g}", row["accountant"]]
        for row in metrics["privacy"]
    ]
    lines = ["", table(["silo", "ε", "δ", "accountant"], rows), ""]
    if metrics["accuracy"]:
        lines += [_accuracy(metrics["accuracy"]), ""]
    if metrics.get("continual", {}).get("learners"):
        lines += [_continual(metrics["continual"], metrics["accuracy"]), ""]
    if not all(row["releasable"] for row in metrics["privacy"]):
        lines.append("This was a simulation with repeatable or no noise: it protects nobody.")
    lines += [
        f"{metrics['dataset']['images']} synthetic images: {folder / 'dataset'} (look at preview.png)",
        f"what it promises, and how to check it: {folder / 'CARD.md'}",
    ]
    return "\n".join(lines)


def _accuracy(accuracy: dict[str, Any]) -> str:
    rows = []
    for name, score in accuracy.items():
        spread = f" ± {100 * score['std']:.1f}" if len(score["runs"]) > 1 else ""
        source = _LEARNT_FROM[score["labels"]] if "labels" in score else "the releases"
        rows.append([_LEARNERS[name].format_map(score), source, f"{100 * score['mean']:.1f}{spread}"])
    return table(["learner", "learnt from", "% right on real test data"], rows)


def _continual(found: dict[str, Any], accuracy: dict[str, Any]) -> str:
    """Per learner: % right on all classes seen, after each task; and its ceiling, where that was run."""
    joint = found.get("joint")
    header = ["% right on classes seen, after", *(f"task {number + 1}" for number in range(len(found["tasks"])))]
    rows = []
    for name, figures in found["learners"].items():
        shares = [*figures["seen"], figures["forgetting"]]
        row = [_LEARNERS[name].format_map(accuracy[name]), *(f"{100 * share:.1f}" for share in shares)]
        if joint:
            row.append(f"{100 * joint[name]['mean']:.1f}" if name in joint else "")
        rows.append(row)
    return table([*header, "forgetting", *(["all at once"] if joint else [])], rows)


def _list(options: argparse.Namespace) -> None:
    import tomllib

    from dpdd.server.run.scenario import shipped

    found = {name: tomllib.loads(path.read_text()).get("summary", "") for name, path in shipped().items()}
    print(json.dumps(found, indent=2) if options.json else table(["scenario", "what it does"], list(found.items())))


if __name__ == "__main__":
    sys.exit(main())
