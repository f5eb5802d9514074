"""Quantities for people.

>>> bytes_in_words(812), bytes_in_words(48_200), bytes_in_words(3_140_000)
('812 bytes', '48.2 kB', '3.14 MB')
>>> seconds_in_words(3.21), seconds_in_words(561.0), seconds_in_words(9000.0)
('3.2 s', '9 min 21 s', '2 h 30 min')
>>> epsilon_in_words({"epsilon": 1.0, "delta": 1e-5}), epsilon_in_words({"epsilon": None, "delta": 1e-5})
('ε = 1, δ = 1e-05', 'ε = ∞: no promise')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def bytes_in_words(count: float) -> str:
    """With three digits, in the unit that suits; kB are 1,000 bytes."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def seconds_in_words(seconds: float) -> str:
    """Hours, minutes and seconds, as precise as anybody needs."""
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def epsilon_in_words(row: Mapping[str, Any]) -> str:
    """The guarantee in a row of the card."""
    if row["epsilon"] is None:
        return "ε = ∞: no promise"
    return f"ε = {row['epsilon']:g}, δ = {row['delta']:g}"


def spread_in_words(mean: float, deviation: float | None) -> str:
    """A share in percent, with its deviation where there is one.

    >>> spread_in_words(0.8125, None), spread_in_words(0.8125, 0.004)
    ('81.2', '81.2 ± 0.4')
    """
    return f"{100.0 * mean:.1f}" + ("" if deviation is None else f" ± {100.0 * deviation:.1f}")
