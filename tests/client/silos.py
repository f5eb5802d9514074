"""Small silos for tests: made-up records, real files, real ledgers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dpdd.client.silo import Silo
from dpdd.common.wire.request import ReleaseRequest

CLASSES = ("ant", "bee", "cat")
SHAPE = (1, 8, 8)


def make_silo(
    folder: Path,
    *,
    records: int = 60,
    epsilon: float = 1.0,
    approval: str = "auto",
    seed: int = 0,
    extra: str = "",
    composition: str = "auto",
    images: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    classes: tuple[str, ...] = CLASSES,
) -> Silo:
    """A silo in `folder` with random 8 x 8 images (or the given ones)."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.Generator(np.random.PCG64(seed))
    if images is None:
        images = generator.integers(0, 256, (records, *SHAPE), dtype=np.uint8)
    if labels is None:
        labels = generator.integers(0, len(classes), len(images))
    np.savez(folder / "records.npz", images=images, labels=labels)
    (folder / "silo.toml").write_text(
        f"""
name = "{folder.name}"
[data]
format = "npz"
path = "records.npz"
classes = {json.dumps(classes)}
shape = [1, 8, 8]
value_range = [0, {255 if images.dtype == np.uint8 else 1}]
[budget]
epsilon = {epsilon}
delta = 1e-5
composition = "{composition}"
[policy]
methods = ["dp-merf"]
epsilon_per_request = 2.0
approval = "{approval}"
{extra}
"""
    )
    return Silo.initialise(folder)


def make_request(run: str = "test", epsilon: float = 1.0, **changes: object) -> ReleaseRequest:
    """A small DP-MERF request that `make_silo`'s silos allow."""
    values: dict[str, object] = {
        "run": run,
        "method": "dp-merf",
        "settings": {"features": 16},
        "epsilon": epsilon,
        "delta": 1e-5,
        "classes": CLASSES,
        "shape": SHAPE,
        "public_seed": 3,
    }
    return ReleaseRequest(**(values | changes))  # type: ignore[arg-type]
