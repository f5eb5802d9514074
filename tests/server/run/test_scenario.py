"""Scenarios are refused where they are read: whatever a method's settings, presets included, cannot do later."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.app import make_app
from dpdd.common.config import RenamedKeyWarning
from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import METHODS
from dpdd.common.progress import Console
from dpdd.common.synthesis.distilled_set import distilled_set_settings
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.run.pipeline import Run
from dpdd.server.run.requests import make_request
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario, load_scenario, shipped


def scenario(method: Mapping[str, Any], **changes: Any) -> Scenario:
    values = {"name": "asked", "data": {"dataset": "fashion-slice"}, "method": method}
    return Scenario.model_validate(values | changes)


def settings(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "settings": values}


# Settings and presets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        (settings("psg", moments=2), "moments = 2 is for features in a subspace"),
        (settings("psg", whitening=0.5), "whitening is for features in a subspace"),
        (settings("psg", dimensions=5), "a subspace is for features"),
        (settings("ndpdc", whitening=0.5), "whitening is for features in a subspace"),
        (settings("ndpdc", moments=2), "moments = 2 is for features in a subspace"),
        (settings("dm", moments=2), "moments = 2 is for features in a subspace"),
        (settings("dosser", dimensions=400), "auxiliary images have fewer"),
        (settings("psg", draws=0), "draws"),
        (settings("dp-merf", moments=1), "moments: there is no such key"),
    ],
    ids=str,
)
def test_what_a_preset_cannot_do_is_refused_at_once(method: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        scenario(method, privacy={"epsilon": float("inf")})


@pytest.mark.parametrize(
    "method",
    [
        settings("dosser", moments=2, whitening=0.5),
        settings("ndpdc", whitening=0.5, dimensions=20),
        settings("ndpdc", moments=2, dimensions="auto"),
        settings("psg", signal="features", dimensions=20, moments=2),
        settings("psg", dimensions="auto"),
    ],
    ids=str,
)
def test_what_stands_over_a_preset_counts(method: dict[str, Any]) -> None:
    asked = scenario(method)
    assert METHODS[asked.method.name].settings(asked.method.settings).model_dump().items() >= method["settings"].items()


def test_settings_of_synthesis_are_those_of_the_method() -> None:
    with pytest.raises(ValueError, match="synthesis settings of dosser: hidden: there is no such key"):
        scenario(settings("dosser"), synthesis={"settings": {"hidden": 10}})
    assert scenario(settings("dp-merf"), synthesis={"settings": {"hidden": 10}}).synthesis.settings == {"hidden": 10}


@pytest.mark.parametrize(
    "privacy",
    [
        {},
        {"epsilon": 8.0},
        {"epsilon": float("inf"), "epsilons": {"north": 1.0}},
        {"epsilon": 1.0, "epsilons": {"north": float("inf")}},
    ],
    ids=str,
)
def test_matching_without_privacy_is_not_asked_for_with_a_budget(privacy: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="dm is matching without privacy"):
        scenario(settings("dm"), privacy=privacy)
    scenario(settings("dosser"), privacy=privacy)
    scenario(settings("dm"), privacy={"epsilon": float("inf")})


# Weighing by precision ------------------------------------------------------------------------------------------------

SMALL_DOSSER = """
name = "weighed"
summary = "three silos, two budgets, one set"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = 200
[privacy]
epsilon = 4.0
epsilons = { north = 1.0 }
[aggregation]
rule = "precision"
[method]
name = "dosser"
[method.settings]
draws = 3
networks = 1
rate = 1.0
width = 4
depth = 2
dimensions = 6
auxiliary_images = 20
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = 2
[evaluation]
runs = 0
"""


def test_dosser_is_weighed_by_precision_and_runs(tmp_path: Path) -> None:
    """Its counts weigh otherwise than those of other methods, and it says so itself."""
    (tmp_path / "scenario.toml").write_text(SMALL_DOSSER)
    asked = load_scenario(str(tmp_path / "scenario.toml"))
    silos = set_up(asked, tmp_path / "run", Console(quiet=True))
    grid = InProcessGrid.of(make_app(), [silo.folder for silo in silos])
    roster = Roster({silo.settings.name: silo.public_key for silo in silos})
    metrics = Run(asked, tmp_path / "run", roster, Console(quiet=True)).execute(grid)
    assert {row["silo"]: row["epsilon"] for row in metrics["privacy"]} == {"east": 4.0, "north": 1.0, "south": 4.0}
    dataset = LabelledSet.load(tmp_path / "run" / "dataset")
    assert dataset.images.shape == (20, 1, 28, 28) and np.bincount(dataset.labels).tolist() == [2] * 10


def test_a_method_without_counts_cannot_be_weighed_by_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    method, rule = {"name": "dp-merf"}, {"rule": "precision"}
    scenario(method, aggregation=rule)
    monkeypatch.setattr(type(METHODS["dp-merf"]), "count_weight", lambda *_: None)
    with pytest.raises(ValueError, match="dp-merf releases no class counts"):
        scenario(method, aggregation=rule)
    scenario(settings("dp-merf"))


def test_a_method_without_counts_has_no_priors_as_released(monkeypatch: pytest.MonkeyPatch) -> None:
    method = {"name": "dp-merf"}
    scenario(method, synthesis={"priors": "as-released"})
    monkeypatch.setattr(type(METHODS["dp-merf"]), "count_weight", lambda *_: None)
    with pytest.raises(ValueError, match="dp-merf releases no class counts: declare equal priors, or give them"):
        scenario(method, synthesis={"priors": "as-released"})
    scenario(method, synthesis={"priors": "equal"})


# Keys that have another name now --------------------------------------------------------------------------------------

OLD = {"portrait_weight": 0.5, "jostling": 0.08, "settle": 3}
NEW = {"embedding_weight": 0.5, "augmentation_strength": 0.08, "average_last_stages": 3}
SPS = """
name = "renamed"
[data]
dataset = "fashion-slice"
[method]
name = "sps"
mode = "{mode}"
[synthesis.settings]
steps = 9
{keys}
"""


def write(path: Path, keys: Mapping[str, float], mode: str = "decentralised") -> str:
    path.write_text(SPS.format(mode=mode, keys="\n".join(f"{key} = {value}" for key, value in keys.items())))
    return str(path)


def warnings_of(path: str) -> tuple[Scenario, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = load_scenario(path)
    return loaded, [str(warning.message) for warning in caught if warning.category is RenamedKeyWarning]


@pytest.mark.parametrize("mode", ["centralised", "decentralised"])
def test_old_keys_are_read_with_a_warning_and_ask_the_same_to_the_last_byte(tmp_path: Path, mode: str) -> None:
    old, said = warnings_of(write(tmp_path / "old.toml", OLD, mode))
    new, silence = warnings_of(write(tmp_path / "new.toml", NEW, mode))
    assert silence == [] and len(said) == 3
    for before, after in zip(OLD, NEW, strict=True):
        path = tmp_path / "old.toml"
        assert f"{path}: synthesis.settings.{before} is called {after} now" in said
    sps = METHODS["sps"]
    assert sps.synthesis_settings(old.synthesis.settings) == sps.synthesis_settings(new.synthesis.settings)
    assert sps.synthesis_settings(old.synthesis.settings).model_dump().items() >= NEW.items()
    assert make_request(old).encode() == make_request(new).encode()


def test_requests_keep_the_old_spelling_for_good(tmp_path: Path) -> None:
    """A request's id is the hash of its bytes: silos would take another spelling for another request, and charge it."""
    request = make_request(load_scenario(write(tmp_path / "new.toml", NEW)))
    synthesis = distilled_set_settings(request).synthesis
    assert synthesis.items() >= OLD.items() and not synthesis.keys() & NEW.keys()


@pytest.mark.parametrize(("old", "new"), list(zip(OLD, NEW, strict=True)))
def test_a_key_under_both_names_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = write(tmp_path / "both.toml", {old: OLD[old], new: NEW[new]})
    with pytest.raises(ConfigError, match=f"{old} and {new} are the same key; leave {old} out"):
        load_scenario(path)


def names(paths: Iterable[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("name", names(shipped().values()))
def test_shipped_scenarios_are_up_to_date(name: str) -> None:
    loaded, said = warnings_of(name)
    assert said == [] and loaded.name
