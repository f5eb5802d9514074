"""Make the Python code of the wire contract: ``python proto/generate.py [FOLDER]`` (default: in place).

The generated files are committed; a test makes them again and finds no difference.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def generate(target: Path) -> list[Path]:
    """Write `dpdd/v1/*_pb2.py`, their type stubs and the gRPC service below `target`."""
    from grpc_tools import protoc

    sources = sorted(str(path.relative_to(HERE)) for path in HERE.glob("dpdd/v1/*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{HERE}", f"-I{include}"]
    arguments += [f"--python_out={target}", f"--pyi_out={target}"]
    if protoc.main([*arguments, *sources]) != 0:
        raise SystemExit("protoc failed")
    if protoc.main([*arguments[:3], f"--grpc_python_out={target}", "dpdd/v1/exchange.proto"]) != 0:
        raise SystemExit("protoc failed on the service")
    return sorted(target.glob("dpdd/v1/*_pb2*.py*"))


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE):
        print(path)
