"""The picture of a table's marginals: a panel for every column, bars by class, synthetic filled and real outlined.

Classes differ in lightness as well as in colour, and outlined bars are paler, so that it reads in grey, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageColor, ImageDraw, ImageFont

from dpdd.common.data.table.schema import TableSchema
from dpdd.server.report.marginals import MISSING, MOST_PANELS, Bar, Codes, Panel, Shares, cut_at, panels, shown_classes

SCALE = 2
"""Pixels of every unit below."""
ACROSS, MARGIN, GAP = 3, 20, 22
WIDTH, HEIGHT = 300, 196
_TITLE, _LABELS, _FIGURES, _AXIS, _FOOT = 26, 106, 62, 30, 18
_INK, _FAINT, _RULE = "#1c1c1c", "#6b6b6b", "#dddddd"
_COLOURS = ("#1f4e79", "#ee9a3a", "#7a1f3d", "#86c5a4", "#4b3b78", "#b9b9b9")


def picture(schema: TableSchema, synthetic: Codes, real: Codes | None, name: str = "") -> Image.Image:
    """The whole picture; `real` are public rows, if there are any."""
    drawn = panels(schema, synthetic, real)
    rows = [drawn[at : at + ACROSS] for at in range(0, len(drawn), ACROSS)]
    heights = [max(map(_height, row)) for row in rows]
    counts = (len(synthetic), None if real is None else len(real))
    width = 2 * MARGIN + ACROSS * WIDTH + (ACROSS - 1) * GAP
    head = _legend(_Pen(width, 0), schema, counts, name)  # once on nothing, to see how high it is
    pen = _Pen(width, head + sum(heights) + GAP * (len(rows) - 1) + MARGIN)
    top = _legend(pen, schema, counts, name)
    for row, height in zip(rows, heights, strict=True):
        for at, panel in enumerate(row):
            left = MARGIN + at * (WIDTH + GAP)
            _heading(pen, panel, left, top)
            (_upright if panel.ends else _lying)(pen, panel, left, top + _TITLE)
        top += height + GAP
    return pen.image


class _Pen:
    """Draws in units of `SCALE` pixels."""

    def __init__(self, width: float, height: float) -> None:
        self.image = Image.new("RGB", (round(width * SCALE), max(1, round(height * SCALE))), "white")
        self._draw = ImageDraw.Draw(self.image)
        self._fonts: dict[float, Any] = {}

    def font(self, size: float) -> Any:
        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * SCALE)
        return self._fonts[size]

    def length(self, text: str, size: float) -> float:
        return float(self._draw.textlength(text, font=self.font(size))) / SCALE

    def text(self, x: float, y: float, text: str, size: float = 11, fill: str = _INK, anchor: str = "ls") -> None:
        self._draw.text((x * SCALE, y * SCALE), text, font=self.font(size), fill=fill, anchor=anchor)

    def fitting(self, text: str, size: float, width: float) -> str:
        """`text`, cut so that it is at most so wide."""
        if self.length(text, size) <= width:
            return text
        while text and self.length(f"{text}…", size) > width:
            text = text[:-1]
        return f"{text.rstrip()}…"

    def line(self, x0: float, y0: float, x1: float, y1: float, fill: str = _RULE, width: float = 0.5) -> None:
        self._draw.line([(x0 * SCALE, y0 * SCALE), (x1 * SCALE, y1 * SCALE)], fill, max(1, round(width * SCALE)))

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: str, *, outlined: bool) -> None:
        """A filled box, or a pale one with an outline; one that is thinner than a pixel is left out."""
        corners = [round(x0 * SCALE), round(y0 * SCALE), round(x1 * SCALE) - 1, round(y1 * SCALE) - 1]
        if corners[2] < corners[0] or corners[3] < corners[1]:
            return
        self._draw.rectangle(corners, _pale(colour) if outlined else colour, colour if outlined else None)


def _pale(colour: str) -> str:
    red, green, blue = (round(255 - 0.28 * (255 - part)) for part in ImageColor.getrgb(colour)[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


def _legend(pen: _Pen, schema: TableSchema, counts: tuple[int, int | None], name: str) -> float:
    """Title and classes; returns how high they are."""
    rows, real = counts
    words = f"{rows:,} synthetic rows (filled)"
    of = f"the first {MOST_PANELS} of {len(schema.columns)} columns; " if len(schema.columns) > MOST_PANELS + 1 else ""
    note = f"{of}shares of all rows by {schema.label}; a bar that is cut has its share in figures"
    if real is not None:
        words += f" beside {real:,} public test rows (outlined)"
        note += "; TV is the total variation distance between both, from 0 to 1"
    width = pen.image.width / SCALE - 2 * MARGIN
    pen.text(MARGIN, MARGIN + 14, pen.fitting(f"{name}: {words}" if name else words, 16, width), 16)
    pen.text(MARGIN, MARGIN + 31, pen.fitting(note, 11, width), 11, _FAINT)
    x, y = float(MARGIN), MARGIN + 40.0
    for colour, label in zip(_COLOURS, shown_classes(schema)[0], strict=False):
        text = pen.fitting(label, 11, 150)
        swatches = 11 if real is None else 23
        wide = swatches + 6 + pen.length(text, 11)
        if x > MARGIN and x + wide > MARGIN + width:
            x, y = float(MARGIN), y + 18
        pen.box(x, y, x + 11, y + 12, colour, outlined=False)
        if real is not None:
            pen.box(x + 12, y, x + 23, y + 12, colour, outlined=True)
        pen.text(x + swatches + 6, y + 10, text, 11)
        x += wide + 18
    return y + 12 + GAP


def _height(panel: Panel) -> float:
    """What a panel takes."""
    return HEIGHT if panel.ends else _TITLE + _each(panel) * len(panel.bars)


def _each(panel: Panel) -> float:
    """How high a row of a category is."""
    return min(26.0, (HEIGHT - _TITLE) / len(panel.bars))


def _heading(pen: _Pen, panel: Panel, left: float, top: float) -> None:
    distance = "" if panel.distance is None else f"TV {panel.distance:.3f}"
    room = WIDTH - pen.length(distance, 10.5) - 10
    pen.text(left, top + 14, pen.fitting(panel.title, 13, room), 13)
    pen.text(left + WIDTH, top + 14, distance, 10.5, _FAINT, "rs")
    pen.line(left, top + 19, left + WIDTH, top + 19)


def _upright(pen: _Pen, panel: Panel, left: float, top: float) -> None:
    """A histogram: numbers and days from left to right, missing ones apart."""
    limit, high = cut_at(panel.bars), HEIGHT - _TITLE - _FOOT
    start, floor = left + _AXIS, top + high
    apart = panel.bars[-1].name == MISSING and len(panel.bars) == len(panel.ends)
    slots = len(panel.bars) + 0.7 * apart
    each = (WIDTH - _AXIS) / slots
    tick = _tick(limit)
    for level in range(1, math.floor(limit / tick + 1e-9) + 1):
        y = floor - (high - 14) * level * tick / limit
        pen.line(start, y, left + WIDTH, y)
        pen.text(start - 4, y + 3, _percent(level * tick), 9, _FAINT, "rs")
    for at, bar in enumerate(panel.bars):
        x = start + each * (at + 0.7 * (apart and at == len(panel.bars) - 1))
        half = each / 2 if bar.real is not None else each * 0.86
        for side, shares in enumerate(_both(bar)):
            low = x + each * 0.07 + side * (half - each * 0.04)
            _stack(pen, shares, limit, (low, floor), (half - each * 0.1, high - 14), upright=True, outlined=side == 1)
        if bar.total > limit * 1.001:
            anchor = "ls" if at < len(panel.bars) / 2 else "rs"
            pen.text(x if anchor == "ls" else x + each, floor - high + 9, f"{_figures(bar)} %", 9, _INK, anchor)
    pen.line(start, floor, left + WIDTH, floor, _FAINT)
    last, room = len(panel.ends) - 1, left + WIDTH
    if apart:
        pen.text(left + WIDTH, floor + 12, MISSING, 9, _FAINT, "rs")
        room -= pen.length(MISSING, 9) + 6
    for at in sorted({round(last * part / 4) for part in range(5)}):
        x, text = start + each * at, panel.ends[at]
        anchor = "ls" if at == 0 else "rs" if at == last and not apart else "ms"
        if x + pen.length(text, 9) / 2 <= room or anchor == "rs":
            pen.text(x, floor + 12, text, 9, _FAINT, anchor)


def _lying(pen: _Pen, panel: Panel, left: float, top: float) -> None:
    """A row for every category: its name, bars, and the shares in figures."""
    limit, room = cut_at(panel.bars), WIDTH - _LABELS - _FIGURES
    each = _each(panel)
    for at, bar in enumerate(panel.bars):
        y, start = top + each * at, left + _LABELS
        size = min(11.0, each * 0.72)
        pen.text(start - 6, y + each * 0.5 + size * 0.35, pen.fitting(bar.name, size, _LABELS - 8), size, _INK, "rs")
        tall = each * (0.8 if bar.real is None else 0.41)
        for side, shares in enumerate(_both(bar)):
            corner = (start, y + each * 0.08 + side * each * 0.42)
            _stack(pen, shares, limit, corner, (room, tall), upright=False, outlined=side == 1)
        pen.text(left + WIDTH, y + each * 0.5 + size * 0.33, _figures(bar), min(9.5, size), _FAINT, "rs")
    pen.line(left + _LABELS, top, left + _LABELS, top + each * len(panel.bars), _FAINT)


def _stack(
    pen: _Pen,
    shares: Shares,
    limit: float,
    corner: tuple[float, float],
    size: tuple[float, float],
    *,
    upright: bool,
    outlined: bool,
) -> None:
    """Classes end to end, from `corner`: to the right, or upwards; what is longer than `limit` is cut, and marked."""
    total, (x, y), (wide, high) = math.fsum(shares), corner, size
    squeeze = min(1.0, limit / total) if total > 0.0 else 1.0
    done = 0.0
    for colour, share in zip(_COLOURS, shares, strict=False):
        begin, end = (each * squeeze / limit for each in (done, done + share))
        done += share
        if upright:
            pen.box(x, y - high * end, x + wide, y - high * begin, colour, outlined=outlined)
        else:
            pen.box(x + wide * begin, y, x + wide * end, y + high, colour, outlined=outlined)
    if squeeze < 0.999:
        for at in (0.80, 0.84):
            if upright:
                pen.line(x - 1, y - high * at, x + wide + 1, y - high * at - 3, "white", 1.5)
            else:
                pen.line(x + wide * at, y + high + 1, x + wide * at + 4, y - 1, "white", 1.5)


def _both(bar: Bar) -> Sequence[Shares]:
    return [bar.synthetic] if bar.real is None else [bar.synthetic, bar.real]


def _figures(bar: Bar) -> str:
    return " | ".join(f"{100.0 * math.fsum(shares):.1f}" for shares in _both(bar))


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g} %"


def _tick(limit: float) -> float:
    """A round step that divides the axis in two to five."""
    size: float = 10.0 ** math.floor(math.log10(limit))
    return next(step * size for step in (0.2, 0.5, 1.0, 2.0) if limit / (step * size) <= 5.0)
