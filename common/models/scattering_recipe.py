"""How a scattering backbone for images of any shape is built in code: its recipe, its fit, and a cache of the fit.

As for `scatter28` and `scatter32`, maps are standardised and features whitened on *dead leaves*, random discs drawn
from a public seed, so no dataset is involved and no file is needed. Here everybody builds their own on first use.

A request pins such a backbone by the SHA-256 of its **recipe** (shape, architecture, seed and number of leaves, version
of this code), not of its numbers: floats of a fit may differ in their last bits from machine to machine. That is
harmless. Privacy does not rest on them, as each silo clips what it computed itself, and none of them depends on a
record. Nor does the result: leaves are the same everywhere, bit by bit; the fit is in double precision with the signs
of eigenvectors fixed, so that two machines choose the same coordinates in the same order; and what is kept of it is
rounded as in a backbone's file (matrices in half precision), which moves features by far more than the last bits do.

The fit of a size takes seconds. It is kept in memory, and in the user's cache (``$XDG_CACHE_HOME/dpdd/backbones``, or
``~/.cache``) under a hash of all that decides it; a file that was altered is noticed and made anew, and where nothing
can be written it is fitted in each process. There is nothing private in it.

>>> from dpdd.common.models.pooled_scattering import PooledScatteringArchitecture
>>> small, large = (Recipe(PooledScatteringArchitecture(3, *size)) for size in ((64, 64), (512, 512)))
>>> small.sha256 == large.sha256, small.fit_key == large.fit_key    # another network, the same fit at 64 x 64
(False, True)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.files.atomic import write_atomically
from dpdd.common.models.pooled_scattering import PooledScatteringArchitecture, PooledScatteringNet

IMAGES, SEED, VERSION = 1000, 0, 1
"""Leaves that built backbones are fitted to, and the version of the recipe: whatever changes features changes it."""

_AT_ONCE = 50
_lock = Lock()


@dataclass(frozen=True)
class Recipe:
    """All that decides a built backbone."""

    architecture: PooledScatteringArchitecture
    images: int = IMAGES
    seed: int = SEED
    version: int = VERSION

    @property
    def sha256(self) -> str:
        """What pins the backbone in a request."""
        return _hash({"images": asdict(self.architecture), **self._fit})

    @property
    def fit_key(self) -> str:
        """What the fit is kept under: images of many shapes are made small to the same size."""
        return _hash(self._fit)

    @property
    def _fit(self) -> dict[str, Any]:
        canvas, cells = asdict(self.architecture.canvas), list(self.architecture.cells)
        leaves = {"count": self.images, "seed": self.seed}
        return {"canvas": canvas, "cells": cells, "leaves": leaves, "version": self.version}


def _hash(value: Mapping[str, Any]) -> str:
    text = json.dumps({"dpdd": "scattering recipe", **value}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def weights(recipe: Recipe) -> dict[str, Tensor]:
    """The fit of a recipe: what a file of the backbone would hold; from memory, from the cache, or made now."""
    with _lock:  # one thread makes it, the others wait
        return dict(_kept(recipe))


@lru_cache(maxsize=8)
def _kept(recipe: Recipe) -> dict[str, Tensor]:
    path = _cached(recipe)
    found = None if path is None else _read(path)
    if found is not None:
        return found
    made = fit(recipe)
    if path is not None:
        content = safetensors.save(made)
        with suppress(OSError):  # a full disk or a folder that is not ours: it is made again next time
            write_atomically(path, hashlib.sha256(content).digest() + content)
    return made


def fit(recipe: Recipe) -> dict[str, Tensor]:
    """Standardise and whiten on dead leaves, in double precision; the tensors as a file would hold them."""
    canvas = recipe.architecture.canvas
    network = PooledScatteringNet(_at_canvas(recipe.architecture)).eval().double()
    leaves = dead_leaves(recipe.images, canvas.channels, canvas.height, canvas.width, recipe.seed)
    with torch.inference_mode():
        parts = [network.raw_layers(part.double()) for part in torch.from_numpy(leaves).split(_AT_ONCE)]
        layers = [torch.cat(layer) for layer in zip(*parts, strict=True)]
        network.set_constants(layers)
        network.whitening.fit(network.pooled(network.standardised(layers, None)))
        network.whitening.fix_signs()
        state = {name: t for name, t in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    with torch.inference_mode(False):  # kept for networks that may want gradients
        return {
            name: tensor.clone().to(torch.float16 if tensor.ndim > 1 else torch.float32)
            for name, tensor in state.items()
        }


def _at_canvas(architecture: PooledScatteringArchitecture) -> PooledScatteringArchitecture:
    """The one for images that are small already: leaves are drawn at that size."""
    canvas = architecture.canvas
    return PooledScatteringArchitecture(canvas.channels, canvas.height, canvas.width)


def _cached(recipe: Recipe) -> Path | None:
    """Where the cache has, or will have, the fit; None where there is no home for it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = folder if folder.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "dpdd" / "backbones" / f"{recipe.fit_key}.built"


def _read(path: Path) -> dict[str, Tensor] | None:
    """What the cache holds; None where that is nothing, or not what was written."""
    try:
        content = path.read_bytes()
        if content[:32] != hashlib.sha256(content[32:]).digest():
            return None
        return safetensors.load(content[32:])
    except (OSError, SafetensorError):
        return None
