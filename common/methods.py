"""The methods that dpdd knows. A method is two files and one line here.

`common/synthesis/<module>.py` holds what is public: `MethodSettings`, the layout of released sums, the synthesis.
`client/mechanisms/<module>.py` holds the way from records to privatised sums; only the silo can import it.

>>> method("dp-merf").module
'dp_merf'
>>> method("dp-magic")
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no method 'dp-magic'; known are dp-merf, sps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from dpdd.common.config import Settings, validate
from dpdd.common.errors import ConfigError
from dpdd.common.wire.request import Kind


@dataclass(frozen=True)
class Method:
    """A registered method."""

    name: str
    summary: str
    kinds: frozenset[Kind]

    @property
    def module(self) -> str:
        """The name of its two files."""
        return self.name.replace("-", "_")

    def synthesis(self) -> ModuleType:
        """Its public half."""
        return import_module(f"dpdd.common.synthesis.{self.module}")

    def settings(self, values: Mapping[str, Any]) -> Settings:
        """`values` checked against the method's own schema."""
        schema: type[Settings] = self.synthesis().MethodSettings
        return validate(dict(values), schema, f"settings of {self.name}")

    def stages(self, settings: Settings) -> int:
        """In how many releases the method asks for its statistics; 1 unless its public half has a `stages`."""
        count: Callable[[Settings], int] = getattr(self.synthesis(), "stages", lambda _settings: 1)
        return count(settings)


METHODS = {
    entry.name: entry
    for entry in (
        Method(
            "sps",
            "matched moments of a public network's activations",
            frozenset({Kind.STATISTICS, Kind.DISTILLED_SET}),
        ),
        Method(
            "dp-merf",
            "random-feature mean embeddings and a generator",
            frozenset({Kind.STATISTICS, Kind.DISTILLED_SET}),
        ),
    )
}


def method(name: str) -> Method:
    """The method called `name`."""
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; known are {', '.join(sorted(METHODS))}")
    return METHODS[name]
