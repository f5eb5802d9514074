"""Files of the UCI Machine Learning Repository: where they are looked for, their cells, and a public split of records.

Looked for are a file's usual names, plain or gzipped, in ``$DPDD_DATA/tabular`` and in ``$DPDD_DATA``, or, where that
is not set, in ``~/.cache/dpdd``. A record is in the test split or not by a hash of its own cells: whatever the order of
the lines, with or without a header, and however many copies of it there are (they are never on both sides).

>>> sum(in_test(("census", str(number)), 0.25) for number in range(1000))
239
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpdd.common.data.benchmarks import ENVIRONMENT, data_folder, download_folder
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import reading, require_file, shown

FOLDER = "tabular"
MOST_BYTES = 1 << 26
"""Far more than any of these files has."""
_WHAT = "a file of comma-separated values"

Cells = tuple[str, ...]


@dataclass(frozen=True)
class UciFile:
    """A file of a table: its usual names, how many cells a record has, how a header begins, and where to get it."""

    name: str
    files: tuple[str, ...]
    cells: int
    first_cell: str
    advice: str

    def path(self) -> Path:
        """Where it is on this disk; DataError says where it was looked for, and where to get it."""
        for folder in _folders():
            for file in self.files:
                for path in (folder / file, folder / f"{file}.gz"):
                    if path.is_file():
                        return path
        places = [shown(folder) for folder in _folders()]
        if data_folder() is None:
            places.insert(0, f"${ENVIRONMENT} (not set)")
        raise DataError(
            f"{self.name} was not found: none of {', '.join(self.files)} (or the same with .gz) is in "
            f"{'; '.join(places)}; {self.advice}, and set {ENVIRONMENT} to a folder with {FOLDER}/{self.files[0]}"
        )

    def available(self) -> bool:
        """Whether it is on this disk."""
        try:
            self.path()
        except DataError:
            return False
        return True

    def records(self) -> Iterator[Cells]:
        """The cells of every record, without spaces at their ends; a header and empty lines are left out."""
        path = self.path()
        with reading(path, _WHAT):
            lines = csv.reader(io.StringIO(_text(path)), skipinitialspace=True)
            for number, cells in enumerate(lines, start=1):
                record = tuple(cell.strip() for cell in cells)
                if not any(record) or (number == 1 and record[0].lower() == self.first_cell.lower()):
                    continue
                if len(record) != self.cells:
                    raise DataError(
                        f"{shown(path)}, line {number}: a record has {self.cells} cells, and this one {len(record)}"
                    )
                yield record


def in_test(record: Sequence[str], share: float) -> bool:
    """Whether a record belongs to the test split, which has about this share of all different ones."""
    digest = hashlib.sha256("\x1f".join(record).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2.0**64


def _folders() -> tuple[Path, Path]:
    return download_folder() / FOLDER, download_folder()


def _text(path: Path) -> str:
    packed = require_file(path, _WHAT)
    if path.suffix != ".gz":
        data = path.read_bytes() if packed <= MOST_BYTES else b""
    else:
        with gzip.open(path) as stream:
            data = stream.read(MOST_BYTES + 1)
    if packed > MOST_BYTES or len(data) > MOST_BYTES:
        raise DataError(f"{shown(path)} is larger than {MOST_BYTES >> 20} MiB, which this dataset is not")
    return data.decode()
