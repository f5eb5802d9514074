"""The contract that every method keeps: its public half is a `Method`, its private half a `dpdd.client` mechanism.

Everything that a silo may be asked for is a `Query`: what it takes, what it releases, in which stages. A `Method` is
the kind of query whose releases become a dataset; evaluation at the silos is a query that is no method.

A method states in one place what it takes, what it releases, in which stages, and how statistics become a dataset.
It is a class with one instance per name (a family's members differ in their `preset` settings), written as

    class DPMERF(Method[DPMERFSettings, DPMERFSynthesis], family="dp_merf"):
        def layout(self, settings, run, stage): ...

and entered in `registry`. Its two schemas are read off that first line. Defining the class checks it: a member that the
contract does not know, or one with another signature, is a TypeError at import, and an error for mypy. So nothing has
to be looked up with a default, and a misspelt name cannot pass for a method that has no such thing.

>>> class Crooked(Method[Settings, Settings], family="crooked"):
...     def layuot(self, settings, run, stage): ...
Traceback (most recent call last):
TypeError: Crooked.layuot is no part of the contract of a Method; did you mean layout?
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin

from dpdd.common.config import Settings, validate
from dpdd.common.methods.plan import ArrayType, Plan, gaussian_plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.progress import Progress, silent
from dpdd.common.wire.request import Kind, ReleaseRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpdd.common.data.table.columns import Column
    from dpdd.common.data.table.schema import TableSchema
    from dpdd.common.synthesis.linear_teacher import LinearTeacher
    from dpdd.common.synthesis.priors import Priors
    from dpdd.common.synthesis.product import Product
    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.common.synthesis.statistics import Statistics
    from dpdd.common.synthesis.teacher import Teacher

S = TypeVar("S", bound=Settings)
"""What is released: part of a request."""
T = TypeVar("T", bound=Settings)
"""How a dataset is made of it: may change without asking the silos again."""


class DataKind(Enum):
    """What a record is."""

    IMAGE = "image"
    TABLE = "table"

    @classmethod
    def of_shape(cls, shape: Sequence[int]) -> DataKind:
        """An image has channels, height and width; a row of a table has columns.

        >>> DataKind.of_shape((1, 28, 28)), DataKind.of_shape((14,))
        (<DataKind.IMAGE: 'image'>, <DataKind.TABLE: 'table'>)
        """
        return cls.IMAGE if len(shape) == 3 else cls.TABLE


@dataclass(frozen=True, eq=False)
class RunDescription:
    """Everything public about a run that a method needs to know, and who works for it.

    `images_per_class`, `priors`, `runner` and `progress` matter to synthesis only, and no request depends on `priors`
    (`dpdd.common.synthesis.priors`; None: nothing is declared). `backbone_sha256` pins the public backbone (empty:
    any). `table` is the schema of a table's columns. Without a `runner` synthesis takes one process.
    """

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    public_seed: int
    images_per_class: int = 1
    backbone_sha256: bytes = b""
    runner: SynthesisRunner | None = None
    progress: Progress = silent
    priors: Priors | None = None
    table: TableSchema | None = None

    @classmethod
    def of(
        cls,
        request: ReleaseRequest,
        images_per_class: int = 1,
        runner: SynthesisRunner | None = None,
        progress: Progress = silent,
        priors: Priors | None = None,
    ) -> RunDescription:
        """What a request says of its run."""
        return cls(
            request.classes,
            request.shape,
            request.public_seed,
            images_per_class,
            request.backbone_sha256,
            runner,
            progress,
            priors,
            request.table,
        )

    @property
    def kind(self) -> DataKind:
        """What a record is."""
        return DataKind.of_shape(self.shape)

    @property
    def public(self) -> RunDescription:
        """The same run with nobody working for it: facts alone, which can be sent to another process."""
        return replace(self, runner=None, progress=silent)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width; ValueError for records that are no images."""
        if self.kind is not DataKind.IMAGE:
            raise ValueError(f"records of shape {self.shape} are no images")
        return cast("tuple[int, int, int]", self.shape)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a record, in the order of its codes; ValueError for records that are no rows of a table."""
        if self.table is None:
            raise ValueError(f"records of shape {self.shape} are no rows of a table with a schema")
        return self.table.features


def check_overrides(cls: type, contract: type) -> None:
    """TypeError unless all public members of `cls` are members of `contract`, functions with the same parameters."""
    known = {name for name in dir(contract) if not name.startswith("_")}
    known |= {name for base in contract.__mro__ for name in vars(base).get("__annotations__", ())}
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"{cls.__name__}.{name} is no part of the contract of a {contract.__name__}{meant}")
        wanted = inspect.getattr_static(contract, name, None)
        if not inspect.isfunction(wanted):
            continue
        if not inspect.isfunction(member):
            raise TypeError(f"{cls.__name__}.{name} is not a method, and the contract of a {contract.__name__} has one")
        given, asked = (list(inspect.signature(each).parameters.values()) for each in (member, wanted))
        if [(p.name, p.kind) for p in given] != [(p.name, p.kind) for p in asked]:
            raise TypeError(
                f"{cls.__name__}.{name} takes ({', '.join(p.name for p in given)}), and the contract of a "
                f"{contract.__name__} asks for ({', '.join(p.name for p in asked)})"
            )


def check_complete(cls: type) -> None:
    """TypeError where abstract members are missing."""
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"{cls.__name__} has no {', '.join(missing)}")


def schemas_of(cls: type, contract: type) -> tuple[type[Settings], ...]:
    """The schemas in ``class Name(Contract[schema, ...])``; TypeError where there are none."""
    for base in getattr(cls, "__orig_bases__", ()):
        if get_origin(base) is contract:
            schemas = get_args(base)
            if all(isinstance(schema, type) and issubclass(schema, Settings) for schema in schemas):
                return schemas
    raise TypeError(f"{cls.__name__} does not name its settings: class {cls.__name__}({contract.__name__}[...])")


@dataclass(frozen=True)
class Query(ABC, Generic[S]):
    """Something that a silo may be asked for: what it is told, what it releases, and of which data.

    `preset` are settings that this member of the family has unless somebody says otherwise.
    """

    name: str
    summary: str
    paper: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    release_kinds: frozenset[Kind] = frozenset()
    data_kinds: frozenset[DataKind] = frozenset({DataKind.IMAGE})

    family: ClassVar[str]
    """The name of its folder here, and of the module with its private half in the silo."""
    settings_schema: ClassVar[type[Settings]]
    first_stage_input: ClassVar[bool] = False
    """Whether its first request brings public arrays too. Then it has one stage: a later one could not name it."""
    rounds: ClassVar[bool] = False
    """Whether its stages are rounds: of one layout and one noise, so that all have the plan of the first, and each is
    for whoever is there, whether or not they were in the others (`Method.advance`)."""

    def __init_subclass__(cls, *, family: str) -> None:
        super().__init_subclass__()
        cls.family = family
        if family:  # a contract, like `Method`, has none
            (cls.settings_schema,) = schemas_of(cls, Query)
            check_overrides(cls, Query)

    def __post_init__(self) -> None:
        if not self.release_kinds or not self.data_kinds:
            raise TypeError(f"{self.name} says neither what it releases, nor of which data")
        self.settings({})  # its preset must be settings that it has

    def settings(self, values: Mapping[str, Any]) -> S:
        """`values` over the preset, checked against the schema."""
        return cast("S", validate({**self.preset, **values}, self.settings_schema, f"settings of {self.name}"))

    def check_budget(self, epsilon: float) -> None:
        """ConfigError where it cannot be asked for at this ε; any will do, by default."""

    def stages(self, settings: S) -> int:
        """In how many releases it asks for its statistics; all are reserved together."""
        return 1

    @abstractmethod
    def layout(self, settings: S, run: RunDescription, stage: int) -> Layout:
        """The released sums of a stage."""

    def plan(self, request: ReleaseRequest, settings: S) -> Plan:
        """The cost and the layout of an answer, whatever the records are; ConfigError where no silo could answer.

        One Gaussian over the layout of each stage, by default, all with the same noise.
        """
        run = RunDescription.of(request)
        return gaussian_plan(request, [self.layout(settings, run, stage) for stage in range(self.stages(settings))])

    def check_round(self, request: ReleaseRequest, settings: S) -> None:
        """ConfigError where nobody can be asked for a round with this stage input; its cost is that of the first."""

    def published_epsilon(self, settings: S, run: RunDescription, plan: Plan) -> float | None:
        """What the paper's own accounting says of the noise of a plan; None where that is ours, or says nothing."""
        return None

    def count_weight(self, settings: S, stage: int) -> float | None:
        """What a record weighs in the class counts of a stage (segment `count`); None for releases without counts."""
        return None

    def backbones(self, settings: S) -> tuple[str, ...]:
        """The public backbones that records pass through; the first is pinned in the request."""
        return ()

    def public_datasets(self, settings: S) -> tuple[str, ...]:
        """Public datasets that go into what is made of the releases (`dpdd.common.data.benchmarks`), by name.

        None of them may be the run's own; a silo that makes a set itself uses those that its policy names.
        """
        return ()

    def public_models(self, settings: S) -> tuple[str, ...]:
        """Pretrained models of other people's that make what is released or synthesised, beside backbones."""
        return ()

    def working_memory(self, settings: S, run: RunDescription, stage: int) -> int:
        """Bytes that public networks and what they make of a batch take in a silo, beside rows and sums: a bound.

        Whoever looks at records through nothing large needs none.
        """
        return 0


@dataclass(frozen=True)
class Method(Query[S], Generic[S, T], family=""):
    """A method's public half. Only the members of `Query` and those below may be overridden; help of one's own is
    called ``_something``.
    """

    release_kinds: frozenset[Kind] = frozenset({Kind.STATISTICS, Kind.DISTILLED_SET})

    synthesis_schema: ClassVar[type[Settings]]
    learners: ClassVar[tuple[str, ...]] = ()
    """Who judges its images where a scenario does not say; those of all methods, by default."""

    def __init_subclass__(cls, *, family: str) -> None:
        super(Query, cls).__init_subclass__()  # not a Query's: there are two schemas to read
        cls.family = family
        cls.settings_schema, cls.synthesis_schema = schemas_of(cls, Method)
        check_overrides(cls, Method)

    def synthesis_settings(self, values: Mapping[str, Any]) -> T:
        """`values`, checked against the schema of the method's synthesis."""
        return cast("T", validate(dict(values), self.synthesis_schema, f"synthesis settings of {self.name}"))

    def resolve(self, settings: S, run: RunDescription, epsilon: float, delta: float) -> S:
        """The settings with what a coordinator decides from public facts before it asks; as they are, by default."""
        return settings

    def stage_input(self, statistics: Sequence[Statistics], settings: S, run: RunDescription) -> Mapping[str, NDArray]:
        """The public arrays that the next stage is asked with, from the sums of all stages so far."""
        return {}

    def advance(
        self, state: Any, statistics: Statistics, settings: S, run: RunDescription
    ) -> tuple[Any, Mapping[str, NDArray]]:
        """Of a method in rounds: its state after one round more (None before the first), and the next stage's input.

        The same as `stage_input` gives for all rounds so far, at the cost of one.
        """
        raise TypeError(f"{self.name} has no rounds")

    @abstractmethod
    def synthesise(self, statistics: Sequence[Statistics], settings: S, synthesis: T, run: RunDescription) -> Product:
        """The dataset, or the model, that the statistics of all stages give. Pure post-processing."""

    def images_made(self, synthesis: T) -> int:
        """How many images of the set there are for each that is asked for: more where they are cut up and enlarged."""
        return 1

    def label_arrays(self, settings: S, synthesis: T, run: RunDescription) -> Mapping[str, ArrayType]:
        """What a distilled set has beside images, hard labels and counts: `soft` labels, the weights of a `teacher`."""
        return {}

    def joint_teacher(
        self, firsts: Sequence[Statistics], settings: S, tasks: Sequence[tuple[str, ...]], run: RunDescription
    ) -> Teacher | None:
        """One classifier for the classes of several tasks, from the first stages of each, where statistics have one."""
        return None

    def released_teacher(
        self, statistics: Sequence[Statistics], settings: S, synthesis: T, run: RunDescription
    ) -> Teacher | None:
        """The classifier of images that the statistics of all stages contain, for the declared priors; without images.

        None where they contain none.
        """
        return None

    def teacher_of(self, weights: NDArray[np.float32], settings: S, run: RunDescription) -> LinearTeacher:
        """The classifier with weights that a silo sent beside its set; ValueError when none was asked for."""
        raise ValueError("they fit no classifier that was asked for")
