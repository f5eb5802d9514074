"""The methods that dpdd knows. A method is two files and one line here.

`common/synthesis/<module>.py` holds what is public: `MethodSettings`, the layout of released sums, the synthesis.
`client/mechanisms/<module>.py` holds the way from records to privatised sums; only the silo can import it.

>>> method("dp-merf").module
'dp_merf'
>>> method("dp-magic")
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no method 'dp-magic'; known are dm, dosser, dp-merf, ndpdc, psg, sps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    family: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The name of its two files; methods of a family share them, and differ in their `preset` settings."""
        return (self.family or self.name).replace("-", "_")

    def synthesis(self) -> ModuleType:
        """Its public half."""
        return import_module(f"dpdd.common.methods.{self.module}.synthesis")

    def settings(self, values: Mapping[str, Any]) -> Settings:
        """`values` checked against the method's own schema."""
        schema: type[Settings] = self.synthesis().MethodSettings
        return validate({**self.preset, **values}, schema, f"settings of {self.name}")

    def resolved(self, settings: Settings, **facts: Any) -> Settings:
        """`settings` with what a coordinator decides before it asks, if the method leaves something to decide."""
        resolve: Callable[..., Settings] = getattr(self.synthesis(), "resolve", lambda settings, **_facts: settings)
        return resolve(settings, **facts)

    def count_weight(self, settings: Settings, stage: int) -> float | None:
        """What a record weighs in the released counts; None for methods without counts."""
        plain: Callable[..., float | None] = lambda settings, _stage: getattr(settings, "count_weight", None)  # noqa: E731
        weight: Callable[..., float | None] = getattr(self.synthesis(), "count_weight", plain)
        return weight(settings, stage)

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
        Method(
            "dosser",
            "mean features of random networks in a public subspace, drawn once and matched for long",
            frozenset({Kind.STATISTICS, Kind.DISTILLED_SET}),
            "matching",
        ),
        Method(
            "ndpdc",
            "mean features of random networks, one optimisation step per noisy draw",
            frozenset({Kind.STATISTICS, Kind.DISTILLED_SET}),
            "matching",
            {"schedule": "coupled", "dimensions": 0, "draws": 1000, "rate": 0.01, "networks": 0},
        ),
        Method(
            "psg",
            "gradients of random networks, one optimisation step per noisy draw",
            frozenset({Kind.STATISTICS, Kind.DISTILLED_SET}),
            "matching",
            {
                "signal": "gradients",
                "schedule": "coupled",
                "dimensions": 0,
                "draws": 500,
                "rate": 0.02,
                "width": 16,
                "networks": 0,
            },
        ),
        Method(
            "dm",
            "distribution matching without privacy, as the upper end of the scale",
            frozenset({Kind.STATISTICS, Kind.DISTILLED_SET}),
            "matching",
            {"dimensions": 0},
        ),
    )
}


def method(name: str) -> Method:
    """The method called `name`."""
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; known are {', '.join(sorted(METHODS))}")
    return METHODS[name]
