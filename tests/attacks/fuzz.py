"""Damaged inputs for every decoder: ``python -m tests.attacks.fuzz --runs 100000 --seed 0``.

Each input is made from a real object (or from nothing), and is accepted or refused with an error that its decoder
documents: never with another exception, never without end, never in memory that the input does not pay for. A target's
inputs depend on the seed and its name alone; a finding is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.fuzz_targets import Target, targets

HEADROOM = 1 << 30
"""How much more address space the decoders may take than what was loaded before the first input."""
PATIENCE = 120.0
"""Seconds after which an input counts as endless; each takes milliseconds."""


@dataclass
class Outcome:
    """What became of a target's inputs."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)


def run(target: Target, runs: int, seed: int) -> Outcome:
    """Give `target` its inputs, one after another."""
    outcome, rng = Outcome(), random.Random(f"{seed} {target.name}")
    for number in range(runs):
        data = target.make(rng)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # ends the process even inside a library's own code
        try:
            _try(target, data, outcome)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            text = "".join(traceback.format_exception(error, limit=-6))
            outcome.findings.setdefault(where, f"{target.name}, input {number}: {data[:4000]!r}\n{text}")
        finally:
            faulthandler.cancel_dump_traceback_later()
    return outcome


def _try(target: Target, data: bytes, outcome: Outcome) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.decode(data)
    except target.errors as error:
        if isinstance(error.__cause__ or error.__context__, MemoryError):
            raise AssertionError("this input took all memory") from error
        text = str(error)
        if not (text and text.isprintable() and len(text) < 1000):
            raise AssertionError("the error is not one readable line") from error
        outcome.refused[type(error).__name__] += 1
    else:
        outcome.accepted += 1


def main(arguments: list[str] | None = None) -> int:
    """1 when an input was neither accepted nor refused as documented."""
    parser = argparse.ArgumentParser(description="Damaged inputs for every decoder.")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one target")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        chosen = [each for each in targets(Path(scratch)) if options.only in (None, each.name)]
        before = _status("VmHWM")
        resource.setrlimit(resource.RLIMIT_AS, ((_status("VmSize") << 10) + HEADROOM,) * 2)
        started, findings, total = time.monotonic(), list[str](), 0
        for number, target in enumerate(chosen):
            runs = options.runs * (number + 1) // len(chosen) - options.runs * number // len(chosen)
            outcome = run(target, runs, options.seed)
            refused = ", ".join(f"{count} {name}" for name, count in sorted(outcome.refused.items()))
            print(f"{target.name:18}{runs:7} inputs: {outcome.accepted:6} accepted; refused: {refused}", flush=True)
            findings += [f"{where}\n{text}" for where, text in outcome.findings.items()]
            total += runs
    grown = (_status("VmHWM") - before) / 1024
    print(f"{total} inputs in {time.monotonic() - started:.0f} s; {len(findings)} findings")
    print(f"peak memory: {_status('VmHWM') / 1024:.0f} MB, {grown:.0f} MB more than before the first input", flush=True)
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


def _status(name: str) -> int:
    """A figure of this process in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    sys.exit(main())
