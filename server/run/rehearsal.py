"""What a dry round told: who would answer, at which cost, and where a silo's declarations differ from the scenario's.

>>> from dpdd.common.wire.plan import Declared
>>> theirs = Declared(("ant", "cow"), (1, 8, 8), (0.0, 255.0), "exact")
>>> print(*differences("east", theirs, Schema(("ant", "bee"), (1, 8, 8))), sep="\\n")
classes of east:     ant, cow
of the scenario:     ant, bee
only east has:       cow
only the scenario:   bee
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpdd.common.cli import table
from dpdd.common.data.table.differences import differences as table_differences
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.wire.plan import Declared, PlanReport

MOST_SHOWN = 12


@dataclass(frozen=True)
class Schema:
    """What the scenario says of every record; `fit` None where it leaves that to the silos."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    fit: str | None = None
    table: TableSchema | None = None


@dataclass(frozen=True)
class Word:
    """What is known of a silo after a dry round: its report, or why there is none.

    `released` is a silo whose release is in the store already: it was not asked.
    """

    silo: str
    report: PlanReport | None = None
    silence: str = ""
    released: bool = False

    @property
    def willing(self) -> bool:
        """Whether a release of this silo is here, or can be expected."""
        return self.released or (self.report is not None and self.report.would_answer)

    @property
    def no(self) -> str | None:
        """Why the silo would refuse, in words; None where it would not, or where it said nothing."""
        refusal = None if self.report is None else self.report.refusal
        return None if refusal is None else f"would refuse ({refusal.reason.words}): {refusal.message}"

    @property
    def state(self) -> str:
        """In a few words, for the table."""
        if self.released:
            return "released already"
        if self.report is None:
            return "no report"
        if self.report.refusal is not None:
            return f"would refuse ({self.report.refusal.reason.words})"
        if self.report.paid:
            return "would answer (paid already)"
        return "would ask its operator" if self.report.asks_operator else "would answer"


def plan_table(words: Iterable[Word]) -> str:
    """One row for all silos that said the same."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for word in sorted(words, key=lambda word: word.silo):
        rows.setdefault(_cells(word), []).append(word.silo)
    header = ["silo", "dry round", "ε", "δ", "MB", "software"]
    return table(header, [[_few(silos, 5), *cells] for cells, silos in rows.items()])


def differences(silo: str, theirs: Declared, ours: Schema) -> list[str]:
    """Both lists, where the silo's classes, shape or fit are not the scenario's, and what differs; one line each."""
    lines: dict[str, str] = {}
    if theirs.table is not None or ours.table is not None:
        found = table_differences(theirs.table, ours.table)
        for each in found[:MOST_SHOWN]:
            lines[f"{each.what} of {silo}:"] = each.theirs
            lines[f"{each.what} of the scenario:"] = each.ours
        if len(found) > MOST_SHOWN:
            lines["and"] = f"{len(found) - MOST_SHOWN} more differences"
        return _aligned(lines)
    if theirs.classes != ours.classes:
        lines[f"classes of {silo}:"] = _few(theirs.classes)
        lines["of the scenario:"] = _few(ours.classes)
        more = [name for name in theirs.classes if name not in ours.classes]
        fewer = [name for name in ours.classes if name not in theirs.classes]
        if more:
            lines[f"only {silo} has:"] = _few(more)
        if fewer:
            lines["only the scenario:"] = _few(fewer)
        if not (more or fewer):
            lines["the same names:"] = "in another order"
    if theirs.shape != ours.shape:
        lines[f"shape of {silo}:"] = _extents(theirs.shape)
        lines["shape of the scenario:"] = _extents(ours.shape)
    if ours.fit is not None and theirs.fit != ours.fit:
        lines[f"fit of {silo}:"] = theirs.fit
        lines["fit of the scenario:"] = ours.fit
    return _aligned(lines)


def _aligned(lines: dict[str, str]) -> list[str]:
    width = max(map(len, lines), default=0)
    return [f"{name.ljust(max(width, 20))} {value}" for name, value in lines.items()]


def unlike_fits(words: Iterable[Word]) -> str | None:
    """A sentence where silos that would answer fit images of another size in different ways; None where they do not."""
    fits: dict[str, list[str]] = {}
    for word in sorted(words, key=lambda word: word.silo):
        if word.report is not None and word.willing and word.report.declared.fit != "exact":
            fits.setdefault(word.report.declared.fit, []).append(word.silo)
    if len(fits) < 2:
        return None
    ways = "; ".join(f"{_few(silos, 5)} by {fit}" for fit, silos in sorted(fits.items()))
    return f"silos fit images of another size in different ways: {ways}"


def shortage(words: Sequence[Word], quorum: int, absence: str) -> str | None:
    """Why nobody is to be asked to spend, in one sentence; None where enough silos would answer.

    `absence` is said of silos that reported nothing.
    """
    needed, willing = min(quorum, max(len(words), 1)), sum(word.willing for word in words)
    if willing >= needed:
        return None
    others = {word.silo: word.no or word.silence or absence for word in words if not word.willing}
    reasons = "; ".join(f"{silo}: {why}" for silo, why in sorted(others.items()))
    return (
        f"{willing} of {len(words)} silos would answer, and the quorum is {needed} "
        f"({reasons or 'no silo is connected'}); nobody was asked to spend anything"
    )


def _cells(word: Word) -> tuple[str, ...]:
    report = word.report
    if report is None:
        return word.state, "–", "–", "–", ""
    if report.cost is None:
        return word.state, "–", "–", "–", report.software
    cost = report.cost
    epsilon = "∞" if math.isinf(cost.epsilon) else f"{cost.epsilon:g}"
    return word.state, epsilon, f"{cost.delta:g}", f"{cost.bytes / 1e6:.2f}", report.software


def _few(names: Sequence[str], most: int = MOST_SHOWN) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _extents(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
