"""Charts as SVG inside the page: points over a logarithmic axis, told apart by marks and dashes beside colours.

>>> ticks(0.62, 0.91)
[0.6, 0.7, 0.8, 0.9, 1.0]
>>> decades(40.0, 2500.0)
[10.0, 100.0, 1000.0, 10000.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpdd.server.report.html.markup import Html, element

WIDTH, HEIGHT = 520, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 18, 14, 46
_RADIUS = 8.0
COLOURS = 8
_DASHES = (None, "7 4", "2 3", "9 3 2 3", "12 5", "4 2", "1 4", "9 3 2 3 2 3")
_MARKS: tuple[Callable[[float, float, float], str], ...] = (
    lambda x, y, r: _ring(x, y, r),
    lambda x, y, r: _path((x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)),
    lambda x, y, r: _path((x, y - 1.25 * r), (x + 1.2 * r, y + r), (x - 1.2 * r, y + r)),
    lambda x, y, r: _path((x, y - 1.35 * r), (x + 1.35 * r, y), (x, y + 1.35 * r), (x - 1.35 * r, y)),
    lambda x, y, r: _path((x - 1.2 * r, y - r), (x + 1.2 * r, y - r), (x, y + 1.25 * r)),
)


@dataclass(frozen=True)
class Point:
    """Where a point is, how far its deviation reaches, and what it is; x is positive, or infinite."""

    x: float
    y: float
    spread: float
    words: str


@dataclass(frozen=True)
class Series:
    """Points that belong together; `number` chooses marks, dashes and colour."""

    name: str
    points: Sequence[Point]
    number: int
    joined: bool = True


@dataclass(frozen=True)
class Reference:
    """A point that somebody else published, under a letter that a list below the chart explains."""

    letter: str
    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Axes:
    """What the axes are; `at` are the values of x that are named (decades, where none are).

    With `beside`, points of several series at one x stand a little beside each other.
    """

    title: str
    x: str
    y: str
    at: Sequence[float] = ()
    beside: bool = False


def chart(axes: Axes, series: Sequence[Series], references: Sequence[Reference] = ()) -> Html:
    """The chart with its legend; a sentence where there is nothing to draw."""
    points = [point for each in series for point in each.points]
    if not points:
        return element("p", "There is nothing to draw yet.")
    scale = _Scale.over(axes, points, references)
    step = min(7.0, 40.0 / len(series)) if axes.beside else 0.0
    shifts = [step * (place - (len(series) - 1) / 2.0) for place in range(len(series))]
    drawn = _frame(axes, scale)
    for each, shift in zip(series, shifts, strict=True):
        drawn += _drawn(each, scale, shift)
    far = max(shifts) + 2.0 * _RADIUS
    drawn += [_reference(each, x, y) for each, x, y in _beside(references, scale, far)]
    svg = element(
        "svg",
        element("title", axes.title),
        drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=axes.title,
        font_size="12",
    )
    return element("div", element("div", svg, class_="chart", tabindex="0"), legend(series))


def legend(series: Sequence[Series]) -> Html:
    """Which mark and dash stand for what."""
    rows = []
    for each in series:
        line = element("path", d="M1 8H35", class_=f"line s{each.number % COLOURS}", stroke_dasharray=_dash(each))
        key = element("svg", line if each.joined else None, _mark(each.number, 18, 8, 4.5), viewBox="0 0 36 16")
        rows.append(element("li", key, each.name))
    return element("ul", rows, class_="legend")


@dataclass(frozen=True)
class _Scale:
    """From values to places in the picture; infinity has a place of its own, right of all others."""

    low: float
    high: float
    infinite: bool
    values: Sequence[float]
    named: Sequence[float]

    @classmethod
    def over(cls, axes: Axes, points: Sequence[Point], references: Sequence[Reference]) -> _Scale:
        places = [*(point.x for point in points), *(reference.x for reference in references)]
        xs = [x for x in places if math.isfinite(x)] or [1.0]
        ends = [point.y + sign * point.spread for point in points for sign in (-1, 1)] + [r.y for r in references]
        named = list(axes.at) or decades(min(xs), max(xs))
        finite = [x for x in (*named, *xs) if math.isfinite(x)]
        low, high = math.log10(min(finite)), math.log10(max(finite))
        margin = 0.08 * (high - low) or 0.5
        infinite = any(math.isinf(x) for x in places)
        room = 2.2 * margin if references and not infinite else margin  # they stand right of their place
        return cls(low - margin, high + room, infinite, ticks(min(ends), max(ends)), named)

    def x(self, value: float) -> float:
        right = WIDTH - _RIGHT - (60 if self.infinite else 0)
        if math.isinf(value):
            return WIDTH - _RIGHT - 20
        return _LEFT + (math.log10(value) - self.low) / (self.high - self.low) * (right - _LEFT)

    def y(self, value: float) -> float:
        share = (value - self.values[0]) / (self.values[-1] - self.values[0])
        return HEIGHT - _BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - _TOP - _BOTTOM)


def _frame(axes: Axes, scale: _Scale) -> list[Html]:
    parts = []
    bottom = HEIGHT - _BOTTOM
    for value in scale.values:
        y = scale.y(value)
        parts.append(element("path", d=f"M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}", class_="rule"))
        parts.append(element("text", f"{value:g}", x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end", class_="faint"))
    for value in scale.named:
        if math.isfinite(value):
            x = scale.x(value)
            parts.append(element("path", d=f"M{x:.1f} {bottom}v4", class_="axis"))
            parts.append(element("text", short(value), x=f"{x:.1f}", y=bottom + 18, text_anchor="middle"))
    if scale.infinite:
        x = scale.x(math.inf)
        parts.append(element("path", d=f"M{x - 34:.1f} {bottom - 5}l5 10m3 -10l5 10", class_="axis"))
        parts.append(element("text", "∞", x=f"{x:.1f}", y=bottom + 18, text_anchor="middle"))
    parts.append(element("path", d=f"M{_LEFT} {_TOP}V{bottom}H{WIDTH - _RIGHT}", class_="axis"))
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(element("text", axes.x, x=f"{middle:.1f}", y=HEIGHT - 8, text_anchor="middle"))
    turn = f"rotate(-90 13 {(_TOP + bottom) / 2:.1f})"
    parts.append(element("text", axes.y, x=13, y=f"{(_TOP + bottom) / 2:.1f}", text_anchor="middle", transform=turn))
    return parts


def _drawn(series: Series, scale: _Scale, shift: float) -> list[Html]:
    parts, colour = [], f"s{series.number % COLOURS}"
    ordered = sorted(series.points, key=lambda point: point.x)
    places = [(scale.x(point.x) + shift, scale.y(point.y), point) for point in ordered]
    if series.joined and len(places) > 1:
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
        parts.append(element("path", d=f"M{way}", class_=f"line {colour}", stroke_dasharray=_dash(series)))
    for x, y, point in places:
        if point.spread > 0.0:
            low, high = scale.y(point.y - point.spread), scale.y(point.y + point.spread)
            bar = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
            parts.append(element("path", d=bar, class_=f"line {colour}"))
        parts.append(element("g", element("title", point.words), _mark(series.number, x, y, 4.5)))
    return parts


def _beside(references: Sequence[Reference], scale: _Scale, far: float) -> list[tuple[Reference, float, float]]:
    """Where references are drawn: so `far` right of their place, and further while another is in the way."""
    placed: list[tuple[Reference, float, float]] = []
    for each in references:
        x, y = scale.x(each.x) + far, scale.y(each.y)
        while any(math.hypot(x - other, y - height) < 2 * _RADIUS + 2 for _, other, height in placed):
            x += 2 * _RADIUS + 2
        if x > WIDTH - _RIGHT:  # no room to the right: as far to the left
            x = 2 * scale.x(each.x) - x
        placed.append((each, x, y))
    return placed


def _reference(each: Reference, x: float, y: float) -> Html:
    return element(
        "g",
        element("title", each.words),
        element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=_RADIUS, class_="open mark s4"),
        element("text", each.letter, x=f"{x:.1f}", y=f"{y + 4:.1f}", text_anchor="middle", font_size="11"),
    )


def _dash(series: Series) -> str | None:
    return _DASHES[series.number % len(_DASHES)]


def _mark(number: int, x: float, y: float, size: float) -> Html:
    """A mark: five shapes, filled, then the same ones open."""
    filled = (number // len(_MARKS)) % 2 == 0
    looks = f"mark {'full' if filled else 'open'} s{number % COLOURS}"
    return element("path", d=_MARKS[number % len(_MARKS)](x, y, size), class_=looks)


def _path(*corners: tuple[float, float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z"


def _ring(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"


def ticks(low: float, high: float) -> list[float]:
    """Round values that enclose both, four to eight of them."""
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(each * size for each in (1.0, 2.0, 2.5, 5.0, 10.0) if each * size >= rough - 1e-12)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten that enclose both."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, max(last, first) + 1)]


def short(value: float) -> str:
    """A number in few characters.

    >>> [short(each) for each in (0.5, 10.0, 1000.0, 2.5e6)]
    ['0.5', '10', '1k', '2.5M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
