"""TOML files checked against a schema, with errors that name the file, the key and what is allowed there."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dpdd.common.errors import ConfigError
from dpdd.common.files.untrusted import shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class RenamedKeyWarning(FutureWarning):
    """A file has a key that goes by another name now."""


class Settings(BaseModel):
    """Base of every schema: immutable, and a key that does not exist is an error.

    `renamed` are keys that had another name (old: new). They are still read; `warn_of_renamed` tells whoever wrote
    them. In requests they keep the old spelling for good (`on_wire`): a request's id is the hash of its bytes. A key
    that moved to another section is written with both: `{"method.aggregation": "aggregation.rule"}`.

    `synonyms` are other spellings of keys that are as good (other: key).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
    renamed: ClassVar[Mapping[str, str]] = {}
    synonyms: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known_by_both_names(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        found = {old: new for old, new in {**cls.renamed, **cls.synonyms}.items() if _has(value, old)}
        for old, new in found.items():
            if _has(value, new):
                raise ValueError(f"{old} and {new} are the same key; leave {old} out")
        value = {found.get(key, key): entry for key, entry in value.items()}
        for old, new in found.items():
            if "." in old:
                value = _moved(value, old, new)
        return value

    def on_wire(self) -> dict[str, Any]:
        """All settings as plain values, under the names that they have in requests."""
        old = {new: old for old, new in self.renamed.items()}
        return {old.get(key, key): value for key, value in self.model_dump(mode="json").items()}


def warn_of_renamed(value: Mapping[str, Any], schema: type[Settings], where: str) -> None:
    """A warning for every key of `value`, sections included, that has another name now."""
    for old, new in schema.renamed.items():
        if _has(value, old):
            warnings.warn(f"{where}{old} is called {new} now", RenamedKeyWarning, stacklevel=2)
    for name, field in schema.model_fields.items():
        section, inside = field.annotation, value.get(name)
        if isinstance(section, type) and issubclass(section, Settings) and isinstance(inside, Mapping):
            warn_of_renamed(inside, section, f"{where}{name}.")


def _has(value: Mapping[str, Any], key: str) -> bool:
    """Whether there is such a key, or such a section with such a key."""
    section, _, inside = key.rpartition(".")
    return isinstance(within := value.get(section) if section else value, Mapping) and inside in within


def _moved(value: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """`value` with a key of one section in another; as it is where that is no section."""
    (section, key), (target, name) = old.split("."), new.split(".")
    other = value.get(target, {})
    if not isinstance(other, Mapping):
        return dict(value)
    left = {each: entry for each, entry in value[section].items() if each != key}
    return {**value, section: left, target: {**other, name: value[section][key]}}


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
        raise ConfigError(f"{where}: {explain(error, schema)}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply") from None


def explain(error: ValidationError, schema: type[BaseModel]) -> str:
    """The first problem of a validation in one sentence; a misspelt key comes first, with the nearest right one.

    >>> class Data(Settings):
    ...     classes: tuple[str, ...]
    >>> try:
    ...     Data.model_validate({"clases": ["benign", "malignant"]})
    ... except ValidationError as error:
    ...     explain(error, Data)
    'clases: there is no such key; did you mean classes?'
    """
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    first = next((problem for problem in unknown if _nearest(problem, schema)), (unknown or problems)[0])
    key = shown(".".join(str(part) for part in first["loc"]), 200)
    message = shown(first["msg"].removeprefix("Value error, "), 600)
    others = len(problems) - 1
    if first["type"] == "extra_forbidden":
        message = f"there is no such {'section' if isinstance(first['input'], Mapping) else 'key'}"
        nearest = _nearest(first, schema)
        if nearest:
            message += f"; did you mean {nearest}?"
            meant = (*first["loc"][:-1], nearest)
            others -= any(problem["type"] == "missing" and problem["loc"] == meant for problem in problems)
        else:
            message += f"; known are {', '.join(_keys_at(schema, first['loc'][:-1]))}"
    elif first["type"] in ("missing", "model_type"):
        inside = ", ".join(_keys_at(schema, first["loc"]))
        message = f"this section is missing; it has {inside}" if inside else "this key is missing"
        if first["type"] == "model_type":
            message = f"this is a section with {inside}, not {_short(first['input'])}"
    elif first["type"] != "value_error":
        message += f" (it is {_short(first['input'])})"
    more = f" (and {others} more)" if others else ""
    return one_line(f"{key}: {message}{more}" if key else f"{message}{more}")


def _nearest(unknown: ErrorDetails, schema: type[BaseModel]) -> str | None:
    """The key that somebody may have meant by one that does not exist."""
    from difflib import get_close_matches

    known = {key.casefold(): key for key in _keys_at(schema, unknown["loc"][:-1], synonyms=True)}
    written = str(unknown["loc"][-1]).casefold().replace("-", "_").replace(" ", "_")
    close = get_close_matches(written, known, n=1, cutoff=0.7)
    return known[close[0]] if close else None


def _keys_at(schema: type[BaseModel], place: Sequence[int | str], *, synonyms: bool = False) -> list[str]:
    """The keys of the section at `place`, their synonyms too where asked for; none where that is a value."""
    sections = [schema]
    for part in place:
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        if fields:  # otherwise an element of a list, or one form of several: the same sections are meant
            sections = [section for field in fields for section in _sections(field.annotation)]
    others = [key for section in sections if synonyms for key in getattr(section, "synonyms", ())]
    return [key for section in sections for key in section.model_fields] + others


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The schemas in the type of a field, such as the one in `Section | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections(argument)]


def one_line(text: object) -> str:
    """Printable, and in one line."""
    return "".join(c if c.isprintable() else " " for c in " ".join(str(text).split()))


def _short(value: object) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
