"""TOML files checked against a schema, with errors that name the file, the key and what is allowed there."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dpdd.common.errors import ConfigError


class RenamedKeyWarning(FutureWarning):
    """A file has a key that goes by another name now."""


class Settings(BaseModel):
    """Base of every schema: immutable, and a key that does not exist is an error.

    `renamed` are keys that had another name (old: new). They are still read; `warn_of_renamed` tells whoever wrote
    them. In requests they keep the old spelling for good (`on_wire`): a request's id is the hash of its bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
    renamed: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known_by_both_names(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not cls.renamed.keys() & value.keys():
            return value
        for old, new in cls.renamed.items():
            if old in value and new in value:
                raise ValueError(f"{old} and {new} are the same key; leave {old} out")
        return {cls.renamed.get(key, key): entry for key, entry in value.items()}

    def on_wire(self) -> dict[str, Any]:
        """All settings as plain values, under the names that they have in requests."""
        old = {new: old for old, new in self.renamed.items()}
        return {old.get(key, key): value for key, value in self.model_dump(mode="json").items()}


def warn_of_renamed(value: Mapping[str, Any], schema: type[Settings], where: str) -> None:
    """A warning for every key of `value`, sections included, that has another name now."""
    for old, new in schema.renamed.items():
        if old in value:
            warnings.warn(f"{where}{old} is called {new} now", RenamedKeyWarning, stacklevel=2)
    for name, field in schema.model_fields.items():
        section, inside = field.annotation, value.get(name)
        if isinstance(section, type) and issubclass(section, Settings) and isinstance(inside, Mapping):
            warn_of_renamed(inside, section, f"{where}{name}.")


S = TypeVar("S", bound=BaseModel)


def load_toml(path: Path, schema: type[S]) -> S:
    """The file at `path` as a `schema`, or a ConfigError of one sentence."""
    return validate(read_toml(path), schema, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds, unchecked, or a ConfigError of one sentence."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: this is a folder; name the TOML file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not valid TOML: {one_line(error)}") from None


def validate(value: Any, schema: type[S], where: str) -> S:
    """`value` as a `schema`; ConfigError names the first wrong key, and how many more there are."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error)}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply") from None


def explain(error: ValidationError) -> str:
    """The first problem of a validation in one sentence."""
    problems = error.errors(include_url=False)
    first = problems[0]
    key = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    message = {"extra_forbidden": "there is no such key", "missing": "this key is missing"}.get(first["type"], message)
    given = ""
    if first["type"] not in ("missing", "extra_forbidden", "value_error"):
        given = f" (it is {_short(first['input'])})"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return one_line(f"{key}: {message}{given}{more}" if key else f"{message}{given}{more}")


def one_line(text: object) -> str:
    """Printable, and in one line."""
    return "".join(c if c.isprintable() else " " for c in " ".join(str(text).split()))


def _short(value: object) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
