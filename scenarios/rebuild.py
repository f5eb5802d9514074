"""The command line of scripts that build a shipped file: write it, or with ``--check`` compare it with a rebuild."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dpdd.common.errors import DpddError


def main(
    arguments: Sequence[str] | None,
    *,
    program: str,
    description: str | None,
    output: Path,
    write: Callable[[Path], None],
    check: Callable[[Path], None],
) -> int:
    """Write or check what is at `output`, or where ``--output`` says; the process's exit code.

    `check` raises a DpddError for what a rebuild would not give.
    """
    parser = argparse.ArgumentParser(prog=program, description=(description or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=output, help="where to write, or what to check")
    parser.add_argument("--check", action="store_true", help="compare with a rebuild, write nothing")
    options = parser.parse_args(arguments)
    try:
        (check if options.check else write)(options.output)
    except DpddError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0
