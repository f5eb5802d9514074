"""Membership scores, judged: the area under the curve, and how many members are found at very few false alarms.

A mean over all records hides the few that are found for sure, so the curve is looked at where there is hardly any false
alarm, on logarithmic axes (Carlini et al. 2022, "Membership Inference Attacks From First Principles").

>>> curve = roc(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False]))
>>> curve.auc, curve.tpr_at(0.001)
(1.0, 1.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST = 1e-4
"""Where the logarithmic axes begin."""


@dataclass(frozen=True, eq=False)
class Curve:
    """True positives against false ones, both as shares and rising."""

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    members: int
    others: int

    @property
    def auc(self) -> float:
        """The probability that a member scores above another record; ties count half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    def tpr_at(self, fpr: float) -> float:
        """The share of members that are found with at most this share of false alarms."""
        return float(self.tpr[self.fpr <= fpr].max(initial=0.0))

    def found_by_chance(self, fpr: float) -> float:
        """The largest share that guessing finds, in 999 of 1,000 trials, with as many false alarms."""
        from scipy import stats

        allowed = int(fpr * self.others)  # so many others come first at most; then how many members may, at random
        return float(stats.nbinom.ppf(0.999, allowed + 1, self.others / (self.others + self.members)) / self.members)


def roc(scores: NDArray[np.floating], members: NDArray[np.bool_]) -> Curve:
    """The curve of these scores, higher for members."""
    flat, truth = np.asarray(scores, np.float64).ravel(), np.asarray(members, bool).ravel()
    order = np.argsort(-flat, kind="stable")
    last = np.append(np.flatnonzero(np.diff(flat[order])), len(flat) - 1)  # equal scores stand or fall together
    found, alarms = np.cumsum(truth[order])[last], np.cumsum(~truth[order])[last]
    count, rest = int(truth.sum()), int((~truth).sum())
    return Curve(np.append(0.0, alarms / max(rest, 1)), np.append(0.0, found / max(count, 1)), count, rest)


def as_svg(curves: Mapping[str, Curve], title: str) -> str:
    """The curves on logarithmic axes, each with dashes of its own, beside chance."""
    size, left, top = 320, 60, 40
    dashes = ("", "6 3", "2 2", "8 2 2 2")

    def place(value: float) -> float:
        return float(np.log10(max(value, LEAST) / LEAST) / -np.log10(LEAST))

    def path(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> str:
        places = [
            f"{left + size * place(x):.1f},{top + size * (1.0 - place(y)):.1f}" for x, y in zip(fpr, tpr, strict=True)
        ]
        return " ".join(dict.fromkeys(places))

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size + 260}" height="{size + 100}" font-family="sans-serif" '
        'font-size="12">',
        f'<text x="{left}" y="20" font-size="14">{title}</text>',
        f'<rect x="{left}" y="{top}" width="{size}" height="{size}" fill="none" stroke="#888"/>',
    ]
    for exponent in range(round(np.log10(LEAST)), 1):
        x, y = left + size * place(10.0**exponent), top + size * (1.0 - place(10.0**exponent))
        label = f"{100.0 * 10.0**exponent:g} %"
        lines.append(f'<text x="{x:.1f}" y="{top + size + 18}" text-anchor="middle">{label}</text>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    lines.append(f'<text x="{left + size / 2}" y="{top + size + 40}" text-anchor="middle">false alarms</text>')
    ends = np.array([LEAST, 1.0])
    lines.append(f'<polyline points="{path(ends, ends)}" fill="none" stroke="#bbb"/>')
    for number, (name, curve) in enumerate(curves.items()):
        shown = (curve.fpr >= LEAST) | (curve.tpr > 0)
        dash = dashes[number % len(dashes)]
        style = f'fill="none" stroke="#000" stroke-width="1.5" stroke-dasharray="{dash}"'
        lines.append(f'<polyline points="{path(curve.fpr[shown], curve.tpr[shown])}" {style}/>')
        y = top + 20 + 20 * number
        lines.append(f'<line x1="{left + size + 15}" x2="{left + size + 50}" y1="{y}" y2="{y}" {style}/>')
        lines.append(f'<text x="{left + size + 56}" y="{y + 4}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])
