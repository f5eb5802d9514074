"""Every privacy mutant in turn: ``python -m tests.mutants [--only NAME ...] [--jobs N] [--output FILE]``.

The tree is copied, the checkout is never changed. Exit code 1 when a mutant survives, or is none. With `--output`, what
the file says already of the same mutant, code and tests is not tried again. ``--clean N`` runs the same tests on the
unbroken tree instead, N times in other orders and under other hash seeds: no alarm may be raised.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import table
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.trial import Copy, Outcome


def main(arguments: list[str] | None = None) -> int:
    """1 when a mutant survives, or when the unbroken tree raises an alarm."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Try every privacy mutant.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="mutants whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--output", type=Path, help="the table, from which a later run goes on")
    parser.add_argument("--clean", type=int, metavar="N", help="run the tests on the unbroken tree, N times")
    parser.add_argument("--first", type=int, default=0, help="the first seed of --clean")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not options.only or any(word in each.name for word in options.only)]
    if options.clean:
        return _clean(chosen, range(options.first, options.first + options.clean))
    known = {} if options.output is None else table.read(options.output)
    for each in chosen:
        each.applied()
    wanted = [each for each in chosen if not _is_known(each, known)]
    print(f"{len(wanted)} mutants to try, {len(chosen) - len(wanted)} known", flush=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(min(options.jobs, len(wanted))):
            copies.put(Copy(Path(scratch) / str(number)))

        def tried(mutant: Mutant) -> tuple[Mutant, Outcome]:
            copy = copies.get()
            try:
                return mutant, copy.try_out(mutant)
            finally:
                copies.put(copy)

        for mutant, outcome in pool.map(tried, wanted):
            verdict = "caught" if outcome.caught else "BROKEN" if outcome.broken else "SURVIVED"
            row = table.Row(mutant.name, mutant.kind, verdict, outcome.seconds, mutant.digest(), outcome.failed or "-")
            known[mutant.name] = row
            print(row, flush=True)
            if not outcome.caught:
                print(f"    {mutant.why}\n    {outcome.said or 'all of its tests pass'}", flush=True)
            elif options.only:
                print(f"    {outcome.said}", flush=True)
            _write(options.output, known)
    return 0 if all(known[each.name].verdict == "caught" for each in chosen) else 1


def _is_known(mutant: Mutant, known: dict[str, table.Row]) -> bool:
    row = known.get(mutant.name)
    return row is not None and (row.verdict, row.digest, row.kind) == ("caught", mutant.digest(), mutant.kind)


def _write(output: Path | None, known: dict[str, table.Row]) -> None:
    if output is not None:
        rows = [known[each.name] for each in MUTANTS if each.name in known]
        output.write_text(table.text(rows))


def _clean(chosen: list[Mutant], seeds: range) -> int:
    """The union of the tests that mutants name, on the code as it is."""
    tests = sorted({test for each in chosen for test in each.killed_by})
    alarms = 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = Copy(Path(scratch))
        for seed in seeds:
            shuffled = random.Random(seed).sample(tests, len(tests))
            outcome = copy.run(shuffled, {"PYTHONHASHSEED": str(seed)})
            alarms += bool(outcome.failed)
            said = f"ALARM: {outcome.failed}: {outcome.said}" if outcome.failed else "no alarm"
            print(f"run {seed}: {len(tests)} tests in {outcome.seconds:.0f} s: {said}", flush=True)
    print(f"{alarms} alarms in {len(seeds)} runs over the unbroken code", flush=True)
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
