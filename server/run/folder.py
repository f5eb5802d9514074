"""A run's folder keeps the scenario that it was started with, so that a run can go on without being told it again."""

from __future__ import annotations

import shlex
from pathlib import Path

from dpdd.common.errors import ConfigError
from dpdd.common.files.atomic import write_atomically
from dpdd.server.run.origin import keep_origin
from dpdd.server.run.scenario import Scenario, load_scenario

SCENARIO = "scenario.toml"
STORE = "store"
ROSTER = "silos.json"
AUTHORITY = "authority.pem"
"""What a coordinator's folder has, and no other."""


def scenario_of(folder: Path) -> Path:
    """The scenario that a run in `folder` was started with."""
    path = folder / SCENARIO
    if not path.exists():
        raise ConfigError(f"{folder}: no run was started here; `dpdd-server run SCENARIO --out {folder}` starts one")
    return path


def keep_scenario(scenario: Scenario, path: Path, folder: Path) -> None:
    """The run's own copy. It may change (to synthesise anew, say), but stays the same run's."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / SCENARIO
    if kept.exists() and (before := load_scenario(str(kept)).name) != scenario.name:
        raise ConfigError(f"{folder}: this is a run of the scenario {before!r}; choose another folder for this one")
    text = path.read_bytes()
    pool = scenario.synthesis.pool
    named = scenario.data.names_files or (pool is not None and pool.source is not None)
    keep_origin(path, kept, needed=named)
    if not kept.exists() or kept.read_bytes() != text:
        write_atomically(kept, text)


def again(folder: Path) -> str | None:
    """The coordinator's command that makes a run's dataset again from the releases in its folder, asking nobody.

    None where the folder keeps no scenario: then another command made it. The coordinator is the one whose folder the
    run lies in; of a run elsewhere it is where the command is given.
    """
    if not (folder / SCENARIO).exists():
        return None
    homes = [str(home) for home in folder.parents if (home / AUTHORITY).exists()]
    return shlex.join(
        ["dpdd-server", "resume", str(folder), "--offline", *(["--coordinator", homes[0]] if homes else [])]
    )
