"""What a paper's module provides for `dpdd-sim reproduce`, and what it gets back: cells to run, and their outcomes."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Cell:
    """One setting: a scenario, for which `{seed}` is still to be filled in.

    `like` is the key of an earlier cell that asks the same of the same silos: its releases are used again.
    """

    key: str
    title: str
    scenario: str
    like: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one run of a cell gave: accuracies by learner, the silos' ε, the bytes that the largest release(s) had."""

    accuracy: Mapping[str, float]
    epsilon: float | None
    bytes_per_silo: int
    seconds: float


Outcomes = Mapping[str, Sequence[Outcome]]
"""Of every cell, by its key: one per seed."""


class Paper(Protocol):
    """What a paper's module provides."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Options of its own."""

    def cells(self, options: argparse.Namespace) -> list[Cell]:
        """The settings to run."""

    def report(self, options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
        """Our rows and the paper's."""


def spread(values: Sequence[float | None]) -> str:
    """Mean and deviation in %.

    >>> spread([0.811, 0.815]), spread([0.5]), spread([None])
    ('81.3 ± 0.3', '50.0', '–')
    """
    known = [100.0 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.fmean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")


def stated_epsilon(outcomes: Sequence[Outcome]) -> str:
    """What the releases say that they cost."""
    return "∞" if outcomes[0].epsilon is None else f"{outcomes[0].epsilon:g}"


def kilobytes_per_silo(outcomes: Sequence[Outcome]) -> str:
    """The largest releases of all seeds."""
    return f"{max(outcome.bytes_per_silo for outcome in outcomes) / 1000.0:,.1f}"
