"""The members of the family: one engine, and a preset for each."""

from __future__ import annotations

from dpdd.common.methods.registry import METHODS, method


def test_every_preset_is_a_setting_of_the_one_engine() -> None:
    family = [entry for entry in METHODS.values() if entry.family == "matching"]
    assert {entry.name for entry in family} == {"dosser", "ndpdc", "psg", "dm"}
    presets = {entry.name: entry.settings({}) for entry in family}
    chosen = {name: (values.signal, values.schedule) for name, values in presets.items()}
    assert chosen == {
        "dosser": ("features", "decoupled"),
        "dm": ("features", "decoupled"),
        "ndpdc": ("features", "coupled"),
        "psg": ("gradients", "coupled"),
    }
    assert method("ndpdc").settings({"draws": 7}).draws == 7
