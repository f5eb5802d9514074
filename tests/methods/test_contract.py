"""Every registered method, and evaluation, keeps the contract: nothing here knows any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpdd.client.mechanisms.base import mechanism
from dpdd.common.methods.registry import QUERIES
from tests.methods.cases import all_cases
from tests.methods.harness import CHECKS, SILO_CHECKS, Case

cases = pytest.mark.parametrize("case", all_cases(), ids=str)


@cases
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_mechanism(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@cases
@pytest.mark.parametrize("check", SILO_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_in_a_silo(case: Case, check: Callable[[Case, Path], None], tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_what_a_method_says_of_itself(name: str) -> None:
    chosen = QUERIES[name]
    assert chosen.name == name and chosen.summary and chosen.paper
    assert mechanism(chosen).settings_schema is chosen.settings_schema
