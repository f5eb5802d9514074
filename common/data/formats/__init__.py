"""The formats that records come in: declared by a `DataSpec`, read by `load`.

One small module reads each format; a new one is added by writing its ``load(spec, base)`` and naming it in
`reader`. They are imported when they are needed, as most programs only declare what somebody else reads. Errors
name the file and the record, and never repeat what a record holds.

>>> import tempfile
>>> import numpy as np
>>> base = Path(tempfile.mkdtemp())
>>> np.savez(base / "scans.npz", images=np.zeros((4, 8, 8), dtype=np.uint8), labels=np.array([0, 1, 1, 1]))
>>> spec = DataSpec(format="npz", path="scans.npz", classes=("benign", "malignant"), shape=(1, 8, 8))
>>> load(spec, base).labels
array([0, 1, 1, 1])
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpdd.common.data.formats.spec import DataSpec, Format
from dpdd.common.data.formats.tables.block import Intake
from dpdd.common.data.labelled_records import LabelledRecords

__all__ = ["DataSpec", "Intake", "import_readers", "load"]

Reader = Callable[[DataSpec, Path], LabelledRecords]
TableReader = Callable[[DataSpec, Path, Intake | None], LabelledRecords]


def reader(form: Format) -> Reader:
    """What reads images or rows of numbers of this format."""
    from dpdd.common.data.formats import csv_table, idx, image_folder, npz, parquet_table

    readers: dict[Format, Reader] = {
        "csv": csv_table.load,
        "idx": idx.load,
        "image-folder": image_folder.load,
        "npz": npz.load,
        "parquet": parquet_table.load,
    }
    return readers[form]


def table_reader() -> TableReader:
    """What reads tables of any format."""
    from dpdd.common.data.formats.tables import reading

    return reading.load


def import_readers() -> None:
    """Import all of them, for a program that is to read at once."""
    reader("npz")
    table_reader()


def load(spec: DataSpec, base: Path, intake: Intake | None = None) -> LabelledRecords:
    """Return the records that `spec` declares; its paths are relative to the folder `base`.

    A class without a record is fine, and so is a source without any (it is the neighbour of one with a single record,
    and must answer alike); everything malformed is a `DataError`. Cells of a table are never malformed: they are
    counted into what its columns declare, or their record is left out, which `intake` counts.
    """
    if spec.table is not None:
        return table_reader()(spec, base, intake)
    return reader(spec.format)(spec, base)
