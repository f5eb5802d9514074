"""Drawings of ten kinds of figures, of any size, in grey or colour: records of nobody, for examples and their tests.

>>> picture = draw("ring", side=40, colour=True, random=np.random.default_rng(1))
>>> picture.size, picture.mode
((40, 40), 'RGB')
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

Corners = list[tuple[float, float]]
Ink = int | tuple[int, int, int]

_ZOOM = 2
"""Figures are drawn larger and reduced, so that their edges are smooth."""


def _turned(points: Corners, centre: float, angle: float) -> Corners:
    cos, sin = math.cos(angle), math.sin(angle)
    return [(centre + cos * x - sin * y, centre + sin * x + cos * y) for x, y in points]


def _polygon(corners: int) -> Callable[[float], Corners]:
    def points(radius: float) -> Corners:
        steps = (2.0 * math.pi * corner / corners for corner in range(corners))
        return [(radius * math.sin(step), -radius * math.cos(step)) for step in steps]

    return points


def _star(radius: float) -> Corners:
    steps = [math.pi * corner / 5 for corner in range(10)]
    long = [radius if corner % 2 == 0 else 0.4 * radius for corner in range(10)]
    return [(r * math.sin(step), -r * math.cos(step)) for r, step in zip(long, steps, strict=True)]


def _cross(radius: float) -> Corners:
    a, b = radius, 0.3 * radius
    return [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b)]


def _bar(radius: float) -> Corners:
    return [(-radius, -0.2 * radius), (radius, -0.2 * radius), (radius, 0.2 * radius), (-radius, 0.2 * radius)]


def _wedge(radius: float) -> Corners:
    return [(0.0, 0.0), (radius, -0.5 * radius), (radius, 0.5 * radius), (0.0, 0.0), (-radius, 0.0)]


_OUTLINES: dict[str, Callable[[float], Corners]] = {
    "triangle": _polygon(3),
    "square": _polygon(4),
    "star": _star,
    "cross": _cross,
    "bar": _bar,
    "wedge": _wedge,
}
FIGURES = ("disc", "ring", *_OUTLINES, "stripes", "dots")
"""The ten kinds."""


def draw(figure: str, side: int, colour: bool, random: np.random.Generator) -> Image.Image:
    """A figure somewhere near the middle, turned a little, in an ink and on a ground of its own, with grain."""
    size = _ZOOM * side
    ground, ink = _inks(colour, random)
    image = Image.new("RGB" if colour else "L", (size, size), ground)
    pen = ImageDraw.Draw(image)
    centre, radius = size * random.uniform(0.44, 0.56), size * random.uniform(0.26, 0.36)
    if figure in ("disc", "ring"):
        box = (centre - radius, centre - radius, centre + radius, centre + radius)
        pen.ellipse(box, fill=ink if figure == "disc" else None, outline=ink, width=max(2, round(0.25 * radius)))
    elif figure == "stripes":
        for y in np.arange(random.uniform(0.0, 0.1), 1.0, 0.2) * size:
            pen.rectangle((0.1 * size, y, 0.9 * size, y + 0.08 * size), fill=ink)
    elif figure == "dots":
        for x, y in random.uniform(0.15, 0.85, (9, 2)) * size:
            pen.ellipse((x - 0.06 * size, y - 0.06 * size, x + 0.06 * size, y + 0.06 * size), fill=ink)
    else:
        pen.polygon(_turned(_OUTLINES[figure](radius), centre, random.uniform(-0.3, 0.3)), fill=ink)
    reduced = np.asarray(image.resize((side, side), Image.Resampling.BOX), dtype=np.float64)
    grain = random.normal(0.0, 8.0, (side, side))
    pixels = reduced + (grain[:, :, None] if colour else grain)
    return Image.fromarray(np.rint(np.clip(pixels, 0.0, 255.0)).astype(np.uint8))


def _inks(colour: bool, random: np.random.Generator) -> tuple[Ink, Ink]:
    """A dark ground and a light ink."""
    if not colour:
        return int(random.integers(0, 60)), int(random.integers(160, 256))
    dark, light = random.integers(0, 70, 3), random.integers(150, 256, 3)
    return (int(dark[0]), int(dark[1]), int(dark[2])), (int(light[0]), int(light[1]), int(light[2]))
