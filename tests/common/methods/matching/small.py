"""A small run of the matching family: for tests of what it measures and makes."""

from __future__ import annotations

from typing import Any

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.settings import MethodSettings

NAMES, SHAPE, SEED = ("ant", "bee", "cat", "dog", "eel"), (1, 8, 8), 4
RUN = RunDescription(NAMES, SHAPE, SEED, images_per_class=2)
SMALL: dict[str, Any] = {"draws": 6, "networks": 2, "width": 8, "depth": 2, "rate": 1.0, "auxiliary_images": 30}


def settings_of(**changes: Any) -> MethodSettings:
    return MethodSettings(**{**SMALL, "dimensions": 0, **changes})
