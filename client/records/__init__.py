"""A silo's private records: declared by a `DataSpec`, read by `load`, held as `Records`, shown by `describe`.

The formats are in `dpdd.common.data.formats`.

>>> import tempfile
>>> import numpy as np
>>> base = Path(tempfile.mkdtemp())
>>> np.savez(base / "scans.npz", images=np.zeros((4, 8, 8), dtype=np.uint8), labels=np.array([0, 1, 1, 1]))
>>> spec = DataSpec(format="npz", path="scans.npz", classes=("benign", "malignant"), shape=(1, 8, 8))
>>> load(spec, base)
Records(private)
>>> describe(load(spec, base), spec).per_class
{'benign': 1, 'malignant': 3}
"""

from __future__ import annotations

from pathlib import Path

from dpdd.client.records.column_facts import ColumnFacts, column_facts
from dpdd.client.records.description import Description, describe, examples
from dpdd.client.records.records import Records
from dpdd.common.data import formats
from dpdd.common.data.formats import DataSpec, Intake

__all__ = [
    "ColumnFacts",
    "DataSpec",
    "Description",
    "Intake",
    "Records",
    "column_facts",
    "describe",
    "examples",
    "load",
]


def load(spec: DataSpec, base: Path, intake: Intake | None = None) -> Records:
    """The private records that `spec` declares; its paths are relative to the folder `base`.

    `intake` counts the records of a table that are left out, for the operator.
    """
    read = formats.load(spec, base, intake)
    return Records(read.features, read.labels)
