"""Completion of the commands in a shell: a script made from the parsers themselves, so that it knows every option.

Paths complete to files, or to folders where the help says FOLDER; arguments with names of their own (shipped scenarios)
to those and to files. `shtab` writes the script.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def completion_script(parser: argparse.ArgumentParser, shell: str, names: Mapping[str, Sequence[str]]) -> str:
    """What `shell` has to read; `names` are known values of arguments that may also be TOML files, by argument."""
    import shtab

    for action in _actions(parser):
        if action.dest in names:
            action.complete = _names_or_toml(action.dest, names[action.dest])  # type: ignore[attr-defined]
        elif action.type is Path:
            folder = "folder" in (action.dest, str(action.metavar).lower())
            action.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of the parser and of all its sub-commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
        else:
            yield action


def _names_or_toml(argument: str, names: Sequence[str]) -> dict[str, Any]:
    """A completion function for each shell, in the form that shtab takes."""
    words, function = shlex.join(names), f"_dpdd_{argument}"
    return {
        "bash": f"{function}_files",  # shtab marks what has "_file" in its name as files, so that folders get a slash
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f"{function}_files() {{\n"
            f"  compgen -W {shlex.quote(words)} -- $1\n  compgen -f -X '!*.toml' -- $1\n  compgen -d -- $1\n}}",
            "zsh": f"{function}() {{\n  compadd -- {words}\n  _files -g '*.toml'\n}}",
            "fish": f"function {function}\n  printf '%s\\n' {words}\n  __fish_complete_suffix .toml\nend",
        },
    }
