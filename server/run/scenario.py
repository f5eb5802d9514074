"""A scenario: one TOML file that says what is asked of whom, and what is made of the answers.

`[data]` (`dpdd.server.run.data_section`) says what the records are, and where public ones are. Every default is in
these schemas, and nowhere else. Paths in `[data]` are relative to the file.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dpdd.common.config import Settings, read_toml, validate, warn_of_renamed
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.data.schema import DataSchema
from dpdd.common.errors import ConfigError, WireError
from dpdd.common.methods.base import DataKind, Method
from dpdd.common.methods.column_histograms.query import NAME as COLUMN_HISTOGRAMS
from dpdd.common.methods.registry import METHODS, QUERIES
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.synthesis.priors import AS_RELEASED, Priors
from dpdd.common.wire.parsing import check_name
from dpdd.common.wire.request import Kind
from dpdd.server.aggregation.rules import RULES
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.pool.section import PoolSection, check_pool, located_pool
from dpdd.server.run.data_section import DataSection
from dpdd.server.run.exchange_section import ExchangeSection
from dpdd.server.run.judges import judging
from dpdd.server.run.origin import origin_of
from dpdd.server.run.own_data import public_test_images, public_test_rows

ALSO_NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""Names of further datasets."""
SCENARIO_FILES = "dpdd.scenario_files"
"""The entry points of packages that bring scenarios."""


Epsilon = Annotated[float, Field(gt=0.0)]


class PrivacySection(Settings):
    """What is asked of every silo; `epsilon = inf` asks simulated silos for sums without noise.

    `epsilons` names the silos that are asked for another ε; a simulated silo's budget is what it is asked for.
    """

    epsilon: Epsilon = 1.0
    delta: Annotated[float, Field(gt=0.0, le=0.01)] = 1e-5
    epsilons: dict[str, Epsilon] = Field(default_factory=dict)

    @field_validator("epsilon")
    @classmethod
    def _sensible(cls, epsilon: float) -> float:
        if epsilon > LARGEST_EPSILON and epsilon != float("inf"):
            raise ValueError(f"epsilon is at most {LARGEST_EPSILON:g}, or inf for a simulation without noise")
        return epsilon

    @field_validator("epsilons")
    @classmethod
    def _all_sensible(cls, epsilons: dict[str, float]) -> dict[str, float]:
        return {silo: cls._sensible(epsilon) for silo, epsilon in epsilons.items()}

    def epsilon_of(self, silo: str) -> float:
        """What `silo` is asked for."""
        return self.epsilons.get(silo, self.epsilon)

    def check_silos(self, silos: Iterable[str]) -> None:
        """ConfigError when `epsilons` names a silo that is not one of `silos`."""
        known = sorted(silos)
        strangers = sorted(set(self.epsilons) - set(known))
        if strangers:
            raise ConfigError(f"privacy.epsilons names {strangers[0]!r}; the silos are {', '.join(known)}")


class MethodSection(Settings):
    """Which method, and who synthesises; or `column-histograms`, of which no dataset is made, but a schema.

    `centralised`: silos release sums, the coordinator synthesises. `decentralised`: silos release finished sets.
    """

    name: str
    mode: Literal["centralised", "decentralised"] = "centralised"
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METHODS and name != COLUMN_HISTOGRAMS:
            known = ", ".join(sorted([*METHODS, COLUMN_HISTOGRAMS]))
            raise ValueError(f"there is no method {reprlib.repr(name)}; known are {known}")
        return name

    @property
    def kind(self) -> Kind:
        """The kind of release that the mode asks for."""
        return Kind.DISTILLED_SET if self.mode == "decentralised" else Kind.STATISTICS

    @model_validator(mode="after")
    def _possible(self) -> MethodSection:
        if self.kind not in QUERIES[self.name].release_kinds:
            raise ValueError(f"{self.name} cannot release a {self.kind.words}, which mode = {self.mode!r} asks for")
        return self


class AggregationSection(Settings):
    """How the releases of several silos become one, and what becomes of one that no honest silo would send.

    `rule` is one of `aggregation.rules`: `sum` adds the silos' sums; `precision` weighs each silo by its noise and
    size; `robust` also weighs down who says something else than the others. `outliers` are releases that are
    implausible in themselves (`aggregation.plausibility`): `warn` names them, `drop` also leaves them out.
    """

    rule: str = "sum"
    outliers: Literal["warn", "drop"] = "warn"

    @field_validator("rule")
    @classmethod
    def _known_rule(cls, rule: str) -> str:
        if rule not in RULES:
            raise ValueError(f"there is no aggregation rule {rule!r}; known are {', '.join(RULES)}")
        return rule


class AlsoSection(Settings):
    """One more dataset from the same releases, in `dataset/also/NAME`: by another `method` of the family, or size."""

    synonyms: ClassVar[Mapping[str, str]] = {"rows_per_class": "images_per_class"}

    name: str
    method: str | None = None
    images_per_class: Annotated[int, Field(ge=1)] = 50
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not re.fullmatch(ALSO_NAME, name):
            raise ValueError(f"{reprlib.repr(name)} is no name of a folder: use letters, digits, - and _")
        return name


class SynthesisSection(Settings):
    """What is made of the releases.

    In decentralised mode the silos' sets have `images_per_class` together: each is asked for a `data.silos`-th of them,
    or for `images_per_silo` of each class where silos may lack classes; what is too many is left out. All of this is
    part of the request, so changing it asks (and costs) anew.

    `priors` are the shares of the classes that labels, teacher and learners assume: `as-released` (those of the noisy
    counts), `equal`, or a table of shares. Left out, they are as the method fits them: right for classes of about the
    same size. A set has as many images of every class, whatever the priors, and other ones ask nobody anew.

    `also` are further datasets from the same releases. `pool` are public images as material (`dpdd.server.pool`).
    Of a table, the first two keys may be called `rows_per_class` and `rows_per_silo`.
    """

    synonyms: ClassVar[Mapping[str, str]] = {"rows_per_class": "images_per_class", "rows_per_silo": "images_per_silo"}

    images_per_class: Annotated[int, Field(ge=1)] = 50
    images_per_silo: Annotated[int, Field(ge=1)] | None = None
    priors: Priors | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    also: tuple[AlsoSection, ...] = ()
    pool: PoolSection | None = None

    @field_validator("also")
    @classmethod
    def _told_apart(cls, also: tuple[AlsoSection, ...]) -> tuple[AlsoSection, ...]:
        if len({each.name for each in also}) < len(also):
            raise ValueError("two further datasets have one name")
        return also


class ContinualSection(Settings):
    """Class-incremental tasks: how many (the class list is cut in order), or the classes of each.

    Each task is answered by silos of its own, named `<silo>-task-<number>`, that hold that task's records only: every
    record is in one release. In simulations, `comes_from` says whether all silos have records of every task, or whether
    tasks come from one silo after the other; and `joint` also runs all classes at once, as the ceiling.
    """

    tasks: Annotated[int, Field(ge=2)] | tuple[tuple[str, ...], ...]
    comes_from: Literal["all silos", "one silo each"] = "all silos"
    joint: bool = True

    def split(self, classes: Sequence[str]) -> list[tuple[str, ...]]:
        """The classes of each task, in the order of the tasks; ConfigError unless every class is in one of them."""
        if isinstance(self.tasks, int):
            cuts = [round(i * len(classes) / self.tasks) for i in range(self.tasks + 1)]
            tasks = [tuple(classes[start:stop]) for start, stop in pairwise(cuts)]
        else:
            tasks = [tuple(task) for task in self.tasks]
        named = [name for task in tasks for name in task]
        if sorted(named) != sorted(classes):
            odd = next((n for n in named if n not in classes or named.count(n) > 1), None)
            odd = odd or next(name for name in classes if name not in named)
            raise ConfigError(f"continual.tasks: {odd!r} is not in exactly one task, or is no class of this dataset")
        small = [task for task in tasks if len(task) < 2]
        if small:
            raise ConfigError(f"continual.tasks: a task has at least two classes, not {len(small[0])}")
        return tasks


def task_silo(silo: str, task: int) -> str:
    """The name of `silo` as it answers a task (numbered from 1); `task_of` is the way back."""
    return f"{silo}-task-{task}"


def task_of(name: str) -> tuple[str, int] | None:
    """The silo and the task in a name that `task_silo` made."""
    silo, _, number = name.rpartition("-task-")
    return (silo, int(number)) if silo and number.isdecimal() else None


class Scenario(Settings):
    """The whole file.

    `licence` is the dataset's, for its card: an SPDX identifier such as `CC-BY-4.0`, or words.
    """

    renamed: ClassVar[Mapping[str, str]] = {"method.aggregation": "aggregation.rule"}

    name: str
    summary: str = ""
    licence: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataSection
    privacy: PrivacySection = PrivacySection()
    method: MethodSection
    aggregation: AggregationSection = AggregationSection()
    synthesis: SynthesisSection = SynthesisSection()
    evaluation: EvaluationSection = EvaluationSection()
    continual: ContinualSection | None = None
    exchange: ExchangeSection = ExchangeSection()
    _test: dict[tuple[DataSection, int], LabelledImages | None] = PrivateAttr(default_factory=dict)
    _test_rows: dict[tuple[DataSection, int], LabelledRows | None] = PrivateAttr(default_factory=dict)

    @property
    def schema(self) -> DataSchema:  # type: ignore[override]
        """The public schema of every record: as declared, or the benchmark's."""
        if (declared := self.data.declared) is not None:
            return declared
        test = self.test_data()
        assert test is not None  # a benchmark has test data
        return DataSchema(classes=test.classes, shape=test.shape)

    def test_data(self) -> LabelledImages | None:
        """The public test images, read once; None where there are none."""
        key = (self.data, self.seed)
        if key not in self._test:
            self._test[key] = public_test_images(*key)
        return self._test[key]

    def test_rows(self) -> LabelledRows | None:
        """The public test data of a table, read once; None where there is none."""
        key = (self.data, self.seed)
        if key not in self._test_rows:
            self._test_rows[key] = public_test_rows(*key)
        return self._test_rows[key]

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        try:
            return check_name("scenario name", name)
        except WireError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _one_split(self) -> Scenario:
        alone = self.continual is not None and self.continual.comes_from == "one silo each"
        if alone and (self.data.partition != "iid" or self.data.shares or self.data.records_per_silo):
            raise ValueError(
                'continual.comes_from = "one silo each" splits the records by task: '
                "leave data.partition, data.shares and data.records_per_silo out"
            )
        return self

    @model_validator(mode="after")
    def _what_is_for_images(self) -> Scenario:
        if self.data.is_table and self.continual is not None:
            raise ValueError("continual tasks are for images: leave continual out, or declare images")
        tasks, learners = self.continual is not None, self.evaluation.learners or ()
        chosen, mode = QUERIES[self.method.name], self.method.mode
        check_pool(self.synthesis.pool, self.data, mode, chosen, tasks=tasks, learners=learners)
        return self

    @model_validator(mode="after")
    def _learners_of_its_records(self) -> Scenario:
        try:
            self.evaluation.check_kind(DataKind.TABLE if self.data.is_table else DataKind.IMAGE)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _evaluation_at_silos(self) -> Scenario:
        asked = self.evaluation.at_silos
        if asked is not None and self.method.name == COLUMN_HISTOGRAMS:
            raise ValueError(f"{COLUMN_HISTOGRAMS} makes nothing to evaluate: leave evaluation.at_silos out")
        if asked is not None and self.continual is not None:
            raise ValueError("evaluation.at_silos is for one dataset: it cannot be asked for beside continual tasks")
        budgets = (self.privacy.epsilon, *self.privacy.epsilons.values())
        if asked is not None and {math.isinf(each) for each in budgets} != {math.isinf(asked.epsilon)}:
            raise ValueError("evaluation.at_silos.epsilon is inf where privacy.epsilon is, and nowhere else")
        return self

    @model_validator(mode="after")
    def _same_releases(self) -> Scenario:
        if not self.synthesis.also:
            return self
        own = QUERIES[self.method.name]
        if self.continual is not None or self.method.mode == "decentralised":
            raise ValueError("synthesis.also is for one set of sums: leave it out, or continual and decentralised mode")
        for each in self.synthesis.also:
            other = METHODS.get(each.method or self.method.name)
            if other is None or other.family != own.family:
                family = ", ".join(name for name, known in METHODS.items() if known.family == own.family)
                raise ValueError(
                    f"synthesis.also: {reprlib.repr(each.method)} makes nothing of what {self.method.name} releases; "
                    f"those who do are {family}"
                )
            try:
                other.settings({**own.preset, **self.method.settings})
                other.synthesis_settings(each.settings)
            except ConfigError as error:
                raise ValueError(f"synthesis.also, {each.name}: {error}") from None
        return self

    @model_validator(mode="after")
    def _method_settings(self) -> Scenario:
        chosen = QUERIES[self.method.name]
        try:
            settings = chosen.settings(self.method.settings)
            if isinstance(chosen, Method):
                chosen.synthesis_settings(self.synthesis.settings)
            for epsilon in (self.privacy.epsilon, *self.privacy.epsilons.values()):
                chosen.check_budget(epsilon)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.exchange.dropouts == "skip" and (not chosen.rounds or self.method.mode == "decentralised"):
            rounds = ", ".join(name for name, known in QUERIES.items() if known.rounds)
            raise ValueError(
                f'exchange.dropouts = "skip" is for sums in rounds (of {rounds}): a later stage of {self.method.name} '
                "builds on the sums of the same silos; leave dropouts out, or wait for them"
            )
        rule = self.aggregation.rule
        if self.method.mode == "decentralised" and rule != "sum":
            raise ValueError("a decentralised run has no sums to aggregate: leave aggregation.rule out")
        if RULES[rule].needs_counts and chosen.count_weight(settings, 0) is None:
            raise ValueError(f"{self.method.name} releases no class counts, which aggregation by {rule} needs")
        if self.synthesis.priors == AS_RELEASED and chosen.count_weight(settings, 0) is None:
            raise ValueError(f"{self.method.name} releases no class counts: declare equal priors, or give them")
        return self


def shipped() -> dict[str, Path]:
    """The scenarios that installed packages bring, by name: those that name a folder of TOML files as entry point."""
    folders = [Path(str(resources.files(entry.value))) for entry in entry_points(group=SCENARIO_FILES)]
    return dict(sorted((path.stem, path) for folder in folders for path in folder.glob("*.toml")))


def load_scenario(name_or_path: str, source: Path | None = None) -> Scenario:
    """A shipped scenario by name, or any file by path; `source` takes the place of its `data.source`."""
    known = shipped()
    path = known.get(name_or_path, Path(name_or_path))
    if path.suffix == ".toml" or path.exists():
        return _checked(path, source)
    raise ConfigError(f"there is no scenario {name_or_path!r}; shipped are {', '.join(known)}, or name a .toml file")


def _checked(path: Path, source: Path | None) -> Scenario:
    """The scenario in a file, with a warning for every key that has another name now, and paths that lead somewhere."""
    value = read_toml(path)
    scenario = validate(value, Scenario, str(path))
    warn_of_renamed(value, Scenario, f"{path}: ")
    chosen = QUERIES[scenario.method.name]
    warn_of_renamed(scenario.method.settings, chosen.settings_schema, f"{path}: method.settings.")
    if isinstance(chosen, Method):
        warn_of_renamed(scenario.synthesis.settings, chosen.synthesis_schema, f"{path}: synthesis.settings.")
    origin = origin_of(path)
    data, replaced = scenario.data.located(origin.folder), source or origin.source
    data = data if replaced is None else data.with_source(replaced)
    methods = [scenario.method.name, *(each.method or "" for each in scenario.synthesis.also)]
    pool = located_pool(scenario.synthesis.pool, origin.folder)
    judges = judging(scenario.evaluation, [] if data.is_table else methods, pool=pool is not None)
    synthesis = scenario.synthesis.model_copy(update={"pool": pool})
    return scenario.model_copy(update={"data": data, "synthesis": synthesis, "evaluation": judges})
