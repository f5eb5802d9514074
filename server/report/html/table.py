"""Tables that sort where scripts run, and are tables where none do.

A row may have lines below it that belong to it (the command that makes it): they move with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdd.server.report.html.markup import Child, Html, element, join


@dataclass(frozen=True)
class Cell:
    """What is shown, and by which number it is sorted: cells without one are sorted by their text."""

    shown: Child
    number: float | None = None


@dataclass(frozen=True)
class Row:
    """Cells, what stands below them over the whole width, and whether it is about something that went wrong."""

    cells: Sequence[Cell | str]
    below: Child = None
    failed: bool = False


def figure(value: float | None, shown: str) -> Cell:
    """A number as it is shown; one that is not known is sorted last."""
    return Cell(shown, value)


def table(caption: Child, header: Sequence[str], rows: Sequence[Row], *, sorts: bool = True) -> Html:
    """The table below its caption, in a frame that scrolls by itself where it is wider than the page."""
    numeric = [_is_numeric(rows, column) for column in range(len(header))]
    heads = [
        element("th", title, scope="col", class_="number" if right else None)
        for title, right in zip(header, numeric, strict=True)
    ]
    bodies = [_body(row, numeric, header) for row in rows]
    whole = element(
        "table",
        element("thead", element("tr", heads)),
        bodies,
        class_="sortable" if sorts and len(rows) > 1 else None,
    )
    said = caption if isinstance(caption, str) and caption else "Table"
    frame = element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=str(said))
    return join([element("p", caption, class_="caption") if caption else None, frame])


def _is_numeric(rows: Sequence[Row], column: int) -> bool:
    cells = [row.cells[column] for row in rows if column < len(row.cells)]
    return bool(cells) and any(isinstance(cell, Cell) and cell.number is not None for cell in cells)


def _body(row: Row, numeric: Sequence[bool], header: Sequence[str]) -> Html:
    cells: list[Html] = []
    for column, cell in enumerate(row.cells):
        wide = str(len(header) - column) if column == len(row.cells) - 1 and len(row.cells) < len(header) else None
        each = cell if isinstance(cell, Cell) else Cell(cell)
        cells.append(
            element(
                "th" if column == 0 else "td",
                each.shown,
                scope="row" if column == 0 else None,
                colspan=wide,
                class_="number" if numeric[column] and wide is None else None,
                data_number=None if each.number is None else repr(float(each.number)),
            )
        )
    below = element("tr", element("td", row.below, colspan=str(len(header))), class_="below") if row.below else None
    return element("tbody", element("tr", cells), below, class_="failed" if row.failed else None)
