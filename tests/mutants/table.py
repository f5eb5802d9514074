"""The table of results: a line for each mutant, and what it was made of, so that a later run can go on from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

COMMAND = "$ python -m tests.mutants --output docs/results/privacy-mutants.txt"
_ROW = re.compile(
    r"^(?P<name>\S+) +(?P<kind>\S.*?) {2,}(?P<verdict>\S+) +(?P<seconds>\d+) +(?P<digest>\w{8}) +(?P<test>.*)$"
)


@dataclass(frozen=True)
class Row:
    """A mutant's result; `verdict` is "caught", "SURVIVED" or "BROKEN"."""

    name: str
    kind: str
    verdict: str
    seconds: float
    digest: str
    test: str

    def __str__(self) -> str:
        return (
            f"{self.name:<52} {self.kind:<22}  {self.verdict:<8} {self.seconds:7.0f} {self.digest} {self.test}".rstrip()
        )


def read(path: Path) -> dict[str, Row]:
    """The rows of an earlier run, by name."""
    if not path.exists():
        return {}
    found = (_ROW.match(line) for line in path.read_text().splitlines())
    rows = [Row(**{**each.groupdict(), "seconds": float(each["seconds"])}) for each in found if each]
    return {row.name: row for row in rows}


def text(rows: Iterable[Row], notes: Iterable[str] = ()) -> str:
    """All of it, and what it comes to."""
    rows = list(rows)
    counted: Mapping[str, int] = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("caught", "SURVIVED", "BROKEN")
    }
    total = sum(row.seconds for row in rows)
    head = f"{'mutant':<52} {'kind':<22}  {'verdict':<8} {'seconds':>7} {'of':<8} the first test that failed"
    words = ", ".join(f"{count} {verdict.lower()}" for verdict, count in counted.items())
    end = f"{len(rows)} mutants in {total:.0f} s, one after the other: {words}"
    return "\n".join([COMMAND, head, *map(str, rows), end, *notes, ""])
