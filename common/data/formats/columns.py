"""Which columns of a CSV or Parquet file are the label, the image, the group, or the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import shown


@dataclass(frozen=True)
class Columns:
    """Positions of the columns to read: the label, either one image or all the numbers, and the group, if any."""

    label: int
    image: int | None
    numbers: tuple[int, ...]
    group: int | None = None


def choose(names: Sequence[str], spec: DataSpec, path: Path) -> Columns:
    """Return the columns that `spec` declares, given the names of those there are."""
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise DataError(f"{shown(path)} has the column {quoted(twice)} more than once; give every column its own name")
    label = _find(names, spec.label_column, "label_column", path)
    group = None if spec.group_column is None else _find(names, spec.group_column, "group_column", path)
    if spec.image_column is not None:
        return Columns(label, _find(names, spec.image_column, "image_column", path), (), group)
    rest = tuple(position for position in range(len(names)) if position not in (label, group))
    wanted = math.prod(spec.shape)
    if len(rest) != wanted:
        beside = [name for name in (spec.label_column, spec.group_column) if name is not None]
        meaning = "features" if spec.is_table else f"pixels ({' x '.join(map(str, spec.shape))})"
        raise DataError(
            f"{shown(path)} has {len(rest)} columns beside {' and '.join(map(quoted, beside))}, "
            f"but shape declares {wanted} {meaning}"
        )
    return Columns(label, None, rest, group)


def quoted(name: str) -> str:
    """Return a column's name fit for a message."""
    return repr(shown(name, 40))


def _find(names: Sequence[str], name: str, setting: str, path: Path) -> int:
    if name in names:
        return list(names).index(name)
    few = ", ".join(quoted(other) for other in names[:8]) or "none"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    raise DataError(f"{shown(path)} has no column {quoted(name)} ({setting}); its columns are: {few}{more}")
