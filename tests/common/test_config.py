from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from pydantic import BaseModel

from dpdd.client.config import SiloSettings
from dpdd.common.config import RenamedKeyWarning, validate, warn_of_renamed
from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import METHODS
from dpdd.server.run.scenario import Scenario

SILO: dict[str, Any] = {
    "name": "north",
    "data": {"format": "npz", "path": "x.npz", "classes": ["a", "b"], "shape": [1, 8, 8]},
    "budget": {"epsilon": 1.0, "delta": 1e-5},
    "policy": {"methods": ["sps"], "epsilon_per_request": 1.0},
}
SCENARIO: dict[str, Any] = {"name": "x", "data": {"dataset": "fashion-slice"}, "method": {"name": "sps"}}


def problem(value: Any, schema: type[BaseModel] = SiloSettings) -> str:
    with pytest.raises(ConfigError) as error:
        validate(value, schema, "file")
    return str(error.value)


def changed(section: str, **values: Any) -> dict[str, Any]:
    silo = deepcopy(SILO)
    silo[section].update(values)
    return silo


def test_a_misspelt_key_is_named_before_the_missing_one_that_it_stands_for() -> None:
    silo = deepcopy(SILO)
    silo["data"]["clases"] = silo["data"].pop("classes")
    assert problem(silo) == "file: data.clases: there is no such key; did you mean classes?"


def test_a_misspelt_section_is_named() -> None:
    silo = deepcopy(SILO)
    silo["polcy"] = silo.pop("policy")
    assert problem(silo) == "file: polcy: there is no such section; did you mean policy?"


def test_other_problems_are_still_counted() -> None:
    silo = changed("data", clases=[])
    silo["budget"]["epsilon"] = -1
    assert problem(silo) == "file: data.clases: there is no such key; did you mean classes? (and 1 more)"


@pytest.mark.parametrize("written", ["Epsilon_Per_Request", "epsilon-per-request", "epsilon per request"])
def test_case_and_dashes_are_seen_through(written: str) -> None:
    assert "did you mean epsilon_per_request?" in problem(changed("policy", **{written: 1}))


def test_a_key_like_no_other_gets_the_list() -> None:
    expected = "file: budget.colour: there is no such key; known are epsilon, delta, composition"
    assert problem(changed("budget", colour=1)) == expected


def test_a_missing_section_says_what_it_has() -> None:
    silo = deepcopy(SILO)
    del silo["budget"]
    assert problem(silo) == "file: budget: this section is missing; it has epsilon, delta, composition"
    silo["budget"] = 2
    assert problem(silo) == "file: budget: this is a section with epsilon, delta, composition, not 2"


def test_an_unknown_choice_lists_what_there_is() -> None:
    assert "'ask' or 'auto' (it is 'aks')" in problem(changed("policy", approval="aks"))
    assert "known are column-histograms, dm, dosser" in problem(changed("policy", methods=["spss"]))


def sections(schema: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Every section of a file, written without the code under test."""
    yield place, schema
    for name, field in schema.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind, (*place, name))


def misspelt(value: dict[str, Any], place: tuple[str, ...], key: str) -> dict[str, Any]:
    value = deepcopy(value)
    inside = value
    for part in place:
        inside = inside.setdefault(part, {})
    inside[key] = 1
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (SiloSettings, SILO),
        (Scenario, SCENARIO),
        *((schema, {}) for m in METHODS.values() for schema in (m.settings_schema, m.synthesis_schema)),
    ],
)
def test_a_lost_letter_is_found_in_every_section(schema: type[BaseModel], value: dict[str, Any]) -> None:
    for place, section in sections(schema):
        for key in section.model_fields:
            typed = key[: len(key) // 2] + key[len(key) // 2 + 1 :]
            if len(key) >= 4 and typed not in section.model_fields:
                where = ".".join((*place, typed))
                said = problem(misspelt(value, place, typed), schema)
                assert f"{where}: there is no such key; did you mean {key}?" in said


def test_a_key_that_moved_to_another_section_is_read_in_both_and_whoever_wrote_it_is_told() -> None:
    old = {**SCENARIO, "method": {"name": "sps", "aggregation": "precision"}}
    read = validate(old, Scenario, "file")
    assert read.aggregation.rule == "precision" and old["method"]["aggregation"] == "precision"
    assert validate({**old, "aggregation": {"outliers": "drop"}}, Scenario, "file").aggregation.outliers == "drop"
    with pytest.warns(RenamedKeyWarning, match=r"^file: method.aggregation is called aggregation.rule now$"):
        warn_of_renamed(old, Scenario, "file: ")
    both = problem({**old, "aggregation": {"rule": "sum"}}, Scenario)
    assert "method.aggregation and aggregation.rule are the same key; leave method.aggregation out" in both
    assert "aggregation.rule: there is no aggregation rule 'median'" in problem(
        {**SCENARIO, "method": {"name": "sps", "aggregation": "median"}}, Scenario
    )
    assert "method" in problem({**SCENARIO, "method": "sps"}, Scenario)
    assert "aggregation" in problem({**old, "aggregation": 3}, Scenario)


def test_a_synonym_is_as_good_as_the_key_and_a_misspelt_one_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = {**SCENARIO, "synthesis": {"rows_per_class": 7}}
        warn_of_renamed(value, Scenario, "file: ")
        assert validate(value, Scenario, "file").synthesis.images_per_class == 7
    both = {"rows_per_class": 7, "images_per_class": 7}
    assert "rows_per_class and images_per_class are the same key" in problem({**SCENARIO, "synthesis": both}, Scenario)
    typo = problem({**SCENARIO, "synthesis": {"row_per_class": 7}}, Scenario)
    assert "did you mean rows_per_class?" in typo
