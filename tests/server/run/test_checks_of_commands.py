"""What can be wrong whatever silos say is said before a server waits for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpdd.common.errors import DpddError
from dpdd.common.methods.base import DataKind
from dpdd.common.methods.registry import METHODS
from dpdd.common.progress import Console
from dpdd.server.run.checks import check_before_asking
from dpdd.server.run.scenario import load_scenario
from dpdd.server.transport import running
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.service import Address
from tests.scenarios.tiny_runs import tiny_scenario

WRONG = {
    "an unknown dataset": (('dataset = "fashion-slice"', 'dataset = "no-such-thing"'), "no-such-thing"),
    "a learner without a backbone": (("runs = 0", 'runs = 1\nlearners = ["probe"]'), "no public backbone"),
    "tasks that are none": (
        ("[evaluation]", '[continual]\ntasks = [["Bag", "Coat"]]\n[evaluation]'),
        "exactly one task",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_run_that_cannot_be_is_refused_before_anybody_is_served(tmp_path: Path, name: str) -> None:
    (old, new), sentence = WRONG[name]
    path = tmp_path / "tiny.toml"
    assert old in tiny_scenario()
    path.write_text(tiny_scenario().replace(old, new))
    coordinator = Coordinator.initialise(tmp_path / "hub")
    try:
        with pytest.raises(DpddError, match=sentence):
            running.run(coordinator, path, tmp_path / "run", Console(quiet=True), address=Address())
    finally:
        coordinator.close()
    assert not (tmp_path / "run").exists()


def test_a_method_for_another_kind_of_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_scenario())
    check_before_asking(load_scenario(str(path)))
    for_tables = replace(METHODS["dp-merf"], data_kinds=frozenset({DataKind.TABLE}))
    monkeypatch.setitem(METHODS, "dp-merf", for_tables)
    with pytest.raises(DpddError, match="dp-merf takes records of kind table"):
        check_before_asking(load_scenario(str(path)))
