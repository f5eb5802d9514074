"""`dpdd-sim`: many silos on one machine, and a privacy accountant."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dpdd.common.cli import Commands, print_json, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    from dpdd.scenarios import account
    from dpdd.scenarios.audit import command as audit
    from dpdd.scenarios.audit import lira_command
    from dpdd.scenarios.baselines import command as baselines
    from dpdd.scenarios.benchmarks import evolution as benchmark_evolution
    from dpdd.scenarios.benchmarks import matching as benchmark_matching
    from dpdd.scenarios.benchmarks import noise as benchmark_noise
    from dpdd.scenarios.benchmarks import poisoning as benchmark_poisoning
    from dpdd.scenarios.benchmarks import silo as benchmark_silo
    from dpdd.scenarios.benchmarks import subspace_report, table_classifiers
    from dpdd.scenarios.benchmarks import synthesis as benchmark_synthesis
    from dpdd.scenarios.compare import command as compare
    from dpdd.scenarios.examples import command as examples
    from dpdd.scenarios.papers import reproduce
    from dpdd.scenarios.simulator.engines import ENGINES, IN_PROCESS
    from dpdd.server.commands.options import public_data_option

    commands = Commands("dpdd-sim", "Play many silos on one machine, and do privacy arithmetic.")
    run = commands.add(
        "run",
        _run,
        "run a scenario with simulated silos",
        "The run's folder keeps everything; running again re-uses the releases that are there.",
    )
    run.add_argument("scenario", help="a shipped scenario's name (see `dpdd-sim list`) or a .toml file")
    run.add_argument("--out", type=Path, metavar="FOLDER", help="the run's folder (default: runs/NAME)")
    run.add_argument(
        "--source",
        type=Path,
        metavar="PATH",
        help="one dataset to split over the silos, instead of the scenario's data.source: a folder of images, or an "
        ".npz, .csv or .parquet file",
    )
    run.add_argument("--fresh", action="store_true", help="start over: new silos, new budgets, new noise")
    run.add_argument(
        "--noise-seed", type=int, metavar="N", help="repeatable noise; the result then says it protects nobody"
    )
    run.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default=IN_PROCESS,
        help="exchange: a server and silos as processes of their own, with certificates, on loopback; "
        "ray: Flower's simulation (needs dpdd[ray])",
    )
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what synthesises images")
    run.add_argument(
        "--workers", type=int, metavar="N", help="processes that synthesise images (default: one per processor or GPU)"
    )
    run.add_argument(
        "--real",
        action="store_true",
        help="for comparison, also train the evaluation's classifiers on the real rows of the simulated silos (tables)",
    )
    run.add_argument("--no-rehearsal", action="store_true", help="ask the silos without a dry round before")
    public_data_option(run)
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.add_argument("--json", action="store_true", help="print metrics.json instead of a summary")
    listing = commands.add("list", _list, "list the shipped scenarios")
    listing.add_argument("--json", action="store_true", help="as JSON")
    compare.add_to(commands)
    examples.add_to(commands)
    account.add_to(commands)
    audit.add_to(commands)
    lira_command.add_to(commands)
    baselines.add_to(commands)
    benchmark_noise.add_to(commands)
    benchmark_silo.add_to(commands)
    benchmark_synthesis.add_to(commands)
    benchmark_poisoning.add_to(commands)
    benchmark_matching.add_to(commands)
    benchmark_evolution.add_to(commands)
    subspace_report.add_to(commands)
    table_classifiers.add_to(commands)
    reproduce.add_to(commands)
    commands.add("pretrain", _pretrain, "train a public backbone from public data", add_options=_pretrain_options)
    commands.names["scenario"] = commands.names["scenarios"] = _shipped
    return commands.main(arguments)


def _pretrain_options(parser: argparse.ArgumentParser) -> None:
    """They need torch: every other command's `--help` must not wait for that."""
    from dpdd.scenarios.backbones import pretrain

    pretrain.add_options(parser)


def _pretrain(options: argparse.Namespace) -> None:
    from dpdd.scenarios.backbones import pretrain

    pretrain.run(options)


def _shipped() -> list[str]:
    from dpdd.server.run.scenario import shipped

    return list(shipped())


def _run(options: argparse.Namespace) -> None:
    from dpdd.common.progress import Console
    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.scenarios.simulator import simulate
    from dpdd.server.report.summary import summary
    from dpdd.server.run.public_data import check_public_data
    from dpdd.server.run.scenario import load_scenario

    scenario = load_scenario(options.scenario, options.source)
    check_public_data(scenario, allowed=not options.no_public_data)
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
        dataset=options.source,
        rehearsal=not options.no_rehearsal,
        real=options.real,
    )
    if options.json:
        print_json(metrics)
    else:
        print(summary(metrics, folder))


def _list(options: argparse.Namespace) -> None:
    import tomllib

    from dpdd.server.run.scenario import shipped

    summaries = {name: tomllib.loads(path.read_text()).get("summary", "") for name, path in shipped().items()}
    print(
        json.dumps(summaries, indent=2)
        if options.json
        else table(["scenario", "what it does"], list(summaries.items()))
    )


if __name__ == "__main__":
    sys.exit(main())
