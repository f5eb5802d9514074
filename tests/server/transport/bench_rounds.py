"""What a round over the exchange takes: three silos, each a process with a worker, and a coordinator.

``python -m tests.server.transport.bench_rounds --folder scratch``

Three runs, one after the other: as rounds were before (each planned anew, in a worker of its own), with the plan of the
first round for all, and with one worker that stays for them. Rounds are timed from the second on.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from unittest import mock

from dpdd.common.cli import table
from tests.server.transport import soak as base
from tests.server.transport import soak_rounds

STAYS = "dpdd.client.worker.worker.stays"
IS_ROUND = ("dpdd.client.silo.is_round", "dpdd.common.methods.request_plan.is_round")


def seconds_per_round(folder: Path, rounds: int) -> float:
    """From the first round's end to the last one's."""
    base.prepare(folder / "template", soak_rounds.scenario(rounds))
    closed: list[float] = []

    def note(_children: base.Children, count: int) -> None:
        if count > len(closed):
            closed.extend([time.monotonic()] * (count - len(closed)))

    soak_rounds.disturbed(folder / "template", folder / "run", rounds, note, random.Random(1))
    return (closed[-1] - closed[0]) / (len(closed) - 1)


def _never(_request: object) -> bool:
    return False


def main() -> None:
    """Time the three, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    base.warm_up()
    rows = []
    for name, without, rounds in (
        ("each planned anew, in a worker of its own", (*IS_ROUND, STAYS), 5),
        ("the plan of the first round", (STAYS,), options.rounds),
        ("and one worker that stays", (), options.rounds),
    ):
        patches = [mock.patch(each, _never) for each in without]
        for patch in patches:
            patch.start()
        took = seconds_per_round(options.folder / name.replace(" ", "-"), rounds)
        for patch in patches:
            patch.stop()
        rows.append([name, str(rounds), f"{took:.3f}", f"{1.0 / took:.2f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    load = Path("/proc/loadavg").read_text().split()[0]
    print(table(["rounds over the exchange, three silos", "rounds", "seconds a round", "rounds a second"], rows))
    print(f"\n200 records a silo, 10 support images, samples of a fifth; the machine's load was {load}")


if __name__ == "__main__":
    main()
