"""`dpdd-sim compare`: run a grid of cells, as far as they have not run, and write its page."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import Commands, table
from dpdd.scenarios.options import whole_number

if TYPE_CHECKING:
    from dpdd.scenarios.compare.cells import Cells, Ended
    from dpdd.scenarios.compare.grid import Cell, Grid
    from dpdd.scenarios.compare.results import Results

REPORT, RESULTS, LINES = "report.html", "results.json", "results.csv"


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        "compare",
        _compare,
        "compare scenarios over ε, silos, splits and seeds, to one report.html",
        "Every cell is a run in a folder of its own: a finished one is reused, an unfinished one goes on, and one that "
        "fails stops no other. Noise comes from the seeds, so that it can be repeated: it protects nobody.",
    )
    parser.add_argument(
        "scenarios", nargs="+", metavar="SCENARIO", help="shipped names or .toml files; or a grid's file"
    )
    parser.add_argument("--epsilon", type=float, nargs="+", metavar="E", help="of every silo (inf: without noise)")
    parser.add_argument("--silos", type=whole_number, nargs="+", metavar="N", help="that share the records")
    parser.add_argument(
        "--partition",
        nargs="+",
        metavar="SPLIT",
        help="iid, group, dirichlet:ALPHA or pathological:CLASSES_PER_SILO",
    )
    parser.add_argument("--seeds", type=whole_number, metavar="N", help="runs of every row (if not 1)")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="values for every cell, by a scenario's dotted keys: synthesis.images_per_class=10",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), metavar="FOLDER", help="the grid's folder")
    parser.add_argument("--jobs", type=whole_number, metavar="N", help="cells at a time (if not one per processor)")
    parser.add_argument(
        "--only", nargs="+", metavar="ROW", help="only these rows of the grid, as the report names them"
    )
    parser.add_argument("--fresh", action="store_true", help="remove what is in the folder, and start over")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print results.json instead of a table")


def _compare(options: argparse.Namespace) -> None:
    from dpdd.common.cli import print_json
    from dpdd.common.errors import ConfigError, DpddError
    from dpdd.common.progress import Console
    from dpdd.scenarios.compare.cells import Cells, start_over
    from dpdd.scenarios.compare.results import as_json, results_of

    cells = _grid(options).cells()
    chosen = [cell for cell in cells if not options.only or cell.row in options.only]
    if options.only and (stranger := sorted(set(options.only) - {cell.row for cell in cells})):
        rows = ", ".join(dict.fromkeys(cell.row for cell in cells))
        raise ConfigError(f"--only names {stranger[0]!r}; the rows are {rows}")
    if options.fresh:
        start_over(options.out)
    every, asked = Cells(options.out, cells), Cells(options.out, chosen)
    every.prepare()
    asked.ended = every.ended
    asked.forget_failures()
    jobs = min(options.jobs or len(os.sched_getaffinity(0)), max(len(chosen), 1))
    console, typed = Console(quiet=options.quiet or options.json), _typed(options)
    progress = _Progress(console, chosen, every.ended, jobs)
    progress.start()

    def told(cell: Cell, ended: Ended) -> None:
        progress(cell, ended)
        write(every, options.out, typed)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the cells, too, and writes what there is
    try:
        asked.run(jobs, told)
    finally:
        signal.signal(signal.SIGTERM, before)
        write(every, options.out, typed)
    results = results_of(every)
    if options.json:
        print_json(as_json(results, every))
    else:
        print(summary(results, options.out))
    _, failed, _ = results.counts
    if failed:
        raise DpddError(
            f"{failed} of {len(cells)} cells failed; the report says why, and running again tries them again"
        )


def _grid(options: argparse.Namespace) -> Grid:
    """The grid of a file, or of the options; what options say goes before what the file says."""
    from dpdd.common.config import read_toml
    from dpdd.common.errors import ConfigError
    from dpdd.scenarios.compare.grid import grid_of, setting

    values: dict[str, Any] = {"scenarios": options.scenarios}
    where = "compare"
    first = Path(options.scenarios[0])
    if len(options.scenarios) == 1 and first.suffix == ".toml" and "scenarios" in (found := read_toml(first)):
        values, where = found, str(first)
        values["scenarios"] = [_beside(first.parent, each) for each in values["scenarios"]]
    given = {
        "epsilon": options.epsilon,
        "silos": options.silos,
        "partitions": options.partition,
        "seeds": options.seeds,
    }
    values |= {key: value for key, value in given.items() if value is not None}
    if options.set:
        if not isinstance(values.setdefault("set", {}), Mapping):
            raise ConfigError(f"{where}: set is a table of dotted keys")
        values["set"] = {**values["set"], **dict(setting(word) for word in options.set)}
    return grid_of(values, where)


def _beside(folder: Path, line: Any) -> Any:
    """A scenario of a grid's file: paths are relative to that file."""
    if isinstance(line, Mapping) and isinstance(line.get("scenario"), str):
        return {**line, "scenario": _beside(folder, line["scenario"])}
    if isinstance(line, str) and line.endswith(".toml") and not Path(line).is_absolute():
        return str(folder / line)
    return line


def _typed(options: argparse.Namespace) -> str:
    """The command that makes this grid: without what only says how it is run."""
    words = ["dpdd-sim", "compare", *options.scenarios]
    for name, values in (
        ("--epsilon", options.epsilon and [f"{each:g}" for each in options.epsilon]),
        ("--silos", options.silos),
        ("--partition", options.partition),
        ("--seeds", options.seeds and [options.seeds]),
        ("--set", options.set),
        ("--out", [options.out]),
    ):
        words += [name, *map(str, values)] if values else []
    return shlex.join(words)


def write(cells: Cells, folder: Path, typed: str) -> None:
    """Write the page, and the figures behind it."""
    from dpdd.common.files.atomic import write_atomically
    from dpdd.scenarios.compare.page import compare_page
    from dpdd.scenarios.compare.results import as_csv, as_json, results_of

    results = results_of(cells)
    text = json.dumps(as_json(results, cells), indent=2, ensure_ascii=False)
    write_atomically(folder / RESULTS, f"{text}\n".encode())
    write_atomically(folder / LINES, as_csv(results).encode())
    write_atomically(folder / REPORT, compare_page(results, cells, folder.name, typed).encode())


def summary(results: Results, folder: Path) -> str:
    """The first table of the report, for a terminal."""
    from dpdd.server.report.html.words import bytes_in_words, seconds_in_words, spread_in_words

    names = list(dict.fromkeys(name for row in results.rows for name in row.scores))[:4]
    rows = []
    for row in results.rows:
        cell, scores = row.cell, row.scores
        figures = [spread_in_words(scores[n].mean, scores[n].deviation) if n in scores else "–" for n in names]
        spent = "–" if row.seconds is None else seconds_in_words(row.seconds)
        epsilon = f"{cell.stated_epsilon:g}".replace("inf", "∞")
        done = f"{len(row.runs)} of {len(row.measured) + row.waiting}"
        shape = [cell.line.name, cell.method, epsilon, str(cell.stated_silos), cell.stated_partition, done]
        rows.append([*shape, *figures, bytes_in_words(row.bytes_per_silo), spent])
    header = ["scenario", "method", "ε", "silos", "split", "seeds", *names, "sent per silo", "processor"]
    lines = [table(header, rows), ""]
    lines += [f"failed: {row.cell.row}, seed {seed}: {why}" for row in results.rows for seed, why in row.failures]
    lines += [
        "Test accuracy in %, mean and deviation over seeds. Noise came from seeds: it protects nobody.",
        f"the report: {folder / REPORT} (figures: {RESULTS}, {LINES})",
    ]
    return "\n".join(lines)


class _Progress:
    """A line for every cell that ends, with an estimate of the time left."""

    def __init__(self, console: Any, cells: Sequence[Cell], ended: Mapping[str, Ended], jobs: int) -> None:
        self._console, self._cells, self._ended, self._jobs = console, cells, ended, jobs

    def start(self) -> None:
        """Say what there is to do."""
        left = sum(cell.key not in self._ended for cell in self._cells)
        reused = len(self._cells) - left
        what = f"{len(self._cells)} cell{'s' if len(self._cells) != 1 else ''}, {reused} finished already"
        self._console.say(f"{what}; {left} to run, {self._jobs} at a time{self._estimate()}")

    def __call__(self, cell: Cell, ended: Ended) -> None:
        """A cell ended."""
        from dpdd.common.progress import duration

        done = sum(each.key in self._ended for each in self._cells)
        end = f"FAILED: {ended.failure}" if ended.failure is not None else f"finished in {duration(ended.seconds)}"
        self._console.say(f"  [{done}/{len(self._cells)}] {time.strftime('%H:%M')} {cell.key}: {end}{self._estimate()}")

    def _estimate(self) -> str:
        """From cells of the same row where there are any, otherwise from the mean of all."""
        from dpdd.common.progress import duration

        left = [cell for cell in self._cells if cell.key not in self._ended]
        if not left or (seconds := estimate(left, self._cells, self._ended, self._jobs)) is None:
            return ""
        return f"; about {duration(seconds)} left"


def estimate(left: Sequence[Cell], cells: Sequence[Cell], ended: Mapping[str, Ended], jobs: int) -> float | None:
    """Seconds until the cells that are `left` have run; None while none has."""
    known: dict[str, list[float]] = {}
    for cell in cells:
        if cell.key in ended and ended[cell.key].failure is None:
            known.setdefault(cell.row, []).append(ended[cell.key].seconds)
    if not known:
        return None
    everything = [seconds for own in known.values() for seconds in own]
    mean = sum(everything) / len(everything)
    total = sum(sum(known[cell.row]) / len(known[cell.row]) if cell.row in known else mean for cell in left)
    return total / min(jobs, len(left))
