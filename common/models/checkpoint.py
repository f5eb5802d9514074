"""Checkpoints of a training run: a safetensors file of tensors, and a JSON file that names it.

Both are written atomically, the JSON file last: at any moment it points to a whole state. Older tensors are
removed after that.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write(Path(folder), {"seed": 1}, {"weight": torch.ones(2)}, {"epoch": 3})
...     read(Path(folder), {"seed": 1})
({'weight': tensor([1., 1.])}, {'epoch': 3})
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.files.atomic import write_atomically


def write(
    folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], position: Mapping[str, Any]
) -> None:
    """Replace the checkpoint in `folder` by these tensors, and the position that belongs to them."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = safetensors.save(stored)
    digest = hashlib.sha256(content).hexdigest()
    file = folder / f"{digest[:16]}.safetensors"
    write_atomically(file, content)
    entry = {"settings": settings, "position": position, "tensors": file.name, "sha256": digest}
    write_atomically(folder / "checkpoint.json", (json.dumps(entry, indent=2) + "\n").encode())
    for old in folder.glob("*.safetensors"):
        if old != file:
            old.unlink(missing_ok=True)


def read(folder: Path, settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Give tensors and position of the checkpoint in `folder`, if any; it must be of these settings."""
    index = folder / "checkpoint.json"
    if not index.exists():
        return None
    try:
        entry = json.loads(index.read_text(encoding="utf-8"))
        content = (folder / entry["tensors"]).read_bytes()
        digest, theirs, position = entry["sha256"], entry["settings"], entry["position"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"The checkpoint in {folder} cannot be read: {error!r}; start again without it."
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise IntegrityError(f"The checkpoint in {folder} was altered after it was written; start again without it.")
    ours = json.loads(json.dumps(settings))
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"The checkpoint in {folder} is of another run: its {name} is {theirs.get(name)!r}, "
                f"now {ours.get(name)!r} is asked for."
            )
    return safetensors.load(content), position


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Give the tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def laid_out_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Give `tensor` in the memory layout of `model`, so that a resumed run computes to the same last bit."""
    return torch.empty_like(model, dtype=tensor.dtype).copy_(tensor) if tensor.shape == model.shape else tensor
