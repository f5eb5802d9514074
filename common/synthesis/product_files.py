"""The files of a finished product, and their hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError

DATASET, TEACHER, MODEL = "dataset.safetensors", "teacher.safetensors", "model.safetensors"
COLUMNS, POOL = "columns.toml", "pool.safetensors"

UNREADABLE = (
    SafetensorError,
    ArithmeticError,
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What comes of reading such a file where somebody made it who does not keep to the format."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
