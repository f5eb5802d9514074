"""The generated code that is committed is what the `.proto` files say."""

from __future__ import annotations

import importlib.metadata
import runpy
from pathlib import Path

import pytest

import dpdd.proto

PROTO = Path(dpdd.proto.__file__).parent
GENERATED = sorted(path.name for path in (PROTO / "dpdd" / "v1").glob("*_pb2*.py*"))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("grpc_tools")
    target = tmp_path_factory.mktemp("generated")
    runpy.run_path(str(PROTO / "generate.py"))["generate"](target)
    return target / "dpdd" / "v1"


def test_no_file_is_missing_or_left_over(fresh: Path) -> None:
    assert sorted(path.name for path in fresh.iterdir()) == GENERATED
    sources = {path.stem for path in (PROTO / "dpdd" / "v1").glob("*.proto")}
    assert {name.split("_pb2")[0] for name in GENERATED} == sources
    assert {f"{source}_pb2.py" for source in sources} | {f"{source}_pb2.pyi" for source in sources} <= set(GENERATED)


@pytest.mark.parametrize("name", GENERATED)
def test_generating_again_changes_nothing(name: str, fresh: Path) -> None:
    assert (fresh / name).read_bytes() == (PROTO / "dpdd" / "v1" / name).read_bytes(), (
        f"{name} is out of date (grpcio-tools {importlib.metadata.version('grpcio-tools')}): "
        "run `python proto/generate.py`"
    )
