"""Runs that take seconds: DP-MERF with few features on a part of the shipped slice, without evaluation."""

from __future__ import annotations

from pathlib import Path


def tiny_scenario(silos: int = 2, steps: int = 10, more: str = "") -> str:
    """Its TOML, with `more` sections at the end."""
    return f"""
name = "tiny"
[data]
dataset = "fashion-slice"
silos = {silos}
records_per_silo = 500
[privacy]
epsilon = 10.0
[method]
name = "dp-merf"
[method.settings]
features = 16
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = {steps}
batch = 10
[evaluation]
runs = 0
{more}"""


def releases(folder: Path) -> dict[str, bytes]:
    """What the silos of a run sent, by silo."""
    return {path.parents[2].name: path.read_bytes() for path in folder.glob("silos/*/state/outbox/*.release")}
