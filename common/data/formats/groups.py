"""Groups: which records belong together, as a patient's scans do. A partition or a test share keeps them together.

>>> named(["anna", "ben", "anna"], "scans.csv")
array(['anna', 'ben', 'anna'], dtype='<U4')
>>> named(["anna", ""], "scans.csv")
Traceback (most recent call last):
dpdd.common.errors.DataError: scans.csv: row 2 has no group; every record needs one
>>> of_file_name("anna-01.png", "^([a-z]+)-", "scans/anna-01.png")
'anna'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown


def named(values: Sequence[Any] | npt.NDArray[Any], path: Path | str, unit: str = "row") -> npt.NDArray[np.str_]:
    """Return the groups as text; a record without one is named by its `unit` and number, never by what it holds."""
    names = ["" if value is None else _text(value) for value in values]
    nameless = next((row for row, name in enumerate(names, start=1) if not name.strip()), None)
    if nameless is not None:
        raise DataError(f"{shown(path)}: {unit} {nameless} has no group; every record needs one")
    return np.array(names, dtype=np.str_)


def of_file_name(name: str, pattern: str, path: Path | str) -> str:
    """Return the group of an image file: what the first group of `pattern` finds in its name."""
    found = re.search(pattern, name)
    if found is None or not found.group(1):
        raise DataError(f"{shown(path)} has no group: group_pattern finds none in its name, and every record needs one")
    return found.group(1)


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
