"""Labels as they stand in a file, turned into positions in the public class list.

A label is a class name or a position. Where some class name is itself a number, positions and names could be
mistaken for each other, so there labels are always names: with classes "3" and "7", the label 7 is the second
class.

>>> encode(["cat", "1", "cat"], ("cat", "dog"), "pets.csv")
array([0, 1, 0])
>>> encode(np.array([7, 3]), ("3", "7"), "digits.npz")
array([1, 0])
>>> encode(["cat", "bird"], ("cat", "dog"), "pets.csv")
Traceback (most recent call last):
dpdd.common.errors.DataError: pets.csv: the label of row 2 is none of the 2 classes ('cat', 'dog')
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown


def encode(
    labels: Sequence[str | None] | npt.NDArray[Any],
    classes: tuple[str, ...],
    path: Path | str,
    first: int = 1,
    unit: str = "row",
) -> npt.NDArray[np.int64]:
    """Return the positions in `classes`; a wrong label is named by its `unit` and number, from `first` on.

    The message points to the record and does not repeat its label: what a record holds is private.
    """
    meanings = _meanings(classes)
    if isinstance(labels, np.ndarray):
        if labels.ndim != 1 or labels.dtype.kind not in "biuUS":
            raise DataError(
                f"{shown(path)}: labels must be one row of class names or integers, "
                f"not {labels.dtype} with {labels.ndim} dimensions"
            )
        if labels.dtype.kind == "b":
            labels = labels.astype(np.uint8)
        distinct, places = np.unique(labels, return_inverse=True)
        codes = np.array([meanings.get(_text(value), -1) for value in distinct], dtype=np.int64)
        positions = codes[places] if len(codes) else np.zeros(0, dtype=np.int64)
    else:
        positions = np.fromiter((meanings.get(value, -1) for value in labels), dtype=np.int64, count=len(labels))
    if (positions < 0).any():
        row = first + int((positions < 0).argmax())
        raise DataError(f"{shown(path)}: the label of {unit} {row} is none of the {_listed(classes)}")
    return positions


def may_be_positions(classes: tuple[str, ...]) -> bool:
    """Whether positions, written down as labels, are read back as themselves.

    >>> may_be_positions(("cat", "dog")), may_be_positions(("0", "1")), may_be_positions(("1", "0"))
    (True, True, False)
    """
    meanings = _meanings(classes)
    return all(meanings.get(str(position)) == position for position in range(len(classes)))


def of_folder(name: str, classes: tuple[str, ...], path: Path) -> int:
    """Return the class that a sub-folder called `name` stands for."""
    position = _meanings(classes).get(name)
    if position is None:
        raise DataError(f"{shown(path)} is a folder for none of the {_listed(classes)}; rename or remove it")
    return position


def _meanings(classes: tuple[str, ...]) -> dict[str | None, int]:
    meanings: dict[str | None, int] = {name: position for position, name in enumerate(classes)}
    if not any(_is_number(name) for name in classes):
        meanings |= {str(position): position for position in range(len(classes))}
    return meanings


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return str(value)


def _listed(classes: tuple[str, ...]) -> str:
    few = ", ".join(repr(shown(name, 40)) for name in classes[:6])
    return f"{len(classes)} classes ({few}{', ...' if len(classes) > 6 else ''})"
