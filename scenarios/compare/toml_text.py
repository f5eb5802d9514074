"""TOML from plain values: the way back from `tomllib`, for scenarios that are written with other values.

>>> print(toml_text({"name": "mine", "data": {"silos": 3, "shares": [0.5, 0.25, 0.25]}, "privacy": {"epsilon": 1.0}}))
name = "mine"
<BLANKLINE>
[data]
silos = 3
shares = [0.5, 0.25, 0.25]
<BLANKLINE>
[privacy]
epsilon = 1.0
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile("[A-Za-z0-9_-]+")


def toml_text(values: Mapping[str, Any]) -> str:
    """The document, without a line end at its end; sections come after plain keys."""
    return "\n\n".join(block for block in _blocks(values, ()) if block)


def _blocks(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = [f"{_key(key)} = {_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    sections = [(key, value) for key, value in values.items() if isinstance(value, Mapping)]
    head = [f"[{'.'.join(map(_key, path))}]"] if path and (plain or not sections) else []
    blocks = ["\n".join([*head, *plain])]
    for key, value in sections:
        blocks += _blocks(value, (*path, key))
    return blocks


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)  # numbers; infinities are `inf` in both
