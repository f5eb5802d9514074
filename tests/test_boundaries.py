"""The architecture, as tests: who may import or name whom, what is shipped, how large modules are, what stays quick."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]
ROOMS_BELOW = {
    "proto": (),
    "common": ("proto",),
    "client": ("proto", "common"),
    "server": ("proto", "common"),
    "scenarios": ("proto", "common", "client", "server"),
}
"""Each folder of the product, and those that it may import or name besides itself."""
LARGEST_MODULE = 400
MECHANISMS = ("dpdd.client.mechanisms.", "{__package__}.")
TESTS_OF_SEVERAL_ROOMS = ("methods", "attacks", "mutants", "proto")


def sources(*folders: str, root: Path = ROOT) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in sorted((root / folder).rglob("*.py")) if "_pb2" not in path.name)


def package_of(path: Path, root: Path = ROOT) -> str:
    """The package that a module lies in; for `__init__.py`, the package that it is."""
    return ".".join(["dpdd", *path.parent.relative_to(root).parts])


def module_of(path: Path, root: Path = ROOT) -> str:
    return package_of(path, root) if path.name == "__init__.py" else f"{package_of(path, root)}.{path.stem}"


def syntax(path: Path) -> ast.Module:
    while True:
        try:
            return ast.parse(path.read_text(), str(path))
        except SystemError:  # CPython 3.11 loses count when another thread, left by a test before, shows a traceback
            continue


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Like `ast.walk`, without what only a type checker sees."""
    yield tree
    children = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.If) and ast.unparse(tree.test).split(".")[-1] == "TYPE_CHECKING":
        children = iter(tree.orelse)
    for child in children:
        yield from nodes(child)


def imported(path: Path, package: str, *, at_run_time: bool = False) -> Iterator[tuple[int, str, str]]:
    """Line, module and name ("" for `import module`) of every import, those inside functions included."""
    tree = syntax(path)
    for node in nodes(tree) if at_run_time else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, module]).rstrip(".")
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def named(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string that starts with "dpdd.", as for `import_module`; docstrings excepted."""
    tree = syntax(path)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docstrings and str(node.value).startswith("dpdd."):
            yield node.lineno, str(node.value)


def upward_edges(room: str, root: Path = ROOT) -> list[str]:
    """Where a folder imports or names one that is not below it."""
    allowed = {room, *ROOMS_BELOW[room]}
    edges = []
    for path in sources(room, root=root):
        mentions = [(line, f"{module}.{name}") for line, module, name in imported(path, package_of(path, root))]
        for line, mention in [*mentions, *named(path)]:
            top, _, rest = mention.partition(".")
            other = rest.partition(".")[0].partition(":")[0]
            if top == "dpdd" and other in ROOMS_BELOW and other not in allowed:
                edges.append(f"{path.relative_to(root)}:{line} {mention}")
    return edges


@pytest.mark.parametrize("room", ROOMS_BELOW)
def test_a_room_imports_and_names_only_rooms_below_it(room: str) -> None:
    assert upward_edges(room) == []


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("server", "import dpdd.client"),
        ("server", "from dpdd import client"),
        ("server", "from dpdd.client.silo import Silo"),
        ("server", "from ..client import silo"),
        ("server", "def f():\n    import dpdd.client.ledger.ledger as l"),
        ("server", "if TYPE_CHECKING:\n    from dpdd.client.silo import Silo"),
        ("server", "import importlib\nimportlib.import_module('dpdd.client.silo')"),
        ("server", "import_module(f'dpdd.client.mechanisms.{name}')"),
        ("server", "ENTRY = 'dpdd.scenarios.cli:main'"),
        ("client", "COMMAND = ['dpdd.server.cli', 'run']"),
        ("client", "from dpdd.scenarios.simulator import partition"),
        ("common", "from dpdd.server.run.store import Store"),
        ("common", "files('dpdd.scenarios.files')"),
        ("proto", "import dpdd.common.errors"),
    ],
)
def test_the_check_above_sees_every_way_up(room: str, code: str, tmp_path: Path) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "module.py").write_text(code)
    assert len(upward_edges(room, tmp_path)) == 1


def test_the_check_above_allows_what_is_below_and_docstrings(tmp_path: Path) -> None:
    code = '"""Not like dpdd.scenarios."""\nfrom dpdd.common.wire import request\nMESSAGE = "dpdd.v1.Release"\n'
    for room in ("client", "server"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "module.py").write_text(code + f"class A:\n    'dpdd.scenarios.A'\nX = 'dpdd.{room}.x'")
        assert upward_edges(room, tmp_path) == []


PATCHED_TO_RECORD = {"ClippedSum", "CountedSum", "FactoredSum", "sampling"}
"""What an audit patches while it records what its own canaries add: sums and samples, and nothing that draws noise."""


def patched_names(*rooms: str, root: Path = ROOT) -> list[str]:
    """What is patched anywhere in these rooms, as `module: thing`."""
    found = []
    for path in sources(*rooms, root=root):
        for node in ast.walk(syntax(path)) if "patch" in path.read_text() else ():
            if isinstance(node, ast.Call) and "patch" in ast.unparse(node.func):
                found.append(f"{path.relative_to(root).as_posix()}: {ast.unparse(node.args[0])}")
    return found


def knobs(*rooms: str, root: Path = ROOT) -> list[str]:
    """Places that set, or patch, something of the modules that draw noise and samples."""
    drawing = ("discrete_gaussian", "privatise", "entropy", "sampling")
    found = [each for each in patched_names(*rooms, root=root) if each.split(": ")[1] not in PATCHED_TO_RECORD]
    for path in sources(*rooms, root=root):
        if not any(name in path.read_text() for name in drawing):
            continue
        for node in ast.walk(syntax(path)):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[-1] in drawing:
                    found.append(f"{path.relative_to(root).as_posix()}: {ast.unparse(target)}")
    return found


def test_no_build_with_less_noise_can_be_had_outside_scenarios() -> None:
    """`scenarios/audit/less_noise.py` replaces the sampler; no room below it replaces anything that draws."""
    assert knobs("common", "client", "server") == []
    assert knobs("scenarios") == ["scenarios/audit/less_noise.py: discrete_gaussian"]
    patching = {each.split(": ")[0] for each in patched_names("common", "client", "server")}
    assert patching == {"client/auditing/contributions.py"}


def test_audits_are_made_by_their_commands_alone() -> None:
    """Nothing that answers a coordinator knows of them."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in sources("client")
        for _, module, _ in imported(path, package_of(path))
        if module.startswith("dpdd.client.auditing") and "client/auditing/" not in path.as_posix()
    }
    assert users == {"client/commands/audit.py"}


@pytest.mark.parametrize(
    "code",
    [
        "from unittest import mock\nmock.patch.object(discrete_gaussian, 'sample', f)",
        "import dpdd.common.privacy.discrete_gaussian as d\nprivacy.discrete_gaussian.sample = f",
        "entropy.SystemEntropy = SeededEntropy",
        "mock.patch('dpdd.common.privacy.privatise.privatise', f)",
    ],
)
def test_the_check_above_sees_such_a_knob(code: str, tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "module.py").write_text(code)
    assert len(knobs("client", root=tmp_path)) == 1


def dynamic_imports(*rooms: str, root: Path = ROOT) -> list[str]:
    """Imports of dpdd modules by a name that is put together; other packages may be imported by their literal name."""
    calls = []
    for path in sources(*rooms, root=root):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
                argument = node.args[0] if node.args else node
                literal = isinstance(argument, ast.Constant) and not str(argument.value).startswith("dpdd")
                in_registry = path.parent == root / "client" / "mechanisms"
                if not literal and not (in_registry and ast.unparse(argument)[1:].strip("'\"").startswith(MECHANISMS)):
                    calls.append(f"{path.relative_to(root)}:{node.lineno} {ast.unparse(node)}")
    return calls


def test_the_only_dynamic_import_is_the_lookup_of_mechanisms() -> None:
    assert dynamic_imports(*ROOMS_BELOW) == []


@pytest.mark.parametrize(
    ("folder", "code", "allowed"),
    [
        ("client/mechanisms", "import_module(f'dpdd.client.mechanisms.{name}')", True),
        ("client/mechanisms", "import_module(f'{__package__}.{name}')", True),
        ("client/mechanisms", "import_module(f'dpdd.client.{name}')", False),
        ("client/mechanisms", "import_module(name)", False),
        ("client", "import_module(f'dpdd.client.mechanisms.{name}')", False),
        ("client", "import_module(f'{__package__}.{name}')", False),
        ("common", "importlib.import_module('dpdd.common.errors')", False),
        ("common", "importlib.import_module('torchvision')", True),
        ("common", "__import__(name)", False),
    ],
)
def test_the_check_above_sees_dynamic_imports(folder: str, code: str, allowed: bool, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "module.py").write_text(code)
    assert len(dynamic_imports(folder, root=tmp_path)) == (not allowed)


def import_cycle(root: Path = ROOT) -> list[str]:
    """The modules of one cycle, the first of them again at the end; empty when there is none.

    `from package import module` is an import of the module, so that a package may collect what its modules define.
    """
    paths = {module_of(path, root): path for path in sources(*ROOMS_BELOW, root=root)}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        statements = imported(path, package_of(path, root), at_run_time=True)
        targets = {f"{source}.{name}" if f"{source}.{name}" in paths else source for _, source, name in statements}
        graph[module] = targets & paths.keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_import_cycle() -> None:
    assert " -> ".join(import_cycle()) == ""


@pytest.mark.parametrize(
    ("back", "cyclic"),
    [
        ("from dpdd.common.a import x", True),
        ("from dpdd.common import a", True),
        ("from . import a", True),
        ("from .a import x", True),
        ("import dpdd.common.a", True),
        ("def f():\n    from dpdd.common.a import x", True),
        ("class A:\n    def f(self):\n        if self:\n            import dpdd.common.a", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from dpdd.common.a import x", True),
        ("if TYPE_CHECKING:\n    from dpdd.common.a import x", False),
        ("if typing.TYPE_CHECKING:\n    from dpdd.common import a", False),
        ("from dpdd.common.c import x", False),
    ],
)
def test_the_check_above_sees_a_cycle(back: str, cyclic: bool, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("from dpdd.common.a import x")
    (tmp_path / "common" / "a.py").write_text("from dpdd.common import b")
    (tmp_path / "common" / "b.py").write_text(back)
    (tmp_path / "common" / "c.py").write_text("")
    assert bool(import_cycle(tmp_path)) is cyclic


def long_modules(root: Path = ROOT) -> dict[str, int]:
    lines = {path: len(path.read_text().splitlines()) for path in sources(*ROOMS_BELOW, root=root)}
    return {str(path.relative_to(root)): count for path, count in lines.items() if count > LARGEST_MODULE}


def test_no_module_is_longer_than_it_may_be() -> None:
    assert long_modules() == {}


def test_the_check_above_counts_lines(tmp_path: Path) -> None:
    (tmp_path / "server" / "run").mkdir(parents=True)
    for name, lines in (("just", 400), ("over", 401), ("made_pb2", 900), ("made_pb2_grpc", 900)):
        (tmp_path / "server" / "run" / f"{name}.py").write_text("pass\n" * lines)
    assert long_modules(tmp_path) == {"server/run/over.py": 401}


def folders_without_counterpart(root: Path = ROOT) -> list[str]:
    tested = {path.parent.relative_to(root / "tests") for path in sources("tests", root=root)} - {Path()}
    return sorted(str(folder) for folder in tested if not _mirrors(folder, root))


def _mirrors(folder: Path, root: Path) -> bool:
    room = folder.parts[0]
    return room in TESTS_OF_SEVERAL_ROOMS or (room in ROOMS_BELOW and (root / folder).is_dir())


def test_the_folders_of_tests_mirror_those_of_the_product() -> None:
    assert folders_without_counterpart() == []


def test_the_check_above_sees_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "client" / "ledger").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for folder in ("client", "client/ledger", "client/wallet", "docs", "attacks/replay"):
        (tmp_path / "tests" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / folder / "test_it.py").write_text("")
    assert folders_without_counterpart(tmp_path) == ["client/wallet", "docs"]


def test_only_the_mechanisms_and_the_simulator_privatise() -> None:
    """A clean sum has one exit, and only mechanisms take it."""
    for path in sources("client", "server", "scenarios", "common"):
        text = path.read_text()
        if "._take(" in text:
            assert path.relative_to(ROOT) == Path("common/privacy/privatise.py"), path
        if "_made_by=_ONLY_HERE" in text:
            assert path.name in ("privatise.py", "release.py"), path
        calls = [n for n in ast.walk(syntax(path)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        if any(call.func.id in ("ClippedSum", "CountedSum", "SampledSum", "FactoredSum") for call in calls):  # type: ignore[attr-defined]
            assert path.parent.relative_to(ROOT) == Path("client/mechanisms"), path


def generators_without_cryptography(*folders: str, root: Path = ROOT) -> list[str]:
    """Where code (not a doctest) uses a random generator that is not cryptographic."""
    uses = []
    for path in sources(*folders, root=root):
        imports = ((line, f"{module}.{name}") for line, module, name in imported(path, package_of(path, root)))
        attributes = (node for node in ast.walk(syntax(path)) if isinstance(node, ast.Attribute))
        for line, name in [*imports, *((node.lineno, ast.unparse(node)) for node in attributes)]:
            if name.startswith(("np.random", "numpy.random", "torch.rand", "torch.normal", "random.")):
                uses.append(f"{path.relative_to(root)}:{line} {name}")
    return uses


def test_noise_never_comes_from_a_generator_that_is_not_cryptographic() -> None:
    assert generators_without_cryptography("client", "common/privacy") == []


@pytest.mark.parametrize(
    ("code", "cryptographic"),
    [
        ("noise = np.random.default_rng(0).normal()", False),
        ("from numpy.random import default_rng", False),
        ("def f():\n    import numpy.random", False),
        ("noise = torch.randn(3)", False),
        ("noise = torch.normal(mean, sigma)", False),
        ("from torch import randn_like", False),
        ("import random", False),
        ("from random import gauss", False),
        ("from dpdd.common.models import random_net", True),
        ("def f():\n    '>>> images = np.random.default_rng(0).random((2, 2))'", True),
        ("from secrets import token_bytes", True),
    ],
)
def test_the_check_above_sees_every_generator(code: str, cryptographic: bool, tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "module.py").write_text(code)
    assert bool(generators_without_cryptography("client", root=tmp_path)) is not cryptographic


def test_every_package_folder_is_listed() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert listed >= FOLDERS.keys()
    for path in sources(*ROOMS_BELOW):
        if path.is_relative_to(ROOT / "proto" / "dpdd"):
            continue  # proto/dpdd/v1 has a name of its own
        assert package_of(path) in listed, f"{path.parent} is missing from tool.setuptools.packages"
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
heavy = {{name.partition(".")[0] for name in sys.modules}} & {{"torch", "flwr", "torchvision", "datasets", "pyarrow"}}
assert not heavy, heavy
sys.exit(code)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout


@pytest.mark.parametrize("module", ["dpdd.server.transport.service", "dpdd.client.transport.node"])
def test_who_waits_for_the_other_side_has_imported_nothing_that_reads_or_computes(module: str) -> None:
    """A silo's node has a worker for that; 40 MB of readers in each would lie idle."""
    heavy = '{"torch", "pyarrow", "scipy", "torchvision"}'
    script = f"import sys, {module}; sys.exit(str(sorted({heavy} & sys.modules.keys()) or ''))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.stderr.strip() == ""
