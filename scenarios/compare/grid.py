"""The grid of a comparison: which cells there are, and the scenario file of each.

A cell is a scenario with another ε, number of silos, partition and seed. Its file says all of that, so the cell is
nothing but `dpdd-sim run` on that file. What a grid does not name stays as the scenario has it.

>>> grid = Grid(scenarios=("quickstart",), epsilon=(1.0, 10.0), seeds=2)
>>> [cell.key for cell in grid.cells()]  # doctest: +NORMALIZE_WHITESPACE
['quickstart.eps-1.silos-3.iid.seed-0', 'quickstart.eps-10.silos-3.iid.seed-0',
 'quickstart.eps-1.silos-3.iid.seed-1', 'quickstart.eps-10.silos-3.iid.seed-1']
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from dpdd.common.config import Settings, read_toml, validate
from dpdd.common.errors import ConfigError
from dpdd.scenarios.compare.toml_text import toml_text
from dpdd.server.run.origin import keep_origin
from dpdd.server.run.scenario import Scenario, load_scenario, shipped

PARTITIONS: Mapping[str, str | None] = {
    "iid": None,
    "group": None,
    "dirichlet": "alpha",
    "pathological": "classes_per_silo",
}
"""Ways to split records, and what the number after a colon is."""
_OF_PARTITIONS = ("alpha", "classes_per_silo", "shares", "partition_by")
Epsilon = Annotated[float, Field(gt=0.0)]
MOST_CELLS = 10_000


class Line(Settings):
    """A scenario under a name of its own, with values that are only for it (`set`, by dotted keys)."""

    scenario: str
    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    set: dict[str, Any] = Field(default_factory=dict)


class Grid(Settings):
    """What is compared. `set` are values for every cell, by dotted keys of a scenario."""

    scenarios: Annotated[tuple[str | Line, ...], Field(min_length=1)]
    epsilon: Annotated[tuple[Epsilon, ...], Field(min_length=1)] | None = None
    silos: Annotated[tuple[Annotated[int, Field(ge=1, le=1000)], ...], Field(min_length=1)] | None = None
    partitions: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    set: dict[str, Any] = Field(default_factory=dict)

    @field_validator("partitions")
    @classmethod
    def _known(cls, partitions: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for each in partitions or ():
            partition_keys(each)
        return partitions

    def cells(self) -> list[Cell]:
        """All cells: those of the first seed first, so that every row has something early. ConfigError for a name that
        two have, and for a scenario that cannot be read."""
        rows = [row for line in self.scenarios for row in self._rows(_line(line))]
        if len(rows) * self.seeds > MOST_CELLS:
            raise ConfigError(f"the grid has {len(rows) * self.seeds:,} cells; {MOST_CELLS:,} are the most")
        cells = [row.with_seed(seed) for seed in range(self.seeds) for row in rows]
        keys = [cell.key for cell in cells]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ConfigError(f"the grid has the cell {twice} twice: name each scenario, ε and partition once")
        return cells

    def _rows(self, line: Line) -> Iterator[Cell]:
        scenario = load_scenario(line.scenario)
        for epsilon, silos, partition in product(
            self.epsilon or (None,), self.silos or (None,), self.partitions or (None,)
        ):
            yield Cell(line, scenario, epsilon, silos, partition, 0, self.set)


@dataclass(frozen=True)
class Cell:
    """One run. Values that are None are the scenario's own."""

    line: Line
    base: Scenario
    epsilon: float | None
    silos: int | None
    partition: str | None
    seed: int
    set: Mapping[str, Any]

    def with_seed(self, seed: int) -> Cell:
        """The same with another seed."""
        return Cell(self.line, self.base, self.epsilon, self.silos, self.partition, seed, self.set)

    @property
    def row(self) -> str:
        """What all seeds have in common, as a name for files."""
        partition = self.stated_partition.replace(":", "-")
        return f"{self.line.name}.eps-{self.stated_epsilon:g}.silos-{self.stated_silos}.{partition}"

    @property
    def key(self) -> str:
        """The cell's name: of its folder, and of its file."""
        return f"{self.row}.seed-{self.seed}"

    @property
    def stated_epsilon(self) -> float:
        """What the silos are asked for."""
        return float(self._stated("privacy.epsilon", self.epsilon, self.base.privacy.epsilon))

    @property
    def stated_silos(self) -> int:
        """How many silos there are."""
        return int(self._stated("data.silos", self.silos, self.base.data.silos))

    @property
    def stated_partition(self) -> str:
        """How records are split."""
        data = self.base.data
        own = {"dirichlet": f":{data.alpha:g}" if data.alpha else "", "pathological": f":{data.classes_per_silo}"}
        partition = f"{data.partition}{own.get(data.partition, '')}"
        return str(self._stated("data.partition", self.partition, partition))

    @property
    def method(self) -> str:
        """Who makes the dataset."""
        return str(self._stated("method.name", None, self.base.method.name))

    @property
    def dataset(self) -> str | None:
        """The benchmark's name; None for own data."""
        return None if (name := self._stated("data.dataset", None, self.base.data.dataset)) is None else str(name)

    def _stated(self, key: str, given: Any, otherwise: Any) -> Any:
        if given is not None:
            return given
        return {**self.set, **self.line.set}.get(key, otherwise)

    @property
    def text(self) -> str:
        """The cell's scenario file."""
        values = copy.deepcopy(read_toml(source_of(self.line.scenario)))
        data, privacy = values.setdefault("data", {}), values.setdefault("privacy", {})
        if self.partition is not None:
            for key in _OF_PARTITIONS:
                data.pop(key, None)
            data |= partition_keys(self.partition)
        if self.silos is not None:
            data.pop("shares", None)
            data["silos"] = self.silos
        if self.epsilon is not None:
            privacy["epsilon"] = self.epsilon
        if self.epsilon is not None or self.silos is not None:
            privacy.pop("epsilons", None)  # names silos that may not be there, and an ε of their own
        for key, value in {**self.set, **self.line.set}.items():
            _put(values, key, value)
        values["seed"] = self.seed
        return f"# A cell of `dpdd-sim compare`: {self.key}\n{toml_text(values)}\n"

    def write(self, folder: Path) -> Path:
        """Write the file; paths in it lead where they lead in the original."""
        path, original = folder / f"{self.key}.toml", source_of(self.line.scenario)
        path.write_text(self.text, encoding="utf-8")
        pool = self.base.synthesis.pool
        keep_origin(original, path, needed=self.base.data.names_files or (pool is not None and pool.source is not None))
        return path


def source_of(scenario: str) -> Path:
    """The file behind a shipped scenario's name, or behind a path."""
    return shipped().get(scenario, Path(scenario))


def fingerprint(cells: Sequence[Cell]) -> str:
    """SHA-256 of all cells' files: two grids with the same one ask for the same runs."""
    digest = hashlib.sha256()
    for cell in sorted(cells, key=lambda each: each.key):
        digest.update(f"{cell.key}\0{cell.text}\0".encode())
    return digest.hexdigest()


def partition_keys(partition: str) -> dict[str, Any]:
    """The keys of `[data]` for a way to split records.

    >>> partition_keys("dirichlet:0.3"), partition_keys("iid")
    ({'partition': 'dirichlet', 'alpha': 0.3}, {'partition': 'iid'})
    """
    name, colon, number = partition.partition(":")
    key = PARTITIONS.get(name)
    if name not in PARTITIONS or (key is None) == bool(colon):
        raise ValueError(
            f"{partition!r} is no partition: they are iid, group, dirichlet:ALPHA and pathological:CLASSES_PER_SILO"
        )
    if key is None:
        return {"partition": name}
    try:
        value = int(number) if key == "classes_per_silo" else float(number)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError(f"{partition!r} is no partition: after the colon comes a number above 0")
    return {"partition": name, key: value}


def setting(word: str) -> tuple[str, Any]:
    """`KEY=VALUE` from a command line: a value of TOML, or else a string.

    >>> setting("synthesis.images_per_class=10"), setting("method.name=dm")
    (('synthesis.images_per_class', 10), ('method.name', 'dm'))
    """
    key, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise ConfigError(f"--set takes KEY=VALUE with a scenario's dotted key, not {word!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def grid_of(values: Mapping[str, Any], where: str) -> Grid:
    """A checked grid."""
    return validate(values, Grid, where)


def _line(line: str | Line) -> Line:
    if isinstance(line, Line):
        return line
    name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(line).stem if line not in shipped() else line)
    return Line(scenario=line, name=name.lstrip("-_") or "scenario")


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {key}: {section} is no section of the scenario")
    values[last] = value
