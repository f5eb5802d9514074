"""The privacy mutants fit the code as it is: `python -m tests.mutants` tries them, outside of CI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.methods.cases import all_cases
from tests.mutants import table
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Edit, StaleMutant, check_tests_exist
from tests.mutants.trial import Outcome

RESULTS = ROOT / "docs" / "results" / "privacy-mutants.txt"


def test_every_mutant_applies_and_names_tests_that_there_are() -> None:
    for mutant in MUTANTS:
        assert mutant.applied().keys() >= {mutant.file}
        check_tests_exist(mutant)
        assert mutant.why.endswith(".") and mutant.kind and len(mutant.why) > 40, mutant.name


def test_names_are_their_own_and_there_are_many_of_every_kind() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert len({(mutant.file, mutant.before, mutant.after, mutant.more) for mutant in MUTANTS}) == len(MUTANTS)


def test_cases_of_the_contract_are_those_that_there_are() -> None:
    names = [str(case) for case in all_cases()] + ["dp-geng-sampled-expert"]
    for test in {test for mutant in MUTANTS for test in mutant.killed_by if test.endswith("]") and "methods" in test}:
        assert any(test.partition("[")[2][:-1].endswith(name) for name in names), test


def test_a_mutant_that_no_longer_fits_is_an_error(tmp_path: Path) -> None:
    mutant = replace(MUTANTS[0], file="code.py", before="1", after="2", more=())
    for text in ("x = 3", "x = 1 + 1"):
        (tmp_path / "code.py").write_text(text)
        with pytest.raises(StaleMutant, match="times, not once"):
            mutant.applied(tmp_path)
    (tmp_path / "code.py").write_text("x = 1")
    assert mutant.applied(tmp_path) == {"code.py": "x = 2"}
    assert replace(mutant, more=(Edit("code.py", "x", "y"),)).applied(tmp_path) == {"code.py": "y = 2"}
    with pytest.raises(StaleMutant, match="not be Python"):
        replace(mutant, after="(").applied(tmp_path)
    with pytest.raises(StaleMutant, match="nothing is changed"):
        replace(mutant, after="1").applied(tmp_path)
    with pytest.raises(StaleMutant, match="there is no test"):
        check_tests_exist(replace(MUTANTS[0], killed_by=("tests/mutants/test_catalogue.py::test_of_nothing",)))


def test_what_fails_without_running_is_not_caught() -> None:
    assert Outcome("a test", "assert 2 <= 1").caught and not Outcome("a test", "ImportError", broken=True).caught
    assert not Outcome().caught


def test_the_results_are_of_these_mutants_and_none_survived(tmp_path: Path) -> None:
    rows = table.read(RESULTS)
    assert rows.keys() == {mutant.name for mutant in MUTANTS}
    assert {row.verdict for row in rows.values()} == {"caught"}
    assert {name: row.kind for name, row in rows.items()} == {mutant.name: mutant.kind for mutant in MUTANTS}
    again = tmp_path / "table.txt"
    again.write_text(table.text(rows.values()))
    assert table.read(again) == rows
