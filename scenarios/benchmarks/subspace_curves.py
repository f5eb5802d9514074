"""The error of noisy class means by the size of a subspace, and a plot of it: SVG, without any plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, MARGIN, TOP = 300, 240, 46, 44
PREDICTED, MEASURED, PLAIN = "#888888", "#0b62a4", "#c0392b"


@dataclass(frozen=True)
class Curve:
    """Errors for one budget: `predicted` and `measured` for each of `sizes`; `plain` is measured without a subspace."""

    epsilon: float
    sigma: float
    sizes: tuple[int, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    plain: float
    picked: int

    @property
    def measured_best(self) -> int:
        """The size with the least measured error."""
        return self.sizes[self.measured.index(min(self.measured))]

    def measured_at(self, size: int) -> float:
        """The measured error of the size in the table that is nearest."""
        return self.measured[min(range(len(self.sizes)), key=lambda index: abs(self.sizes[index] - size))]


def plot(title: str, curves: Sequence[Curve]) -> str:
    """One panel per budget, both axes logarithmic.

    Measured curves in blue, predictions dashed; red is the error without a subspace, a ring the picked size.
    """
    width, height = (WIDTH + MARGIN) * len(curves) + MARGIN, HEIGHT + TOP + MARGIN
    legend = (
        "blue: measured; dashed: predicted from public facts; red: measured without a subspace; ring: the picked size"
    )
    parts = [_text(MARGIN, 16, title), _text(MARGIN, height - 4, legend)]
    errors = [error for curve in curves for error in (*curve.measured, *curve.predicted, curve.plain)]
    limits = min(errors), max(errors)
    for number, curve in enumerate(curves):
        parts += _panel(curve, MARGIN + number * (WIDTH + MARGIN), limits)
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *parts, "</svg>\n"])


def _panel(curve: Curve, left: int, limits: tuple[float, float]) -> list[str]:
    across = _axis(curve.sizes[0], curve.sizes[-1], left, left + WIDTH)
    up = _axis(*limits, TOP + HEIGHT, TOP)
    parts = [
        f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cccccc"/>',
        _text(left, TOP - 6, f"ε = {curve.epsilon:g}, σ = {curve.sigma:.2f}"),
        _line([(left, up(curve.plain)), (left + WIDTH, up(curve.plain))], PLAIN),
        _line([(across(s), up(e)) for s, e in zip(curve.sizes, curve.predicted, strict=True)], PREDICTED, "4 3"),
        _line([(across(s), up(e)) for s, e in zip(curve.sizes, curve.measured, strict=True)], MEASURED),
        f'<circle cx="{across(curve.picked):.1f}" cy="{up(curve.measured_at(curve.picked)):.1f}" r="5" fill="none" '
        f'stroke="{MEASURED}"/>',
    ]
    parts += [
        _text(across(size) - 4, TOP + HEIGHT + 14, f"{size:g}")
        for size in _marks(*curve.sizes[:: len(curve.sizes) - 1])
    ]
    parts += [_text(left - 34, up(error) + 4, f"{error:g}") for error in _marks(*limits)]
    return parts


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From a value to its place, by logarithm."""
    scale = (end - start) / max(math.log(high / low), 1e-9)
    return lambda value: start + scale * math.log(min(max(value, low), high) / low)


def _marks(low: float, high: float) -> list[float]:
    """Powers of ten inside, with their doubles and fives where there are few.

    >>> _marks(3.0, 80.0)
    [5.0, 10.0, 20.0, 50.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if len(powers) > 4 else (1.0, 2.0, 5.0)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashed}/>'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
