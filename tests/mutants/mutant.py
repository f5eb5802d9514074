"""A privacy mutant: one change of the product that breaks the promise, and the tests that must notice.

The change replaces a text that its file holds exactly once, so a mutant that no longer fits the code is an error and
not silently another one.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class StaleMutant(Exception):
    """The code has changed: a mutant, or a test that it names, is not there any more."""


@dataclass(frozen=True)
class Edit:
    """One text of one file, and what stands there instead."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Mutant:
    """`why` says how the change breaks differential privacy, or the promise about it that `docs/privacy.md` makes.

    Where one guard stands behind another, a change of one breaks nothing: `more` are those that it takes beside.
    """

    name: str
    file: str
    before: str
    after: str
    kind: str
    why: str
    killed_by: tuple[str, ...]
    more: tuple[Edit, ...] = ()

    def applied(self, root: Path = ROOT) -> dict[str, str]:
        """The texts of the files with the changes; StaleMutant unless each can be made in one place only."""
        changed: dict[str, str] = {}
        for edit in (Edit(self.file, self.before, self.after), *self.more):
            text = changed.get(edit.file) or (root / edit.file).read_text()
            if (found := text.count(edit.before)) != 1:
                raise StaleMutant(f"{self.name}: {edit.file} holds the text that is replaced {found} times, not once")
            if edit.before == edit.after:
                raise StaleMutant(f"{self.name}: nothing is changed in {edit.file}")
            changed[edit.file] = text.replace(edit.before, edit.after)
        for file, text in changed.items():
            try:
                ast.parse(text)
            except SyntaxError as error:
                raise StaleMutant(f"{self.name}: {file} would not be Python any more ({error})") from None
        return changed

    def digest(self, root: Path = ROOT) -> str:
        """Changes with the mutant, the files that it changes and the tests that it names."""
        named = (each.partition("[")[0].split("::") for each in self.killed_by)
        tests = [_tests_of(root / file)[function] for file, function in named]
        parts = [self.name, *self.applied(root).values(), *self.killed_by, *tests]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def check_tests_exist(mutant: Mutant, root: Path = ROOT) -> None:
    """StaleMutant unless each test that a mutant names is a function of its file; parameters are not looked at."""
    if not mutant.killed_by:
        raise StaleMutant(f"{mutant.name} names no test")
    for test in mutant.killed_by:
        path, _, function = test.partition("::")
        if not (root / path).is_file() or function.partition("[")[0] not in _tests_of(root / path):
            raise StaleMutant(f"{mutant.name}: there is no test {test}")


@lru_cache(maxsize=64)
def _tests_of(path: Path) -> dict[str, str]:
    """The functions of a file, each as text without comments."""
    return {
        node.name: ast.unparse(node) for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }
