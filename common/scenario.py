"""A scenario: one TOML file that says what is asked of whom, and what is made of the answers.

`[data]` has a meaning for simulations (which dataset is split over the silos) and for evaluation (whose test split).
Every default is here, and nowhere else.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dpdd.common.config import Settings, load_toml
from dpdd.common.errors import ConfigError, WireError
from dpdd.common.methods import METHODS
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.wire.parsing import check_name
from dpdd.common.wire.request import Kind


class DataSection(Settings):
    """The dataset, and how a simulation splits it."""

    dataset: str
    silos: Annotated[int, Field(ge=1, le=1000)] = 3
    partition: Literal["iid"] = "iid"
    records_per_silo: Annotated[int, Field(ge=1)] | None = None


class PrivacySection(Settings):
    """What is asked of every silo; `epsilon = inf` asks simulated silos for sums without noise."""

    epsilon: Annotated[float, Field(gt=0.0)] = 1.0
    delta: Annotated[float, Field(gt=0.0, le=0.01)] = 1e-5

    @field_validator("epsilon")
    @classmethod
    def _sensible(cls, epsilon: float) -> float:
        if epsilon > LARGEST_EPSILON and epsilon != float("inf"):
            raise ValueError(f"epsilon is at most {LARGEST_EPSILON:g}, or inf for a simulation without noise")
        return epsilon


class MethodSection(Settings):
    """Which method, and what it releases."""

    name: str
    mode: Literal["centralised"] = "centralised"
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METHODS:
            raise ValueError(f"there is no method {name!r}; known are {', '.join(sorted(METHODS))}")
        return name

    @property
    def kind(self) -> Kind:
        """The kind of release that the mode asks for."""
        return Kind.STATISTICS


class SynthesisSection(Settings):
    """What is made of the releases."""

    images_per_class: Annotated[int, Field(ge=1)] = 50
    settings: dict[str, Any] = Field(default_factory=dict)


class EvaluationSection(Settings):
    """Networks trained on the synthetic set and tested on real test data."""

    runs: Annotated[int, Field(ge=0, le=100)] = 1
    width: Annotated[int, Field(ge=4)] = 64
    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.003


class Scenario(Settings):
    """The whole file."""

    name: str
    summary: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataSection
    privacy: PrivacySection = PrivacySection()
    method: MethodSection
    synthesis: SynthesisSection = SynthesisSection()
    evaluation: EvaluationSection = EvaluationSection()

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        try:
            return check_name("scenario name", name)
        except WireError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _method_settings(self) -> Scenario:
        from dpdd.common.config import validate

        module = METHODS[self.method.name].synthesis()
        try:
            validate(self.method.settings, module.MethodSettings, "method.settings")
            validate(self.synthesis.settings, module.SynthesisSettings, "synthesis.settings")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self


def shipped() -> dict[str, Path]:
    """The scenarios that come with dpdd, by name."""
    folder = Path(str(resources.files("dpdd.scenarios")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by name, or any file by path."""
    known = shipped()
    if name_or_path in known:
        return load_toml(known[name_or_path], Scenario)
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.exists():
        return load_toml(path, Scenario)
    raise ConfigError(f"there is no scenario {name_or_path!r}; shipped are {', '.join(known)}, or name a .toml file")
