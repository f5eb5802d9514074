"""Settings of the private classifiers: the usual ones, those that were tuned for shipped backbones, and files of them.

The tuned ones were chosen by ``dpdd-sim baselines --tune-on`` at (1, 1e-5) on public data: the logs are
``docs/results/baselines-tuning-*.txt``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.common.config import Settings, validate
from dpdd.common.errors import ConfigError
from dpdd.scenarios.private_finetune import FineTuneSettings, SgdSettings
from dpdd.scenarios.private_linear import ClosedFormSettings, LogisticSettings

USUAL: dict[str, Settings] = {
    "logistic": LogisticSettings(),
    "lda": ClosedFormSettings(strength=0.1),
    "ridge": ClosedFormSettings(strength=0.2),
    "finetune": FineTuneSettings(),
    "scratch": SgdSettings(),
}

TUNED: dict[str, Settings] = {}
"""By method and place (`private_classifiers.key`)."""


def read(path: Path) -> dict[str, Settings]:
    """Settings by method, or by method and place, from a JSON file that `write` made or a person wrote."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: this is no JSON file of settings ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: settings are an object, with a method (and its place) for each key")
    result: dict[str, Settings] = {}
    for key, values in found.items():
        method = key.partition(":")[0]
        if method not in USUAL:
            raise ConfigError(f"{path}: there is no method {method!r} with settings; there are {', '.join(USUAL)}")
        result[key] = validate(values, type(USUAL[method]), f"{path}: {key}")
    return result


def write(path: Path, settings: Mapping[str, Settings]) -> None:
    """The inverse of `read`."""
    values = {key: each.model_dump() for key, each in settings.items()}
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
