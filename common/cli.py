"""What the three commands share: sub-commands, errors in one sentence, tables, JSON.

A sub-command is a function that takes the parsed arguments and returns nothing; it registers itself through
`Commands.add`. Anything slow to import (torch, flwr) is imported inside the function, so that `--help` stays quick.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sqlite3
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dpdd.common.config import RenamedKeyWarning
from dpdd.common.errors import DpddError
from dpdd.common.files.private import private_umask

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def software() -> str:
    """`dpdd` and its version."""
    try:
        return f"dpdd {version('dpdd')}"
    except PackageNotFoundError:
        return "dpdd (not installed)"


class Commands:
    """A program with sub-commands."""

    def __init__(self, program: str, description: str, *, private: bool = False) -> None:
        self.private = private
        """Whether what its sub-commands make is for its owner alone, but for those that publish."""
        self.parser = argparse.ArgumentParser(prog=program, description=description)
        self.parser.add_argument("--version", action="version", version=software())
        self.names: dict[str, Callable[[], Sequence[str]]] = {}
        """For completion: the names that an argument (of this name, in any sub-command) may have beside a TOML file."""
        self._late: dict[str, tuple[argparse.ArgumentParser, Callable[[argparse.ArgumentParser], None]]] = {}
        self._subparsers = self.parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        self,
        name: str,
        run: Callable[[argparse.Namespace], None],
        summary: str,
        details: str = "",
        add_options: Callable[[argparse.ArgumentParser], None] | None = None,
    ) -> argparse.ArgumentParser:
        """Register a sub-command; the returned parser takes its options.

        `add_options` is for one whose options are slow to import: it adds them when the sub-command is used.
        """
        parser: argparse.ArgumentParser = self._subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(),
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        parser.set_defaults(run=run, publishes=False)
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if add_options is not None:
            self._late[name] = parser, add_options
        return parser

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the sub-command that was asked for; the exit code."""
        arguments = sys.argv[1:] if arguments is None else arguments
        if "completion" not in self._subparsers.choices:
            self._add_completion()
        for name in set(arguments[:1]) & self._late.keys():
            self._add_late(name)
        options = self.parser.parse_args(arguments)
        with private_umask() if self.private and not options.publishes else nullcontext():
            return guarded(lambda: options.run(options), program=self.parser.prog, debug=options.debug)

    def _add_late(self, name: str) -> None:
        parser, add_options = self._late.pop(name)
        add_options(parser)

    def _add_completion(self) -> None:
        shell = self.add(
            "completion",
            self._complete,
            "print a script that completes this command in a shell",
            f"For bash: `source <({self.parser.prog} completion bash)`, in ~/.bashrc to have it always.",
        )
        shell.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")

    def _complete(self, options: argparse.Namespace) -> None:
        from dpdd.common.completion import completion_script

        for name in list(self._late):
            self._add_late(name)
        names = {argument: tuple(known()) for argument, known in self.names.items()}
        print(completion_script(self.parser, options.shell, names))


def guarded(work: Callable[[], None], *, program: str, debug: bool) -> int:
    """Run `work`; errors become one sentence on stderr and an exit code, and so do warnings of renamed keys."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RenamedKeyWarning)
            show_other, shown = warnings.showwarning, set[str]()

            def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
                if not issubclass(category, RenamedKeyWarning):
                    show_other(message, category, *where, **more)
                elif str(message) not in shown:  # a command may read a scenario more than once
                    shown.add(str(message))
                    print(f"{program}: warning: {message}", file=sys.stderr)

            warnings.showwarning = show_warning  # type: ignore[assignment]
            work()
        sys.stdout.flush()
        return 0
    except DpddError as error:
        return _report(program, str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _report(program, "interrupted", EXIT_INTERRUPTED, debug)
    except BrokenPipeError:
        # The reader (head, less) closed the pipe; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except sqlite3.Error as error:
        return _report(program, f"a database cannot be used ({error})", 1, debug)
    except (OSError, MemoryError) as error:
        return _report(program, str(error) or type(error).__name__, 1, debug)
    except Exception as error:
        sentence = (
            f"unexpected {type(error).__name__}: {error}; this is a bug in dpdd, run again with --debug for details"
        )
        return _report(program, sentence, 70, debug)


def _report(program: str, sentence: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"{program}: error: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; figures to the right.

    >>> print(table(["silo", "ε"], [["north", "1.0"], ["south", "0.25"]]))
    silo      ε
    -----  ----
    north   1.0
    south  0.25
    """
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def facts(rows: Mapping[str, str]) -> str:
    """Names and values, one to a line.

    >>> print(facts({"method": "dp-merf", "ε": "1"}))
    method  dp-merf
    ε       1
    """
    width = max(map(len, rows))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items())


def print_json(value: Any) -> None:
    """One JSON document on stdout; infinities become null, since JSON has none."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).replace("e", "", 1).replace(",", "").rstrip("%").isdigit() or (
        text in ("", "–", "∞")
    )
