"""The code behind a batch: whatever a task's module imports, and nothing else, however modules move around."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import dpdd
from dpdd.common.synthesis import code
from dpdd.common.synthesis.code import modules_behind
from dpdd.common.synthesis.runner import fingerprint


class Package(NamedTuple):
    """A package `dpdd.trial` in a folder of its own; a task's module is `dpdd.trial.task`."""

    folder: Path

    def write(self, name: str, text: str) -> None:
        path = self.folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.folder / f"{name.replace('.', '/')}.py").unlink()

    def fingerprint(self, module: str = "task") -> str:
        """As a process that starts now would find it."""
        forget()
        task = type("Task", (), {"__module__": f"dpdd.trial.{module}"})
        return fingerprint(task, {"seed": 1}, {"sums": np.zeros(2)})

    def modules(self) -> set[str]:
        forget()
        return {name.removeprefix("dpdd.trial.") for name in modules_behind("dpdd.trial.task")}


def forget() -> None:
    code.code_behind.cache_clear()
    code.source_of.cache_clear()
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.startswith("dpdd.trial")]:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.setattr(dpdd, "__path__", [*dpdd.__path__, str(tmp_path)])
    trial = Package(tmp_path / "trial")
    trial.folder.mkdir()
    trial.write("task", "from dpdd.trial.loss import loss\n\n\ndef make():\n    from dpdd.trial import late\n")
    trial.write("loss", "import dpdd.trial.maths as maths\n\nloss = 1\n")
    trial.write("maths", "two = 2\n")
    trial.write("late", "three = 3\n")
    yield trial
    forget()


def test_imports_count_wherever_they_stand(package: Package) -> None:
    assert package.modules() >= {"task", "loss", "maths", "late"}
    package.write(
        "task", "from dpdd.trial.loss import loss\n\nclass A:\n    if loss:\n        import dpdd.trial.late\n"
    )
    assert package.modules() == {"task", "loss", "maths", "late"}


def test_imports_for_type_checkers_do_not_count(package: Package) -> None:
    text = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from dpdd.trial.loss import loss\n"
    package.write("task", text)
    assert package.modules() == {"task"}


@pytest.mark.parametrize("module", ["task", "loss", "maths", "late"])
def test_a_change_in_any_imported_module_changes_the_fingerprint(package: Package, module: str) -> None:
    before = package.fingerprint()
    assert package.fingerprint() == before
    path = package.folder / f"{module}.py"
    text = path.read_text()
    path.write_text(text + "four = 4\n")
    assert package.fingerprint() != before
    path.write_text(text)
    assert package.fingerprint() == before


def test_a_module_that_nothing_here_imports_makes_no_difference(package: Package) -> None:
    before = package.fingerprint()
    package.write("unused", "from dpdd.trial.loss import loss\n")
    package.write("other_method.method", "from dpdd.trial import task\n")
    package.write("other_method.synthesis", "from dpdd.trial.loss import loss\n")
    assert package.fingerprint() == before
    package.write("other_method.synthesis", "from dpdd.trial.maths import two\n")
    assert package.fingerprint() == before


@pytest.mark.parametrize("to", ["sums", "deeper.maths"])
def test_a_module_that_moves_changes_the_fingerprint(package: Package, to: str) -> None:
    before = package.fingerprint()
    package.write(to, "two = 2\n")
    package.remove("maths")
    package.write("loss", f"import dpdd.trial.{to} as maths\n\nloss = 1\n")
    moved = package.fingerprint()
    assert moved != before and to in package.modules() and "maths" not in package.modules()


def test_a_task_that_moves_changes_its_fingerprint(package: Package) -> None:
    """Not a byte of any file is another."""
    before = package.fingerprint()
    package.write("deeper.task", (package.folder / "task.py").read_text())
    package.remove("task")
    assert package.fingerprint("deeper.task") != before


def test_two_modules_that_swap_their_contents_change_the_fingerprint(package: Package) -> None:
    before = package.fingerprint()
    package.write("maths", "three = 3\n")
    package.write("late", "two = 2\n")
    assert package.fingerprint() != before


@pytest.mark.parametrize(
    ("method", "others"), [("sps", {"matching", "dp_merf"}), ("matching", {"sps"}), ("dp_merf", {"sps", "matching"})]
)
def test_a_method_s_batches_do_not_depend_on_other_methods(method: str, others: set[str]) -> None:
    """Nor on the registry, which knows them all, nor on what only silos or coordinators have."""
    behind = modules_behind(f"dpdd.common.methods.{method}.synthesis")
    assert {f"dpdd.common.methods.{method}.{part}" for part in ("synthesis", "specification", "settings")} <= behind
    assert {"dpdd.common.methods.base", "dpdd.common.synthesis.labelled_set"} <= behind
    assert "dpdd.common.methods.registry" not in behind
    assert not [name for name in behind for other in others if name.startswith(f"dpdd.common.methods.{other}")]
    assert not [name for name in behind if name.split(".")[1] in ("client", "server", "scenarios")]
