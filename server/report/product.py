"""A run's product in words, from what `metrics.json` or a card says of it.

>>> in_words({"images": 500}), in_words({"rows": 2000}), in_words({"model": "ConvNet of width 64"})
('500 synthetic images', '2000 synthetic rows', 'a ConvNet of width 64')
>>> in_words({"described": ["age", "sex"]})
'a description of 2 columns'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def in_words(facts: Mapping[str, Any]) -> str:
    """How much there is of what."""
    if "model" in facts:
        return f"a {facts['model']}"
    if "described" in facts:
        return f"a description of {len(facts['described'])} columns"
    return f"{facts['images']} synthetic images" if "images" in facts else f"{facts['rows']} synthetic rows"
