"""The files of a finished product, and their hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

DATASET, TEACHER, MODEL = "dataset.safetensors", "teacher.safetensors", "model.safetensors"
COLUMNS = "columns.toml"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
