"""`dpdd-sim example`: writes a small study on own data, as three operators and a coordinator would, and can run it."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpdd.common.cli import Commands

NAMES = ("colour-folders", "unequal-classes", "four-of-ten", "three-hospitals")


def add_to(commands: Commands) -> None:
    """Register the sub-command."""
    example = commands.add(
        "example",
        example_study,
        "write a small study on data that is no benchmark: a scenario, and three silos with data of their own",
        "The records are drawn in code. What is printed then are the commands that coordinator and operators type.",
    )
    example.add_argument("name", choices=NAMES, help="which study")
    example.add_argument("folder", type=Path, help="a new folder for it")
    example.add_argument(
        "--run",
        dest="and_run",
        action="store_true",
        help="run it too: a server and three silos as processes, on loopback",
    )
    example.add_argument("--quiet", action="store_true", help="no progress")


def example_study(options: argparse.Namespace) -> None:
    """Write the study; run it, or say how."""
    from dpdd.scenarios.examples.studies import write

    folder: Path = options.folder
    silos = write(options.name, folder)
    if options.and_run:
        _run(silos, folder, quiet=options.quiet)
        return
    print(f"wrote {folder / 'study.toml'}, and the silos {', '.join(str(silo) for silo in silos)}")
    print(f"\nthe coordinator:\n  dpdd-server init {folder / 'hub'}")
    for silo in silos:
        print(f"  dpdd-server enrol {silo.name} --coordinator {folder / 'hub'}")
    print(f"  dpdd-server run {folder / 'study.toml'} --coordinator {folder / 'hub'}")
    print("\neach operator, with the token that `enrol` printed:")
    for silo in silos:
        print(f"  dpdd-client init {silo} && dpdd-client preflight --silo {silo}")
        print(f"  dpdd-client join 127.0.0.1:7444 TOKEN --silo {silo} && dpdd-client run --silo {silo}")


def _run(silos: list[Path], folder: Path, *, quiet: bool) -> None:
    from dpdd.client.silo import Silo
    from dpdd.common.progress import Console
    from dpdd.scenarios.simulator.loopback import run_silos
    from dpdd.server.report.summary import summary

    run = folder / "run"
    opened = [Silo.initialise(silo) for silo in silos]
    metrics = run_silos(opened, str(folder / "study.toml"), run, Console(quiet=quiet))
    print(summary(metrics, run))
