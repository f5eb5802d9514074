"""Which code decides what a batch looks like: a module, and all modules of dpdd that it imports, directly or not.

Imports inside functions count, those for type checkers do not. A module that nothing here imports (another method, a
new test) makes no difference, and one that moves does, wherever it goes.

>>> "dpdd.common.randomness" in modules_behind("dpdd.common.synthesis.image_pyramid")
False
>>> {"dpdd.common.methods.sps.moment_loss", "dpdd.common.randomness"} <= modules_behind(
...     "dpdd.common.methods.sps.synthesis"
... )
True
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=16)
def code_behind(module: str) -> str:
    """The hash of the sources of `modules_behind` a module."""
    digest = hashlib.sha256()
    for name in sorted(modules_behind(module)):
        source = source_of(name)
        assert source is not None
        digest.update(name.encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def modules_behind(module: str) -> set[str]:
    """`module`, and every module of dpdd that it needs."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        source = None if name in seen else source_of(name)
        if source is not None:
            seen.add(name)
            waiting += imports_of(ast.parse(source.read_text()))
    return seen


def imports_of(tree: ast.AST) -> Iterator[str]:
    """What may be a module of dpdd among the names that some code imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            names = []
        yield from (name for name in names if name.startswith("dpdd."))
        yield from imports_of(node)


@lru_cache(maxsize=1024)
def source_of(name: str) -> Path | None:
    """The file of a module; None where the name is something inside a module."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)
