"""The one place that imports torchvision: late, and even where its compiled library does not fit torch.

The registry's torchvision wheel is built for CUDA. Beside a CPU build of torch its compiled library does not
load, and ``import torchvision`` then dies because two operators are unknown. Everything dpdd takes from
torchvision (datasets, transforms, model definitions) is plain Python, so declaring those two operators is all
that is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType


def load_torchvision() -> ModuleType:
    """Import and return torchvision; `ImportError` where it is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ImportError("torchvision is not installed")
    if not _compiled_library_loads(Path(spec.origin).parent):
        _declare_operators()
    return importlib.import_module("torchvision")


def _compiled_library_loads(folder: Path) -> bool:
    import torch

    # Loading a library twice is harmless, and torchvision itself does exactly this when it is imported.
    for library in sorted(folder.glob("_C*")):
        if library.suffix in (".so", ".pyd", ".dylib"):
            try:
                torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            except (ImportError, OSError):
                continue
            return True
    return False


def _declare_operators() -> None:
    import torch

    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
