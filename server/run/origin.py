"""Where a copy of a scenario came from, so that its relative paths still lead where they led.

A run keeps its scenario as `scenario.toml` in its folder. Beside it, where the scenario names files, lies
`scenario.origin.json`: the folder that paths are relative to, and a source that was named on the command line.
"""

from __future__ import annotations

import json
from pathlib import Path

from dpdd.common.config import Settings, validate
from dpdd.common.errors import ConfigError
from dpdd.common.files.atomic import write_atomically


class Origin(Settings):
    """The folder of the original file, and a source that replaces the one in it."""

    folder: Path
    source: Path | None = None


def origin_of(scenario_file: Path) -> Origin:
    """What was remembered for a copy; the file's own folder for any other file."""
    beside = _beside(scenario_file)
    try:
        return validate(json.loads(beside.read_bytes()), Origin, str(beside))
    except FileNotFoundError:
        return Origin(folder=scenario_file.absolute().parent)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{beside}: cannot be read ({error}); start the run again from the original file") from None


def keep_origin(original: Path, copy: Path, *, needed: bool, source: Path | None = None) -> None:
    """Write down where `copy` comes from, if that is needed: where its scenario names files.

    A `source` replaces the scenario's from then on. The origin of a copy of a copy is that of the first.
    """
    if copy.exists() and original.samefile(copy):
        return
    beside, origin = _beside(copy), origin_of(original)
    if needed:
        kept = origin if source is None else Origin(folder=origin.folder, source=source.absolute())
        write_atomically(beside, f"{kept.model_dump_json(indent=2)}\n".encode())
    else:
        beside.unlink(missing_ok=True)


def _beside(scenario_file: Path) -> Path:
    return scenario_file.with_suffix(".origin.json")
