"""What an audit left in a run's folder (`audit.json`), as lines of a table: its figures as they are, whatever they are.

>>> audit_figures({"claimed_epsilon": 1.0, "builds": [{"passes": True, "noise": [{"scale": 1.01}, {"scale": 0.99}]}]})
[('claimed epsilon', 1.0), ('builds: passes', True), ('builds: noise 1: scale', 1.01), ('builds: noise 2: scale', 0.99)]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdd.server.report.html.table import Cell, figure

Value = float | str | bool
MOST, LONGEST = 60, 200


def audit_figures(facts: Mapping[str, Any], path: str = "") -> list[tuple[str, Value]]:
    """Numbers, words and truth values, at most so many, by where they stand; lists of bare numbers are left out."""
    found: list[tuple[str, Value]] = []
    for name, value in facts.items():
        where = f"{path}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            found += audit_figures(value, f"{where}: ")
        elif isinstance(value, list):
            parts = [each for each in value if isinstance(each, Mapping)]
            for number, part in enumerate(parts, start=1):
                found += audit_figures(part, f"{where} {number}: " if len(parts) > 1 else f"{where}: ")
        elif isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= LONGEST):
            found.append((where, value))
    return found[:MOST]


def audit_cell(value: Value) -> Cell:
    """One of them in a table."""
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    return Cell(value) if isinstance(value, str) else figure(float(value), f"{value:.6g}")
