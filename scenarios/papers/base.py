"""What a paper's module provides for `dpdd-sim reproduce`, and what it gets back: cells to run, and their outcomes."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dpdd.common.errors import ConfigError

DELTA = 1e-5
"""Of every cell, as in the papers."""


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
    """What one run of a cell gave: accuracies by learner, the silos' ε, the bytes that the largest release(s) had.

    Of tables, `means` over learners by metric: of the dataset (under no name), and of further ones by their names.
    """

    accuracy: Mapping[str, float]
    epsilon: float | None
    bytes_per_silo: int
    seconds: float
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


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


def add_judge(parser: argparse.ArgumentParser) -> None:
    """The option for the settings of the learner that figures of ours are compared with a paper's by."""
    help_text = "settings of the learner convnet-dd (width=64 runs=1, say, for less time)"
    parser.add_argument("--judge", nargs="+", default=[], metavar="KEY=VALUE", help=help_text)


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Settings from the command line.

    >>> pairs(["steps=600", "start=auxiliary"])
    {'steps': '600', 'start': 'auxiliary'}
    """
    split = [word.partition("=") for word in words]
    if any(not (key and equals and value) for key, equals, value in split):
        raise ConfigError(f"settings are given as KEY=VALUE, not {' '.join(words)!r}")
    return {key: value for key, _, value in split}


def toml_table(values: Mapping[str, object]) -> str:
    """Settings as lines of TOML: numbers, truth values and lists as they are, tables in a line, the rest as strings.

    >>> print(toml_table({"steps": "600", "start": "auxiliary", "flips": "true", "of": {"rounds": 3}, "who": ["me"]}))
    steps = 600
    start = "auxiliary"
    flips = true
    of = { rounds = 3 }
    who = ['me']
    """
    return "\n".join(f"{key} = {_toml(value)}" for key, value in values.items())


def _toml(value: object) -> str:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return value if value in ("true", "false") else f'"{value}"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return str(value)


def scenario(
    name: str,
    options: argparse.Namespace,
    epsilon: float,
    method: str,
    settings: Mapping[str, object],
    images_per_class: int,
    synthesis: Mapping[str, object],
    evaluation: Mapping[str, object],
) -> str:
    """A cell's scenario on `options.dataset` in `options.silos`, without mirror images for digits.

    `evaluation` is that section, judges' settings (`options.judge`) left out.
    """
    flips = {"flips": "false"} if options.dataset == "mnist" else {}
    return f"""\
name = "{name}"
seed = {{seed}}
[data]
dataset = "{options.dataset}"
silos = {options.silos}
[privacy]
epsilon = {epsilon!r}
delta = {DELTA!r}
[method]
name = "{method}"
[method.settings]
{toml_table(settings)}
[synthesis]
images_per_class = {images_per_class}
[synthesis.settings]
{toml_table(synthesis)}
[evaluation]
{toml_table({**evaluation, **flips})}
[evaluation.convnet_dd]
{toml_table(pairs(options.judge))}
"""


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
