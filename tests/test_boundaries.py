"""The architecture, as tests: who may import whom, what is shipped, what stays quick."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, relative imports resolved, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, module]).rstrip(".")
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("dpdd.client"):
            yield node.lineno, node.value  # import_module("dpdd.client…") and friends


def package_of(path: Path, folder: str, name: str) -> str:
    inside = path.parent.relative_to(ROOT / folder).parts
    return ".".join([name, *inside])


@pytest.mark.parametrize("name", ["dpdd.common", "dpdd.server", "dpdd.proto"])
def test_nothing_outside_client_and_scenarios_imports_the_client(name: str) -> None:
    folder = FOLDERS[name]
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources(folder)
        for line, module in imported(path, package_of(path, folder, name))
        if module == "dpdd.client" or module.startswith("dpdd.client.")
    ]
    assert found == []


def test_the_check_above_sees_every_way_to_import(tmp_path: Path) -> None:
    ways = [
        "import dpdd.client",
        "from dpdd import client",
        "from dpdd.client.silo import Silo",
        "from ..client import silo",
        "def f():\n    import dpdd.client.ledger.ledger as l",
        "import importlib\nimportlib.import_module('dpdd.client.silo')",
    ]
    for way in ways:
        path = tmp_path / "module.py"
        path.write_text(way)
        assert any(m.startswith("dpdd.client") for _, m in imported(path, "dpdd.server")), way


def test_the_server_and_the_client_do_not_know_each_other_or_the_simulator() -> None:
    for name, strangers in (("dpdd.client", ("dpdd.server", "dpdd.scenarios")), ("dpdd.server", ("dpdd.scenarios",))):
        for path in sources(FOLDERS[name]):
            for line, module in imported(path, package_of(path, FOLDERS[name], name)):
                assert not module.startswith(strangers), f"{path}:{line} imports {module}"


def test_only_the_mechanisms_and_the_simulator_privatise() -> None:
    """A clean sum has one exit, and only mechanisms take it."""
    for path in sources("client", "server", "scenarios", "common"):
        text = path.read_text()
        if "._take(" in text:
            assert path.relative_to(ROOT) == Path("common/privacy/privatise.py"), path
        if "_made_by=_ONLY_HERE" in text:
            assert path.name in ("privatise.py", "release.py"), path
        calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        if any(call.func.id == "ClippedSum" for call in calls):  # type: ignore[attr-defined]
            assert path.parent.relative_to(ROOT) == Path("client/mechanisms"), path


def test_noise_never_comes_from_a_generator_that_is_not_cryptographic() -> None:
    for path in sources("client", "common/privacy"):
        for name in ("np.random", "numpy.random", "torch.randn", "torch.normal", "random.gauss", "import random"):
            assert name not in path.read_text(), f"{path} uses {name}"


def test_every_package_folder_is_listed() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    for name, folder in FOLDERS.items():
        assert name in listed
        for path in sources(folder):
            if "dpdd" in path.relative_to(ROOT / folder).parts[:-1]:
                continue  # proto/dpdd/v1 has a name of its own
            assert package_of(path, folder, name) in listed, f"{path.parent} is missing from tool.setuptools.packages"
    for package in listed:
        parent = max((name for name in FOLDERS if package == name or package.startswith(name + ".")), key=len)
        inside = package.removeprefix(parent).strip(".").split(".")
        assert (ROOT / FOLDERS[parent]).joinpath(*filter(None, inside)).is_dir(), f"{package} does not exist"


def test_packages_are_typed() -> None:
    for folder in FOLDERS.values():
        assert (ROOT / folder / "py.typed").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["dpdd.client.cli", "--help"],
        ["dpdd.server.cli", "--help"],
        ["dpdd.scenarios.cli", "--help"],
        ["dpdd.client.cli", "budget", "--silo", "SILO"],
        ["dpdd.client.cli", "budget", "--silo", "SILO", "--json"],
        ["dpdd.client.cli", "log", "--silo", "SILO"],
        ["dpdd.client.cli", "requests", "--silo", "SILO"],
        ["dpdd.scenarios.cli", "account", "gaussian", "--epsilon", "1", "--delta", "1e-5"],
        [
            "dpdd.scenarios.cli",
            "account",
            "poisson",
            "--rate",
            "0.01",
            "--steps",
            "100",
            "--sigma",
            "2",
            "--delta",
            "1e-5",
        ],
        ["dpdd.scenarios.cli", "list"],
    ],
    ids=lambda command: " ".join(command),
)
def test_quick_commands_import_neither_torch_nor_flower(command: list[str], tmp_path: Path) -> None:
    from tests.client.silos import make_silo

    make_silo(tmp_path / "north")
    module, *arguments = [str(tmp_path / "north") if word == "SILO" else word for word in command]
    script = f"""
import sys
from {module} import main
try:
    code = main({arguments!r})
except SystemExit as stop:
    code = stop.code
heavy = {{name.partition(".")[0] for name in sys.modules}} & {{"torch", "flwr", "torchvision", "datasets"}}
assert not heavy, heavy
sys.exit(code)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout
