"""Noise and clipping of a run, for its report: as far as they are public. Nothing here was not released.

How often records were clipped depends on the records, and no release says so. Public are the bounds that contributions
were clipped to, the noise, and what follows from releases: who moved the sums, and which classes noise hides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpdd.common.privacy import events
from dpdd.server.report.finished import FinishedRun
from dpdd.server.report.html.layout import code, facts, folded, listed, paragraph, warning
from dpdd.server.report.html.markup import Child
from dpdd.server.report.html.table import Row, figure, table
from dpdd.server.report.joining import EXPLAINED, implausible_lines, lost_in_words
from dpdd.server.report.rounds import rounds_text


def diagnostics(run: FinishedRun) -> list[Child]:
    """Tables and sentences."""
    card, metrics = run.card, run.metrics
    rows = []
    influence = {row["silo"]: row for row in metrics.get("influence", ())}
    for row in card["silos"]:
        moved = influence.get(row["silo"], {})
        rows.append(
            Row(
                [
                    row["silo"],
                    events.describe(events.from_json(row["event"])),
                    _shares(moved.get("shares", {})),
                    figure(moved.get("in_noise"), _number(moved.get("in_noise"))),
                    figure(moved.get("relative"), _number(moved.get("relative"), 100.0)),
                ]
            )
        )
    header = ["silo", "noise", "% of each class", "moved (noise = 1)", "moved (% of norm)"]
    parts: list[Child] = [
        paragraph(
            "σ is the noise in every number of a release, in units of the most that one record can change all of them "
            "together. How many records were clipped is not known to anybody but the silo: that was never released."
        ),
        table("Noise, and how much of the result each silo is.", header, rows),
    ]
    if len(influence) > 1:
        parts.append(paragraph(" ".join(EXPLAINED.split())))
    if lost := metrics.get("lost_in_noise"):
        parts.append(warning(lost_in_words(lost)))
    if found := metrics.get("implausible_releases"):
        parts.append(warning("Releases that no honest silo sends, whatever its records are:"))
        parts.append(listed(implausible_lines(found)))
    if "rounds" in metrics:
        parts.append(paragraph(" ".join(rounds_text(metrics["rounds"]).split())))
    if run.request is not None and run.request.settings:
        settings = run.request.settings
        if clips := clipping(settings):
            parts.append(paragraph("Contributions were clipped to public bounds:"))
            parts.append(facts([(name, code(value)) for name, value in clips]))
        every = [(name, code(_setting(value))) for name, value in sorted(settings.items())]
        parts.append(folded("Every setting that silos were asked with", facts(every)))
    return parts


def clipping(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings that say how contributions are bounded.

    >>> clipping({"clip": 0.2, "stages": 3})
    [('clip', '0.2')]
    """
    return [(name, _setting(value)) for name, value in sorted(settings.items()) if "clip" in name]


def _setting(value: Any) -> str:
    words = f"{value:g}" if isinstance(value, float) else str(value)
    return words if len(words) <= 200 else f"{words[:199]}…"


def _shares(shares: Mapping[str, float]) -> str:
    if not shares:
        return "–"
    values: Sequence[str] = [f"{100.0 * each:.0f}" for each in (min(shares.values()), max(shares.values()))]
    return values[0] if values[0] == values[1] else f"{values[0]} to {values[1]}"


def _number(value: float | None, times: float = 1.0) -> str:
    return "–" if value is None else f"{times * value:.3g}"
