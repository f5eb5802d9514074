"""Where two schemas of a table differ, in words: what a silo declares, and what it is asked for. Both are public.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> ward = Categorical(name="ward", categories=("heart", "lung"))
>>> ours = TableSchema(label="ward", columns=(Numeric(name="age", low=0, high=100), ward))
>>> theirs = TableSchema(label="ward", columns=(Numeric(name="age", low=0, high=90), ward))
>>> differences(theirs, ours)
[Difference(what="column 'age': high", theirs='90', ours='100')]
>>> first_difference(theirs, ours, "silo east", "the scenario")
"column 'age': high is 90 for silo east and 100 for the scenario"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpdd.common.data.table.columns import Column
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.files.untrusted import shown

MOST_LISTED = 6


@dataclass(frozen=True)
class Difference:
    """One thing that two schemas say differently."""

    what: str
    theirs: str
    ours: str


def differences(theirs: TableSchema | None, ours: TableSchema | None) -> list[Difference]:
    """All of them, the columns' names first; none where the schemas are the same."""
    if theirs is None or ours is None:
        if theirs is ours:
            return []
        return [Difference("columns", _declared(theirs), _declared(ours))]
    found = []
    if theirs.names != ours.names:
        found.append(Difference("columns", *_lists(theirs.names, ours.names)))
    if theirs.label != ours.label:
        found.append(Difference("label", _quoted(theirs.label), _quoted(ours.label)))
    known = {column.name: column for column in ours.columns}
    for column in theirs.columns:
        if column.name in known:
            found += _of_column(column, known[column.name])
    return found


def first_difference(theirs: TableSchema | None, ours: TableSchema | None, who: str, we: str) -> str | None:
    """A sentence for the first of them; None where there is none."""
    for found in differences(theirs, ours):
        verb = "are" if found.what.endswith(("columns", "categories")) else "is"
        return f"{found.what} {verb} {found.theirs} for {who} and {found.ours} for {we}"
    return None


def _of_column(theirs: Column, ours: Column) -> list[Difference]:
    where = f"column {_quoted(theirs.name)}"
    if theirs.type != ours.type:
        return [Difference(f"{where}: type", theirs.type, ours.type)]
    found = []
    for key in type(theirs).model_fields:
        one, other = getattr(theirs, key), getattr(ours, key)
        if one == other:
            continue
        texts = _lists(one, other) if key == "categories" else (_value(one), _value(other))
        found.append(Difference(f"{where}: {key}", *texts))
    return found


def _lists(theirs: tuple[str, ...], ours: tuple[str, ...]) -> tuple[str, str]:
    """Two lists, each from where they begin to differ."""
    start = next(
        (at for at, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other),
        min(len(theirs), len(ours)),
    )
    return _list(theirs, start), _list(ours, start)


def _list(names: tuple[str, ...], start: int) -> str:
    few = [_quoted(name) for name in names[start : start + MOST_LISTED]]
    more = len(names) - start - len(few)
    before = ["..."] if start else []
    after = [f"{more} more"] if more > 0 else []
    return f"{len(names)} ({', '.join([*before, *few, *after])})"


def _declared(schema: TableSchema | None) -> str:
    return "not declared" if schema is None else _list(schema.names, 0)


def _quoted(name: str) -> str:
    return repr(shown(name, 40))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else shown(value, 40)
