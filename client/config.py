"""`silo.toml`: what data a silo has, what it will spend on it, and what it lets others ask."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpdd.client.records.kept import LARGEST_QUOTA, QUOTA
from dpdd.common.config import Settings, load_toml
from dpdd.common.data.formats import DataSpec
from dpdd.common.errors import ConfigError, WireError
from dpdd.common.methods.registry import QUERIES
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.privacy.filters import Budget, Composition
from dpdd.common.wire.parsing import check_name
from dpdd.common.wire.request import Kind

Epsilon = Annotated[float, Field(gt=0.0, le=LARGEST_EPSILON, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0.0, le=0.01, allow_inf_nan=False)]
LEAST_MEMORY = 1 << 29
"""Bytes; a worker has 300 million before it does anything."""
KindName = Literal["statistics", "distilled-set", "gradient-round", "evaluation"]


class BudgetSettings(Settings):
    """All that this silo will ever spend, over all runs and coordinators."""

    epsilon: Epsilon
    delta: Delta
    composition: Composition = "auto"

    def budget(self) -> Budget:
        """The same for the ledger."""
        return Budget(self.epsilon, self.delta, self.composition)


class PolicySettings(Settings):
    """What may be asked. `methods` names each query that is allowed, "evaluation" too; `kinds` may narrow that down.

    Bytes are those of one release (`most_bytes`), of all in the outbox (`outbox_quota`), of memory that a worker has to
    itself (`most_memory`), and of a file that it writes (`most_disk`); None sets no ceiling. `backbones` are files that
    requests may name beside what ships with dpdd, spelt exactly so, and `public_datasets` are names of public data that
    this silo may put into a set that it makes itself. `tell_ledger_position`: a release says how many entries and paid
    requests the ledger has, so that its coordinator notices when an old ledger was put back.
    """

    methods: tuple[str, ...]
    epsilon_per_request: Epsilon
    delta_per_request: Delta = 1e-5
    approval: Literal["ask", "auto"] = "ask"
    public_counts: dict[str, Annotated[int, Field(ge=0, lt=2**40)]] | None = None
    kinds: Annotated[tuple[KindName, ...], Field(min_length=1)] = (
        "statistics",
        "distilled-set",
        "gradient-round",
        "evaluation",
    )
    least_epsilon_per_request: Annotated[float, Field(ge=0.0, le=LARGEST_EPSILON, allow_inf_nan=False)] = 0.0
    requests_per_day: Annotated[int, Field(ge=1)] | None = None
    most_bytes: Annotated[int, Field(ge=1)] | None = None
    outbox_quota: Annotated[int, Field(ge=1)] | None = None
    most_cpu_seconds: Annotated[int, Field(ge=1)] | None = None
    most_memory: Annotated[int, Field(ge=LEAST_MEMORY)] | None = None
    most_disk: Annotated[int, Field(ge=1)] | None = None
    backbones: tuple[str, ...] = ()
    public_datasets: tuple[str, ...] = ()
    tell_ledger_position: bool = True

    @model_validator(mode="after")
    def _something_is_allowed(self) -> PolicySettings:
        if self.least_epsilon_per_request > self.epsilon_per_request:
            raise ValueError("least_epsilon_per_request is larger than epsilon_per_request, so nothing could be asked")
        return self

    def allows(self, kind: Kind) -> bool:
        """Whether releases of this kind may be asked for."""
        return kind.words.replace(" ", "-") in self.kinds

    @field_validator("methods")
    @classmethod
    def _known(cls, methods: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in methods if name not in QUERIES]
        if unknown:
            raise ValueError(f"there is no method {reprlib.repr(unknown[0])}; known are {', '.join(sorted(QUERIES))}")
        return methods


class HoldoutSettings(Settings):
    """Records that evaluation reads and no other release: this share of them, chosen one by one (`client.holdout`)."""

    holdout: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)] = 0.0


class WorkerSettings(Settings):
    """The process that reads records (`client.worker`); without `isolation` the node reads them itself, unlimited.

    `most_seconds` are by the clock, for an answer; `planning_seconds` of CPU time, to find out what one would cost.
    `keep_embeddings` are bytes of embeddings that stay from one stage of a request to the next
    (`client.records.kept`); 0 keeps none, and every stage computes them again.
    """

    isolation: bool = True
    most_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 86_400.0
    planning_seconds: Annotated[int, Field(ge=1)] = 120
    keep_embeddings: Annotated[int, Field(ge=0, le=LARGEST_QUOTA)] = QUOTA


class SimulationSettings(Settings):
    """Only for silos whose people do not exist. Every release then says that it protects nobody."""

    noise_seed: int | None = None
    allow_no_noise: bool = False


class CoordinatorSettings(Settings):
    """The one coordinator whose requests come over the network; `dpdd-client join` writes this."""

    address: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$")]
    authority_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    request_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class KeySettings(Settings):
    """Where the passphrase of an encrypted key is; `dpdd.common.files.private_keys` says where else it may be."""

    passphrase_file: Path | None = None

    def beside(self, silo: Path) -> Path | None:
        """The passphrase's file; a relative one is relative to `silo.toml`, as the data are."""
        return None if self.passphrase_file is None else silo / self.passphrase_file


class LedgerSettings(Settings):
    """Where the ledger's anchor is (`dpdd.client.anchor`), if not in the user's state folder."""

    anchor: Path | None = None


class SiloSettings(Settings):
    """The whole of `silo.toml`."""

    name: str
    data: DataSpec
    budget: BudgetSettings
    policy: PolicySettings
    evaluation: HoldoutSettings = HoldoutSettings()
    simulation: SimulationSettings | None = None
    coordinator: CoordinatorSettings | None = None
    keys: KeySettings = KeySettings()
    worker: WorkerSettings = WorkerSettings()
    ledger: LedgerSettings = LedgerSettings()

    @model_validator(mode="after")
    def _counts_of_classes(self) -> SiloSettings:
        counts = self.policy.public_counts
        if counts is not None and set(counts) != set(self.data.classes):
            raise ValueError("policy.public_counts declares a count for every class in data.classes, and no other")
        if counts is not None and self.evaluation.holdout:
            raise ValueError("policy.public_counts counts all records, and evaluation.holdout keeps some of them back")
        return self

    @property
    def public_counts(self) -> tuple[int, ...]:
        """The declared-public class counts in the order of the classes; empty when they are private."""
        counts = self.policy.public_counts
        return () if counts is None else tuple(counts[name] for name in self.data.classes)

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        try:
            return check_name("silo name", name)
        except WireError as error:
            raise ValueError(str(error)) from None


def load_settings(folder: Path) -> SiloSettings:
    """The settings of the silo in `folder`."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such silo folder; `dpdd-client init {folder}` makes one")
    return load_toml(folder / "silo.toml", SiloSettings)
