"""A grid's cells, and the scenario file of each: what is overridden, what stays, and what cannot be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.errors import ConfigError
from dpdd.scenarios.compare.grid import fingerprint, grid_of, setting
from dpdd.scenarios.compare.toml_text import toml_text
from dpdd.server.run.scenario import load_scenario, shipped

_PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8")),
    st.dates(),
)
_VALUES = st.recursive(
    _PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=6), _VALUES, max_size=4))
def test_toml_reads_back_as_it_was_written(values: dict[str, object]) -> None:
    assert tomllib.loads(toml_text(values)) == values


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_survives_being_written(name: str) -> None:
    (cell,) = grid_of({"scenarios": [name]}, "the grid").cells()
    original = {"seed": 0, "privacy": {}, **tomllib.loads(shipped()[name].read_text())}
    assert tomllib.loads(cell.text) == {**original, "seed": 0}


def test_a_cell_is_the_scenario_with_other_values(tmp_path: Path) -> None:
    grid = {
        "scenarios": ["unequal-budgets"],
        "epsilon": [2.0, float("inf")],
        "silos": [5],
        "partitions": ["dirichlet:0.3"],
        "seeds": 3,
        "set": {"synthesis.images_per_class": 7, "evaluation.convnet_dd": {"runs": 1}},
    }
    cells = grid_of(grid, "the grid").cells()
    assert len(cells) == 6 and len({cell.key for cell in cells}) == 6
    assert [cell.seed for cell in cells] == [0, 0, 1, 1, 2, 2]  # every row has something early
    scenario = load_scenario(str(cells[-2].write(tmp_path)))
    base = load_scenario("unequal-budgets")
    assert base.privacy.epsilons and not scenario.privacy.epsilons  # of silos that may not be there
    assert (scenario.privacy.epsilon, scenario.data.silos, scenario.seed) == (2.0, 5, 2)
    assert (scenario.data.partition, scenario.data.alpha, scenario.data.shares) == ("dirichlet", 0.3, None)
    assert scenario.synthesis.images_per_class == 7 and scenario.evaluation.convnet_dd.runs == 1
    assert scenario.method == base.method and scenario.privacy.delta == base.privacy.delta
    assert load_scenario(str(cells[-1].write(tmp_path))).privacy.epsilon == float("inf")
    assert cells[-1].key == "unequal-budgets.eps-inf.silos-5.dirichlet-0.3.seed-2"


def test_lines_of_one_scenario_have_names_of_their_own() -> None:
    lines = [
        {"name": "merf", "scenario": "quickstart", "set": {"method.name": "dp-merf", "method.settings": {}}},
        "quickstart",
    ]
    merf, plain = grid_of({"scenarios": lines}, "the grid").cells()
    assert (merf.method, plain.method) == ("dp-merf", "sps")
    assert "first_share" not in merf.text and "first_share" in plain.text
    with pytest.raises(ConfigError, match="twice"):
        grid_of({"scenarios": ["quickstart", "quickstart"]}, "the grid").cells()


def test_paths_lead_where_they_led(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "own.toml").write_text(
        'name = "own"\nmethod.name = "dp-merf"\n[data]\nclasses = ["a", "b"]\nshape = [1, 28, 28]\nsource = "scans"\n'
    )
    (cell,) = grid_of({"scenarios": [str(home / "own.toml")]}, "the grid").cells()
    source = load_scenario(str(cell.write(tmp_path))).data.source
    assert source is not None and Path(str(source.path)) == home / "scans"


def test_the_fingerprint_is_that_of_what_is_asked() -> None:
    grid = {"scenarios": ["quickstart"], "epsilon": [1.0, 2.0]}
    one = grid_of(grid, "the grid").cells()
    assert fingerprint(one) == fingerprint(list(reversed(one)))
    other = grid_of({**grid, "set": {"synthesis.images_per_class": 3}}, "the grid").cells()
    assert fingerprint(one) != fingerprint(other) != fingerprint(one[:1])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scenarios": []}, "at least 1 item"),
        ({"scenarios": ["quickstrat"]}, "there is no scenario"),
        ({"epsilon": [0.0]}, "greater than 0"),
        ({"silos": [0]}, "greater than or equal to 1"),
        ({"partitions": ["dirichlet"]}, "dirichlet:ALPHA"),
        ({"partitions": ["iid:3"]}, "iid, group"),
        ({"partitions": ["pathological:-1"]}, "a number above 0"),
        ({"epsilons": [1.0]}, "did you mean epsilon"),
        ({"seeds": 1000, "silos": list(range(1, 12))}, "10,000 are the most"),
    ],
)
def test_what_is_wrong_with_a_grid_is_one_sentence(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        grid_of({"scenarios": ["quickstart"], **values}, "the grid").cells()


def test_settings_from_a_command_line() -> None:
    assert setting("evaluation.learners=['convnet-dd']") == ("evaluation.learners", ["convnet-dd"])
    assert setting("privacy.epsilon=inf") == ("privacy.epsilon", float("inf"))
    for wrong in ("nonsense", "=3", "a b=3", "a..b=3"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            setting(wrong)
