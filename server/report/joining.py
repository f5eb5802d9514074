"""How silos were joined, in words: who moved the result, which releases were implausible, which classes are noise.

>>> print(influence_table([{"silo": "north", "shares": {"cat": 0.4, "dog": 0.6}, "in_noise": 0.7, "relative": 0.03}]))
silo   % of each class  moved (noise = 1)  moved (% of norm)
-----  ---------------  -----------------  -----------------
north  40 to 60                       0.7                  3
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dpdd.common.cli import table
from dpdd.server.report.rounds import rounds_text

EXPLAINED = (
    "Moved is how far the statistics per record would be elsewhere without the silo: in units of their noise, and\n"
    "of their norm. Equal silos that differ by noise alone move them by 1/√(silos - 1) of the noise."
)


def influence_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much of each class each silo gave, and how far it moved the statistics."""
    header = ["silo", "% of each class", "moved (noise = 1)", "moved (% of norm)"]
    return table(header, [[row["silo"], _shares(row["shares"]), *_moved(row)] for row in rows])


def _shares(shares: Mapping[str, float]) -> str:
    if not shares:
        return "–"
    low, high = (f"{100.0 * each:.0f}" for each in (min(shares.values()), max(shares.values())))
    return low if low == high else f"{low} to {high}"


def _moved(row: Mapping[str, Any]) -> list[str]:
    noise, norm = row["in_noise"], row["relative"]
    return ["–" if noise is None else f"{noise:.3g}", "–" if norm is None else f"{100.0 * norm:.3g}"]


def joining_text(card: Mapping[str, Any]) -> str:
    """What a card says of all this; empty for an older card, which does not say."""
    parts = []
    if card.get("implausible_releases"):
        parts.append(
            "**Releases that no honest silo sends**, whatever its records are:\n\n"
            + "\n".join(f"- {line}" for line in implausible_lines(card["implausible_releases"]))
        )
    if rows := card.get("influence"):
        parts.append(f"```\n{influence_table(rows)}\n```\n\n{EXPLAINED}")
    if rounds := card.get("rounds"):
        parts.append(rounds_text(rounds))
    if lost := card.get("lost_in_noise"):
        parts.append(textwrap.fill(lost_in_words(lost), width=110, break_on_hyphens=False))
    return "\n\n".join(parts)


def implausible_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each implausible release."""
    return [
        f"{each['silo']}, stage {each['stage']} ({'left out' if each['left_out'] else 'used all the same'}): "
        + "; ".join(each["found"])
        for each in found
    ]


def lost_in_words(lost: Sequence[str]) -> str:
    """Which classes nothing but noise is known of."""
    return f"Lost in noise: {', '.join(lost)}. Nothing but noise is known of {'it' if len(lost) == 1 else 'them'}."
