"""``dpdd-sim bench-matching``: the matching engine beside the loops of the paper, on the same settings, in one run.

*The silo's extraction* is the real mechanism (without noise, so that sums can be compared). *The optimisation* is the
coordinator's own. Beside them stand two plain programs, written after the paper's description, with the usual modules:

- *one class at a time*: a network and its subspace made for every draw, and the classes one after another;
- *one network, one class at a time*: made anew for every class too, as section 3.4 of the paper reads.

Both keep networks and subspaces for the optimisation, as the paper does. The engine must give the same sums and the
same gradients, which is checked before anything is timed. All take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dpdd.common.cli import Commands, table

if TYPE_CHECKING:
    from dpdd.scenarios.benchmarks.matching_loops import Bench


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        "bench-matching", _bench, "time the matching engine beside the paper's loops, one class at a time"
    )
    parser.add_argument("--dataset", default="fashion-slice", help="whose records are summed")
    parser.add_argument("--rate", type=float, default=0.05, metavar="Q", help="of Poisson sampling")
    parser.add_argument("--draws", type=int, default=8, metavar="N", help="draws of the silo")
    parser.add_argument("--networks", type=int, default=2, metavar="N", help="0: a new one for every draw")
    parser.add_argument("--width", type=int, default=64, metavar="N", help="of the networks")
    parser.add_argument("--dimensions", type=int, default=50, metavar="D", help="of the subspace; 0: none")
    parser.add_argument("--auxiliary-images", type=int, default=400, metavar="N", help="for the subspace")
    parser.add_argument("--images-per-class", type=int, default=10, metavar="N", help="that are optimised")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="of the optimisation")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="turns of each")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="of torch")


def _bench(options: argparse.Namespace) -> None:
    import torch

    from dpdd.scenarios.benchmarks.matching_loops import Bench

    torch.set_num_threads(options.threads)
    bench = Bench.of(options)
    bench.check()
    print("\n".join(_report(options, bench)))


def _report(options: argparse.Namespace, bench: Bench) -> Iterator[str]:
    yield (
        f"{options.dataset}, rate {options.rate:g}, {options.draws} draws, "
        f"networks: {options.networks or options.draws} of width {options.width}, "
        f"d = {options.dimensions} from {options.auxiliary_images} auxiliary images, "
        f"torch threads: {options.threads}, turns: {options.repeats}"
    )
    yield "sums and gradients agree"
    yield ""
    yield f"the silo's extraction: {bench.sampled} images"
    yield _rows(bench.extractions(), bench.sampled, options.repeats)
    yield ""
    images = options.steps * bench.images
    yield f"the optimisation: {options.steps} steps with {bench.images} images, {options.images_per_class} per class"
    yield _rows(bench.optimisations(), images, options.repeats)
    yield ""
    yield "Seconds are of the clock; CPU seconds add up all threads."


def _rows(programs: dict[str, Callable[[], object]], images: int, repeats: int) -> str:
    """A table of the programs' times, in turns; the first is ours."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            times[name].append(_timed(program))
    clock = {name: _median(taken, 0) for name, taken in times.items()}
    work = {name: _median(taken, 1) for name, taken in times.items()}
    ours = next(iter(programs))
    rows = []
    for name in programs:
        ratios = [] if name == ours else [f"{each[name] / each[ours]:.1f}" for each in (clock, work)]
        rows.append([name, f"{clock[name]:.2f}", f"{images / clock[name]:,.0f}", f"{work[name]:.2f}", *ratios])
        rows[-1] += [""] * (6 - len(rows[-1]))
    return table(["", "seconds", "images/s", "CPU seconds", "times ours", "in CPU time"], rows)


def _median(times: Sequence[tuple[float, float]], which: int) -> float:
    return statistics.median(each[which] for each in times)


def _timed(program: Callable[[], object]) -> tuple[float, float]:
    clock, work = time.perf_counter(), time.process_time()
    program()
    return time.perf_counter() - clock, time.process_time() - work
