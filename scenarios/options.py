"""Option values of `dpdd-sim`: argparse types whose errors say what would be right, and figures rounded up."""

from __future__ import annotations

import argparse
import math

_DECIMALS = 4


def number(text: str, low: float, high: float, rule: str, shown: str | None = None) -> float:
    """A number above `low` and up to `high`; otherwise an error that cites the `rule` and what was given."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low < value <= high:
        raise argparse.ArgumentTypeError(f"{rule}, not {shown or text!r}")
    return value


def whole_number(text: str) -> int:
    """A whole number from 1 on; digits may be grouped.

    >>> whole_number("60,000")
    60000
    """
    try:
        value = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = 0
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"it is a whole number from 1 to 2^31 - 1, not {text!r}")
    return value


def rounded_up(value: float) -> str:
    """Rounded up, so that the printed figure holds as well.

    >>> rounded_up(0.99991), rounded_up(math.inf)
    ('1.0000', '∞')
    """
    if math.isinf(value):
        return "∞"
    scale = 10.0**_DECIMALS
    return f"{math.ceil(value * scale - 1e-9) / scale:.{_DECIMALS}f}" if value < 1e9 else f"{value:.4g}"
