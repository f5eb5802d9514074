"""Every registered method, and evaluation, keeps the contract: nothing here knows any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpdd.client.mechanisms.base import mechanism
from dpdd.common.methods.registry import QUERIES
from tests.methods.cases import all_cases
from tests.methods.harness import CHECKS, SILO_CHECKS, Case, check_distilled_set_finishes

cases = pytest.mark.parametrize("case", all_cases(), ids=str)


@cases
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_mechanism(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@cases
@pytest.mark.parametrize("check", SILO_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_in_a_silo(case: Case, check: Callable[[Case, Path], None], tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize(("name", "settings"), [("dosser", {"draws": 4, "networks": 2, "width": 4, "rate": 0.5})])
def test_a_set_of_images_that_are_cut_up_and_enlarged(name: str, settings: dict[str, object], tmp_path: Path) -> None:
    """It has several times as many images as were asked for, as planned (dp-geng's case of the contract does, too)."""
    check_distilled_set_finishes(Case(name, "parts", settings, {"steps": 2, "parts": 2}), tmp_path)


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_what_a_method_says_of_itself(name: str) -> None:
    chosen = QUERIES[name]
    assert chosen.name == name and chosen.summary and chosen.paper
    assert mechanism(chosen).settings_schema is chosen.settings_schema
